//! Reports of processes about themselves, and the figures in them.

use crate::ids::{Epoch, ModelMark};
use crate::products::Products;
use crate::state::{GatewayState, LinkPhase, WorkerPhase};

/// A worker's report, every 250 ms and after every change of phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The worker's life.
    pub epoch: Epoch,
    /// Phase of the worker.
    pub phase: WorkerPhase,
    /// Steps finished since the worker's start. With `phase`: the progress by which a hang is
    /// judged.
    pub steps: u64,
    /// Bytes of weights read.
    pub loaded_bytes: u64,
    /// Bytes of weights in all.
    pub total_bytes: u64,
    /// Seconds since 1970 when the weights were loaded; 0 before.
    pub weights_loaded_unix_s: i64,
    /// KV memory; of the target only.
    pub kv: Option<KvUse>,
    /// Sequences in the engine; sessions of a drafter.
    pub sequences: u32,
    /// Those of `sequences` of which no row is computed yet; of the target only.
    pub unstarted: u32,
    /// The tokens of these sequences, those that the prefix cache may have included.
    pub unstarted_tokens: u64,
    /// Why loading failed; empty otherwise.
    pub failure: String,
    /// The link, as this end reports it.
    pub link: Option<LinkReport>,
    /// Counts of speculation; of the target only.
    pub speculation: Option<SpeculationTotals>,
    /// Measured worth of speculation; of the target only.
    pub figures: Option<SpeculationFigures>,
    /// How long recent steps took.
    pub step_times: Option<StepTimes>,
    /// Memory of the process.
    pub memory: Option<MemoryUse>,
}

impl Heartbeat {
    /// A heartbeat without figures.
    pub fn new(epoch: Epoch, phase: WorkerPhase) -> Self {
        Self {
            epoch,
            phase,
            steps: 0,
            loaded_bytes: 0,
            total_bytes: 0,
            weights_loaded_unix_s: 0,
            kv: None,
            sequences: 0,
            unstarted: 0,
            unstarted_tokens: 0,
            failure: String::new(),
            link: None,
            speculation: None,
            figures: None,
            step_times: None,
            memory: None,
        }
    }
}

/// How long recent steps took, in microseconds; 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// 99th percentile of steps with prompt rows.
    pub prefill_p99_us: u32,
    /// 99th percentile of steps that only decode.
    pub decode_p99_us: u32,
}

/// Memory of a worker, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// In arrays: weights, KV, intermediate results of a step.
    pub active_bytes: u64,
    /// Freed, and retained by MLX for reuse.
    pub cache_bytes: u64,
    /// Most that MLX may hold in both; 0 where no limit is set.
    pub limit_bytes: u64,
    /// Metal's recommendedMaxWorkingSetSize, for all processes together; 0: no such bound.
    pub recommended_bytes: u64,
}

/// The KV ledger's figures, in bytes (I11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUse {
    /// Bytes that all sequences together may hold.
    pub budget_bytes: u64,
    /// Bytes that running sequences hold.
    pub held_bytes: u64,
    /// Bytes that evictable pages of the prefix cache hold.
    pub prefix_bytes: u64,
    /// The part of `held_bytes` that hidden states for the drafter take. They are freed before a
    /// request waits.
    pub hidden_bytes: u64,
}

/// Memory that a sequence of up to `positions` positions needs at least: its keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvClass {
    /// Longest sequence of the class.
    pub positions: u32,
    /// Bytes of one such sequence.
    pub bytes: u64,
}

/// A worker's report of its newest link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Number of the newest link handed to this worker; 0 before the first.
    pub generation: u64,
    /// Phase of the link.
    pub phase: LinkPhase,
    /// Why it was refused, ejected or lost; empty otherwise.
    pub reason: String,
    /// Number of the link that drafts arrive from at this moment; 0: none. An older link serves
    /// while the newest one is in its handshake.
    pub serving: u64,
}

impl LinkReport {
    /// The report before a link was handed over.
    pub const ABSENT: Self =
        Self { generation: 0, phase: LinkPhase::Absent, reason: String::new(), serving: 0 };
}

/// Counts of speculation since the target's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationTotals {
    /// Draft, verify, accept: one cycle.
    pub cycles: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Drafted tokens that equal the target's choice.
    pub accepted: u64,
    /// Drafts that missed their deadline.
    pub late: u64,
    /// Bytes over the link, both ways.
    pub link_bytes: u64,
}

/// Costs and gains of speculation on this machine with this pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationFigures {
    /// A verification or plain step.
    pub step: Option<CostModel>,
    /// A draft, from its request to its arrival.
    pub draft: Option<CostModel>,
    /// Acceptance per traffic class.
    pub classes: Vec<ClassFigures>,
    /// Worth by number of sequences that decode at once, ascending.
    pub by_sequences: Vec<SpeculationBucket>,
    /// Worth by positions of a sequence's context, ascending.
    pub by_context: Vec<SpeculationBucket>,
    /// Costs of steps of one sequence, by rows, ascending.
    pub step_costs: Vec<StepCost>,
}

/// Cost of a step of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Rows: the bonus token and drafted tokens.
    pub rows: u32,
    /// Time of the step, in microseconds.
    pub us: f64,
    /// Time in which the drafter drafts `rows` rows, in microseconds; 0: no draft was measured.
    pub draft_us: f64,
}

/// Microseconds = base + row · rows + sequence · sequences + context · positions / 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostModel {
    /// Of every step.
    pub base_us: f64,
    /// For each row.
    pub row_us: f64,
    /// For each sequence.
    pub sequence_us: f64,
    /// For each thousand positions of context.
    pub context_us: f64,
    /// Steps that the model was fitted to.
    pub observations: u64,
}

/// Acceptance of a traffic class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassFigures {
    /// The class's name.
    pub class: String,
    /// Cycles that were counted.
    pub cycles: u64,
    /// Share of drafts of at least i + 1 tokens whose first i + 1 tokens were all accepted.
    pub survival: Vec<f32>,
}

/// Worth of speculation in a range of load or length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeculationBucket {
    /// Upper end of the range, inclusive.
    pub up_to: u32,
    /// Cycles and plain steps that were measured; 0: `gain` is a guess.
    pub steps: u64,
    /// Tokens per second as the target decides, over plain decoding.
    pub gain: f64,
}

/// The model that a target serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInfo {
    /// Public name of the model.
    pub name: String,
    /// Directory of the model.
    pub path: String,
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Longest sequence, in positions.
    pub context_length: u32,
    /// Rows of its output head.
    pub vocab_size: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Whether it takes images.
    pub vision: bool,
    /// Whether a row alone is computed by the kernels of blocks.
    pub exact_lanes: bool,
    /// Unit in which its logits are known; 0: that of float32.
    pub logit_unit: f32,
    /// How products by its quantized weights are computed.
    pub products: Products,
    /// Instruction set of the CPU's kernels; empty where MLX computes.
    pub instructions: String,
}

/// The model that a drafter serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrafterInfo {
    /// Name of the drafter.
    pub name: String,
    /// Directory of the drafter.
    pub path: String,
    /// Kind of the drafter, such as `dflash`.
    pub kind: String,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Rows of its longest block, the bonus token included.
    pub block_size: u32,
    /// Whether it drafts for requests with images.
    pub images: bool,
}

/// Limits of the images of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageLimits {
    /// Most images of a request.
    pub max_images: u32,
    /// Most pixels of an image as it is sent.
    pub max_pixels: u64,
    /// Most pixels of an image as the model reads it: a larger image is made smaller.
    pub read_pixels: u64,
    /// Most tokens of the prompt that an image becomes.
    pub max_tokens: u32,
}

/// A gateway's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayReport {
    /// The gateway's life.
    pub epoch: Epoch,
    /// Id of the gateway's process.
    pub pid: u32,
    /// State of the gateway.
    pub state: GatewayState,
    /// Restarts since its parent's start that no operator asked for.
    pub restarts: u32,
    /// Requests that run.
    pub streams: u32,
    /// Limits of images; `None` while none are served.
    pub images: Option<ImageLimits>,
    /// The model whose requests it accepts; `None` while it accepts none.
    pub model: Option<ModelMark>,
    /// Whether the model has tools and the format of its tool calls is not read.
    pub unread_tool_calls: bool,
}
