//! The children of `serve`.

/// One of the children of `serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// The process that owns the workers.
    Supervisor,
    /// The process that clients connect to.
    Gateway,
    /// A second gateway beside that one: its successor, which starts, or its predecessor, which
    /// drains.
    SecondGateway,
}

/// Those that always run, in the order they are started.
pub const BOTH: [Member; 2] = [Member::Supervisor, Member::Gateway];

impl Member {
    /// Name of the process in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Member::Supervisor => "supervisor",
            Member::Gateway | Member::SecondGateway => "gateway",
        }
    }

    /// Index of the process in a list of [`BOTH`].
    pub fn place(self) -> usize {
        self as usize
    }
}
