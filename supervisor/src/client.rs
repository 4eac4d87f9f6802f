//! Calls to one life of a worker: heartbeats, its description, the order to end. Each life has a
//! channel of its own, so that no call meant for one reaches the next (I7).

use std::sync::Arc;
use std::time::Duration;

use paceline_process::{RuntimeDir, socket, task};
use paceline_proto::internal::v1::drafter_client::DrafterClient;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{
    DescribeDrafterRequest, DescribeDrafterResponse, DescribeRequest, DescribeResponse,
    PermitChange, Policy, RepermitRequest, RepermitResponse, SetPolicyRequest, Stamp, StopRequest,
    WatchRequest,
};
use paceline_vocabulary::{Epoch, Term};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::actor::Mail;
use crate::core::admission::{Capacity, Ticket};
use crate::core::seat::WorkerId;
use crate::core::worker::{Claim, Described, Event, Identity};

/// Largest message on our own links.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Pause before `Watch` is tried again, while the worker has no socket yet or its stream broke.
const WATCH_AGAIN: Duration = Duration::from_millis(20);
/// For an answer to a question that needs no engine.
const ANSWER: Duration = Duration::from_secs(5);
/// For an answer to the order to end: a worker that takes longer gets SIGTERM.
const STOP_ANSWER: Duration = Duration::from_secs(2);
/// For an answer to an order for other permits.
const PERMITS_ANSWER: Duration = Duration::from_secs(2);
/// Pause before a policy is sent again.
const POLICY_AGAIN: Duration = Duration::from_secs(1);

/// One life of a worker, as calls reach it. Dropped, nothing more is heard of it.
#[derive(Debug)]
pub struct Line {
    worker: WorkerId,
    epoch: Epoch,
    term: Term,
    channel: Channel,
    mail: mpsc::Sender<Mail>,
    /// Of one that is taken over: its process, and what it has to be.
    expected: Option<(u32, Identity)>,
    watch: Option<AbortHandle>,
    policy: Option<watch::Sender<Policy>>,
}

impl Line {
    /// A line to the life `epoch` of this worker, on its socket in this directory.
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

    /// The same to a life that an earlier supervisor started as process `pid`: it has to be what we
    /// would start.
    pub fn expecting(mut self, pid: u32, identity: Identity) -> Self {
        self.expected = Some((pid, identity));
        self
    }

    /// For requests, and what else only a target is asked.
    pub fn target(&self) -> TargetClient<Channel> {
        TargetClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn stamp(&self) -> Option<Stamp> {
        Some(Stamp { term: self.term.0, epoch: self.epoch.0 })
    }

    /// Follows its heartbeats from now on.
    pub fn watch(&mut self) {
        let (mut client, stamp, mail) =
            (WorkerClient::new(self.channel.clone()), self.stamp(), self.mail.clone());
        let worker = self.worker;
        let watch = task::spawn("watch", async move {
            loop {
                if let Ok(stream) = client.watch(WatchRequest { stamp }).await {
                    let mut beats = stream.into_inner();
                    while let Ok(Some(beat)) = beats.message().await {
                        if mail
                            .send(Mail::Worker(worker, Event::Beat(Box::new(beat))))
                            .await
                            .is_err()
                        {
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

    /// Asks what it serves or proposes.
    pub fn describe(&self) {
        let (channel, stamp, mail, epoch, worker) =
            (self.channel.clone(), self.stamp(), self.mail.clone(), self.epoch, self.worker);
        let expected = self.expected.clone();
        task::spawn("describe", async move {
            let answer = match worker {
                WorkerId::Target => {
                    let mut client = TargetClient::new(channel);
                    within(ANSWER, client.describe(DescribeRequest { stamp })).await.map(target)
                }
                WorkerId::Drafter(_) => {
                    let mut client = DrafterClient::new(channel);
                    within(ANSWER, client.describe(DescribeDrafterRequest { stamp }))
                        .await
                        .map(drafter)
                }
            };
            let event = match answer {
                Ok((claim, described)) => {
                    let differs =
                        expected.and_then(|(pid, ours)| claim.differs(epoch.0, pid, &ours));
                    match differs {
                        Some(cause) => Event::Foreign { epoch, cause },
                        None => Event::Described { epoch, described: Arc::new(described) },
                    }
                }
                Err(error) => {
                    tracing::warn!(%worker, %epoch, %error, "the worker does not describe itself");
                    Event::DescribeFailed { epoch }
                }
            };
            // Without an actor there is nobody to tell.
            let _ = mail.send(Mail::Worker(worker, event)).await;
        });
    }

    /// Asks it to end at once.
    pub fn stop(&self, cause: String) {
        let (mut client, stamp, mail) =
            (WorkerClient::new(self.channel.clone()), self.stamp(), self.mail.clone());
        let (epoch, worker) = (self.epoch, self.worker);
        task::spawn("stop", async move {
            let answer =
                within(STOP_ANSWER, client.stop(StopRequest { stamp, grace_ms: 0, cause })).await;
            if let Err(error) = &answer {
                tracing::warn!(%worker, %epoch, %error, "the worker did not take the message to end");
            }
            // Without an actor there is nobody to tell.
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
                PERMITS_ANSWER,
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
            // Without an actor there is nobody to tell.
            let _ = mail.send(Mail::Repermitted { epoch, missed }).await;
        });
    }

    /// Gives it the policy in force; tried again until it is there, or a newer one is to go.
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
                    match within(STOP_ANSWER, client.set_policy(SetPolicyRequest { stamp, policy }))
                        .await
                    {
                        Ok(_) => policy = None,
                        Err(error) => {
                            tracing::warn!(%epoch, %error, "the target did not take the routing policy; tried again");
                            tokio::select! {
                                () = tokio::time::sleep(POLICY_AGAIN) => {}
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

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::new(
            Code::DeadlineExceeded,
            format!("no answer within {} s", limit.as_secs()),
        )),
    }
}

fn target(response: DescribeResponse) -> (Claim, Described) {
    let identity = Identity { build: response.build, config_digest: response.config_digest };
    let claim = Claim { epoch: response.epoch, pid: response.pid, identity };
    let classes = response.kv_classes.iter().map(|class| (class.positions, class.bytes)).collect();
    let capacity = Capacity {
        classes,
        max_sequences: response.max_sequences as usize,
        patch_bytes: response.picture_patch_bytes,
    };
    (claim, Described::Target { model: response.model.unwrap_or_default(), capacity })
}

fn drafter(response: DescribeDrafterResponse) -> (Claim, Described) {
    let identity = Identity { build: response.build, config_digest: response.config_digest };
    let claim = Claim { epoch: response.epoch, pid: response.pid, identity };
    (claim, Described::Drafter(response.drafter.unwrap_or_default()))
}
