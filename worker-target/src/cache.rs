//! The prefix cache: pages of KV rows, with the taps of those at the ends of chains, behind the
//! index that knows their names (`core/prefix`). It belongs to the target and knows neither lanes
//! nor drafters: drafters come and go and it stays.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use paceline_models::{KvRows, KvStore, ModelError, SequenceId};

use crate::core::{
    Chain, HiddenStateWindow, Image, PAGE, PageId, PageKey, PrefixIndex, SequenceKey,
};

const _: () =
    assert!(PAGE == paceline_models::kv::PAGE as usize, "core and store count in the same pages");

/// What is copied out of the store at one step border, at most: a few milliseconds.
pub(crate) const BORDER_BYTES: u64 = 32 << 20;

/// What lies in a page.
struct Stored {
    rows: KvRows,
    /// Of its positions, as the drafter would be sent them; none in most pages.
    taps: Vec<u8>,
}

/// A running sequence, as far as it concerns the cache.
struct Running {
    chain: Chain,
    /// Its first pages, which were kept or there already when it was last looked after.
    kept: usize,
    /// The last attempt to keep more found no room.
    full: bool,
}

/// The cache. Not `Send`, as its arrays.
pub(crate) struct Cache {
    on: bool,
    index: PrefixIndex,
    stored: HashMap<PageId, Stored>,
    running: HashMap<SequenceKey, Running>,
    /// Of the KV rows in a page.
    page_bytes: u64,
}

impl Cache {
    /// An empty one for pages of a store; `on`: whether anything is ever kept.
    pub(crate) fn new(kv: &KvStore, on: bool) -> Self {
        let page_bytes = kv.row_bytes() * PAGE as u64;
        Self {
            on,
            index: PrefixIndex::default(),
            stored: HashMap::new(),
            running: HashMap::new(),
            page_bytes,
        }
    }

    /// Bytes of all that is kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// A sequence begins, with these pictures.
    pub(crate) fn open(&mut self, key: SequenceKey, scope: &str, images: Arc<[Image]>) {
        if self.on {
            self.running
                .insert(key, Running { chain: Chain::new(scope, images), kept: 0, full: false });
        }
    }

    /// A sequence is over.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        self.running.remove(&key);
    }

    /// Keys of the whole pages of `ids`, the beginning of a sequence.
    pub(crate) fn keys(&mut self, key: SequenceKey, ids: &[u32]) -> &[PageKey] {
        self.running.get_mut(&key).map_or(&[], |running| running.chain.of(ids))
    }

    /// The pages that a sequence of these ids need not read, and the name of the last. `tap_pages`
    /// as in [`PrefixIndex::find`]; `ends` says of a number of pages how many of them it may begin with.
    pub(crate) fn find(
        &mut self,
        key: SequenceKey,
        ids: &[u32],
        tap_pages: usize,
        ends: impl Fn(usize) -> usize,
    ) -> (Vec<PageId>, Option<PageKey>) {
        let Self { index, running, .. } = self;
        let Some(running) = running.get_mut(&key) else { return (vec![], None) };
        let keys = running.chain.of(ids);
        let mut found = index.find(keys, ids.len(), tap_pages);
        found.truncate(ends(found.len()));
        running.kept = found.len();
        let last = found.len().checked_sub(1).map(|last| keys[last]);
        (found, last)
    }

    /// Whether a sequence of `length` ids, of which nothing is read and `found` pages are here, had
    /// better wait for what one of the others reads and it begins with too: for which, and how many
    /// rows. `others`: their committed rows.
    pub(crate) fn ahead(
        &self,
        (key, length, found): (SequenceKey, usize, usize),
        others: impl Iterator<Item = (SequenceKey, usize)>,
    ) -> Option<(SequenceKey, usize)> {
        let own = self.running.get(&key)?;
        let most = length.saturating_sub(1) / PAGE;
        let promised = |(key, committed): (SequenceKey, usize)| {
            let other = self.running.get(&key)?;
            let pages = own.chain.common(&other.chain).min(most);
            let comes = committed < pages * PAGE || other.kept < pages;
            (pages > found && comes && !other.full).then_some((key, pages * PAGE))
        };
        others.filter_map(promised).min_by_key(|(key, rows)| (Reverse(*rows), *key))
    }

    /// Copies pages into a sequence that has no rows, which will have `room` positions soon; how
    /// many positions they are.
    ///
    /// # Errors
    /// As [`KvStore::copy_in`].
    pub(crate) fn copy_in(
        &self,
        pages: &[PageId],
        kv: &mut KvStore,
        key: SequenceKey,
        room: usize,
    ) -> Result<usize, ModelError> {
        let missing = || ModelError::Batch("the index knows a page that does not lie here".into());
        let rows = pages
            .iter()
            .map(|page| Some(&self.stored.get(page)?.rows))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(missing)?;
        let positions = pages.len() * PAGE;
        kv.copy_in(SequenceId(key.0), &rows, positions as i32, room as i32)?;
        Ok(positions)
    }

    /// Taps of the last of these pages, as far back as they go without a gap: position of the first
    /// row, and their bytes page by page.
    pub(crate) fn taps(&self, pages: &[PageId]) -> (usize, Vec<&[u8]>) {
        let taps = |page| self.stored.get(page).map_or(&[][..], |stored| &stored.taps);
        let mut last: Vec<&[u8]> =
            pages.iter().rev().map(taps).take_while(|taps| !taps.is_empty()).collect();
        last.reverse();
        ((pages.len() - last.len()) * PAGE, last)
    }

    /// Bytes that a running sequence of `rows` committed rows has and that are not kept yet; 0
    /// where the last attempt found no room.
    pub(crate) fn due_bytes(&self, key: SequenceKey, rows: usize) -> u64 {
        let due =
            |running: &Running| (rows / PAGE).saturating_sub(running.kept) as u64 * self.page_bytes;
        self.running.get(&key).filter(|running| !running.full).map_or(0, due)
    }

    /// Keeps the whole pages of `ids`, which are committed rows of a sequence, up to `most` bytes
    /// of new ones and `limit` bytes in all. With all of them there, those that `window` covers get
    /// their taps. `true`: there is more to keep.
    ///
    /// # Errors
    /// As [`KvStore::copy_out`]. The pages are not kept then.
    pub(crate) fn keep(
        &mut self,
        kv: &KvStore,
        (key, ids): (SequenceKey, &[u32]),
        window: Option<&HiddenStateWindow>,
        (most, limit): (u64, u64),
    ) -> Result<bool, ModelError> {
        let Self { index, running, stored, page_bytes, .. } = self;
        let Some(running) = running.get_mut(&key) else { return Ok(false) };
        let keys = running.chain.of(ids);
        let most = (most / *page_bytes).max(1) as usize;
        let mut dropped = vec![];
        let (known, added) = index.extend(keys, most, *page_bytes, limit, &mut dropped);
        // What makes room is gone before the new copies are made.
        dropped.drain(..).for_each(|page| drop(stored.remove(&page)));
        if !added.is_empty() {
            let rows = kv.copy_out(
                SequenceId(key.0),
                (known * PAGE) as i32,
                PAGE as i32,
                added.len() as i32,
            )?;
            stored.extend(
                added.iter().zip(rows).map(|(page, rows)| (*page, Stored { rows, taps: vec![] })),
            );
        }
        running.kept = known + added.len();
        running.full = added.len() < most && running.kept < keys.len();
        if running.kept < keys.len() {
            return Ok(!running.full);
        }
        let page_taps = |window: &HiddenStateWindow| window.row_bytes() * PAGE;
        if let Some(window) = window.filter(|window| page_taps(window) > 0) {
            let covered = window.first().div_ceil(PAGE)..(window.end() / PAGE).min(keys.len());
            for (at, page) in
                index.extend_hidden(keys, covered, page_taps(window) as u64, limit, &mut dropped)
            {
                if let Some(stored) = stored.get_mut(&page) {
                    stored.taps = window.rows(at * PAGE, PAGE).to_vec();
                }
            }
            dropped.drain(..).for_each(|page| drop(stored.remove(&page)));
        }
        Ok(false)
    }

    /// Removes every page that a sequence of these ids begins with, whoever stored it, and all
    /// pages behind them.
    pub(crate) fn remove(&mut self, key: SequenceKey, ids: &[u32]) {
        let Self { index, running, stored, .. } = self;
        let Some(running) = running.get_mut(&key) else { return };
        for page in index.remove(running.chain.of(ids)) {
            stored.remove(&page);
        }
        running.kept = 0;
    }

    /// Drops at least so many bytes, or all there are. Memory of dropped pages is free when this
    /// returns.
    pub(crate) fn evict(&mut self, at_least: u64) -> u64 {
        let before = self.bytes();
        for page in self.index.evict(at_least) {
            self.stored.remove(&page);
        }
        before - self.bytes()
    }

    /// Forgets all taps: those to come are of other layers.
    pub(crate) fn forget_hidden(&mut self) {
        self.index.forget_hidden();
        self.stored.values_mut().for_each(|stored| stored.taps = vec![]);
    }
}
