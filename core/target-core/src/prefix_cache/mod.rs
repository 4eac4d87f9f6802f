//! Which beginnings of sequences are kept: an index of pages, each named by a hash over everything
//! before and in it.
//!
//! ```text
//! root(scope) ──▶ page 0 ──▶ page 1 ──▶ page 2      a conversation
//!                      └───▶ page 1' ─▶ page 2'     another one that begins alike
//! ```
//! A page's key hashes its parent's key and its ids, the root the cache scope. A picture's rows are
//! hashed by what the picture is and which of its rows they are, as all pictures have the same id:
//! equal keys mean equal beginnings of one scope, so whoever finds a page may read all before it,
//! and scopes never meet (I9). A page is dropped only when none is behind it; of those the one that
//! was used longest ago. What is in a page is the shell's; here are its bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Image;

/// Positions of a page.
pub const PAGE: usize = 64;

/// Name of a page: a hash of cache scope, all ids before it, and its own. 256 bits, because who
/// could make two of them equal could read another's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub [u8; 32]);

impl PageKey {
    /// What all chains of a scope begin with.
    pub fn root(scope: &str) -> Self {
        Self(Sha256::new().chain_update(b"paceline prefix").chain_update(scope).finalize().into())
    }

    /// The page with these ids behind this one; the first is the sequence's id at `first`, and
    /// `images` are its pictures.
    pub fn child(&self, first: usize, ids: &[u32], images: &[Image]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        for (place, id) in (first..).zip(ids) {
            match images.iter().find(|image| (image.first..image.end()).contains(&place)) {
                None => hash.update(id.to_le_bytes()),
                // No vocabulary has this id, so nothing that is text is written like it.
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
    /// Of a sequence in this scope with these pictures.
    pub fn new(scope: &str, images: Arc<[Image]>) -> Self {
        Self { root: PageKey::root(scope), images, keys: vec![] }
    }

    /// The keys of all whole pages of `ids`, which begin as they did at the last call.
    pub fn of(&mut self, ids: &[u32]) -> &[PageKey] {
        for (at, page) in ids.chunks_exact(PAGE).enumerate().skip(self.keys.len()) {
            let parent = self.keys.last().unwrap_or(&self.root);
            self.keys.push(parent.child(at * PAGE, page, &self.images));
        }
        &self.keys[..ids.len() / PAGE]
    }

    /// With how many pages both begin, of those worked out so far.
    pub fn common(&self, other: &Self) -> usize {
        // A key names all before it too.
        let shorter = self.keys.len().min(other.keys.len());
        (0..shorter).rev().find(|at| self.keys[*at] == other.keys[*at]).map_or(0, |at| at + 1)
    }
}

/// Number of a kept page; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

#[derive(Clone, Debug)]
struct Page {
    id: PageId,
    parent: Option<PageKey>,
    children: usize,
    bytes: u64,
    hidden_bytes: u64,
    /// When it was last used, as `PrefixIndex::now` counts; no two pages share a number.
    used: u64,
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex {
    pages: HashMap<PageKey, Page>,
    /// Pages without one behind them, by when they were used.
    leaves: BTreeMap<u64, PageKey>,
    bytes: u64,
    now: u64,
    next: u64,
}

impl PrefixIndex {
    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pages there are.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// How many of the first pages of a chain are there.
    pub fn known(&self, keys: &[PageKey]) -> usize {
        // A page is never there without those before it.
        keys.partition_point(|key| self.pages.contains_key(key))
    }

    /// The pages a sequence of `length` ids need not read: the longest beginning of its chain that
    /// is there, never all of its ids, as the last one's row says what comes next.
    ///
    /// `hidden_pages`: for a sequence that is to be drafted for, the pages whose hidden states its drafter
    /// would be shown. Where most of these pages have none (they were read by requests that no
    /// drafter followed, or lie in the middle of a longer one), so many fewer pages are found:
    /// reading them once more gives the drafter its view, and the next such request all of it.
    pub fn find(&mut self, keys: &[PageKey], length: usize, hidden_pages: usize) -> Vec<PageId> {
        let most = keys.len().min(length.saturating_sub(1) / PAGE);
        let mut found = self.known(&keys[..most]);
        let wanted = hidden_pages.min(found);
        let with_hidden = keys[..found]
            .iter()
            .rev()
            .take_while(|key| self.pages[*key].hidden_bytes > 0)
            .take(wanted)
            .count();
        if 2 * with_hidden < wanted {
            found -= wanted;
        }
        self.touch(&keys[..found]);
        keys[..found].iter().map(|key| self.pages[key].id).collect()
    }

    /// Counts the first pages of a chain as used now, the farthest as the first to go again.
    fn touch(&mut self, keys: &[PageKey]) {
        for key in keys.iter().rev() {
            self.now += 1;
            if let Some(page) = self.pages.get_mut(key) {
                if self.leaves.remove(&page.used).is_some() {
                    self.leaves.insert(self.now, *key);
                }
                page.used = self.now;
            }
        }
    }

    /// Adds up to `most` pages of a chain behind those that are there, with so many bytes each, at
    /// most `limit` in all: others go for them, and are added to `dropped`. How many were there,
    /// and the new ones; they are fewer where they find no room.
    pub fn extend(
        &mut self,
        keys: &[PageKey],
        most: usize,
        bytes: u64,
        limit: u64,
        dropped: &mut Vec<PageId>,
    ) -> (usize, Vec<PageId>) {
        let (known, since, mut added) = (self.known(keys), self.now, vec![]);
        self.touch(&keys[..known]);
        for at in (known..keys.len()).take(most) {
            if !self.make_room(bytes, limit, since, dropped) {
                break;
            }
            let parent = at.checked_sub(1).map(|before| keys[before]);
            if let Some(parent) = parent.and_then(|parent| self.pages.get_mut(&parent)) {
                parent.children += 1;
                self.leaves.remove(&parent.used);
            }
            self.now += 1;
            self.next += 1;
            let id = PageId(self.next);
            self.leaves.insert(self.now, keys[at]);
            self.pages.insert(
                keys[at],
                Page { id, parent, children: 0, bytes, hidden_bytes: 0, used: self.now },
            );
            self.bytes += bytes;
            added.push(id);
        }
        (known, added)
    }

    /// Adds hidden states of so many bytes to those pages of a chain that are there without, the last first;
    /// as [`PrefixIndex::extend`]. The places in the chain of those that got them.
    pub fn extend_hidden(
        &mut self,
        keys: &[PageKey],
        pages: Range<usize>,
        bytes: u64,
        limit: u64,
        dropped: &mut Vec<PageId>,
    ) -> Vec<(usize, PageId)> {
        let (since, mut added) = (self.now, vec![]);
        self.touch(&keys[..self.known(keys)]);
        for at in pages.rev() {
            if self.pages.get(&keys[at]).is_none_or(|page| page.hidden_bytes > 0) {
                continue;
            }
            if !self.make_room(bytes, limit, since, dropped) {
                break;
            }
            let page = self
                .pages
                .get_mut(&keys[at])
                .expect("looked up above, and used too lately to be dropped");
            page.hidden_bytes = bytes;
            page.bytes += bytes;
            self.bytes += bytes;
            added.push((at, page.id));
        }
        added
    }

    /// Drops pages until so many bytes more stay under the limit; `false` if for that one would
    /// have to go that was used later than `since`. As those before a page count as used with it,
    /// no chain that is being extended loses a part.
    fn make_room(&mut self, bytes: u64, limit: u64, since: u64, dropped: &mut Vec<PageId>) -> bool {
        while self.bytes + bytes > limit {
            match self.leaves.first_key_value() {
                Some((used, _)) if *used <= since => dropped.extend(self.drop_oldest()),
                _ => return false,
            }
        }
        true
    }

    fn drop_oldest(&mut self) -> Option<PageId> {
        let (_, key) = self.leaves.pop_first()?;
        let page = self.pages.remove(&key).expect("a leaf is a page");
        self.bytes -= page.bytes;
        if let Some(parent_key) = page.parent {
            let parent =
                self.pages.get_mut(&parent_key).expect("a page is dropped behind those after it");
            parent.children -= 1;
            if parent.children == 0 {
                self.leaves.insert(parent.used, parent_key);
            }
        }
        Some(page.id)
    }

    /// Drops at least so many bytes, or all there are; what was dropped.
    pub fn evict(&mut self, at_least: u64) -> Vec<PageId> {
        let (before, mut dropped) = (self.bytes, vec![]);
        while before - self.bytes < at_least {
            match self.drop_oldest() {
                Some(page) => dropped.push(page),
                None => break,
            }
        }
        dropped
    }

    /// Removes the pages of a chain and all pages behind them, which were computed from them; what
    /// was removed. For a sequence whose rows cannot be trusted: which of its pages spoiled the
    /// others is not known.
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
            self.leaves.remove(&page.used);
            self.bytes -= page.bytes;
            removed.push(page.id);
            left.extend(children.remove(&key).unwrap_or_default());
        }
        removed
    }

    /// Takes the hidden states off all pages: they are of other layers than are wanted now.
    pub fn forget_hidden(&mut self) {
        for page in self.pages.values_mut() {
            self.bytes -= page.hidden_bytes;
            page.bytes -= page.hidden_bytes;
            page.hidden_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests;
