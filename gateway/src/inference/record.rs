//! One log line for each request, written however the request ends. Lengths and outcome, never text
//! (I9).

use paceline_process::clock::monotonic_ns;
use paceline_vocabulary::Reason;

use crate::images::ImageTimes;

/// A call's method, as its front names it.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// The protocol's own word for a call that ended well (`None`) or for a reason, for the log.
    pub code: fn(Option<Reason>) -> String,
}

/// What is known of a request so far; the line is written when this is dropped.
#[derive(Debug)]
pub struct Record {
    method: Method,
    request_id: String,
    arrived_ns: i64,
    /// Tokens of its prompt; 0 until they are known.
    pub prompt_tokens: usize,
    /// Its images.
    pub images: usize,
    /// How long the work on its images took, once it is done.
    pub image_times: Option<ImageTimes>,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    ttft_ms: Option<f64>,
    outcome: Option<Result<(), Reason>>,
}

impl Record {
    /// A request that arrived at `arrived_ns` of the monotonic clock.
    pub fn new(method: Method, request_id: &str, arrived_ns: i64) -> Self {
        Self {
            method,
            request_id: request_id.to_owned(),
            arrived_ns,
            prompt_tokens: 0,
            images: 0,
            image_times: None,
            completion_tokens: 0,
            ttft_ms: None,
            outcome: None,
        }
    }

    /// Milliseconds since it arrived.
    pub fn elapsed_ms(&self) -> f64 {
        monotonic_ns().saturating_sub(self.arrived_ns) as f64 / 1e6
    }

    /// Notes the first token, once, and returns how long it took.
    pub fn first_token(&mut self) -> f64 {
        let now = self.elapsed_ms();
        *self.ttft_ms.get_or_insert(now)
    }

    /// Notes how the request ended.
    pub fn ended(&mut self, outcome: Result<(), Reason>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A request without an outcome is one whose client left.
        let reason = self.outcome.unwrap_or(Err(Reason::Cancelled)).err();
        tracing::info!(
            request_id = self.request_id,
            method = self.method.name,
            code = %(self.method.code)(reason),
            reason = reason.map(Reason::word),
            prompt_tokens = self.prompt_tokens,
            pictures = (self.images > 0).then_some(self.images),
            decode_ms = self.image_times.map(|times| times.decode_ms),
            resize_ms = self.image_times.map(|times| times.resize_ms),
            completion_tokens = self.completion_tokens,
            ttft_ms = self.ttft_ms,
            total_ms = self.elapsed_ms(),
            "request"
        );
    }
}
