//! The machine's wired memory, and the part of it that is stranded.

/// Share of the machine's memory below which growth counts as noise: 2 %. Other programs wire and
/// release memory all the time. Not measured on a Mac yet.
const TOLERANCE_SHARE: u64 = 50;

/// Wired memory of the machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WiredReading {
    /// Bytes that the system can neither move nor compress.
    pub wired_bytes: u64,
    /// All bytes of the machine.
    pub machine_bytes: u64,
    /// Bytes that our living workers hold, by their last reports.
    pub others_bytes: u64,
}

impl WiredReading {
    /// Growth that proves nothing.
    pub(super) fn tolerance_bytes(&self) -> u64 {
        self.machine_bytes / TOLERANCE_SHARE
    }

    /// Bytes that are stranded now by a process that held `held_bytes`; 0: none.
    pub(super) fn stranded_bytes(&self, held_bytes: u64, now: &Self) -> u64 {
        let tolerance = self.tolerance_bytes();
        let by_others = now.others_bytes.saturating_sub(self.others_bytes);
        let growth = now.wired_bytes.saturating_sub(self.wired_bytes).saturating_sub(by_others);
        let may_be_its_own = growth <= held_bytes.saturating_add(tolerance)
            || growth.saturating_sub(now.others_bytes) > tolerance;
        if growth > tolerance && may_be_its_own { growth } else { 0 }
    }
}

/// What happened, and what returns the memory.
pub fn stranded_sentence(stranded_bytes: u64) -> String {
    let gib = stranded_bytes as f64 / f64::from(1 << 30);
    format!(
        "{gib:.1} GiB of the machine's memory stay wired after a worker was killed; only a restart of the machine returns them"
    )
}

#[cfg(test)]
pub(super) const GIB: u64 = 1 << 30;

/// A reading of a machine with 100 GiB, in GiB.
#[cfg(test)]
pub(super) fn reading(wired: u64, others: u64) -> WiredReading {
    let (wired_bytes, others_bytes) = (wired * GIB, others * GIB);
    WiredReading { wired_bytes, machine_bytes: 100 * GIB, others_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GiB that are stranded after these two readings, for a process that held
    /// `held` GiB.
    fn stranded(before: WiredReading, held: u64, now: WiredReading) -> u64 {
        before.stranded_bytes(held * GIB, &now) / GIB
    }

    #[test]
    fn growth_above_two_percent_of_the_machine_is_stranded() {
        let before = reading(5, 0);
        assert_eq!(stranded(before, 40, reading(7, 0)), 0, "2 % exactly");
        assert_eq!(stranded(before, 40, reading(8, 0)), 3);
        assert_eq!(stranded(before, 40, reading(45, 0)), 40);
        assert_eq!(stranded(before, 40, reading(3, 0)), 0);
        // Another program wired memory as well. The machine has none for another start either way.
        assert_eq!(stranded(before, 40, reading(55, 0)), 50);
    }

    #[test]
    fn memory_of_living_workers_is_not_stranded() {
        // The target wired 40 GiB that it held, idle, when its drafter was started.
        let before = reading(5, 40);
        assert_eq!(stranded(before, 4, reading(45, 40)), 0);
        // The target's KV grew by 3 GiB.
        let before = reading(45, 40);
        assert_eq!(stranded(before, 4, reading(48, 43)), 0);
        // The drafter's own 4 GiB stay.
        assert_eq!(stranded(before, 4, reading(49, 40)), 4);
        // A drafter that runs does not hide what its target left.
        assert_eq!(stranded(reading(5, 0), 40, reading(49, 4)), 40);
    }

    #[test]
    fn the_sentence_says_how_much_and_what_returns_it() {
        let sentence = stranded_sentence(GIB * 25 / 2);
        assert!(sentence.starts_with("12.5 GiB") && sentence.contains("only a restart"));
    }
}
