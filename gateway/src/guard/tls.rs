//! TLS 1.2 and 1.3 at the fronts, by rustls. Clients need no certificates: they are known by their
//! keys.

use std::path::Path;
use std::sync::Arc;

use paceline_process::ConfigError;
use paceline_process::config::GatewayConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// HTTP/2 inside TLS, as ALPN names it.
const HTTP2: &[u8] = b"h2";
/// HTTP/1 inside TLS.
const HTTP1: &[u8] = b"http/1.1";

/// TLS of the fronts. They differ in the protocols that they agree on.
#[derive(Clone, Debug)]
pub struct Tls {
    /// For HTTP/2 alone.
    pub http2: Arc<ServerConfig>,
    /// For HTTP/2 and HTTP/1.
    pub any_http: Arc<ServerConfig>,
}

/// The TLS settings of the configuration; `None` if it sets none.
///
/// # Errors
/// A file cannot be read, or has no certificate or no key in it; the certificate and the key do not
/// match.
pub fn served(settings: &GatewayConfig) -> Result<Option<Tls>, ConfigError> {
    if settings.tls_cert.is_empty() {
        return Ok(None);
    }
    let refuse = |key: &str, what: String| ConfigError::Value { key: key.to_owned(), what };
    let (cert, key) = (Path::new(&settings.tls_cert), Path::new(&settings.tls_key));
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| refuse("gateway.tls_cert", unread(cert, "a certificate chain", &error)))?;
    if chain.is_empty() {
        let what = format!(
            "{}: expected a certificate chain in PEM, found no certificate",
            cert.display()
        );
        return Err(refuse("gateway.tls_cert", what));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        refuse("gateway.tls_key", unread(key, "a private key without a passphrase", &error))
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = built.map_err(|error| {
        let what =
            format!("expected the certificate of the key in {}, found: {error}", key.display());
        refuse("gateway.tls_cert", what)
    })?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    let http2 = Arc::new(config.clone());
    config.alpn_protocols.push(HTTP1.to_vec());
    Ok(Some(Tls { http2, any_http: Arc::new(config) }))
}

fn unread(path: &Path, expected: &str, error: &rustls::pki_types::pem::Error) -> String {
    format!("{}: expected {expected} in PEM, found: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_with_its_key_is_accepted_and_other_files_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("writable");
            path.display().to_string()
        };
        let pair = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let (ours, other) = (pair(), pair());
        let cert = write("cert", &ours.cert.pem());
        let key = write("key", &ours.signing_key.serialize_pem());
        let foreign = write("foreign", &other.signing_key.serialize_pem());
        let nothing = write("nothing", "");
        let with = |tls_cert: &str, tls_key: &str| {
            served(&GatewayConfig {
                tls_cert: tls_cert.into(),
                tls_key: tls_key.into(),
                ..Default::default()
            })
        };
        assert!(with("", "").expect("fine").is_none());
        assert!(with(&cert, &key).expect("fine").is_some());
        for (cert, key, setting) in [
            ("/nowhere", &*key, "gateway.tls_cert: /nowhere"),
            (&*nothing, &key, "found no certificate"),
            (&key, &key, "found no certificate"),
            (&cert, "/nowhere", "gateway.tls_key: /nowhere"),
            (&cert, &cert, "gateway.tls_key"),
            (&cert, &foreign, "expected the certificate of the key"),
        ] {
            let error = with(cert, key).expect_err("refused").to_string();
            assert!(error.contains(setting), "{error}");
        }
    }
}
