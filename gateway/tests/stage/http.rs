//! A client of the HTTP address: whole answers, streams, and bytes as a test writes them.

use std::net::SocketAddr;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::Body as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::within;

/// Where chat completions are asked for.
pub const CHAT: &str = "/v1/chat/completions";
/// Where completions are asked for.
pub const COMPLETIONS: &str = "/v1/completions";

/// A client with its own connections.
#[derive(Clone)]
pub struct HttpClient {
    client: Client<HttpConnector, Body>,
    address: SocketAddr,
    headers: HeaderMap,
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The error's code and message.
    pub fn error(&self) -> (String, String) {
        let body = self.json();
        let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
        (text("code"), text("message"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

impl HttpClient {
    /// Over HTTP/1.1.
    pub fn new(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address, headers: HeaderMap::new() }
    }

    /// Over HTTP/2.
    pub fn http2(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        Self { client, address, headers: HeaderMap::new() }
    }

    /// A client with one more header.
    pub fn with(&self, name: &'static str, value: &str) -> Self {
        let mut this = self.clone();
        this.headers.append(name, value.parse().expect("ASCII"));
        this
    }

    /// A header that the client sends with each request.
    pub fn header(&self, name: &str) -> String {
        self.headers[name].to_str().expect("text").to_owned()
    }

    /// Sends a request and returns the answer's head and its body as it comes.
    pub async fn begin(
        &self,
        method: &str,
        path: &str,
        body: Body,
    ) -> (http::response::Parts, Body) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(body)
            .expect("a request");
        request.headers_mut().extend(self.headers.clone());
        let response = within(self.client.request(request)).await.expect("an answer");
        let (head, body) = response.into_parts();
        (head, Body::new(body))
    }

    pub async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Reply {
        let (head, body) = self.begin(method, path, body.into()).await;
        let body = within(axum::body::to_bytes(body, 64 << 20)).await.expect("whole");
        Reply { status: head.status, headers: head.headers, body }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, body.to_string()).await
    }

    /// Begins a streamed answer.
    pub async fn stream(&self, path: &str, body: &Value) -> Events {
        let (head, body) = self.begin("POST", path, body.to_string().into()).await;
        assert_eq!(head.status, StatusCode::OK);
        assert_eq!(head.headers["content-type"], "text/event-stream");
        Events { headers: head.headers, body, text: String::new() }
    }
}

/// A streamed answer.
pub struct Events {
    pub headers: HeaderMap,
    body: Body,
    text: String,
}

impl Events {
    /// The next event's lines; `None` after the last.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                return Some(event);
            }
            let body = &mut self.body;
            let frame = within(std::future::poll_fn(|context| {
                std::pin::Pin::new(&mut *body).poll_frame(context)
            }));
            let data = frame.await?.expect("no error of HTTP").into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// All further events.
    pub async fn rest(mut self) -> Vec<String> {
        let mut events = vec![];
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// A request for a completion of a short prompt.
pub fn completion() -> Value {
    json!({ "model": "any", "prompt": "Hi", "max_tokens": 4_000 })
}

/// A request for a streamed completion of a short prompt.
pub fn streamed() -> Value {
    json!({ "model": "any", "prompt": "Hi", "max_tokens": 4_000, "stream": true })
}

/// A connection on which a test writes bytes of HTTP/1.1.
pub struct RawHttp(pub TcpStream);

impl RawHttp {
    pub async fn connect(address: SocketAddr) -> Self {
        Self(within(TcpStream::connect(address)).await.expect("connects"))
    }

    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.expect("written");
    }

    /// Sends the headers of a POST with a body of `bytes` bytes.
    pub async fn head(&mut self, path: &str, bytes: usize) {
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n");
        self.write(head).await;
    }

    /// Everything that comes until the other side closes the connection.
    pub async fn read(&mut self) -> String {
        let mut all = vec![];
        // A connection that is reset has given what came before.
        let _ = within(self.0.read_to_end(&mut all)).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Reads until `end` has come, and returns the text with it.
    pub async fn read_until(&mut self, end: &str) -> String {
        let (mut all, mut byte) = (vec![], [0]);
        while !all.ends_with(end.as_bytes()) {
            let count = within(self.0.read(&mut byte)).await.expect("open");
            assert_eq!(count, 1, "closed after {:?}", String::from_utf8_lossy(&all));
            all.push(byte[0]);
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}
