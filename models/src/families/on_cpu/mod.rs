//! A pass of a recorded program: one node of MLX's graph for all layers, the head included.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::{Array, Dtype};
use mlx_sys::{HostNumbers, HostOutput, HostRows};

use crate::batch::{Batch, Forward, Wants};
use crate::error::{ModelError, Result};
use crate::hidden_states::HiddenStates;
use crate::kv::{KvStore, PassArrays, PassMemory};
use crate::layers::{PassInputs, PassPlaces, PassRotation, Program, RotationNumbers};

/// What a pass of a program gets beside the store.
pub(crate) struct Pass<'a> {
    pub(crate) program: &'a Arc<Program>,
    pub(crate) batch: &'a Batch,
    pub(crate) wants: &'a Wants,
    /// For each rope of the model.
    pub(crate) rotations: Vec<RotationNumbers>,
    /// Embeddings of all rows, if some do not come from ids.
    pub(crate) embedded: Option<Array>,
    /// What images add to the rows after a layer.
    pub(crate) additions: Vec<(usize, Array)>,
    /// Rows of images that attend to one another both ways.
    pub(crate) images: Vec<Range<i32>>,
}

/// What the node's function knows when it is made. Its other inputs are arrays.
struct Known {
    program: Arc<Program>,
    rows: usize,
    /// Empty if ids are an input.
    ids: Vec<u32>,
    rotations: Vec<RotationNumbers>,
    places: PassPlaces,
    is_embedded: bool,
    is_given: bool,
    tapes: usize,
    /// Layers after which images add something.
    additions: Vec<usize>,
    features: Vec<usize>,
    logit_rows: Vec<i32>,
    final_rows: Vec<i32>,
}

impl Known {
    /// `rows`: embedded and given rows if there are some, tapes, additions. `numbers`: ids if they are an
    /// input.
    fn run(&self, rows: &[HostRows<'_>], numbers: &[HostNumbers<'_>], outputs: &mut [&mut [f32]]) {
        let (embedded, rows) = rows.split_at(usize::from(self.is_embedded));
        let (given, rows) = rows.split_at(usize::from(self.is_given));
        let (tapes, additions) = rows.split_at(self.tapes);
        let ids = match numbers {
            [HostNumbers::Uint32(ids)] => ids,
            _ => self.ids.as_slice(),
        };
        let inputs = PassInputs {
            rows: self.rows,
            ids,
            embedded: embedded.first().copied(),
            given: given.first().copied(),
            rotations: self
                .rotations
                .iter()
                .map(|RotationNumbers { cos, sin }| PassRotation { cos, sin })
                .collect(),
            places: &self.places,
            before: tapes.iter().map(HostRows::numbers).collect(),
            additions: self.additions.iter().copied().zip(additions.iter().copied()).collect(),
            features: &self.features,
            logit_rows: &self.logit_rows,
            final_rows: &self.final_rows,
        };
        self.program.run(&inputs, outputs);
    }
}

/// What a pass gave that was computed at once.
pub(crate) struct HostForward {
    /// Number of the wanted rows.
    pub(crate) rows: usize,
    /// Logits of the wanted rows, one row after another.
    pub(crate) logits: Vec<f32>,
    /// Their final hidden states.
    pub(crate) final_hidden: Vec<f32>,
}

impl Pass<'_> {
    /// As [`Pass::forward`], computed at once on this thread, without MLX. For programs of layers with
    /// keys and values alone, ids that are known, and no hidden states of layers. `given`: numbers for
    /// each row.
    pub(crate) fn compute(self, given: &[f32], kv: &mut KvStore) -> Result<HostForward> {
        #[cfg(test)]
        tests::PASSES.with(|passes| passes.set(passes.get() + 1));
        let Self { program, batch, wants, rotations, .. } = self;
        kv.pass_on_host(&batch.segments, |places, memory| {
            let rows = batch.ids.len();
            let known = Known {
                program: program.clone(),
                rows,
                ids: batch.ids.clone(),
                rotations,
                places,
                is_embedded: false,
                is_given: true,
                tapes: 0,
                additions: vec![],
                features: vec![],
                logit_rows: wants.logit_rows.clone(),
                final_rows: wants.final_hidden.clone(),
            };
            let mut logits = vec![0.0; wants.logit_rows.len() * program.vocab()];
            let mut final_hidden = vec![0.0; wants.final_hidden.len() * program.hidden()];
            let mut outputs: Vec<&mut [f32]> = memory.iter_mut().map(|part| &mut **part).collect();
            outputs.extend((!logits.is_empty()).then_some(&mut *logits));
            outputs.extend((!final_hidden.is_empty()).then_some(&mut *final_hidden));
            let given = HostRows::dense(given, given.len() / rows.max(1));
            known.run(&[given], &[], &mut outputs);
            HostForward { rows: wants.logit_rows.len(), logits, final_hidden }
        })
    }

    /// Writes the rows of the batch into the store, and computes what is wanted. Lazy.
    pub(crate) fn forward(self, kv: &mut KvStore) -> Result<Forward> {
        #[cfg(test)]
        tests::PASSES.with(|passes| passes.set(passes.get() + 1));
        let segments = &self.batch.segments;
        let images = self.images.clone();
        kv.pass(segments, &images, |memory| self.node(memory))
    }

    fn node(self, memory: PassMemory) -> Result<(PassArrays, Forward)> {
        let Self { program, batch, wants, rotations, embedded, additions, .. } = self;
        let PassMemory { places, arrays, tapes, tape_widths } = memory;
        let rows = batch.ids.len();
        let features = wants.hidden_states.as_ref().map_or(vec![], |wanted| wanted.layers.clone());
        let shapes = shapes(&arrays, &places, &tape_widths, program, rows, features.len(), wants);
        let ids = match &batch.pending {
            Some(_) => Some(batch.id_array()?.as_dtype(Dtype::Uint32)?),
            None => None,
        };
        let known = Known {
            program: program.clone(),
            rows,
            ids: if ids.is_some() { vec![] } else { batch.ids.clone() },
            rotations,
            is_embedded: embedded.is_some(),
            is_given: false,
            tapes: tapes.len(),
            additions: additions.iter().map(|(layer, _)| *layer).collect(),
            features,
            logit_rows: wants.logit_rows.clone(),
            final_rows: wants.final_hidden.clone(),
            places,
        };
        let tape_count = if known.places.tape_rows > 0 { tape_widths.len() } else { 0 };
        let feature_count = known.features.len();
        let inputs = arrays.iter().chain(&embedded).chain(&tapes);
        let inputs: Vec<&Array> = inputs.chain(additions.iter().map(|(_, rows)| rows)).collect();
        let made = node(&inputs, ids.as_ref(), &shapes, arrays.len(), known)?;
        let mut made = made.into_iter();
        let mut next = |count: usize| made.by_ref().take(count).collect::<Vec<_>>();
        let stored = PassArrays { memory: next(arrays.len()), tapes: next(tape_count) };
        let layers = next(feature_count);
        let hidden_states = wants
            .hidden_states
            .as_ref()
            .map(|wanted| HiddenStates { layers, rows: wanted.rows.clone() });
        let mut one = |is_wanted: bool| if is_wanted { next(1).pop() } else { None };
        let logits = one(!wants.logit_rows.is_empty());
        let final_hidden = one(!wants.final_hidden.is_empty());
        Ok((stored, Forward { logits, hidden_states, final_hidden }))
    }
}

/// Shapes of the node's outputs, in the order in which [`Program::run`] takes them.
fn shapes(
    arrays: &[Array],
    places: &PassPlaces,
    tape_widths: &[usize],
    program: &Program,
    rows: usize,
    features: usize,
    wants: &Wants,
) -> Vec<Vec<i32>> {
    let matrix = |rows: usize, width: usize| vec![rows as i32, width as i32];
    let mut shapes: Vec<Vec<i32>> = arrays.iter().map(|array| array.shape().to_vec()).collect();
    if places.tape_rows > 0 {
        shapes.extend(tape_widths.iter().map(|width| matrix(places.tape_rows, *width)));
    }
    shapes.extend((0..features).map(|_| matrix(rows, program.hidden())));
    if !wants.logit_rows.is_empty() {
        shapes.push(matrix(wants.logit_rows.len(), program.vocab()));
    }
    if !wants.final_hidden.is_empty() {
        shapes.push(matrix(wants.final_hidden.len(), program.hidden()));
    }
    shapes
}

/// The node. The first `in_place` inputs become the first outputs.
fn node(
    inputs: &[&Array],
    ids: Option<&Array>,
    shapes: &[Vec<i32>],
    in_place: usize,
    known: Known,
) -> Result<Vec<Array>> {
    let handles: Vec<mlx_sys::mlx_array> = inputs.iter().map(|array| array.as_ptr()).collect();
    let numbers: Vec<mlx_sys::mlx_array> = ids.iter().map(|array| array.as_ptr()).collect();
    let shapes: Vec<&[i32]> = shapes.iter().map(Vec::as_slice).collect();
    let function =
        move |rows: &[HostRows<'_>], numbers: &[HostNumbers<'_>], outputs: &mut [&mut [f32]]| {
            known.run(rows, numbers, outputs)
        };
    // SAFETY: the handles are of arrays that live; the results have no other owner.
    let made = unsafe {
        mlx_sys::host_arrays(&handles, &numbers, &shapes, HostOutput::InPlace(in_place), function)
            .map(|handles| handles.into_iter().map(|handle| Array::from_ptr(handle)).collect())
    };
    made.ok_or_else(|| {
        ModelError::Batch("cannot make a pass: expected float32 on the CPU, and memory".into())
    })
}

#[cfg(test)]
pub(crate) mod tests;
