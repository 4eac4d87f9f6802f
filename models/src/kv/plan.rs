//! One step's writes and reads, made once and used by every layer.
//!
//! Rows of keys and values come in the order of the segments; where only the last rows of each
//! segment ask (`queries`), all silent rows come first and all asking rows behind them, so that
//! neither the model nor this file has to gather rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::ops::select;

use super::class::Class;
use super::{Entry, SequenceId};
use crate::batch::Segment;
use crate::error::{ModelError, Result};

/// What a batch does to the store.
#[derive(Debug)]
pub(super) struct Plan {
    segments: Vec<Segment>,
    queries: Option<Vec<i32>>,
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
}

/// Rows that go into neighbouring segments of one class.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) class: usize,
    /// Rows of the new keys and values.
    pub(super) rows: Range<i32>,
    /// (slot, position) of each row.
    places: Vec<(usize, i32)>,
    /// Flat indices by number of KV heads.
    indices: Vec<(i32, Array)>,
}

/// Neighbouring slots of one class with the same number of asking rows: one attention.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) class: usize,
    pub(super) slots: Range<usize>,
    /// Rows of the queries.
    pub(super) rows: Range<i32>,
    /// Of each slot: its first asking row's position, and its length with the new rows.
    members: Vec<(i32, i32)>,
    /// What has been asked for so far.
    views: Vec<View>,
}

/// How far a layer's rows see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    /// Positions a row looks back, itself included.
    pub(super) window: Option<i32>,
    /// Whether rows see the new rows behind them too.
    pub(super) both_ways: bool,
}

/// Of each asking row which keys of a view it sees, counted from the view's first.
pub(crate) type Seen = Arc<[Range<usize>]>;

/// What the rows of a read look at.
#[derive(Clone, Debug)]
pub(super) struct View {
    sight: Sight,
    /// Positions, up to the longest sequence's length with its new rows.
    pub(super) keys: Range<i32>,
    /// Which of them each row sees.
    pub(super) looks: Looks,
}

/// What rows see, in one of two forms.
#[derive(Clone, Debug)]
pub(super) enum Looks {
    /// `[slots, 1, rows each, keys]`, 0 or -inf; `None` where all rows see all keys.
    Mask(Option<Array>),
    /// Row by row.
    Ranges(Seen),
}

impl View {
    fn is_of(&self, sight: Sight, ranges: bool) -> bool {
        self.sight == sight && matches!(self.looks, Looks::Ranges(_)) == ranges
    }
}

impl Plan {
    /// `queries`: how many of each segment's last rows ask; `None` means all.
    pub(super) fn new(
        segments: &[Segment],
        queries: Option<&[i32]>,
        sequences: &HashMap<SequenceId, Entry>,
        classes: &[Class],
    ) -> Result<Self> {
        let asking: Vec<i32> = queries.map_or_else(
            || segments.iter().map(|segment| segment.length).collect(),
            <[i32]>::to_vec,
        );
        let fits = |(segment, asks): (&Segment, &i32)| (0..=segment.length).contains(asks);
        if asking.len() != segments.len() || !segments.iter().zip(&asking).all(fits) {
            return Err(ModelError::Batch(
                "expected for each segment at most as many queries as rows".into(),
            ));
        }
        let place = |segment: &Segment| {
            let place = sequences.get(&segment.sequence).and_then(|entry| entry.place);
            place.ok_or_else(|| {
                ModelError::Batch(format!("sequence {} has no slot", segment.sequence.0))
            })
        };
        // A class whose segments do not lie together (one of them has just outgrown another class)
        // is written in several scatters.
        let mut writes = Vec::<Write>::new();
        let mut row = 0;
        for silent in [true, false] {
            for (segment, asks) in segments.iter().zip(&asking) {
                let (place, end) = (place(segment)?, segment.start + segment.length);
                let positions = if silent { segment.start..end - asks } else { end - asks..end };
                if positions.is_empty() {
                    continue;
                }
                let rows = row..row + positions.len() as i32;
                row = rows.end;
                let places = positions.map(|position| (place.slot, position));
                match writes.last_mut().filter(|write| write.class == place.class) {
                    Some(write) => {
                        write.rows.end = rows.end;
                        write.places.extend(places);
                    }
                    None => writes.push(Write {
                        class: place.class,
                        rows,
                        places: places.collect(),
                        indices: vec![],
                    }),
                }
            }
        }
        let mut reads = Vec::<Read>::new();
        let mut row = 0;
        for (segment, asks) in segments.iter().zip(&asking).filter(|(_, asks)| **asks > 0) {
            let place = place(segment)?;
            debug_assert!(place.class < classes.len());
            let end = segment.start + segment.length;
            let rows = row..row + asks;
            row = rows.end;
            let follows = |read: &&mut Read| {
                let (first, end) = read.members[read.members.len() - 1];
                end - first == *asks && read.class == place.class && read.slots.end == place.slot
            };
            match reads.last_mut().filter(follows) {
                Some(read) => {
                    read.slots.end += 1;
                    read.rows.end = rows.end;
                    read.members.push((end - asks, end));
                }
                None => {
                    let (slots, members) = (place.slot..place.slot + 1, vec![(end - asks, end)]);
                    reads.push(Read { class: place.class, slots, rows, members, views: vec![] });
                }
            }
        }
        Ok(Self {
            segments: segments.to_vec(),
            queries: queries.map(<[i32]>::to_vec),
            writes,
            reads,
        })
    }

    /// Whether this is the plan of such a batch.
    pub(super) fn is_of(&self, segments: &[Segment], queries: Option<&[i32]>) -> bool {
        self.segments == segments && self.queries.as_deref() == queries
    }
}

impl Read {
    /// Keys for layers of one kind of sight, and what of them is seen: as ranges, or as a mask.
    pub(super) fn view(&mut self, sight: Sight, ranges: bool) -> Result<View> {
        if let Some(view) = self.views.iter().find(|view| view.is_of(sight, ranges)) {
            return Ok(view.clone());
        }
        let end = self.members.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let start = self.members.iter().map(|(first, _)| *first).min().unwrap_or(0);
        // What no row of any member can see is not even read.
        let keys = sight.window.map_or(0, |window| (start - window + 1).max(0))..end;
        let looks = match ranges {
            true => Looks::Ranges(seen(&self.members, sight, &keys)),
            false => Looks::Mask(mask(&self.members, sight, &keys)?),
        };
        let view = View { sight, keys, looks };
        self.views.push(view.clone());
        Ok(view)
    }
}

impl Write {
    /// Flat indices `[rows · n_kv]` of these rows, for layers with `n_kv` heads.
    pub(super) fn indices(&mut self, n_kv: i32, class: &Class) -> Result<Array> {
        if let Some((_, indices)) = self.indices.iter().find(|(heads, _)| *heads == n_kv) {
            return Ok(indices.clone());
        }
        let row = |(slot, position): &(usize, i32)| {
            (0..n_kv).map(|head| class.row(*slot, head, n_kv, *position)).collect::<Vec<_>>()
        };
        let flat: Vec<i32> = self.places.iter().flat_map(row).collect();
        let indices = Array::from_slice(&flat, &[flat.len() as i32]);
        self.indices.push((n_kv, indices.clone()));
        Ok(indices)
    }
}

/// Up to each row's last visible position and, with a window, from its first.
fn seen(members: &[(i32, i32)], sight: Sight, keys: &Range<i32>) -> Seen {
    let place = |position: i32| (position - keys.start).max(0) as usize;
    let of = |(first, end): &(i32, i32)| {
        let end = *end;
        (*first..end).map(move |position| {
            let from = sight.window.map_or(keys.start, |window| position - window + 1);
            place(from)..place(if sight.both_ways { end } else { position + 1 })
        })
    };
    members.iter().flat_map(of).collect()
}

/// Closed behind each row's last visible position and, with a window, before its first.
fn mask(members: &[(i32, i32)], sight: Sight, keys: &Range<i32>) -> Result<Option<Array>> {
    let rows = members[0].1 - members[0].0;
    let forward = members
        .iter()
        .all(|(first, end)| *end == keys.end && (sight.both_ways || *first + 1 == keys.end));
    let last = members.iter().map(|(_, end)| *end - 1).max().unwrap_or(0);
    let window = sight.window.filter(|window| last - window >= keys.start);
    if forward && window.is_none() {
        return Ok(None);
    }
    let by_row = |values: Vec<i32>| Array::from_slice(&values, &[members.len() as i32, 1, rows, 1]);
    let positions = || members.iter().flat_map(|(first, end)| *first..*end);
    let last_seen = match sight.both_ways {
        true => members.iter().flat_map(|(first, end)| (*first..*end).map(|_| *end - 1)).collect(),
        false => positions().collect(),
    };
    let all: Vec<i32> = keys.clone().collect();
    let all = Array::from_slice(&all, &[1, 1, 1, all.len() as i32]);
    let mut seen = by_row(last_seen).ge(&all)?;
    if let Some(window) = window {
        let last_hidden = by_row(positions().map(|position| position - window).collect());
        seen = seen.logical_and(last_hidden.lt(&all)?)?;
    }
    Ok(Some(select(&seen, Array::from_f32(0.0), Array::from_f32(f32::NEG_INFINITY))?))
}
