//! The children of `serve`.

/// One of the two children of `serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// The process that owns the workers.
    Supervisor,
    /// The process that clients connect to.
    Gateway,
}

/// Both, in the order they are started.
pub const BOTH: [Member; 2] = [Member::Supervisor, Member::Gateway];

impl Member {
    /// Name of the process in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Member::Supervisor => "supervisor",
            Member::Gateway => "gateway",
        }
    }

    /// Index of the process in a list of both.
    pub fn place(self) -> usize {
        self as usize
    }
}
