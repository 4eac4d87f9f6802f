//! The engine and its prefix cache: when beginnings are looked for, when they are kept, when they
//! go. All at step borders.

use paceline_models::{ModelError, SequenceId};

use super::Engine;
use crate::cache::BORDER_BYTES;
use crate::core::{EndReason, PAGE, Phase, PrefixWait, SequenceKey};
use crate::error;
use crate::pass;

/// Pages of a sequence that still runs are kept before its end once there are so many bytes of
/// them: what is left for its end then takes no longer than a step.
const LONG_BYTES: u64 = BORDER_BYTES;

impl Engine {
    /// Puts kept pages in the place of reading for prompts of which nothing is read. Those that
    /// begin like one that is being read wait for its pages: many requests that come at once with
    /// the same beginning are the rule where agents work.
    pub(super) fn look_up(&mut self) {
        self.scheduler.prefix_waits.clear();
        for key in self.scheduler.unread() {
            let Some(sequence) = self.scheduler.get(key) else { continue };
            let followed = pass::collects(sequence);
            let tap_pages = if followed { self.drafting.window_rows() / PAGE } else { 0 };
            let room = self.scheduler.ledger().room_of(key);
            let whole = self.scheduler.tower.info().whole;
            let ends = |pages| if whole { sequence.uncut_pages(pages, PAGE) } else { pages };
            let (pages, last) = self.cache.find(key, &sequence.ids, tap_pages, ends);
            let others = self.scheduler.iter().filter(|(other, one)| {
                one.phase == Phase::Prefilling
                    || one.phase == Phase::Decoding
                    || *other < key && self.scheduler.ledger().holds(*other)
            });
            let others = others.map(|(other, one)| (other, one.committed));
            if let Some((leader, rows)) =
                self.cache.ahead((key, sequence.ids.len(), pages.len()), others)
            {
                self.scheduler.prefix_waits.insert(key, PrefixWait { leader, rows });
                continue;
            }
            let Some(last) = last else { continue };
            match self.cache.copy_in(&pages, &mut self.kv, key, room) {
                Ok(positions) => {
                    self.scheduler.found(key, positions);
                    if followed {
                        let (first, taps) = self.cache.taps(&pages);
                        self.drafting.found(key, (last, positions), first, &taps);
                    }
                }
                Err(error) => self.cache_failed(&error),
            }
        }
    }

    /// Keeps what is there to be kept of one running sequence: what another waits for, its prompt
    /// once its first token is on its way, and long ones before.
    pub(super) fn keep_some(&mut self) {
        let awaited =
            |key| self.scheduler.prefix_waits.values().any(|follows| follows.leader == key);
        let due = self.scheduler.iter().filter_map(|(key, sequence)| {
            let all = self.cache.due_bytes(key, sequence.committed);
            let prompt = match sequence.phase {
                Phase::Decoding => self.cache.due_bytes(key, sequence.prompt_len),
                _ => 0,
            };
            let awaited = all > 0 && awaited(key);
            (awaited || prompt > 0 || all >= LONG_BYTES).then_some((!awaited, key, sequence))
        });
        let Some((_, key, sequence)) = due.min_by_key(|(later, key, _)| (*later, *key)) else {
            return;
        };
        let ids = sequence.ids[..sequence.committed].to_vec();
        self.keep(key, &ids, BORDER_BYTES);
    }

    /// Keeps all that is there of a sequence which ends well, or because nobody wants more of it:
    /// the next turn of its conversation, or another try, begins with it.
    pub(super) fn keep_all(&mut self, key: SequenceKey, ids: &[u32]) {
        // Rows behind the id that ended a block are no part of it.
        let rows = self.kv.length(SequenceId(key.0)).unwrap_or(0) as usize;
        let ids = &ids[..rows.min(ids.len())];
        while !self.broken && self.keep(key, ids, BORDER_BYTES) {}
        self.drafting.keep(key, self.cache.keys(key, ids));
    }

    /// Ends a running request before its time, by nobody's fault.
    pub(super) fn end_early(&mut self, key: SequenceKey, ended: Option<EndReason>) {
        if let Some(sequence) = self.scheduler.get(key) {
            let ids = sequence.ids.clone();
            self.keep_all(key, &ids);
        }
        self.end(key, ended.and_then(error::ended));
    }

    /// Ends a request of which no token can be chosen. Its rows may hold NaN, so nothing of it is
    /// left for later requests: neither its pages and those computed from them, nor the features of
    /// its images, nor what the drafter read of it.
    pub(super) fn end_faulty(&mut self, key: SequenceKey) {
        let Some(sequence) = self.scheduler.get(key) else { return };
        let (ids, images, position) =
            (sequence.ids.clone(), sequence.images.clone(), sequence.ids.len());
        let request_id =
            self.running.get(&key).map(|running| running.checked.id.as_str()).unwrap_or_default();
        tracing::error!(
            request_id,
            sequence = key.0,
            position,
            "the model's numbers are not finite; the request ends"
        );
        self.cache.remove(key, &ids);
        self.count_cached();
        images.iter().for_each(|image| self.scheduler.tower.forget(&image.key));
        self.end(key, Some(error::numerics()));
    }

    /// `true`: there is more to keep.
    fn keep(&mut self, key: SequenceKey, ids: &[u32], most: u64) -> bool {
        let ledger = self.scheduler.ledger();
        // Half of what sequences leave, so that most of those to come find room without waiting for
        // pages to go, nor the store has to give up the places it keeps for them.
        let limit = (ledger.budget() - ledger.held()).saturating_sub(self.kv.idle_bytes()) / 2;
        let more = self.cache.keep(&self.kv, (key, ids), self.drafting.window(key), (most, limit));
        self.count_cached();
        more.unwrap_or_else(|error| {
            self.cache_failed(&error);
            false
        })
    }

    /// Taps of other layers are wanted from now on.
    pub(super) fn check_taps(&mut self) {
        if self.tap_layers != self.drafting.tap_layers() {
            self.tap_layers = self.drafting.tap_layers().to_vec();
            self.cache.forget_hidden();
            self.count_cached();
            for key in
                self.scheduler.set_hidden_bytes(|positions| self.drafting.window_bytes(positions))
            {
                self.drafting.give_up(key);
            }
        }
    }

    fn count_cached(&mut self) {
        if let Err(over) = self.scheduler.set_cached_bytes(self.cache.bytes()) {
            self.cache.evict(over);
            // All of it has gone if need be.
            let _ = self.scheduler.set_cached_bytes(self.cache.bytes());
        }
    }

    fn cache_failed(&mut self, error: &ModelError) {
        match error {
            ModelError::Mlx(_) => self.break_down(error),
            // Our own mistake, after which the sequence has no rows and reads all of its ids.
            _ => tracing::error!(%error, "the prefix cache contradicts itself"),
        }
    }
}
