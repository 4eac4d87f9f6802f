//! The settings that a process was started with. What has changed since then waits for its next start.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use super::RuntimeDir;
use crate::config::Setting;

/// Bytes that are read: many times what all settings have.
const MAX_BYTES: u64 = 256 << 10;

impl RuntimeDir {
    /// Writes down what `process` is started with. Without room for it nobody knows.
    pub(super) fn note_settings(&self, process: &str, settings: &[Setting]) {
        let values: BTreeMap<&str, &str> =
            settings.iter().map(|one| (one.key.as_str(), one.value.as_str())).collect();
        let text = serde_json::to_vec(&values).expect("texts are plain JSON");
        if self.replace_file(&name(process), &text).is_err() {
            let _ = fs::remove_file(self.used_settings_path(process));
        }
    }

    /// Value by key of the settings that `process` was started with; `None` if nobody knows.
    pub fn used_settings(&self, process: &str) -> Option<BTreeMap<String, String>> {
        let mut text = Vec::new();
        let file = fs::File::open(self.used_settings_path(process)).ok()?;
        file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn used_settings_path(&self, process: &str) -> PathBuf {
        self.path().join(name(process))
    }
}

fn name(process: &str) -> String {
    format!("{process}.settings")
}
