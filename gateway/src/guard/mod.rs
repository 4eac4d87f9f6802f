//! Who may use the gateway: keys ([`keys`]), sessions of the page ([`sessions`]), a pause after wrong
//! keys ([`throttle`]), and TLS ([`tls`]). A front asks the [`Guard`] for each request.

pub mod keys;
pub mod peer;
pub mod sessions;
pub mod throttle;
pub mod tls;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use paceline_process::config::{GatewayConfig, check_exposure};
use paceline_process::{Config, ConfigError, task};
use paceline_system::Clock;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use keys::{Keys, Principal};
use sessions::{SessionToken, Sessions};
use throttle::Throttle;
use tls::Tls;

use crate::lock::lock;

/// Pause between two checks of the file of keys.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The request has no key, or one that is not known. The error does not tell which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no API key, or one that is not known")]
pub struct UnknownKey;

/// The headers in which a protocol's clients send their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// `authorization: Bearer KEY`.
    Bearer,
    /// `authorization: Bearer KEY`, or `x-api-key: KEY`. Both must have the same key.
    BearerOrApiKey,
}

/// The header of the clients of Anthropic.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Keys, throttle, sessions and TLS of the fronts. They are read once, before anything is served.
#[derive(Clone, Debug)]
pub struct Guard {
    keys: Option<Arc<Keys>>,
    throttle: Arc<Mutex<Throttle>>,
    sessions: Arc<Mutex<Sessions>>,
    /// Name of the cookie of sessions.
    cookie: Arc<str>,
    clock: Clock,
    /// Ends TLS, where it is set.
    pub tls: Option<Tls>,
    settings: GatewayConfig,
}

impl Guard {
    /// Reads keys and certificates.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn prepare(config: &Config) -> Result<Self, ConfigError> {
        Ok(Self {
            keys: Keys::configured(config)?.map(Arc::new),
            throttle: Arc::default(),
            sessions: Arc::default(),
            cookie: sessions::cookie_name(config).into(),
            clock: Clock::start(),
            tls: tls::served(&config.gateway)?,
            settings: config.gateway.clone(),
        })
    }

    /// Checks the address of the listening socket of `key`: the process that handed the socket down
    /// may have chosen another address than the configuration.
    ///
    /// # Errors
    /// Other machines reach it, without keys or TLS, and the configuration does not allow that.
    pub fn check_exposure(
        &self,
        key: &str,
        address: std::net::SocketAddr,
    ) -> Result<(), ConfigError> {
        check_exposure(&self.settings, key, address)
    }

    /// Whether requests need a key.
    pub fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Reads the keys again whenever their file changed, and at SIGHUP, until the task is aborted;
    /// `None` without keys.
    pub fn follow_keys(&self) -> Option<JoinHandle<()>> {
        let keys = Arc::clone(self.keys.as_ref()?);
        Some(task::spawn("keys", async move {
            let mut hangup = signal(SignalKind::hangup()).ok();
            loop {
                let asked = async {
                    match &mut hangup {
                        Some(hangup) => hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                let asked = tokio::select! {
                    _ = asked => true,
                    () = tokio::time::sleep(CHECK_INTERVAL) => false,
                };
                let keys = Arc::clone(&keys);
                // A file system that hangs stops this thread and no other.
                let _ = tokio::task::spawn_blocking(move || keys.reload(asked)).await;
            }
        }))
    }

    /// The owner of the key in these headers; `None` if no keys are set.
    ///
    /// # Errors
    /// There is no key, more than one, or one that is not known.
    pub fn principal(
        &self,
        headers: &HeaderMap,
        source: KeySource,
    ) -> Result<Option<Principal>, UnknownKey> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let bearer = match single(headers, &AUTHORIZATION)? {
            None => None,
            Some(text) => match text.split_once(' ') {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Some(key.trim()),
                _ => return Err(UnknownKey),
            },
        };
        let plain = match source {
            KeySource::Bearer => None,
            KeySource::BearerOrApiKey => single(headers, &API_KEY)?.map(str::trim),
        };
        let key = match (bearer, plain) {
            (Some(one), Some(other)) if one != other => return Err(UnknownKey),
            (Some(key), _) | (None, Some(key)) => key,
            (None, None) => return Err(UnknownKey),
        };
        keys.find(key).map(Some).ok_or(UnknownKey)
    }

    /// Name of the cookie of sessions of this service.
    pub fn session_cookie(&self) -> &str {
        &self.cookie
    }

    /// Begins a session of this key's owner; its token.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn begin_session(&self, owner: &Principal) -> Result<SessionToken, getrandom::Error> {
        let token = SessionToken::draw()?;
        lock(&self.sessions).begin(&token, &owner.scope, self.clock.now());
        Ok(token)
    }

    /// The owner of the key whose session this is; `None` if it is over, or if its key is no more
    /// in the file of keys.
    pub fn session(&self, token: &SessionToken) -> Option<Principal> {
        let keys = self.keys.as_ref()?;
        let scope = lock(&self.sessions).scope(token, self.clock.now())?;
        keys.of_scope(&scope)
    }

    /// Ends a session.
    pub fn end_session(&self, token: &SessionToken) {
        lock(&self.sessions).end(token);
    }

    /// How long the answer to a wrong key has to wait.
    pub fn pause(&self, peer: IpAddr) -> Duration {
        lock(&self.throttle).failed(peer, self.clock.now())
    }
}

/// The text of a header that may be there once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, UnknownKey> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| UnknownKey),
        (Some(_), Some(_)) => Err(UnknownKey),
    }
}
