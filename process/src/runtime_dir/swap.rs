//! The model that an operator's swap has put in the place of the configured one. It holds as long as
//! the target that serves it: a supervisor that finds this target takes it over.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use super::{RuntimeDir, RuntimeDirError};

/// Name of the file.
const FILE: &str = "target.swap";
/// Bytes that are read: more than a path may have.
const MAX_BYTES: u64 = 8 << 10;

impl RuntimeDir {
    /// Keeps the directory of the swapped model for the next supervisor.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_swap(&self, model: &str) -> Result<(), RuntimeDirError> {
        self.replace(FILE, model.as_bytes())
    }

    /// The configured model is served again, or will be.
    pub fn forget_swap(&self) {
        // A missing file is as good as a removed one.
        let _ = fs::remove_file(self.path().join(FILE));
    }

    /// Directory of the swapped model; `None` if there was no swap, or if `target`, which served the
    /// model, has ended.
    pub fn swapped_model(&self, target: &str) -> Option<String> {
        self.record(target).filter(super::WorkerRecord::alive)?;
        let mut path = String::new();
        let file = fs::File::open(self.path().join(FILE)).ok()?;
        file.take(MAX_BYTES).read_to_string(&mut path).ok()?;
        PathBuf::from(&path).is_absolute().then_some(path)
    }
}
