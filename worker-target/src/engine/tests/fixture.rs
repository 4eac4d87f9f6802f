//! The demo target and requests for it, for tests of the engine's parts.

use std::path::PathBuf;

use paceline_models::sample::SamplingRule;
use paceline_models::sample::noise::NoiseKey;
use paceline_models::{
    Array, Batch, DeviceChoice, Dtype, Forward, KvStore, LayerKv, ModelError, Target, TargetInfo,
    Wants, device, load_target,
};
use paceline_proto::internal::v1::{Stamp, TokenBatch};
use paceline_target_core::{ClassBytes, Ledger, Request, Scheduler};
use paceline_vocabulary::link::Hello;
use paceline_vocabulary::{Lane, Permit, RequestId, RouteReason, TensorType};
use tokio::sync::mpsc;
use tonic::Status;

use crate::drafting::Drafting;
use crate::outlet::{STREAM_BACKLOG, TokenOutlet};
use crate::request::ValidRequest;
use crate::running::RunningRequest;

/// Most sequences that run together.
const SEQUENCES: usize = 32;

pub(crate) fn load() -> Box<dyn Target> {
    load_dir("../demo/target")
}

/// A tiny target whose layers are recurrent but for one.
pub(crate) fn load_hybrid() -> Box<dyn Target> {
    load_dir("../models/tests/golden/qwen3_5-tiny")
}

fn load_dir(dir: &str) -> Box<dyn Target> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    load_target(&dir, &mut |_, _| {}).expect("loads")
}

/// Changes the outputs of a target, or observes them.
pub(crate) trait Outputs {
    /// Called with the output of each forward.
    fn forward(
        &self,
        _batch: &Batch,
        _wants: &Wants,
        forward: Forward,
    ) -> Result<Forward, ModelError> {
        Ok(forward)
    }

    /// Called before ids are embedded apart from a step's graph.
    fn embeds(&self, _ids: usize) {}

    /// Called with the logits of drafted rows.
    fn head(&self, logits: Array) -> Result<Array, ModelError> {
        Ok(logits)
    }
}

/// The demo target, whose outputs go through `outputs`.
pub(crate) struct WrappedTarget<O> {
    pub(crate) model: Box<dyn Target>,
    pub(crate) outputs: O,
}

impl<O: Outputs> Target for WrappedTarget<O> {
    fn info(&self) -> &TargetInfo {
        self.model.info()
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        self.model.kv_layers()
    }

    fn dtype(&self) -> Dtype {
        self.model.dtype()
    }

    fn forward(
        &self,
        batch: &Batch,
        kv: &mut KvStore,
        wants: &Wants,
    ) -> Result<Forward, ModelError> {
        let forward = self.model.forward(batch, kv, wants)?;
        self.outputs.forward(batch, wants, forward)
    }

    fn embed(&self, ids: &[u32]) -> Result<Array, ModelError> {
        self.outputs.embeds(ids.len());
        self.model.embed(ids)
    }

    fn embed_chosen(&self, ids: &Array) -> Result<Array, ModelError> {
        self.model.embed_chosen(ids)
    }

    fn head(&self, hidden: &Array) -> Result<Array, ModelError> {
        self.outputs.head(self.model.head(hidden)?)
    }
}

pub(crate) fn store(model: &dyn Target) -> KvStore {
    let (layers, context) = (model.kv_layers(), model.info().context);
    KvStore::with_most_rows(&layers, model.dtype(), context, model.most_rows()).expect("a store")
}

/// Describes the target to a drafter.
pub(crate) fn hello(model: &dyn Target) -> Hello {
    let info = model.info();
    Hello {
        version: paceline_link::handshake::VERSION,
        generation: 0,
        hidden_size: info.hidden as u32,
        vocab_size: info.vocab as u32,
        n_layers: info.n_layers as u32,
        element: TensorType::F32,
        token_digest: String::new(),
        context_length: info.context as u32,
        max_sessions: SEQUENCES as u32,
    }
}

/// With `keeps_hidden` it keeps hidden states, as where a drafter is configured.
pub(crate) fn drafting(model: &dyn Target, keeps_hidden: bool) -> Drafting {
    Drafting::new(hello(model), if keeps_hidden { vec![1, 3, 5, 6] } else { vec![] }, 512)
}

pub(crate) fn scheduler(kv: &KvStore, drafting: &Drafting) -> Scheduler {
    let class = |(positions, kv): (i32, u64)| ClassBytes {
        positions: positions as usize,
        kv,
        hidden: drafting.window_bytes(positions as usize),
    };
    let ledger = Ledger::new(1 << 30, kv.class_bytes().into_iter().map(class).collect())
        .with_tape_row_bytes(kv.tape_row_bytes());
    let scheduler =
        Scheduler::new(ledger, SEQUENCES).with_most_rows(kv.most_rows().map(|rows| rows as usize));
    if kv.kept_bytes() > 0 { scheduler.with_snapshots() } else { scheduler }
}

/// A request whose permit allows drafts, and the receiver of its answer.
pub(crate) fn request(
    name: &str,
    prompt: Vec<u32>,
    max_tokens: u32,
    sampling: SamplingRule,
) -> (RunningRequest, mpsc::Receiver<Result<TokenBatch, Status>>) {
    let (tx, rx) = mpsc::channel(STREAM_BACKLOG);
    let request = ValidRequest {
        id: RequestId::parse(name).expect("a name"),
        trace: None,
        scheduling: Request {
            prompt,
            continuation: vec![],
            max_tokens,
            stop_ids: vec![],
            ignored_ids: vec![],
            deadline: None,
            permit: Permit {
                lane: Lane::Speculative,
                max_draft: 15,
                reason: RouteReason::Prior,
                policy_epoch: 0,
            },
            class: "default".into(),
            cache_scope: String::new(),
            images: Default::default(),
            last_turn: None,
        },
        sampling,
        bias: vec![],
        min_tokens: 0,
        logprobs: None,
        noise: NoiseKey { seed: 0, sample: 0 },
        id_limit: u32::MAX,
        wants_margins: false,
        wants_so_far: false,
        thought: None,
        images: vec![],
    };
    (RunningRequest::new(request, TokenOutlet::new(tx, Stamp::default())), rx)
}
