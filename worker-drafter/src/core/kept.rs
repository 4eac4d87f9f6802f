//! Contexts of ended sessions, kept under the names of their pages for sessions that begin alike:
//! which there are, what they take, which go when there are too many. Pure; their rows lie in the
//! shell.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use paceline_proto::internal::v1::Keep;

/// Bytes of a page's name.
pub const KEY_BYTES: usize = 32;
/// Names of one session's pages, at most.
pub const MOST_KEYS: usize = 256;
/// Positions of a page.
const PAGE: u32 = 64;

type Key = [u8; KEY_BYTES];

/// What is to be done in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The slot is not used any more.
    Free {
        /// Which.
        slot: u64,
    },
    /// Copy the first rows of a slot, to be kept under this number.
    Keep {
        /// From.
        slot: u64,
        /// How many.
        rows: u32,
        /// To.
        kept: u64,
    },
    /// Forget what was kept under this number.
    Drop {
        /// Which.
        kept: u64,
    },
    /// Begin a new slot with the first rows of what was kept.
    Recall {
        /// From.
        kept: u64,
        /// To.
        slot: u64,
        /// How many.
        rows: u32,
        /// Rows it will have soon.
        room: u32,
    },
}

/// One ended session.
#[derive(Clone, Debug)]
struct Context {
    /// Position of its first row.
    start: u32,
    /// Names of its last pages, by the position where each ends.
    keys: BTreeMap<u32, Key>,
    bytes: u64,
    used: u64,
}

/// All that is kept.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    row_bytes: u64,
    limit: u64,
    contexts: BTreeMap<u64, Context>,
    /// Contexts that have a page of this name. They have it at the same position, as a name says
    /// everything before it.
    named: HashMap<Key, Vec<u64>>,
    bytes: u64,
    /// Counts uses, and numbers contexts.
    now: u64,
}

impl Kept {
    /// Nothing yet; a row takes so many bytes, and all of them at most `limit`.
    pub fn new(row_bytes: u64, limit: u64) -> Self {
        Self { row_bytes, limit, ..Self::default() }
    }

    /// Bytes of all that is kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps the whole pages of a session whose slot has rows of these positions. What it says as
    /// well as another goes with that one; the least recently used go for it.
    pub fn add(&mut self, keep: &Keep, slot: u64, positions: Range<u32>, moves: &mut Vec<Move>) {
        let keys = (u64::from(keep.first_page) + 1..).zip(keep.keys.as_chunks::<KEY_BYTES>().0);
        let end = |page: u64| u32::try_from(page * u64::from(PAGE)).ok();
        let inside = |(page, key): (u64, &Key)| {
            Some((
                end(page).filter(|end| (positions.start + 1..=positions.end).contains(end))?,
                *key,
            ))
        };
        let keys: BTreeMap<u32, Key> = keys.filter_map(inside).collect();
        let Some((end, last)) = keys.last_key_value() else { return };
        let rows = end - positions.start;
        let bytes = u64::from(rows) * self.row_bytes;
        // Another one may have all of it already; that it would have been of use counts as use.
        if self.find(last, *end, positions.start).is_some() || bytes > self.limit {
            return;
        }
        // It has all that those have.
        let covers = |old: &Context| {
            old.start >= positions.start
                && old.keys.last_key_value().is_some_and(|(end, key)| keys.get(end) == Some(key))
        };
        let covered: Vec<u64> = self
            .contexts
            .iter()
            .filter(|(_, old)| covers(old))
            .map(|(number, _)| *number)
            .collect();
        covered.into_iter().for_each(|number| self.drop(number, moves));
        while self.bytes + bytes > self.limit {
            let oldest = self
                .contexts
                .iter()
                .min_by_key(|(_, context)| context.used)
                .map(|(number, _)| *number);
            let Some(oldest) = oldest else { break };
            self.drop(oldest, moves);
        }
        self.now += 1;
        let number = self.now;
        keys.values().for_each(|key| self.named.entry(*key).or_default().push(number));
        self.contexts.insert(number, Context { start: positions.start, keys, bytes, used: number });
        self.bytes += bytes;
        moves.push(Move::Keep { slot, rows, kept: number });
    }

    /// A context with a page of this name that ends at `position`, and with rows back to `since` or
    /// farther; its number, and where it starts.
    pub fn find(&mut self, key: &[u8], position: u32, since: u32) -> Option<(u64, u32)> {
        let key: &Key = key.try_into().ok()?;
        let numbers = self.named.get(key)?;
        let fits = |number: &&u64| {
            self.contexts
                .get(*number)
                .is_some_and(|one| one.keys.get(&position) == Some(key) && one.start <= since)
        };
        let number =
            *numbers.iter().filter(fits).min_by_key(|number| self.contexts[*number].start)?;
        self.now += 1;
        let context = self.contexts.get_mut(&number).expect("looked up above");
        context.used = self.now;
        Some((number, context.start))
    }

    fn drop(&mut self, number: u64, moves: &mut Vec<Move>) {
        let Some(context) = self.contexts.remove(&number) else { return };
        self.bytes -= context.bytes;
        for key in context.keys.values() {
            if let Some(numbers) = self.named.get_mut(key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.named.remove(key);
                }
            }
        }
        moves.push(Move::Drop { kept: number });
    }
}
