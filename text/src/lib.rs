//! The text side of a model: text becomes token ids, and token ids become text again.
//!
//! - [`checkpoint`]: the text files of a model directory.
//! - [`prompt`]: chat template, markup and tokenizer; a conversation becomes token ids.
//! - [`images`]: image files under bounds; placeholders of a prompt.
//! - [`grammar`]: frames that hold an answer to a schema and to the family's tool calls.
//! - [`stream`]: token ids become text, reasoning and tool calls.
//! - [`shape`]: what a request asks of text, thoughts and tool calls, after a prompt of a model.
//! - [`json`]: JSON of a request, within one budget.
//! - [`error`]: a field of a request that cannot be served.
//!
//! Must not know: protocols, requests, threads, the supervisor. `make check` proves by the manifest
//! that no runtime is in here.

pub mod checkpoint;
pub mod error;
pub mod grammar;
pub mod images;
pub mod json;
pub mod prompt;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod shape;
pub mod stream;

/// Time that a test's work takes.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a bound against quadratic time")]
fn time_of<T>(work: impl FnOnce() -> T) -> (T, std::time::Duration) {
    let started = std::time::Instant::now();
    (work(), started.elapsed())
}
