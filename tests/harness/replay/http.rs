//! Answers over HTTP, whole or as a stream of events, by all protocols.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use paceline_system::clock::monotonic_ns;
use serde_json::Value;

use super::{Content, Reply};
use crate::prompts::bit_equal;

/// Longest silence of the service: longer than a request waits for a target in any of the tests.
const SILENCE: Duration = Duration::from_secs(150);

/// Fields that say nothing of the content, or differ between two runs of one request: names of
/// things, numbers and times that are drawn for each answer, and what the prefix cache had.
const LEFT_OUT: [&str; 20] = [
    "id",
    "item_id",
    "call_id",
    "type",
    "object",
    "role",
    "model",
    "created",
    "created_at",
    "completed_at",
    "sequence_number",
    "paceline",
    "index",
    "output_index",
    "content_index",
    "summary_index",
    "input_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
];

/// Fields with the number of a part. Pieces of one part belong together.
const PARTS: [&str; 4] = ["index", "output_index", "content_index", "summary_index"];

/// Sends a request and reads its whole answer. `progress` counts the events that have come.
pub(super) fn answer(
    address: &str,
    path: &str,
    body: &Value,
    progress: &AtomicU32,
) -> Result<Reply, String> {
    let words = |error: io::Error| format!("the connection: {error}");
    let mut reader = BufReader::new(send(address, path, body).map_err(words)?);
    let status = head(&mut reader).map_err(words)?;
    if status == 200 && body["stream"] == true {
        return events(reader, progress);
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(words)?;
    if status != 200 {
        return Err(format!("status {status}: {text}"));
    }
    let whole = serde_json::from_str(&text).map_err(|error| format!("{error} in {text:?}"))?;
    let mut reply = Reply::default();
    add(&mut reply, &whole)?;
    Ok(reply)
}

/// Version 1.0 has no chunks: the answer ends with its connection.
fn send(address: &str, path: &str, body: &Value) -> io::Result<TcpStream> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())?;
    Ok(stream)
}

/// Reads the lines before the body: the status.
fn head(reader: &mut impl io::BufRead) -> io::Result<u16> {
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(status)
}

fn events(reader: BufReader<TcpStream>, progress: &AtomicU32) -> Result<Reply, String> {
    let (mut reply, mut has_ended, mut last_ns) = (Reply::default(), false, None);
    for line in reader.lines() {
        let line = line.map_err(|error| format!("the connection: {error}"))?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let now_ns = monotonic_ns();
        let pause_ns = last_ns.replace(now_ns).map_or(0, |last_ns| now_ns - last_ns);
        reply.longest_pause_ms = reply.longest_pause_ms.max(pause_ns as f64 / 1e6);
        if data == "[DONE]" {
            has_ended = true;
            continue;
        }
        let event: Value =
            serde_json::from_str(data).map_err(|error| format!("{error} in {data:?}"))?;
        let last = ["message_stop", "response.completed", "response.incomplete"];
        has_ended |= event["type"].as_str().is_some_and(|kind| last.contains(&kind));
        // A keep-alive of Messages has no content.
        if event["type"] == "ping" {
            continue;
        }
        add(&mut reply, &event)?;
        progress.fetch_add(1, Ordering::Relaxed);
    }
    if has_ended { Ok(reply) } else { Err("the stream ended without its last event".into()) }
}

/// Adds an event or a whole answer.
fn add(reply: &mut Reply, value: &Value) -> Result<(), String> {
    for error in [&value["error"], &value["response"]["error"]] {
        if !error.is_null() {
            return Err(error.to_string());
        }
    }
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0) as u32;
    let most = |pointers: &[&str]| pointers.iter().map(|pointer| number(pointer)).max();
    let tokens =
        ["/usage/completion_tokens", "/usage/output_tokens", "/response/usage/output_tokens"];
    reply.tokens = reply.tokens.max(most(&tokens).unwrap_or(0));
    let resumed = ["/paceline/resumed", "/response/paceline/resumed"];
    reply.resumed = reply.resumed.max(most(&resumed).unwrap_or(0));
    gather(value, "", &mut reply.content);
    Ok(())
}

/// Adds the texts and numbers of a value to those at their places.
fn gather(value: &Value, place: &str, content: &mut Content) {
    match value {
        Value::Object(fields) => {
            let part = |name: &&str| fields.get(*name).and_then(Value::as_u64);
            let place = PARTS
                .iter()
                .filter_map(part)
                .fold(place.to_owned(), |place, number| format!("{place}#{number}"));
            let kept = fields.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
            kept.for_each(|(name, value)| gather(value, &format!("{place}/{name}"), content));
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, place, content)),
        Value::String(text) => content.entry(place.to_owned()).or_default().push_str(text),
        // Log-probabilities are sums, which are equal only where rows are bit-equal.
        Value::Number(_) if place.contains("logprob") && !bit_equal() => {}
        Value::Number(number) => {
            content.entry(place.to_owned()).or_default().push_str(&format!("{number} "));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(events: &[Value]) -> Content {
        let mut reply = Reply::default();
        events.iter().for_each(|event| add(&mut reply, event).expect("no error"));
        reply.content
    }

    fn delta(index: u32, text: &str) -> Value {
        json!({"id": text, "choices": [{"index": index, "delta": {"content": text}}]})
    }

    #[test]
    fn the_pieces_of_a_stream_do_not_count_but_its_text_does() {
        let expected = content(&[delta(0, "one "), delta(1, "x"), delta(0, "two")]);
        assert_eq!(content(&[delta(0, "one t"), delta(0, "wo"), delta(1, "x")]), expected);
        assert_ne!(content(&[delta(0, "one tw"), delta(1, "x")]), expected);
        assert_ne!(content(&[delta(0, "one two"), delta(0, "x")]), expected);
    }

    #[test]
    fn an_error_in_a_stream_and_a_stream_without_its_end_are_no_answers() {
        let error = json!({"error": {"message": "gone"}});
        assert!(add(&mut Reply::default(), &error).is_err());
        assert!(add(&mut Reply::default(), &json!({"response": {"error": null}})).is_ok());
    }
}
