//! When the vision tower works: in steps of its own, in turn with those that read and decode.
//!
//! ```text
//! beside streams that decode:     slice ─▶ decode ─▶ decode and prompts ─▶ slice ─▶ …
//! beside prompts alone:           slice ─▶ prompts ─▶ slice ─▶ …
//! ```
//! So a stream's tokens come with gaps of one slice or one chunk and never of both, and neither pictures nor prompts wait
//! for each other for ever. A slice is as long as a chunk would be.

use std::collections::BTreeSet;

use paceline_process::Millis;

use super::Scheduler;
use super::fill::{BESIDE_US, CHUNK_US};
use crate::core::{Draft, Image, Phase, Sequence, Slice, WantedImage};

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
    Tower(Slice),
    /// Rows.
    Text {
        /// Of prompts too.
        prompts: bool,
    },
}

impl Scheduler {
    /// Says what the next step is for.
    pub(super) fn take_turn(&mut self, now: Millis) -> Taken {
        let wanted = self.settle_pictures();
        if wanted.is_empty() {
            self.turn = Turn::Tower;
            return Taken::Text { prompts: true };
        }
        let waits = |one: &Sequence| matches!(one.draft, Draft::Asked { until } if until > now);
        let decodes = self.sequences.values().any(|one| one.phase == Phase::Decoding);
        let decodes_now = self.sequences.values().any(|one| one.phase == Phase::Decoding && !waits(one));
        let reads = self
            .sequences
            .iter()
            .any(|(key, one)| self.is_reading(*key, one) && !self.follows.contains_key(key) && self.sees_to(one) > one.committed);
        let turn = match self.turn {
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
            && let Some(slice) = self.tower.next_slice(&wanted, if decodes { BESIDE_US } else { CHUNK_US })
        {
            return Taken::Tower(slice);
        }
        Taken::Text { prompts: turn != Turn::Decode }
    }

    /// Brings the tower's books in line with what sequences have read; the pictures they come to and cannot see yet.
    fn settle_pictures(&mut self) -> Vec<WantedImage> {
        let (mut needed, mut wanted) = (BTreeSet::new(), Vec::<WantedImage>::new());
        let mut beside = vec![];
        for (key, one) in self.sequences.iter().filter(|(key, one)| !one.images.is_empty() && self.ledger.holds(**key)) {
            beside.push((*key, self.beside(&one.images, one.committed)));
            // What another one reads for it may be all of its pictures.
            if self.follows.contains_key(key) {
                continue;
            }
            for (index, image) in one.unread_images() {
                if self.tower.has(&image.key) {
                    needed.insert(image.key);
                    continue;
                }
                if wanted.iter().all(|other| other.image != image.key) {
                    wanted.push(WantedImage { image: image.key, owner: *key, index, patches: image.patches });
                }
                // The next one's turn comes when this one is there: what lies before it can be read meanwhile.
                break;
            }
        }
        for (key, bytes) in beside {
            self.ledger.set_beside(key, bytes);
        }
        if !self.tower.is_empty() || !wanted.is_empty() {
            self.tower.settle(needed, &wanted);
            // What is too much has gone.
            let _ = self.count_cached();
        }
        wanted
    }

    /// What a sequence's pictures take beside its rows: their pixels as long as it runs, as it may have to begin again, and
    /// their features until they are read.
    pub(super) fn beside(&self, images: &[Image], committed: usize) -> u64 {
        let info = self.tower.info();
        let bytes = |image: &Image| {
            let features = if image.end() > committed { info.feature_bytes } else { 0 };
            u64::from(image.patches) * (info.pixel_bytes + features)
        };
        images.iter().map(bytes).sum()
    }
}
