//! Traces for OpenTelemetry: a [`Span`] is recorded, ends, and a thread sends it to the collector of
//! `log.otlp`.
//!
//! Without that setting there is no thread, and a span is one comparison. With it, an ended span
//! goes into a bounded queue. If the queue is full, the span is dropped and counted: a collector
//! that is absent, slow or hostile costs spans, and no request waits for it.
//!
//! Spans come with times, numbers and words of ours, and never with text of clients (I9). They are
//! made by hand and not of the spans of `tracing`, so that no field of a log line gets into a trace
//! by itself, and log lines stay as they are.
//!
//! - [`span`] records.
//! - [`ended`] has what the collector gets.
//! - [`tracer`] has the queue.
//! - [`export`] has the thread that sends.
//! - [`wire`] has the protocol's messages.

mod ended;
mod export;
mod span;
mod tracer;
mod wire;

#[cfg(test)]
mod tests;

use paceline_vocabulary::TraceContext;
use paceline_vocabulary::trace::TRACEPARENT;
use tonic::metadata::MetadataMap;

use crate::config::LogConfig;
use tracer::{Tracer, install, tracer};

pub use ended::{Kind, Origin, Value};
pub use span::Span;

/// Starts to send spans of this process, if the configuration names a collector.
pub fn start(log: &LogConfig, origin: Origin) {
    if log.otlp.is_empty() {
        return;
    }
    match Tracer::start(&log.otlp, &origin) {
        Ok(tracer) => install(tracer),
        Err(error) => tracing::error!(%error, "no thread for traces; nothing is traced"),
    }
}

/// Sends the spans that have ended, for at most two seconds. A collector that is known not to take
/// spans is not waited for. To be called once, at the end of the process.
pub fn finish() {
    if let Some(tracer) = tracer() {
        tracer.finish();
    }
}

/// The context that a gRPC message came with; `None` also while nothing is traced.
pub fn of_metadata(metadata: &MetadataMap) -> Option<TraceContext> {
    tracer()?;
    of_values(metadata.get_all(TRACEPARENT).iter().map(|value| value.as_encoded_bytes()))
}

/// The context in the values of a request's header `traceparent`; `None` also while nothing is
/// traced.
pub fn of_values<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Option<TraceContext> {
    tracer()?;
    TraceContext::of_values(values)
}

/// Passes a context on with a gRPC message.
pub fn put(metadata: &mut MetadataMap, context: Option<TraceContext>) {
    if let Some(value) = context.and_then(|context| context.to_string().parse().ok()) {
        metadata.insert(TRACEPARENT, value);
    }
}
