//! The boot mark: a small file that survives a reboot and says whether the target was busy. By it a
//! start finds out that the machine went down at work, and uses less memory.
//!
//! ```text
//!  start of the service ─▶ busy ◀── a request runs, or the target loads ──┐
//!                            └── idle for 5 s ──▶ idle ───────────────────┘
//!  ordinary stop: the mark is removed
//! ```
//! A start finds one of these marks:
//! - none, or idle: the KV budget is that of the configuration.
//! - busy, of another boot: the machine went down while the target was busy. The KV budget is
//!   [`REDUCED_PERCENT`] of the configuration's until the service has stopped in order.
//! - busy, of this boot: the service was killed and the machine was not. Nothing changes.
//! - reduced, of this boot: an earlier supervisor of this service reduced the budget, and the target
//!   that it started may still run. The budget stays reduced.
//! - stranded, of this boot: the check of [`crate::worker`] found wired memory that does not come
//!   back. If it is still wired, no worker may be started.
//!
//! Here are the decisions. The shell reads and writes the file.

use paceline_vocabulary::Millis;

/// Percent of the KV budget that is left after the machine went down while the target was busy. The
/// machine leaves no trace of the cause, and memory is the likeliest one. Not measured: large enough
/// to give memory back, and small enough to serve nearly as many requests.
pub const REDUCED_PERCENT: u8 = 80;

/// Time without a request after which the mark is idle. Shorter pauses between two requests write
/// nothing to the disk.
pub const IDLE_MS: u64 = 5_000;

/// What the service has to say to the next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkContent {
    /// A request runs, or the target loads.
    pub busy: bool,
    /// The KV budget of this service is reduced.
    pub reduced: bool,
    /// Wired bytes of the machine above which a worker's memory is stranded; `None`: it is not.
    pub stranded_above_bytes: Option<u64>,
}

/// A mark as a start finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMark {
    /// Identity of the boot in which it was written; empty if the system gave none.
    pub boot: String,
    /// What the earlier service wrote.
    pub content: MarkContent,
}

/// How a service may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// With the configuration's KV budget.
    Full,
    /// With [`REDUCED_PERCENT`] of it.
    Reduced,
    /// Not at all: memory of the machine is stranded.
    Stranded {
        /// Wired bytes of the machine beyond those that were wired before.
        excess_bytes: u64,
    },
}

/// How a service may start in `boot`, by the mark it finds and by the wired bytes of the machine.
/// If a boot has no identity, all boots count as one.
pub fn verdict(found: Option<&FoundMark>, boot: &str, wired_bytes: Option<u64>) -> StartVerdict {
    let Some(FoundMark { boot: earlier, content }) = found else { return StartVerdict::Full };
    let rebooted = !earlier.is_empty() && !boot.is_empty() && earlier != boot;
    if rebooted {
        return if content.busy { StartVerdict::Reduced } else { StartVerdict::Full };
    }
    if let (Some(bound), Some(wired)) = (content.stranded_above_bytes, wired_bytes)
        && wired > bound
    {
        return StartVerdict::Stranded { excess_bytes: wired - bound };
    }
    if content.reduced { StartVerdict::Reduced } else { StartVerdict::Full }
}

/// Decides when the mark is written.
#[derive(Debug)]
pub struct BootMark {
    reduced: bool,
    /// The content of the last write; `None` before the first, and after a write that was not
    /// taken.
    written: Option<MarkContent>,
    /// Since when the service has been idle; `None` while it is busy.
    idle_since: Option<Millis>,
}

impl BootMark {
    /// The mark of a service that begins. `reduced`: with a reduced KV budget.
    pub fn new(reduced: bool) -> Self {
        Self { reduced, written: None, idle_since: None }
    }

    /// Takes the state of the service at `now`; returns what is to be written, if anything.
    /// `busy`: a request runs, or the target loads.
    pub fn observe(
        &mut self,
        busy: bool,
        stranded_above_bytes: Option<u64>,
        now: Millis,
    ) -> Option<MarkContent> {
        let busy = if busy {
            self.idle_since = None;
            true
        } else {
            let since = *self.idle_since.get_or_insert(now);
            let was_busy = self.written.is_some_and(|written| written.busy);
            was_busy && now.since(since) < IDLE_MS
        };
        let content = MarkContent { busy, reduced: self.reduced, stranded_above_bytes };
        (self.written != Some(content)).then(|| *self.written.insert(content))
    }

    /// The last content was not taken: the next observation returns it again.
    pub fn not_taken(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: MarkContent =
        MarkContent { busy: true, reduced: false, stranded_above_bytes: None };
    const IDLE: MarkContent = MarkContent { busy: false, ..BUSY };

    fn found(boot: &str, content: MarkContent) -> Option<FoundMark> {
        Some(FoundMark { boot: boot.to_owned(), content })
    }

    #[test]
    fn only_a_reboot_while_busy_reduces_the_budget() {
        let judged = |mark: Option<FoundMark>| verdict(mark.as_ref(), "b", None);
        assert_eq!(judged(None), StartVerdict::Full);
        assert_eq!(judged(found("a", BUSY)), StartVerdict::Reduced);
        assert_eq!(judged(found("a", IDLE)), StartVerdict::Full);
        assert_eq!(judged(found("b", BUSY)), StartVerdict::Full, "it was killed");
        assert_eq!(judged(found("", BUSY)), StartVerdict::Full, "the boot is not known");
        assert_eq!(verdict(found("a", BUSY).as_ref(), "", None), StartVerdict::Full);
    }

    #[test]
    fn a_reduced_budget_stays_reduced_within_the_boot_only() {
        let reduced = MarkContent { reduced: true, ..IDLE };
        assert_eq!(verdict(found("a", reduced).as_ref(), "a", None), StartVerdict::Reduced);
        assert_eq!(verdict(found("a", reduced).as_ref(), "b", None), StartVerdict::Full);
    }

    #[test]
    fn stranded_memory_prevents_a_start_until_it_comes_back_or_the_machine_restarts() {
        let stranded = found("a", MarkContent { stranded_above_bytes: Some(100), ..IDLE });
        let judged = |boot: &str, wired| verdict(stranded.as_ref(), boot, wired);
        assert_eq!(judged("a", Some(130)), StartVerdict::Stranded { excess_bytes: 30 });
        assert_eq!(judged("a", Some(100)), StartVerdict::Full);
        assert_eq!(judged("a", None), StartVerdict::Full, "the system does not say");
        assert_eq!(judged("b", Some(130)), StartVerdict::Full);
    }

    #[test]
    fn the_mark_is_written_at_the_first_request_and_after_five_idle_seconds() {
        let mut mark = BootMark::new(false);
        let mut written = vec![];
        // Loading, idle, requests with pauses of 4 s, and a long pause.
        let busy_at =
            |second: u64| second < 2 || (10..30).contains(&second) && second.is_multiple_of(4);
        for ms in (0..60_000).step_by(500) {
            if let Some(content) = mark.observe(busy_at(ms / 1_000), None, Millis(ms)) {
                written.push((ms, content));
            }
        }
        // The last busy observation is the one at 28.5 s.
        assert_eq!(written, [(0, BUSY), (7_000, IDLE), (12_000, BUSY), (34_000, IDLE)]);
    }

    #[test]
    fn a_mark_that_was_not_taken_is_given_again() {
        let mut mark = BootMark::new(true);
        let busy = MarkContent { reduced: true, ..BUSY };
        assert_eq!(mark.observe(true, None, Millis(0)), Some(busy));
        assert_eq!(mark.observe(true, None, Millis(1)), None);
        mark.not_taken();
        assert_eq!(mark.observe(true, None, Millis(2)), Some(busy));
        let stranded = MarkContent { stranded_above_bytes: Some(7), ..busy };
        assert_eq!(mark.observe(true, Some(7), Millis(3)), Some(stranded));
    }
}
