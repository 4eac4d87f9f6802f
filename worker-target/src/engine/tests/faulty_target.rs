//! The demo target with faults in its logits. They are added to the model's output, because no
//! request that the worker accepts makes a sound checkpoint produce them.

use std::sync::{Arc, Mutex};

use paceline_models::{Array, Batch, Forward, ModelError, Wants};

use super::fixture::Outputs;

/// Logits that are overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// Key of the sequence.
    pub(super) sequence: u64,
    /// First position whose row is faulty.
    pub(super) from: i32,
    pub(super) number: f32,
}

/// The faults of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// A fault in the rows from which tokens are chosen.
    pub(super) rows: Option<Fault>,
    /// Added to all logits of drafts.
    pub(super) drafts: Option<f32>,
    /// Ids that were embedded apart from a step's graph: no fault, but counted here.
    pub(super) embedded: usize,
}

/// Outputs with the faults that a test sets.
pub(super) struct FaultyOutputs(pub(super) Arc<Mutex<Faults>>);

impl Outputs for FaultyOutputs {
    fn forward(
        &self,
        batch: &Batch,
        wants: &Wants,
        forward: Forward,
    ) -> Result<Forward, ModelError> {
        let fault = self.0.lock().expect("not poisoned").rows;
        let (Some(fault), Some(logits)) = (fault, &forward.logits) else { return Ok(forward) };
        let mut added = vec![];
        let mut first = 0;
        for segment in &batch.segments {
            let rows = first..first + segment.length;
            let of_segment = wants.logit_rows.iter().filter(|row| rows.contains(row));
            added.extend(of_segment.map(|row| {
                let position = segment.start + row - first;
                if segment.sequence.0 == fault.sequence && position >= fault.from {
                    fault.number
                } else {
                    0.0
                }
            }));
            first = rows.end;
        }
        let added = Array::from_slice(&added, &[added.len() as i32, 1]);
        Ok(Forward { logits: Some(logits.add(&added)?), ..forward })
    }

    fn embeds(&self, ids: usize) {
        self.0.lock().expect("not poisoned").embedded += ids;
    }

    fn head(&self, logits: Array) -> Result<Array, ModelError> {
        match self.0.lock().expect("not poisoned").drafts {
            Some(number) => Ok(logits.add(Array::from_f32(number))?),
            None => Ok(logits),
        }
    }
}
