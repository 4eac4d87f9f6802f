//! The machine below the service: its wired memory, and the exit code that follows from it.

use paceline_process::{Exit, platform};
use paceline_supervisor_core::Supervisor;
use paceline_supervisor_core::worker::WiredReading;

/// The machine's wired memory now; `None` where a kill strands no memory.
pub(crate) fn wired() -> Option<WiredReading> {
    let platform::WiredMemory { wired_bytes, machine_bytes } = platform::wired_memory()?;
    Some(WiredReading { wired_bytes, machine_bytes, ..WiredReading::default() })
}

/// How the supervisor ends. `restart`: it ends in order to be started again.
pub(crate) fn exit(core: &Supervisor, restart: bool) -> Exit {
    if restart {
        Exit::RestartMe
    } else if core.target().stranded_bytes().is_some() {
        // A service manager must not start it again: each start of the target takes more memory.
        Exit::MemoryStranded
    } else {
        Exit::Asked
    }
}
