//! The machine below the service: its memory, the models' files, and the supervisor's exit code.

use std::path::PathBuf;

use paceline_checkpoint::digest;
use paceline_supervisor_core::worker::{Event, WiredReading};
use paceline_supervisor_core::{Supervisor, WorkerId};
use paceline_system::platform;
use paceline_vocabulary::Exit;
use tokio::sync::mpsc::Sender;

use crate::mailbox::Mail;

/// Reads free memory beside the actor.
pub(crate) fn read_memory(mail: Sender<Mail>) {
    read(mail, || Mail::MemoryRead { available_bytes: platform::available_memory() });
}

/// Looks at a model's files beside the actor: a disk may answer late.
pub(crate) fn look_at_files(worker: WorkerId, files: PathBuf, mail: Sender<Mail>) {
    read(mail, move || Mail::Worker(worker, Event::FilesSeen { files: digest::of_names(&files) }));
}

fn read(mail: Sender<Mail>, reading: impl FnOnce() -> Mail + Send + 'static) {
    tokio::task::spawn_blocking(move || {
        // If the mailbox is full, the next reading is soon.
        let _ = mail.try_send(reading());
    });
}

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
