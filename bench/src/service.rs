//! The service that is measured: its drafter is stopped and started as a mode needs it, and the
//! memory of its workers is watched.

use std::cell::Cell;

use paceline_client::own_service::OwnService;
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::{ProcessStatus, StatusResponse};
use paceline_system::platform::peak_memory_bytes;
use serde::Serialize;

use crate::mode::Mode;

/// A service that is measured.
pub struct MeasuredService {
    /// The service that the measurement starts and stops.
    pub own: OwnService,
    /// Status of the service when it became ready.
    pub status: StatusResponse,
    /// Whether a drafter was linked then.
    pub drafter: bool,
    /// Whether the drafter runs now.
    drafts: Cell<bool>,
    peak: Cell<PeakMemory>,
}

impl MeasuredService {
    /// Waits until the service can be measured.
    ///
    /// # Errors
    /// It cannot become ready, or hangs.
    pub async fn ready(own: OwnService, screen: &mut Screen) -> Result<Self, Failure> {
        let (status, drafter) = own.until_ready(|what| screen.note(what)).await?;
        let peak = Cell::new(PeakMemory::of(&status));
        Ok(Self { own, status, drafter, drafts: Cell::new(drafter), peak })
    }

    /// Stops or starts the drafter as the mode needs it; returns when it is so.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn change(&self, mode: Mode) -> Result<(), Failure> {
        let wanted = match mode {
            Mode::Absent => false,
            Mode::Plain => self.drafts.get(),
            Mode::Forced | Mode::Routed => true,
        };
        // In the forced mode the start is requested each time, because the service may have stopped
        // the drafter meanwhile. A start of a drafter that runs changes nothing. In the routed mode
        // such a stop is part of what is measured.
        if wanted == self.drafts.get() && mode != Mode::Forced {
            return Ok(());
        }
        let outcome = match wanted {
            true => self.own.start_drafter(String::new()).await,
            false => {
                // Its high-water mark ends with the process.
                self.peak().await;
                self.own.stop_drafter().await
            }
        };
        outcome.map_err(|status| Failure::refused(&status))?;
        self.drafts.set(wanted);
        Ok(())
    }

    /// The most memory that each worker has held until now.
    pub async fn peak(&self) -> PeakMemory {
        if let Some(status) = self.own.snapshot().await {
            self.peak.set(self.peak.get().max(PeakMemory::of(&status)));
        }
        self.peak.get()
    }
}

/// The most memory that the workers held, in bytes: high-water marks of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeakMemory {
    /// Of the target's process. `None` if the system does not tell.
    pub target_bytes: Option<u64>,
    /// Of the drafter's process with the most. `None` without a drafter.
    pub drafter_bytes: Option<u64>,
}

impl PeakMemory {
    fn of(status: &StatusResponse) -> Self {
        let peak = |process: &Option<ProcessStatus>| {
            let pid = process.as_ref().map(|process| process.pid).filter(|pid| *pid != 0)?;
            peak_memory_bytes(pid)
        };
        Self { target_bytes: peak(&status.target), drafter_bytes: peak(&status.drafter) }
    }

    fn max(self, other: Self) -> Self {
        Self {
            target_bytes: self.target_bytes.max(other.target_bytes),
            drafter_bytes: self.drafter_bytes.max(other.drafter_bytes),
        }
    }

    /// Sum over both workers.
    pub fn sum(self) -> Option<u64> {
        self.target_bytes.map(|target| target + self.drafter_bytes.unwrap_or(0))
    }

    /// The line of a report; empty if nothing is known.
    pub fn line(self) -> String {
        let worker = |name, held: Option<u64>| Some(format!("{name} {}", bytes(held?)));
        let workers = [worker("target", self.target_bytes), worker("drafter", self.drafter_bytes)];
        let known: Vec<String> = workers.into_iter().flatten().collect();
        match known.is_empty() {
            true => String::new(),
            false => format!(
                "peak memory: {} (the most that each worker held, from its start on)\n",
                known.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_that_of_the_process_with_the_most() {
        let peak = |target_bytes, drafter_bytes| PeakMemory { target_bytes, drafter_bytes };
        let found = peak(Some(2 << 20), None).max(peak(Some(1 << 20), Some(512)));
        assert_eq!(found, peak(Some(2 << 20), Some(512)));
        assert_eq!(found.sum(), Some((2 << 20) + 512));
        let line = "peak memory: target 2.0 MiB, drafter 512 B (the most that each worker held, from its start on)\n";
        assert_eq!(found.line(), line);
        assert_eq!((peak(None, None).line(), peak(None, None).sum()), (String::new(), None));
    }

    #[test]
    fn only_processes_that_run_have_a_peak() {
        let process = |pid| Some(ProcessStatus { pid, ..ProcessStatus::default() });
        let status = StatusResponse {
            target: process(std::process::id()),
            drafter: process(0),
            ..StatusResponse::default()
        };
        let found = PeakMemory::of(&status);
        assert!(found.target_bytes.is_some_and(|bytes| bytes > 1 << 20), "{found:?}");
        assert_eq!(found.drafter_bytes, None);
    }
}
