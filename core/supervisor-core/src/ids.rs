//! Numbers and names of requests, operators' orders and workers.

use std::fmt;

/// One submission, numbered by the shell. Request ids are the gateway's and may come twice; tickets
/// never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An operator's order, numbered by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u64);

/// A slot for a drafter process. There are two, so that a swap can load and link the next drafter
/// before it stops the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerSlot {
    /// `drafter-0` in the runtime directory.
    First,
    /// `drafter-1` in the runtime directory.
    Second,
}

impl WorkerSlot {
    /// Both slots.
    pub const ALL: [WorkerSlot; 2] = [WorkerSlot::First, WorkerSlot::Second];

    /// The other slot.
    pub fn other(self) -> Self {
        match self {
            WorkerSlot::First => WorkerSlot::Second,
            WorkerSlot::Second => WorkerSlot::First,
        }
    }

    /// Index of the slot in an array of both.
    pub fn idx(self) -> usize {
        match self {
            WorkerSlot::First => 0,
            WorkerSlot::Second => 1,
        }
    }
}

/// A worker of this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerId {
    /// The target.
    Target,
    /// The drafter in this slot.
    Drafter(WorkerSlot),
}

impl WorkerId {
    /// Name of the worker in the runtime directory and in logs.
    pub fn name(self) -> &'static str {
        match self {
            WorkerId::Target => "target",
            WorkerId::Drafter(WorkerSlot::First) => "drafter-0",
            WorkerId::Drafter(WorkerSlot::Second) => "drafter-1",
        }
    }

    /// File of the runtime directory that counts its epochs. Both drafter slots share one file.
    pub fn epoch_file(self) -> &'static str {
        match self {
            WorkerId::Target => "target.epoch",
            WorkerId::Drafter(_) => "drafter.epoch",
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
