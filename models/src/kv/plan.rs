//! One step's writes and reads, made once and used by every layer.

use std::collections::HashMap;
use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::select;

use super::class::Class;
use super::{Entry, SequenceId};
use crate::batch::Segment;
use crate::error::{ModelError, Result};

/// What a batch does to the store.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) segments: Vec<Segment>,
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
}

/// All rows that go into neighbouring segments of one class.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) class: usize,
    /// Rows of the batch.
    pub(super) rows: Range<i32>,
    /// (slot, position) of each row.
    places: Vec<(usize, i32)>,
    /// Flat indices by number of KV heads.
    indices: Vec<(i32, Array)>,
}

/// Neighbouring slots of one class with the same number of rows: one attention.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) class: usize,
    pub(super) slots: Range<usize>,
    /// Rows of the batch.
    pub(super) rows: Range<i32>,
    /// Positions looked at: the longest sequence's length with its new rows.
    pub(super) keys: i32,
    /// `[slots, 1, rows each, keys]`, 0 or -inf; `None` where all rows see all keys.
    pub(super) mask: Option<Array>,
}

impl Plan {
    pub(super) fn new(segments: &[Segment], sequences: &HashMap<SequenceId, Entry>, classes: &[Class]) -> Result<Self> {
        let (mut writes, mut groups) = (Vec::<Write>::new(), Vec::<(usize, Vec<usize>)>::new());
        let mut row = 0;
        for (at, segment) in segments.iter().enumerate() {
            let place = sequences.get(&segment.sequence).and_then(|entry| entry.place);
            let place = place.ok_or_else(|| ModelError::Batch(format!("sequence {} has no slot", segment.sequence.0)))?;
            let rows = row..row + segment.length;
            row = rows.end;
            let places = (segment.start..segment.start + segment.length).map(|position| (place.slot, position));
            match writes.last_mut().filter(|write| write.class == place.class) {
                Some(write) => {
                    write.rows.end = rows.end;
                    write.places.extend(places);
                }
                None => writes.push(Write { class: place.class, rows, places: places.collect(), indices: vec![] }),
            }
            let follows = |(slot, members): &(usize, Vec<usize>)| {
                let before = &segments[members[members.len() - 1]];
                let last = sequences[&before.sequence].place;
                before.length == segment.length
                    && last.is_some_and(|last| last.class == place.class)
                    && slot + members.len() == place.slot
            };
            match groups.last_mut().filter(|group| follows(group)) {
                Some((_, members)) => members.push(at),
                None => groups.push((place.slot, vec![at])),
            }
        }
        // A class that comes twice with another between would be written twice, the second time by copy.
        for (at, write) in writes.iter().enumerate() {
            if writes[..at].iter().any(|other| other.class == write.class) {
                return Err(ModelError::Batch("expected segments ordered by KvStore::order".into()));
            }
        }
        let mut reads = Vec::with_capacity(groups.len());
        let mut row = 0;
        for (slot, members) in groups {
            let members: Vec<&Segment> = members.into_iter().map(|at| &segments[at]).collect();
            let class = sequences[&members[0].sequence].place.map_or(0, |place| place.class);
            debug_assert!(class < classes.len());
            let rows = row..row + members.iter().map(|segment| segment.length).sum::<i32>();
            row = rows.end;
            let keys = members.iter().map(|segment| segment.start + segment.length).max().unwrap_or(0);
            let mask = mask(&members, keys)?;
            reads.push(Read { class, slots: slot..slot + members.len(), rows, keys, mask });
        }
        Ok(Self { segments: segments.to_vec(), writes, reads })
    }
}

impl Write {
    /// Flat indices `[rows · n_kv]` of these rows, for layers with `n_kv` heads.
    pub(super) fn indices(&mut self, n_kv: i32, class: &Class) -> Result<Array> {
        if let Some((_, indices)) = self.indices.iter().find(|(heads, _)| *heads == n_kv) {
            return Ok(indices.clone());
        }
        let row =
            |(slot, position): &(usize, i32)| (0..n_kv).map(|head| class.row(*slot, head, n_kv, *position)).collect::<Vec<_>>();
        let flat: Vec<i32> = self.places.iter().flat_map(row).collect();
        let indices = Array::from_slice(&flat, &[flat.len() as i32]);
        self.indices.push((n_kv, indices.clone()));
        Ok(indices)
    }
}

/// Causal inside each sequence, and closed behind shorter ones.
fn mask(members: &[&Segment], keys: i32) -> Result<Option<Array>> {
    let rows = members[0].length;
    if rows == 1 && members.iter().all(|segment| segment.start + 1 == keys) {
        return Ok(None);
    }
    let last_seen: Vec<i32> = members.iter().flat_map(|segment| segment.start..segment.start + rows).collect();
    let last_seen = Array::from_slice(&last_seen, &[members.len() as i32, 1, rows, 1]);
    let all: Vec<i32> = (0..keys).collect();
    let seen = last_seen.ge(Array::from_slice(&all, &[1, 1, 1, keys]))?;
    Ok(Some(select(&seen, Array::from_f32(0.0), Array::from_f32(f32::NEG_INFINITY))?))
}
