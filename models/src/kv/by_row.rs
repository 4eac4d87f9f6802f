//! One step's writes and reads row by row, for nodes of our own: where each new row goes, and which
//! keys each query row attends to. Made once for a step and used by every layer.

use std::ops::Range;
use std::sync::Arc;

use super::step_rows::{Causality, ClassRead, ClassWrite, SlotQueries};
use crate::layers::{RowKeys, RowPlaces, VisibleKeys};

/// The rows of one class that are written.
#[derive(Debug)]
pub(super) struct RowWrites {
    pub(super) class: usize,
    pub(super) places: RowPlaces,
}

/// Neighbouring query rows whose slots are of one class.
#[derive(Clone, Debug)]
pub(super) struct RowReads {
    pub(super) class: usize,
    /// Rows of the queries.
    pub(super) rows: Range<i32>,
    pub(super) keys: VisibleKeys,
}

/// One node a class.
pub(super) fn writes(writes: &[ClassWrite]) -> Vec<RowWrites> {
    let mut classes: Vec<usize> = writes.iter().map(|write| write.class).collect();
    classes.sort_unstable();
    classes.dedup();
    let of_class = |class: usize| {
        let writes = writes.iter().filter(|write| write.class == class);
        RowWrites { class, places: writes.flat_map(|write| &write.places).copied().collect() }
    };
    classes.into_iter().map(of_class).collect()
}

/// One node for neighbouring reads of a class.
pub(super) fn reads(reads: &[ClassRead], causality: Causality) -> Vec<RowReads> {
    let mut nodes = Vec::<(usize, Range<i32>, Vec<RowKeys>)>::new();
    for read in reads {
        let keys = read.slots.clone().zip(&read.queries).flat_map(|(slot, queries)| {
            queries.positions.clone().map(move |position| RowKeys {
                slot,
                positions: positions(position, queries, causality),
            })
        });
        match nodes.last_mut() {
            Some((class, rows, all)) if *class == read.class => {
                rows.end = read.rows.end;
                all.extend(keys);
            }
            _ => nodes.push((read.class, read.rows.clone(), keys.collect())),
        }
    }
    let node = |(class, rows, keys): (usize, Range<i32>, Vec<RowKeys>)| RowReads {
        class,
        rows,
        keys: Arc::from(keys),
    };
    nodes.into_iter().map(node).collect()
}

/// Up to the end of the row's reach; with a window, not from the beginning.
fn positions(position: i32, queries: &SlotQueries, causality: Causality) -> Range<usize> {
    let first = causality.window.map_or(0, |window| (position - window + 1).max(0));
    first as usize..queries.visible_end(position, causality.reach) as usize
}
