//! One log line for each request, written however it ends. Lengths and outcome, never text (I9).

use paceline_process::clock::monotonic_ns;
use paceline_proto::status::Reason;
use tonic::Code;

use crate::images::ImageTimes;

/// What is known of a request so far; the line is written when this is dropped.
#[derive(Debug)]
pub struct Record {
    method: &'static str,
    request_id: String,
    arrived_ns: i64,
    /// Tokens of its prompt; 0 until they are known.
    pub prompt_tokens: usize,
    /// Pictures of it.
    pub pictures: usize,
    /// What they took, once they are made.
    pub picture_times: Option<ImageTimes>,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    ttft_ms: Option<f64>,
    outcome: Option<(Code, Option<Reason>)>,
}

impl Record {
    /// A request that arrived at `arrived_ns` of the monotonic clock.
    pub fn new(method: &'static str, request_id: &str, arrived_ns: i64) -> Self {
        let request_id = request_id.to_owned();
        Self {
            method,
            request_id,
            arrived_ns,
            prompt_tokens: 0,
            pictures: 0,
            picture_times: None,
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

    /// Notes the terminal status.
    pub fn ended(&mut self, code: Code, reason: Option<Reason>) {
        self.outcome = Some((code, reason));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Nobody said how it ended: its client stopped listening.
        let (code, reason) = self.outcome.unwrap_or((Code::Cancelled, Some(Reason::Cancelled)));
        let reason = reason.map(Reason::word);
        tracing::info!(
            request_id = self.request_id,
            method = self.method,
            ?code,
            reason,
            prompt_tokens = self.prompt_tokens,
            pictures = (self.pictures > 0).then_some(self.pictures),
            decode_ms = self.picture_times.map(|times| times.decode_ms),
            resize_ms = self.picture_times.map(|times| times.resize_ms),
            completion_tokens = self.completion_tokens,
            ttft_ms = self.ttft_ms,
            total_ms = self.elapsed_ms(),
            "request"
        );
    }
}
