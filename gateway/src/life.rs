//! The life of one gateway: its number, and a lock by which other gateways of the runtime directory
//! know that it runs.
//!
//! Two gateways may run at once: one that drains, and its successor. Each holds the lock of its own
//! epoch until its end. What an epoch left that no process holds is removed by the next start.
//! Starts count and lock in turn, by a further lock.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use paceline_process::RuntimeDir;
use paceline_process::config::Setting;
use paceline_process::runtime_dir::{Kept, Lock, RuntimeDirError};
use tokio::task::JoinHandle;

/// Longest wait for another gateway that starts, which takes milliseconds. A gateway of an earlier
/// version held the lock of starts for its whole life. It ends within 6 s after its parent.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the lock of starts, and the beginning of the name of each epoch's lock.
const GATEWAY: &str = "gateway";

/// Number and lock of a gateway's life. The lock ends with this value, and its file is removed.
#[derive(Debug)]
pub struct Life {
    epoch: u64,
    path: PathBuf,
    _lock: Lock,
    /// What the gateway was started with.
    settings: Vec<Setting>,
    upkeep: OnceLock<JoinHandle<()>>,
}

impl Life {
    /// Begins the next life of a gateway in this runtime directory. Blocks the thread.
    ///
    /// # Errors
    /// Another gateway starts for too long, or a file of the directory cannot be used.
    pub fn begin(runtime_dir: &RuntimeDir) -> Result<Self, RuntimeDirError> {
        let _turn = runtime_dir.lock_within(GATEWAY, START_TIMEOUT)?;
        let epoch = runtime_dir.count_up("gateway.epoch")?;
        let lock = runtime_dir.lock(&lock_name(epoch))?;
        remove_left_locks(runtime_dir);
        let path = runtime_dir.lock_path(&lock_name(epoch));
        Ok(Self { epoch, path, _lock: lock, settings: Vec::new(), upkeep: OnceLock::new() })
    }

    /// With the settings that this gateway was started with, for `config show`.
    pub fn started_with(mut self, settings: Vec<Setting>) -> Self {
        self.settings = settings;
        self
    }

    /// Number of the life.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes the entries of this life anew that a cleaner removes, until its end.
    pub fn keep_up(&self, runtime_dir: &RuntimeDir) {
        let locks = vec![lock_name(self.epoch)];
        let settings = Some((GATEWAY.to_owned(), self.settings.clone()));
        let kept = Kept { locks, settings, images: true, ..Kept::default() };
        self.upkeep.get_or_init(|| runtime_dir.keep_up(kept));
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(upkeep) = self.upkeep.get() {
            upkeep.abort();
        }
        // No other gateway has this number. The next one removes the file otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the gateway of this epoch runs.
pub fn runs(runtime_dir: &RuntimeDir, epoch: u64) -> bool {
    runtime_dir.is_locked(&lock_name(epoch))
}

fn lock_name(epoch: u64) -> String {
    format!("{GATEWAY}-{epoch}")
}

/// Removes the lock files of killed gateways. The caller holds the lock of starts, so no file is
/// between its creation and its lock.
fn remove_left_locks(runtime_dir: &RuntimeDir) {
    let entries = fs::read_dir(runtime_dir.path()).into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        let name = entry.file_name();
        let epoch = name.to_str().and_then(|name| {
            let digits = name.strip_prefix(GATEWAY)?.strip_prefix('-')?.strip_suffix(".lock")?;
            digits.parse::<u64>().ok().filter(|epoch| epoch.to_string() == digits)
        });
        if epoch.is_some_and(|epoch| !runs(runtime_dir, epoch)) {
            // A file that stays costs nothing.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use paceline_process::Config;

    use super::*;

    fn runtime(dir: &Path) -> RuntimeDir {
        let mut config = Config::default();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("ours");
        config.supervisor.runtime_dir = dir.display().to_string();
        RuntimeDir::locate(&config).expect("a short path")
    }

    fn locks(dir: &RuntimeDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).expect("there");
        let names = entries.map(|entry| entry.expect("fine").file_name().display().to_string());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("gateway-")).collect();
        names.sort();
        names
    }

    #[test]
    fn two_gateways_run_at_once_and_a_start_removes_the_locks_of_killed_ones() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(temp.path());
        fs::write(dir.lock_path("gateway-0"), "1").expect("writable");
        fs::write(dir.lock_path("gateway-x"), "precious").expect("writable");
        let draining = Life::begin(&dir).expect("the first");
        let next = Life::begin(&dir).expect("two may run at once");
        assert_eq!((draining.epoch(), next.epoch()), (1, 2));
        assert_eq!(locks(&dir), ["gateway-1.lock", "gateway-2.lock", "gateway-x.lock"]);
        assert_eq!([0, 1, 2, 3].map(|epoch| runs(&dir, epoch)), [false, true, true, false]);
        drop(draining);
        assert!(!runs(&dir, 1) && runs(&dir, 2));
        drop(next);
        assert_eq!(locks(&dir), ["gateway-x.lock"], "no gateway's file is left");
    }
}
