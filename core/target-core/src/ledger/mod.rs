//! Memory in bytes (I11): free + held + cached = budget. A sequence holds the keys and values of
//! its class of positions (with the states of recurrent layers), its hidden states for a drafter,
//! extra bytes for its images, and the tape of the rows that were drafted for it in the last step.
//! It holds more as it grows, so all running sequences together may run out of memory. The scheduler
//! then decides which one is preempted. The prefix cache is evicted first.
//!
//! A sequence grows into its next class layer by layer. The step that does so needs some memory
//! beside the new class, which has to be free in that step and is held by no sequence.

mod invariants;

use std::collections::BTreeMap;

use super::SequenceKey;

/// Memory a sequence cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// More than there is, ever.
    #[error("needs {needed} bytes of KV memory, the whole budget is {budget}")]
    Never {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes in all.
        budget: u64,
    },
    /// Longer than any class.
    #[error("needs {positions} positions, the longest sequence has {longest}")]
    TooLong {
        /// Positions that it needs.
        positions: usize,
        /// Positions of the largest class.
        longest: usize,
    },
}

/// Bytes of a sequence of up to `positions` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassBytes {
    /// Positions.
    pub positions: usize,
    /// Keys and values, and states of recurrent layers.
    pub kv: u64,
    /// Hidden states for a drafter.
    pub hidden: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    class: usize,
    kv: u64,
    hidden: u64,
    /// Bytes of its images.
    extra: u64,
    /// Bytes of its tape.
    tape: u64,
}

impl Holding {
    fn bytes(&self) -> u64 {
        self.kv + self.hidden + self.extra + self.tape
    }
}

/// The bytes that each sequence holds.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    budget: u64,
    classes: Vec<ClassBytes>,
    held: BTreeMap<SequenceKey, Holding>,
    held_bytes: u64,
    /// The part of `held_bytes` that is hidden states.
    hidden_bytes: u64,
    /// Bytes that a sequence holds in addition to its class, once it holds anything; 0 if absent.
    extra: BTreeMap<SequenceKey, u64>,
    cached_bytes: u64,
    /// Bytes of a drafted row on the tapes of all recurrent layers; 0 without such layers.
    tape_row_bytes: u64,
    /// Bytes for each position of the old class that a growth takes for a moment.
    growth_row_bytes: u64,
    /// Bytes that a growth takes for a moment whatever the old class is.
    growth_least_bytes: u64,
    /// Most bytes that a growth takes in the step that is being chosen. Growths come one after
    /// another, so the largest one counts.
    growing: u64,
}

impl Ledger {
    /// A ledger over `budget` bytes; `classes` ascending.
    pub fn new(budget: u64, classes: Vec<ClassBytes>) -> Self {
        Self { budget, classes, ..Self::default() }
    }

    /// Sets the bytes that recurrent layers write on their tapes for a drafted row.
    pub fn with_tape_row_bytes(self, tape_row_bytes: u64) -> Self {
        Self { tape_row_bytes, ..self }
    }

    /// Sets the bytes that the growth of a sequence into a larger class takes for a moment: `row`
    /// for each position of its class, and `least` if that is less.
    pub fn with_growth_bytes(self, row: u64, least: u64) -> Self {
        Self { growth_row_bytes: row, growth_least_bytes: least, ..self }
    }

    /// Begins another step: the growths of the one before are over.
    pub fn begin_step(&mut self) {
        self.growing = 0;
        self.assert_sums();
    }

    /// Bytes in all.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that sequences hold.
    pub fn held(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of hidden states that sequences hold. They are released before any sequence waits or
    /// is preempted.
    pub fn hidden_bytes(&self) -> u64 {
        self.hidden_bytes
    }

    /// Bytes that keys and values may take: the budget without the cache and without other held
    /// bytes.
    pub fn for_kv(&self) -> u64 {
        let others: u64 = self.held.values().map(|held| held.bytes() - held.kv).sum();
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

    /// Bytes that are not held.
    pub fn free(&self) -> u64 {
        self.budget - self.held_bytes - self.cached_bytes
    }

    /// Share of the budget that sequences hold. The prefix cache does not count: it is evictable.
    pub fn pressure(&self) -> f64 {
        self.held_bytes as f64 / self.budget.max(1) as f64
    }

    /// Whether a sequence holds anything.
    pub fn holds(&self, key: SequenceKey) -> bool {
        self.held.contains_key(&key)
    }

    /// Positions for which a sequence holds memory.
    pub fn room_of(&self, key: SequenceKey) -> usize {
        self.held.get(&key).map_or(0, |held| self.classes[held.class].positions)
    }

    /// Whether a sequence of these positions and extra bytes could run if it had all memory.
    ///
    /// # Errors
    /// It could not.
    pub fn could_hold(&self, positions: usize, extra: u64) -> Result<(), LedgerError> {
        let class = self.class_of(positions)?;
        // Without hidden states, because they are released first.
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

    /// Bytes that are missing for `positions` positions of a sequence; 0 if they fit. `hidden`:
    /// with hidden states.
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
        if wants.bytes() <= has.bytes() {
            return Ok(0);
        }
        // A sequence that takes nearly the whole budget grows with what is left of it.
        let growing = self.growing_with(key, &wants).min(self.budget.saturating_sub(wants.bytes()));
        let more = (wants.bytes() + growing).saturating_sub(has.bytes());
        Ok(more.saturating_sub(self.free()))
    }

    /// Most bytes that a growth of this step takes, if a sequence gets the class of `wants` in it.
    fn growing_with(&self, key: SequenceKey, wants: &Holding) -> u64 {
        match self.held.get(&key) {
            Some(has) if has.class < wants.class => {
                let positions = self.classes[has.class].positions as u64;
                let growth = (positions * self.growth_row_bytes).max(self.growth_least_bytes);
                self.growing.max(growth)
            }
            // Memory that it gets for other reasons leaves what growths of this step take.
            _ => self.growing,
        }
    }

    fn wants(
        &self,
        key: SequenceKey,
        positions: usize,
        hidden: bool,
    ) -> Result<Holding, LedgerError> {
        let Holding { class, tape, .. } = self.held.get(&key).copied().unwrap_or_default();
        let class = self.class_of(positions)?.max(class);
        let ClassBytes { kv, hidden: hidden_of_class, .. } = self.classes[class];
        let extra = self.extra.get(&key).copied().unwrap_or(0);
        Ok(Holding { class, kv, hidden: if hidden { hidden_of_class } else { 0 }, extra, tape })
    }

    /// Gives a sequence that holds memory a tape of `rows` drafted rows, in place of the one that
    /// it has.
    ///
    /// # Errors
    /// The bytes that are missing. Nothing is changed then.
    pub fn hold_tape(&mut self, key: SequenceKey, rows: usize) -> Result<(), u64> {
        let bytes = rows as u64 * self.tape_row_bytes;
        let free = self.free().saturating_sub(self.growing);
        let Some(held) = self.held.get_mut(&key) else { return Err(u64::MAX) };
        match bytes.saturating_sub(held.tape).saturating_sub(free) {
            0 => {
                self.held_bytes = self.held_bytes + bytes - held.tape;
                held.tape = bytes;
                self.assert_bounds();
                Ok(())
            }
            missing => Err(missing),
        }
    }

    /// Shortens the tapes of all sequences to at most `rows` rows each.
    pub fn shrink_tapes(&mut self, rows: impl Fn(SequenceKey) -> usize) {
        for (key, held) in self.held.iter_mut().filter(|(_, held)| held.tape > 0) {
            let bytes = held.tape.min(rows(*key) as u64 * self.tape_row_bytes);
            self.held_bytes -= held.tape - bytes;
            held.tape = bytes;
        }
        self.assert_sums();
    }

    /// Sets the bytes that a sequence holds in addition to its class, once it holds anything. A
    /// sequence that already holds memory may release some of it so, and never gets more.
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
        self.assert_bounds();
    }

    /// Gives a sequence memory for `positions` positions. It never shrinks.
    ///
    /// # Errors
    /// The bytes that are missing. Nothing is changed then.
    pub fn hold(&mut self, key: SequenceKey, positions: usize, hidden: bool) -> Result<(), u64> {
        // A length beyond all classes was refused when the sequence arrived.
        match self.missing(key, positions, hidden) {
            Ok(0) => {}
            Ok(missing) => return Err(missing),
            Err(_) => return Err(u64::MAX),
        }
        if let Ok(wants) = self.wants(key, positions, hidden) {
            self.growing = self.growing_with(key, &wants);
            let had = self.held.insert(key, wants).unwrap_or_default();
            self.held_bytes = self.held_bytes + wants.bytes() - had.bytes();
            self.hidden_bytes = self.hidden_bytes + wants.hidden - had.hidden;
        }
        self.assert_bounds();
        Ok(())
    }

    /// Releases the memory of a sequence and returns the bytes; 0 if it holds none.
    pub fn release(&mut self, key: SequenceKey) -> u64 {
        let held = self.held.remove(&key).unwrap_or_default();
        self.held_bytes -= held.bytes();
        self.hidden_bytes -= held.hidden;
        self.assert_bounds();
        held.bytes()
    }

    /// Releases the hidden states of a sequence and returns the bytes.
    pub fn release_hidden(&mut self, key: SequenceKey) -> u64 {
        let bytes = self.held.get_mut(&key).map_or(0, |held| std::mem::take(&mut held.hidden));
        self.held_bytes -= bytes;
        self.hidden_bytes -= bytes;
        self.assert_bounds();
        bytes
    }

    /// Sets the bytes of hidden states by the positions of a sequence, because another drafter uses
    /// other layers. Releases those that are held, and returns their sequences.
    pub fn set_hidden_bytes(&mut self, bytes: impl Fn(usize) -> u64) -> Vec<SequenceKey> {
        self.classes.iter_mut().for_each(|class| class.hidden = bytes(class.positions));
        let keys: Vec<_> = self.held.keys().copied().collect();
        keys.iter().for_each(|key| _ = self.release_hidden(*key));
        self.assert_sums();
        keys
    }

    /// Sets the bytes of the prefix cache.
    ///
    /// # Errors
    /// The bytes that are missing. Nothing is changed then.
    pub fn set_cached_bytes(&mut self, bytes: u64) -> Result<(), u64> {
        match (self.held_bytes + bytes).saturating_sub(self.budget) {
            0 => {
                self.cached_bytes = bytes;
                self.assert_bounds();
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

    pub(super) fn ledger() -> Ledger {
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

    pub(super) const A: SequenceKey = SequenceKey(1);
    pub(super) const B: SequenceKey = SequenceKey(2);

    #[test]
    fn a_sequence_holds_the_bytes_of_its_class_and_never_shrinks() {
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
    fn a_sequence_that_could_never_run_is_refused() {
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
    fn extra_bytes_are_released_in_parts_and_held_again() {
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
    fn the_tape_of_a_step_is_held_until_the_next_one() {
        let mut ledger = ledger().with_tape_row_bytes(30);
        assert_eq!(ledger.hold_tape(A, 1), Err(u64::MAX), "it holds nothing");
        ledger.hold(A, 256, true).expect("room");
        ledger.hold(B, 1_024, true).expect("room");
        assert_eq!((ledger.hold_tape(A, 4), ledger.free(), ledger.for_kv()), (Ok(()), 380, 820));
        // Its own tape is replaced: 450 of 380 and 120 bytes.
        assert_eq!((ledger.hold_tape(A, 15), ledger.free()), (Ok(()), 50));
        assert_eq!((ledger.hold_tape(B, 2), ledger.free()), (Err(10), 50));
        assert_eq!(ledger.hold(A, 300, true), Err(50), "positions come beside the tape");
        ledger.shrink_tapes(|key| if key == A { 3 } else { 0 });
        assert_eq!((ledger.free(), ledger.hold_tape(B, 7)), (410, Ok(())));
        assert_eq!((ledger.release(A), ledger.release(B), ledger.free()), (190, 610, 1_000));
    }

    #[test]
    fn a_growth_takes_at_least_what_it_takes_whatever_the_class_is() {
        let missing = |row, least| {
            let mut ledger = ledger().with_growth_bytes(row, least);
            ledger.hold(A, 256, false).expect("room");
            ledger.hold(B, 512, false).expect("room");
            ledger.missing(A, 1_024, false).expect("a class")
        };
        // Free are 760 bytes. The next class takes 280 more, and 256 positions a byte each.
        assert_eq!([missing(1, 100), missing(1, 500)], [0, 20]);
    }

    #[test]
    fn the_step_in_which_a_sequence_grows_has_memory_for_the_growth() {
        let mut ledger = ledger().with_growth_bytes(1, 0).with_tape_row_bytes(30);
        ledger.hold(A, 256, false).expect("room");
        ledger.hold(B, 256, false).expect("a first class is no growth");
        assert_eq!(ledger.free(), 840);
        // 160 bytes in place of 80, and 256 for the moment.
        assert_eq!((ledger.set_cached_bytes(600), ledger.missing(A, 512, false)), (Ok(()), Ok(96)));
        assert_eq!(ledger.hold(A, 512, false), Err(96));
        assert_eq!((ledger.set_cached_bytes(504), ledger.hold(A, 512, false)), (Ok(()), Ok(())));
        assert_eq!((ledger.held(), ledger.free()), (240, 256), "the moment is not held");
        // The same step has no other use for these bytes; another growth uses them after the first.
        assert_eq!(ledger.hold_tape(A, 1), Err(30));
        assert_eq!(ledger.missing(SequenceKey(3), 256, false), Ok(80));
        assert_eq!(ledger.missing(B, 512, false), Ok(80));
        ledger.begin_step();
        assert_eq!((ledger.hold_tape(A, 1), ledger.free()), (Ok(()), 226));
        // Alone in a budget that its next class nearly fills, it still grows.
        ledger.set_cached_bytes(0).expect("less");
        ledger.release(B);
        let mut all = Ledger::new(1_700, ledger.classes.clone()).with_growth_bytes(1, 0);
        all.hold(A, 1_024, false).expect("room");
        assert_eq!((all.missing(A, 4_096, false), all.hold(A, 4_096, false)), (Ok(0), Ok(())));
    }

    #[test]
    fn the_cache_may_use_what_sequences_leave() {
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
        fn free_held_and_cached_add_up_to_the_budget(
            steps in prop::collection::vec((0u64..8, 0usize..5_000, 0u8..11), 0..=800)
        ) {
            let mut ledger = ledger().with_tape_row_bytes(7).with_growth_bytes(1, 0);
            for (key, positions, what) in steps {
                let key = SequenceKey(key);
                let before = (ledger.free(), ledger.held(), ledger.cached());
                let refused = match what {
                    0 => ledger.release(key) == 0,
                    1 if positions % 16 == 0 => {
                        let times = positions as u64 / 16 % 3;
                        ledger.set_hidden_bytes(|of| of as u64 * 20 / 256 * times);
                        false
                    }
                    1 => ledger.release_hidden(key) == 0,
                    2 => ledger.set_cached_bytes(positions as u64 / 4).is_err(),
                    3 => {
                        ledger.set_extra_bytes(key, positions as u64 / 8);
                        false
                    }
                    8 => ledger.hold_tape(key, positions % 16).is_err(),
                    10 => {
                        ledger.begin_step();
                        false
                    }
                    9 => {
                        ledger.shrink_tapes(|other| if other == key { positions % 16 } else { 0 });
                        false
                    }
                    _ => ledger.hold(key, positions, what % 2 == 0).is_err(),
                };
                if refused {
                    prop_assert_eq!((ledger.free(), ledger.held(), ledger.cached()), before);
                }
                prop_assert_eq!(ledger.free() + ledger.held() + ledger.cached(), ledger.budget());
                let held = ledger.held.values();
                let kv = held.clone().map(|held| held.kv).sum::<u64>();
                prop_assert_eq!(ledger.for_kv(), ledger.free() + kv);
                prop_assert_eq!(held.clone().map(Holding::bytes).sum::<u64>(), ledger.held());
                let hidden = held.map(|held| held.hidden).sum::<u64>();
                prop_assert_eq!(hidden, ledger.hidden_bytes());
            }
            (0..8).for_each(|key| { ledger.release(SequenceKey(key)); });
            prop_assert_eq!(ledger.free() + ledger.cached(), ledger.budget());
        }
    }
}
