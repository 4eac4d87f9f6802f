//! The way to the service: which address, and a channel to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use paceline_process::Loaded;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::{Channel, Endpoint};

use crate::args::ServiceArgs;
use crate::failure::{Failure, no_service_at, root_cause};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// Where the service is: `--address`, else `gateway.grpc`.
///
/// # Errors
/// The configuration cannot be used.
pub fn address(args: &ServiceArgs) -> Result<String, Failure> {
    match &args.address {
        Some(address) => Ok(address.trim_start_matches("http://").trim_end_matches('/').to_owned()),
        None => Ok(reachable(&Loaded::find(args.config.config.as_deref())?.config.gateway.grpc)),
    }
}

/// An address to connect to for one to listen on: "every interface" is this machine.
fn reachable(listening: &str) -> String {
    match listening.parse::<SocketAddr>() {
        Ok(mut address) if address.ip().is_unspecified() => {
            address.set_ip(if address.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
            address.to_string()
        }
        _ => listening.to_owned(),
    }
}

/// Connects to the service.
///
/// # Errors
/// The address is none, or nobody listens there.
pub async fn connect(address: &str) -> Result<InferenceClient<Channel>, Failure> {
    let bad = |error| Failure::usage(format!("--address: expected host:port, found {address:?}: {}", root_cause(&error)));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(bad)?.connect_timeout(CONNECT).tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|error| Failure::unreachable(no_service_at(address, &root_cause(&error))))?;
    Ok(InferenceClient::new(channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_every_interface_is_reached_on_this_machine() {
        assert_eq!(reachable("0.0.0.0:50061"), "127.0.0.1:50061");
        assert_eq!(reachable("[::]:50061"), "[::1]:50061");
        assert_eq!(reachable("192.0.2.1:50061"), "192.0.2.1:50061");
    }

    #[tokio::test]
    async fn nobody_there_is_said_with_the_address_and_the_remedy() {
        let address = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("bound").to_string()
        };
        let failure = connect(&address).await.expect_err("nobody listens");
        assert_eq!(failure.exit, crate::failure::UNREACHABLE);
        assert!(failure.message.contains(&address) && failure.message.contains("paceline serve"), "{failure}");
        assert!(failure.message.contains("refused"), "{failure}");
    }

    #[tokio::test]
    async fn a_bad_address_is_a_usage_error() {
        assert_eq!(connect("not an address").await.expect_err("no address").exit, crate::failure::USAGE);
    }
}
