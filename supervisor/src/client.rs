//! Calls to one life of the target: heartbeats, its description, the order to end. Each life has a channel of its own, so
//! that no call meant for one reaches the next (I7).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_process::{socket, task};
use paceline_proto::ids::{Epoch, Term};
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{DescribeRequest, DescribeResponse, Stamp, StopRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::actor::Mail;
use crate::core::admission::Capacity;
use crate::core::worker::{Described, Event};

/// Largest message on our own links.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Pause before `Watch` is tried again, while the worker has no socket yet or its stream broke.
const WATCH_AGAIN: Duration = Duration::from_millis(20);
/// For an answer to a question that needs no engine.
const ANSWER: Duration = Duration::from_secs(5);
/// For an answer to the order to end: a worker that takes longer gets SIGTERM.
const STOP_ANSWER: Duration = Duration::from_secs(2);

/// One life of the target, as calls reach it. Dropped, nothing more is heard of it.
#[derive(Debug)]
pub struct Line {
    epoch: Epoch,
    term: Term,
    client: TargetClient<Channel>,
    mail: mpsc::Sender<Mail>,
    watch: Option<AbortHandle>,
}

impl Line {
    /// A line to the life `epoch` on this socket.
    pub fn new(socket: PathBuf, epoch: Epoch, term: Term, mail: mpsc::Sender<Mail>) -> Self {
        let client = TargetClient::new(socket::channel(socket)).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Self { epoch, term, client, mail, watch: None }
    }

    /// For requests.
    pub fn client(&self) -> TargetClient<Channel> {
        self.client.clone()
    }

    fn stamp(&self) -> Option<Stamp> {
        Some(Stamp { term: self.term.0, epoch: self.epoch.0 })
    }

    /// Follows its heartbeats from now on.
    pub fn watch(&mut self) {
        let (mut client, stamp, mail) = (self.client.clone(), self.stamp(), self.mail.clone());
        let watch = task::spawn("watch", async move {
            loop {
                if let Ok(stream) = client.watch(WatchRequest { stamp }).await {
                    let mut beats = stream.into_inner();
                    while let Ok(Some(beat)) = beats.message().await {
                        if mail.send(Mail::Target(Event::Beat(beat))).await.is_err() {
                            return; // the actor is gone
                        }
                    }
                }
                // Not there yet, or broken: silence is what the core judges, not errors.
                tokio::time::sleep(WATCH_AGAIN).await;
            }
        });
        self.watch = Some(watch.abort_handle());
    }

    /// Asks what it serves.
    pub fn describe(&self) {
        let (mut client, stamp, mail, epoch) = (self.client.clone(), self.stamp(), self.mail.clone(), self.epoch);
        task::spawn("describe", async move {
            let answer = within(ANSWER, client.describe(DescribeRequest { stamp })).await.map(described);
            let event = match answer {
                Ok(described) => Event::Described { epoch, described },
                Err(error) => {
                    tracing::warn!(%epoch, %error, "the target does not describe itself");
                    Event::DescribeFailed { epoch }
                }
            };
            // Without an actor there is nobody to tell.
            let _ = mail.send(Mail::Target(event)).await;
        });
    }

    /// Asks it to end at once.
    pub fn stop(&self, cause: String) {
        let (mut client, stamp, mail, epoch) = (self.client.clone(), self.stamp(), self.mail.clone(), self.epoch);
        task::spawn("stop", async move {
            let answer = within(STOP_ANSWER, client.stop(StopRequest { stamp, grace_ms: 0, cause })).await;
            if let Err(error) = &answer {
                tracing::warn!(%epoch, %error, "the target did not take the message to end");
            }
            // Without an actor there is nobody to tell.
            let _ = mail.send(Mail::Target(Event::StopAnswered { epoch, reached: answer.is_ok() })).await;
        });
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::new(Code::DeadlineExceeded, format!("no answer within {} s", limit.as_secs()))),
    }
}

fn described(response: DescribeResponse) -> Arc<Described> {
    let classes = response.kv_classes.iter().map(|class| (class.positions, class.bytes)).collect();
    let capacity = Capacity { classes, max_sequences: response.max_sequences as usize };
    Arc::new(Described { model: response.model.unwrap_or_default(), capacity })
}
