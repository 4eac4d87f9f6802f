//! The worker with a tiny model that has a vision tower, and its image files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_proto::internal::v1::{Done, Generation, LinkPhase, Permit};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind, Welcome};
use tonic::Status;

use crate::requests::{ATTENDING, ImageRequest, VisionModel};
use crate::stage::drafter::{BLOCK, Known, Script, attach, attach_watched, oracle, welcome};
use crate::stage::{Worker, finish, ids, open, plain_permit, until_link};

/// Turns of the runtime in which the client's connection writes its requests. Two or three are
/// enough.
const TURNS: usize = 100;

/// Hidden states by position, as bytes.
pub type SeenRows = Arc<Mutex<BTreeMap<u32, Vec<u8>>>>;

pub struct VisionWorker {
    pub process: Worker,
    model: VisionModel,
    names: AtomicU64,
}

impl VisionWorker {
    /// One whose layers all attend.
    pub async fn new(environment: &[(&str, &str)]) -> Self {
        Self::of(ATTENDING, environment).await
    }

    pub async fn of(model: VisionModel, environment: &[(&str, &str)]) -> Self {
        let mut process = Worker::start(&model.dir(), environment);
        process.ready().await;
        std::fs::create_dir(process.dir.path().join("images")).expect("a folder");
        Self { process, model, names: AtomicU64::new(0) }
    }

    /// As the gateway does before it submits: each image in a file of its own.
    pub fn submitted(&self, request: &ImageRequest) -> Generation {
        let mut generation = request.generation.clone();
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        generation.request_id = format!("{}-{number}", generation.request_id);
        for (at, (announced, image)) in
            generation.images.iter_mut().zip(&request.images).enumerate()
        {
            announced.file = format!("p{number}-{at}");
            std::fs::write(self.folder().join(&announced.file), &*image.pixels).expect("writable");
        }
        generation
    }

    pub fn folder(&self) -> PathBuf {
        self.process.dir.path().join("images")
    }

    pub fn left_over(&self) -> usize {
        std::fs::read_dir(self.folder()).expect("a folder").count()
    }

    pub async fn run(
        &self,
        generation: Generation,
        permit: Option<Permit>,
    ) -> Result<(Vec<u32>, Done), Status> {
        let plain = Permit { reason: v1::RouteReason::Modality.into(), ..plain_permit() };
        let stream = open(self.process.client.clone(), generation, permit.unwrap_or(plain)).await?;
        let batches = finish(stream).await?;
        let done = batches.last().and_then(|batch| batch.done).expect("the last batch ends it");
        Ok((ids(&batches), done))
    }

    pub async fn ask(&self, request: &ImageRequest) -> (Vec<u32>, Done) {
        self.run(self.submitted(request), None).await.expect("served")
    }

    /// Both requests reach the worker in this order while a signal has stopped it, so they always
    /// run together. One thread of the worker reads its connection and passes requests on.
    pub async fn ask_together(
        &self,
        first: &ImageRequest,
        second: &ImageRequest,
    ) -> ((Vec<u32>, Done), (Vec<u32>, Done)) {
        let worker = Pid::from_raw(self.process.child.id() as i32);
        kill(worker, Signal::SIGSTOP).expect("the worker runs");
        let resume = async {
            // Each turn runs whatever is ready on this thread: the client's connection writes both
            // requests.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            kill(worker, Signal::SIGCONT).expect("the worker is stopped");
        };
        let (first, second, ()) = tokio::join!(self.ask(first), self.ask(second), resume);
        (first, second)
    }

    pub async fn drafted(&self, request: &ImageRequest) -> (Vec<u32>, Done) {
        let permit = Permit {
            lane_allowed: v1::Lane::Speculative.into(),
            max_draft: BLOCK - 1,
            reason: v1::RouteReason::Forced.into(),
            policy_epoch: 0,
        };
        self.run(self.submitted(request), Some(permit)).await.expect("served")
    }

    /// Plays a drafter and waits until it is linked.
    pub async fn attach(&mut self, generation: u64, proposal: ProposalKind, script: Script) {
        let (_, mut beats) = self.process.ready().await;
        let welcome = Welcome { hidden_size: self.model.hidden, ..welcome(generation, proposal) };
        attach(&self.process, generation, Some(welcome), script);
        until_link(&mut beats, generation, LinkPhase::Up).await;
    }

    /// Links a drafter that proposes nothing. Returns the hidden states that it is sent, by position.
    pub async fn watch_rows(&mut self, generation: u64) -> SeenRows {
        let (_, mut beats) = self.process.ready().await;
        let kind = ProposalKind::Tokens;
        let welcome = Welcome { hidden_size: self.model.hidden, ..welcome(generation, kind) };
        let seen = SeenRows::default();
        let rows = seen.clone();
        let watch = move |feed: &Feed, bytes: &[u8]| {
            let count: u32 = feed.contexts.iter().map(|context| context.rows).sum();
            let positions =
                feed.contexts.iter().flat_map(|one| one.position..one.position + one.rows);
            let all = bytes.chunks(bytes.len() / count as usize).map(<[u8]>::to_vec);
            rows.lock().expect("not poisoned").extend(positions.zip(all));
        };
        let script = oracle(Known::default());
        attach_watched(&self.process, generation, Some(welcome), script, Box::new(watch));
        until_link(&mut beats, generation, LinkPhase::Up).await;
        seen
    }

    pub async fn held_bytes(&self) -> u64 {
        self.process.figures().await.kv.expect("kv").held_bytes
    }
}
