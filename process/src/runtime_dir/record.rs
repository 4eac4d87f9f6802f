//! Records of workers: which process runs as which worker, for the next supervisor and for `serve`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{RuntimeDir, RuntimeDirError};
use paceline_system::platform;

/// The process of a worker. A pid alone is no identity, because pids are reused. Within one boot
/// the start time of the process distinguishes two processes with one pid; the boot id
/// distinguishes boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Process id.
    pub pid: u32,
    /// [`platform::process_start`] of it.
    pub started: u64,
    /// Number of its life.
    pub epoch: u64,
    /// [`platform::boot_id`] of the boot it runs in; empty where the system gives none.
    pub boot: String,
}

impl WorkerRecord {
    /// The record of a process that is alive now; `None` if it is not.
    pub fn of(pid: u32, epoch: u64) -> Option<Self> {
        Some(Self { pid, started: platform::process_start(pid)?, epoch, boot: platform::boot_id() })
    }

    /// Whether that process still runs. A record of another boot is stale: another process may have
    /// its pid now, so it is neither adopted nor sent a signal.
    pub fn alive(&self) -> bool {
        self.boot == platform::boot_id() && platform::process_start(self.pid) == Some(self.started)
    }
}

impl RuntimeDir {
    /// Records which process runs as `process`. After a power cut the file is whole, but it may be
    /// the previous one. That is harmless, because a record of an earlier boot is stale.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_record(
        &self,
        process: &str,
        record: &WorkerRecord,
    ) -> Result<(), RuntimeDirError> {
        self.replace(
            &format!("{process}.json"),
            &serde_json::to_vec(record).expect("a record is plain JSON"),
        )
    }

    /// The last record of `process`; `None` if there is none, or if it is unreadable.
    pub fn record(&self, process: &str) -> Option<WorkerRecord> {
        let file = fs::read(self.record_path(process)).unwrap_or_default();
        let named = self.named(&format!("{process}.json")).into_iter();
        let texts = named.map(|(_, text)| text.into_bytes()).chain([file]);
        let records = texts.filter_map(|text| serde_json::from_slice::<WorkerRecord>(&text).ok());
        records.max_by_key(|record| record.epoch)
    }

    /// All records by name, including those of dead processes.
    pub fn records(&self) -> Vec<(String, WorkerRecord)> {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        // A record without room is in the name of an empty file, after the name of its own.
        let names = entries.filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.split_once('=').map_or(file.as_str(), |(name, _)| name);
            Some(name.strip_suffix(".json")?.to_owned())
        });
        let names: BTreeSet<String> = names.collect();
        names.into_iter().filter_map(|name| Some((name.clone(), self.record(&name)?))).collect()
    }

    pub(super) fn record_path(&self, process: &str) -> PathBuf {
        self.path().join(format!("{process}.json"))
    }
}
