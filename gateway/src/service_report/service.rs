//! The service as its supervisor reports it, under the names of `paceline status --json`. What is
//! not there is null.

use serde::Serialize;
use utoipa::ToSchema;

/// A snapshot of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ServiceReport {
    /// The gateway, which answers.
    pub gateway: ProcessReport,
    /// The process that starts and stops the workers.
    pub supervisor: ProcessReport,
    /// The worker with the model.
    pub target: ProcessReport,
    /// The worker that drafts.
    pub drafter: ProcessReport,
    /// The served model; null until it has loaded.
    pub model: Option<ModelReport>,
    /// Requests inside the supervisor.
    pub requests: RequestsReport,
    /// Finished requests since the supervisor's start, by lane and reason.
    pub routes: Vec<ServedRoute>,
    /// The link between target and drafter, and what came of drafts.
    pub link: LinkReport,
    /// The target's KV memory.
    pub kv: KvReport,
    /// The machine's memory.
    pub memory: MemoryReport,
    /// Drafters that were refused.
    pub refused_drafters: Vec<RefusedDrafterReport>,
    /// Number of the supervisor's life.
    pub term: u64,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ProcessReport {
    /// `absent`, `stopped`, `starting`, `loading`, `ready`, `suspect`, `draining`, `backing_off` or
    /// `failed`.
    pub state: String,
    /// Process id of the worker.
    pub pid: Option<u32>,
    /// Number of its life.
    pub epoch: u64,
    /// Restarts since the supervisor's start that nobody ordered.
    pub restarts: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Directory or name of its model.
    pub model: Option<String>,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Bytes of weights that were read so far.
    pub loaded_bytes: u64,
    /// Why it is in this state, in words.
    pub reason: Option<String>,
}

/// The served model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelReport {
    /// Name by which clients ask for it.
    pub name: String,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
}

/// Requests inside the supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RequestsReport {
    /// Requests that run.
    pub active: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Those of `active` that may draft; the others run in the plain lane.
    pub speculative: u32,
    /// Those of `active` of which the target has computed no row: they wait for memory, or for the
    /// prompts of others.
    pub unstarted: u32,
    /// Most of `active` at once; 0 until the target has loaded.
    pub most_active: u32,
    /// Tokens of the prompts of `queued`, and what these requests have of their answers already.
    pub queued_tokens: u64,
    /// The same of `unstarted`, with what the prefix cache may have of them.
    pub unstarted_tokens: u64,
}

/// Requests that one route served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServedRoute {
    /// `plain` or `speculative`.
    pub lane: String,
    /// Why, as in the answers.
    pub reason: String,
    /// Requests that ended so.
    pub requests: u64,
}

/// The link between target and drafter, and what came of drafts since the target's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LinkReport {
    /// `absent`, `greeting`, `up`, `refused`, `ejected`, `lost` or `suspect`.
    pub state: String,
    /// Why the link is not up.
    pub reason: Option<String>,
    /// Rounds of drafting and verifying.
    pub cycles: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Drafted tokens that the target accepted.
    pub accepted: u64,
    /// Tokens of a cycle: the accepted ones, and one of the target's own. Null before the first
    /// cycle.
    pub tokens_per_cycle: Option<f64>,
    /// Drafts that came too late.
    pub late: u64,
}

/// The target's KV memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct KvReport {
    /// Most bytes that sequences may hold together.
    pub budget_bytes: u64,
    /// Bytes that running sequences hold.
    pub held_bytes: u64,
    /// Bytes that the prefix cache holds. They are freed for sequences.
    pub prefix_bytes: u64,
    /// `held_bytes` divided by `budget_bytes`.
    pub pressure: f64,
    /// Why `budget_bytes` is 80 % of what it would be, such as `reboot_while_busy`; null if it is
    /// not.
    pub reduced_reason: Option<String>,
}

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct MemoryReport {
    /// Most that target, drafter, KV and MLX's caches may hold together.
    pub budget_bytes: u64,
    /// Arrays of the target.
    pub target_bytes: u64,
    /// Arrays of the drafter.
    pub drafter_bytes: u64,
    /// MLX's caches of both.
    pub cache_bytes: u64,
    /// Free in the machine.
    pub available_bytes: u64,
}

/// A drafter that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RefusedDrafterReport {
    /// Directory of the drafter, or `lookup`.
    pub model: String,
    /// Reason of the refusal, in words.
    pub reason: String,
}
