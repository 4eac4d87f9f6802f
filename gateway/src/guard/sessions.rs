//! Sessions of the page: a browser sends a random token in a cookie in the place of its key.
//! The table has digests of tokens, so that its memory opens no session. No clock here (I10).
//!
//! A session belongs to one key. It ends when its owner ends it, [`LIFE_MS`] after its beginning,
//! when its key is taken out of the file of keys, and with the gateway's process.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_checkpoint::digest::hex;
use paceline_process::RuntimeDir;
use paceline_process::config::Config;
use paceline_process::keys::{Digest, digest};
use paceline_vocabulary::Millis;
use subtle::ConstantTimeEq as _;

/// Random bytes of a token: as many as `paceline key new` draws for a key.
const TOKEN_BYTES: usize = 32;
/// Characters of a token: two for each byte.
const TOKEN_CHARS: usize = 2 * TOKEN_BYTES;
/// Longest life of a session: a working day and a break. A browser that is left open for longer
/// asks for the key again.
const LIFE_MS: u64 = 12 * 60 * 60 * 1_000;
/// Most sessions of one key: as many browsers of one person. The oldest one ends for a new one.
const MAX_PER_KEY: usize = 16;
/// Bytes of a service's id in the name of its cookie: two of a few services have one in a billion.
const ID_BYTES: usize = 6;
/// Most sessions of all keys. The oldest one ends for a new one.
const MAX_SESSIONS: usize = 256;

/// Name of the cookie of sessions. Browsers send a cookie to all ports of a host, so that each
/// service of a host needs a name of its own: with one name, the session of one would end that of
/// another. Services of one host have different runtime directories, and those of several hosts
/// behind one name have different addresses.
pub fn cookie_name(config: &Config) -> String {
    // A directory that cannot be found refuses the start elsewhere.
    let dir = RuntimeDir::locate(config).map(|dir| dir.path().display().to_string());
    let place = format!("{}\n{}", dir.unwrap_or_default(), config.gateway.http);
    format!("paceline_session_{}", hex(&digest(&place)[..ID_BYTES]))
}

/// The secret of a session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken(String);

/// Secrets are never printed.
impl std::fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionToken")
    }
}

impl SessionToken {
    /// Draws a token.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(hex(&bytes)))
    }

    /// The token in a cookie's value; `None` if the value can be no token.
    pub fn parse(value: &str) -> Option<Self> {
        let is_token = value.len() == TOKEN_CHARS && value.bytes().all(|b| b.is_ascii_hexdigit());
        is_token.then(|| Self(value.to_owned()))
    }

    /// The value for the cookie.
    pub fn value(&self) -> &str {
        &self.0
    }

    fn digest(&self) -> Digest {
        digest(&self.0)
    }
}

/// One session.
#[derive(Debug)]
struct PageSession {
    digest: Digest,
    /// [`super::keys::Principal::scope`] of its key.
    scope: Arc<str>,
    until: Millis,
}

/// The open sessions, oldest first.
#[derive(Debug, Default)]
pub struct Sessions {
    open: VecDeque<PageSession>,
}

impl Sessions {
    /// Begins a session of the key with this scope.
    pub fn begin(&mut self, token: &SessionToken, scope: &Arc<str>, now: Millis) {
        self.open.retain(|session| session.until > now);
        if self.open.iter().filter(|session| session.scope == *scope).count() >= MAX_PER_KEY
            && let Some(oldest) = self.open.iter().position(|session| session.scope == *scope)
        {
            self.open.remove(oldest);
        }
        if self.open.len() >= MAX_SESSIONS {
            self.open.pop_front();
        }
        let (scope, until) = (Arc::clone(scope), now + LIFE_MS);
        self.open.push_back(PageSession { digest: token.digest(), scope, until });
    }

    /// The scope of the key whose session this is. Every session is compared, each in constant
    /// time.
    pub fn scope(&self, token: &SessionToken, now: Millis) -> Option<Arc<str>> {
        let digest = token.digest();
        let mut found = None;
        for session in &self.open {
            if bool::from(session.digest.ct_eq(&digest)) && session.until > now {
                found = Some(Arc::clone(&session.scope));
            }
        }
        found
    }

    /// Ends a session.
    pub fn end(&mut self, token: &SessionToken) {
        let digest = token.digest();
        self.open.retain(|session| !bool::from(session.digest.ct_eq(&digest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str) -> Arc<str> {
        name.into()
    }

    fn begun(sessions: &mut Sessions, name: &str, now: u64) -> SessionToken {
        let token = SessionToken::draw().expect("random numbers");
        sessions.begin(&token, &scope(name), Millis(now));
        token
    }

    #[test]
    fn a_session_is_its_keys_until_it_ends_or_its_time_is_over() {
        let mut sessions = Sessions::default();
        let (alice, bob) = (begun(&mut sessions, "alice", 5), begun(&mut sessions, "bob", 5));
        assert_ne!(alice, bob);
        assert_eq!(sessions.scope(&alice, Millis(6)), Some(scope("alice")));
        assert_eq!(sessions.scope(&bob, Millis(4 + LIFE_MS)), Some(scope("bob")));
        assert_eq!(sessions.scope(&bob, Millis(5 + LIFE_MS)), None);
        sessions.end(&alice);
        assert_eq!(sessions.scope(&alice, Millis(6)), None);
        assert_eq!(sessions.scope(&bob, Millis(6)), Some(scope("bob")));
        let unknown = SessionToken::draw().expect("random numbers");
        assert_eq!(sessions.scope(&unknown, Millis(6)), None);
    }

    #[test]
    fn a_new_session_ends_the_oldest_of_its_key_and_never_one_of_another_key() {
        let mut sessions = Sessions::default();
        let other = begun(&mut sessions, "bob", 0);
        let tokens: Vec<_> =
            (0..MAX_PER_KEY + 2).map(|_| begun(&mut sessions, "alice", 0)).collect();
        let open = |token| sessions.scope(token, Millis(1)).is_some();
        assert!(open(&other));
        let expected: Vec<bool> = (0..MAX_PER_KEY + 2).map(|at| at >= 2).collect();
        assert_eq!(tokens.iter().map(open).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn sessions_are_bounded_and_ended_ones_leave_the_table() {
        let mut sessions = Sessions::default();
        for n in 0..MAX_SESSIONS + 10 {
            begun(&mut sessions, &n.to_string(), 0);
        }
        assert_eq!(sessions.open.len(), MAX_SESSIONS);
        begun(&mut sessions, "later", LIFE_MS);
        assert_eq!(sessions.open.len(), 1);
    }

    #[test]
    fn a_token_is_64_hexadecimal_digits_and_is_never_printed() {
        let token = SessionToken::draw().expect("random numbers");
        assert_eq!(SessionToken::parse(token.value()), Some(token.clone()));
        assert!(!format!("{token:?}").contains(token.value()));
        let (short, long) = (&token.value()[1..], format!("{}0", token.value()));
        for wrong in ["", short, &long, &"g".repeat(TOKEN_CHARS), &"é".repeat(TOKEN_CHARS / 2)] {
            assert_eq!(SessionToken::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn services_of_one_host_have_cookies_of_their_own() {
        let name = |dir: &str, http: &str| {
            let mut config = Config::default();
            config.supervisor.runtime_dir = dir.to_owned();
            config.gateway.http = http.to_owned();
            cookie_name(&config)
        };
        let ours = name("/run/a", "127.0.0.1:8061");
        assert_eq!(ours, name("/run/a", "127.0.0.1:8061"), "it is the same after a restart");
        assert_ne!(ours, name("/run/b", "127.0.0.1:8061"));
        assert_ne!(ours, name("/run/a", "127.0.0.1:8062"));
        let id = ours.strip_prefix("paceline_session_").expect("its beginning");
        assert!(id.len() == 2 * ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
