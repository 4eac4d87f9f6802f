//! The engine and its prefix cache: when pages are looked up, when they are copied to the cache,
//! and when they are evicted. All of it happens at step borders.

use paceline_models::{ModelError, SequenceId};
use paceline_target_core::{PAGE, Phase, SequenceKey, SnapshotPlaces, StepPart};

use super::Engine;
use crate::drafting::CachedHiddenStates;
use crate::page_store::{BORDER_BYTES, Lookup, Retention};

/// Pages of a running sequence are copied before its end once they have this many bytes. The rest
/// that is copied at its end then takes no longer than a step.
const LONG_BYTES: u64 = BORDER_BYTES;

impl Engine {
    /// Copies cached pages to sequences of which nothing is computed yet. A prompt that shares its
    /// beginning with one that is being computed waits for the pages of that one. Agents often send
    /// many requests with the same beginning at once.
    pub(super) fn look_up_prefixes(&mut self) {
        self.scheduler.prefix_waits.clear();
        for key in self.scheduler.unread() {
            self.look_up_prefix(key);
        }
    }

    fn look_up_prefix(&mut self, key: SequenceKey) {
        let Some(sequence) = self.scheduler.get(key) else { return };
        let keeps = self.scheduler.keeps_hidden_states(key);
        let hidden_pages = if keeps { self.drafting.window_rows() / PAGE } else { 0 };
        let room = self.scheduler.ledger().room_of(key);
        let is_whole = self.scheduler.tower.info().whole;
        let usable = |pages| if is_whole { sequence.uncut_pages(pages, PAGE) } else { pages };
        let found = self.pages.find(key, &sequence.ids, hidden_pages, usable);
        let own = Lookup { key, ids: sequence.ids.len(), found: found.pages.len() };
        let others = self.scheduler.iter().filter(|(other, one)| {
            one.phase == Phase::Prefilling
                || one.phase == Phase::Decoding
                || *other < key && self.scheduler.ledger().holds(*other)
        });
        if let Some(follows) = self.pages.coming(own, others) {
            self.scheduler.prefix_waits.insert(key, follows);
            return;
        }
        let Some(last) = found.last else { return };
        match self.pages.copy_in(&found.pages, &mut self.kv, key, room) {
            Ok(positions) => {
                self.scheduler.found(key, positions);
                if keeps {
                    let (first, hidden_states) = self.pages.hidden_states(&found.pages);
                    let (page, end, position, rows) = (last, positions, first, hidden_states);
                    let cached = CachedHiddenStates { page, end, position, rows };
                    self.drafting.restore(key, cached);
                }
            }
            Err(error) => self.pages_failed(&error),
        }
    }

    /// Notes the sequences that have just reached a place at which their states are kept. A verified
    /// block may have gone beyond it: the rows after it are on the tape until the next step.
    pub(super) fn note_snapshots(&mut self, parts: &[StepPart]) {
        for part in parts {
            let Some(sequence) = self.scheduler.get(part.key) else { continue };
            let place = |places: SnapshotPlaces| places.last(part.start, sequence.committed);
            if let Some(rows) = sequence.snapshots.and_then(place) {
                self.due_states.push((part.key, rows));
            }
        }
    }

    /// Copies the states of these sequences to the cache, and the pages before them. It comes
    /// before the next step, which overwrites the states.
    pub(super) fn keep_states(&mut self) {
        for (key, rows) in std::mem::take(&mut self.due_states) {
            let Some(sequence) = self.scheduler.get(key).filter(|one| one.committed >= rows) else {
                continue;
            };
            let (ids, window) = (sequence.ids[..rows].to_vec(), self.drafting.window(key));
            let limit = self.cache_limit();
            let kept = self.pages.keep_states(&self.kv, key, &ids, window, limit);
            if let Err(error) = kept {
                // The index may have pages and states that were not copied.
                self.pages.remove(key, &ids);
                self.pages_failed(&error);
            }
            self.count_retained();
        }
    }

    /// Copies pages of one running sequence to the cache. Pages that another sequence waits for
    /// come first, then pages of a prompt whose first token was chosen, and pages of long
    /// sequences.
    pub(super) fn retain_some(&mut self) {
        if self.kv.kept_bytes() > 0 {
            return;
        }
        let is_awaited = |key| self.scheduler.prefix_waits.values().any(|one| one.leader == key);
        let due = self.scheduler.iter().filter_map(|(key, sequence)| {
            let all = self.pages.due_bytes(key, sequence.committed);
            let prompt = match sequence.phase {
                Phase::Decoding => self.pages.due_bytes(key, sequence.prompt_len),
                _ => 0,
            };
            let awaited = all > 0 && is_awaited(key);
            (awaited || prompt > 0 || all >= LONG_BYTES).then_some((!awaited, key, sequence))
        });
        let Some((_, key, sequence)) = due.min_by_key(|(later, key, _)| (*later, *key)) else {
            return;
        };
        let ids = sequence.ids[..sequence.committed].to_vec();
        self.retain(key, &ids);
    }

    /// Copies all pages of a sequence that ends well, or that its client abandoned. The next turn
    /// of its conversation, or the next try, begins with them. With recurrent layers, pages after
    /// the last kept states are of no use.
    pub(super) fn retain_all(&mut self, key: SequenceKey, ids: &[u32]) {
        // Rows after the id that ended a block are no part of the sequence.
        let rows = self.kv.length(SequenceId(key.0)).unwrap_or(0) as usize;
        let ids = &ids[..rows.min(ids.len())];
        let by_pages = self.kv.kept_bytes() == 0;
        while by_pages && !self.broken && self.retain(key, ids) {}
        self.drafting.retain(key, self.pages.keys(key, ids));
    }

    /// Copies at most [`BORDER_BYTES`] of pages. Returns whether there are more.
    fn retain(&mut self, key: SequenceKey, ids: &[u32]) -> bool {
        let retention = Retention { most_new: BORDER_BYTES, limit: self.cache_limit() };
        let window = self.drafting.window(key);
        let more = self.pages.retain(&self.kv, key, ids, window, retention);
        self.count_retained();
        more.unwrap_or_else(|error| {
            self.pages_failed(&error);
            false
        })
    }

    /// Most bytes of the cache: half of the free memory. Most new sequences then find room without
    /// an eviction, and the store keeps the places that it retains for them.
    fn cache_limit(&self) -> u64 {
        let ledger = self.scheduler.ledger();
        (ledger.budget() - ledger.held()).saturating_sub(self.kv.idle_bytes()) / 2
    }

    /// Follows a change of the layers whose hidden states the drafter needs.
    pub(super) fn follow_feature_layers(&mut self) {
        if self.feature_layers == self.drafting.feature_layers() {
            return;
        }
        self.feature_layers = self.drafting.feature_layers().to_vec();
        self.pages.forget_hidden_states();
        self.count_retained();
        let drafting = &self.drafting;
        for key in self.scheduler.set_hidden_bytes(|positions| drafting.window_bytes(positions)) {
            self.drafting.drop_hidden_states(key);
        }
    }

    /// Enters the cache's bytes into the ledger. Evicts pages if the ledger has no memory for them.
    pub(super) fn count_retained(&mut self) {
        if let Err(over) = self.scheduler.set_cached_bytes(self.pages.bytes()) {
            self.pages.evict(over);
            // An empty cache always fits.
            let _ = self.scheduler.set_cached_bytes(self.pages.bytes());
        }
    }

    fn pages_failed(&mut self, error: &ModelError) {
        match error {
            ModelError::Mlx(_) => self.fail(error),
            // A mistake of our own. The sequence has no rows after it and computes all of them.
            _ => {
                let error = paceline_process::chain(error);
                tracing::error!(error, "the prefix cache contradicts itself");
            }
        }
    }
}
