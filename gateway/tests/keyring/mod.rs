//! Keys and certificates of tests.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_process::keys::KeyLine;

pub const ALICE: &str = "pl_alice_0123456789";
pub const BOB: &str = "pl_bob_0123456789ab";

/// Writes a file that only this user may read.
pub fn private(path: &Path, text: &str) {
    std::fs::write(path, text).expect("writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("ours");
}

/// A file of keys in a directory of its own.
pub fn keys() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("keys");
    let line = |name, key| KeyLine::of(name, key).expect("fine").to_string();
    private(&path, &format!("{}\n{}\n", line("alice", ALICE), line("bob", BOB)));
    (dir, path)
}

/// The value of `authorization` for a key.
pub fn of(key: &str) -> String {
    format!("Bearer {key}")
}

/// A certificate for this machine, signed by an authority of its own.
pub struct Certified {
    /// The authority, in PEM.
    pub authority: String,
    pub cert_file: String,
    pub key_file: String,
}

/// Makes one, with its files in `dir`.
pub fn certified(dir: &Path) -> Certified {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut authority = CertificateParams::new([]).expect("fine");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("made"))
        .expect("signed");
    let key = KeyPair::generate().expect("made");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert =
        CertificateParams::new(names).expect("fine").signed_by(&key, &authority).expect("signed");
    let (cert_file, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
    private(&cert_file, &cert.pem());
    private(&key_file, &key.serialize_pem());
    Certified {
        authority: authority.pem(),
        cert_file: cert_file.display().to_string(),
        key_file: key_file.display().to_string(),
    }
}

/// TLS to the gateway, for a client that offers these protocols.
pub async fn tls(
    address: std::net::SocketAddr,
    authority: &str,
    version: &'static rustls::SupportedProtocolVersion,
    offered: &[&[u8]],
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("known");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = crate::stage::http::RawHttp::connect(address).await.0;
    let name = "localhost".try_into().expect("a name");
    crate::stage::within(connector.connect(name, stream)).await.expect("a handshake")
}
