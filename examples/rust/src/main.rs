//! Asks one question and prints the answer as it comes: `paceline-example-client ADDRESS QUESTION
//! [IMAGE]`.
//!
//! `PACELINE_API_KEY`: the key, where the service wants one. An address that begins with `https://`
//! is spoken with by TLS; `PACELINE_CA` names a file of certificates to trust instead of the
//! system's.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ChatRequest, ContentPart, Final, GenerateResponse, Image, Message};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt as _;

/// Longest time for the whole request. The service enforces it at every stage, and reports how far
/// the request came.
const DEADLINE: &str = "120S";
/// How often a request is sent at most.
const TRIES: u32 = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, question, image) = match arguments.as_slice() {
        [address, question] => (address, question, None),
        [address, question, image] => (address, question, Some(image.as_str())),
        _ => {
            eprintln!("usage: paceline-example-client ADDRESS QUESTION [IMAGE]");
            return ExitCode::from(2);
        }
    };
    match ask(address, question, image).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// `image` is a file's path: PNG, JPEG, WebP or still GIF.
async fn ask(address: &str, question: &str, image: Option<&str>) -> Result<(), Box<dyn Error>> {
    let mut content = vec![ContentPart { part: Some(Part::Text(question.to_owned())) }];
    if let Some(path) = image {
        let data =
            std::fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?.into();
        content.insert(0, ContentPart { part: Some(Part::Image(Image { data })) });
    }
    let channel = connect(address).await?;
    let key =
        variable("PACELINE_API_KEY").map(|key| format!("Bearer {key}").parse()).transpose()?;
    let mut answer = begin(channel, key, content).await.map_err(said)?;
    let mut out = std::io::stdout().lock();
    let mut last = None;
    // From the first message on nothing is sent again: what has come was shown.
    while let Some(GenerateResponse { text, r#final, .. }) = answer.message().await.map_err(said)? {
        write!(out, "{text}")?;
        out.flush()?;
        last = r#final.or(last);
    }
    writeln!(out)?;
    let Final { usage, route, timing, .. } =
        last.ok_or("the answer broke off without its last message")?;
    let (usage, route, timing) =
        (usage.unwrap_or_default(), route.unwrap_or_default(), timing.unwrap_or_default());
    eprintln!(
        "{} prompt tokens, {} tokens, {:?} because of {:?}, first token after {:.0} ms, {:.0} ms in all",
        usage.prompt_tokens,
        usage.completion_tokens,
        route.lane(),
        route.reason(),
        timing.ttft_ms,
        timing.total_ms
    );
    Ok(())
}

/// Sends the question until its answer begins. An error that comes before that lost nothing.
async fn begin(
    channel: Channel,
    key: Option<AsciiMetadataValue>,
    content: Vec<ContentPart>,
) -> Result<Streaming<GenerateResponse>, Status> {
    let mut client = InferenceClient::new(channel);
    for left in (0..TRIES).rev() {
        // The bytes of an image are shared, not copied.
        let message =
            Message { role: "user".to_owned(), content: content.clone(), ..Message::default() };
        let mut request =
            Request::new(ChatRequest { messages: vec![message], ..ChatRequest::default() });
        // Written by hand: tonic's own timer (`set_timeout`) would end the request as CANCELLED.
        request.metadata_mut().insert("grpc-timeout", AsciiMetadataValue::from_static(DEADLINE));
        if let Some(key) = &key {
            request.metadata_mut().insert("authorization", key.clone());
        }
        match client.chat(request).await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) => match pause(&status).filter(|_| left > 0) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(status),
            },
        }
    }
    Err(Status::unavailable("no try is left"))
}

/// How long to wait before another try: as the service says, and a second where it could not be
/// asked; `None` where another try would end the same.
fn pause(status: &Status) -> Option<Duration> {
    let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
    asked.or_else(|| (status.code() == Code::Unavailable).then_some(Duration::from_secs(1)))
}

/// A refusal, with the reason that programs go by.
fn said(status: Status) -> String {
    let reason = status
        .get_details_error_info()
        .map_or_else(String::new, |info| format!(" ({})", info.reason));
    format!("{:?}{reason}: {}", status.code(), status.message())
}

async fn connect(address: &str) -> Result<Channel, Box<dyn Error>> {
    let encrypted = address.starts_with("https://");
    let whole =
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    // Small windows for single streams in a large one for all: one that is not read does not stop
    // the others.
    let mut endpoint = Endpoint::from_shared(whole)?
        .initial_stream_window_size(64 * 1024)
        .initial_connection_window_size(1 << 20);
    if encrypted {
        let tls = match variable("PACELINE_CA") {
            Some(path) => {
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(path)?))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint
        .connect()
        .await
        .map_err(|error| format!("cannot connect to {address}: {}", chain(&error)))?)
}

fn chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

#[expect(
    clippy::disallowed_methods,
    reason = "a secret belongs in no argument; everybody on the machine could read it"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
