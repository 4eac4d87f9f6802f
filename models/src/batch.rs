//! Inputs and outputs of a forward: rows of any sequences in one pass.

use mlx_rs::Array;

use crate::error::{ModelError, Result};
use crate::hidden_states::HiddenStates;
use crate::info::TargetInfo;
use crate::layers::Positions;
use crate::segment::Segment;

/// Rows whose embedding does not come from their id: the rows of images.
#[derive(Clone, Debug)]
pub struct Override {
    /// Rows of the batch, ascending.
    pub rows: Vec<i32>,
    /// `[rows, hidden]`, in place of the ids' embeddings.
    pub embeddings: Array,
    /// For each layer, what is added to the rows after it: `[rows, hidden]`.
    pub after_layer: Vec<(usize, Array)>,
}

/// Ids that are computed in the same graph as the forward that reads them.
#[derive(Clone, Debug)]
pub struct PendingIds {
    /// Rows of the batch that have them, ascending.
    pub rows: Vec<i32>,
    /// `[rows]`. The caller guarantees that every id is below the vocabulary.
    pub ids: Array,
}

/// One forward's input. Every row has an id, also one whose embedding is overridden.
#[derive(Clone, Debug)]
pub struct Batch {
    /// R ids, the segments' rows one after another.
    pub ids: Vec<u32>,
    /// Rows whose ids are not known on the host yet. Their numbers in `ids` are ignored.
    pub pending: Option<PendingIds>,
    /// Embeddings that do not come from ids. A row is in at most one of them.
    pub overrides: Vec<Override>,
    /// The rows' sequences. A sequence appears at most once.
    pub segments: Vec<Segment>,
    /// R positions.
    pub positions: Positions,
}

impl Batch {
    /// A batch of text rows: the position of each is its index in its sequence.
    pub fn text(ids: Vec<u32>, segments: Vec<Segment>) -> Self {
        let positions = segments.iter().flat_map(|segment| segment.start..segment.end()).collect();
        Self {
            ids,
            pending: None,
            overrides: vec![],
            segments,
            positions: Positions::One(positions),
        }
    }

    /// Checks that the fields agree with each other and with the target.
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
            Positions::Axes(axes) => axes.iter().collect(),
        };
        if axes.iter().any(|axis| axis.len() != self.ids.len()) {
            return bad("expected one position for each id".into());
        }
        if let Some(id) = self.ids.iter().find(|id| **id >= vocab as u32) {
            return bad(format!("expected ids below {vocab}, found {id}"));
        }
        if let Some(PendingIds { rows, ids }) = &self.pending
            && (ids.size() != rows.len()
                || rows.iter().any(|row| !(0..self.ids.len() as i32).contains(row)))
        {
            return bad(format!(
                "expected an id for each pending row of {}, found {} for {rows:?}",
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
            if !(0..=segment.length).contains(&segment.drafted) {
                return bad(format!(
                    "segment {at}: expected at most its {} rows drafted, found {}",
                    segment.length, segment.drafted
                ));
            }
            if self.segments[..at].iter().any(|other| other.sequence == segment.sequence) {
                return bad(format!("segment {at}: its sequence is in the batch already"));
            }
        }
        self.check_overrides(info)
    }

    fn check_overrides(&self, info: &TargetInfo) -> Result<()> {
        let pending = self.pending.as_ref().map_or(&[][..], |pending| pending.rows.as_slice());
        let mut taken = vec![false; self.ids.len()];
        for (at, part) in self.overrides.iter().enumerate() {
            let bad = |what: String| ModelError::Batch(format!("override {at}: {what}"));
            if part.rows.is_empty() || !part.rows.is_sorted_by(|a, b| a < b) {
                return Err(bad(format!("expected rows, ascending, found {:?}", part.rows)));
            }
            for row in &part.rows {
                let slot = usize::try_from(*row).ok().and_then(|row| taken.get_mut(row));
                match slot {
                    None => {
                        let all = self.ids.len();
                        return Err(bad(format!("expected rows of a batch of {all}, found {row}")));
                    }
                    Some(true) => {
                        return Err(bad(format!("row {row} has another embedding already")));
                    }
                    Some(_) if pending.contains(row) => {
                        return Err(bad(format!("the id of row {row} is pending")));
                    }
                    Some(taken) => *taken = true,
                }
            }
            part.check_shapes(info).map_err(bad)?;
        }
        Ok(())
    }

    /// All ids as one array `[R]`, pending ones in their rows.
    ///
    /// # Errors
    /// MLX's own.
    pub fn id_array(&self) -> Result<Array> {
        let known = || Array::from_slice(&self.ids, &[self.ids.len() as i32]);
        let Some(PendingIds { rows, ids }) = &self.pending else { return Ok(known()) };
        if rows.len() == self.ids.len() {
            return Ok(ids.reshape(&[-1])?);
        }
        // One gather from both, side by side.
        let mut order: Vec<i32> = (0..self.ids.len() as i32).collect();
        for (at, row) in rows.iter().enumerate() {
            order[*row as usize] = (self.ids.len() + at) as i32;
        }
        let both = mlx_rs::ops::concatenate(&[known(), ids.reshape(&[-1])?], 0)?;
        Ok(both.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
    }
}

impl Override {
    /// Whether the arrays fit the rows and the target; if not, what was expected and found.
    fn check_shapes(&self, info: &TargetInfo) -> Result<(), String> {
        let shape = [self.rows.len() as i32, info.hidden];
        if self.embeddings.shape() != shape {
            let found = self.embeddings.shape();
            return Err(format!("expected embeddings of shape {shape:?}, found {found:?}"));
        }
        for (at, (layer, rows)) in self.after_layer.iter().enumerate() {
            let repeated = self.after_layer[..at].iter().any(|(other, _)| other == layer);
            if *layer >= info.n_layers || repeated {
                let n_layers = info.n_layers;
                return Err(format!("expected layers below {n_layers}, each once, found {layer}"));
            }
            if rows.shape() != shape {
                let found = rows.shape();
                return Err(format!(
                    "expected rows of shape {shape:?} after layer {layer}, found {found:?}"
                ));
            }
        }
        Ok(())
    }
}

/// The hidden states that a forward returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureLayers {
    /// Layers of the target whose output is wanted, in the order in which they are concatenated.
    pub layers: Vec<usize>,
    /// Rows of the batch, ascending.
    pub rows: Vec<i32>,
}

/// Outputs that a forward computes beside keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<i32>,
    /// Layers and rows whose hidden states are wanted, for a drafter.
    pub hidden_states: Option<FeatureLayers>,
    /// Rows whose hidden state after the final norm is wanted, ascending.
    pub final_hidden: Vec<i32>,
}

/// Outputs of a forward. Lazy: nothing is computed until it is evaluated.
#[derive(Clone, Debug)]
pub struct Forward {
    /// `[logit_rows, vocab]`, float32.
    pub logits: Option<Array>,
    /// The hidden states that were wanted.
    pub hidden_states: Option<HiddenStates>,
    /// `[rows, hidden]`.
    pub final_hidden: Option<Array>,
}
