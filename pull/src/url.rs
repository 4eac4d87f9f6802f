//! Addresses of the hub: where it is, how names are written into them, where redirects lead.

use std::fmt;

use paceline_checkpoint::ModelName;

use crate::error::PullError;

/// Scheme, host and port: what a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    /// Host and port as written, in lower case.
    pub(crate) authority: String,
}

/// An address without user and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) origin: Origin,
    /// Begins with a slash; with the query, without the fragment.
    path: String,
}

/// The hub's address, to which a path is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(Url);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.authority)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

impl Origin {
    /// Whether nobody else can read what is sent: by TLS, or because it stays on this machine.
    pub(crate) fn is_private(&self) -> bool {
        let host = match self.authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.authority.split(':').next().unwrap_or_default(),
        };
        let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.is_https || loopback || host == "localhost"
    }
}

impl Url {
    /// Reads an absolute address. `None` if it is no http or https address, or has a user.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let allowed = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']')
        };
        let visible = |byte: u8| byte.is_ascii_graphic();
        if authority.is_empty() || !authority.bytes().all(allowed) || !path.bytes().all(visible) {
            return None;
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Some(Self { origin: Origin { is_https, authority: authority.to_ascii_lowercase() }, path })
    }

    /// Where a redirect from here leads. `None` if its place is no address.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        let scheme = if self.origin.is_https { "https" } else { "http" };
        if location.contains("://") && !location.starts_with('/') {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{}{location}", self.origin));
        }
        let path = self.path.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let end = location.find(['?', '#']).unwrap_or(location.len());
        let (relative, rest) = location.split_at(end);
        let path = without_dots(&format!("{folder}/{relative}"));
        Self::parse(&format!("{}{path}{rest}", self.origin))
    }
}

impl Endpoint {
    /// Reads an environment variable of this name and value.
    pub(crate) fn parse(variable: &'static str, text: &str) -> Result<Self, PullError> {
        let url = Url::parse(text.trim_end_matches('/')).filter(|url| !url.path.contains('?'));
        url.map(Self).ok_or_else(|| PullError::Usage {
            what: variable,
            expected: "an address like https://huggingface.co, without user and query",
            // A password may stand before an @.
            found: text.rsplit_once('@').map_or(text, |_| "an address with a user").to_owned(),
        })
    }

    /// The server that has this address.
    pub(crate) fn of(url: &Url) -> Self {
        Self(Url { origin: url.origin.clone(), path: "/".to_owned() })
    }

    /// The page of a project in a package registry (PEP 503).
    pub(crate) fn project(&self, name: &str) -> Url {
        self.at(&format!("/{}/", escaped(name)))
    }

    /// Origin of the endpoint, to which a token belongs.
    pub(crate) fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// Where the hub describes a revision.
    pub(crate) fn revision(&self, model: &ModelName, revision: &str) -> Url {
        // The whole revision is one part, so a slash in it is escaped.
        let repository = model.repository();
        self.at(&format!("/api/models/{repository}/revision/{}?blobs=true", escaped(revision)))
    }

    /// Where a file of a commit is. `name` is as in the model's folder.
    pub(crate) fn file(&self, model: &ModelName, commit: &str, name: &str) -> Url {
        let parts = model.subfolder().into_iter().chain(name.split('/'));
        let (path, repository) = (parts.map(escaped).collect::<Vec<_>>(), model.repository());
        self.at(&format!("/{repository}/resolve/{}/{}", escaped(commit), path.join("/")))
    }

    fn at(&self, path: &str) -> Url {
        let base = self.0.path.trim_end_matches('/');
        Url { origin: self.0.origin.clone(), path: format!("{base}{path}") }
    }
}

/// A path in which `.` and `..` are resolved (RFC 3986, 5.2.4).
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = vec![];
    for part in path.trim_start_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// One part of a path, with escapes for all but the bytes that never need one (RFC 3986).
fn escaped(part: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let mut text = String::new();
    for byte in part.bytes() {
        match plain(byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect(text)
    }

    #[test]
    fn only_plain_http_addresses_are_read() {
        for (text, shown) in [
            ("https://huggingface.co", "https://huggingface.co/"),
            ("HTTP://Host:80/a?b=c#d", "http://host:80/a?b=c"),
            ("https://[::1]:1/x", "https://[::1]:1/x"),
            ("https://h?q", "https://h/?q"),
        ] {
            assert_eq!(url(text).to_string(), shown);
        }
        for text in [
            "",
            "huggingface.co",
            "ftp://h/x",
            "file:///etc/passwd",
            "https://",
            "https://u:p@h/",
            "https://h/a b",
        ] {
            assert_eq!(Url::parse(text), None, "{text}");
        }
        for text in ["nothing", "https://h/?a=b", "https://user@h"] {
            assert!(Endpoint::parse("HF_ENDPOINT", text).is_err(), "{text}");
        }
        let error = Endpoint::parse("PIP_INDEX_URL", "https://me:secret@h").expect_err("refused");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn redirects_are_absolute_or_relative() {
        let from = url("https://h/a/b?c=d");
        for (location, expected) in [
            ("https://other/x?y=/z", "https://other/x?y=/z"),
            ("//other/x", "https://other/x"),
            ("/x/y?z=http://q", "https://h/x/y?z=http://q"),
            ("x", "https://h/a/x"),
            ("./x?y#z", "https://h/a/x?y"),
            ("../../../x/./y", "https://h/x/y"),
        ] {
            assert_eq!(from.join(location), Some(url(expected)), "{location}");
        }
        assert_eq!(from.join("ftp://x/y"), None);
    }

    #[test]
    fn names_are_escaped_into_the_hubs_paths() {
        let endpoint = Endpoint::parse("HF_ENDPOINT", "http://h:1/mirror/").expect("an address");
        let model = "org/name".parse().expect("a name");
        assert_eq!(
            endpoint.revision(&model, "refs/pr/1").to_string(),
            "http://h:1/mirror/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true"
        );
        assert_eq!(
            endpoint.file(&model, "c0", "a b/ü?.json").to_string(),
            "http://h:1/mirror/org/name/resolve/c0/a%20b/%C3%BC%3F.json"
        );
        let inner = "org/name/dflash".parse().expect("a name");
        assert_eq!(endpoint.revision(&inner, "main"), endpoint.revision(&model, "main"));
        assert_eq!(endpoint.file(&inner, "c0", "a"), endpoint.file(&model, "c0", "dflash/a"));
    }

    #[test]
    fn a_token_travels_by_tls_or_on_this_machine() {
        for (text, private) in [
            ("https://h", true),
            ("http://127.0.0.1:5", true),
            ("http://[::1]:5", true),
            ("http://localhost", true),
            ("http://h", false),
            ("http://127.0.0.1.example.com", false),
        ] {
            assert_eq!(url(text).origin.is_private(), private, "{text}");
        }
    }
}
