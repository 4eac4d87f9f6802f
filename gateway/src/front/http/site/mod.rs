//! Which pages of browsers may send requests where no keys are set. Every page that a user visits
//! can send requests to this machine, and a name of another site can be made to lead here (DNS
//! rebinding). A request is therefore refused if one of three headers says that it is a page's of
//! another site:
//!
//! - `Host`, or the authority of the target: a name that is no name of this service. A page of a
//!   rebound name sends that name. An IP address passes, because rebinding needs a name.
//! - `Origin`: neither the service itself nor one of `gateway.cors_origins`.
//! - `Sec-Fetch-Site`: another site, but for a link to the page.
//!
//! Browsers let no script set these headers. Other clients send no `Origin` and no
//! `Sec-Fetch-Site`, so all of theirs are served. With keys a page cannot know a key, and none of
//! this is checked.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use paceline_protocols::inference::error::{Result, quoted, refuse};

use super::PAGE;
use super::cors::Cors;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// Names of this machine besides those that end in `.localhost` (RFC 6761). The second is the name
/// by which programs in containers of Docker and Podman reach it; a browser resolves neither
/// elsewhere.
const OWN_NAMES: [&str; 2] = ["localhost", "host.docker.internal"];

/// Decides which requests may be a page's.
#[derive(Clone, Debug)]
pub struct Sites {
    hosts: Vec<String>,
    cors: Cors,
}

impl Sites {
    /// `hosts`: further names of the service (`gateway.hosts`). `cors`: the origins whose pages may
    /// use it.
    pub fn new(hosts: &[String], cors: Cors) -> Self {
        Self { hosts: hosts.iter().map(|name| plain_name(name)).collect(), cors }
    }

    /// Origins whose pages may use the service.
    pub fn cors(&self) -> &Cors {
        &self.cors
    }

    /// Checks that no page of another site can have sent the request.
    ///
    /// # Errors
    /// One can have; the error names the header, and the setting that would allow it.
    pub fn check(&self, request: &Parts) -> Result<()> {
        let own = self.own_host(request)?;
        if self.has_listed_origin(&request.headers, own.as_ref())? {
            return Ok(());
        }
        check_fetch_site(request)
    }

    /// The host that the request is for; `None` if it names none.
    fn own_host(&self, request: &Parts) -> Result<Option<Host>> {
        let mut own = None;
        let mut headers = request.headers.get_all(HOST).iter();
        let header = headers.next().map(HeaderValue::as_bytes).filter(|text| !text.is_empty());
        if headers.next().is_some() {
            let expected = "one Host, of this machine or of gateway.hosts of this service";
            return refuse("host", expected, "several");
        }
        // The target has an authority in HTTP/2 and in the absolute form of HTTP/1.
        let target = request.uri.authority().map(|authority| authority.as_str().as_bytes());
        for text in [header, target].into_iter().flatten() {
            let host = Host::parse(text).filter(|host| self.is_own(host));
            let Some(host) = host else {
                let expected =
                    "an IP address, localhost, or a name that gateway.hosts of this service lists";
                return refuse("host", expected, shown(text));
            };
            own = Some(host);
        }
        Ok(own)
    }

    fn is_own(&self, host: &Host) -> bool {
        match host {
            Host { name, is_address, .. } if !is_address => {
                OWN_NAMES.contains(&name.as_str())
                    || name.ends_with(".localhost")
                    || self.hosts.contains(name)
            }
            _ => true,
        }
    }

    /// Whether the request has an origin, and it is one of `gateway.cors_origins`.
    fn has_listed_origin(&self, headers: &HeaderMap, own: Option<&Host>) -> Result<bool> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(false) };
        let is_alone = origins.next().is_none();
        if is_alone && self.cors.allows(origin) {
            return Ok(true);
        }
        if is_alone && own.is_some_and(|own| own.is_origin(origin.as_bytes())) {
            return Ok(false);
        }
        let expected =
            "none, the service's own, or one that gateway.cors_origins of this service lists";
        refuse("origin", expected, shown(origin.as_bytes()))
    }
}

/// Whether a request comes from a page of the service itself, or from no page at all. With keys any
/// name may lead here, so a page is the service's own if the browser says so, or if its origin is
/// the host that it asks.
pub fn is_own_page(request: &Parts) -> bool {
    let headers = &request.headers;
    if headers.contains_key(FETCH_SITE) {
        return values(headers, &FETCH_SITE).all(|site| ["same-origin", "none"].contains(&site));
    }
    let own = asked_host(headers, &request.uri);
    let is_own =
        |origin: &HeaderValue| own.as_ref().is_some_and(|own| own.is_origin(origin.as_bytes()));
    headers.get_all(ORIGIN).iter().all(is_own)
}

/// Checks that the service's own page sent a request. Browsers send the origin with each request but
/// GET and HEAD, so that a POST without one is refused.
///
/// # Errors
/// Another page did, or no page; the error names the header.
pub fn check_own_origin(headers: &HeaderMap, target: &Uri) -> Result<()> {
    if let Some(site) = values(headers, &FETCH_SITE).find(|site| *site != "same-origin") {
        return refuse("sec-fetch-site", "same-origin", quoted(site));
    }
    let expected = "the origin of the service's own page";
    let mut origins = headers.get_all(ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (Some(origin), None) => match asked_host(headers, target) {
            Some(own) if own.is_origin(origin.as_bytes()) => Ok(()),
            _ => refuse("origin", expected, shown(origin.as_bytes())),
        },
        (None, _) => refuse("origin", expected, "none"),
        (Some(_), Some(_)) => refuse("origin", expected, "several"),
    }
}

/// The host that a request asks for.
fn asked_host(headers: &HeaderMap, target: &Uri) -> Option<Host> {
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let target = target.authority().map(|authority| authority.as_str().as_bytes());
    target.or(host).and_then(Host::parse)
}

/// Refuses what a page of another site made a browser send. A link to the page is followed:
/// it shows the page in a tab of its own, which no other page can read.
fn check_fetch_site(request: &Parts) -> Result<()> {
    let headers = &request.headers;
    let known = ["same-origin", "same-site", "none"];
    let Some(site) = values(headers, &FETCH_SITE).find(|site| !known.contains(site)) else {
        return Ok(());
    };
    let only = |name: &HeaderName, word: &str| {
        headers.contains_key(name) && values(headers, name).all(|value| value == word)
    };
    let is_link = request.method == Method::GET
        && request.uri.path() == PAGE
        && only(&FETCH_MODE, "navigate")
        && only(&FETCH_DEST, "document");
    if is_link {
        return Ok(());
    }
    let expected = "none of another site; list the page's origin in gateway.cors_origins of this \
                    service, or set keys (gateway.api_keys_file)";
    refuse("sec-fetch-site", expected, quoted(site))
}

/// The values of a header; a value that is no text is an empty one.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
}

/// A header's own words, for an error.
fn shown(text: &[u8]) -> String {
    quoted(&String::from_utf8_lossy(text))
}

/// A name as it is compared: small letters, without the dot of the root.
fn plain_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.strip_suffix('.').map_or_else(|| name.clone(), str::to_owned)
}

/// Target of a request: a name or an address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    is_address: bool,
    port: Option<u16>,
}

impl Host {
    /// The host in the text of a `Host` header (RFC 9110, section 7.2); `None` if it is none.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if let Some(rest) = text.strip_prefix('[') {
            let (address, rest) = rest.split_once(']')?;
            let port = match rest.strip_prefix(':') {
                None if rest.is_empty() => None,
                None => return None,
                Some(port) => parse_port(port).ok()?,
            };
            let name = address.parse::<Ipv6Addr>().ok()?.to_string();
            return Some(Self { name: format!("[{name}]"), is_address: true, port });
        }
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => (name, parse_port(port).ok()?),
        };
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Self { name: address.to_string(), is_address: true, port });
        }
        let name = plain_name(name);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_allowed);
        name.split('.').all(is_label).then_some(Self { name, is_address: false, port })
    }

    /// Whether this is the origin of the service's own pages. Behind a proxy they may come by TLS.
    fn is_origin(&self, origin: &[u8]) -> bool {
        let Some((scheme, host)) =
            std::str::from_utf8(origin).ok().and_then(|text| text.split_once("://"))
        else {
            return false;
        };
        let default = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let with_port = |host: Self| Self { port: host.port.or(Some(default)), ..host };
        Self::parse(host.as_bytes()).map(with_port) == Some(with_port(self.clone()))
    }
}

/// A text that is no port.
struct NoPort;

/// The port in the text after a colon, which may be empty.
fn parse_port(text: &str) -> Result<Option<u16>, NoPort> {
    match text {
        "" => Ok(None),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map(Some).map_err(|_| NoPort)
        }
        _ => Err(NoPort),
    }
}

#[cfg(test)]
mod tests;
