//! Upkeep of the runtime directory: each process looks every second whether its own entries are
//! there, and makes anew what a cleaner removed. Sockets look after themselves
//! ([`crate::socket::accept_unix`]).

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Lock, RuntimeDir, RuntimeDirError, WorkerRecord};
use crate::config::Setting;
use crate::{chain, task};

/// Pause between two looks at the directory: a few calls of the system each. A service that was
/// cleaned away is complete again before a person has found out.
pub(crate) const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Entries of the runtime directory that a process keeps, beside its counters and sockets.
#[derive(Debug, Default)]
pub struct Kept {
    /// Names of the locks that the process holds.
    pub locks: Vec<String>,
    /// Name and record of the process, if it is a worker.
    pub record: Option<(String, WorkerRecord)>,
    /// Name of the process, and what it was started with, if that is for others to know.
    pub settings: Option<(String, Vec<Setting>)>,
    /// Whether the folder of images is kept.
    pub images: bool,
}

impl RuntimeDir {
    /// Makes the entries of this process anew, whenever they are gone, until the task is aborted.
    pub fn keep_up(&self, kept: Kept) -> JoinHandle<()> {
        let dir = self.clone();
        if let Some((process, settings)) = &kept.settings {
            dir.note_settings(process, settings);
        }
        task::spawn("upkeep", async move {
            let (mut held, mut failed) = (vec![], false);
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                let outcome = dir.restore(&kept, &mut held);
                if let Err(error) = &outcome
                    && !failed
                {
                    let error = chain(error);
                    tracing::warn!(error, "an entry of the runtime directory cannot be made anew");
                }
                failed = outcome.is_err();
            }
        })
    }

    /// Makes what is missing. `held` gets the locks that are taken anew.
    pub(super) fn restore(&self, kept: &Kept, held: &mut Vec<Lock>) -> Result<(), RuntimeDirError> {
        self.prepare()?;
        for what in &kept.locks {
            if !self.lock_path(what).exists() {
                tracing::warn!(lock = what, "a lock was removed and is taken again");
                held.push(self.lock(what)?);
            }
        }
        if let Some((name, record)) = &kept.record
            && self.record(name).is_none()
        {
            tracing::warn!(name, "the record of this process was removed and is written again");
            self.write_record(name, record)?;
        }
        if let Some((process, settings)) = &kept.settings
            && !self.used_settings_path(process).exists()
        {
            self.note_settings(process, settings);
        }
        if kept.images {
            super::private_dir(&self.images())?;
        }
        self.restore_counts()
    }
}
