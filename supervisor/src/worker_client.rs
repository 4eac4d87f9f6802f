//! Requests to one epoch of a worker: heartbeats, its description, the order to end. Each epoch has
//! a channel of its own, so that no request meant for one reaches the next (I7).

use std::sync::Arc;
use std::time::Duration;

use paceline_process::{RuntimeDir, socket, task};
use paceline_proto::internal::v1::drafter_client::DrafterClient;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient as WorkerGrpcClient;
use paceline_proto::internal::v1::{
    DescribeDrafterRequest, DescribeRequest, PermitChange, Policy, RepermitRequest,
    RepermitResponse, SetPolicyRequest, Stamp, StopRequest, WatchRequest,
};
use paceline_supervisor_core::worker::{Event, WorkerIdentity};
use paceline_supervisor_core::{Ticket, WorkerId};
use paceline_vocabulary::{Epoch, Term};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::mailbox::Mail;
use crate::target_access::TargetAccess;
use crate::wire;

/// Largest message on our own links.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Pause before `Watch` is tried again, while the worker has no socket yet or its stream broke.
const WATCH_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait until a worker describes itself, which needs no engine.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer to the order to end. A worker that takes longer gets SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer to other permits.
const PERMITS_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a policy is sent again.
const POLICY_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Properties that an adopted worker must have.
#[derive(Clone, Debug)]
struct ExpectedProcess {
    pid: u32,
    identity: WorkerIdentity,
}

/// The client of one epoch of a worker. A drop ends its heartbeats.
#[derive(Debug)]
pub struct WorkerClient {
    worker: WorkerId,
    epoch: Epoch,
    term: Term,
    channel: Channel,
    mail: mpsc::Sender<Mail>,
    /// Set for an adopted worker only.
    expected: Option<ExpectedProcess>,
    watch: Option<AbortHandle>,
    policy: Option<watch::Sender<Policy>>,
}

impl WorkerClient {
    /// A client of the epoch `epoch` of this worker, on its socket in this directory.
    pub fn new(
        worker: WorkerId,
        dir: &RuntimeDir,
        epoch: Epoch,
        term: Term,
        mail: mpsc::Sender<Mail>,
    ) -> Self {
        let channel = socket::channel(dir.socket(worker.name()));
        Self { worker, epoch, term, channel, mail, expected: None, watch: None, policy: None }
    }

    /// Makes this the client of a worker that an earlier supervisor started as process `pid`. The
    /// worker must match what this supervisor would start.
    pub fn expecting(mut self, pid: u32, identity: WorkerIdentity) -> Self {
        self.expected = Some(ExpectedProcess { pid, identity });
        self
    }

    /// The client for requests that only a target takes.
    pub fn target(&self) -> TargetClient<Channel> {
        TargetClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The client with its epoch.
    pub fn access(&self) -> TargetAccess {
        TargetAccess { epoch: self.epoch, client: self.target() }
    }

    fn stamp(&self) -> Option<Stamp> {
        Some(Stamp { term: self.term.0, epoch: self.epoch.0 })
    }

    /// Follows its heartbeats from now on.
    pub fn watch(&mut self) {
        let (mut client, stamp, mail) =
            (WorkerGrpcClient::new(self.channel.clone()), self.stamp(), self.mail.clone());
        let worker = self.worker;
        let watch = task::spawn("watch", async move {
            loop {
                if let Ok(stream) = client.watch(WatchRequest { stamp }).await {
                    let mut heartbeats = stream.into_inner();
                    while let Ok(Some(message)) = heartbeats.message().await {
                        let event = match wire::heartbeat(message) {
                            Ok(heartbeat) => Event::Heartbeat(Box::new(heartbeat)),
                            // A worker of our own build never sends such a heartbeat.
                            Err(error) => {
                                tracing::warn!(%worker, %error, "a heartbeat is dropped");
                                continue;
                            }
                        };
                        if mail.send(Mail::Worker(worker, event)).await.is_err() {
                            return; // the actor has ended
                        }
                    }
                }
                // Not there yet, or broken. The core judges missing heartbeats, not errors.
                tokio::time::sleep(WATCH_RETRY_PAUSE).await;
            }
        });
        self.watch = Some(watch.abort_handle());
    }

    /// Asks what it serves or proposes.
    pub fn describe(&self) {
        let (channel, stamp, mail, epoch, worker) =
            (self.channel.clone(), self.stamp(), self.mail.clone(), self.epoch, self.worker);
        let expected = self.expected.clone();
        task::spawn("describe", async move {
            let answer = match worker {
                WorkerId::Target => {
                    let mut client = TargetClient::new(channel);
                    within(DESCRIBE_TIMEOUT, client.describe(DescribeRequest { stamp }))
                        .await
                        .map(wire::target)
                }
                WorkerId::Drafter(_) => {
                    let mut client = DrafterClient::new(channel);
                    within(DESCRIBE_TIMEOUT, client.describe(DescribeDrafterRequest { stamp }))
                        .await
                        .map(wire::drafter)
                }
            };
            let event = match answer {
                Ok(wire::DescribedWorker { claim, description }) => {
                    let differs =
                        expected.and_then(|ours| claim.differs(epoch, ours.pid, &ours.identity));
                    match differs {
                        Some(cause) => Event::Foreign { epoch, cause },
                        None => Event::Described { epoch, described: Arc::new(description) },
                    }
                }
                Err(error) => {
                    tracing::warn!(%worker, %epoch, %error, "the worker does not describe itself");
                    Event::DescribeFailed { epoch }
                }
            };
            // The actor may have ended.
            let _ = mail.send(Mail::Worker(worker, event)).await;
        });
    }

    /// Asks it to end at once.
    pub fn stop(&self, cause: String) {
        let (mut client, stamp, mail) =
            (WorkerGrpcClient::new(self.channel.clone()), self.stamp(), self.mail.clone());
        let (epoch, worker) = (self.epoch, self.worker);
        task::spawn("stop", async move {
            let answer =
                within(STOP_TIMEOUT, client.stop(StopRequest { stamp, grace_ms: 0, cause })).await;
            if let Err(error) = &answer {
                tracing::warn!(%worker, %epoch, %error, "the worker did not take the message to end");
            }
            // The actor may have ended.
            let _ = mail
                .send(Mail::Worker(worker, Event::StopAnswered { epoch, reached: answer.is_ok() }))
                .await;
        });
    }

    /// Gives running requests other permits, and reports which of them were not taken.
    pub fn repermit(&self, changes: Vec<(Ticket, PermitChange)>) {
        let (mut client, stamp, mail, epoch) =
            (self.target(), self.stamp(), self.mail.clone(), self.epoch);
        task::spawn("permits", async move {
            let (tickets, changes): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
            let ids: Vec<_> = changes.iter().map(|change| change.request_id.clone()).collect();
            let missed = match within(
                PERMITS_TIMEOUT,
                client.repermit(RepermitRequest { stamp, changes }),
            )
            .await
            {
                Ok(RepermitResponse { unknown }) => {
                    let of_unknown =
                        tickets.into_iter().zip(ids).filter(|(_, id)| unknown.contains(id));
                    of_unknown.map(|(ticket, _)| ticket).collect()
                }
                Err(error) => {
                    tracing::warn!(%epoch, %error, "the target did not take new permits; tried again while their requests run");
                    tickets
                }
            };
            // The actor may have ended.
            let _ = mail.send(Mail::Repermitted { epoch, missed }).await;
        });
    }

    /// Sends the policy in force. Tries again until the target took it, or a newer one replaces it.
    pub fn set_policy(&mut self, policy: Policy) {
        if let Some(newest) = &self.policy {
            newest.send_replace(policy);
            return;
        }
        let (mut client, stamp, epoch) = (self.target(), self.stamp(), self.epoch);
        let (newest, mut policies) = watch::channel(policy);
        policies.mark_changed();
        task::spawn("policy", async move {
            while policies.changed().await.is_ok() {
                let mut policy = Some(*policies.borrow_and_update());
                while policy.is_some() {
                    match within(
                        STOP_TIMEOUT,
                        client.set_policy(SetPolicyRequest { stamp, policy }),
                    )
                    .await
                    {
                        Ok(_) => policy = None,
                        Err(error) => {
                            tracing::warn!(%epoch, %error, "the target did not take the routing policy; tried again");
                            tokio::select! {
                                () = tokio::time::sleep(POLICY_RETRY_PAUSE) => {}
                                // A newer one, or the end of this life.
                                changed = policies.changed() => match changed {
                                    Ok(()) => policy = Some(*policies.borrow_and_update()),
                                    Err(_) => return,
                                },
                            }
                        }
                    }
                }
            }
        });
        self.policy = Some(newest);
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, request).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::new(
            Code::DeadlineExceeded,
            format!("no answer within {} s", limit.as_secs()),
        )),
    }
}
