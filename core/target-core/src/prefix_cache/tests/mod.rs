mod states;
mod testdata;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use testdata::{Op, ids, keys, op, stream};

/// Adds all pages of a chain, of 10 bytes each. Returns the number of stored and the new pages.
fn keep(prefix: &mut PrefixIndex, keys: &[PageKey], limit: u64) -> (usize, Vec<PageId>) {
    let mut evicted = Evicted::default();
    let (_, new) = prefix.extend(keys, usize::MAX, 10, limit, &mut evicted);
    (new.len(), evicted.pages)
}

#[test]
fn a_key_depends_on_everything_before_it() {
    let long = ids(4, 7);
    let chain = keys("a", &long);
    assert_eq!(chain.len(), 4);
    assert_eq!(keys("a", &long[..200]), chain[..3], "a piece of a page has no key");
    let mut grown = Chain::new("a", Arc::default());
    assert_eq!(grown.of(&long[..70]), &chain[..1]);
    assert_eq!(grown.of(&long), chain);
    assert_eq!(grown.of(&long[..130]), &chain[..2]);
    for (at, scope) in [(0, "a"), (100, "a"), (255, "a"), (999, "b")] {
        let mut other = long.clone();
        if let Some(id) = other.get_mut(at) {
            *id += 1;
        }
        let others = keys(scope, &other);
        let same = at / PAGE;
        assert!(scope == "b" || others[..same] == chain[..same]);
        let from = if scope == "b" { 0 } else { same };
        assert!(
            others[from..].iter().all(|key| !chain.contains(key)),
            "position {at}, scope {scope}"
        );
    }
}

#[test]
fn the_last_id_is_always_computed() {
    let mut prefix = PrefixIndex::default();
    let chain = keys("", &ids(3, 1));
    assert_eq!(keep(&mut prefix, &chain, 1000).0, 3);
    for (length, pages) in [
        (3 * PAGE + 1, 3),
        (3 * PAGE, 2),
        (2 * PAGE + 1, 2),
        (2 * PAGE, 1),
        (PAGE, 0),
        (1, 0),
        (0, 0),
    ] {
        let whole = &chain[..length / PAGE];
        assert_eq!(prefix.find(whole, length, 0).len(), pages, "{length}");
    }
}

#[test]
fn the_least_recently_used_leaves_are_evicted_first() {
    let mut prefix = PrefixIndex::default();
    let (a, b) = (keys("", &ids(4, 1)), keys("", &ids(4, 2)));
    keep(&mut prefix, &a, 80);
    keep(&mut prefix, &b, 80);
    assert_eq!((prefix.bytes(), prefix.len()), (80, 8));
    prefix.find(&a, 1000, 0);
    // The last two pages of `b` are evicted for two more.
    let c = keys("", &ids(2, 3));
    assert_eq!(
        (keep(&mut prefix, &c, 80).0, prefix.known(&a), prefix.known(&b), prefix.known(&c)),
        (2, 4, 2, 2)
    );
    assert_eq!(prefix.evict(11).pages.len(), 2);
    assert_eq!((prefix.known(&a), prefix.known(&b), prefix.bytes()), (4, 0, 60));
    // The pages before a new one are never evicted for it.
    let a = keys("", &ids(9, 1));
    assert_eq!((keep(&mut prefix, &a, 45).0, prefix.bytes(), prefix.known(&a)), (0, 40, 4));
    assert_eq!(prefix.evict(u64::MAX).pages.len(), 4);
    assert!(prefix.is_empty() && prefix.bytes() == 0);
    assert_eq!(prefix.evict(1), Evicted::default());
}

#[test]
fn pages_are_computed_again_only_if_no_page_has_hidden_states() {
    let mut prefix = PrefixIndex::default();
    let (chain, mut dropped) = (keys("", &ids(10, 1)), Evicted::default());
    keep(&mut prefix, &chain, 1000);
    // No page has hidden states: for a sequence that drafts, the last pages are computed again.
    assert_eq!((prefix.find(&chain, 1000, 0).len(), prefix.find(&chain, 1000, 4).len()), (10, 6));
    let added = prefix.extend_hidden(&chain, 6..10, 5, 1000, &mut dropped);
    assert_eq!(added.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [9, 8, 7, 6]);
    assert!(
        prefix.extend_hidden(&chain, 6..10, 5, 1000, &mut dropped).is_empty(),
        "they have them"
    );
    assert_eq!((prefix.find(&chain, 1000, 4).len(), prefix.bytes()), (10, 120));
    // In the middle of the chain there are one of four, or none.
    assert_eq!(
        (prefix.find(&chain[..7], 1000, 4).len(), prefix.find(&chain[..6], 1000, 4).len()),
        (7, 2)
    );
    // The answer after them was made without hidden states.
    let longer = keys("", &ids(13, 1));
    keep(&mut prefix, &longer, 1000);
    assert_eq!(
        (prefix.find(&longer, 1000, 4).len(), prefix.find(&longer, 1000, 3).len()),
        (13, 10)
    );
    prefix.forget_hidden();
    assert_eq!(
        (prefix.find(&chain, 1000, 4).len(), prefix.bytes(), dropped),
        (6, 130, Evicted::default())
    );
}

#[test]
fn chains_share_pages_as_far_as_all_ids_are_equal() {
    let chain = |scope, ids: &[u32]| {
        let mut chain = Chain::new(scope, Arc::default());
        chain.of(ids);
        chain
    };
    let (one, mut two) = (ids(5, 0), ids(7, 0));
    assert_eq!(chain("a", &one).common(&chain("a", &two)), 5);
    assert_eq!(chain("a", &one).common(&chain("b", &two)), 0);
    two[3 * PAGE] += 1;
    assert_eq!(chain("a", &two).common(&chain("a", &one)), 3);
    assert_eq!(Chain::new("a", Arc::default()).common(&chain("a", &one)), 0);
}

/// A page as the shell would hold it.
struct HeldPage {
    scope: &'static str,
    /// All ids up to its end.
    ids: Vec<u32>,
    bytes: u64,
    hidden_bytes: u64,
}

/// An index beside what the shell would hold.
#[derive(Default)]
struct Replica {
    prefix: PrefixIndex,
    held: HashMap<PageId, HeldPage>,
}

impl Replica {
    /// Applies an operation to both, and returns the evicted pages.
    fn apply(&mut self, op: &Op) -> Result<Vec<PageId>, TestCaseError> {
        match *op {
            Op::Extend { stream, pages, limit } => self.extend(stream, pages, limit),
            Op::ExtendHidden { stream, pages, limit } => self.extend_hidden(stream, pages, limit),
            Op::Find { stream, pages, hidden } => self.find(stream, pages, hidden),
            Op::Evict(bytes) => {
                let before = self.prefix.bytes();
                let evicted = self.prefix.evict(bytes);
                prop_assert!(before - self.prefix.bytes() >= bytes.min(before));
                Ok(evicted.pages)
            }
            Op::Remove { stream, pages } => self.remove(stream, pages),
            Op::Forget => {
                self.prefix.forget_hidden();
                self.held.values_mut().for_each(|page| page.hidden_bytes = 0);
                Ok(vec![])
            }
        }
    }

    fn extend(
        &mut self,
        number: u8,
        pages: usize,
        limit: u64,
    ) -> Result<Vec<PageId>, TestCaseError> {
        let (scope, ids) = stream(number);
        let chain = keys(scope, &ids[..pages * PAGE]);
        let (bytes, before) = (10 + u64::from(number), self.prefix.known(&chain));
        let mut evicted = Evicted::default();
        let (known, added) = self.prefix.extend(&chain, 5, bytes, limit, &mut evicted);
        prop_assert!(known == before && added.len() <= 5);
        prop_assert!(added.is_empty() || self.prefix.bytes() <= limit);
        let now = self.prefix.known(&chain);
        prop_assert_eq!(now, known + added.len(), "the chain itself loses no page");
        for (at, id) in (known..).zip(added) {
            let ids = ids[..(at + 1) * PAGE].to_vec();
            let page = HeldPage { scope, ids, bytes, hidden_bytes: 0 };
            prop_assert!(self.held.insert(id, page).is_none(), "a number is used once");
        }
        Ok(evicted.pages)
    }

    fn extend_hidden(
        &mut self,
        number: u8,
        pages: usize,
        limit: u64,
    ) -> Result<Vec<PageId>, TestCaseError> {
        let (scope, ids) = stream(number);
        let chain = keys(scope, &ids[..pages * PAGE]);
        let (bytes, known) = (self.prefix.bytes(), self.prefix.known(&chain));
        let mut evicted = Evicted::default();
        let added = self.prefix.extend_hidden(&chain, pages / 2..pages, 7, limit, &mut evicted);
        prop_assert!(self.prefix.bytes() <= limit.max(bytes));
        prop_assert_eq!(self.prefix.known(&chain), known);
        for (at, id) in added {
            let page = self.held.get_mut(&id).expect("it is held");
            prop_assert!(page.hidden_bytes == 0 && page.ids == ids[..(at + 1) * PAGE]);
            page.hidden_bytes = 7;
        }
        Ok(evicted.pages)
    }

    fn find(
        &mut self,
        number: u8,
        pages: usize,
        hidden: usize,
    ) -> Result<Vec<PageId>, TestCaseError> {
        let (scope, ids) = stream(number);
        let ids = &ids[..pages * PAGE];
        let found = self.prefix.find(&keys(scope, ids), ids.len(), hidden);
        prop_assert!(found.len() * PAGE < ids.len().max(1));
        for (at, id) in found.iter().enumerate() {
            let page = &self.held[id];
            prop_assert_eq!((page.scope, &page.ids[..]), (scope, &ids[..(at + 1) * PAGE]));
        }
        Ok(vec![])
    }

    fn remove(&mut self, number: u8, pages: usize) -> Result<Vec<PageId>, TestCaseError> {
        let (scope, ids) = stream(number);
        let chain = keys(scope, &ids[..pages * PAGE]);
        let before = self.prefix.bytes();
        let removed = self.prefix.remove(&chain);
        prop_assert_eq!(self.prefix.known(&chain), 0);
        prop_assert!(pages > 0 || self.prefix.bytes() == before);
        // All pages after the first one of the chain are removed, and no others.
        for (id, page) in &self.held {
            let is_after = pages > 0 && page.scope == scope && page.ids[..PAGE] == ids[..PAGE];
            prop_assert_eq!(removed.contains(id), is_after);
        }
        Ok(removed)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let bytes: u64 = self.held.values().map(|page| page.bytes + page.hidden_bytes).sum();
        prop_assert_eq!((self.prefix.bytes(), self.prefix.len()), (bytes, self.held.len()));
        // No page is stored without the pages before it, and the index knows every leaf.
        let pages = &self.prefix.pages;
        for page in pages.values() {
            prop_assert!(page.parent.is_none_or(|parent| pages.contains_key(&parent)));
        }
        let parents: BTreeSet<PageKey> = pages.values().filter_map(|page| page.parent).collect();
        let leaves: BTreeSet<PageKey> =
            pages.keys().filter(|key| !parents.contains(key)).copied().collect();
        prop_assert_eq!(&leaves, &self.prefix.evictable.values().copied().collect::<BTreeSet<_>>());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes_are_exact_and_every_hit_is_a_true_prefix(ops in prop::collection::vec(op(), 0..120)) {
        let mut replica = Replica::default();
        for op in &ops {
            for id in replica.apply(op)? {
                prop_assert!(replica.held.remove(&id).is_some(), "an evicted page was stored");
            }
            replica.check()?;
        }
        let prefix = &mut replica.prefix;
        prefix.evict(u64::MAX);
        prop_assert_eq!((prefix.bytes(), prefix.len(), prefix.evictable.len()), (0, 0, 0));
    }
}

#[test]
fn a_chain_is_removed_with_all_pages_after_it() {
    let mut prefix = PrefixIndex::default();
    let (a, other) = (keys("", &ids(4, 1)), keys("", &ids(3, 2)));
    // Another conversation with the same first pages.
    let mut ids = ids(5, 1);
    ids[2 * PAGE..].iter_mut().for_each(|id| *id += 9);
    let branch = keys("", &ids);
    for chain in [&a, &other, &branch] {
        keep(&mut prefix, chain, 1000);
    }
    assert_eq!((prefix.len(), prefix.bytes()), (10, 100));
    assert!(prefix.remove(&[]).is_empty() && prefix.remove(&keys("b", &ids)).is_empty());
    assert_eq!(prefix.remove(&a[..1]).len(), 7);
    assert_eq!(
        (prefix.known(&a), prefix.known(&branch), prefix.known(&other), prefix.bytes()),
        (0, 0, 3, 30)
    );
    assert_eq!((keep(&mut prefix, &a, 1000).0, prefix.evict(u64::MAX).pages.len()), (4, 7));
}

#[test]
fn keys_of_pages_with_images_depend_on_the_image() {
    use crate::{Image, ImageKey};
    let ids = vec![9; 4 * PAGE];
    let image = |name: u8, first, rows| Image {
        key: ImageKey([name; 32]),
        first,
        rows,
        grid_rows: 1,
        grid_columns: rows,
        patches: rows as u32,
    };
    let keys = |images: &[Image]| Chain::new("", images.into()).of(&ids).to_vec();
    let common = |one: &[Image], other: &[Image]| {
        let (one, other) = (keys(one), keys(other));
        let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        assert!(
            one[common..].iter().zip(&other[common..]).all(|(one, other)| one != other),
            "a key names all before it"
        );
        common
    };
    let shown = [image(1, PAGE + 10, 2 * PAGE)];
    assert_eq!(common(&shown, &shown), 4);
    // Another image in its place, the same one a row later, a smaller one, text with the same
    // ids.
    assert_eq!(common(&shown, &[image(2, PAGE + 10, 2 * PAGE)]), 1);
    assert_eq!(common(&shown, &[image(1, PAGE + 11, 2 * PAGE)]), 1);
    assert_eq!(common(&shown, &[image(1, PAGE + 10, PAGE)]), 2);
    assert_eq!(common(&shown, &[]), 1);
    // Two images in a row that change their places.
    let (one, other) = ([image(1, 0, 32), image(2, 32, 32)], [image(2, 0, 32), image(1, 32, 32)]);
    assert_eq!((common(&one, &other), common(&one, &one)), (0, 4));
    // Any growth gives the same keys.
    let mut grown = Chain::new("", shown.as_slice().into());
    for length in [10, PAGE, 2 * PAGE + 1, 3 * PAGE, 4 * PAGE] {
        grown.of(&ids[..length]);
    }
    assert_eq!(grown.of(&ids), keys(&shown));
}

/// An index of three pages of 10 bytes each whose count is wrong by one byte.
#[cfg(debug_assertions)]
fn miscounted() -> PrefixIndex {
    let mut prefix = PrefixIndex::default();
    keep(&mut prefix, &keys("", &ids(3, 1)), 1_000);
    prefix.bytes += 1;
    prefix
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "expected 30 bytes of pages and states, found 31")]
fn a_byte_that_no_page_has_is_noticed_with_the_next_chain() {
    keep(&mut miscounted(), &keys("", &ids(3, 1)), 1_000);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "expected 0 bytes of pages and states, found 1")]
fn a_byte_that_does_not_return_is_noticed_with_the_last_page() {
    miscounted().evict(u64::MAX);
}
