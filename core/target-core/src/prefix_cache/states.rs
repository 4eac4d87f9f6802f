//! The index for a model with recurrent layers: states after pages.
//!
//! ```text
//! page 0 ──▶ page 1 ──▶ page 2 ──▶ page 3      evicting the states after page 3 frees pages 3 and 2;
//!              └ states              └ states   evicting those after page 1 frees no page
//! ```

use super::{Evicted, PageId, PageKey, PrefixIndex};

/// Pages that were stored together with the states after the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPages {
    /// Number of first pages that were stored before.
    pub known: usize,
    /// The pages after these, which are new.
    pub added: Vec<PageId>,
    /// The last page, if its states are new.
    pub states: Option<PageId>,
}

impl PrefixIndex {
    /// An empty index for a model whose states take `state_bytes` bytes; 0 for a model without
    /// recurrent layers.
    pub fn with_states(state_bytes: u64) -> Self {
        Self { state_bytes, ..Self::default() }
    }

    /// Whether pages are of use only up to a page with states.
    pub(super) fn keeps_states(&self) -> bool {
        self.state_bytes > 0
    }

    /// Stores the states after the last page of a chain, and the pages of the chain that are not
    /// stored, of `page_bytes` bytes each. Evicts others to stay within `limit` bytes, and adds
    /// them to `evicted`. `None` if all of it has no room, the chain has no page, or more than
    /// `most` pages are not stored.
    pub fn extend_with_states(
        &mut self,
        keys: &[PageKey],
        most: usize,
        page_bytes: u64,
        limit: u64,
        evicted: &mut Evicted,
    ) -> Option<KeptPages> {
        let (known, since, last) = (self.known(keys), self.now, *keys.last()?);
        if self.pages.get(&last).is_some_and(|page| page.has_states) {
            self.touch(keys);
            return Some(KeptPages { known, added: vec![], states: None });
        }
        if keys.len() - known > most {
            return None;
        }
        let needed = (keys.len() - known) as u64 * page_bytes + self.state_bytes;
        let stays = known.checked_sub(1).map(|at| keys[at]);
        // The stored pages of the chain stay while others are evicted, as if a page followed.
        self.count_child(stays, 1);
        // If all of the limit is too small, nothing is evicted for it.
        let fits = needed <= limit && self.make_room(needed, limit, since, evicted);
        self.count_child(stays, -1);
        if !fits {
            self.trim(stays, evicted);
            return None;
        }
        let added = (known..keys.len()).map(|at| self.insert(keys, at, page_bytes)).collect();
        self.now += 1;
        let page = self.pages.get_mut(&last).expect("it was stored before, or is now");
        (page.has_states, page.used) = (true, self.now);
        let states = Some(page.id);
        self.evictable.insert(self.now, last);
        self.bytes += self.state_bytes;
        self.assert_sum();
        Some(KeptPages { known, added, states })
    }

    fn count_child(&mut self, page: Option<PageKey>, change: isize) {
        if let Some(page) = page.and_then(|key| self.pages.get_mut(&key)) {
            page.children = page.children.saturating_add_signed(change);
        }
    }

    /// Evicts the states after a page, which is not evictable any more, and the pages that were of
    /// use to them alone.
    pub(super) fn drop_states(&mut self, key: PageKey, evicted: &mut Evicted) {
        let page = self.pages.get_mut(&key).expect("states are stored with their page");
        page.has_states = false;
        evicted.states.push(page.id);
        self.bytes -= self.state_bytes;
        self.trim(Some(key), evicted);
    }

    /// Evicts a page and those before it, back to a page with states or with another page after it.
    fn trim(&mut self, mut last: Option<PageKey>, evicted: &mut Evicted) {
        let is_useless = |index: &Self, key: &PageKey| {
            index.pages.get(key).is_some_and(|page| page.children == 0 && !page.has_states)
        };
        while let Some(key) = last.filter(|key| is_useless(self, key)) {
            let page = self.pages.remove(&key).expect("it was found");
            self.bytes -= page.bytes;
            evicted.pages.push(page.id);
            self.count_child(page.parent, -1);
            last = page.parent;
        }
    }
}
