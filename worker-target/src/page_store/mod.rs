//! The page store: KV rows of the prefix cache, page by page, and hidden states of some pages. The
//! core's index decides which pages exist (`prefix_cache`). Drafters come and go; the store stays,
//! because it belongs to the target and depends neither on lanes nor on drafters.
//!
//! Of a model with recurrent layers the store has states, too (`states`), and of one whose layers
//! keep their last positions alone the windows; both are called states here. Its pages are stored
//! together with the states after the last of them, at the step border at which the sequence has
//! exactly these rows.

mod states;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use paceline_models::{KeptStates, KvRows, KvStore, ModelError, SequenceId};
use paceline_target_core::{
    Chain, Evicted, HiddenStateWindow, Image, PAGE, PageId, PageKey, PrefixIndex, PrefixWait,
    Sequence, SequenceKey,
};

const _: () =
    assert!(PAGE == paceline_models::kv::PAGE as usize, "core and store count in the same pages");

/// Most bytes that are copied out of the KV store at one step border: that takes a few
/// milliseconds.
pub(crate) const BORDER_BYTES: u64 = 32 << 20;

/// The contents of a page.
struct StoredPage {
    rows: KvRows,
    /// Hidden states of the page's positions, as the drafter would be sent them. Empty in most
    /// pages.
    hidden_states: Vec<u8>,
    /// States of recurrent layers after the page. Most pages have none.
    states: Option<KeptStates>,
}

impl StoredPage {
    fn new(rows: KvRows) -> Self {
        Self { rows, hidden_states: vec![], states: None }
    }
}

/// A sequence that runs, as far as the store follows it.
struct OpenSequence {
    chain: Chain,
    /// Number of its first pages that were in the store at the last check.
    retained: usize,
    /// The last attempt to store more pages found no memory.
    full: bool,
}

/// The pages that a prompt begins with.
pub(crate) struct FoundPages {
    pub(crate) pages: Vec<PageId>,
    /// Name of the last of them.
    pub(crate) last: Option<PageKey>,
}

/// A sequence of which nothing is computed, after its lookup.
#[derive(Clone, Copy)]
pub(crate) struct Lookup {
    pub(crate) key: SequenceKey,
    /// Length of the sequence, in ids.
    pub(crate) ids: usize,
    /// Number of its pages in the store.
    pub(crate) found: usize,
}

/// How much the store may take in.
#[derive(Clone, Copy)]
pub(crate) struct Retention {
    /// Most bytes of new pages.
    pub(crate) most_new: u64,
    /// Most bytes of all pages together.
    pub(crate) limit: u64,
}

/// The store. Not `Send`, because arrays are not.
pub(crate) struct PageStore {
    is_on: bool,
    index: PrefixIndex,
    stored: HashMap<PageId, StoredPage>,
    open: HashMap<SequenceKey, OpenSequence>,
    /// Bytes of the KV rows in a page.
    page_bytes: u64,
}

impl PageStore {
    /// An empty store for pages of `kv`. If not `is_on` it stays empty.
    pub(crate) fn new(kv: &KvStore, is_on: bool) -> Self {
        let page_bytes = kv.row_bytes() * PAGE as u64;
        Self {
            is_on,
            index: PrefixIndex::with_states(kv.kept_bytes()),
            stored: HashMap::new(),
            open: HashMap::new(),
            page_bytes,
        }
    }

    /// Bytes of all pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// A sequence with these images begins.
    pub(crate) fn open(&mut self, key: SequenceKey, scope: &str, images: Arc<[Image]>) {
        if self.is_on {
            let chain = Chain::new(scope, images);
            self.open.insert(key, OpenSequence { chain, retained: 0, full: false });
        }
    }

    /// A sequence is over.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        self.open.remove(&key);
    }

    /// Keys of the whole pages of `ids`, the beginning of a sequence.
    pub(crate) fn keys(&mut self, key: SequenceKey, ids: &[u32]) -> &[PageKey] {
        self.open.get_mut(&key).map_or(&[], |open| open.chain.of(ids))
    }

    /// The pages that need not be computed for a sequence of these ids. `hidden_pages` as in
    /// [`PrefixIndex::find`]. `usable` returns how many of a number of pages the sequence may use.
    pub(crate) fn find(
        &mut self,
        key: SequenceKey,
        ids: &[u32],
        hidden_pages: usize,
        usable: impl Fn(usize) -> usize,
    ) -> FoundPages {
        let Self { index, open, .. } = self;
        let Some(open) = open.get_mut(&key) else {
            return FoundPages { pages: vec![], last: None };
        };
        let keys = open.chain.of(ids);
        let mut pages = index.find(keys, ids.len(), hidden_pages);
        let usable = usable(pages.len());
        if usable < pages.len() {
            pages.truncate(index.usable(&keys[..usable]));
        }
        open.retained = pages.len();
        let last = pages.len().checked_sub(1).map(|last| keys[last]);
        FoundPages { pages, last }
    }

    /// The other sequence, if there is one, that will bring more pages of this sequence's
    /// beginning. If states of sequences are kept, it brings pages only up to a place of its own.
    pub(crate) fn coming<'a>(
        &self,
        own: Lookup,
        others: impl Iterator<Item = (SequenceKey, &'a Sequence)>,
    ) -> Option<PrefixWait> {
        let chain = &self.open.get(&own.key)?.chain;
        let most = own.ids.saturating_sub(1) / PAGE;
        let promised = |(leader, sequence): (SequenceKey, &Sequence)| {
            let other = self.open.get(&leader)?;
            let (pages, committed) = (chain.common(&other.chain).min(most), sequence.committed);
            if let Some(places) = sequence.snapshots {
                let rows = places.last(committed.max(own.found * PAGE), pages * PAGE)?;
                return (!other.full).then_some(PrefixWait { leader, rows });
            }
            let will_come = committed < pages * PAGE || other.retained < pages;
            let helps = pages > own.found && will_come && !other.full;
            helps.then_some(PrefixWait { leader, rows: pages * PAGE })
        };
        others.filter_map(promised).min_by_key(|follows| (Reverse(follows.rows), follows.leader))
    }

    /// Copies pages into a sequence that has no rows and room for `room` positions. Returns the
    /// number of copied positions.
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
        let missing = || ModelError::Batch("the index has a page that the store has not".into());
        let stored = pages.iter().map(|page| self.stored.get(page));
        let stored = stored.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let rows: Vec<&KvRows> = stored.iter().map(|page| &page.rows).collect();
        let last = stored.last().filter(|_| kv.kept_bytes() > 0);
        let states = last.and_then(|page| page.states.as_ref());
        let positions = pages.len() * PAGE;
        kv.copy_in(SequenceId(key.0), &rows, states, positions as i32, room as i32)?;
        Ok(positions)
    }

    /// Hidden states of the last of these pages, as far back as they go without a gap. Returns the
    /// position of the first row, and the bytes page by page.
    pub(crate) fn hidden_states(&self, pages: &[PageId]) -> (usize, Vec<&[u8]>) {
        let of_page = |page| self.stored.get(page).map_or(&[][..], |stored| &stored.hidden_states);
        let mut last: Vec<&[u8]> =
            pages.iter().rev().map(of_page).take_while(|bytes| !bytes.is_empty()).collect();
        last.reverse();
        ((pages.len() - last.len()) * PAGE, last)
    }

    /// Bytes of a running sequence's first `rows` rows that are not stored yet; 0 if the last
    /// attempt found no memory. For a model without recurrent layers.
    pub(crate) fn due_bytes(&self, key: SequenceKey, rows: usize) -> u64 {
        let due = |open: &OpenSequence| {
            (rows / PAGE).saturating_sub(open.retained) as u64 * self.page_bytes
        };
        self.open.get(&key).filter(|open| !open.full).map_or(0, due)
    }

    /// Stores the whole pages of `ids`, which are committed rows of a sequence. When all of them
    /// are there, the pages that `window` covers get their hidden states. Returns whether there is
    /// more to store. For a model without recurrent layers.
    ///
    /// # Errors
    /// As [`KvStore::copy_out`]. The pages are not stored then.
    pub(crate) fn retain(
        &mut self,
        kv: &KvStore,
        key: SequenceKey,
        ids: &[u32],
        window: Option<&HiddenStateWindow>,
        retention: Retention,
    ) -> Result<bool, ModelError> {
        let Self { index, open, stored, page_bytes, .. } = self;
        let Some(open) = open.get_mut(&key) else { return Ok(false) };
        let keys = open.chain.of(ids);
        let most = retention.most_new.checked_div(*page_bytes).unwrap_or(1).max(1) as usize;
        let mut evicted = Evicted::default();
        let (known, added) = index.extend(keys, most, *page_bytes, retention.limit, &mut evicted);
        // Evicted pages are freed before the new copies are made.
        drop_evicted(stored, &evicted);
        if !added.is_empty() {
            let first = (known * PAGE) as i32;
            let rows = kv.copy_out(SequenceId(key.0), first, PAGE as i32, added.len() as i32)?;
            stored.extend(added.iter().copied().zip(rows.into_iter().map(StoredPage::new)));
        }
        open.retained = known + added.len();
        open.full = added.len() < most && open.retained < keys.len();
        if open.retained < keys.len() {
            return Ok(!open.full);
        }
        if let Some(window) = window {
            store_hidden_states(index, stored, keys, window, retention.limit);
        }
        Ok(false)
    }

    /// Removes every page that a sequence of these ids begins with, whichever sequence stored it,
    /// and all pages after them.
    pub(crate) fn remove(&mut self, key: SequenceKey, ids: &[u32]) {
        let Self { index, open, stored, .. } = self;
        let Some(open) = open.get_mut(&key) else { return };
        for page in index.remove(open.chain.of(ids)) {
            stored.remove(&page);
        }
        open.retained = 0;
    }

    /// Evicts at least this many bytes, or everything. Returns how many were freed; their memory is
    /// free when this returns.
    pub(crate) fn evict(&mut self, at_least: u64) -> u64 {
        let before = self.bytes();
        drop_evicted(&mut self.stored, &self.index.evict(at_least));
        before - self.bytes()
    }

    /// Drops all hidden states: later ones are of other layers.
    pub(crate) fn forget_hidden_states(&mut self) {
        self.index.forget_hidden();
        self.stored.values_mut().for_each(|stored| stored.hidden_states = vec![]);
    }
}

/// Drops the contents of evicted pages, and evicted states.
fn drop_evicted(stored: &mut HashMap<PageId, StoredPage>, evicted: &Evicted) {
    for page in &evicted.states {
        if let Some(page) = stored.get_mut(page) {
            page.states = None;
        }
    }
    evicted.pages.iter().for_each(|page| drop(stored.remove(page)));
}

/// Stores hidden states of the pages of a stored chain that a window covers.
fn store_hidden_states(
    index: &mut PrefixIndex,
    stored: &mut HashMap<PageId, StoredPage>,
    keys: &[PageKey],
    window: &HiddenStateWindow,
    limit: u64,
) {
    let bytes = (window.row_bytes() * PAGE) as u64;
    if bytes == 0 {
        return;
    }
    let covered = window.first().div_ceil(PAGE)..(window.end() / PAGE).min(keys.len());
    let mut evicted = Evicted::default();
    for (at, page) in index.extend_hidden(keys, covered, bytes, limit, &mut evicted) {
        if let Some(stored) = stored.get_mut(&page) {
            stored.hidden_states = window.rows(at * PAGE, PAGE).to_vec();
        }
    }
    drop_evicted(stored, &evicted);
}
