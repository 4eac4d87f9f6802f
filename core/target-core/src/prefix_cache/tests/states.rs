use std::collections::BTreeSet;

use proptest::prelude::*;

use super::testdata::{Op, ids, keys, op, stream};
use super::*;

const PAGE_BYTES: u64 = 10;
const STATE_BYTES: u64 = 35;

/// Stores the states after a chain. Returns the number of new pages, or `None`.
fn keep(prefix: &mut PrefixIndex, keys: &[PageKey], limit: u64) -> Option<usize> {
    let mut evicted = Evicted::default();
    let kept = prefix.extend_with_states(keys, usize::MAX, PAGE_BYTES, limit, &mut evicted);
    kept.map(|kept| kept.added.len())
}

/// Pages that a sequence of `length` ids finds.
fn found(prefix: &mut PrefixIndex, keys: &[PageKey], length: usize) -> usize {
    prefix.find(keys, length, 0).len()
}

#[test]
fn a_sequence_continues_only_where_states_were_kept() {
    let mut prefix = PrefixIndex::with_states(STATE_BYTES);
    let chain = keys("", &ids(6, 1));
    assert_eq!(found(&mut prefix, &chain, 999), 0);
    assert_eq!(keep(&mut prefix, &chain[..4], 1_000), Some(4));
    assert_eq!(prefix.bytes(), 4 * PAGE_BYTES + STATE_BYTES);
    for (length, expected) in [(999, 4), (4 * PAGE + 1, 4), (4 * PAGE, 0), (3 * PAGE + 1, 0)] {
        assert_eq!(found(&mut prefix, &chain, length), expected, "{length} ids");
    }
    // States of earlier and later rows, and the same once more.
    assert_eq!(keep(&mut prefix, &chain[..2], 1_000), Some(0));
    assert_eq!(keep(&mut prefix, &chain, 1_000), Some(2));
    assert_eq!(keep(&mut prefix, &chain, 1_000), Some(0));
    assert_eq!(prefix.bytes(), 6 * PAGE_BYTES + 3 * STATE_BYTES);
    for (length, expected) in [(999, 6), (6 * PAGE, 4), (4 * PAGE, 2), (2 * PAGE, 0)] {
        assert_eq!(found(&mut prefix, &chain, length), expected, "{length} ids");
    }
    // Another prompt with the same first three pages.
    let mut other = ids(6, 1);
    other[3 * PAGE] += 1;
    assert_eq!(found(&mut prefix, &keys("", &other), 999), 2);
    assert_eq!(found(&mut prefix, &keys("other", &ids(6, 1)), 999), 0, "another scope");
}

#[test]
fn states_without_pages_and_pages_without_states_are_evicted_together() {
    let mut prefix = PrefixIndex::with_states(STATE_BYTES);
    let chain = keys("", &ids(6, 1));
    keep(&mut prefix, &chain[..2], 1_000);
    keep(&mut prefix, &chain, 1_000);
    // The states after page 6 are the least recently used ones: pages 3 to 6 are of no use then.
    found(&mut prefix, &chain, 3 * PAGE);
    let evicted = prefix.evict(1);
    assert_eq!((evicted.states.len(), evicted.pages.len()), (1, 4));
    assert_eq!((prefix.bytes(), prefix.len()), (2 * PAGE_BYTES + STATE_BYTES, 2));
    // States in the middle of a chain are evicted alone: its pages carry the ones after them.
    keep(&mut prefix, &chain, 1_000);
    let evicted = prefix.evict(1);
    assert_eq!((evicted.states.len(), evicted.pages.len()), (1, 0));
    assert_eq!((found(&mut prefix, &chain, 999), found(&mut prefix, &chain, 3 * PAGE)), (6, 0));
    assert_eq!(prefix.evict(1).pages.len(), 6);
    assert_eq!((prefix.bytes(), prefix.is_empty()), (0, true));
}

#[test]
fn pages_of_the_chain_that_is_stored_stay() {
    let mut prefix = PrefixIndex::with_states(STATE_BYTES);
    let chain = keys("", &ids(6, 1));
    // Room for six pages and the states after them.
    let limit = 6 * PAGE_BYTES + STATE_BYTES;
    keep(&mut prefix, &chain[..4], limit);
    let mut evicted = Evicted::default();
    let mut extend =
        |most| prefix.extend_with_states(&chain, most, PAGE_BYTES, limit, &mut evicted);
    assert_eq!(extend(1), None, "two pages are not stored");
    let kept = extend(2).expect("room");
    assert_eq!((kept.known, kept.added.len(), kept.states.is_some()), (4, 2, true));
    assert_eq!((evicted.states.len(), evicted.pages.len()), (1, 0), "the older states alone");
    // What never fits evicts nothing, and what does not fit beside its own pages leaves none.
    assert_eq!(keep(&mut prefix, &keys("", &ids(9, 2)), limit), None);
    assert_eq!(found(&mut prefix, &chain, 999), 6);
    assert_eq!(keep(&mut prefix, &keys("", &ids(8, 1)), limit), None);
    assert_eq!((prefix.bytes(), prefix.len()), (0, 0));
    assert_eq!(keep(&mut prefix, &[], limit), None);
}

#[test]
fn a_drafter_without_hidden_states_costs_the_way_back_to_earlier_states() {
    let mut prefix = PrefixIndex::with_states(STATE_BYTES);
    let chain = keys("", &ids(10, 1));
    for pages in [3, 7, 10] {
        keep(&mut prefix, &chain[..pages], 1_000);
    }
    // No page has hidden states: the last four are computed again, from the states before them.
    assert_eq!((prefix.find(&chain, 999, 4).len(), prefix.find(&chain, 999, 2).len()), (3, 7));
    let mut evicted = Evicted::default();
    let added = prefix.extend_hidden(&chain, 6..10, 5, 1_000, &mut evicted);
    assert_eq!((added.len(), prefix.find(&chain, 999, 4).len()), (4, 10));
}

/// A page as the shell would hold it.
struct HeldPage {
    scope: &'static str,
    /// All ids up to its end.
    ids: Vec<u32>,
    hidden_bytes: u64,
    has_states: bool,
}

/// An index beside what the shell would hold.
struct Replica {
    prefix: PrefixIndex,
    held: HashMap<PageId, HeldPage>,
}

impl Replica {
    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let mut evicted = Evicted::default();
        let chain_of = |number: u8, pages: usize| {
            let (scope, mut ids) = stream(number);
            ids.truncate(pages * PAGE);
            (scope, keys(scope, &ids), ids)
        };
        match *op {
            Op::Extend { stream, pages, limit } => {
                let (scope, chain, ids) = chain_of(stream, pages);
                return self.keep(scope, &chain, &ids, limit);
            }
            Op::ExtendHidden { stream, pages, limit } => {
                let (_, chain, _) = chain_of(stream, pages);
                let usable = self.prefix.usable(&chain);
                let range = usable / 2..usable;
                let added =
                    self.prefix.extend_hidden(&chain[..usable], range, 7, limit, &mut evicted);
                prop_assert_eq!(self.prefix.usable(&chain), usable, "the chain stays");
                for (_, id) in added {
                    self.held.get_mut(&id).expect("it is held").hidden_bytes = 7;
                }
            }
            Op::Find { stream, pages, hidden } => {
                let (scope, chain, ids) = chain_of(stream, pages);
                let found = self.prefix.find(&chain, ids.len(), hidden);
                prop_assert!(found.len() * PAGE < ids.len().max(1));
                for (at, id) in found.iter().enumerate() {
                    let page = &self.held[id];
                    let own = &ids[..(at + 1) * PAGE];
                    prop_assert_eq!((page.scope, &page.ids[..]), (scope, own));
                }
                prop_assert!(found.last().is_none_or(|last| self.held[last].has_states));
            }
            Op::Evict(bytes) => {
                let before = self.prefix.bytes();
                evicted = self.prefix.evict(bytes);
                prop_assert!(before - self.prefix.bytes() >= bytes.min(before));
            }
            Op::Remove { stream, pages } => {
                let (_, chain, _) = chain_of(stream, pages);
                evicted.pages = self.prefix.remove(&chain);
                prop_assert_eq!(self.prefix.known(&chain), 0);
            }
            Op::Forget => {
                self.prefix.forget_hidden();
                self.held.values_mut().for_each(|page| page.hidden_bytes = 0);
            }
        }
        self.drop_evicted(&evicted)
    }

    fn keep(
        &mut self,
        scope: &'static str,
        chain: &[PageKey],
        ids: &[u32],
        limit: u64,
    ) -> Result<(), TestCaseError> {
        let mut evicted = Evicted::default();
        let kept = self.prefix.extend_with_states(chain, 9, PAGE_BYTES, limit, &mut evicted);
        self.drop_evicted(&evicted)?;
        let Some(KeptPages { known, added, states }) = kept else {
            prop_assert!(chain.is_empty() || self.prefix.usable(chain) < chain.len());
            return Ok(());
        };
        prop_assert_eq!(known + added.len(), chain.len());
        prop_assert!(states.is_none() || self.prefix.bytes() <= limit);
        for (at, id) in (known..).zip(added) {
            let ids = ids[..(at + 1) * PAGE].to_vec();
            let page = HeldPage { scope, ids, hidden_bytes: 0, has_states: false };
            prop_assert!(self.held.insert(id, page).is_none(), "a number is used once");
        }
        if let Some(id) = states {
            let page = self.held.get_mut(&id).expect("its rows are held");
            prop_assert!(!page.has_states && page.ids == ids);
            page.has_states = true;
        }
        prop_assert_eq!(self.prefix.usable(chain), chain.len());
        Ok(())
    }

    fn drop_evicted(&mut self, evicted: &Evicted) -> Result<(), TestCaseError> {
        for id in &evicted.states {
            let page = self.held.get_mut(id).expect("a page whose states are evicted is held");
            prop_assert!(std::mem::take(&mut page.has_states), "its states are held");
        }
        for id in &evicted.pages {
            prop_assert!(self.held.remove(id).is_some(), "an evicted page was stored");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let states = |page: &HeldPage| if page.has_states { STATE_BYTES } else { 0 };
        let bytes: u64 =
            self.held.values().map(|page| PAGE_BYTES + page.hidden_bytes + states(page)).sum();
        prop_assert_eq!((self.prefix.bytes(), self.prefix.len()), (bytes, self.held.len()));
        let pages = &self.prefix.pages;
        let parents: BTreeSet<PageKey> = pages.values().filter_map(|page| page.parent).collect();
        prop_assert!(parents.iter().all(|parent| pages.contains_key(parent)));
        // A page after which there is none has states, and all pages with states may be evicted.
        for (key, page) in pages {
            prop_assert!(page.has_states || parents.contains(key));
        }
        let with_states: BTreeSet<PageKey> =
            pages.iter().filter(|(_, page)| page.has_states).map(|(key, _)| *key).collect();
        let evictable: BTreeSet<PageKey> = self.prefix.evictable.values().copied().collect();
        prop_assert_eq!(with_states, evictable);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_page_leads_to_states_and_bytes_are_exact(ops in prop::collection::vec(op(), 0..120)) {
        let mut replica =
            Replica { prefix: PrefixIndex::with_states(STATE_BYTES), held: HashMap::new() };
        for op in &ops {
            replica.apply(op)?;
            replica.check()?;
        }
        let prefix = &mut replica.prefix;
        prefix.evict(u64::MAX);
        prop_assert_eq!((prefix.bytes(), prefix.len(), prefix.evictable.len()), (0, 0, 0));
    }
}
