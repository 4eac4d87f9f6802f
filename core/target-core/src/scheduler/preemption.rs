//! Who has memory. A sequence begins when what it is made of so far fits, and grows from class to
//! class. Where there is no room, in this order: the prefix cache gives up what it needs, then
//! sequences their hidden states and with them their drafts, for one that begins as for one that grows;
//! then, for one that grows, the youngest sequence all it holds: its tokens are what it begins
//! again from, when there is room. The oldest never gives way, and could run alone, so some
//! sequence always comes to its end.

use super::{Preempted, Scheduler, Started};
use crate::{Draft, Phase, SequenceKey};

/// Positions beyond its own for which there must be room before a sequence that gave way begins
/// again: what little is free would soon be taken from it once more.
const AHEAD: usize = 64;
/// Share of the budget that must stay free when a sequence's hidden states are kept again.
const SPARE: f64 = 0.25;

impl Scheduler {
    /// Gives memory to sequences that wait for it, in order of admission, and says which have some
    /// now. `evict` as in [`Scheduler::next_step`].
    pub fn start(&mut self, mut evict: impl FnMut(u64) -> u64) -> Started {
        let mut started = Started::default();
        for key in self.keys(|sequence| sequence.phase == Phase::Waiting) {
            if self.ledger.holds(key) {
                continue;
            }
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            let ahead = if sequence.preemptions > 0 { AHEAD } else { 1 };
            let positions = (sequence.ids.len() + ahead).min(sequence.most_positions());
            sequence.retains_hidden = true;
            if !self.has_room(key, positions, &mut evict) {
                self.forget_hidden(key);
                if !self.make_room_from_hidden(key, positions, &mut evict, &mut started.lost_hidden)
                {
                    break;
                }
            }
            let hidden = self.sequences.get(&key).is_some_and(|sequence| sequence.retains_hidden);
            if self.ledger.hold(key, positions, hidden).is_err() {
                break;
            }
            started.keys.push(key);
        }
        if started == Started::default()
            && self.keys(|sequence| sequence.phase == Phase::Waiting).is_empty()
        {
            self.retain_hidden_again();
        }
        started
    }

    /// Sequences that have memory and of which nothing is read yet.
    pub fn unread(&self) -> Vec<SequenceKey> {
        self.keys(|sequence| sequence.phase == Phase::Waiting)
            .into_iter()
            .filter(|key| self.ledger.holds(*key))
            .collect()
    }

    /// The first rows of a sequence are in the store: they were found in the prefix cache.
    pub fn found(&mut self, key: SequenceKey, rows: usize) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.found(rows);
        }
    }

    /// The prefix cache holds so many bytes now.
    ///
    /// # Errors
    /// There is no room for so many: by how many bytes too few.
    pub fn set_cached_bytes(&mut self, bytes: u64) -> Result<(), u64> {
        self.prefix_bytes = bytes;
        self.count_cached()
    }

    /// What is kept for later: the prefix cache, and features of pictures that nobody reads now,
    /// which go first.
    pub(super) fn count_cached(&mut self) -> Result<(), u64> {
        self.ledger.set_cached_bytes(self.prefix_bytes + self.tower.loose_bytes()).or_else(|over| {
            self.tower.evict(over);
            self.ledger.set_cached_bytes(self.prefix_bytes + self.tower.loose_bytes())
        })
    }

    /// Whether there is room for so many positions of a sequence, at the prefix cache's expense and
    /// nobody else's.
    pub(super) fn has_room(
        &mut self,
        key: SequenceKey,
        positions: usize,
        evict: &mut impl FnMut(u64) -> u64,
    ) -> bool {
        let hidden = self.sequences.get(&key).is_some_and(|sequence| sequence.retains_hidden);
        let missing = self.ledger.missing(key, positions, hidden).unwrap_or(u64::MAX);
        // All of the cache would not do: it stays.
        if missing == 0 || missing > self.ledger.cached() {
            return missing == 0;
        }
        self.evict(missing, evict);
        self.ledger.missing(key, positions, hidden) == Ok(0)
    }

    /// The same at the expense of others' hidden states, too, which they lose, the youngest's first; nobody
    /// loses any if all would not do.
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

    fn evict(&mut self, bytes: u64, evict: &mut impl FnMut(u64) -> u64) {
        let of_pictures = self.tower.evict(bytes);
        let of_pages = if of_pictures < bytes { evict(bytes - of_pictures) } else { 0 };
        self.prefix_bytes = self.prefix_bytes.saturating_sub(of_pages);
        let left = self.ledger.cached().saturating_sub(of_pictures + of_pages);
        // Less than before always fits.
        let _ = self.ledger.set_cached_bytes(left);
    }

    /// Gives a running sequence room for so many positions, whoever has to give way; `false` if
    /// that was the sequence itself.
    pub(super) fn make_room(
        &mut self,
        key: SequenceKey,
        positions: usize,
        evict: &mut impl FnMut(u64) -> u64,
        preempted: &mut Preempted,
    ) -> bool {
        loop {
            let hidden = self.sequences.get(&key).is_some_and(|sequence| sequence.retains_hidden);
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
                // Nobody holds anything, and it does not fit: it was admitted because it would.
                None => return false,
            }
        }
    }

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

    /// Another drafter reads other layers: what hidden states take of a sequence of up to so many positions.
    /// They go on to be kept where there is room; says of whom they are not.
    pub fn set_hidden_bytes(&mut self, bytes: impl Fn(usize) -> u64) -> Vec<SequenceKey> {
        let mut lost = vec![];
        for key in self.ledger.set_hidden_bytes(bytes) {
            if self.sequences.get(&key).is_some_and(|sequence| sequence.retains_hidden)
                && !self.retain_hidden(key)
            {
                self.forget_hidden(key);
                lost.push(key);
            }
        }
        lost
    }

    fn retain_hidden(&mut self, key: SequenceKey) -> bool {
        let room = self.ledger.hold(key, self.ledger.room_of(key), true).is_ok();
        if let Some(sequence) = self.sequences.get_mut(&key).filter(|_| room) {
            sequence.retains_hidden = true;
        }
        room
    }

    fn preempt(&mut self, key: SequenceKey) {
        self.ledger.release(key);
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.preempt();
            let images = sequence.images.clone();
            self.ledger.set_extra_bytes(key, self.beside(&images, 0));
        }
    }

    /// Sequences whose hidden states were given up keep them again once there is room for all that happens
    /// meanwhile.
    fn retain_hidden_again(&mut self) {
        for key in
            self.keys(|sequence| !sequence.retains_hidden && sequence.phase != Phase::Waiting)
        {
            if self.ledger.free() > (SPARE * self.ledger.budget() as f64) as u64 {
                self.retain_hidden(key);
            }
        }
    }
}
