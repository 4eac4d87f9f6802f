//! EAGLE-3 drafter (arXiv 2503.01840) in the speculators layout: one layer that reads a token and
//! the hidden state that led to it. Vocabulary → rows to read → drafter. R rows. Field names are the
//! checkpoint's tensor names. Source of the arithmetic: speculators 0.9, `models/eagle3`.
//!
//! ```text
//!  row            token               hidden state                    afterwards
//!  of position i  that of i + 1       the target's, of position i     stays in the store
//!  of a draft     the draft           the layer's own, of the row     dropped after the block
//!                                     before
//! ```
//!
//! The first draft comes from the row of the last context position. Its token is the bonus token. If
//! that row was read in an earlier call without a block, the drafter has kept the row's input and
//! computes it once more.

mod config;
mod layer;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use mlx_rs::ops::concatenate;
use mlx_rs::{Array, Dtype};
use paceline_vocabulary::link::ProposalKind;

use config::Config;
use layer::{Features, Layer, RowPlaces};

use super::chain::{ChainRows, Chains};
use super::{DraftBatch, DraftInfo, Drafter, DrafterFiles, Kind, Proposal, lengths};
use crate::error::{ModelError, Result};
use crate::kv::{GrowingKv, KvStore, LayerKv};
use crate::layers::{Embedding, Linear, RmsNorm, Rope};
use crate::load::{LoadError, Weights};
use crate::segment::{Segment, SequenceId};

/// The ids that can be proposed, and the head that scores them.
struct DraftVocabulary {
    lm_head: Linear,
    /// For each id of the target its row of the head, or one after the last for an id without one.
    /// `None`: the head has a row for each id.
    row_of: Option<Array>,
}

impl DraftVocabulary {
    fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, draft_vocab, vocab, .. } = *config;
        let row_of = match weights.has("d2t") {
            true => {
                let offsets = weights.take_integers("d2t", &[draft_vocab])?;
                Some(rows_by_id(&offsets, vocab)?)
            }
            false if draft_vocab == vocab => None,
            false => return Err(LoadError::Missing { name: "d2t".into() }),
        };
        // It marks the ids that d2t names.
        weights.skip_tensor("t2d");
        let lm_head = Linear::load(weights, "lm_head", draft_vocab, hidden_size, false)?;
        Ok(Self { lm_head, row_of })
    }

    /// Logits of the target's ids `[rows, vocab]`, float32, of `normed` `[rows, hidden]`: −∞ for an
    /// id that cannot be proposed. So noise and ties are those of the target's ids.
    fn logits(&self, normed: &Array) -> Result<Array> {
        let logits = self.lm_head.forward(normed)?.as_dtype(Dtype::Float32)?;
        let Some(row_of) = &self.row_of else { return Ok(logits) };
        let rows = logits.dim(0) as usize;
        let without = Array::from_slice(&vec![f32::NEG_INFINITY; rows], &[rows as i32, 1]);
        Ok(concatenate(&[logits, without], 1)?.take_axis(row_of, 1)?)
    }
}

/// `[vocab]`: rows of the head by the target's id. Row i is of id i + `offsets[i]`.
fn rows_by_id(offsets: &[i64], vocab: i32) -> Result<Array, LoadError> {
    let mut rows = vec![offsets.len() as i32; vocab as usize];
    for (row, offset) in offsets.iter().enumerate() {
        let id = offset.checked_add(row as i64).and_then(|id| usize::try_from(id).ok());
        match id.and_then(|id| rows.get_mut(id)) {
            Some(place) if *place == offsets.len() as i32 => *place = row as i32,
            _ => {
                let what = format!(
                    "tensor d2t: expected ids below {vocab}, each once; row {row} has offset {offset}"
                );
                return Err(LoadError::Config { key: "draft_vocab_size".into(), what });
            }
        }
    }
    Ok(Array::from_slice(&rows, &[vocab]))
}

/// How EAGLE-3 drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "eagle3",
    is_config_of: Config::is_eagle3,
    borrows_head: |_| false,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?, dir, weight_bytes)),
    load: |files| Ok(Box::new(Eagle3::load(files)?)),
};

/// What a drafter with this config reads and proposes.
fn info(sizes: &Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    DraftInfo {
        path: dir.to_path_buf(),
        kind: KIND.name.into(),
        proposal: ProposalKind::Tokens,
        hidden: sizes.target_hidden_size,
        block: sizes.block,
        feature_layers: sizes.feature_layers.clone(),
        token_ids: true,
        embeddings: false,
        mask_id: None,
        target_layers: None,
        vocab: Some(sizes.vocab),
        context: sizes.context,
        logit_softcap: None,
        // The rows of an image have no ids of their own, and this drafter reads ids.
        images: false,
        weight_bytes,
    }
}

/// Refuses what this version would compute wrongly or cannot compute.
fn check_tensors(weights: &Weights<'_>) -> Result<(), LoadError> {
    let wrong = |key: &str, what: &str| LoadError::Config { key: key.into(), what: what.into() };
    if !weights.has("embed_tokens.weight") {
        let what = "the checkpoint has no tensor embed_tokens.weight: this version does not borrow \
                    the target's embedding; copy that tensor of the target into the checkpoint";
        return Err(wrong("speculators_model_type", what));
    }
    if weights.is_float16("fc") || weights.dtype_of("fc.weight") == Dtype::Float16 {
        let what = "the checkpoint has fc in float16: hidden states have outliers that overflow \
                    there, and hardly a draft is accepted; convert from the original in bfloat16 or \
                    float32";
        return Err(wrong("dtype", what));
    }
    Ok(())
}

/// A row to read.
#[derive(Clone, Copy)]
struct ContextRow {
    /// The token after the position.
    next_id: u32,
    position: i32,
    /// Its row of the hidden states.
    source: i32,
}

/// The rows of one forward over the context.
#[derive(Default)]
struct ContextRows {
    places: RowPlaces,
    /// Rows that only write, in the order of the segments.
    written: Vec<ContextRow>,
    /// One for each block that begins.
    queries: Vec<ContextRow>,
    /// Hidden states of rows that are read again; they follow those of the batch.
    again: Vec<Array>,
    /// For each part, whether a draft can be made.
    begins: Vec<bool>,
}

impl ContextRows {
    /// Of each part its context, and of a block without context the last row of its session again,
    /// if it is among `kept`.
    fn new(
        batch: &DraftBatch,
        starts: &[i32],
        kept: &HashMap<SequenceId, LastRow>,
    ) -> Result<Self> {
        let mut made = Self::default();
        let mut from = 0;
        for (part, start) in batch.parts.iter().zip(starts) {
            let next_id = part.block.map(|block| block.bonus_id).or(part.next_id);
            let missing = || {
                let what = "expected the token after the context, with which its last position is \
                            read; found none";
                ModelError::Batch(what.into())
            };
            let next_id = next_id.ok_or_else(missing)?;
            let queries = i32::from(part.block.is_some());
            let to = from + part.context;
            let last = kept.get(&part.sequence).filter(|last| last.length == *start);
            let segment =
                |start, length| Segment { sequence: part.sequence, start, length, drafted: 0 };
            if part.context > 0 {
                made.places.segments.push(segment(*start, part.context));
                let row = |source: i32| ContextRow {
                    next_id: if source + 1 < to { batch.ids[source as usize + 1] } else { next_id },
                    position: part.position + source - from,
                    source,
                };
                made.written.extend((from..to - queries).map(row));
                made.queries.extend((to - queries..to).map(row));
            } else if let Some(last) = last {
                made.places.segments.push(segment(start - 1, 1));
                let source = batch.ids.len() as i32 + made.again.len() as i32;
                made.queries.push(ContextRow { next_id, position: part.position - 1, source });
                made.again.push(last.hidden.clone());
            } else {
                made.begins.push(false);
                continue;
            }
            made.places.queries.push(queries);
            made.begins.push(queries == 1);
            from = to;
        }
        Ok(made)
    }

    /// All rows in the order of the forward.
    fn rows(&self) -> impl Iterator<Item = &ContextRow> {
        self.written.iter().chain(&self.queries)
    }

    /// The hidden states of all rows `[R, features]`, from those of the batch.
    fn hidden(&self, states: Option<&Array>) -> Result<Array> {
        let all: Vec<&Array> = states.into_iter().chain(&self.again).collect();
        let all = match all.as_slice() {
            [one] => (*one).clone(),
            several => concatenate(several, 0)?,
        };
        let order: Vec<i32> = self.rows().map(|row| row.source).collect();
        if order.iter().copied().eq(0..all.dim(0)) {
            return Ok(all);
        }
        Ok(all.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
    }
}

/// Input of a session's last row, which was read without a block.
struct LastRow {
    /// Rows of the session, this one included.
    length: i32,
    /// Hidden states of the target `[1, features]`.
    hidden: Array,
}

/// A loaded EAGLE-3 drafter.
pub(super) struct Eagle3 {
    info: DraftInfo,
    config: Config,
    dtype: Dtype,
    rope: Rope,
    embed_tokens: Embedding,
    features: Features,
    layer: Layer,
    norm: RmsNorm,
    vocabulary: DraftVocabulary,
    /// At most one for each sequence of the store, which has no place for inputs. A copied sequence,
    /// such as a retained context, has none: its first block without context gets no draft.
    last_rows: RefCell<HashMap<SequenceId, LastRow>>,
}

impl Eagle3 {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, .. } = files;
        let sizes = Config::read(config)?;
        let mut weights = weights.quantizing(quantize.bits());
        check_tensors(&weights)?;
        let Config { hidden_size, vocab, .. } = sizes;
        let rope = Rope::load(&config::layer_config(config)?, sizes.head_dim)?;
        let dtype = weights.dtype_of("fc.weight");
        let embed_tokens = Embedding::load(&mut weights, "embed_tokens", vocab, hidden_size)?;
        let features = Features::load(&mut weights, &sizes)?;
        let layer = Layer::load(&mut weights, &sizes)?;
        let norm = RmsNorm::load(&mut weights, "norm", hidden_size, sizes.rms_norm_eps)?;
        let vocabulary = DraftVocabulary::load(&mut weights, &sizes)?;
        weights.finish()?;
        Ok(Self {
            info: info(&sizes, dir, weight_bytes),
            config: sizes,
            dtype,
            rope,
            embed_tokens,
            features,
            layer,
            norm,
            vocabulary,
            last_rows: RefCell::default(),
        })
    }

    /// Reads the context: the output of the last row of each block that begins `[blocks, hidden]`;
    /// `None` without such blocks.
    fn read(
        &self,
        context: &ContextRows,
        states: Option<&Array>,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        if context.places.segments.is_empty() {
            return Ok(None);
        }
        // A row that is read again is written again.
        for segment in &context.places.segments {
            kv.commit(segment.sequence, segment.start)?;
        }
        let hidden = self.features.forward(&context.hidden(states)?.as_dtype(self.dtype)?)?;
        // A target may have padding ids that have no embedding here.
        let known = |id: u32| if id < self.config.vocab as u32 { id } else { 0 };
        let ids: Vec<u32> = context.rows().map(|row| known(row.next_id)).collect();
        let positions: Vec<i32> = context.rows().map(|row| row.position).collect();
        let embeddings = self.embed_tokens.rows(&ids)?.as_dtype(self.dtype)?;
        let rope = self.rope.rows(&positions, self.dtype)?;
        self.layer.forward(&embeddings, &hidden, &context.places, &rope, kv)
    }

    /// Reads the newest draft of the blocks that go on, each with its `hidden` row, the output of
    /// the row before: `[blocks, hidden]`.
    fn step(
        &self,
        next: &ChainRows,
        hidden: &Array,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Array> {
        let (mut positions, mut places) = (vec![], RowPlaces::default());
        for at in &next.parts {
            let part = &batch.parts[*at];
            // The first draft's row follows that of the last context position.
            let after = part.context + next.drafts - 1;
            let start = starts[*at] + after;
            kv.commit(part.sequence, start)?;
            positions.push(part.position + after);
            places.segments.push(Segment { sequence: part.sequence, start, length: 1, drafted: 0 });
            places.queries.push(1);
        }
        let rope = self.rope.rows(&positions, self.dtype)?;
        let embeddings = self.embed_tokens.rows_of(&next.id_array())?.as_dtype(self.dtype)?;
        let output = self.layer.forward(&embeddings, hidden, &places, &rope, kv)?;
        output.ok_or_else(|| ModelError::Batch("expected rows that are queries".into()))
    }

    fn draft(
        &self,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Option<Proposal>> {
        let context = ContextRows::new(batch, starts, &self.last_rows.borrow())?;
        let output = self.read(&context, batch.hidden_states.as_ref(), kv)?;
        let mut chains =
            Chains::new(&batch.parts, self.config.vocab as u32, |at| context.begins[at]);
        if let Some(mut hidden) = output {
            loop {
                let normed = self.norm.forward(&hidden)?;
                let chosen = chains.choose(&self.vocabulary.logits(&normed)?)?;
                let Some(next) = chosen else { break };
                let hidden_of = if self.config.norm_output { &normed } else { &hidden };
                hidden = self.step(&next, &next.take(hidden_of)?, batch, starts, kv)?;
            }
        }
        let any = batch.parts.iter().any(|part| part.block.is_some());
        if any { Ok(Some(Proposal::Tokens(chains.finish(&[])?))) } else { Ok(None) }
    }

    /// Keeps the input of the last rows that were read without a block, and forgets those of
    /// sessions that have other rows now.
    fn keep_last_rows(&self, batch: &DraftBatch, kv: &KvStore) -> Result<()> {
        let mut kept = self.last_rows.borrow_mut();
        kept.retain(|sequence, last| kv.length(*sequence) == Some(last.length));
        let Some(states) = &batch.hidden_states else { return Ok(()) };
        let mut end = 0;
        for part in &batch.parts {
            end += part.context;
            let length = kv.length(part.sequence).filter(|_| part.context > 0);
            if let (Some(length), None) = (length, part.block) {
                // A gather copies: a slice would keep the hidden states of all rows.
                let hidden = states.take_axis(Array::from_slice(&[end - 1], &[1]), 0)?;
                hidden.eval()?;
                kept.insert(part.sequence, LastRow { length, hidden });
            }
        }
        Ok(())
    }
}

impl Drafter for Eagle3 {
    fn info(&self) -> &DraftInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        let Config { n_kv_heads: n_kv, head_dim, .. } = self.config;
        let layer = GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window: None };
        vec![layer.into()]
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(&self.info)?;
        let starts = lengths(&batch.parts, kv)?;
        let drafted = self.draft(batch, &starts, kv);
        // No row of a block stays, and none at all after a fault.
        for (part, start) in batch.parts.iter().zip(&starts) {
            kv.commit(part.sequence, start + if drafted.is_ok() { part.context } else { 0 })?;
        }
        let drafted = drafted?;
        self.keep_last_rows(batch, kv)?;
        Ok(drafted)
    }
}
