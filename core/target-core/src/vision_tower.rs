//! The vision tower's work: which image it computes next, how many blocks of it, and which images'
//! features stay stored. The shell has the arrays of exactly the images that are named here.
//!
//! ```text
//! a sequence needs an image ──▶ wanted ──▶ in the tower, slice by slice ──▶ stored, needed
//!                                 ▲                                               │
//!                                 │                                               ▼
//!                                 └── evicted, least recently used first ◀── stored, evictable
//! ```
//! A slice has as many blocks as fit the time of a prompt chunk. So an image of any size delays
//! running streams by no more than a chunk and one block. The image with the least work left goes
//! first; an image that was skipped in `MAX_SKIPPED_SLICES` slices goes before it. Features that
//! a sequence with memory needs are never evicted, and count as held by the sequence. The others
//! are bounded, and are evicted before anything else.

use std::collections::{BTreeMap, BTreeSet};

use paceline_vocabulary::ExponentialMean;

use super::{ImageKey, SequenceKey};

/// Slices without this image after which it goes before all others.
const MAX_SKIPPED_SLICES: u32 = 4;
/// Images that are in the tower at once: one, and one that overtakes it. Their intermediate results
/// are large.
const MAX_PASSES: usize = 2;
/// Weight of the newest time in a mean: about the last three slices count.
const NEWEST_WEIGHT: f64 = 0.3;

/// The properties of a tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TowerInfo {
    /// Blocks that an image goes through.
    pub blocks: usize,
    /// All rows of an image must be in one forward.
    pub whole: bool,
    /// Largest number of bytes of features, for each patch.
    pub feature_bytes: u64,
    /// Bytes of the pixels, for each patch.
    pub pixel_bytes: u64,
    /// Most bytes of features that are stored without a sequence that needs them.
    pub keep_bytes: u64,
}

/// The tower's work in a step: some blocks of one image, which begins with them if it has not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerSlice {
    /// The image.
    pub image: ImageKey,
    /// A sequence that has the image.
    pub owner: SequenceKey,
    /// Number of the image in that sequence.
    pub index: usize,
    /// Blocks.
    pub blocks: usize,
}

/// An image whose features a sequence needs next and that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedImage {
    /// The image.
    pub image: ImageKey,
    /// The first sequence that wants it.
    pub owner: SequenceKey,
    /// Number of the image in that sequence.
    pub index: usize,
    /// Size of the image in patches.
    pub patches: u32,
}

#[derive(Clone, Copy, Debug)]
struct StoredFeatures {
    bytes: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct TowerPass {
    /// Blocks that are done.
    done: usize,
    /// Time of a block of this image, in microseconds.
    block_us: ExponentialMean,
}

impl Default for TowerPass {
    fn default() -> Self {
        Self { done: 0, block_us: ExponentialMean::new(NEWEST_WEIGHT) }
    }
}

/// The tower's images: in the tower, wanted, and with stored features.
#[derive(Clone, Debug)]
pub struct Tower {
    info: TowerInfo,
    passes: BTreeMap<ImageKey, TowerPass>,
    /// Wanted images, and the slices in a row that each one was skipped in.
    skipped: BTreeMap<ImageKey, u32>,
    stored: BTreeMap<ImageKey, StoredFeatures>,
    /// The stored images that sequences with memory need.
    needed: BTreeSet<ImageKey>,
    now: u64,
    /// Time of a block for one patch, in microseconds.
    patch_us: ExponentialMean,
    /// Time of slices since the last [`Tower::take_spent`], in microseconds.
    spent_us: f64,
}

impl Default for Tower {
    fn default() -> Self {
        Self::new(TowerInfo::default())
    }
}

impl Tower {
    /// A tower without work.
    pub fn new(info: TowerInfo) -> Self {
        Self {
            info,
            passes: BTreeMap::new(),
            skipped: BTreeMap::new(),
            stored: BTreeMap::new(),
            needed: BTreeSet::new(),
            now: 0,
            patch_us: ExponentialMean::new(NEWEST_WEIGHT),
            spent_us: 0.0,
        }
    }

    /// Properties of the tower.
    pub fn info(&self) -> &TowerInfo {
        &self.info
    }

    /// Whether an image's features are stored.
    pub fn has(&self, image: &ImageKey) -> bool {
        self.stored.contains_key(image)
    }

    /// Whether an image is in the tower.
    pub fn is_under_way(&self, image: &ImageKey) -> bool {
        self.passes.contains_key(image)
    }

    /// Whether no features are stored and no image is in the tower.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty() && self.passes.is_empty()
    }

    /// Bytes of features that no sequence needs at this moment.
    pub fn evictable_bytes(&self) -> u64 {
        self.stored
            .iter()
            .filter(|(image, _)| !self.needed.contains(*image))
            .map(|(_, stored)| stored.bytes)
            .sum()
    }

    /// Replaces the features that sequences with memory need, and the images that they want. An
    /// image in the tower that no sequence wants any more is stopped.
    pub fn update(&mut self, needed: BTreeSet<ImageKey>, wanted: &[WantedImage]) {
        let is_wanted = |image: &ImageKey| wanted.iter().any(|one| one.image == *image);
        self.passes.retain(|image, _| is_wanted(image));
        self.skipped.retain(|image, _| is_wanted(image));
        for image in &needed {
            self.touch(image);
        }
        self.needed = needed;
        let over = self.evictable_bytes().saturating_sub(self.info.keep_bytes);
        self.evict(over);
    }

    fn touch(&mut self, image: &ImageKey) {
        self.now += 1;
        if let Some(stored) = self.stored.get_mut(image) {
            stored.used = self.now;
        }
    }

    /// Evicts features that no sequence needs, the least recently used first, until `at_least`
    /// bytes are freed. Returns the bytes that were freed.
    pub fn evict(&mut self, at_least: u64) -> u64 {
        let mut freed = 0;
        while freed < at_least {
            let loose = self.stored.iter().filter(|(image, _)| !self.needed.contains(*image));
            let Some((oldest, bytes)) = loose
                .min_by_key(|(_, stored)| stored.used)
                .map(|(image, stored)| (*image, stored.bytes))
            else {
                break;
            };
            self.stored.remove(&oldest);
            freed += bytes;
        }
        freed
    }

    /// Forgets an image's features. A sequence that still needs them has them computed again.
    pub fn forget(&mut self, image: &ImageKey) {
        self.stored.remove(image);
        self.needed.remove(image);
    }

    /// The next slice for one of these wanted images, in about `most_us` microseconds.
    pub fn next_slice(&mut self, wanted: &[WantedImage], most_us: f64) -> Option<TowerSlice> {
        let full = self.passes.len() >= MAX_PASSES;
        let left = |one: &WantedImage| {
            self.info.blocks - self.passes.get(&one.image).map_or(0, |pass| pass.done)
        };
        let rank = |one: &WantedImage| match self.skipped.get(&one.image) {
            Some(skipped) if *skipped >= MAX_SKIPPED_SLICES => (false, 0, one.owner, one.index),
            _ => (true, u64::from(one.patches) * left(one) as u64, one.owner, one.index),
        };
        let chosen = *wanted
            .iter()
            .filter(|one| !full || self.is_under_way(&one.image))
            .min_by_key(|one| rank(one))?;
        let left = left(&chosen);
        let pass = self.passes.entry(chosen.image).or_default();
        let of_patches = self.patch_us.get().map(|us| us * f64::from(chosen.patches));
        let block_us = pass.block_us.get().or(of_patches);
        let fits = block_us.map_or(1, |us| (most_us / us.max(1.0)) as usize);
        for one in wanted {
            *self.skipped.entry(one.image).or_default() += 1;
        }
        self.skipped.remove(&chosen.image);
        let WantedImage { image, owner, index, .. } = chosen;
        Some(TowerSlice { image, owner, index, blocks: fits.clamp(1, left.max(1)) })
    }

    /// A slice of an image of `patches` patches took `took_us` microseconds.
    pub fn sliced(&mut self, image: ImageKey, patches: u32, blocks: usize, took_us: u64) {
        let block_us = took_us as f64 / blocks.max(1) as f64;
        self.spent_us += took_us as f64;
        self.patch_us.add(block_us / f64::from(patches.max(1)));
        if let Some(pass) = self.passes.get_mut(&image) {
            pass.done += blocks;
            pass.block_us.add(block_us);
        }
    }

    /// Time of slices since the last call, in microseconds.
    pub fn take_spent(&mut self) -> f64 {
        std::mem::take(&mut self.spent_us)
    }

    /// An image is complete, with `bytes` bytes of features.
    pub fn finished(&mut self, image: ImageKey, bytes: u64) {
        self.passes.remove(&image);
        self.now += 1;
        self.stored.insert(image, StoredFeatures { bytes, used: self.now });
        // Needed until the next update, because a sequence wanted it.
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

    /// Computes slices until no image is wanted, each block and patch in 1 ms. Returns the images
    /// of the slices.
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
            tower.update(BTreeSet::new(), &all);
        }
        slices
    }

    #[test]
    fn slices_follow_the_measured_time_of_blocks() {
        let mut tower = Tower::new(INFO);
        // Before a measurement: one block. Then what fits 30 ms, and at least one block.
        assert_eq!(
            run(&mut tower, vec![wanted(1, 10)], 30_000.0),
            [(1, 1), (1, 3), (1, 3), (1, 1)]
        );
        assert_eq!(run(&mut tower, vec![wanted(2, 15)], 30_000.0), [(2, 2); 4]);
        assert_eq!(run(&mut tower, vec![wanted(3, 100)], 30_000.0), [(3, 1); 8]);
    }

    #[test]
    fn the_image_with_the_least_work_goes_first_and_no_image_starves() {
        let mut tower = Tower::new(INFO);
        let slices = run(&mut tower, vec![wanted(1, 100), wanted(2, 10)], 10_000.0);
        // The small one needs eight slices. After four of them the large one gets one.
        assert_eq!(
            slices[..10],
            [(2, 1), (2, 1), (2, 1), (2, 1), (1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (1, 1)]
        );
        assert_eq!(slices[10..], [(1, 1); 6]);
    }

    #[test]
    fn at_most_two_images_are_in_the_tower() {
        let mut tower = Tower::new(INFO);
        let all = [wanted(1, 100), wanted(2, 50), wanted(3, 10)];
        assert_eq!(tower.next_slice(&all[..1], 1.0).map(|slice| slice.image), Some(key(1)));
        assert_eq!(tower.next_slice(&all[..2], 1.0).map(|slice| slice.image), Some(key(2)));
        for _ in 0..20 {
            assert_ne!(tower.next_slice(&all, 1.0).map(|slice| slice.image), Some(key(3)));
        }
        // No sequence wants one of them any more: its place in the tower is free.
        tower.update(BTreeSet::new(), &[all[0], all[2]]);
        assert!(!tower.is_under_way(&key(2)));
        let next: BTreeSet<_> =
            (0..6).filter_map(|_| Some(tower.next_slice(&[all[0], all[2]], 1.0)?.image)).collect();
        assert_eq!(next, BTreeSet::from([key(1), key(3)]));
    }

    #[test]
    fn needed_features_stay_and_the_least_recently_used_others_are_evicted() {
        let mut tower = Tower::new(INFO);
        for at in 1..=3 {
            tower.finished(key(at), 40);
        }
        assert_eq!(tower.evictable_bytes(), 0, "they count as needed until the next update");
        tower.update(BTreeSet::from([key(1)]), &[]);
        assert_eq!(
            (tower.evictable_bytes(), tower.has(&key(1)), tower.has(&key(2))),
            (80, true, true)
        );
        tower.update(BTreeSet::new(), &[]);
        // 120 bytes are more than may be stored: 2 was used longest ago.
        assert_eq!(
            (tower.evictable_bytes(), tower.has(&key(2)), tower.has(&key(1)), tower.has(&key(3))),
            (80, false, true, true)
        );
        tower.update(BTreeSet::from([key(3)]), &[]);
        assert_eq!((tower.evict(1), tower.evict(1)), (40, 0));
        assert!(tower.has(&key(3)) && !tower.has(&key(1)));
    }

    #[test]
    fn features_that_are_forgotten_are_computed_again_for_a_sequence_that_needs_them() {
        let mut tower = Tower::new(INFO);
        tower.finished(key(1), 40);
        tower.finished(key(2), 40);
        tower.update(BTreeSet::from([key(1)]), &[]);
        tower.forget(&key(1));
        assert!(!tower.has(&key(1)) && tower.has(&key(2)) && tower.evictable_bytes() == 40);
        assert_eq!(run(&mut tower, vec![wanted(1, 100)], 30_000.0), [(1, 1); 8]);
        assert!(tower.has(&key(1)));
    }
}
