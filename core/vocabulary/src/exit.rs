//! Exit codes of our processes.

/// How a process of ours ends: its exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Asked to stop.
    Asked = 0,
    /// The configuration cannot be used: another start ends the same.
    Config = 64,
    /// The model's files are refused: each start with them ends the same.
    ModelRefused = 65,
    /// A dependency is missing: a model, a port, another process.
    Unavailable = 69,
    /// A bug of this program.
    Bug = 70,
    /// The process asks to be started again.
    RestartMe = 75,
    /// Host memory is stranded; starting again would make it worse.
    MemoryStranded = 78,
}

impl Exit {
    /// The end with this exit code; `None` for a code that no process of ours ends with.
    pub fn of(code: i32) -> Option<Self> {
        let all = [
            Exit::Asked,
            Exit::Config,
            Exit::ModelRefused,
            Exit::Unavailable,
            Exit::Bug,
            Exit::RestartMe,
            Exit::MemoryStranded,
        ];
        all.into_iter().find(|exit| *exit as i32 == code)
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
