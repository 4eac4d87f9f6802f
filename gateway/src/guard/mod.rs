//! Who may speak with the gateway: keys ([`keys`]), a pause behind wrong ones ([`throttle`]), TLS
//! ([`tls`]), and the door every call passes ([`Door`]).
//!
//! Where keys are set, every method of every service needs one, reflection and methods that do not
//! exist included; only health is open. A refusal does not say what was wrong.

pub mod keys;
pub mod peer;
pub mod throttle;
pub mod tls;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use paceline_process::config::GatewayConfig;
use paceline_process::{Clock, Config, ConfigError, task};
use paceline_proto::status::{Reason, ReasonStatus as _};
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use keys::{Keys, Principal};
use throttle::Throttle;

/// The only service that needs no key.
const OPEN: &str = "/grpc.health.v1.Health/";
/// How often the file of keys is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What guards the front: read once, before anything is served.
#[derive(Clone, Debug)]
pub struct Guard {
    keys: Option<Arc<Keys>>,
    throttle: Arc<Mutex<Throttle>>,
    clock: Clock,
    /// Ends TLS, where it is set.
    pub tls: Option<Arc<ServerConfig>>,
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
            clock: Clock::start(),
            tls: tls::served(&config.gateway)?,
            settings: config.gateway.clone(),
        })
    }

    /// Checks the address that is really listened on: whoever handed the socket down may have
    /// chosen another.
    ///
    /// # Errors
    /// Other machines reach it, without keys or TLS, and nobody said that it may be so.
    pub fn check_exposure(&self, address: std::net::SocketAddr) -> Result<(), ConfigError> {
        self.settings.check_exposure(address)
    }

    /// Whether calls need a key.
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
                let asked =
                    tokio::select! { _ = asked => true, () = tokio::time::sleep(LOOK) => false };
                let keys = Arc::clone(&keys);
                // A file system that hangs stops this thread and nobody else.
                let _ = tokio::task::spawn_blocking(move || keys.look(asked)).await;
            }
        }))
    }

    /// Who sent these headers.
    fn principal(&self, headers: &HeaderMap) -> Result<Option<Principal>, ()> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(()) };
        let (scheme, key) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(())?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(());
        }
        keys.find(key.trim()).map(Some).ok_or(())
    }

    /// How long the answer to a wrong key has to wait.
    fn pause(&self, peer: IpAddr) -> Duration {
        // A panic in between cannot have left the counts in a state that matters.
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        throttle.failed(peer, self.clock.now())
    }
}

/// The door before every service: lets calls with a key through and says whose it is
/// ([`Principal`], in the extensions).
#[derive(Clone, Debug)]
pub struct Door<S> {
    inner: S,
    guard: Guard,
    peer: IpAddr,
}

impl<S> Door<S> {
    /// The door before `inner`, for one connection.
    pub fn new(inner: S, guard: Guard, peer: IpAddr) -> Self {
        Self { inner, guard, peer }
    }
}

impl<S, B> Service<Request<B>> for Door<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if !request.uri().path().starts_with(OPEN) {
            match self.guard.principal(request.headers()) {
                Ok(None) => {}
                Ok(Some(principal)) => {
                    request.extensions_mut().insert(principal);
                }
                Err(()) => {
                    let pause = self.guard.pause(self.peer);
                    return Box::pin(async move {
                        tokio::time::sleep(pause).await;
                        Ok(unauthenticated().into_http())
                    });
                }
            }
        }
        // Nobody behind the door has a use for a key.
        request.headers_mut().remove(AUTHORIZATION);
        Box::pin(self.inner.call(request))
    }
}

/// The one refusal of all calls without a key that is known.
fn unauthenticated() -> Status {
    Reason::Unauthenticated
        .status("an API key is needed; send it as metadata, authorization: Bearer KEY")
}
