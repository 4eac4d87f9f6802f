//! Chains and random operations for the tests of the index, with and without states.

use std::sync::Arc;

use proptest::prelude::*;

use crate::prefix_cache::{Chain, PAGE, PageKey};

/// Ids of `pages` pages. Other seeds give other ids.
pub(super) fn ids(pages: usize, seed: u32) -> Vec<u32> {
    (0..(pages * PAGE) as u32).map(|at| at.wrapping_mul(31) + seed).collect()
}

/// Keys of the whole pages of these ids.
pub(super) fn keys(scope: &str, ids: &[u32]) -> Vec<PageKey> {
    Chain::new(scope, Arc::default()).of(ids).to_vec()
}

/// Six sequences in two scopes. In each scope two share their first pages, and one shares none.
pub(super) fn stream(number: u8) -> (&'static str, Vec<u32>) {
    let mut ids = ids(8, u32::from(number % 3 / 2) * 9);
    if number % 3 == 1 {
        ids[4 * PAGE..].iter_mut().for_each(|id| *id += 5);
    }
    (if number < 3 { "one" } else { "two" }, ids)
}

/// An operation on the index, with the first `pages` pages of a stream.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Extend { stream: u8, pages: usize, limit: u64 },
    ExtendHidden { stream: u8, pages: usize, limit: u64 },
    Find { stream: u8, pages: usize, hidden: usize },
    Evict(u64),
    Remove { stream: u8, pages: usize },
    Forget,
}

/// Any operation. The limits are about what all streams take, so that most extensions evict.
pub(super) fn op() -> impl Strategy<Value = Op> {
    let chain = || (0..6u8, 0..9usize);
    prop_oneof![
        6 => (chain(), 0..500u64)
            .prop_map(|((stream, pages), limit)| Op::Extend { stream, pages, limit }),
        3 => (chain(), 0..500u64)
            .prop_map(|((stream, pages), limit)| Op::ExtendHidden { stream, pages, limit }),
        4 => (chain(), 0..5usize)
            .prop_map(|((stream, pages), hidden)| Op::Find { stream, pages, hidden }),
        1 => chain().prop_map(|(stream, pages)| Op::Remove { stream, pages }),
        2 => (0..150u64).prop_map(Op::Evict),
        1 => Just(Op::Forget),
    ]
}
