//! The backbone that DFlash (arXiv 2602.06036) and the kinds after it share: context rows become
//! keys and values of each layer, and a block of rows is filled in one forward. Attention → layer →
//! backbone. S context rows · L block rows, of all parts one after another · H heads · D head_dim.
//! Field names are the checkpoint's tensor names. Source of the arithmetic: z-lab/dflash,
//! `dflash/model.py`.

mod config;
mod gemma4;

use std::ops::Range;

use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

pub(super) use config::{AttentionWindow, Config, Keys, LayerForm, wrong};

use gemma4::GemmaParts;

use super::context_rows::lengths;
use super::{BlockRequest, DraftBatch, DraftFacts, DraftInfo, DraftPart, Proposal, TokenDraft};
use crate::error::{ModelError, Result};
use crate::kv::{AttentionParams, GrowingKv, KvStore, LayerKv};
use crate::layers::{Gate, GatedMlp, HeadNorm, HeadRows, Linear, RmsNorm, Rope, RopeTables};
use crate::load::{CheckpointError, ConfigJson, LoadError, Weights};
use crate::segment::Segment;

/// Inputs that all layers of one forward share. Keys and values are of all context rows, then of
/// all block rows; queries are of block rows.
pub(super) struct Step {
    segments: Vec<Segment>,
    /// Block rows of each part.
    queries: Vec<i32>,
    /// `None` where there is no such row.
    context: Option<Array>,
    key_rope: RopeTables,
    query_rope: RopeTables,
    /// For 1, 2, … rows back `[L]`: one more than the number of the block row that is so far before
    /// each one; 0 if its block has none.
    pub(super) earlier: Vec<Array>,
}

/// The attention of a layer.
pub(super) struct Attention {
    q_proj: Linear,
    kv_proj: Linear,
    o_proj: Linear,
    q_norm: HeadNorm,
    k_norm: HeadNorm,
    /// Values have a norm without a weight, if any.
    v_norm: Option<RmsNorm>,
    /// Heads of values among those that `kv_proj` gives.
    values: Range<i32>,
    n_heads: i32,
    head_dim: i32,
    scale: f32,
    causal: bool,
}

impl Attention {
    fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        attention: AttentionWindow,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        let Config { n_heads, n_kv_heads, head_dim, rms_norm_eps, .. } = *config;
        let Config { hidden_size: hidden, attention_bias: bias, .. } = *config;
        let [q, k, v, o] =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        let norm = |weights: &mut Weights, part: &str, heads: i32| {
            HeadNorm::load(weights, &[(&format!("{name}.{part}"), heads)], head_dim, rms_norm_eps)
        };
        let (is_gemma, k_eq_v) = match config.form {
            LayerForm::Qwen3 => (false, false),
            LayerForm::Gemma4 { k_eq_v } => (true, k_eq_v),
        };
        let projected = [(k.as_str(), narrow), (v.as_str(), narrow)];
        let projected = if k_eq_v { &projected[..1] } else { &projected };
        let first_value = if k_eq_v { 0 } else { n_kv_heads };
        Ok(Self {
            q_proj: Linear::load(weights, &q, wide, hidden, bias)?.quantized(bits)?,
            kv_proj: Linear::load_joined(weights, projected, hidden, bias)?.quantized(bits)?,
            o_proj: Linear::load(weights, &o, hidden, wide, bias)?.quantized(bits)?,
            q_norm: norm(weights, "q_norm", n_heads)?,
            k_norm: norm(weights, "k_norm", n_kv_heads)?,
            v_norm: is_gemma
                .then(|| RmsNorm::without_weight(head_dim, rms_norm_eps))
                .transpose()?,
            values: first_value..first_value + n_kv_heads,
            n_heads,
            head_dim,
            scale: if is_gemma { 1.0 } else { (head_dim as f32).powf(-0.5) },
            causal: attention.causal,
        })
    }

    /// Keys `[rows, Hkv, D]`, and rows of heads of which some are the values, of context (not
    /// normed per layer) and block rows by the same weights.
    fn keys_values(&self, rows: &Array, step: &Step) -> Result<(Array, Array)> {
        let kv = self.kv_proj.forward(rows)?.reshape(&[rows.dim(0), -1, self.head_dim])?;
        let keys = self.k_norm.forward(&kv, &step.key_rope)?;
        match &self.v_norm {
            Some(norm) => Ok((keys, norm.forward(&kv)?)),
            None => Ok((keys, kv)),
        }
    }

    /// The values of [`Attention::keys_values`].
    fn values<'a>(&self, keys_values: &'a Array) -> HeadRows<'a> {
        HeadRows::new(keys_values, self.values.clone())
    }

    /// Block rows see the context and one another, forwards too unless the layer is causal. `block`
    /// `[L, hidden]` → the same.
    pub(super) fn forward(
        &self,
        layer: usize,
        block: &Array,
        step: &Step,
        kv: &mut KvStore,
    ) -> Result<Array> {
        let queries =
            self.q_proj.forward(block)?.reshape(&[block.dim(0), self.n_heads, self.head_dim])?;
        let queries = self.q_norm.forward(&queries, &step.query_rope)?;
        let (keys, both) = match &step.context {
            Some(context) => self.keys_values(&concatenate(&[context, block], 0)?, step)?,
            None => self.keys_values(block, step)?,
        };
        let params = AttentionParams {
            scale: self.scale,
            queries: Some(&step.queries),
            both_ways: !self.causal,
            ..AttentionParams::default()
        };
        let values = self.values(&both);
        self.o_proj.forward(&kv.attend(layer, &queries, &keys, values, params, &step.segments)?)
    }
}

/// A layer, of Qwen3's form or of Gemma 4's.
pub(super) struct Layer {
    pub(super) input_layernorm: RmsNorm,
    pub(super) self_attn: Attention,
    pub(super) post_attention_layernorm: RmsNorm,
    pub(super) mlp: GatedMlp,
    /// What Gemma 4's form has more; with it `post_attention_layernorm` norms what attention gives.
    gemma: Option<GemmaParts>,
}

impl Layer {
    /// Reads the tensors whose names begin with `name`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        attention: AttentionWindow,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        let Config { hidden_size: hidden, intermediate_size: width, rms_norm_eps: eps, .. } =
            *config;
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("{name}.{part}"), hidden, eps)
        };
        let self_attn = format!("{name}.self_attn");
        let mlp = GatedMlp::load(weights, &format!("{name}.mlp"), hidden, width, false)?;
        let (mlp, gemma) = match config.form {
            LayerForm::Qwen3 => (mlp, None),
            LayerForm::Gemma4 { .. } => {
                (mlp.gated_by(Gate::Gelu), Some(GemmaParts::load(weights, name, config)?))
            }
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &self_attn, config, attention, bits)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: mlp.quantized(bits)?,
            gemma,
        })
    }
}

/// A layer that a backbone can be made of.
pub(super) trait BlockLayer {
    /// `x` `[L, hidden]` → the same. Writes the keys and values of context and block rows.
    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array>;

    /// Attention of the layer, which alone reads context rows.
    fn attention(&self) -> &Attention;
}

impl BlockLayer for Layer {
    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        let mixed = self.self_attn.forward(layer, &self.input_layernorm.forward(x)?, step, kv)?;
        let Some(gemma) = &self.gemma else {
            let x = x.add(mixed)?;
            return Ok(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?);
        };
        let x = x.add(self.post_attention_layernorm.forward(&mixed)?)?;
        let more = self.mlp.forward(&gemma.pre_feedforward_layernorm.forward(&x)?)?;
        let x = x.add(gemma.post_feedforward_layernorm.forward(&more)?)?;
        let scalar = Array::from_f32(gemma.layer_scalar).as_dtype(x.dtype())?;
        Ok(x.multiply(scalar)?)
    }

    fn attention(&self) -> &Attention {
        &self.self_attn
    }
}

/// Everything between the hidden states given and the hidden rows that propose.
pub(super) struct Backbone<L> {
    pub(super) facts: DraftFacts,
    pub(super) config: Config,
    rope: Rope,
    fc: Linear,
    hidden_norm: RmsNorm,
    layers: Vec<L>,
    norm: RmsNorm,
    /// On the embeddings given; `None` is 1.
    embedding_scale: Option<Array>,
}

/// Refuses a checkpoint in float16, on every device.
fn check_dtype(weights: &Weights<'_>) -> Result<Dtype, LoadError> {
    let dtype = weights.dtype_of("fc.weight");
    if weights.is_float16("fc") || dtype == Dtype::Float16 {
        return Err(LoadError::from(CheckpointError::Dtype {
            name: "fc.weight".into(),
            found: "F16".into(),
            expected: "F32 or BF16: outliers of the hidden states overflow float16 in fc, and \
                       nearly no draft is accepted; convert the published weights again",
        }));
    }
    Ok(dtype)
}

impl<L: BlockLayer> Backbone<L> {
    /// Reads the backbone's tensors; `layer` reads those of a layer by the beginning of their names
    /// and its attention's rule. `rotary` has the rotary keys, `info` describes the drafter.
    pub(super) fn load(
        weights: &mut Weights,
        rotary: &ConfigJson,
        info: DraftInfo,
        config: Config,
        bits: Option<i32>,
        layer: impl Fn(&mut Weights, &str, AttentionWindow) -> Result<L, LoadError>,
    ) -> Result<Self, LoadError> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let rope = match config.form {
            LayerForm::Qwen3 => Rope::load(rotary, config.head_dim)?,
            LayerForm::Gemma4 { .. } => Rope::load_kind(rotary, gemma4::KIND, config.head_dim)?,
        };
        let dtype = check_dtype(weights)?;
        // fc reads all hidden states and every layer reads its output: 8 bits at least. With 4 the
        // demo pair drafted 3 % fewer tokens a cycle.
        let width = config.feature_layers.len() as i32 * hidden;
        let fc = Linear::load(weights, "fc", hidden, width, false)?
            .quantized(bits.map(|bits| bits.max(8)))?;
        let hidden_norm = RmsNorm::load(weights, "hidden_norm", hidden, eps)?;
        let mut layers = Vec::new();
        for (at, attention) in config.layers.iter().enumerate() {
            layers.push(layer(weights, &format!("layers.{at}"), *attention)?);
        }
        let norm = RmsNorm::load(weights, "norm", hidden, eps)?;
        let scale = |scale| Array::from_f32(scale).as_dtype(dtype);
        let embedding_scale = config.embedding_scale.map(scale).transpose()?;
        let Config { n_kv_heads: n_kv, head_dim, .. } = config;
        let kv = |attention: &AttentionWindow| {
            let window = attention.window;
            LayerKv::Growing(GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window })
        };
        let kv_layers = config.layers.iter().map(kv).collect();
        let facts = DraftFacts { info, kv_layers, dtype };
        Ok(Self { facts, config, rope, fc, hidden_norm, layers, norm, embedding_scale })
    }

    /// Reads the context and fills the blocks: the rows that propose, after the final norm
    /// `[sum of (block rows − 1), hidden]`; `None` if no part has a block. Nothing is committed.
    /// The batch must have been checked.
    pub(super) fn forward(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Array>> {
        let step = self.step(batch, kv)?;
        let Some(embeddings) = &batch.embeddings else {
            self.read_context(&step, kv)?;
            return Ok(None);
        };
        let mut x = embeddings.as_dtype(self.facts.dtype)?;
        if self.config.bonus_proposes {
            // Of each block all embeddings but the last mask token's.
            x = rows_of_blocks(&x, &asked_rows(batch), |rows| 0..rows - 1)?;
        }
        if let Some(scale) = &self.embedding_scale {
            x = x.multiply(scale)?;
        }
        for (at, layer) in self.layers.iter().enumerate() {
            x = layer.forward(at, &x, &step, kv)?;
        }
        if !self.config.bonus_proposes {
            x = rows_of_blocks(&x, &step.queries, |rows| 1..rows)?;
        }
        Ok(Some(self.norm.forward(&x)?))
    }

    /// The drafts of a batch as token ids below `vocab`. `choose` chooses them from the hidden rows
    /// that propose, for the parts with a block.
    pub(super) fn propose_ids(
        &self,
        batch: &DraftBatch,
        vocab: i32,
        kv: &mut KvStore,
        choose: impl FnOnce(&Array, &[(DraftPart, BlockRequest)]) -> Result<Vec<TokenDraft>>,
    ) -> Result<Option<Proposal>> {
        batch.check(&self.facts.info)?;
        let blocks = batch.blocks(vocab)?;
        let hidden = self.forward(batch, kv)?;
        let drafts = hidden.map(|hidden| choose(&hidden, &blocks)).transpose()?;
        commit_context(batch, kv)?;
        Ok(drafts.map(Proposal::Tokens))
    }

    /// Context rows do not depend on the layers below: nothing but keys and values is needed.
    fn read_context(&self, step: &Step, kv: &mut KvStore) -> Result<()> {
        let Some(context) = &step.context else {
            return Err(ModelError::Batch("expected rows".into()));
        };
        for (at, layer) in self.layers.iter().enumerate() {
            let attention = layer.attention();
            let (keys, both) = attention.keys_values(context, step)?;
            let values = attention.values(&both);
            kv.write(at, &keys, values, Some(&step.queries), &step.segments)?;
        }
        Ok(())
    }

    fn step(&self, batch: &DraftBatch, kv: &KvStore) -> Result<Step> {
        let queries: Vec<i32> = asked_rows(batch)
            .into_iter()
            .map(|rows| if self.config.bonus_proposes { (rows - 1).max(0) } else { rows })
            .collect();
        let starts = lengths(&batch.parts, kv)?;
        let mut segments = Vec::with_capacity(batch.parts.len());
        for ((part, rows), start) in batch.parts.iter().zip(&queries).zip(starts) {
            let (sequence, length) = (part.sequence, part.context + rows);
            segments.push(Segment { sequence, start, length, drafted: 0 });
        }
        let context =
            batch.parts.iter().flat_map(|part| part.position..part.position + part.context);
        let block = batch
            .parts
            .iter()
            .zip(&queries)
            .flat_map(|(part, rows)| (part.position + part.context..).take(*rows as usize));
        let positions: Vec<i32> = context.chain(block).collect();
        let dtype = self.facts.dtype;
        let key_rope = self.rope.rows(&positions, dtype)?;
        let query_rope = key_rope.last(queries.iter().sum())?;
        let context = match &batch.hidden_states {
            Some(rows) => {
                Some(self.hidden_norm.forward(&self.fc.forward(&rows.as_dtype(dtype)?)?)?)
            }
            None => None,
        };
        let earlier = (1..=self.config.earlier_rows).map(|back| earlier_rows(&queries, back));
        let earlier = earlier.collect();
        Ok(Step { segments, queries, context, key_rope, query_rope, earlier })
    }
}

/// Commits the context rows of a forward; the block's rows are dropped.
pub(super) fn commit_context(batch: &DraftBatch, kv: &mut KvStore) -> Result<()> {
    for part in &batch.parts {
        let length = kv.length(part.sequence).unwrap_or(0) + part.context;
        kv.commit(part.sequence, length)?;
    }
    Ok(())
}

/// Block rows that each part asks for.
fn asked_rows(batch: &DraftBatch) -> Vec<i32> {
    batch.parts.iter().map(DraftPart::block_rows).collect()
}

/// For each row of the blocks, the place of the row that is `back` rows before it, in rows with one
/// of zeros in front: 0 if the block has no such row.
fn earlier_rows(blocks: &[i32], back: i32) -> Array {
    let (mut start, mut places) = (0, vec![]);
    for rows in blocks {
        places.extend((0..*rows).map(|row| if row < back { 0 } else { start + row - back + 1 }));
        start += rows;
    }
    Array::from_slice(&places, &[places.len() as i32])
}

/// Of every block of `x` `[L, hidden]` the rows that `wanted` names for its number of rows.
fn rows_of_blocks(x: &Array, blocks: &[i32], wanted: impl Fn(i32) -> Range<i32>) -> Result<Array> {
    if let [rows] = blocks {
        return Ok(x.try_index((wanted(*rows), ..))?);
    }
    let (mut start, mut rows) = (0, Vec::with_capacity(x.dim(0) as usize));
    for block in blocks.iter().filter(|block| **block > 0) {
        rows.extend(wanted(*block).map(|row| start + row));
        start += block;
    }
    Ok(x.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)?)
}
