//! What goes into a forward and what comes out: rows of any sequences in one pass.

use mlx_rs::Array;

use crate::error::{ModelError, Result};
use crate::kv::SequenceId;
use crate::target::TargetInfo;
use crate::transfer::HostTaps;

/// Why a segment is in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Prompt rows.
    Prefill,
    /// One row: the last chosen token.
    Decode,
    /// A draft block: the bonus token and drafted tokens.
    Verify,
}

/// Rows of one sequence that follow one another, in the batch and in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose rows.
    pub sequence: SequenceId,
    /// Position of the first row; equals the committed length of the sequence.
    pub start: i32,
    /// Rows, at least 1.
    pub length: i32,
    /// Why.
    pub purpose: Purpose,
    /// Rows of one picture each, as (first, length) in the segment, ascending.
    pub image_spans: Vec<(i32, i32)>,
}

/// Positions of all rows, for rotary embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// One number a row.
    One(Vec<i32>),
    /// Time, height and width of each row (multi-axis rotary embedding).
    Three([Vec<i32>; 3]),
}

/// Rows whose embedding is not their id's: pictures.
#[derive(Clone, Debug)]
pub struct Override {
    /// Rows of the batch, ascending.
    pub rows: Vec<i32>,
    /// `[rows, hidden]`, in place of the embeddings.
    pub embeddings: Array,
    /// `[rows, hidden]` to be added behind a layer.
    pub after_layer: Vec<(usize, Array)>,
}

/// One forward's input. Every row has an id, also one whose embedding is overridden.
#[derive(Clone, Debug)]
pub struct Batch {
    /// R ids, the segments' rows one after another.
    pub ids: Vec<u32>,
    /// Rows, ascending, whose ids are not known on the host yet, and these ids `[rows]`: part of
    /// the same graph. What `ids` says of them is not looked at. Whoever made them has bounded
    /// them.
    pub drafted: Option<(Vec<i32>, Array)>,
    /// Embeddings that are not the ids'. A row is in at most one of them.
    pub overrides: Vec<Override>,
    /// Whose rows these are. A sequence appears at most once.
    pub segments: Vec<Segment>,
    /// R positions.
    pub positions: Positions,
}

impl Batch {
    /// A batch of text rows whose positions are their places.
    pub fn text(ids: Vec<u32>, segments: Vec<Segment>) -> Self {
        let positions = segments
            .iter()
            .flat_map(|segment| segment.start..segment.start + segment.length)
            .collect();
        Self {
            ids,
            drafted: None,
            overrides: vec![],
            segments,
            positions: Positions::One(positions),
        }
    }

    /// Checks that the parts agree with each other and with the target.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, info: &TargetInfo) -> Result<()> {
        let vocab = info.vocab;
        let bad = |what: String| Err(ModelError::Batch(what));
        let rows: i64 = self.segments.iter().map(|segment| i64::from(segment.length)).sum();
        if rows != self.ids.len() as i64 || rows == 0 {
            return bad(format!(
                "expected as many ids as segment rows and at least one, found {} ids, {rows} rows",
                self.ids.len()
            ));
        }
        let axes = match &self.positions {
            Positions::One(row) => vec![row],
            Positions::Three(axes) => axes.iter().collect(),
        };
        if axes.iter().any(|axis| axis.len() != self.ids.len()) {
            return bad("expected one position for each id".into());
        }
        if let Some(id) = self.ids.iter().find(|id| **id >= vocab as u32) {
            return bad(format!("expected ids below {vocab}, found {id}"));
        }
        if let Some((rows, ids)) = &self.drafted
            && (ids.size() != rows.len()
                || rows.iter().any(|row| !(0..self.ids.len() as i32).contains(row)))
        {
            return bad(format!(
                "expected an id for each drafted row of {}, found {} for {rows:?}",
                self.ids.len(),
                ids.size()
            ));
        }
        for (at, segment) in self.segments.iter().enumerate() {
            if segment.length < 1 || segment.start < 0 {
                return bad(format!(
                    "segment {at}: expected a length of at least 1 from a position of at least 0"
                ));
            }
            if self.segments[..at].iter().any(|other| other.sequence == segment.sequence) {
                return bad(format!("segment {at}: its sequence is in the batch already"));
            }
            let mut free = 0;
            for &(first, length) in &segment.image_spans {
                // In this order nothing overflows.
                if first < free
                    || length < 1
                    || first > segment.length
                    || length > segment.length - first
                {
                    return bad(format!(
                        "segment {at}: expected pictures one behind the other in {} rows, found {:?}",
                        segment.length, segment.image_spans
                    ));
                }
                free = first + length;
            }
        }
        self.check_overrides(info)
    }

    fn check_overrides(&self, info: &TargetInfo) -> Result<()> {
        let bad =
            |at: usize, what: String| Err(ModelError::Batch(format!("override {at}: {what}")));
        let drafted = self.drafted.as_ref().map_or(&[][..], |(rows, _)| rows.as_slice());
        let mut taken = vec![false; self.ids.len()];
        for (at, part) in self.overrides.iter().enumerate() {
            if part.rows.is_empty() || !part.rows.is_sorted_by(|a, b| a < b) {
                return bad(at, format!("expected rows, ascending, found {:?}", part.rows));
            }
            for row in &part.rows {
                let place = usize::try_from(*row).ok().and_then(|row| taken.get_mut(row));
                match place {
                    None => {
                        return bad(
                            at,
                            format!("expected rows of a batch of {}, found {row}", self.ids.len()),
                        );
                    }
                    Some(true) => {
                        return bad(at, format!("row {row} has another embedding already"));
                    }
                    Some(_) if drafted.contains(row) => {
                        return bad(at, format!("row {row} is a drafted one"));
                    }
                    Some(taken) => *taken = true,
                }
            }
            let shape = [part.rows.len() as i32, info.hidden];
            if part.embeddings.shape() != shape {
                return bad(
                    at,
                    format!(
                        "expected embeddings of shape {shape:?}, found {:?}",
                        part.embeddings.shape()
                    ),
                );
            }
            for (place, (layer, rows)) in part.after_layer.iter().enumerate() {
                if *layer >= info.n_layers
                    || part.after_layer[..place].iter().any(|(other, _)| other == layer)
                {
                    return bad(
                        at,
                        format!(
                            "expected layers below {}, each once, found {layer}",
                            info.n_layers
                        ),
                    );
                }
                if rows.shape() != shape {
                    return bad(
                        at,
                        format!(
                            "expected rows of shape {shape:?} behind layer {layer}, found {:?}",
                            rows.shape()
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    /// All ids as one array `[R]`, drafted ones in their rows.
    ///
    /// # Errors
    /// MLX's own.
    pub fn id_array(&self) -> Result<Array> {
        let known = || Array::from_slice(&self.ids, &[self.ids.len() as i32]);
        let Some((rows, drafted)) = &self.drafted else { return Ok(known()) };
        if rows.len() == self.ids.len() {
            return Ok(drafted.reshape(&[-1])?);
        }
        // One gather from both, side by side.
        let mut order: Vec<i32> = (0..self.ids.len() as i32).collect();
        for (at, row) in rows.iter().enumerate() {
            order[*row as usize] = (self.ids.len() + at) as i32;
        }
        let both = mlx_rs::ops::concatenate(&[known(), drafted.reshape(&[-1])?], 0)?;
        Ok(both.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
    }
}

/// Which hidden states to hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taps {
    /// Target layers whose output is wanted, in the order in which they are concatenated.
    pub layers: Vec<usize>,
    /// Rows of the batch, ascending.
    pub rows: Vec<i32>,
}

/// Hidden states of rows behind chosen layers. They are left where the model computed them, and put
/// side by side as they are read: in the graph that would be a node for each layer and a copy more
/// in every step of a stream that may be drafted for.
#[derive(Clone, Debug)]
pub struct Tapped {
    /// `[all rows, hidden]`, layer by layer.
    pub(crate) layers: Vec<Array>,
    /// Rows that were wanted, ascending.
    pub(crate) rows: Vec<i32>,
}

impl Tapped {
    /// What is to be evaluated before rows are read.
    pub fn arrays(&self) -> &[Array] {
        &self.layers
    }

    /// `[rows, layers · hidden]`. Lazy.
    ///
    /// # Errors
    /// MLX's own.
    pub fn side_by_side(&self) -> Result<Array> {
        let all = mlx_rs::ops::concatenate(&self.layers, 1)?;
        Ok(all.take_axis(Array::from_slice(&self.rows, &[self.rows.len() as i32]), 0)?)
    }

    /// What lies in memory, once it is evaluated, for [`HostTaps::append`].
    ///
    /// # Errors
    /// Another type than float32, float16, bfloat16; MLX's own.
    pub fn on_host(&self) -> Result<HostTaps<'_>> {
        HostTaps::new(&self.layers, &self.rows)
    }
}

/// What a forward should compute beside the KV.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Rows that meet the head, ascending.
    pub logit_rows: Vec<i32>,
    /// Hidden states behind chosen layers.
    pub taps: Option<Taps>,
    /// Rows whose hidden state behind the final norm is wanted, ascending.
    pub final_hidden: Vec<i32>,
}

/// What a forward gives. Lazy: nothing is computed until it is evaluated.
#[derive(Clone, Debug)]
pub struct Forward {
    /// `[logit_rows, vocab]`, float32.
    pub logits: Option<Array>,
    /// As wanted.
    pub taps: Option<Tapped>,
    /// `[rows, hidden]`.
    pub final_hidden: Option<Array>,
}
