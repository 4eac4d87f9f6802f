//! The model that an operator's swap has put in the place of the configured one. It holds as long as
//! the target that serves it, because a supervisor that finds this target takes it over, and as long
//! as the process that started the supervisor: the service goes on with it also if target and
//! supervisor die together.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::parent_id;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{RuntimeDir, RuntimeDirError, WorkerRecord};

/// Name of the file.
const FILE: &str = "target.swap";
/// Bytes that are read: more than a path and a record may have.
const MAX_BYTES: u64 = 16 << 10;
/// The process that adopts orphans, and that starts the supervisor under systemd and launchd. It
/// lives on when the service ends, so it says nothing about the service.
const INIT_PID: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Swap {
    /// Directory of the model.
    model: String,
    /// The process that started the supervisor, unless it is [`INIT_PID`].
    parent: Option<WorkerRecord>,
}

impl RuntimeDir {
    /// Keeps the directory of the swapped model for the next supervisor.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_swap(&self, model: &str) -> Result<(), RuntimeDirError> {
        let parent = Some(parent_id()).filter(|pid| *pid > INIT_PID);
        let parent = parent.and_then(|pid| WorkerRecord::of(pid, 0));
        let swap = Swap { model: model.to_owned(), parent };
        self.replace(FILE, &serde_json::to_vec(&swap).expect("a swap is plain JSON"))
    }

    /// The configured model is served again, or will be.
    pub fn forget_swap(&self) {
        // A missing file is as good as a removed one.
        let _ = fs::remove_file(self.path().join(FILE));
    }

    /// Directory of the swapped model; `None` if there was no swap, or if both `target`, which
    /// served the model, and the process that started the supervisor of that time have ended.
    pub fn swapped_model(&self, target: &str) -> Option<String> {
        let mut text = Vec::new();
        let file = fs::File::open(self.path().join(FILE)).ok()?;
        file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
        let swap: Swap = serde_json::from_slice(&text).ok()?;
        let parent = swap.parent.filter(|parent| parent.pid == parent_id());
        let runs = |record: Option<WorkerRecord>| record.is_some_and(|record| record.alive());
        let holds = runs(parent) || runs(self.record(target));
        (holds && Path::new(&swap.model).is_absolute()).then_some(swap.model)
    }
}
