//! The thread that sends spans: it gathers a batch, sends it within a bounded time, and pauses after
//! a failure. A batch that was not taken is dropped.
//!
//! ```text
//! gathering ── a batch, or a second ──▶ sending ── taken ──▶ gathering
//!                                         │ failed             ▲
//!                                         └──▶ pausing ────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::resource::v1::Resource;
use paceline_vocabulary::chain;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::ended::EndedSpan;
use super::wire;

/// Spans of a message, at most: it stays far below the four mebibytes that collectors take.
const BATCH_SPANS: usize = 512;
/// Longest time for which a span waits for others before it is sent. A person who looks for a
/// request that has just ended finds it.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Longest wait for the collector to take a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failure; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: a collector that comes back gets spans again within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Largest answer of a collector that is read. It has a number and a sentence.
const MAX_ANSWER_BYTES: usize = 16 << 10;
/// Characters of a collector's own words in a log line.
const MAX_WORDS_CHARS: usize = 200;

/// A time in which spans are lost.
#[derive(Debug, Default)]
struct ExportOutage {
    lost: u64,
    /// Pause before the next batch; zero if the last one was taken.
    pause: Duration,
}

/// Sends the spans of one process.
pub(super) struct Exporter {
    endpoint: String,
    resource: Resource,
    spans: mpsc::Receiver<EndedSpan>,
    dropped: Arc<AtomicU64>,
    batch: Vec<EndedSpan>,
    /// Spans of the message that is being sent.
    sending: u64,
    /// The connection; a new one is made after a failure.
    channel: Option<Channel>,
    outage: Option<ExportOutage>,
}

impl Exporter {
    pub(super) fn new(
        endpoint: String,
        resource: Resource,
        spans: mpsc::Receiver<EndedSpan>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        let (batch, sending, channel, outage) = (Vec::new(), 0, None, None);
        Self { endpoint, resource, spans, dropped, batch, sending, channel, outage }
    }

    /// Sends spans until this process ends: `finish` then gets a sender, which is dropped when no
    /// more can be sent.
    pub(super) async fn run(mut self, mut finish: mpsc::Receiver<SyncSender<()>>) {
        let done = self.send_until(&mut finish).await;
        while !self.is_failing() && self.gather_waiting() {
            self.send().await;
        }
        let left = self.sending + self.batch.len() as u64 + self.spans.len() as u64;
        let before = self.outage.as_ref().map_or(0, |outage| outage.lost);
        let lost = before + left + self.dropped.load(Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(lost, "spans are lost with the end of the process");
        }
        drop(done);
    }

    /// Sends spans until `finish` has something. A collector that takes spans gets the whole of a
    /// batch that is being sent; one that fails is not waited for.
    async fn send_until(
        &mut self,
        finish: &mut mpsc::Receiver<SyncSender<()>>,
    ) -> Option<SyncSender<()>> {
        loop {
            tokio::select! {
                biased;
                done = finish.recv() => return done,
                () = self.gather() => {}
            }
            let is_failing = self.is_failing();
            tokio::select! {
                biased;
                done = finish.recv(), if is_failing => return done,
                () = self.send() => {}
            }
            tokio::select! {
                biased;
                done = finish.recv(), if self.is_failing() => return done,
                () = sleep(self.pause()) => {}
            }
        }
    }

    /// Pause before the next batch.
    fn pause(&self) -> Duration {
        self.outage.as_ref().map_or(Duration::ZERO, |outage| outage.pause)
    }

    /// Whether the last batch was not taken.
    fn is_failing(&self) -> bool {
        !self.pause().is_zero()
    }

    /// Waits for a span, and for those after it.
    async fn gather(&mut self) {
        if self.spans.recv_many(&mut self.batch, BATCH_SPANS).await == 0 {
            // All senders are gone: the process is at its end.
            std::future::pending::<()>().await;
        }
        let more = async {
            while self.batch.len() < BATCH_SPANS {
                let room = BATCH_SPANS - self.batch.len();
                if self.spans.recv_many(&mut self.batch, room).await == 0 {
                    return;
                }
            }
        };
        // Either way the batch is what has come.
        let _ = timeout(GATHER_TIME, more).await;
    }

    /// Fills the batch with what waits. False if there is nothing.
    fn gather_waiting(&mut self) -> bool {
        while self.batch.len() < BATCH_SPANS {
            match self.spans.try_recv() {
                Ok(span) => self.batch.push(span),
                Err(_) => break,
            }
        }
        !self.batch.is_empty()
    }

    /// Sends the batch. It is gone then, whether it was taken or not.
    async fn send(&mut self) {
        self.sending = self.batch.len() as u64;
        let message = wire::message(&self.resource, std::mem::take(&mut self.batch));
        let sent = timeout(SEND_TIMEOUT, self.export(message)).await;
        let failure = match sent {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) => Some(format!("no answer within {} s", SEND_TIMEOUT.as_secs())),
        };
        let spans = std::mem::take(&mut self.sending);
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        match failure {
            Some(failure) => {
                self.channel = None;
                let outage = self.lost(spans + dropped, &failure);
                outage.pause = (outage.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            }
            None if dropped > 0 => {
                self.lost(dropped, "more spans end than it takes").pause = Duration::ZERO;
            }
            None => {
                if let Some(ExportOutage { lost, .. }) = self.outage.take() {
                    tracing::info!(lost, "the collector takes spans again");
                }
            }
        }
    }

    async fn export(&mut self, message: ExportTraceServiceRequest) -> Result<(), String> {
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(self.endpoint.clone());
                let endpoint = endpoint.map_err(|error| chain(&error))?;
                let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
                let channel = endpoint.connect().await.map_err(|error| chain(&error))?;
                self.channel.insert(channel).clone()
            }
        };
        let mut client =
            TraceServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        let answer = client.export(message).await.map_err(|status| words(&status))?;
        match answer.into_inner().partial_success {
            Some(partial) if partial.rejected_spans > 0 => {
                let why = shortened(&partial.error_message);
                Err(format!("it rejects spans: {why:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Counts lost spans. One line is logged for an outage, and one for its end.
    fn lost(&mut self, spans: u64, why: &str) -> &mut ExportOutage {
        if self.outage.is_none() {
            let collector = &self.endpoint;
            tracing::warn!(
                collector,
                why,
                "the collector of log.otlp does not take all spans; they are lost until it does, and requests are served as usual"
            );
        }
        let outage = self.outage.get_or_insert_default();
        outage.lost = outage.lost.saturating_add(spans);
        outage
    }
}

/// A collector's error in a bounded number of characters.
fn words(status: &Status) -> String {
    format!("{:?}: {:?}", status.code(), shortened(status.message()))
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_WORDS_CHARS).collect()
}
