//! One step's writes and reads, computed once and used by every layer.
//!
//! New keys and values come in the order of the segments. Where only the last rows of each segment
//! are queries, all rows that are only written come first and all query rows after them, so that
//! neither the model nor this file has to gather rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;

use super::by_class::{self, CallForm};
use super::by_row::{self, RowReads, RowWrites};
use super::class::CapacityClass;
use super::step_rows::{Call, Causality, ClassRead, ClassWrite, QueryKind, SlotQueries};
use super::{SequenceEntry, SlotAddress};
use crate::error::{ModelError, Result};
use crate::layers::RowWrite;
use crate::segment::{Segment, SequenceId};

/// The writes and reads of one batch.
#[derive(Debug)]
pub(super) struct AccessPlan {
    segments: Vec<Segment>,
    queries: Option<Vec<i32>>,
    /// Rows of the batch that belong to one image each.
    images: Vec<Range<i32>>,
    pub(super) writes: Vec<ClassWrite>,
    pub(super) reads: Vec<ClassRead>,
    /// The writes row by row, once a layer has asked for them.
    row_writes: Option<Arc<[RowWrites]>>,
    /// The reads row by row, of each causality that layers have asked for.
    row_reads: Vec<(Causality, Arc<[RowReads]>)>,
}

/// A segment of the batch, and where its sequence lies.
struct LocatedSegment {
    slot: SlotAddress,
    /// Position of the first row.
    start: i32,
    /// Position of the first query row.
    first_query: i32,
    /// Position after the last row.
    end: i32,
    /// Positions of its images.
    images: Vec<Range<i32>>,
}

/// A batch as the store takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRows<'a> {
    pub(super) segments: &'a [Segment],
    /// How many of each segment's last rows are queries; `None` means all.
    pub(super) queries: Option<&'a [i32]>,
    /// Rows of the batch that belong to one image each. A batch with some has no `queries`.
    pub(super) images: &'a [Range<i32>],
}

impl BatchRows<'_> {
    /// Positions of the images of a segment whose first row is row `first` of the batch.
    ///
    /// # Errors
    /// An image has rows of two sequences.
    fn images_of(&self, segment: &Segment, first: i32) -> Result<Vec<Range<i32>>> {
        let rows = first..first + segment.length;
        let position = |row: i32| row - first + segment.start;
        let inside = self.images.iter().filter(|image| rows.contains(&image.start));
        let placed = |image: &Range<i32>| match image.end <= rows.end {
            true => Ok(position(image.start)..position(image.end)),
            false => Err(ModelError::Batch(format!(
                "expected the rows {image:?} of an image in one sequence, found that the rows of \
                 its first one are {rows:?}"
            ))),
        };
        inside.map(placed).collect()
    }
}

impl AccessPlan {
    pub(super) fn new(
        batch: BatchRows<'_>,
        sequences: &HashMap<SequenceId, SequenceEntry>,
    ) -> Result<Self> {
        let BatchRows { segments, queries, images } = batch;
        let counts: Vec<i32> = queries.map_or_else(
            || segments.iter().map(|segment| segment.length).collect(),
            <[i32]>::to_vec,
        );
        let fits = |(segment, count): (&Segment, &i32)| (0..=segment.length).contains(count);
        if counts.len() != segments.len() || !segments.iter().zip(&counts).all(fits) {
            return Err(ModelError::Batch(
                "expected for each segment at most as many queries as rows".into(),
            ));
        }
        let mut next_row = 0;
        let locate = |(segment, count): (&Segment, &i32)| {
            let slot = sequences.get(&segment.sequence).and_then(|entry| entry.slot);
            let slot = slot.ok_or_else(|| {
                ModelError::Batch(format!("sequence {} has no slot", segment.sequence.0))
            })?;
            let end = segment.end();
            let images = batch.images_of(segment, next_row)?;
            next_row += segment.length;
            Ok(LocatedSegment { slot, start: segment.start, first_query: end - count, end, images })
        };
        let located = segments.iter().zip(&counts).map(locate).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            segments: segments.to_vec(),
            queries: queries.map(<[i32]>::to_vec),
            images: images.to_vec(),
            writes: writes(&located),
            reads: reads(&located),
            row_writes: None,
            row_reads: Vec::new(),
        })
    }

    /// The writes row by row.
    pub(super) fn row_writes(&mut self) -> Arc<[RowWrites]> {
        self.row_writes.get_or_insert_with(|| by_row::writes(&self.writes).into()).clone()
    }

    /// The reads of layers of one causality row by row.
    pub(super) fn row_reads(&mut self, causality: Causality) -> Arc<[RowReads]> {
        if let Some((_, reads)) = self.row_reads.iter().find(|(of, _)| *of == causality) {
            return reads.clone();
        }
        let reads: Arc<[RowReads]> = by_row::reads(&self.reads, causality).into();
        self.row_reads.push((causality, reads.clone()));
        reads
    }

    /// Whether this is the plan of such a batch.
    pub(super) fn is_of(&self, batch: BatchRows<'_>) -> bool {
        let BatchRows { segments, queries, images } = batch;
        self.segments == segments && self.queries.as_deref() == queries && self.images == images
    }
}

/// All rows that are only written, then all query rows. A class whose segments do not lie together
/// (one of them has just outgrown another class) is written by several scatters.
fn writes(segments: &[LocatedSegment]) -> Vec<ClassWrite> {
    let mut writes = Vec::<ClassWrite>::new();
    let mut row = 0;
    let only_written = segments.iter().map(|segment| (segment, segment.start..segment.first_query));
    let queries = segments.iter().map(|segment| (segment, segment.first_query..segment.end));
    for (LocatedSegment { slot, .. }, positions) in only_written.chain(queries) {
        if positions.is_empty() {
            continue;
        }
        let rows = row..row + positions.len() as i32;
        row = rows.end;
        let places = rows.clone().zip(positions).map(|(row, position)| RowWrite {
            row: row as usize,
            slot: slot.index,
            position: position as usize,
        });
        match writes.last_mut().filter(|write| write.class == slot.class) {
            Some(write) => {
                write.rows.end = rows.end;
                write.places.extend(places);
            }
            None => writes.push(ClassWrite {
                class: slot.class,
                rows,
                places: places.collect(),
                indices: vec![],
            }),
        }
    }
    writes
}

/// The query rows, slots that lie together in one read.
fn reads(segments: &[LocatedSegment]) -> Vec<ClassRead> {
    let mut reads = Vec::<ClassRead>::new();
    let mut row = 0;
    for LocatedSegment { slot, first_query, end, images, .. } in segments {
        let positions = *first_query..*end;
        if positions.is_empty() {
            continue;
        }
        let rows = row..row + positions.len() as i32;
        row = rows.end;
        let queries = SlotQueries { positions, images: images.clone() };
        let continues = |read: &&mut ClassRead| {
            let last = read.queries.last();
            last.is_some_and(|last| last.positions.len() == queries.positions.len())
                && read.class == slot.class
                && read.slots.end == slot.index
        };
        match reads.last_mut().filter(continues) {
            Some(read) => {
                read.slots.end += 1;
                read.rows.end = rows.end;
                read.queries.push(queries);
            }
            None => reads.push(ClassRead {
                class: slot.class,
                slots: slot.index..slot.index + 1,
                rows,
                queries: vec![queries],
                calls: vec![],
            }),
        }
    }
    reads
}

impl ClassRead {
    /// The calls of MLX's attention for layers with queries of one kind.
    pub(super) fn calls(&mut self, kind: QueryKind, form: CallForm) -> Result<Arc<[Call]>> {
        if let Some((_, calls)) = self.calls.iter().find(|(of, _)| *of == kind) {
            return Ok(calls.clone());
        }
        let calls: Arc<[Call]> = by_class::calls(self, kind, form)?.into();
        self.calls.push((kind, calls.clone()));
        Ok(calls)
    }
}

impl ClassWrite {
    /// Flat indices `[rows · n_kv]` of these rows in a layer with `n_kv` heads.
    pub(super) fn indices(
        &mut self,
        layer: usize,
        n_kv: i32,
        class: &CapacityClass,
    ) -> Result<Array> {
        let form = (n_kv, class.places(layer));
        if let Some((_, indices)) = self.indices.iter().find(|(of, _)| *of == form) {
            return Ok(indices.clone());
        }
        let rows = |place: &RowWrite| class.rows(layer, place.slot, place.position as i32);
        let flat: Vec<i32> = self.places.iter().flat_map(rows).collect();
        let indices = Array::from_slice(&flat, &[flat.len() as i32]);
        self.indices.push((form, indices.clone()));
        Ok(indices)
    }
}
