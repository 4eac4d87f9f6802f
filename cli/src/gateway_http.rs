//! A `GET` of the gateway's HTTP address, for what gRPC does not have: the throughput of the page,
//! and the description of the model that agents read.

use std::time::Duration;

use paceline_client::channel::{KEY_VAR, OwnAddresses, reachable};
use paceline_system::environment::env;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harmless::harmless;

/// Longest wait for the whole answer. The gateway itself waits 2 s for the supervisor.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Most bytes of an answer that are read. One has about 10 KiB.
const MOST_BYTES: u64 = 1 << 20;

/// The gateway's HTTP address, and the key for it.
#[derive(Clone)]
pub struct GatewayHttp {
    /// `host:port`, or why there is none.
    address: Result<String, &'static str>,
    key: Option<String>,
}

impl GatewayHttp {
    /// The gateway at these addresses, with the key of the environment.
    pub fn of(addresses: &OwnAddresses) -> Self {
        let address = match (addresses.http.as_str(), addresses.tls_cert.is_empty()) {
            ("", _) => Err("gateway.http is off"),
            (_, false) => {
                Err("the gateway's HTTP address has TLS, which this command does not speak")
            }
            (listening, true) => Ok(reachable(listening)),
        };
        // A key with other characters would end the header; such a key opens nothing anyway.
        let key = env(KEY_VAR).map(|key| key.trim().to_owned());
        let key =
            key.filter(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()));
        Self { address, key }
    }

    /// `host:port`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn address(&self) -> Result<&str, String> {
        self.address.as_deref().map_err(|why| (*why).to_owned())
    }

    /// The key of the environment, if there is one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Reads the JSON at this path.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let address = self.address()?;
        let request = request(address, path, self.key());
        match tokio::time::timeout(TIMEOUT, exchange(address, &request)).await {
            Ok(Ok(answer)) => parse(&answer),
            Ok(Err(error)) => Err(format!("the gateway at {address} does not answer: {error}")),
            Err(_) => Err(format!(
                "the gateway at {address} did not answer within {} s",
                TIMEOUT.as_secs()
            )),
        }
    }
}

/// HTTP/1.0, so that the answer ends with the connection and comes in one piece.
fn request(address: &str, path: &str, key: Option<&str>) -> String {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n{key}\r\n")
}

async fn exchange(address: &str, request: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The body of a refusal.
#[derive(Deserialize)]
struct RefusalBody {
    error: RefusalReason,
}

#[derive(Deserialize)]
struct RefusalReason {
    message: String,
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, String> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END);
    let (head, body) =
        end.map_or((answer, &[][..]), |end| (&answer[..end], &answer[end + END.len()..]));
    let head = String::from_utf8_lossy(head);
    let status = head.lines().next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    match status {
        "200" => {}
        "401" => return Err(format!("the gateway asks for an API key; set {KEY_VAR}")),
        "" => return Err("the gateway's answer is no HTTP".into()),
        other => {
            let why =
                serde_json::from_slice::<RefusalBody>(body).map(|refusal| refusal.error.message);
            let why = why.map(|why| format!(": {}", harmless(&why))).unwrap_or_default();
            return Err(format!("the gateway answered with {other} instead of 200{why}"));
        }
    }
    serde_json::from_slice(body)
        .map_err(|error| format!("the gateway's answer cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_is_its_json_or_the_reason_why_there_is_none() {
        let answer = |status: &str, body: &str| {
            let answer = format!("HTTP/1.0 {status}\r\ncontent-type: x\r\n\r\n{body}");
            parse::<Value>(answer.as_bytes())
        };
        assert_eq!(answer("200 OK", r#"{"a": [1]}"#), Ok(json!({ "a": [1] })));
        for (status, body, why) in [
            ("401 Unauthorized", "", "PACELINE_API_KEY"),
            ("503 Service Unavailable", "", "503"),
            ("503 Service Unavailable", r#"{"error": {"message": "it loads"}}"#, "200: it loads"),
            ("200 OK", "", "cannot be read"),
        ] {
            let failure = answer(status, body).expect_err("no answer");
            assert!(failure.contains(why), "{status}: {failure}");
        }
        for garbage in [&b""[..], b"\xff\xfe", b"\r\n\r\n"] {
            assert!(parse::<Value>(garbage).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn the_address_is_one_to_connect_to() {
        let gateway = |http: &str, tls: &str| {
            let config =
                OwnAddresses { http: http.into(), tls_cert: tls.into(), ..Default::default() };
            GatewayHttp::of(&config).address
        };
        assert_eq!(gateway("0.0.0.0:80", ""), Ok("127.0.0.1:80".into()));
        assert!(gateway("", "").is_err_and(|why| why.contains("gateway.http")));
        assert!(gateway("127.0.0.1:80", "/cert").is_err_and(|why| why.contains("TLS")));
    }

    #[tokio::test]
    async fn a_gateway_that_sends_for_ever_is_read_up_to_a_bound() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let flood = async {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let piece = vec![b'x'; 1 << 16];
            while stream.write_all(&piece).await.is_ok() {}
        };
        let gateway = GatewayHttp { address: Ok(address), key: None };
        let (answer, ()) = tokio::join!(gateway.get::<Value>("/status"), flood);
        assert!(answer.expect_err("no HTTP").contains("no HTTP"));
    }
}
