//! Which worker is meant. There are two places for drafters, so that a swap can load and greet the
//! next one before the one before it is let go.

use std::fmt;

/// A drafter's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    /// `drafter-0` in the runtime directory.
    First,
    /// `drafter-1`.
    Second,
}

impl Seat {
    /// Both.
    pub const ALL: [Seat; 2] = [Seat::First, Seat::Second];

    /// The one it is not.
    pub fn other(self) -> Self {
        match self {
            Seat::First => Seat::Second,
            Seat::Second => Seat::First,
        }
    }

    /// Its place in a pair.
    pub fn idx(self) -> usize {
        match self {
            Seat::First => 0,
            Seat::Second => 1,
        }
    }
}

/// A worker of this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerId {
    /// The target.
    Target,
    /// The drafter in this place.
    Drafter(Seat),
}

impl WorkerId {
    /// Its name in the runtime directory and in logs.
    pub fn name(self) -> &'static str {
        match self {
            WorkerId::Target => "target",
            WorkerId::Drafter(Seat::First) => "drafter-0",
            WorkerId::Drafter(Seat::Second) => "drafter-1",
        }
    }

    /// File of the runtime directory in which its lives are counted. Drafters share one: their
    /// lives are one row, whichever place they have.
    pub fn epochs(self) -> &'static str {
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
