//! The prefix cache's index: pages of sequences, each with a hash over all ids before and in it as
//! its key. The least recently used page without a page after it is evicted first.
//!
//! A model with recurrent layers continues a sequence only where their states were kept
//! ([`snapshots`]). Its pages are stored together with the states after the last of them, so that
//! each page without a page after it has states. The least recently used states are evicted first,
//! and with them the pages that no other states need.
//!
//! ```text
//! root(scope) ──▶ page 0 ──▶ page 1 ──▶ page 2      a conversation
//!                      └───▶ page 1' ─▶ page 2'     another one with the same first page
//! ```
//! A page's key hashes its parent's key and its ids; the root's key hashes the cache scope. Rows of
//! an image are hashed by the image's key and the row's number, because all images have the same
//! id. Equal keys mean equal beginnings in one scope, so a request that finds a page may use all
//! pages before it, and two scopes never share a page (I9). The shell has the content of the pages;
//! this index knows their bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Image;

mod snapshots;
mod states;

pub use snapshots::{SNAPSHOT_INTERVAL, SnapshotPlaces};
pub use states::KeptPages;

/// Positions of a page.
pub const PAGE: usize = 64;

/// Key of a page: a hash of the cache scope, all ids before it, and its own ids. It has 256 bits: a
/// client that could make two keys equal could read another client's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub [u8; 32]);

impl PageKey {
    /// The key before the first page of every sequence of a scope.
    pub fn root(scope: &str) -> Self {
        Self(Sha256::new().chain_update(b"paceline prefix").chain_update(scope).finalize().into())
    }

    /// The key of the page with these ids after this one. The first id is at place `first` of the
    /// sequence, whose images are `images`.
    pub fn child(&self, first: usize, ids: &[u32], images: &[Image]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        for (place, id) in (first..).zip(ids) {
            match images.iter().find(|image| (image.first..image.end()).contains(&place)) {
                None => hash.update(id.to_le_bytes()),
                // No vocabulary has this id, so no text gives the same bytes.
                Some(image) => {
                    hash.update(u32::MAX.to_le_bytes());
                    hash.update(image.key.0);
                    hash.update(((place - image.first) as u32).to_le_bytes());
                }
            }
        }
        Self(hash.finalize().into())
    }
}

/// The keys of a sequence's whole pages; grows with the sequence.
#[derive(Clone, Debug)]
pub struct Chain {
    root: PageKey,
    images: Arc<[Image]>,
    keys: Vec<PageKey>,
}

impl Chain {
    /// The chain of a sequence in this scope with these images.
    pub fn new(scope: &str, images: Arc<[Image]>) -> Self {
        Self { root: PageKey::root(scope), images, keys: vec![] }
    }

    /// The keys of all whole pages of `ids`. The ids of the last call must be a prefix of them.
    pub fn of(&mut self, ids: &[u32]) -> &[PageKey] {
        for (at, page) in ids.chunks_exact(PAGE).enumerate().skip(self.keys.len()) {
            let parent = self.keys.last().unwrap_or(&self.root);
            self.keys.push(parent.child(at * PAGE, page, &self.images));
        }
        &self.keys[..ids.len() / PAGE]
    }

    /// Number of first pages that both share, of those computed so far.
    pub fn common(&self, other: &Self) -> usize {
        // A key depends on all pages before it, so equal keys mean equal chains up to them.
        let shorter = self.keys.len().min(other.keys.len());
        (0..shorter).rev().find(|at| self.keys[*at] == other.keys[*at]).map_or(0, |at| at + 1)
    }
}

/// Number of a stored page; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

#[derive(Clone, Debug)]
struct CachedPage {
    id: PageId,
    parent: Option<PageKey>,
    children: usize,
    /// Bytes of keys, values and hidden states.
    bytes: u64,
    hidden_bytes: u64,
    /// The states after it are stored.
    has_states: bool,
    /// Time of its last use, as `PrefixIndex::now` counts. No two pages in `evictable` share one.
    used: u64,
}

/// Pages and states that were evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Pages, with all that they have.
    pub pages: Vec<PageId>,
    /// Pages whose states alone were evicted, or were evicted before the page.
    pub states: Vec<PageId>,
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex {
    pages: HashMap<PageKey, CachedPage>,
    /// Pages in the order of eviction, by their last use: pages without a page after them. For a
    /// model with recurrent layers: pages with states.
    evictable: BTreeMap<u64, PageKey>,
    bytes: u64,
    now: u64,
    next: u64,
    /// Bytes of the states after a page; 0 for a model without recurrent layers.
    state_bytes: u64,
}

impl PrefixIndex {
    /// Bytes of all pages and states.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Number of first pages of a chain that are stored.
    pub fn known(&self, keys: &[PageKey]) -> usize {
        // A page is never stored without the pages before it.
        keys.partition_point(|key| self.pages.contains_key(key))
    }

    /// The pages that a sequence of `length` ids need not compute: the longest stored beginning of
    /// its chain. Never all of its ids, because the row of the last one gives the next token.
    ///
    /// `hidden_pages`: the last pages whose hidden states a drafter reads for this sequence. If none
    /// of them has any, the pages found end before them: computing them once more gives the drafter
    /// its hidden states, and the next such request finds all pages. If some have them, the others
    /// are of a sequence that did without drafts, and a draft is not worth computing them again.
    pub fn find(&mut self, keys: &[PageKey], length: usize, hidden_pages: usize) -> Vec<PageId> {
        let most = keys.len().min(length.saturating_sub(1) / PAGE);
        let mut found = self.usable(&keys[..most]);
        let wanted = hidden_pages.min(found);
        let has_hidden = |key: &PageKey| self.pages[key].hidden_bytes > 0;
        if !keys[found - wanted..found].iter().any(has_hidden) {
            found = self.usable(&keys[..found - wanted]);
        }
        self.touch(&keys[..found]);
        keys[..found].iter().map(|key| self.pages[key].id).collect()
    }

    /// Number of first pages of a chain from which a sequence can continue: the stored ones, up to
    /// the last one with states if the model has recurrent layers.
    pub fn usable(&self, keys: &[PageKey]) -> usize {
        let known = self.known(keys);
        match self.keeps_states() {
            false => known,
            true => {
                let has_states = |at: &usize| self.pages[&keys[*at]].has_states;
                (0..known).rev().find(has_states).map_or(0, |at| at + 1)
            }
        }
    }

    /// Marks the first pages of a chain as used now, the last of them as the least recent. Of
    /// states, those after the last page alone: others of the chain are of use to other sequences.
    fn touch(&mut self, keys: &[PageKey]) {
        let touched = if self.keeps_states() { keys.len().saturating_sub(1) } else { 0 };
        for key in keys[touched..].iter().rev() {
            self.now += 1;
            if let Some(page) = self.pages.get_mut(key) {
                if self.evictable.remove(&page.used).is_some() {
                    self.evictable.insert(self.now, *key);
                }
                page.used = self.now;
            }
        }
    }

    /// Adds up to `most` pages of a chain after the stored ones, with `bytes` bytes each. Evicts
    /// others to stay within `limit` bytes, and adds them to `evicted`. Returns the number of pages
    /// that were stored before, and the new ones: fewer if no more fit. For a model with recurrent
    /// layers see [`PrefixIndex::extend_with_states`].
    pub fn extend(
        &mut self,
        keys: &[PageKey],
        most: usize,
        bytes: u64,
        limit: u64,
        evicted: &mut Evicted,
    ) -> (usize, Vec<PageId>) {
        let (known, since, mut added) = (self.known(keys), self.now, vec![]);
        self.touch(&keys[..known]);
        for at in (known..keys.len()).take(most) {
            if !self.make_room(bytes, limit, since, evicted) {
                break;
            }
            let parent = at.checked_sub(1).map(|before| keys[before]);
            if let Some(parent) = parent.and_then(|parent| self.pages.get(&parent)) {
                self.evictable.remove(&parent.used);
            }
            added.push(self.insert(keys, at, bytes));
            self.evictable.insert(self.now, keys[at]);
        }
        self.assert_sum();
        (known, added)
    }

    /// Stores the page at a place of a chain. The page before it is stored.
    fn insert(&mut self, keys: &[PageKey], at: usize, bytes: u64) -> PageId {
        let parent = at.checked_sub(1).map(|before| keys[before]);
        if let Some(parent) = parent.and_then(|parent| self.pages.get_mut(&parent)) {
            parent.children += 1;
        }
        self.now += 1;
        self.next += 1;
        let (id, used) = (PageId(self.next), self.now);
        let page =
            CachedPage { id, parent, children: 0, bytes, hidden_bytes: 0, has_states: false, used };
        self.pages.insert(keys[at], page);
        self.bytes += bytes;
        id
    }

    /// Adds hidden states of `bytes` bytes to the stored pages of a chain that have none, the last
    /// page first; as [`PrefixIndex::extend`]. Returns the places in the chain of the pages that
    /// got them.
    pub fn extend_hidden(
        &mut self,
        keys: &[PageKey],
        pages: Range<usize>,
        bytes: u64,
        limit: u64,
        evicted: &mut Evicted,
    ) -> Vec<(usize, PageId)> {
        let (since, mut added) = (self.now, vec![]);
        self.touch(&keys[..self.known(keys)]);
        for at in pages.rev() {
            if self.pages.get(&keys[at]).is_none_or(|page| page.hidden_bytes > 0) {
                continue;
            }
            if !self.make_room(bytes, limit, since, evicted) {
                break;
            }
            let page = self
                .pages
                .get_mut(&keys[at])
                .expect("found above, and no page of this chain is evicted for it");
            page.hidden_bytes = bytes;
            page.bytes += bytes;
            self.bytes += bytes;
            added.push((at, page.id));
        }
        self.assert_sum();
        added
    }

    /// Evicts pages until `bytes` more fit the limit. Returns false if that would need a page that
    /// was used later than `since`. The pages before a page count as used with it, so a chain that
    /// is being extended loses no page.
    fn make_room(&mut self, bytes: u64, limit: u64, since: u64, evicted: &mut Evicted) -> bool {
        while self.bytes + bytes > limit {
            match self.evictable.first_key_value() {
                Some((used, _)) if *used <= since => _ = self.drop_oldest(evicted),
                _ => return false,
            }
        }
        true
    }

    /// Evicts what was used longest ago. Returns false if nothing is left.
    fn drop_oldest(&mut self, evicted: &mut Evicted) -> bool {
        let Some((_, key)) = self.evictable.pop_first() else { return false };
        if self.keeps_states() {
            self.drop_states(key, evicted);
            return true;
        }
        let page = self.pages.remove(&key).expect("what is evictable is a page");
        self.bytes -= page.bytes;
        if let Some(parent_key) = page.parent {
            let parent = self
                .pages
                .get_mut(&parent_key)
                .expect("a page is evicted after the pages that follow it");
            parent.children -= 1;
            if parent.children == 0 {
                self.evictable.insert(parent.used, parent_key);
            }
        }
        evicted.pages.push(page.id);
        true
    }

    /// Evicts at least `at_least` bytes, or all.
    pub fn evict(&mut self, at_least: u64) -> Evicted {
        let (before, mut evicted) = (self.bytes, Evicted::default());
        while before - self.bytes < at_least && self.drop_oldest(&mut evicted) {}
        if self.is_empty() {
            self.assert_sum();
        }
        evicted
    }

    /// The counted bytes are those of all pages and states (I11). Walks all pages, so it runs once
    /// for a chain and not for each page.
    fn assert_sum(&self) {
        let states = |page: &CachedPage| if page.has_states { self.state_bytes } else { 0 };
        let sum = || self.pages.values().map(|page| page.bytes + states(page)).sum::<u64>();
        debug_assert!(
            sum() == self.bytes,
            "expected {} bytes of pages and states, found {}",
            sum(),
            self.bytes
        );
    }

    /// Removes the pages of a chain and all pages after them, which were computed from them, and
    /// returns them. For a sequence whose rows are not finite: it is unknown which of its pages is
    /// the cause.
    pub fn remove(&mut self, keys: &[PageKey]) -> Vec<PageId> {
        let mut children = HashMap::<PageKey, Vec<PageKey>>::new();
        for (key, page) in &self.pages {
            if let Some(parent) = page.parent {
                children.entry(parent).or_default().push(*key);
            }
        }
        let (mut removed, mut left) =
            (vec![], keys.first().map(|first| vec![*first]).unwrap_or_default());
        while let Some(key) = left.pop() {
            let Some(page) = self.pages.remove(&key) else { continue };
            self.evictable.remove(&page.used);
            self.bytes -= page.bytes + if page.has_states { self.state_bytes } else { 0 };
            removed.push(page.id);
            left.extend(children.remove(&key).unwrap_or_default());
        }
        self.assert_sum();
        removed
    }

    /// Removes the hidden states of all pages, because another drafter uses other layers.
    pub fn forget_hidden(&mut self) {
        for page in self.pages.values_mut() {
            self.bytes -= page.hidden_bytes;
            page.bytes -= page.hidden_bytes;
            page.hidden_bytes = 0;
        }
        self.assert_sum();
    }
}

#[cfg(test)]
mod tests;
