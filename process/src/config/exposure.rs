//! Addresses that other machines reach.

use std::net::SocketAddr;

use paceline_settings::GatewayConfig;

use super::ConfigError;

/// Checks that the address of `key` has keys and TLS if other machines reach it.
///
/// # Errors
/// It has not, and `insecure` is off.
pub fn check_exposure(
    gateway: &GatewayConfig,
    key: &str,
    address: SocketAddr,
) -> Result<(), ConfigError> {
    let missing = match (gateway.api_keys_file.is_empty(), gateway.tls_cert.is_empty()) {
        _ if gateway.insecure || address.ip().to_canonical().is_loopback() => return Ok(()),
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
    Err(ConfigError::value(key, what))
}
