//! Why a request is not served, as data. `error.rs` makes statuses of it.

use paceline_proto::status::Reason;

/// Why the service serves nobody at this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// TARGET_LOADING, RESTARTING, CRASH_LOOP or DRAINING.
    pub reason: Reason,
    /// The cause in words, without times, so that it changes only when the cause does.
    pub why: String,
}

impl Outage {
    /// The service itself comes to its end.
    pub fn stopping() -> Self {
        Self { reason: Reason::Draining, why: "the service is stopping".to_owned() }
    }
}

/// Why an operator's order is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The row of the status table.
    pub reason: Reason,
    /// The cause in words.
    pub message: String,
}

impl Refused {
    /// A refusal for `reason`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Why a request ends without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Nobody is served at this time.
    Outage {
        /// Why.
        outage: Outage,
        /// When it may be over.
        retry_ms: u64,
        /// Last lines of the worker's log, when it does not stay up.
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
        /// Its places.
        limit: usize,
    },
    /// It waited its whole time.
    QueueWait {
        /// How long that was.
        waited_ms: u64,
    },
    /// The KV budget can never hold it.
    KvExhausted {
        /// Positions it asks for.
        positions: u64,
        /// What they cost.
        need_bytes: u64,
        /// What there is.
        budget_bytes: u64,
    },
    /// It is longer than the context.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for behind it.
        max_tokens: u32,
        /// The longest sequence.
        context: u32,
    },
    /// Its first token would come behind its deadline.
    DeadlineInfeasible {
        /// The earliest it can come, from its arrival.
        earliest_ms: u64,
        /// How long there is.
        patience_ms: u64,
    },
    /// Its deadline passed while it waited.
    DeadlinePassed {
        /// How long it waited.
        waited_ms: u64,
    },
}

impl Denial {
    /// The service itself comes to its end.
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
            Denial::DeadlinePassed { .. } => Reason::DeadlinePassed,
        }
    }
}
