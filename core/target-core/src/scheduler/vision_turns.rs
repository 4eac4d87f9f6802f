//! When the vision tower works: in steps of its own, in turn with steps that prefill and decode.
//!
//! ```text
//! beside decoding streams:   slice ─▶ decode, decode, … ─▶ decode and prompts ─▶ slice ─▶ …
//! beside prompts alone:      slice ─▶ prompts ─▶ slice ─▶ …
//! ```
//!
//! The algorithm: after a slice, streams decode for as long as the slice took; then prompts get one
//! step; then the tower gets the next slice. A slice takes as long as a chunk. So the gap between a
//! stream's tokens is one slice or one chunk and never both, and neither images nor prompts starve.
//! Beside images, streams run at about half their speed, however large the images are.

use std::collections::BTreeSet;

use paceline_vocabulary::Millis;

use super::Scheduler;
use crate::{Draft, Image, Phase, Sequence, StepPart, TowerSlice, WantedImage};

/// Whose turn is next if the tower and text both have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum VisionTurn {
    /// A slice of the tower.
    #[default]
    Tower,
    /// Decoding streams, because the tower has just worked.
    Decode,
    /// Prompts, and decoding streams beside them.
    Prompts,
}

/// Purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepPurpose {
    /// A slice of the tower.
    Tower(TowerSlice),
    /// Rows of sequences.
    Text {
        /// Prompts are prefilled, too.
        prompts: bool,
    },
}

/// Time for decoding streams per time of the tower.
const STREAM_SHARE: f64 = 1.0;
/// Longest time that is reserved for decoding streams, in microseconds. One block of a huge image
/// must not stop the next slice for as long.
const MAX_RESERVED_US: f64 = 500_000.0;

impl Scheduler {
    /// Decides what the next step is for.
    pub(super) fn choose_purpose(&mut self, now: Millis) -> StepPurpose {
        let wanted = self.update_tower();
        let reserved_us = self.reserved_us + STREAM_SHARE * self.tower.take_spent();
        self.reserved_us = reserved_us.min(MAX_RESERVED_US);
        if wanted.is_empty() {
            (self.turn, self.reserved_us) = (VisionTurn::Tower, 0.0);
            return StepPurpose::Text { prompts: true };
        }
        let decodes = self.sequences.values().any(|one| one.phase == Phase::Decoding);
        if !decodes {
            self.reserved_us = 0.0;
        }
        let turn = self.next_turn(now);
        self.turn = match turn {
            VisionTurn::Tower => VisionTurn::Decode,
            VisionTurn::Decode => VisionTurn::Prompts,
            VisionTurn::Prompts => VisionTurn::Tower,
        };
        let slice_us = self.longest_chunk_us(decodes);
        if turn == VisionTurn::Tower
            && let Some(slice) = self.tower.next_slice(&wanted, slice_us)
        {
            return StepPurpose::Tower(slice);
        }
        StepPurpose::Text { prompts: turn != VisionTurn::Decode }
    }

    fn next_turn(&self, now: Millis) -> VisionTurn {
        let waits = |one: &Sequence| matches!(one.draft, Draft::Asked { until } if until > now);
        let decodes_now =
            self.sequences.values().any(|one| one.phase == Phase::Decoding && !waits(one));
        let prefills = self.sequences.iter().any(|(key, one)| {
            self.is_prefilling(*key, one)
                && !self.prefix_waits.contains_key(key)
                && self.prefill_limit(one) > one.committed
        });
        match self.turn {
            // Also while all of them wait for drafts, which arrive before a slice would end.
            VisionTurn::Prompts if self.reserved_us > 0.0 => VisionTurn::Decode,
            VisionTurn::Decode if decodes_now => VisionTurn::Decode,
            VisionTurn::Decode | VisionTurn::Prompts if prefills => VisionTurn::Prompts,
            VisionTurn::Tower | VisionTurn::Decode | VisionTurn::Prompts => VisionTurn::Tower,
        }
    }

    /// Subtracts a decode step from the time that is reserved for decoding streams.
    pub(super) fn repay(&mut self, parts: &[StepPart], took_us: u64) {
        if parts.iter().all(|part| !part.prefill) {
            self.reserved_us = (self.reserved_us - took_us as f64).max(0.0);
        }
    }

    /// Updates the tower with the images that sequences need. Returns the images whose features are
    /// needed next and are missing.
    fn update_tower(&mut self) -> Vec<WantedImage> {
        let (mut needed, mut wanted) = (BTreeSet::new(), Vec::<WantedImage>::new());
        let mut extra_bytes = vec![];
        for (key, one) in self
            .sequences
            .iter()
            .filter(|(key, one)| !one.images.is_empty() && self.ledger.holds(**key))
        {
            extra_bytes.push((*key, self.image_bytes(&one.images, one.committed)));
            // The sequence that it waits for may prefill all of its images.
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
                // Its next image is wanted after this one. The rows before this one can be
                // prefilled meanwhile.
                break;
            }
        }
        for (key, bytes) in extra_bytes {
            self.ledger.set_extra_bytes(key, bytes);
        }
        if !self.tower.is_empty() || !wanted.is_empty() {
            self.tower.update(needed, &wanted);
            // Features beyond the budget were evicted.
            let _ = self.count_cached();
        }
        wanted
    }

    /// Bytes of a sequence's images beside its rows: the pixels while it runs, because it may be
    /// preempted and begin again, and the features until they are prefilled.
    pub(super) fn image_bytes(&self, images: &[Image], committed: usize) -> u64 {
        let info = self.tower.info();
        let bytes = |image: &Image| {
            let features = if image.end() > committed { info.feature_bytes } else { 0 };
            u64::from(image.patches) * (info.pixel_bytes + features)
        };
        images.iter().map(bytes).sum()
    }
}
