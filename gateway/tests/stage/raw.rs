//! A client of gRPC that sends parts of requests.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use paceline_process::task;
use tokio::net::TcpStream;
use tonic::Status;

use super::within;

/// Where text is generated.
pub const GENERATE: &str = "paceline.v1.Inference/Generate";

/// A client that can send parts of requests.
pub async fn raw(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = within(TcpStream::connect(address)).await.expect("connects");
    let (requests, connection) = within(h2::client::handshake(stream)).await.expect("HTTP/2");
    // The requests see how the connection ends.
    task::spawn("raw client", async { drop(connection.await) });
    requests
}

/// Sends the headers of a request and the first bytes of its message.
pub async fn begin(
    requests: &SendRequest<Bytes>,
    method: &str,
    bytes: &[u8],
) -> (ResponseFuture, SendStream<Bytes>) {
    begin_as(requests, method, bytes, None).await
}

/// Begins a request with the value of `authorization`.
pub async fn begin_as(
    requests: &SendRequest<Bytes>,
    method: &str,
    bytes: &[u8],
    authorization: Option<&str>,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut requests = within(requests.clone().ready()).await.expect("open");
    let request = http::Request::post(format!("http://localhost/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = match authorization {
        Some(value) => request.header("authorization", value),
        None => request,
    };
    let request = request.body(()).expect("a request");
    let (answer, mut message) = requests.send_request(request, false).expect("sent");
    if !bytes.is_empty() {
        message.send_data(Bytes::copy_from_slice(bytes), false).expect("sent");
    }
    (answer, message)
}

/// Status with which a request ended.
pub async fn status(answer: ResponseFuture) -> Status {
    let (head, mut body): (_, RecvStream) = within(answer).await.expect("an answer").into_parts();
    while let Some(data) = within(body.data()).await {
        data.expect("no error of HTTP/2");
    }
    let trailers = within(body.trailers()).await.expect("no error of HTTP/2").unwrap_or_default();
    Status::from_header_map(&head.headers)
        .or_else(|| Status::from_header_map(&trailers))
        .expect("a status")
}
