//! Which sequences have memory.
//!
//! The algorithm: a sequence begins when its present rows fit, and grows from class to class.
//! If memory is short, it is freed in this order:
//!
//! 1. the prefix cache, as much as is missing;
//! 2. hidden states of sequences, and with them their drafts, the youngest sequence first;
//! 3. for a sequence that grows, not for one that begins: all memory of the youngest sequence. It
//!    is preempted: its rows are recomputed from its tokens when there is room.
//!
//! The oldest sequence is never preempted and could run alone, so some sequence always completes.

use super::{Preempted, Scheduler, Started};
use crate::{Draft, Phase, SequenceKey};

/// Positions beyond its own that must fit before a preempted sequence begins again. With less room
/// it would soon be preempted once more.
const RESTART_POSITIONS: usize = 64;
/// Share of the budget that must be free before a sequence's hidden states are retained again.
const SPARE_SHARE: f64 = 0.25;

impl Scheduler {
    /// Gives memory to waiting sequences, in the order of their arrival. Returns those that have
    /// memory now. `evict` as in [`Scheduler::next_step`].
    pub fn start(&mut self, mut evict: impl FnMut(u64) -> u64) -> Started {
        let mut started = Started::default();
        for key in self.keys(|sequence| sequence.phase == Phase::Waiting) {
            if self.ledger.holds(key) {
                continue;
            }
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            let ahead = if sequence.preemptions > 0 { RESTART_POSITIONS } else { 1 };
            let positions = (sequence.ids.len() + ahead).min(sequence.most_positions());
            sequence.retains_hidden = true;
            if !self.has_room(key, positions, &mut evict) {
                self.forget_hidden(key);
                let lost = &mut started.lost_hidden;
                if !self.make_room_from_hidden(key, positions, &mut evict, lost) {
                    break;
                }
            }
            if self.ledger.hold(key, positions, self.retains_hidden(key)).is_err() {
                break;
            }
            started.keys.push(key);
        }
        if started == Started::default()
            && self.keys(|sequence| sequence.phase == Phase::Waiting).is_empty()
        {
            self.retain_hidden_again();
        }
        self.assert_invariants();
        started
    }

    /// Sequences that have memory and no rows yet.
    pub fn unread(&self) -> Vec<SequenceKey> {
        self.keys(|sequence| sequence.phase == Phase::Waiting)
            .into_iter()
            .filter(|key| self.ledger.holds(*key))
            .collect()
    }

    /// The first `rows` rows of a sequence came from the prefix cache.
    pub fn found(&mut self, key: SequenceKey, rows: usize) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.found(rows);
        }
    }

    /// The prefix cache holds `bytes` now.
    ///
    /// # Errors
    /// The bytes that are missing.
    pub fn set_cached_bytes(&mut self, bytes: u64) -> Result<(), u64> {
        self.prefix_bytes = bytes;
        self.count_cached()
    }

    /// Tells the ledger what is evictable: the prefix cache, and image features that no sequence
    /// needs now. Features are evicted first.
    pub(super) fn count_cached(&mut self) -> Result<(), u64> {
        self.ledger.set_cached_bytes(self.prefix_bytes + self.tower.evictable_bytes()).or_else(
            |over| {
                self.tower.evict(over);
                self.ledger.set_cached_bytes(self.prefix_bytes + self.tower.evictable_bytes())
            },
        )
    }

    fn retains_hidden(&self, key: SequenceKey) -> bool {
        self.sequences.get(&key).is_some_and(|sequence| sequence.retains_hidden)
    }

    /// Whether `positions` positions of a sequence fit. Evicts from the prefix cache for them, and
    /// takes nothing from other sequences.
    pub(super) fn has_room(
        &mut self,
        key: SequenceKey,
        positions: usize,
        evict: &mut impl FnMut(u64) -> u64,
    ) -> bool {
        let hidden = self.retains_hidden(key);
        let missing = self.ledger.missing(key, positions, hidden).unwrap_or(u64::MAX);
        // If the whole cache is too small, it stays.
        if missing == 0 || missing > self.ledger.cached() {
            return missing == 0;
        }
        self.evict(missing, evict);
        self.ledger.missing(key, positions, hidden) == Ok(0)
    }

    /// [`Scheduler::has_room`] that also releases hidden states of other sequences, the youngest
    /// first, and adds them to `lost`. Releases none if all of them are too few.
    fn make_room_from_hidden(
        &mut self,
        key: SequenceKey,
        positions: usize,
        evict: &mut impl FnMut(u64) -> u64,
        lost: &mut Vec<SequenceKey>,
    ) -> bool {
        if self.has_room(key, positions, evict) {
            return true;
        }
        let missing = self.ledger.missing(key, positions, false).unwrap_or(u64::MAX);
        if missing > self.ledger.cached() + self.ledger.hidden_bytes() {
            return false;
        }
        self.evict(missing.min(self.ledger.cached()), evict);
        while let Some(young) = self.youngest(|scheduler, key| scheduler.ledger.holds_hidden(key)) {
            self.forget_hidden(young);
            lost.push(young);
            if self.has_room(key, positions, evict) {
                return true;
            }
        }
        false
    }

    /// Gives a sequence memory for the tape of a block. Evicts from the prefix cache for it, and
    /// takes nothing from other sequences. Returns false if there is not enough.
    pub(super) fn hold_tape(
        &mut self,
        key: SequenceKey,
        drafted: usize,
        evict: &mut impl FnMut(u64) -> u64,
    ) -> bool {
        let Err(missing) = self.ledger.hold_tape(key, drafted) else { return true };
        if missing > self.ledger.cached() {
            return false;
        }
        self.evict(missing, evict);
        self.ledger.hold_tape(key, drafted).is_ok()
    }

    fn evict(&mut self, bytes: u64, evict: &mut impl FnMut(u64) -> u64) {
        let of_features = self.tower.evict(bytes);
        let of_pages = if of_features < bytes { evict(bytes - of_features) } else { 0 };
        self.prefix_bytes = self.prefix_bytes.saturating_sub(of_pages);
        let left = self.ledger.cached().saturating_sub(of_features + of_pages);
        // Less than before always fits.
        let _ = self.ledger.set_cached_bytes(left);
    }

    /// Makes room for `positions` positions of a running sequence, by preemption if needed. Returns
    /// false if the sequence itself was preempted.
    pub(super) fn make_room(
        &mut self,
        key: SequenceKey,
        positions: usize,
        evict: &mut impl FnMut(u64) -> u64,
        preempted: &mut Preempted,
    ) -> bool {
        loop {
            let hidden = self.retains_hidden(key);
            let Err(missing) = self.ledger.hold(key, positions, hidden) else { return true };
            if self.ledger.cached() > 0 {
                let before = self.ledger.cached();
                self.evict(missing.min(before), evict);
                if self.ledger.cached() < before {
                    continue;
                }
            }
            if let Some(young) = self.youngest(|scheduler, key| scheduler.ledger.holds_hidden(key))
            {
                self.forget_hidden(young);
                preempted.lost_hidden.push(young);
                continue;
            }
            match self.youngest(|_, _| true) {
                Some(young) => {
                    self.preempt(young);
                    preempted.sequences.push(young);
                    if young == key {
                        return false;
                    }
                }
                // No sequence holds memory, and this one does not fit: it was refused at its
                // arrival.
                None => return false,
            }
        }
    }

    /// The youngest sequence with memory that matches.
    fn youngest(&self, such: impl Fn(&Self, SequenceKey) -> bool) -> Option<SequenceKey> {
        self.sequences.keys().rev().copied().find(|key| self.ledger.holds(*key) && such(self, *key))
    }

    fn forget_hidden(&mut self, key: SequenceKey) {
        self.ledger.release_hidden(key);
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.retains_hidden = false;
            sequence.draft = Draft::None;
        }
    }

    /// Sets the bytes of hidden states by the positions of a sequence, because another drafter uses
    /// other layers. They stay retained where they fit. Returns the sequences that lost theirs.
    pub fn set_hidden_bytes(&mut self, bytes: impl Fn(usize) -> u64) -> Vec<SequenceKey> {
        let mut lost = vec![];
        for key in self.ledger.set_hidden_bytes(bytes) {
            if self.retains_hidden(key) && !self.retain_hidden(key) {
                self.forget_hidden(key);
                lost.push(key);
            }
        }
        lost
    }

    fn retain_hidden(&mut self, key: SequenceKey) -> bool {
        let fits = self.ledger.hold(key, self.ledger.room_of(key), true).is_ok();
        if let Some(sequence) = self.sequences.get_mut(&key).filter(|_| fits) {
            sequence.retains_hidden = true;
        }
        fits
    }

    pub(super) fn preempt(&mut self, key: SequenceKey) {
        self.ledger.release(key);
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.preempt();
            let images = sequence.images.clone();
            self.ledger.set_extra_bytes(key, self.image_bytes(&images, 0));
        }
    }

    /// Retains hidden states of running sequences again while enough memory is free.
    fn retain_hidden_again(&mut self) {
        for key in
            self.keys(|sequence| !sequence.retains_hidden && sequence.phase != Phase::Waiting)
        {
            if self.ledger.free() > (SPARE_SHARE * self.ledger.budget() as f64) as u64 {
                self.retain_hidden(key);
            }
        }
    }
}
