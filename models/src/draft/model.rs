//! A small autoregressive model as a drafter (arXiv 2211.17192): any served family whose token ids
//! are the target's. One forward reads the new context of all sessions with their bonus tokens; each
//! further draft is one row a session.
//!
//! The rows of a block are dropped, also those of drafts that will be accepted, and the next round
//! reads the accepted tokens again as context. Keeping them would save no forward, only a few rows
//! of one that is needed anyway. The drafter would also have to remember the ids of kept rows
//! beside the store, which copies, restores and frees sequences without it.
//!
//! The rows of images are left out: the model reads the text around them, as if it stood side by side.
//! Read as the id that stands for them, they cost time and accepted drafts (ADR 19).
//!
//! Drafts have no log probabilities: each would cost one more pass over the logits of a row.

use std::path::Path;

use mlx_rs::Array;
use paceline_checkpoint::families::{Family, is_served};
use serde_json::Value;

use super::chain::{ChainRows, Chains};
use super::context_rows::{commit_rows, lengths};
use super::{
    Borrows, DraftBatch, DraftFacts, DraftInfo, DraftPart, Drafter, DrafterFiles, Kind, Proposal,
    all_tensors,
};
use crate::batch::{Batch, PendingIds, Wants};
use crate::error::{ModelError, Result};
use crate::families::{self, Target, TargetFiles};
use crate::kv::KvStore;
use crate::layers::Positions;
use crate::load::{ConfigJson, LoadError, count_token_ids};
use crate::sample::DraftedIds;
use crate::segment::Segment;
use crate::vision::ImagePlacement;

/// Rows of the longest block. Each draft costs a forward, so a target asks for few; 16 is the block
/// of the published DFlash drafters, beside which this kind is measured.
const BLOCK: i32 = 16;

/// How models of served families are recognized as drafters and loaded.
pub(super) const KIND: Kind = Kind {
    name: "model",
    is_config_of: is_model,
    of_target: None,
    own_tensors: all_tensors,
    borrows: |_| Borrows::Nothing,
    info,
    floats: &[],
    load: |files| Ok(Box::new(Model::load(files)?)),
};

/// Keys of drafters whose `model_type` is that of a target family.
const DRAFTER_KEYS: [&str; 4] =
    ["dflash_config", "speculators_model_type", "draft_vocab_size", "target_layer_ids"];

/// Whether a config.json is that of a whole model of a served family, and not of a drafter.
fn is_model(config: &ConfigJson) -> Result<bool, LoadError> {
    let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
    for key in DRAFTER_KEYS {
        if config.optional::<Value>(key)?.is_some() {
            return Ok(false);
        }
    }
    let is_whole = architectures.iter().all(|name| name.ends_with("ForCausalLM"));
    Ok(is_whole && is_served(config)?)
}

/// Inputs and proposals of a model with this config.
fn info(config: &ConfigJson, dir: &Path, weight_bytes: u64) -> Result<DraftInfo, LoadError> {
    if !is_model(config)? {
        let model_type: String = config.optional("model_type")?.unwrap_or_default();
        let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
        let what = format!(
            "expected a text model of a family that is served as a target, found {model_type:?} \
             with architectures {architectures:?}"
        );
        return Err(config.wrong("model_type", what).into());
    }
    if (Family::of(config)?.recurrent)(config)?.iter().any(Option::is_some) {
        let what = "expected a model whose layers all attend: the states of recurrent layers cannot \
                    drop the rows of a block that was not accepted";
        return Err(config.wrong("model_type", what.into()).into());
    }
    let rows = config.size("vocab_size")?;
    // Rows of the head after the last id are padding.
    let vocab = count_token_ids(dir)?.map_or(rows, |ids| ids.min(rows as u64) as i32);
    Ok(DraftInfo {
        hidden: config.size("hidden_size")?,
        block: BLOCK,
        vocab: Some(vocab),
        context: config.context()?.positions,
        ..DraftInfo::of_tokens(KIND.name, dir, weight_bytes)
    })
}

/// A loaded model.
pub(super) struct Model {
    facts: DraftFacts,
    model: Box<dyn Target>,
    /// Drafts are ids below this one: the target has them all.
    id_limit: u32,
}

impl Model {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, .. } = files;
        let info = info(config, dir, weight_bytes)?;
        let weights = weights.quantizing(quantize.bits());
        let model = families::load_opened(TargetFiles { dir, config, weights, weight_bytes })?;
        let id_limit = info.vocab.unwrap_or(model.info().vocab) as u32;
        let facts = DraftFacts { info, kv_layers: model.kv_layers(), dtype: model.dtype() };
        Ok(Self { facts, model, id_limit })
    }

    /// A target may have ids that this model has no embedding of. They are read as id 0: a wrong
    /// context costs accepted drafts, nothing else.
    fn known(&self, id: u32) -> u32 {
        if id < self.model.info().vocab as u32 { id } else { 0 }
    }

    /// Reads the context of all parts and the bonus token of each block, whose row gives the logits
    /// of its first draft: `[blocks, vocab]`, `None` without blocks.
    fn read(&self, batch: &DraftBatch, starts: &[i32], kv: &mut KvStore) -> Result<Option<Array>> {
        let (mut ids, mut positions, mut segments) = (vec![], vec![], vec![]);
        let mut wants = Wants::default();
        let mut context = batch.ids.iter();
        for (part, start) in batch.parts.iter().zip(starts) {
            let images = batch.images_of(part.sequence);
            let is_text = |at: &i32| !images.iter().any(|image| image.has(*at));
            let own = (part.position..).zip(context.by_ref().take(part.context as usize));
            let text = own.filter(|(at, _)| is_text(at)).map(|(_, id)| self.known(*id));
            let before = ids.len();
            ids.extend(text);
            if let Some(block) = part.block {
                wants.logit_rows.push(ids.len() as i32);
                ids.push(self.known(block.bonus_id));
            }
            let length = (ids.len() - before) as i32;
            let first = text_rows(images, part.position);
            positions.extend(first..first + length);
            if length > 0 {
                let (sequence, start) = (part.sequence, *start);
                segments.push(Segment { sequence, start, length, drafted: 0 });
            }
        }
        if segments.is_empty() {
            return Ok(None);
        }
        let positions = Positions::One(positions);
        let rows = Batch { ids, pending: None, overrides: vec![], segments, positions };
        Ok(self.model.forward(&rows, kv, &wants)?.logits)
    }

    /// Reads the newest draft of the blocks that go on: the logits of their next ones `[blocks,
    /// vocab]`.
    fn step(
        &self,
        next: &ChainRows,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Array> {
        let (mut positions, mut segments) = (vec![], vec![]);
        for at in &next.parts {
            let part = &batch.parts[*at];
            // After the bonus token's row and those of the drafts before.
            let start = starts[*at] + kept_rows(batch, part) + next.drafts;
            kv.commit(part.sequence, start)?;
            let images = batch.images_of(part.sequence);
            positions.push(text_rows(images, part.position + part.context) + next.drafts);
            segments.push(Segment { sequence: part.sequence, start, length: 1, drafted: 0 });
        }
        let all: Vec<i32> = (0..segments.len() as i32).collect();
        let (ids, pending) = match &next.ids {
            DraftedIds::OnHost(ids) => (ids.clone(), None),
            DraftedIds::InGraph(ids) => {
                let pending = PendingIds { rows: all.clone(), ids: ids.clone() };
                (vec![0; segments.len()], Some(pending))
            }
        };
        let positions = Positions::One(positions);
        let rows = Batch { ids, pending, overrides: vec![], segments, positions };
        let wants = Wants { logit_rows: all, ..Wants::default() };
        let none = || ModelError::Batch("expected logits of every row, found none".into());
        self.model.forward(&rows, kv, &wants)?.logits.ok_or_else(none)
    }

    fn draft(
        &self,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Option<Proposal>> {
        let Some(mut logits) = self.read(batch, starts, kv)? else { return Ok(None) };
        let mut chains = Chains::new(&batch.parts, self.id_limit, |_| true);
        while let Some(next) = chains.choose(&logits)? {
            logits = self.step(&next, batch, starts, kv)?;
        }
        Ok(Some(Proposal::Tokens(chains.finish(&[])?)))
    }
}

impl Drafter for Model {
    fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    fn rows_of(&self, images: &[ImagePlacement], positions: i32) -> i32 {
        text_rows(images, positions)
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(self.info())?;
        let starts = lengths(&batch.parts, kv)?;
        let drafted = self.draft(batch, &starts, kv);
        commit_rows(&batch.parts, &starts, &drafted, kv, |part| kept_rows(batch, part))?;
        drafted
    }
}

/// Rows of text among the first `positions` of a sequence with these images.
fn text_rows(images: &[ImagePlacement], positions: i32) -> i32 {
    let seen = |image: &ImagePlacement| image.end().min(positions) - image.first.min(positions);
    positions - images.iter().map(seen).sum::<i32>()
}

/// Rows of text in the context of a part.
fn kept_rows(batch: &DraftBatch, part: &DraftPart) -> i32 {
    let images = batch.images_of(part.sequence);
    text_rows(images, part.position + part.context) - text_rows(images, part.position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vision::ImageForm;

    #[test]
    fn rows_of_images_are_not_counted() {
        let images = [
            ImagePlacement { first: 2, rows: 2, columns: 3, form: ImageForm::Grid },
            ImagePlacement { first: 9, rows: 1, columns: 1, form: ImageForm::Grid },
        ];
        let found: Vec<i32> = (0..12).map(|positions| text_rows(&images, positions)).collect();
        assert_eq!(found, [0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 4]);
        assert_eq!(text_rows(&[], 7), 7);
    }
}
