//! One step on the model: rows of all its sequences in one forward, drafts chosen and verified in
//! the same graph, and what stays of it in the store.

use std::collections::HashMap;
use std::ops::Range;

use paceline_models::sample::{Block, Drafts, Logprobs, RowRule, TokenSelection, propose, softcap};
use paceline_models::vision::{ImagePlacement, positions};
use paceline_models::{
    Array, Batch, Dtype, FeatureLayers, HiddenStates, KvStore, ModelError, Override, PendingIds,
    Positions, PreparedStep, Segment, SequenceId, Target, Wants, prepare_next, take_prepared,
    transfer,
};
use paceline_proto::internal::v1::TensorType;

use crate::core::{Chosen, Image, Scheduler, Sequence, SequenceKey, StepPart, Token};
use crate::drafting::{Drafting, Proposed};
use crate::engine::{Running, Seen};

/// What came of a step.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What was chosen; of a faulty sequence what was chosen before its fault, if anything.
    pub(crate) chosen: Vec<Chosen>,
    /// Sequences of which no token can be chosen behind that: the model's numbers are not finite.
    pub(crate) faulty: Vec<SequenceKey>,
    /// The target's doubt about tokens of these sequences, in nats, where it is of use.
    pub(crate) doubts: Vec<(SequenceKey, Vec<f32>)>,
    /// Of those who asked for them, one for each token.
    pub(crate) logprobs: HashMap<SequenceKey, Vec<Logprobs>>,
}

/// Runs a step and says what was chosen. Afterwards the store holds the rows that stay, and the
/// drafter's end their taps.
///
/// A sequence of which no token can be chosen is named in the outcome and changes nothing for the
/// others.
///
/// # Errors
/// MLX's own, after which the store is not known; or a batch that contradicts itself.
pub(crate) fn run(
    model: &dyn Target,
    kv: &mut KvStore,
    scheduler: &Scheduler,
    drafting: &mut Drafting,
    (running, seen): (&HashMap<SequenceKey, Running>, &Seen),
    parts: &[StepPart],
) -> Result<Outcome, ModelError> {
    let rows = Rows::of(scheduler, drafting.tap_layers(), (running, seen), parts)?;
    let proposals = parts.iter().filter(|part| part.drafted > 0).map(|part| {
        let missing =
            || ModelError::Batch(format!("the draft of sequence {} is not there", part.key.0));
        drafting.take(part.key).ok_or_else(missing)
    });
    let proposals = proposals.collect::<Result<Vec<_>, _>>()?;
    let drafts = drafts(model, &proposals, &rows.blocks)?;
    let prepared =
        take_prepared(kv, &rows.segments, &rows.wants, |selection| selection.serve(&rows.blocks));
    let (forward, selection) = match prepared {
        Some(PreparedStep { forward, selection }) => (forward, Some(selection)),
        None => {
            let forward = model.forward(&rows.batch(&drafts), kv, &rows.wants)?;
            let selection = forward
                .logits
                .as_ref()
                .map(|logits| TokenSelection::of(logits, &rows.blocks))
                .transpose()?;
            (forward, selection)
        }
    };

    let mut outcome = Outcome::default();
    let mut prepared = false;
    match &selection {
        Some(selection) => {
            let with: Vec<&Array> =
                forward.hidden_states.iter().flat_map(HiddenStates::arrays).collect();
            let foreseen = if selection.in_graph() { rows.next(scheduler, parts) } else { None };
            if let Some(next) = foreseen
                && let Some(ids) = selection.ids()?
            {
                selection.begin(&with)?;
                prepared = true;
                prepare_step(model, kv, parts, &next, &ids)?;
            }
            for (key, verdict) in
                rows.keys.iter().zip(selection.verdicts(&rows.blocks, &drafts, &with)?)
            {
                if verdict.faulty {
                    outcome.faulty.push(*key);
                }
                if verdict.choices.is_empty() {
                    continue;
                }
                let tokens = verdict
                    .choices
                    .iter()
                    .map(|choice| Token { id: choice.token, margin: choice.margin })
                    .collect();
                outcome.chosen.push(Chosen { key: *key, tokens });
                if !verdict.surprises.is_empty() {
                    outcome.doubts.push((*key, verdict.surprises));
                }
                if !verdict.logprobs.is_empty() {
                    outcome.logprobs.insert(*key, verdict.logprobs);
                }
            }
        }
        // Nothing is chosen: only what was written to the store is computed, not what the last
        // layer makes of it.
        None => kv.evaluate()?,
    }
    let taps = forward.hidden_states.as_ref().map(HiddenStates::on_host).transpose()?;
    let mut at = 0;
    for part in parts {
        let stays = match part.drafted {
            0 => part.rows,
            // The bonus token's row, and those of the accepted drafts.
            _ => outcome
                .chosen
                .iter()
                .find(|chosen| chosen.key == part.key)
                .map_or(1, |chosen| chosen.tokens.len()),
        };
        if !prepared {
            kv.commit(SequenceId(part.key.0), (part.start + stays) as i32)?;
        }
        if let Some(taps) = taps.as_ref().filter(|_| scheduler.get(part.key).is_some_and(collects))
        {
            if !outcome.faulty.contains(&part.key) {
                drafting.committed(part.key, part.start, taps, at..at + stays);
            }
            at += part.rows;
        }
    }
    Ok(outcome)
}

/// Builds the graph of the next step while this one runs. All rows of this one stay, because none
/// is drafted; `ids` are the ids that it chooses.
fn prepare_step(
    model: &dyn Target,
    kv: &mut KvStore,
    parts: &[StepPart],
    next: &Rows<'_>,
    ids: &Array,
) -> Result<(), ModelError> {
    for part in parts {
        kv.commit(SequenceId(part.key.0), (part.start + part.rows) as i32)?;
    }
    prepare_next(kv, &next.segments, &next.wants, |kv| {
        let forward = model.forward(&next.batch(&Drafts::InGraph(ids.clone())), kv, &next.wants)?;
        let logits = forward
            .logits
            .as_ref()
            .ok_or_else(|| ModelError::Batch("a plain step without logits".into()))?;
        let selection = TokenSelection::of(logits, &next.blocks)?;
        Ok(PreparedStep { forward, selection })
    })?;
    Ok(())
}

/// The rows of a step, and what is wanted of them.
#[derive(Debug, Default)]
struct Rows<'a> {
    /// Placeholders where the id is not known yet.
    ids: Vec<u32>,
    /// Where that is so.
    drafted: Vec<i32>,
    segments: Vec<Segment>,
    places: Places,
    overrides: Vec<Override>,
    wants: Wants,
    /// Who chooses, and by which rules.
    keys: Vec<SequenceKey>,
    blocks: Vec<Block<'a>>,
}

impl<'a> Rows<'a> {
    fn of(
        scheduler: &'a Scheduler,
        tap_layers: &[usize],
        (running, seen): (&'a HashMap<SequenceKey, Running>, &Seen),
        parts: &[StepPart],
    ) -> Result<Self, ModelError> {
        let (mut all, mut tap_rows) = (Self::default(), Vec::<i32>::new());
        for part in parts {
            let (Some(sequence), Some(request)) = (scheduler.get(part.key), running.get(&part.key))
            else {
                return Err(ModelError::Batch(format!("sequence {} is not running", part.key.0)));
            };
            let first_row = all.ids.len() as i32;
            all.ids.extend_from_slice(
                &sequence.ids[part.start..part.start + part.rows - part.drafted],
            );
            all.ids.resize(first_row as usize + part.rows, 0);
            let rows = first_row..all.ids.len() as i32;
            all.places.add(&sequence.images, part);
            for (image, inside) in shown(&sequence.images, part) {
                let first = (image.first + inside.start - part.start) as i32;
                all.overrides.push(seen.rows(&image.key, inside, first_row + first)?);
            }
            all.segments.push(Segment {
                sequence: SequenceId(part.key.0),
                start: part.start as i32,
                length: part.rows as i32,
            });
            if collects(sequence) && !tap_layers.is_empty() {
                tap_rows.extend(rows.clone());
            }
            if part.chooses {
                all.wants.logit_rows.extend(rows.end - 1 - part.drafted as i32..rows.end);
                all.drafted.extend(rows.end - part.drafted as i32..rows.end);
                let checked = &request.checked;
                let rule = RowRule {
                    history: &sequence.ids,
                    prompt_len: sequence.prompt_len,
                    sampling: checked.sampling,
                    bias: &checked.bias,
                    stop_ids: &checked.request.stop_ids,
                    min_tokens: checked.min_tokens,
                    noise: checked.noise,
                    position: sequence.ids.len() as u32,
                    id_limit: checked.id_limit,
                    mask: None,
                    wants_margin: checked.wants_margins,
                    logprobs: checked.logprobs,
                    wants_surprise: scheduler.speculation.wants_entropy(
                        part.key,
                        sequence,
                        sequence.generated(),
                    ),
                };
                all.keys.push(part.key);
                all.blocks.push(Block { rule, drafted: part.drafted });
            }
        }
        all.wants.hidden_states = (!tap_rows.is_empty())
            .then(|| FeatureLayers { layers: tap_layers.to_vec(), rows: tap_rows });
        Ok(all)
    }

    /// The rows of the step behind this one, whose ids are what this one chooses, where it can be
    /// foreseen: all sequences that run decode plainly, and none has its last token now.
    fn next(&self, scheduler: &Scheduler, parts: &[StepPart]) -> Option<Self> {
        let plain = |part: &StepPart| part.chooses && part.rows == 1 && !part.prefill;
        if parts.len() != scheduler.len() || !parts.iter().all(plain) {
            return None;
        }
        let mut next = Self {
            ids: self.ids.clone(),
            drafted: self.wants.logit_rows.clone(),
            ..Self::default()
        };
        (next.wants, next.keys) = (self.wants.clone(), self.keys.clone());
        for ((part, segment), block) in parts.iter().zip(&self.segments).zip(&self.blocks) {
            let sequence = scheduler.get(part.key).filter(|sequence| sequence.left() > 1)?;
            next.segments.push(Segment { start: segment.start + 1, ..*segment });
            next.places.add(&sequence.images, &StepPart { start: part.start + 1, ..*part });
            let wants_surprise =
                scheduler.speculation.wants_entropy(part.key, sequence, sequence.generated() + 1);
            let rule = RowRule { position: block.rule.position + 1, wants_surprise, ..block.rule };
            next.blocks.push(Block { rule, ..*block });
        }
        Some(next)
    }

    /// As the model takes them.
    fn batch(&self, drafts: &Drafts) -> Batch {
        let mut ids = self.ids.clone();
        let pending = match drafts {
            Drafts::OnHost(drafts) => {
                self.drafted.iter().zip(drafts).for_each(|(row, id)| ids[*row as usize] = *id);
                None
            }
            Drafts::InGraph(drafts) => {
                Some(PendingIds { rows: self.drafted.clone(), ids: drafts.clone() })
            }
        };
        let positions = self.places.all(!self.overrides.is_empty());
        Batch {
            ids,
            pending,
            positions,
            overrides: self.overrides.clone(),
            segments: self.segments.clone(),
        }
    }
}

/// Pictures of which a part has rows, and which rows of the picture these are.
fn shown<'a>(
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

/// Where a step's rows stand.
#[derive(Debug, Default)]
struct Places([Vec<i32>; 3]);

impl Places {
    /// Adds a part's rows, of a sequence with these pictures.
    fn add(&mut self, images: &[Image], part: &StepPart) {
        let placed = |image: &Image| ImagePlacement {
            first: image.first as i32,
            rows: image.grid_rows as i32,
            columns: image.grid_columns as i32,
        };
        let placed: Vec<ImagePlacement> = images.iter().map(placed).collect();
        positions(&placed, part.start as i32, part.rows as i32, &mut self.0);
    }

    /// All of them; only rows of pictures have places that differ by axis.
    fn all(&self, pictures: bool) -> Positions {
        let [time, height, width] = self.0.clone();
        if pictures { Positions::Three([time, height, width]) } else { Positions::One(time) }
    }
}

/// Whether taps of a sequence are kept now.
pub(crate) fn collects(sequence: &Sequence) -> bool {
    sequence.keeps_hidden_states()
}

/// The drafted ids of all blocks that have some: hidden rows meet the target's own head.
fn drafts(
    model: &dyn Target,
    proposals: &[Proposed],
    blocks: &[Block<'_>],
) -> Result<Drafts, ModelError> {
    let drafted: Vec<Block<'_>> =
        blocks.iter().filter(|block| block.drafted > 0).copied().collect();
    let hidden = |proposed: &Proposed| match proposed {
        Proposed::Hidden { .. } => true,
        Proposed::Ids(_) => false,
    };
    if !proposals.is_empty() && proposals.iter().all(hidden) {
        let rows = proposals
            .iter()
            .map(|proposed| hidden_rows(model, proposed))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = if let [one] = rows.as_slice() { one.clone() } else { transfer::stack(&rows)? };
        // Of one drafter, so one cap.
        let cap = proposals.iter().find_map(|proposed| match proposed {
            Proposed::Hidden { softcap, .. } if *softcap > 0.0 => Some(*softcap),
            _ => None,
        });
        let logits = model.head(&rows)?;
        return propose(&cap.map(|cap| softcap(&logits, cap)).unwrap_or(Ok(logits))?, &drafted);
    }
    // Ids, or at a change of drafters both: hidden rows of a draft that came before are chosen
    // first.
    let mut ids = vec![];
    for (proposed, block) in proposals.iter().zip(&drafted) {
        match proposed {
            Proposed::Ids(proposed) => ids.extend_from_slice(proposed),
            Proposed::Hidden { .. } => {
                let chosen = propose(&model.head(&hidden_rows(model, proposed)?)?, &[*block])?;
                ids.extend(chosen.on_host()?);
            }
        }
    }
    Ok(Drafts::OnHost(ids))
}

fn hidden_rows(model: &dyn Target, proposed: &Proposed) -> Result<Array, ModelError> {
    let Proposed::Hidden { bytes, rows, kind, .. } = proposed else {
        return Err(ModelError::Batch("expected hidden rows, found ids".into()));
    };
    let dtype = match kind {
        TensorType::F32 | TensorType::Unspecified => Dtype::Float32,
        TensorType::F16 => Dtype::Float16,
        TensorType::Bf16 => Dtype::Bfloat16,
    };
    let rows = transfer::from_bytes(bytes, &[*rows as i32, model.info().hidden], dtype)?;
    Ok(rows.as_dtype(model.dtype())?)
}

#[cfg(test)]
mod tests;
