//! Memory in bytes (I11): free + held + cached = budget. A sequence holds what the class of its
//! positions takes, and what is kept for a drafter, and what its pictures take, beside it; it comes
//! to hold more as it grows, so all running ones together may run out of room, and who gives way
//! then is the scheduler's to say. What the prefix cache holds is given up before anything else.

use std::collections::BTreeMap;

use super::SequenceKey;

/// Memory a sequence cannot have.
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
    /// Longer than any class.
    #[error("needs {positions} positions, the longest sequence has {longest}")]
    TooLong {
        /// Positions asked for.
        positions: usize,
        /// Positions of the largest class.
        longest: usize,
    },
}

/// What a sequence of up to so many positions holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassBytes {
    /// Positions.
    pub positions: usize,
    /// Keys and values.
    pub kv: u64,
    /// Hidden states kept for a drafter.
    pub hidden: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    class: usize,
    kv: u64,
    hidden: u64,
    /// What its pictures take.
    extra: u64,
}

impl Holding {
    fn bytes(&self) -> u64 {
        self.kv + self.hidden + self.extra
    }
}

/// Who holds how much.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    budget: u64,
    classes: Vec<ClassBytes>,
    held: BTreeMap<SequenceKey, Holding>,
    held_bytes: u64,
    /// Of them hidden states.
    hidden_bytes: u64,
    /// What a sequence holds beside its class from when it holds anything; 0 where it is not here.
    extra: BTreeMap<SequenceKey, u64>,
    cached_bytes: u64,
}

impl Ledger {
    /// A ledger over `budget` bytes; `classes` ascending.
    pub fn new(budget: u64, classes: Vec<ClassBytes>) -> Self {
        Self { budget, classes, ..Self::default() }
    }

    /// Bytes in all.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that sequences hold.
    pub fn held(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of hidden states that sequences hold, which are given up before any sequence waits or gives
    /// way.
    pub fn hidden_bytes(&self) -> u64 {
        self.hidden_bytes
    }

    /// Bytes that keys and values may take: all but what is held beside them and the prefix cache.
    pub fn for_kv(&self) -> u64 {
        let others: u64 = self.held.values().map(|held| held.hidden + held.extra).sum();
        self.budget - self.cached_bytes - others
    }

    /// Whether a sequence holds hidden states.
    pub fn holds_hidden(&self, key: SequenceKey) -> bool {
        self.held.get(&key).is_some_and(|held| held.hidden > 0)
    }

    /// Bytes of the prefix cache.
    pub fn cached(&self) -> u64 {
        self.cached_bytes
    }

    /// Bytes nobody holds.
    pub fn free(&self) -> u64 {
        self.budget - self.held_bytes - self.cached_bytes
    }

    /// Share of the budget that sequences hold: what the cache holds presses nobody.
    pub fn pressure(&self) -> f64 {
        self.held_bytes as f64 / self.budget.max(1) as f64
    }

    /// Whether a sequence holds anything.
    pub fn holds(&self, key: SequenceKey) -> bool {
        self.held.contains_key(&key)
    }

    /// Positions a sequence has room for.
    pub fn room_of(&self, key: SequenceKey) -> usize {
        self.held.get(&key).map_or(0, |held| self.classes[held.class].positions)
    }

    /// Whether a sequence of up to so many positions, with so many bytes beside them, could run if
    /// it had all memory for itself.
    ///
    /// # Errors
    /// It could not.
    pub fn could_hold(&self, positions: usize, extra: u64) -> Result<(), LedgerError> {
        let class = self.class_of(positions)?;
        // Without hidden states: they are given up before a sequence is.
        let needed = self.classes[class].kv.saturating_add(extra);
        if needed > self.budget {
            return Err(LedgerError::Never { needed, budget: self.budget });
        }
        Ok(())
    }

    fn class_of(&self, positions: usize) -> Result<usize, LedgerError> {
        let longest = self.classes.last().map_or(0, |class| class.positions);
        self.classes
            .iter()
            .position(|class| class.positions >= positions)
            .ok_or(LedgerError::TooLong { positions, longest })
    }

    /// Bytes that are missing for a sequence to have room for so many positions, with hidden states or
    /// without; 0: there are enough.
    ///
    /// # Errors
    /// No sequence is that long.
    pub fn missing(
        &self,
        key: SequenceKey,
        positions: usize,
        hidden: bool,
    ) -> Result<u64, LedgerError> {
        let has = self.held.get(&key).copied().unwrap_or_default();
        let wants = self.wants(key, positions, hidden)?;
        Ok(wants.bytes().saturating_sub(has.bytes()).saturating_sub(self.free()))
    }

    fn wants(
        &self,
        key: SequenceKey,
        positions: usize,
        hidden: bool,
    ) -> Result<Holding, LedgerError> {
        let class = self.class_of(positions)?.max(self.held.get(&key).map_or(0, |held| held.class));
        let ClassBytes { kv, hidden: hidden_of_class, .. } = self.classes[class];
        let extra = self.extra.get(&key).copied().unwrap_or(0);
        Ok(Holding { class, kv, hidden: if hidden { hidden_of_class } else { 0 }, extra })
    }

    /// What a sequence holds beside its class from when it holds anything. One that holds something
    /// already may give back of it, and never comes to hold more by it.
    pub fn set_extra_bytes(&mut self, key: SequenceKey, bytes: u64) {
        let bytes = self.held.get(&key).map_or(bytes, |held| bytes.min(held.extra));
        if let Some(held) = self.held.get_mut(&key) {
            self.held_bytes -= held.extra - bytes;
            held.extra = bytes;
        }
        match bytes {
            0 => self.extra.remove(&key),
            _ => self.extra.insert(key, bytes),
        };
    }

    /// Gives a sequence room for so many positions; it never shrinks.
    ///
    /// # Errors
    /// Bytes that are missing. Nothing is changed.
    pub fn hold(&mut self, key: SequenceKey, positions: usize, hidden: bool) -> Result<(), u64> {
        // A length no class has was refused when the sequence was admitted.
        match self.missing(key, positions, hidden) {
            Ok(0) => {}
            Ok(missing) => return Err(missing),
            Err(_) => return Err(u64::MAX),
        }
        if let Ok(wants) = self.wants(key, positions, hidden) {
            let had = self.held.insert(key, wants).unwrap_or_default();
            self.held_bytes = self.held_bytes + wants.bytes() - had.bytes();
            self.hidden_bytes = self.hidden_bytes + wants.hidden - had.hidden;
        }
        Ok(())
    }

    /// Returns what a sequence holds; returning twice returns nothing.
    pub fn release(&mut self, key: SequenceKey) -> u64 {
        let held = self.held.remove(&key).unwrap_or_default();
        self.held_bytes -= held.bytes();
        self.hidden_bytes -= held.hidden;
        held.bytes()
    }

    /// Returns what a sequence's hidden states hold.
    pub fn release_hidden(&mut self, key: SequenceKey) -> u64 {
        let bytes = self.held.get_mut(&key).map_or(0, |held| std::mem::take(&mut held.hidden));
        self.held_bytes -= bytes;
        self.hidden_bytes -= bytes;
        bytes
    }

    /// Another drafter reads other layers: what hidden states take of a sequence of up to so many positions.
    /// Whose hidden states were held gives them back; says who that is.
    pub fn set_hidden_bytes(&mut self, bytes: impl Fn(usize) -> u64) -> Vec<SequenceKey> {
        self.classes.iter_mut().for_each(|class| class.hidden = bytes(class.positions));
        let keys: Vec<_> = self.held.keys().copied().collect();
        keys.iter().for_each(|key| _ = self.release_hidden(*key));
        keys
    }

    /// The prefix cache holds so many bytes now.
    ///
    /// # Errors
    /// They are more than there is room for, by so many; nothing is changed.
    pub fn set_cached_bytes(&mut self, bytes: u64) -> Result<(), u64> {
        match (self.held_bytes + bytes).saturating_sub(self.budget) {
            0 => {
                self.cached_bytes = bytes;
                Ok(())
            }
            over => Err(over),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ledger() -> Ledger {
        let class = |positions, kv, hidden| ClassBytes { positions, kv, hidden };
        Ledger::new(
            1_000,
            vec![
                class(256, 80, 20),
                class(512, 160, 40),
                class(1_024, 360, 40),
                class(4_096, 1_600, 40),
            ],
        )
    }

    const A: SequenceKey = SequenceKey(1);
    const B: SequenceKey = SequenceKey(2);

    #[test]
    fn a_sequence_holds_its_class_and_grows_with_it() {
        let mut ledger = ledger();
        assert_eq!(ledger.hold(A, 256, true), Ok(()));
        assert_eq!((ledger.free(), ledger.room_of(A)), (900, 256));
        assert_eq!(ledger.hold(A, 257, true), Ok(()));
        assert_eq!(ledger.hold(A, 10, true), Ok(()), "it never shrinks");
        assert_eq!((ledger.free(), ledger.room_of(A)), (800, 512));
        assert_eq!(ledger.hold(B, 600, false), Ok(()));
        assert_eq!((ledger.free(), ledger.pressure()), (440, 0.56));
        assert_eq!(ledger.hold(SequenceKey(3), 2_000, true), Err(1_640 - 440));
        assert_eq!(
            (ledger.release_hidden(A), ledger.release_hidden(A), ledger.release_hidden(B)),
            (40, 0, 0)
        );
        assert_eq!((ledger.release(A), ledger.release(A), ledger.free()), (160, 0, 640));
    }

    #[test]
    fn what_could_never_be_held_is_refused() {
        let ledger = ledger();
        assert_eq!(ledger.could_hold(1_024, 0), Ok(()));
        assert_eq!(ledger.could_hold(1_024, 640), Ok(()));
        assert_eq!(
            ledger.could_hold(1_024, 641),
            Err(LedgerError::Never { needed: 1_001, budget: 1_000 })
        );
        assert_eq!(
            ledger.could_hold(2_000, 0),
            Err(LedgerError::Never { needed: 1_600, budget: 1_000 })
        );
        assert_eq!(
            ledger.could_hold(5_000, 0),
            Err(LedgerError::TooLong { positions: 5_000, longest: 4_096 })
        );
    }

    #[test]
    fn what_is_held_beside_is_given_back_in_parts_and_held_again() {
        let mut ledger = ledger();
        ledger.set_extra_bytes(A, 300);
        assert_eq!((ledger.held(), ledger.hold(A, 256, true), ledger.held()), (0, Ok(()), 400));
        ledger.set_extra_bytes(A, 50);
        assert_eq!(ledger.held(), 150);
        ledger.set_extra_bytes(A, 300);
        assert_eq!((ledger.held(), ledger.hold(A, 300, true), ledger.held()), (150, Ok(()), 250));
        assert_eq!(ledger.release(A), 250);
        ledger.set_extra_bytes(A, 300);
        assert_eq!((ledger.hold(A, 1_024, true), ledger.held()), (Ok(()), 700));
        assert_eq!(ledger.missing(B, 1_024, false), Ok(60));
    }

    #[test]
    fn the_cache_has_what_sequences_leave() {
        let mut ledger = ledger();
        ledger.hold(A, 1_000, true).expect("room");
        assert_eq!(ledger.set_cached_bytes(700), Err(100));
        assert_eq!(ledger.set_cached_bytes(600), Ok(()));
        assert_eq!((ledger.free(), ledger.pressure()), (0, 0.4));
        assert_eq!(ledger.hold(B, 1, true), Err(100));
        assert_eq!(ledger.set_cached_bytes(500), Ok(()));
        assert_eq!(ledger.hold(B, 1, true), Ok(()));
    }

    proptest! {
        // 250 runs of up to 800 operations: 100,000 of them.
        #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]
        #[test]
        fn free_held_and_cached_are_all(steps in prop::collection::vec((0u64..8, 0usize..5_000, 0u8..8), 0..=800)) {
            let mut ledger = ledger();
            for (key, positions, what) in steps {
                let key = SequenceKey(key);
                let before = (ledger.free(), ledger.held(), ledger.cached());
                let refused = match what {
                    0 => ledger.release(key) == 0,
                    1 if positions % 16 == 0 => {
                        ledger.set_hidden_bytes(|of| of as u64 * 20 / 256 * (positions as u64 / 16 % 3));
                        false
                    }
                    1 => ledger.release_hidden(key) == 0,
                    2 => ledger.set_cached_bytes(positions as u64 / 4).is_err(),
                    3 => {
                        ledger.set_extra_bytes(key, positions as u64 / 8);
                        false
                    }
                    _ => ledger.hold(key, positions, what % 2 == 0).is_err(),
                };
                if refused {
                    prop_assert_eq!((ledger.free(), ledger.held(), ledger.cached()), before);
                }
                prop_assert_eq!(ledger.free() + ledger.held() + ledger.cached(), ledger.budget());
                prop_assert_eq!(ledger.for_kv(), ledger.free() + ledger.held.values().map(|held| held.kv).sum::<u64>());
                prop_assert_eq!(ledger.held.values().map(Holding::bytes).sum::<u64>(), ledger.held());
                prop_assert_eq!(ledger.held.values().map(|held| held.hidden).sum::<u64>(), ledger.hidden_bytes());
            }
            (0..8).for_each(|key| { ledger.release(SequenceKey(key)); });
            prop_assert_eq!(ledger.free() + ledger.cached(), ledger.budget());
        }
    }
}
