//! Why a request is not served, as data. `error.rs` makes statuses of it.

use paceline_vocabulary::Reason;

/// Why the service serves no request at this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// TARGET_LOADING, RESTARTING, CRASH_LOOP, HOST_MEMORY_STRANDED or DRAINING.
    pub reason: Reason,
    /// The cause in words. Without times, so that the text changes only when the cause does.
    pub why: String,
}

impl Outage {
    /// The service itself is stopping.
    pub fn stopping() -> Self {
        Self { reason: Reason::Draining, why: "the service is stopping".to_owned() }
    }
}

/// Why an operator's order is refused, or ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRefusal {
    /// The row of the status table.
    pub reason: Reason,
    /// The cause in words.
    pub message: String,
}

impl OrderRefusal {
    /// A refusal for `reason`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Why a request ends without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No request is served at this time.
    Outage {
        /// Why.
        outage: Outage,
        /// When it may be over, in milliseconds.
        retry_ms: u64,
        /// Last lines of the worker's log, if it does not stay up.
        log: String,
    },
    /// The target ended, or has to, while the request ran.
    Gone {
        /// How it ended.
        cause: String,
        /// When the next one may serve.
        retry_ms: u64,
    },
    /// The queue is full.
    QueueFull {
        /// Number of places in the queue.
        limit: usize,
    },
    /// It waited its whole time in the queue.
    QueueWait {
        /// How long it waited.
        waited_ms: u64,
    },
    /// The KV budget can never hold it.
    KvExhausted {
        /// Positions it asks for.
        positions: u64,
        /// Bytes that they cost.
        need_bytes: u64,
        /// Bytes of the whole budget.
        budget_bytes: u64,
    },
    /// It is longer than the context.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for after it.
        max_tokens: u32,
        /// The longest sequence.
        context: u32,
    },
    /// The first token would come after the request's deadline.
    DeadlineInfeasible {
        /// Earliest time of its first token, from its arrival.
        earliest_ms: u64,
        /// Time to its deadline, from its arrival.
        remaining_ms: u64,
    },
    /// The target ended twice while it worked on this request.
    PoisonSuspect,
    /// Its tokens are another model's than the one that is served.
    ModelChanged,
    /// The request's deadline passed while it waited.
    DeadlinePassed {
        /// How long it waited.
        waited_ms: u64,
    },
}

impl Denial {
    /// The service itself is stopping.
    pub fn stopping(retry_ms: u64) -> Self {
        Denial::Outage { outage: Outage::stopping(), retry_ms, log: String::new() }
    }

    /// The row of the status table.
    pub fn reason(&self) -> Reason {
        match self {
            Denial::Outage { outage, .. } => outage.reason,
            Denial::Gone { .. } => Reason::TargetGone,
            Denial::QueueFull { .. } => Reason::QueueFull,
            Denial::QueueWait { .. } => Reason::QueueWait,
            Denial::KvExhausted { .. } => Reason::KvExhausted,
            Denial::TooLong { .. } => Reason::PromptTooLong,
            Denial::DeadlineInfeasible { .. } => Reason::DeadlineInfeasible,
            Denial::PoisonSuspect => Reason::PoisonSuspect,
            Denial::ModelChanged => Reason::ModelChanged,
            Denial::DeadlinePassed { .. } => Reason::DeadlinePassed,
        }
    }
}
