//! The rows of a step: ids, positions, segments, and the rules by which tokens are chosen from
//! them.

use std::ops::Range;

use paceline_models::sample::{Block, DraftedIds, RowRule};
use paceline_models::vision::{ImageForm, ImagePlacement, positions};
use paceline_models::{
    Batch, FeatureLayers, ModelError, Override, PendingIds, Positions, Segment, SequenceId, Wants,
};
use paceline_target_core::{Image, Sequence, SequenceKey, StepPart};

use super::StepInputs;
use crate::running::RunningRequest;

/// The rows of a step, and the outputs that are wanted of them.
#[derive(Debug, Default)]
pub(super) struct StepRows<'a> {
    /// Ids; placeholders in rows whose id is drafted.
    pub(super) ids: Vec<u32>,
    /// Rows whose id is drafted.
    drafted: Vec<i32>,
    pub(super) segments: Vec<Segment>,
    positions: RowPositions,
    overrides: Vec<Override>,
    pub(super) wants: Wants,
    /// Sequences for which tokens are chosen, as many as `blocks`.
    pub(super) keys: Vec<SequenceKey>,
    pub(super) blocks: Vec<Block<'a>>,
}

impl<'a> StepRows<'a> {
    /// The rows of these parts. Hidden states of `feature_layers` are wanted of the rows of
    /// sequences that keep them.
    ///
    /// # Errors
    /// A part's sequence is not running; an image's features are missing; MLX's own.
    pub(super) fn of(inputs: StepInputs<'a>, feature_layers: &[usize]) -> Result<Self, ModelError> {
        let (mut all, mut hidden_rows) = (Self::default(), Vec::<i32>::new());
        for part in inputs.parts {
            let sequence = inputs.scheduler.get(part.key);
            let (Some(sequence), Some(running)) = (sequence, inputs.running.get(&part.key)) else {
                return Err(ModelError::Batch(format!("sequence {} is not running", part.key.0)));
            };
            let first_row = all.ids.len() as i32;
            let known = part.start..part.start + part.rows - part.drafted;
            all.ids.extend_from_slice(&sequence.ids[known]);
            all.ids.resize(first_row as usize + part.rows, 0);
            let rows = first_row..all.ids.len() as i32;
            all.positions.add(inputs.form, &sequence.images, part);
            all.add_segment(inputs, sequence, part, first_row)?;
            if inputs.scheduler.keeps_hidden_states(part.key) && !feature_layers.is_empty() {
                hidden_rows.extend(rows.clone());
            }
            if part.chooses {
                let first_drafted = rows.end - part.drafted as i32;
                all.wants.logit_rows.extend(first_drafted - 1..rows.end);
                all.drafted.extend(first_drafted..rows.end);
                let rule = rule(sequence, running, part.drafted + 1);
                all.keys.push(part.key);
                all.blocks.push(Block { rule, drafted: part.drafted });
            }
        }
        all.wants.hidden_states = (!hidden_rows.is_empty())
            .then(|| FeatureLayers { layers: feature_layers.to_vec(), rows: hidden_rows });
        Ok(all)
    }

    fn add_segment(
        &mut self,
        inputs: StepInputs<'_>,
        sequence: &Sequence,
        part: &StepPart,
        first_row: i32,
    ) -> Result<(), ModelError> {
        for (image, inside) in images_in(&sequence.images, part) {
            let first = (image.first + inside.start - part.start) as i32;
            self.overrides.push(inputs.features.rows(&image.key, inside, first_row + first)?);
            self.positions.differ |= inputs.form != ImageForm::Indexed;
        }
        self.segments.push(Segment {
            sequence: SequenceId(part.key.0),
            start: part.start as i32,
            length: part.rows as i32,
            drafted: part.drafted as i32,
        });
        Ok(())
    }

    /// The rows of the next step, whose ids are what this step chooses. `None` where they cannot be
    /// foreseen: a sequence prefills, verifies, or has its last token in this step.
    pub(super) fn next(&self, inputs: StepInputs<'a>) -> Option<Self> {
        let StepInputs { scheduler, parts, .. } = inputs;
        let is_plain = |part: &StepPart| part.chooses && part.rows == 1 && !part.prefill;
        if parts.len() != scheduler.len() || !parts.iter().all(is_plain) {
            return None;
        }
        let mut next = Self {
            ids: self.ids.clone(),
            drafted: self.wants.logit_rows.clone(),
            wants: self.wants.clone(),
            keys: self.keys.clone(),
            ..Self::default()
        };
        for ((part, segment), block) in parts.iter().zip(&self.segments).zip(&self.blocks) {
            let sequence = scheduler.get(part.key).filter(|sequence| sequence.left() > 1)?;
            next.segments.push(Segment { start: segment.start + 1, ..*segment });
            let part = StepPart { start: part.start + 1, ..*part };
            next.positions.add(inputs.form, &sequence.images, &part);
            let rule = RowRule { position: block.rule.position + 1, ..block.rule };
            next.blocks.push(Block { rule, ..*block });
        }
        Some(next)
    }

    /// The batch of these rows, with the drafted ids in their places.
    pub(super) fn batch(&self, drafts: &DraftedIds) -> Batch {
        let mut ids = self.ids.clone();
        let pending = match drafts {
            DraftedIds::OnHost(drafts) => {
                self.drafted.iter().zip(drafts).for_each(|(row, id)| ids[*row as usize] = *id);
                None
            }
            DraftedIds::InGraph(drafts) => {
                Some(PendingIds { rows: self.drafted.clone(), ids: drafts.clone() })
            }
        };
        Batch {
            ids,
            pending,
            positions: self.positions.of_batch(),
            overrides: self.overrides.clone(),
            segments: self.segments.clone(),
        }
    }
}

/// The rule by which a sequence's next token is chosen, the first one of `rows`.
fn rule<'a>(sequence: &'a Sequence, running: &'a RunningRequest, rows: usize) -> RowRule<'a> {
    let RunningRequest { request, constraint, .. } = running;
    let constraint = constraint.follow(&sequence.ids[sequence.prompt_len..], rows);
    RowRule {
        history: &sequence.ids,
        prompt_len: sequence.prompt_len,
        sampling: request.sampling,
        bias: &request.bias,
        stop_ids: &request.scheduling.stop_ids,
        min_tokens: request.min_tokens,
        noise: request.noise,
        position: sequence.ids.len() as u32,
        id_limit: request.id_limit,
        wants_margin: request.wants_margins,
        logprobs: request.logprobs,
        constraint,
    }
}

/// Images of which a part has rows, and which rows of the image these are.
fn images_in<'a>(
    images: &'a [Image],
    part: &StepPart,
) -> impl Iterator<Item = (&'a Image, Range<usize>)> {
    let rows = part.start..part.start + part.rows;
    let inside = move |image: &'a Image| {
        let inside = image.first.max(rows.start)..image.end().min(rows.end);
        (!inside.is_empty()).then(|| (image, inside.start - image.first..inside.end - image.first))
    };
    images.iter().filter_map(inside)
}

/// Positions of a step's rows.
#[derive(Debug, Default)]
struct RowPositions {
    /// As many as the form of the model's images has.
    axes: Vec<Vec<i32>>,
    /// Whether they differ by axis: only rows of images have such positions.
    differ: bool,
}

impl RowPositions {
    /// Adds a part's rows, of a sequence with these images.
    fn add(&mut self, form: ImageForm, images: &[Image], part: &StepPart) {
        let placed = |image: &Image| ImagePlacement {
            first: image.first as i32,
            rows: image.grid_rows as i32,
            columns: image.grid_columns as i32,
            form,
        };
        let placed: Vec<ImagePlacement> = images.iter().map(placed).collect();
        self.axes.resize(form.axes(), vec![]);
        positions(&placed, part.start as i32, part.rows as i32, &mut self.axes);
    }

    fn of_batch(&self) -> Positions {
        if self.differ {
            return Positions::Axes(self.axes.clone());
        }
        // In rows of text all axes are equal.
        Positions::One(self.axes.first().cloned().unwrap_or_default())
    }
}
