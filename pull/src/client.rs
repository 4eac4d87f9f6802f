//! Requests to the hub. Redirects are followed here and not by the library: the token belongs to
//! the hub's own origin and never reaches another one.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

use crate::error::PullError;
use crate::url::{Endpoint, Origin, Url};

/// Longest wait for a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the next bytes. Not for all of a file, which may take hours.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Most redirects of one request. A hub sends one or two.
const MAX_REDIRECTS: usize = 8;
/// Most characters of the hub's own words that are shown.
const MAX_WORD_CHARS: usize = 200;

/// A client of one hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Endpoint,
    token: Option<Token>,
    /// Whether there is any certificate to trust.
    has_certificates: bool,
}

/// The user's token. Has no `Debug`, so that it is never printed.
struct Token(String);

/// An answer with status 200 or 206.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Where the answer came from, after redirects.
    pub(crate) url: Url,
}

impl Client {
    /// A client of `endpoint`. The system's certificates are trusted.
    pub(crate) fn new(endpoint: Endpoint, token: Option<String>) -> Result<Self, PullError> {
        let visible = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        let token = token.map(|token| token.trim().to_owned());
        if token.as_ref().is_some_and(|token| !visible(token)) {
            return Err(PullError::Usage {
                what: "HF_TOKEN",
                expected: "letters and digits without spaces",
                // Its content is a secret.
                found: "other characters".to_owned(),
            });
        }
        let certificates = rustls_native_certs::load_native_certs().certs;
        let has_certificates = !certificates.is_empty();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .timeout_per_write(Some(READ_TIMEOUT))
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls(&certificates))
            .build();
        let (agent, token) = (config.new_agent(), token.map(Token));
        Ok(Self { agent, endpoint, token, has_certificates })
    }

    /// The hub.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks for `url`, from byte `begin` on. `what` is the model or file, for errors.
    ///
    /// # Errors
    /// The hub cannot be reached, refuses, or redirects without end.
    pub(crate) fn get(&self, url: Url, begin: u64, what: &str) -> Result<Answer, PullError> {
        self.request(url, (begin > 0).then(|| format!("bytes={begin}-")), what)
    }

    /// The first `most` bytes of a file, or all of a shorter one. A server that does not know ranges
    /// sends more, which is left unread.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn first_bytes(
        &self,
        url: Url,
        most: u64,
        what: &str,
    ) -> Result<Vec<u8>, PullError> {
        let range = format!("bytes=0-{}", most.saturating_sub(1));
        self.request(url, Some(range), what)?.first(most, what)
    }

    fn request(&self, url: Url, range: Option<String>, what: &str) -> Result<Answer, PullError> {
        let mut url = url;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(url.to_string());
            if let Some(range) = &range {
                request = request.header("range", range);
            }
            if let Some(Token(token)) = self.token_for(&url.origin) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let host = url.origin.authority.clone();
            // Without this the reason would be an unknown issuer, which sounds like the server's fault.
            if url.origin.is_https && !self.has_certificates {
                return Err(PullError::NoCertificates { what: what.into(), host });
            }
            let network =
                |cause| PullError::Network { what: what.into(), host: host.clone(), cause };
            let response = request.call().map_err(network)?;
            let (parts, body) = response.into_parts();
            if parts.status.is_redirection() {
                url = redirect(&url, &parts.headers, what)?;
                continue;
            }
            return match parts.status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                    let status = parts.status.as_u16();
                    Ok(Answer { status, headers: parts.headers, body, url })
                }
                status => Err(self.refusal(what, status.as_u16(), &parts.headers)),
            };
        }
        let problem = format!("expected at most {MAX_REDIRECTS} redirects, found more");
        Err(PullError::Redirect { what: what.into(), problem })
    }

    fn token_for(&self, origin: &Origin) -> Option<&Token> {
        let own = origin == self.endpoint.origin() && origin.is_private();
        self.token.as_ref().filter(|_| own)
    }

    fn refusal(&self, what: &str, status: u16, headers: &HeaderMap) -> PullError {
        let what = what.to_owned();
        let (code, says) = (header(headers, "x-error-code"), words(headers));
        let message = match status {
            401 | 403 => {
                let todo = match (code, &self.token) {
                    ("GatedRepo", _) => {
                        "open its page on the hub, accept its terms, and set HF_TOKEN to a token of that account"
                    }
                    (_, None) => {
                        "check the name; if the model is private, set HF_TOKEN to a token of an account that may read it"
                    }
                    (_, Some(_)) if !self.endpoint.origin().is_private() => {
                        "HF_TOKEN was not sent, because HF_ENDPOINT is not https"
                    }
                    (_, Some(_)) => {
                        "check the name, and that the token in HF_TOKEN is valid and may read this model"
                    }
                };
                format!("the hub refuses {what} (status {status}{says}); {todo}")
            }
            404 => {
                format!("the hub has no {what} (status 404{says}); check the name and --revision")
            }
            _ => format!("expected status 200 for {what}, found {status}{says}; try again later"),
        };
        PullError::Status { what, status, message }
    }
}

/// Trusts these certificates alone: those of the system, or of SSL_CERT_FILE.
fn tls(trusted: &[CertificateDer<'_>]) -> TlsConfig {
    let certificates = trusted.iter().map(|one| Certificate::from_der(one.as_ref()).to_owned());
    TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::Specific(Arc::new(certificates.collect())))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

fn redirect(from: &Url, headers: &HeaderMap, what: &str) -> Result<Url, PullError> {
    let location = header(headers, "location");
    let error = |problem: String| PullError::Redirect { what: what.to_owned(), problem };
    let to = from
        .join(location)
        .ok_or_else(|| error(format!("expected a redirect to an address, found {location:?}")))?;
    if from.origin.is_private() && !to.origin.is_private() {
        let origin = to.origin;
        return Err(error(format!("expected a redirect to an https address, found {origin}")));
    }
    Ok(to)
}

/// The hub's own words about a refusal, as a clause; empty if there are none.
fn words(headers: &HeaderMap) -> String {
    let text = header(headers, "x-error-message");
    let printable = text.chars().filter(|character| !character.is_control());
    let text: String = printable.take(MAX_WORD_CHARS).collect();
    if text.is_empty() { text } else { format!(": {text:?}") }
}

/// A header's text; empty if there is none, or if it is not text.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl Answer {
    /// Reads the whole body, of at most `most` bytes.
    pub(crate) fn read(self, most: u64, what: &str) -> Result<Vec<u8>, PullError> {
        let bytes = self.first(most + 1, what)?;
        if bytes.len() as u64 > most {
            let problem = format!("expected at most {most} bytes, found more");
            return Err(PullError::answer(what, problem));
        }
        Ok(bytes)
    }

    /// Reads the first `most` bytes of the body, or all of a shorter one.
    fn first(self, most: u64, what: &str) -> Result<Vec<u8>, PullError> {
        let Self { body, url, .. } = self;
        let host = url.origin.authority;
        let mut bytes = vec![];
        let read = body.into_reader().take(most).read_to_end(&mut bytes);
        read.map_err(|cause| PullError::Network { what: what.into(), host, cause: cause.into() })?;
        Ok(bytes)
    }

    /// Whether the body begins at byte `begin` of a file of `size` bytes. A server that does not
    /// know ranges sends the whole file with status 200.
    pub(crate) fn begins_at(&self, begin: u64, size: u64) -> bool {
        let range = format!("bytes {begin}-{}/{size}", size.saturating_sub(1));
        self.status == 206 && header(&self.headers, "content-range") == range
    }
}
