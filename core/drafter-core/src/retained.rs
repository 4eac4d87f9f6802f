//! Contexts of closed sessions, retained under the names of their pages for sessions that begin
//! with the same pages.
//!
//! All retained contexts together stay below a limit of bytes: the least recently used context is
//! evicted first. A context that is a prefix of another is evicted when the longer one is added.
//! A store that keeps the last rows alone of some layers can continue a context at its end only.
//! Pure: the rows themselves lie in the shell.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use lru::LruCache;
use paceline_vocabulary::link::{PageKey, RetainedPages};

use crate::PIECE_ROWS;

/// Positions of a page.
const PAGE: u32 = 64;

/// Command to the shell's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCommand {
    /// Free a slot: nothing uses it any more.
    Free {
        /// The slot.
        slot: u64,
    },
    /// Copy the rows of the first positions of a slot, and what the store keeps of their end alone,
    /// and retain them under a number. At most [`PIECE_ROWS`] rows follow them if the store keeps such.
    Retain {
        /// The slot.
        slot: u64,
        /// Rows to copy.
        rows: u32,
        /// The number.
        context: u64,
    },
    /// Evict the rows that were retained under a number.
    Evict {
        /// The number.
        context: u64,
    },
    /// Begin a new slot with the first rows of a retained context; with all of them if the store
    /// keeps something of its end alone.
    Restore {
        /// The context's number.
        context: u64,
        /// The new slot.
        slot: u64,
        /// Rows to copy.
        rows: u32,
        /// Rows that the slot has soon.
        capacity: u32,
    },
}

/// The context of one closed session.
#[derive(Clone, Debug)]
struct RetainedContext {
    /// Position of its first row.
    start: u32,
    /// Names of its last pages, by the position where each ends.
    keys: BTreeMap<u32, PageKey>,
    bytes: u64,
}

/// A retained context that a session can begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of the retained context.
    pub context: u64,
    /// Position of its first row.
    pub start: u32,
}

/// All retained contexts.
#[derive(Debug)]
pub struct RetainedContexts {
    row_bytes: u64,
    /// Bytes of what the store keeps of the end of a context alone; 0: a session can begin with any
    /// page of it.
    end_bytes: u64,
    limit: u64,
    /// By number; ordered by use.
    contexts: LruCache<u64, RetainedContext>,
    /// Numbers of the contexts that have a page of this name. They have it at the same position,
    /// because a name stands for all ids before it.
    named: HashMap<PageKey, Vec<u64>>,
    bytes: u64,
    last_number: u64,
}

impl RetainedContexts {
    /// No context yet. A row takes `row_bytes`; all contexts together take at most `limit` bytes.
    pub fn new(row_bytes: u64, limit: u64) -> Self {
        Self {
            row_bytes,
            end_bytes: 0,
            limit,
            contexts: LruCache::unbounded(),
            named: HashMap::new(),
            bytes: 0,
            last_number: 0,
        }
    }

    /// Of a store that keeps `bytes` of the end of a context alone.
    pub fn with_ends(self, bytes: u64) -> Self {
        Self { end_bytes: bytes, ..self }
    }

    /// Bytes of all retained contexts.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Retains the whole pages of a session whose slot has rows of `positions`. A context that is a
    /// prefix of it is evicted, and then the least recently used ones until it has room.
    pub fn add(
        &mut self,
        pages: &RetainedPages,
        slot: u64,
        positions: Range<u32>,
        commands: &mut Vec<StoreCommand>,
    ) {
        let keys = whole_pages(pages, &positions);
        let Some((end, last)) = keys.last_key_value() else { return };
        let rows = end - positions.start;
        let bytes = u64::from(rows) * self.row_bytes + self.end_bytes;
        if self.end_bytes > 0 && positions.end - end > PIECE_ROWS {
            // Later rows may have taken the places of those before the end.
            return;
        }
        // Another context may have all of it already. That it would have been of use counts as use.
        if self.find(last, *end, positions.start).is_some() || bytes > self.limit {
            return;
        }
        let is_prefix = |old: &RetainedContext| {
            old.start >= positions.start
                && old.keys.last_key_value().is_some_and(|(end, key)| keys.get(end) == Some(key))
        };
        let mut prefixes: Vec<u64> = self
            .contexts
            .iter()
            .filter(|(_, old)| is_prefix(old))
            .map(|(number, _)| *number)
            .collect();
        prefixes.sort_unstable();
        prefixes.into_iter().for_each(|number| self.evict(number, commands));
        while self.bytes + bytes > self.limit {
            let Some(oldest) = self.contexts.peek_lru().map(|(number, _)| *number) else { break };
            self.evict(oldest, commands);
        }
        self.last_number += 1;
        let number = self.last_number;
        keys.values().for_each(|key| self.named.entry(*key).or_default().push(number));
        self.contexts.put(number, RetainedContext { start: positions.start, keys, bytes });
        self.bytes += bytes;
        commands.push(StoreCommand::Retain { slot, rows, context: number });
        self.assert_invariants();
    }

    /// The counted bytes are those of all contexts and within the limit, and each page's name leads
    /// to contexts that are retained.
    fn assert_invariants(&self) {
        let sum = || self.contexts.iter().map(|(_, context)| context.bytes).sum::<u64>();
        debug_assert!(
            sum() == self.bytes && self.bytes <= self.limit,
            "expected {} bytes of contexts, and at most {}, found {}",
            sum(),
            self.limit,
            self.bytes
        );
        let pages = || self.contexts.iter().map(|(_, context)| context.keys.len()).sum::<usize>();
        let names = || self.named.values().map(Vec::len).sum::<usize>();
        debug_assert!(names() == pages(), "expected names of {} pages, found {}", pages(), names());
    }

    /// A context with a page of this name that ends at `position`, and with rows back to `since` or
    /// farther. The page is its last one if the store keeps something of the end alone. Counts as
    /// use.
    pub fn find(&mut self, key: &PageKey, position: u32, since: u32) -> Option<Found> {
        let start = |number: &u64| {
            let one = self.contexts.peek(number)?;
            let is_end = one.keys.last_key_value().is_some_and(|(end, _)| *end == position);
            let fits = one.keys.get(&position) == Some(key)
                && one.start <= since
                && (self.end_bytes == 0 || is_end);
            fits.then_some(Found { context: *number, start: one.start })
        };
        let numbers = self.named.get(key)?;
        let found = numbers.iter().filter_map(start).min_by_key(|found| found.start)?;
        self.contexts.promote(&found.context);
        Some(found)
    }

    fn evict(&mut self, number: u64, commands: &mut Vec<StoreCommand>) {
        let Some(context) = self.contexts.pop(&number) else { return };
        self.bytes -= context.bytes;
        for key in context.keys.values() {
            if let Some(numbers) = self.named.get_mut(key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.named.remove(key);
                }
            }
        }
        commands.push(StoreCommand::Evict { context: number });
    }
}

/// Names of the pages that lie wholly in `positions`, by the position where each ends.
fn whole_pages(pages: &RetainedPages, positions: &Range<u32>) -> BTreeMap<u32, PageKey> {
    let ends = (u64::from(pages.first_page) + 1..).map(|page| page * u64::from(PAGE));
    let inside = |(end, key): (u64, &PageKey)| {
        let end = u32::try_from(end).ok()?;
        (positions.start < end && end <= positions.end).then_some((end, *key))
    };
    ends.zip(&pages.keys).filter_map(inside).collect()
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    /// Room for two contexts of a page.
    fn contexts() -> RetainedContexts {
        RetainedContexts::new(1, 2 * u64::from(PAGE))
    }

    /// Retains a context of one page of this name.
    fn retain(contexts: &mut RetainedContexts, name: u8) {
        let pages = RetainedPages { session: 1, first_page: 0, keys: vec![[name; 32]] };
        contexts.add(&pages, 1, 0..PAGE, &mut vec![]);
    }

    #[test]
    #[should_panic(expected = "expected 128 bytes of contexts, and at most 128, found 127")]
    fn a_byte_of_a_context_that_is_not_counted_is_noticed() {
        let mut contexts = contexts();
        retain(&mut contexts, 1);
        contexts.bytes -= 1;
        retain(&mut contexts, 2);
    }

    #[test]
    #[should_panic(expected = "expected names of 1 pages, found 2")]
    fn a_name_of_a_context_that_was_evicted_is_noticed() {
        let mut contexts = contexts();
        retain(&mut contexts, 1);
        contexts.contexts.clear();
        contexts.bytes = 0;
        retain(&mut contexts, 2);
    }
}
