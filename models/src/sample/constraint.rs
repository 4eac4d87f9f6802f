//! Constraint of a sequence while it is generated: a set of allowed ids for each row, which depends
//! on the ids before the row. The rows of a block ask for their sets along the drafted path. A set
//! therefore is the same in a plain step and in a block (I1).

use std::sync::Arc;

/// Ids of a vocabulary, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdSet {
    words: Vec<u32>,
}

impl IdSet {
    /// The ids whose bit is set. Id n is bit n mod 32 of word n / 32.
    pub fn of_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// The set of these ids.
    pub fn of_ids(ids: &[u32]) -> Self {
        let mut set = Self::default();
        ids.iter().for_each(|id| set.insert(*id));
        set
    }

    /// Adds an id.
    pub fn insert(&mut self, id: u32) {
        let word = id as usize / 32;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (id % 32);
    }

    /// Removes an id.
    pub fn remove(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Whether the id is in the set.
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Sets the logits of all other ids to −∞.
    pub(super) fn mask(&self, row: &mut [f32]) {
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (cells, word) in row.chunks_mut(32).zip(words) {
            match word {
                0 => cells.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                word => {
                    let excluded = (0..).zip(cells).filter(|(bit, _)| word >> bit & 1 == 0);
                    excluded.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}

/// Constraint of a sequence. It knows the sequence's history; rows add the drafted ids after it.
pub trait Constraint: std::fmt::Debug {
    /// Ids that may follow the history and then `path`. Empty if the path is not allowed itself, or
    /// if the set cannot be computed: then no token is chosen from the row.
    fn allowed(&self, path: &[u32]) -> Arc<IdSet>;
}
