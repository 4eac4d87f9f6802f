//! `[gateway]`: where clients connect, and who may.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// `[gateway]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Address of the gRPC service.
    pub grpc: String,
    /// Address of health, metrics and the OpenAI-compatible service.
    pub http: String,
    /// File with the digests of API keys, one `name:digest` a line ([`crate::keys`]), of this user
    /// and 0600; "" = no keys.
    pub api_keys_file: String,
    /// TLS certificate chain (PEM); "" = no TLS.
    pub tls_cert: String,
    /// TLS key (PEM).
    pub tls_key: String,
    /// Serve without keys and TLS on an address that other machines reach.
    pub insecure: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            grpc: "127.0.0.1:50061".into(),
            http: "127.0.0.1:8061".into(),
            api_keys_file: String::new(),
            tls_cert: String::new(),
            tls_key: String::new(),
            insecure: false,
        }
    }
}

impl GatewayConfig {
    /// Checks that an address which other machines reach has keys and TLS.
    ///
    /// # Errors
    /// It has not, and `insecure` is off.
    pub fn check_exposure(&self, address: SocketAddr) -> Result<(), ConfigError> {
        let missing = match (self.api_keys_file.is_empty(), self.tls_cert.is_empty()) {
            _ if self.insecure || address.ip().to_canonical().is_loopback() => return Ok(()),
            (false, false) => return Ok(()),
            (true, true) => {
                "neither keys (gateway.api_keys_file) nor TLS (gateway.tls_cert, gateway.tls_key)"
            }
            (true, false) => "no keys (gateway.api_keys_file)",
            (false, true) => "no TLS (gateway.tls_cert, gateway.tls_key)",
        };
        let what = format!(
            "{address} can be reached from other machines, so keys and TLS are expected, found {missing}; set them, listen on \
             127.0.0.1, or set gateway.insecure = true where the network itself keeps others out"
        );
        Err(ConfigError::Value { key: "gateway.grpc".to_owned(), what })
    }
}
