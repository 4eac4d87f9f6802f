//! The vision tower's work: which picture goes through it next and how far, and which pictures'
//! features are kept. Pure; arrays are the shell's, which has those that are named here and no
//! others.
//!
//! ```text
//! a sequence with room comes to a picture ──▶ wanted ──▶ in the tower, slice by slice ──▶ kept, needed ──▶ read: loose
//!                                               ▲                                                             │
//!                                               └─────────── dropped, the longest unused first ◀──────────────┘
//! ```
//! A slice takes as many blocks as fit the time of a prompt chunk, so a picture of any size stays
//! within what running streams bear but for the time of one block. Of several pictures the one with
//! the least work left goes first; one that was passed over in `PATIENCE` slices comes before, as
//! with prompts (`scheduler/batch`). What is needed by a sequence that has memory is never dropped
//! and counts as held by it; what is loose is bounded, and goes before anything else does.

use std::collections::{BTreeMap, BTreeSet};

use super::{ImageKey, SequenceKey};

/// Slices in which a picture was passed over, after which it is not any more.
const PATIENCE: u32 = 4;
/// Pictures on their way through the tower at once: one, and one that overtakes it. What lies
/// between two blocks is large.
const MOST_PASSES: usize = 2;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;

/// What is to be known of a tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TowerInfo {
    /// Blocks a picture goes through.
    pub blocks: usize,
    /// All rows of a picture belong in one forward.
    pub whole: bool,
    /// Bytes of what comes out, for each patch; a bound.
    pub feature_bytes: u64,
    /// Bytes of the pixels, for each patch.
    pub pixel_bytes: u64,
    /// Bytes of features that are kept for later, at most.
    pub keep_bytes: u64,
}

/// What a tower is to do in a step: take a picture in, if it is not on its way, and go through so
/// many more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerSlice {
    /// Which picture.
    pub image: ImageKey,
    /// A sequence that has it ...
    pub owner: SequenceKey,
    /// ... as this one of its pictures.
    pub index: usize,
    /// Blocks.
    pub blocks: usize,
}

/// A picture whose features a sequence comes to and that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedImage {
    /// Which.
    pub image: ImageKey,
    /// The first sequence that wants it.
    pub owner: SequenceKey,
    /// Which of its pictures.
    pub index: usize,
    /// Its size.
    pub patches: u32,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    done: usize,
    /// Measured of this very picture.
    block_us: Option<f64>,
}

/// The tower's books.
#[derive(Clone, Debug, Default)]
pub struct Tower {
    info: TowerInfo,
    passes: BTreeMap<ImageKey, Pass>,
    /// Wanted pictures, and in how many slices in a row they were passed over.
    passed: BTreeMap<ImageKey, u32>,
    kept: BTreeMap<ImageKey, Kept>,
    /// Of the kept ones, those that sequences with memory come to read.
    needed: BTreeSet<ImageKey>,
    now: u64,
    /// Measured: a block's time for one patch, µs.
    patch_us: Option<f64>,
    /// Of slices since somebody asked, µs.
    spent_us: f64,
}

impl Tower {
    /// A tower of which nothing was asked yet.
    pub fn new(info: TowerInfo) -> Self {
        Self { info, ..Self::default() }
    }

    /// What is known of it.
    pub fn info(&self) -> &TowerInfo {
        &self.info
    }

    /// Whether a picture's features are there.
    pub fn has(&self, image: &ImageKey) -> bool {
        self.kept.contains_key(image)
    }

    /// Whether a picture is on its way through the tower.
    pub fn is_under_way(&self, image: &ImageKey) -> bool {
        self.passes.contains_key(image)
    }

    /// Whether there is nothing, kept or under way.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.passes.is_empty()
    }

    /// Bytes of features that nobody needs at this moment.
    pub fn loose_bytes(&self) -> u64 {
        self.kept
            .iter()
            .filter(|(image, _)| !self.needed.contains(*image))
            .map(|(_, kept)| kept.bytes)
            .sum()
    }

    /// Says anew which features sequences with memory come to read, those used by the latest last,
    /// and which pictures they want. What is wanted by nobody any more stops where it is.
    pub fn settle(&mut self, needed: BTreeSet<ImageKey>, wanted: &[WantedImage]) {
        let is_wanted = |image: &ImageKey| wanted.iter().any(|one| one.image == *image);
        self.passes.retain(|image, _| is_wanted(image));
        self.passed.retain(|image, _| is_wanted(image));
        for image in &needed {
            self.touch(image);
        }
        self.needed = needed;
        let over = self.loose_bytes().saturating_sub(self.info.keep_bytes);
        self.evict(over);
    }

    fn touch(&mut self, image: &ImageKey) {
        self.now += 1;
        if let Some(kept) = self.kept.get_mut(image) {
            kept.used = self.now;
        }
    }

    /// Drops loose features, the longest unused first, until so many bytes are free or none are
    /// left; how many were freed.
    pub fn evict(&mut self, at_least: u64) -> u64 {
        let mut freed = 0;
        while freed < at_least {
            let loose = self.kept.iter().filter(|(image, _)| !self.needed.contains(*image));
            let Some((oldest, bytes)) =
                loose.min_by_key(|(_, kept)| kept.used).map(|(image, kept)| (*image, kept.bytes))
            else {
                break;
            };
            self.kept.remove(&oldest);
            freed += bytes;
        }
        freed
    }

    /// Forgets an image's features. A sequence that still needs them has them computed again.
    pub fn forget(&mut self, image: &ImageKey) {
        self.kept.remove(image);
        self.needed.remove(image);
    }

    /// The next slice for one of these pictures, none of whose features are there, in about so much
    /// time.
    pub fn next_slice(&mut self, wanted: &[WantedImage], most_us: f64) -> Option<TowerSlice> {
        let full = self.passes.len() >= MOST_PASSES;
        let left = |one: &WantedImage| {
            self.info.blocks - self.passes.get(&one.image).map_or(0, |pass| pass.done)
        };
        let rank = |one: &WantedImage| match self.passed.get(&one.image) {
            Some(passed) if *passed >= PATIENCE => (false, 0, one.owner, one.index),
            _ => (true, u64::from(one.patches) * left(one) as u64, one.owner, one.index),
        };
        let chosen = *wanted
            .iter()
            .filter(|one| !full || self.is_under_way(&one.image))
            .min_by_key(|one| rank(one))?;
        let left = left(&chosen);
        let pass = self.passes.entry(chosen.image).or_default();
        let block_us = pass.block_us.or(self.patch_us.map(|us| us * f64::from(chosen.patches)));
        let fits = block_us.map_or(1, |us| (most_us / us.max(1.0)) as usize);
        for one in wanted {
            *self.passed.entry(one.image).or_default() += 1;
        }
        self.passed.remove(&chosen.image);
        let WantedImage { image, owner, index, .. } = chosen;
        Some(TowerSlice { image, owner, index, blocks: fits.clamp(1, left.max(1)) })
    }

    /// A slice of a picture of so many patches took so long.
    pub fn sliced(&mut self, image: ImageKey, patches: u32, blocks: usize, took_us: u64) {
        let mean =
            |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + NEWEST * (new - old)));
        let block_us = took_us as f64 / blocks.max(1) as f64;
        self.spent_us += took_us as f64;
        self.patch_us = mean(self.patch_us, block_us / f64::from(patches.max(1)));
        if let Some(pass) = self.passes.get_mut(&image) {
            pass.done += blocks;
            pass.block_us = mean(pass.block_us, block_us);
        }
    }

    /// How long slices took since this was last asked, µs.
    pub fn take_spent(&mut self) -> f64 {
        std::mem::take(&mut self.spent_us)
    }

    /// A picture is through: its features are there, so many bytes.
    pub fn finished(&mut self, image: ImageKey, bytes: u64) {
        self.passes.remove(&image);
        self.now += 1;
        self.kept.insert(image, Kept { bytes, used: self.now });
        // Until the next look at who needs what: whoever wanted it.
        self.needed.insert(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: TowerInfo =
        TowerInfo { blocks: 8, whole: false, feature_bytes: 10, pixel_bytes: 1, keep_bytes: 100 };

    fn key(at: u8) -> ImageKey {
        ImageKey([at; 32])
    }

    fn wanted(at: u8, patches: u32) -> WantedImage {
        WantedImage { image: key(at), owner: SequenceKey(at.into()), index: 0, patches }
    }

    /// Does slices until nothing is wanted, each block and patch in 1 ms; which pictures they were
    /// of.
    fn run(tower: &mut Tower, mut all: Vec<WantedImage>, most_us: f64) -> Vec<(u8, usize)> {
        let mut slices = vec![];
        let mut done = BTreeMap::<ImageKey, usize>::new();
        while let Some(slice) = tower.next_slice(&all, most_us) {
            let patches = all.iter().find(|one| one.image == slice.image).expect("wanted").patches;
            tower.sliced(
                slice.image,
                patches,
                slice.blocks,
                1_000 * u64::from(patches) * slice.blocks as u64,
            );
            slices.push((slice.image.0[0], slice.blocks));
            let of = done.entry(slice.image).or_default();
            *of += slice.blocks;
            assert!(*of <= INFO.blocks, "{slices:?}");
            if *of == INFO.blocks {
                tower.finished(slice.image, 40);
                all.retain(|one| one.image != slice.image);
            }
            tower.settle(BTreeSet::new(), &all);
        }
        slices
    }

    #[test]
    fn slices_are_as_long_as_was_measured() {
        let mut tower = Tower::new(INFO);
        // Nothing is known: one block. Then what fits 30 ms, and of a larger one a block at least.
        assert_eq!(
            run(&mut tower, vec![wanted(1, 10)], 30_000.0),
            [(1, 1), (1, 3), (1, 3), (1, 1)]
        );
        assert_eq!(run(&mut tower, vec![wanted(2, 15)], 30_000.0), [(2, 2); 4]);
        assert_eq!(run(&mut tower, vec![wanted(3, 100)], 30_000.0), [(3, 1); 8]);
    }

    #[test]
    fn the_shortest_rest_goes_first_and_nobody_waits_for_ever() {
        let mut tower = Tower::new(INFO);
        let slices = run(&mut tower, vec![wanted(1, 100), wanted(2, 10)], 10_000.0);
        // The small one needs eight slices; behind four of them the large one gets one.
        assert_eq!(
            slices[..10],
            [(2, 1), (2, 1), (2, 1), (2, 1), (1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (1, 1)]
        );
        assert_eq!(slices[10..], [(1, 1); 6]);
    }

    #[test]
    fn two_at_most_are_under_way() {
        let mut tower = Tower::new(INFO);
        let all = [wanted(1, 100), wanted(2, 50), wanted(3, 10)];
        assert_eq!(tower.next_slice(&all[..1], 1.0).map(|slice| slice.image), Some(key(1)));
        assert_eq!(tower.next_slice(&all[..2], 1.0).map(|slice| slice.image), Some(key(2)));
        for _ in 0..20 {
            assert_ne!(tower.next_slice(&all, 1.0).map(|slice| slice.image), Some(key(3)));
        }
        // Nobody wants one of them any more: its place is free.
        tower.settle(BTreeSet::new(), &[all[0], all[2]]);
        assert!(!tower.is_under_way(&key(2)));
        let next: BTreeSet<_> =
            (0..6).filter_map(|_| Some(tower.next_slice(&[all[0], all[2]], 1.0)?.image)).collect();
        assert_eq!(next, BTreeSet::from([key(1), key(3)]));
    }

    #[test]
    fn what_is_needed_stays_and_of_the_rest_what_was_used_last() {
        let mut tower = Tower::new(INFO);
        for at in 1..=3 {
            tower.finished(key(at), 40);
        }
        assert_eq!(tower.loose_bytes(), 0, "whoever wanted them has not looked yet");
        tower.settle(BTreeSet::from([key(1)]), &[]);
        assert_eq!((tower.loose_bytes(), tower.has(&key(1)), tower.has(&key(2))), (80, true, true));
        tower.settle(BTreeSet::new(), &[]);
        // 120 bytes are more than may be kept: 2 was used longest ago.
        assert_eq!(
            (tower.loose_bytes(), tower.has(&key(2)), tower.has(&key(1)), tower.has(&key(3))),
            (80, false, true, true)
        );
        tower.settle(BTreeSet::from([key(3)]), &[]);
        assert_eq!((tower.evict(1), tower.evict(1)), (40, 0));
        assert!(tower.has(&key(3)) && !tower.has(&key(1)));
    }

    #[test]
    fn features_that_are_forgotten_are_computed_again_for_a_sequence_that_needs_them() {
        let mut tower = Tower::new(INFO);
        tower.finished(key(1), 40);
        tower.finished(key(2), 40);
        tower.settle(BTreeSet::from([key(1)]), &[]);
        tower.forget(&key(1));
        assert!(!tower.has(&key(1)) && tower.has(&key(2)) && tower.loose_bytes() == 40);
        assert_eq!(run(&mut tower, vec![wanted(1, 100)], 30_000.0), [(1, 1); 8]);
        assert!(tower.has(&key(1)));
    }
}
