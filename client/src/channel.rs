//! The way to the service: which address, whether with TLS, by which key, and a channel to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use paceline_process::config::{GatewayConfig, Source};
use paceline_process::socket::{STREAM_WINDOW, connection_window};
use paceline_process::{Loaded, RuntimeDir, socket};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{ShowSettingsRequest, ShowSettingsResponse};
use paceline_system::environment::env;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status, TimeoutExpired};

use crate::args::ServiceArgs;
use crate::failure::{Failure, no_service_at, root_cause};

/// Answers at once on a connection, by default of the service (`limits.streams_per_connection`).
const STREAMS: u32 = 128;
/// Longest wait for an answer of the supervisor to a question. Orders have times of their own.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the address of the service that runs; then the configuration's is taken.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// Key of the address of the service.
const GRPC: &str = "gateway.grpc";
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Environment variable with the API key.
pub const KEY_VAR: &str = "PACELINE_API_KEY";

/// A client that shows its key, if it has one.
pub type Client = InferenceClient<InterceptedService<Channel, Key>>;

/// Puts the key into each request.
#[derive(Clone, Default)]
pub struct Key(Option<MetadataValue<Ascii>>);

/// A secret: whether there is one.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Key(set)" } else { "Key(none)" })
    }
}

impl Key {
    /// The key of the file, else of the environment, else none.
    fn find(file: Option<&Path>) -> Result<Self, Failure> {
        let (text, place) = match file {
            Some(path) => {
                let place = format!("--api-key-file {}", path.display());
                let read = std::fs::read_to_string(path);
                (
                    read.map_err(|error| {
                        Failure::usage(format!("{place}: cannot read it: {error}"))
                    })?,
                    place,
                )
            }
            None => (env(KEY_VAR).unwrap_or_default(), KEY_VAR.to_owned()),
        };
        let key = text.trim();
        if key.is_empty() && file.is_none() {
            return Ok(Self(None));
        }
        // The key is not repeated: what is printed may be kept.
        let bad = || {
            Failure::usage(format!(
                "{place}: expected one API key in printable ASCII, found something else"
            ))
        };
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad());
        }
        let mut value: MetadataValue<Ascii> = format!("Bearer {key}").parse().map_err(|_| bad())?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Key {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// Where a service is and how it is spoken with.
#[derive(Debug)]
pub struct Service {
    /// `host:port`.
    pub address: String,
    tls: Option<ClientTlsConfig>,
    key: Key,
}

/// The addresses and the certificates of the service in the runtime directory of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnAddresses {
    /// Address that gRPC listens on.
    pub grpc: String,
    /// Address that HTTP listens on. Empty: no HTTP.
    pub http: String,
    /// File with the certificates of both. Empty: no TLS.
    pub tls_cert: String,
}

impl OwnAddresses {
    /// As the running service has them: its flags may name others than the configuration. Without an
    /// answer, and if the environment names an address, those of the configuration.
    pub async fn find(loaded: &Loaded) -> Self {
        let GatewayConfig { grpc, http, tls_cert, .. } = loaded.config.gateway.clone();
        let configured = Self { grpc, http, tls_cert };
        if loaded.source(GRPC) == Source::Environment {
            return configured;
        }
        let Ok((mut client, place)) = operations_of(loaded) else { return configured };
        let settings = client.show_settings(ShowSettingsRequest {});
        match answered(settings, ADDRESS_TIMEOUT, &place).await {
            Ok(shown) => Self::of(&shown).unwrap_or(configured),
            // One of an earlier version, or one that hangs.
            Err(_) => configured,
        }
    }

    fn of(shown: &ShowSettingsResponse) -> Option<Self> {
        let value = |key: &str| {
            let found = shown.settings.iter().find(|setting| setting.key == key);
            found.map(|setting| setting.value.clone())
        };
        Some(Self {
            grpc: value(GRPC)?,
            http: value("gateway.http")?,
            tls_cert: value("gateway.tls_cert")?,
        })
    }
}

impl Service {
    /// By `--address`, else the one that runs, else `gateway.grpc`, with TLS if that one requires it.
    ///
    /// # Errors
    /// The configuration, the key or the certificates cannot be used.
    pub async fn find(args: &ServiceArgs) -> Result<Self, Failure> {
        let (address, tls, own) = match &args.address {
            Some(address) => {
                let (plain, tls) = match address.strip_prefix("https://") {
                    Some(address) => (address, true),
                    None => (address.trim_start_matches("http://"), false),
                };
                (plain.trim_end_matches('/').to_owned(), tls, None)
            }
            None => {
                let loaded = Loaded::find(args.config.config.as_deref())?;
                let OwnAddresses { grpc, tls_cert, .. } = OwnAddresses::find(&loaded).await;
                let own = Some(tls_cert).filter(|path| !path.is_empty());
                (reachable(&grpc), own.is_some(), own)
            }
        };
        if args.ca.is_some() && !tls {
            return Err(Failure::usage(
                "--ca: expected a service with TLS (--address https://HOST:PORT), found one without",
            ));
        }
        let trusted = args.ca.clone().or(own.map(Into::into));
        let trust = |path: std::path::PathBuf| {
            let pem = std::fs::read(&path);
            let pem = pem.map_err(|error: io::Error| {
                Failure::usage(format!("cannot read {}: {error}", path.display()))
            })?;
            Ok::<_, Failure>(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
        };
        let tls = match (tls, trusted) {
            (false, _) => None,
            (true, Some(path)) => Some(trust(path)?),
            (true, None) => Some(ClientTlsConfig::new().with_native_roots()),
        };
        Ok(Self { address, tls, key: Key::find(args.api_key_file.as_deref())? })
    }

    /// Connects to it.
    ///
    /// # Errors
    /// The address is invalid, no process listens there, or the certificates are for another
    /// address.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let channel = channel(&self.address, self.tls.clone()).await?;
        Ok(InferenceClient::with_interceptor(channel, self.key.clone()))
    }
}

/// An address to connect to for one to listen on: "every interface" is this machine.
pub fn reachable(listening: &str) -> String {
    match listening.parse::<SocketAddr>() {
        Ok(mut address) if address.ip().is_unspecified() => {
            address.set_ip(if address.is_ipv4() {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            } else {
                IpAddr::V6(Ipv6Addr::LOCALHOST)
            });
            address.to_string()
        }
        _ => listening.to_owned(),
    }
}

/// The operators' service, and where it is, for messages.
///
/// # Errors
/// The configuration cannot be used, or there is no supervisor in its runtime directory.
pub fn operations(config: Option<&Path>) -> Result<(OperationsClient<Channel>, String), Failure> {
    operations_of(&Loaded::find(config)?)
}

fn operations_of(loaded: &Loaded) -> Result<(OperationsClient<Channel>, String), Failure> {
    let path = RuntimeDir::locate(&loaded.config)?.socket("supervisor");
    let place = path.display().to_string();
    if !path.exists() {
        return Err(Failure::unreachable(no_service_at(&place, "no such socket")));
    }
    Ok((OperationsClient::new(socket::channel(path)), place))
}

/// The answer of the supervisor at `place`.
///
/// # Errors
/// The supervisor refuses, or does not answer in time.
pub async fn answered<T>(
    request: impl Future<Output = Result<Response<T>, Status>>,
    timeout: Duration,
    place: &str,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, request).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Failure::before_answer(&status, place)),
        Err(_) => Err(Failure::unreachable(format!(
            "the supervisor at {place} did not answer within {} s",
            timeout.as_secs()
        ))),
    }
}

/// Sends a request, and once more if its connection was closed before it was sent. A gateway that
/// is restarted closes its connections in order. A request that meets the close on this side is
/// reported by tonic as CANCELLED or INTERNAL, and is not sent again by tonic.
///
/// # Errors
/// The service's refusal, or that it cannot be reached.
pub async fn sent<T>(
    mut send: impl AsyncFnMut() -> Result<Response<T>, Status>,
) -> Result<Response<T>, Status> {
    match send().await {
        Err(status) if was_not_sent(&status) => send().await,
        outcome => outcome,
    }
}

/// Whether `status` was made here, because the connection was closed in order. A status of the
/// service has no source, and a connection that breaks has other codes.
pub fn was_not_sent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    if source.is_none() || !matches!(status.code(), Code::Cancelled | Code::Internal) {
        return false;
    }
    while let Some(error) = source {
        if error.is::<TimeoutExpired>() {
            return false;
        }
        source = error.source();
    }
    true
}

/// Connects to a service of our own, which asks for no key and speaks no TLS.
///
/// # Errors
/// The address is invalid, or no process listens there.
pub async fn connect(address: &str) -> Result<InferenceClient<Channel>, Failure> {
    channel(address, None).await.map(InferenceClient::new)
}

async fn channel(address: &str, tls: Option<ClientTlsConfig>) -> Result<Channel, Failure> {
    let bad = |error| {
        Failure::usage(format!(
            "--address: expected host:port, found {address:?}: {}",
            root_cause(&error)
        ))
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(bad)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        // One answer that is not read must not stop the others of the connection.
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(STREAMS));
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).map_err(|error| {
            Failure::usage(format!(
                "TLS with {address}: the certificates to trust: {}",
                root_cause(&error)
            ))
        })?;
    }
    endpoint
        .connect()
        .await
        .map_err(|error| Failure::unreachable(no_service_at(address, &root_cause(&error))))
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::Setting;

    use super::*;

    fn at(address: &str) -> ServiceArgs {
        ServiceArgs { address: Some(address.into()), ..Default::default() }
    }

    #[test]
    fn an_answer_that_is_not_read_leaves_the_connection_fifteen_windows_at_least() {
        assert!(connection_window(STREAMS) >= 16 * STREAM_WINDOW);
    }

    #[tokio::test]
    async fn a_request_is_sent_once_more_if_it_was_not_sent_and_never_after_a_refusal() {
        let closed = || {
            let mut status = Status::cancelled("operation was canceled");
            status.set_source(std::sync::Arc::new(std::io::Error::other("connection closed")));
            status
        };
        let broken = || Status::from_error(std::io::Error::other("connection reset").into());
        let late = || Status::from_error(TimeoutExpired(()).into());
        let refused = || Status::cancelled("an operator cancelled it");
        let cases: [(fn() -> Status, u32); 4] = [(closed, 2), (broken, 1), (late, 1), (refused, 1)];
        for (failure, expected) in cases {
            let mut tries = 0;
            let outcome = sent(async || {
                tries += 1;
                Err::<Response<()>, _>(failure())
            });
            outcome.await.expect_err("it fails each time");
            assert_eq!(tries, expected, "{:?}", failure());
        }
    }

    #[test]
    fn an_address_of_every_interface_is_reached_on_this_machine() {
        assert_eq!(reachable("0.0.0.0:50061"), "127.0.0.1:50061");
        assert_eq!(reachable("[::]:50061"), "[::1]:50061");
        assert_eq!(reachable("192.0.2.1:50061"), "192.0.2.1:50061");
    }

    #[test]
    fn the_address_of_a_running_service_is_that_of_its_settings() {
        let setting = |key: &str, value: &str| Setting {
            key: key.into(),
            value: value.into(),
            source: "flag".into(),
            ..Setting::default()
        };
        let settings = vec![
            setting(GRPC, "127.0.0.1:7"),
            setting("gateway.http", ""),
            setting("gateway.tls_cert", "/c"),
            setting("x", "y"),
        ];
        let shown = |settings| ShowSettingsResponse { settings, ..Default::default() };
        let expected = OwnAddresses {
            grpc: "127.0.0.1:7".into(),
            tls_cert: "/c".into(),
            ..Default::default()
        };
        assert_eq!(OwnAddresses::of(&shown(settings)), Some(expected));
        assert_eq!(OwnAddresses::of(&shown(vec![])), None);
    }

    #[tokio::test]
    async fn the_scheme_says_whether_there_is_tls() {
        for (given, tls) in [("h:1", false), ("http://h:1/", false), ("https://h:1/", true)] {
            let service = Service::find(&at(given)).await.expect("an address");
            assert_eq!((service.address.as_str(), service.tls.is_some()), ("h:1", tls), "{given}");
        }
        let plain = ServiceArgs { ca: Some("/nowhere".into()), ..at("h:1") };
        assert!(Service::find(&plain).await.expect_err("no TLS").message.contains("https://"));
        let lost = ServiceArgs { ca: Some("/nowhere".into()), ..at("https://h:1") };
        assert!(Service::find(&lost).await.expect_err("no file").message.contains("/nowhere"));
    }

    #[test]
    fn a_key_comes_from_a_file_and_is_never_shown() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let with = |text: &str| {
            std::fs::write(file.path(), text).expect("writable");
            Key::find(Some(file.path()))
        };
        let key = with("pl_secret\n").expect("a key");
        let mut key_used = key.clone();
        let request = key_used.call(Request::new(())).expect("passed on");
        assert_eq!(request.metadata().get("authorization").expect("set"), "Bearer pl_secret");
        assert!(!format!("{key:?} {:?}", request.metadata()).contains("pl_secret"));
        for bad in ["", "\n", "pl_secret pl_secret", "pl_secreté"] {
            let failure = with(bad).expect_err("no key");
            assert!(
                failure.exit == crate::failure::USAGE && !failure.message.contains("pl_secret"),
                "{failure}"
            );
        }
    }

    #[tokio::test]
    async fn an_unreachable_service_is_reported_with_address_and_remedy() {
        let address = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("bound").to_string()
        };
        let failure = connect(&address).await.expect_err("no process listens");
        assert_eq!(failure.exit, crate::failure::UNREACHABLE);
        assert!(
            failure.message.contains(&address) && failure.message.contains("paceline serve"),
            "{failure}"
        );
        assert!(failure.message.contains("refused"), "{failure}");
    }

    #[tokio::test]
    async fn a_bad_address_is_a_usage_error() {
        assert_eq!(
            connect("not an address").await.expect_err("no address").exit,
            crate::failure::USAGE
        );
    }
}
