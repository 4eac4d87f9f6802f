//! The throughput as the gateway counts it: `GET /status` of its HTTP address, which has a number
//! for every two seconds of the last ten minutes. The supervisor counts tokens of speculation
//! alone.

use std::time::Duration;

use paceline_client::channel::{KEY_VAR, OwnAddresses, reachable};
use paceline_system::environment::env;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::throughput::Throughput;

/// Longest wait for the whole answer. The gateway itself waits 2 s for the supervisor.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Most bytes of an answer that are read. One has about 10 KiB.
const MOST_BYTES: u64 = 1 << 20;

/// Where the gateway's figures are.
#[derive(Clone)]
pub struct GatewayFigures {
    /// `host:port`, or why there is none.
    address: Result<String, &'static str>,
    key: Option<String>,
}

impl GatewayFigures {
    /// Figures of the gateway at these addresses.
    pub fn of(addresses: &OwnAddresses) -> Self {
        let address = match (addresses.http.as_str(), addresses.tls_cert.is_empty()) {
            ("", _) => Err("gateway.http is off"),
            (_, false) => Err("the gateway's HTTP address has TLS, which top does not speak"),
            (listening, true) => Ok(reachable(listening)),
        };
        // A key with other characters would end the header; such a key opens nothing anyway.
        let key = env(KEY_VAR).map(|key| key.trim().to_owned());
        let key =
            key.filter(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()));
        Self { address, key }
    }

    /// The throughput of the last ten minutes.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub async fn throughput(&self) -> Result<Throughput, String> {
        let address = self.address.as_ref().map_err(|why| (*why).to_owned())?;
        let request = request(address, self.key.as_deref());
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
fn request(address: &str, key: Option<&str>) -> String {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!("GET /status HTTP/1.0\r\nhost: {address}\r\n{key}\r\n")
}

async fn exchange(address: &str, request: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

#[derive(Deserialize)]
struct Report {
    throughput: Series,
}

#[derive(Deserialize)]
struct Series {
    interval_s: u64,
    tokens_per_s: Vec<f64>,
}

fn parse(answer: &[u8]) -> Result<Throughput, String> {
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
        other => return Err(format!("the gateway answered with {other} instead of 200")),
    }
    let Report { throughput: Series { interval_s, tokens_per_s } } =
        serde_json::from_slice(body)
            .map_err(|error| format!("the gateway's answer cannot be read: {error}"))?;
    // JSON has no number that is not finite, but a negative one would be.
    let tokens_per_s = tokens_per_s.into_iter().map(|rate| rate.max(0.0)).collect();
    Ok(Throughput { interval_s, tokens_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_figures_or_the_reason_why_there_are_none() {
        let body = r#"{"time":1,"throughput":{"interval_s":2,"most":300,"tokens_per_s":[0.0,12.5],"calls":[0,1]}}"#;
        let answer = |status: &str, body: &str| {
            parse(format!("HTTP/1.0 {status}\r\ncontent-type: x\r\n\r\n{body}").as_bytes())
        };
        let expected = Throughput { interval_s: 2, tokens_per_s: vec![0.0, 12.5] };
        assert_eq!(answer("200 OK", body), Ok(expected));
        for (status, body, why) in [
            ("401 Unauthorized", "", "PACELINE_API_KEY"),
            ("503 Service Unavailable", "", "503"),
            ("200 OK", "{}", "missing field"),
            ("200 OK", "", "cannot be read"),
        ] {
            let failure = answer(status, body).expect_err("no figures");
            assert!(failure.contains(why), "{status}: {failure}");
        }
        for garbage in [&b""[..], b"\xff\xfe", b"\r\n\r\n"] {
            assert!(parse(garbage).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn the_address_is_one_to_connect_to() {
        let figures = |http: &str, tls: &str| {
            let config =
                OwnAddresses { http: http.into(), tls_cert: tls.into(), ..Default::default() };
            GatewayFigures::of(&config).address
        };
        assert_eq!(figures("0.0.0.0:80", ""), Ok("127.0.0.1:80".into()));
        assert!(figures("", "").is_err_and(|why| why.contains("gateway.http")));
        assert!(figures("127.0.0.1:80", "/cert").is_err_and(|why| why.contains("TLS")));
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
        let figures = GatewayFigures { address: Ok(address), key: None };
        let (failure, ()) = tokio::join!(figures.throughput(), flood);
        assert!(failure.expect_err("no HTTP").contains("no HTTP"));
    }
}
