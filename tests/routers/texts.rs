//! Answers of HTTP paths, whole and streamed, as the text that a person would read.

use paceline_tests::http::HttpAnswer;
use serde_json::{Value, json};

/// A question that the embedded drafter pays for.
pub const QUESTION: &str = "Count from 1 to 20.";
/// Seed of sampled answers.
pub const SEED: u64 = 7;

/// A sampled request of `/v1/chat/completions` for at most this many tokens.
pub fn chat_body(model: &str, text: &str, max_tokens: u32) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "top_p": 0.95,
        "seed": SEED,
    })
}

/// The same request, streamed.
pub fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// The object of an answer.
///
/// # Panics
/// The status is not 200, or the body is not JSON.
#[track_caller]
pub fn object(answer: &HttpAnswer) -> Value {
    assert_eq!(answer.status(), 200, "{}\n{}", answer.head, answer.body);
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

/// The text of a whole answer of `/v1/chat/completions`.
#[track_caller]
pub fn whole_text(answer: &HttpAnswer) -> String {
    let object = object(answer);
    let text = object["choices"][0]["message"]["content"].as_str();
    text.unwrap_or_else(|| panic!("expected a text, found {object}")).to_owned()
}

/// A streamed answer of `/v1/chat/completions`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Streamed {
    /// The texts of all pieces.
    pub text: String,
    /// The usage of the last piece.
    pub usage: Value,
    /// Whether `[DONE]` came.
    pub done: bool,
}

impl Streamed {
    /// Adds the data of one event.
    ///
    /// # Panics
    /// It is an error or no JSON.
    #[track_caller]
    pub fn add(&mut self, data: &str) {
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let chunk: Value =
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        assert!(chunk["error"].is_null(), "an error in a stream: {chunk}");
        if let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str() {
            self.text.push_str(piece);
        }
        if !chunk["usage"].is_null() {
            self.usage = chunk["usage"].clone();
        }
    }
}

/// The text of a streamed answer of `/v1/chat/completions`, which must be whole.
#[track_caller]
pub fn streamed_answer(answer: &HttpAnswer) -> Streamed {
    assert_eq!(answer.status(), 200, "{}\n{}", answer.head, answer.body);
    let mut streamed = Streamed::default();
    for data in answer.body.lines().filter_map(|line| line.strip_prefix("data:")) {
        streamed.add(data.trim());
    }
    assert!(streamed.done, "expected [DONE] at the end, found {}", answer.body);
    streamed
}
