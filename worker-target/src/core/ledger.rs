//! KV memory in bytes (I11): free + cached + reserved = budget. A sequence reserves, at admission, what it may come to hold, so that
//! no running sequence can run out of room; `held` is what lies in the store now. Cached is what the prefix cache keeps; it
//! goes for whoever is to be admitted.

use std::collections::BTreeMap;

use super::SequenceKey;

/// A reservation that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// More than there is, ever.
    #[error("needs {needed} bytes of KV memory, the whole budget is {budget}")]
    Never {
        /// Bytes asked for.
        needed: u64,
        /// Bytes in all.
        budget: u64,
    },
    /// More than is free now.
    #[error("needs {needed} bytes of KV memory, {free} are free")]
    NotNow {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Longer than any class.
    #[error("needs {positions} positions, the longest sequence has {longest}")]
    TooLong {
        /// Positions asked for.
        positions: u32,
        /// Positions of the largest class.
        longest: u32,
    },
}

/// Who may hold how much.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    budget: u64,
    /// (positions, bytes), ascending.
    classes: Vec<(u32, u64)>,
    reserved: BTreeMap<SequenceKey, u64>,
    reserved_bytes: u64,
    cached: u64,
}

impl Ledger {
    /// A ledger over `budget` bytes; `classes` is what sequences of up to so many positions hold, ascending.
    pub fn new(budget: u64, classes: Vec<(u32, u64)>) -> Self {
        Self { budget, classes, reserved: BTreeMap::new(), reserved_bytes: 0, cached: 0 }
    }

    /// Bytes in all.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.reserved_bytes).saturating_sub(self.cached)
    }

    /// So many bytes lie in the prefix cache.
    pub fn set_cached(&mut self, bytes: u64) {
        self.cached = bytes;
    }

    /// What sequences of up to so many positions reserve, ascending.
    pub fn classes(&self) -> &[(u32, u64)] {
        &self.classes
    }

    /// Reserves for a sequence of up to `positions` positions.
    ///
    /// # Errors
    /// No room now, or never. Nothing is changed.
    pub fn reserve(&mut self, key: SequenceKey, positions: u32) -> Result<(), LedgerError> {
        let fits = self.classes.iter().find(|class| class.0 >= positions);
        let longest = self.classes.last().map_or(0, |class| class.0);
        let needed = fits.ok_or(LedgerError::TooLong { positions, longest })?.1;
        if needed > self.budget {
            return Err(LedgerError::Never { needed, budget: self.budget });
        }
        if needed > self.free() {
            return Err(LedgerError::NotNow { needed, free: self.free() });
        }
        // A second reservation of the same sequence replaces the first.
        self.give_back(key);
        self.reserved.insert(key, needed);
        self.reserved_bytes += needed;
        Ok(())
    }

    /// Returns a sequence's reservation; returning twice returns nothing.
    pub fn give_back(&mut self, key: SequenceKey) -> u64 {
        let bytes = self.reserved.remove(&key).unwrap_or(0);
        self.reserved_bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ledger() -> Ledger {
        Ledger::new(1000, vec![(256, 100), (512, 200), (1024, 400), (4096, 1600)])
    }

    #[test]
    fn reservations_are_by_class() {
        let mut ledger = ledger();
        assert_eq!(ledger.reserve(SequenceKey(1), 256), Ok(()));
        assert_eq!(ledger.reserve(SequenceKey(2), 257), Ok(()));
        assert_eq!(ledger.free(), 700);
        assert_eq!(ledger.reserve(SequenceKey(3), 5000), Err(LedgerError::TooLong { positions: 5000, longest: 4096 }));
        assert_eq!(ledger.reserve(SequenceKey(3), 2000), Err(LedgerError::Never { needed: 1600, budget: 1000 }));
        assert_eq!(ledger.reserve(SequenceKey(3), 1000), Ok(()));
        assert_eq!(ledger.reserve(SequenceKey(4), 1000), Err(LedgerError::NotNow { needed: 400, free: 300 }));
        assert_eq!(ledger.give_back(SequenceKey(3)), 400);
        assert_eq!(ledger.give_back(SequenceKey(3)), 0);
        assert_eq!(ledger.reserved(), 300);
        ledger.set_cached(550);
        assert_eq!(ledger.reserve(SequenceKey(4), 512), Err(LedgerError::NotNow { needed: 200, free: 150 }));
        ledger.set_cached(500);
        assert_eq!((ledger.reserve(SequenceKey(4), 512), ledger.free()), (Ok(()), 0));
    }

    proptest! {
        #[test]
        fn free_and_reserved_are_all(steps in prop::collection::vec((0u64..8, 0u32..5000, any::<bool>()), 0..200)) {
            let mut ledger = ledger();
            for (key, positions, take) in steps {
                if take {
                    let before = (ledger.free(), ledger.reserved());
                    if ledger.reserve(SequenceKey(key), positions).is_err() {
                        prop_assert_eq!((ledger.free(), ledger.reserved()), before);
                    }
                } else {
                    ledger.give_back(SequenceKey(key));
                }
                prop_assert_eq!(ledger.free() + ledger.reserved(), ledger.budget());
                prop_assert_eq!(ledger.reserved.values().sum::<u64>(), ledger.reserved());
            }
            for key in 0..8 {
                ledger.give_back(SequenceKey(key));
            }
            prop_assert_eq!(ledger.free(), ledger.budget());
        }
    }
}
