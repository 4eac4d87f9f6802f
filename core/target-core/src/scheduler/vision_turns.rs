//! When the vision tower works: in steps of its own, in turn with those that read and decode.
//!
//! ```text
//! beside streams that decode:     slice ─▶ decode, decode, … ─▶ decode and prompts ─▶ slice ─▶ …
//! beside prompts alone:           slice ─▶ prompts ─▶ slice ─▶ …
//! ```
//! So a stream's tokens come with gaps of one slice or one chunk and never of both, and neither
//! pictures nor prompts wait for each other for ever. A slice is as long as a chunk would be.
//! Streams decode for as long as the slice took before it goes on: beside pictures they run at
//! about half their pace, however large the pictures are, and lose no more time in all.

use std::collections::BTreeSet;

use paceline_vocabulary::Millis;

use super::Scheduler;
use super::batch::{BESIDE_US, CHUNK_US};
use crate::{Draft, Image, Phase, Sequence, StepPart, TowerSlice, WantedImage};

/// Who is next where both have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// The tower.
    #[default]
    Tower,
    /// Streams that decode, as the tower has just worked.
    Decode,
    /// Prompts.
    Prompts,
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The tower.
    Tower(TowerSlice),
    /// Rows.
    Text {
        /// Of prompts too.
        prompts: bool,
    },
}

/// Of the tower's time, as much more is the streams' that decode beside it.
const STREAMS: f64 = 1.0;
/// More than this they are never owed: one block of a huge picture must not stop the next for as
/// long.
const MOST_OWED_US: f64 = 500_000.0;

impl Scheduler {
    /// Says what the next step is for.
    pub(super) fn take_turn(&mut self, now: Millis) -> Taken {
        let wanted = self.settle_pictures();
        self.owed_us = (self.owed_us + STREAMS * self.tower.take_spent()).min(MOST_OWED_US);
        if wanted.is_empty() {
            (self.turn, self.owed_us) = (Turn::Tower, 0.0);
            return Taken::Text { prompts: true };
        }
        let waits = |one: &Sequence| matches!(one.draft, Draft::Asked { until } if until > now);
        let decodes = self.sequences.values().any(|one| one.phase == Phase::Decoding);
        let decodes_now =
            self.sequences.values().any(|one| one.phase == Phase::Decoding && !waits(one));
        let reads = self.sequences.iter().any(|(key, one)| {
            self.is_reading(*key, one)
                && !self.prefix_waits.contains_key(key)
                && self.prefill_limit(one) > one.committed
        });
        if !decodes {
            self.owed_us = 0.0;
        }
        let turn = match self.turn {
            // Also when all of them wait for their drafts: they come sooner than a slice would end.
            Turn::Prompts if self.owed_us > 0.0 => Turn::Decode,
            Turn::Decode if decodes_now => Turn::Decode,
            Turn::Decode | Turn::Prompts if reads => Turn::Prompts,
            Turn::Tower | Turn::Decode | Turn::Prompts => Turn::Tower,
        };
        self.turn = match turn {
            Turn::Tower => Turn::Decode,
            Turn::Decode => Turn::Prompts,
            Turn::Prompts => Turn::Tower,
        };
        if turn == Turn::Tower
            && let Some(slice) =
                self.tower.next_slice(&wanted, if decodes { BESIDE_US } else { CHUNK_US })
        {
            return Taken::Tower(slice);
        }
        Taken::Text { prompts: turn != Turn::Decode }
    }

    /// A step took so long; what streams decoded in it they are not owed any more.
    pub(super) fn repay(&mut self, parts: &[StepPart], took_us: u64) {
        if parts.iter().all(|part| !part.prefill) {
            self.owed_us = (self.owed_us - took_us as f64).max(0.0);
        }
    }

    /// Brings the tower's books in line with what sequences have read; the pictures they come to
    /// and cannot see yet.
    fn settle_pictures(&mut self) -> Vec<WantedImage> {
        let (mut needed, mut wanted) = (BTreeSet::new(), Vec::<WantedImage>::new());
        let mut beside = vec![];
        for (key, one) in self
            .sequences
            .iter()
            .filter(|(key, one)| !one.images.is_empty() && self.ledger.holds(**key))
        {
            beside.push((*key, self.beside(&one.images, one.committed)));
            // What another one reads for it may be all of its pictures.
            if self.prefix_waits.contains_key(key) {
                continue;
            }
            for (index, image) in one.unread_images() {
                if self.tower.has(&image.key) {
                    needed.insert(image.key);
                    continue;
                }
                if wanted.iter().all(|other| other.image != image.key) {
                    wanted.push(WantedImage {
                        image: image.key,
                        owner: *key,
                        index,
                        patches: image.patches,
                    });
                }
                // The next one's turn comes when this one is there: what lies before it can be read
                // meanwhile.
                break;
            }
        }
        for (key, bytes) in beside {
            self.ledger.set_extra_bytes(key, bytes);
        }
        if !self.tower.is_empty() || !wanted.is_empty() {
            self.tower.settle(needed, &wanted);
            // What is too much has gone.
            let _ = self.count_cached();
        }
        wanted
    }

    /// What a sequence's pictures take beside its rows: their pixels as long as it runs, as it may
    /// have to begin again, and their features until they are read.
    pub(super) fn beside(&self, images: &[Image], committed: usize) -> u64 {
        let info = self.tower.info();
        let bytes = |image: &Image| {
            let features = if image.end() > committed { info.feature_bytes } else { 0 };
            u64::from(image.patches) * (info.pixel_bytes + features)
        };
        images.iter().map(bytes).sum()
    }
}
