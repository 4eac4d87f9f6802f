//! The assistant of a Gemma 4: some layers without keys and values, which attend to those of the
//! target's last sliding and last full layer, and draft one token a forward. Layer → rows of blocks
//! → drafter; config.rs has the keys, head.rs the heads. R rows · B blocks. Field names are the
//! checkpoint's tensor names.
//!
//! ```text
//!  x      = pre_projection [the target's embedding of the token, h]
//!  o      = norm(layers(x))          all queries stand at the last context row, in every step
//!  logits = head(o), and post_projection(o) is the h of the next step
//! ```
//!
//! The first h is the target's output at the last context row, after its final norm. The drafter
//! computes keys and values itself, from the inputs of the two layers and with the target's weights
//! (docs/adr/0018). Sources: transformers, `gemma4_assistant`; mlx-vlm 0.7.10,
//! `speculative/drafters/gemma4_assistant`, also for the position of the queries.

mod config;
mod head;

use std::path::Path;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use config::{Config, KINDS};
use head::Head;

use super::chain::Chains;
use super::context_rows::{commit_context, lengths};
use super::last_rows::LastRows;
use super::{
    Borrows, DraftBatch, DraftFacts, DraftInfo, DraftPart, Drafter, DrafterFiles, Kind, Proposal,
    all_tensors,
};
use crate::error::Result;
use crate::families::{AssistedLayers, AssistedTarget};
use crate::kv::{AttentionParams, GrowingKv, KvStore, LayerKv};
use crate::layers::{Gate, GatedMlp, HeadNorm, HeadRows, Linear, RmsNorm, Rope, RopeTables};
use crate::load::{CheckpointError, ConfigJson, LoadError, Weights};
use crate::segment::Segment;

/// Rows of the longest block: the bonus token's and 7 drafts. Published assistants are run with 1
/// to 8 drafts; the target chooses how many it asks for.
const BLOCK: i32 = 8;

/// How assistants are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "assistant",
    is_config_of: config::is_assistant,
    info,
    of_target: Some(of_target),
    own_tensors: all_tensors,
    borrows: |_| Borrows::KeysAndValues,
    floats: &[],
    load: |files| Ok(Box::new(Assistant::load(files)?)),
};

/// Inputs and proposals of an assistant with this config, but for what its target decides.
fn info(config: &ConfigJson, dir: &Path, weight_bytes: u64) -> Result<DraftInfo, LoadError> {
    let sizes = Config::read(config)?;
    Ok(DraftInfo {
        hidden: sizes.target_hidden,
        block: BLOCK,
        token_ids: false,
        vocab: Some(sizes.vocab),
        context: sizes.context,
        ..DraftInfo::of_tokens(KIND.name, dir, weight_bytes)
    })
}

/// Adds the layers that the assistant reads of a target with this config.json.
fn of_target(info: &mut DraftInfo, target: &ConfigJson) -> Result<(), LoadError> {
    let layers = AssistedLayers::of(target)?;
    info.feature_layers = layers.features();
    info.target_layers = Some(layers.count);
    Ok(())
}

/// A layer, which has queries alone.
struct Layer {
    /// Number of its kind.
    kind: usize,
    input_layernorm: RmsNorm,
    q_proj: Linear,
    q_norm: HeadNorm,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
    layer_scalar: f32,
    head_dim: i32,
}

impl Layer {
    fn load(weights: &mut Weights, at: usize, config: &Config) -> Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{at}.{part}");
        let (kind, hidden, eps) = (config.layers[at], config.hidden, config.eps);
        let (n_heads, head_dim) = (config.n_heads, config.head_dims[kind]);
        let norm =
            |weights: &mut Weights, part: &str| RmsNorm::load(weights, &name(part), hidden, eps);
        let [q, o] = ["self_attn.q_proj", "self_attn.o_proj"].map(name);
        let q_norm = name("self_attn.q_norm");
        // Some exporters write what the layer does not use.
        for unused in ["k_proj", "v_proj", "k_norm"] {
            weights.skip(&name(&format!("self_attn.{unused}")));
        }
        let mlp = GatedMlp::load(weights, &name("mlp"), hidden, config.intermediate, false)?;
        Ok(Self {
            kind,
            input_layernorm: norm(weights, "input_layernorm")?,
            q_proj: Linear::load(weights, &q, n_heads * head_dim, hidden, false)?,
            q_norm: HeadNorm::load(weights, &[(&q_norm, n_heads)], head_dim, eps)?,
            o_proj: Linear::load(weights, &o, hidden, n_heads * head_dim, false)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            pre_feedforward_layernorm: norm(weights, "pre_feedforward_layernorm")?,
            mlp: mlp.gated_by(Gate::Gelu),
            post_feedforward_layernorm: norm(weights, "post_feedforward_layernorm")?,
            layer_scalar: weights.take_number(&name("layer_scalar"))?,
            head_dim,
        })
    }

    /// `x` `[B, hidden]` → the same. Attends to what the store has.
    fn forward(
        &self,
        x: &Array,
        rope: &RopeTables,
        segments: &[Segment],
        kv: &mut KvStore,
    ) -> Result<Array> {
        let q = self.q_proj.forward(&self.input_layernorm.forward(x)?)?;
        let q = self.q_norm.forward(&q.reshape(&[x.dim(0), -1, self.head_dim])?, rope)?;
        let queries = vec![1; segments.len()];
        let params =
            AttentionParams { scale: 1.0, queries: Some(&queries), ..AttentionParams::default() };
        let mixed = self.o_proj.forward(&kv.attend_shared(self.kind, &q, params, segments)?)?;
        let x = x.add(self.post_attention_layernorm.forward(&mixed)?)?;
        let more = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x)?)?;
        let x = x.add(self.post_feedforward_layernorm.forward(&more)?)?;
        Ok(x.multiply(Array::from_f32(self.layer_scalar).as_dtype(x.dtype())?)?)
    }
}

/// Keys and values of some rows, by the number of the kind. Of the second array of each some heads
/// are the values.
struct SharedRows([[Array; 2]; 2]);

impl SharedRows {
    /// These rows of them.
    fn take(&self, rows: &[i32]) -> Result<Self> {
        let places = Array::from_slice(rows, &[rows.len() as i32]);
        let take = |[keys, values]: &[Array; 2]| -> Result<[Array; 2]> {
            Ok([keys.take_axis(&places, 0)?, values.take_axis(&places, 0)?])
        };
        Ok(Self([take(&self.0[0])?, take(&self.0[1])?]))
    }
}

/// The last context row of a block's session.
struct Begin {
    /// The row among those that the store has of the session.
    segment: Segment,
    /// Its position in the target's sequence, by which heads rotate.
    position: i32,
}

/// The rows of a batch.
struct Rows {
    /// Hidden states of all rows `[R, features]`: those of the batch, then those that were kept.
    states: Array,
    positions: Vec<i32>,
    /// Of parts with context.
    segments: Vec<Segment>,
    /// Of each block that begins the number of its row among all.
    last: Vec<i32>,
    begins: Vec<Begin>,
    /// For each part, whether a draft can be made.
    has_begin: Vec<bool>,
}

impl Rows {
    /// `None` without rows.
    fn of(batch: &DraftBatch, starts: &[i32], kept: &LastRows) -> Result<Option<Self>> {
        let mut states: Vec<Array> = batch.hidden_states.iter().cloned().collect();
        let context = |part: &DraftPart| part.position..part.position + part.context;
        let mut positions: Vec<i32> = batch.parts.iter().flat_map(context).collect();
        let (mut segments, mut last, mut begins, mut has_begin) = (vec![], vec![], vec![], vec![]);
        let mut end = 0;
        for (part, start) in batch.parts.iter().zip(starts) {
            end += part.context;
            let segment =
                |start, length| Segment { sequence: part.sequence, start, length, drafted: 0 };
            if part.context > 0 {
                segments.push(segment(*start, part.context));
            }
            let again = kept.of(part.sequence, *start).filter(|_| part.context == 0);
            let begin = part.block.is_some() && (part.context > 0 || again.is_some());
            has_begin.push(begin);
            if !begin {
                continue;
            }
            let position = part.position + part.context - 1;
            begins.push(Begin { segment: segment(start + part.context - 1, 1), position });
            last.push(if again.is_some() { positions.len() as i32 } else { end - 1 });
            positions.extend(again.iter().map(|_| position));
            states.extend(again);
        }
        let states = match states.as_slice() {
            [] => return Ok(None),
            [one] => one.clone(),
            several => concatenate(several, 0)?,
        };
        Ok(Some(Self { states, positions, segments, last, begins, has_begin }))
    }
}

/// A loaded assistant.
pub(super) struct Assistant {
    facts: DraftFacts,
    target: AssistedTarget,
    pre_projection: Linear,
    post_projection: Linear,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Head,
    /// By the number of the kind.
    ropes: [Rope; 2],
    last_rows: LastRows,
}

impl Assistant {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, assisted, .. } = files;
        let sizes = Config::read(config)?;
        let missing = || {
            LoadError::from(CheckpointError::Missing { name: "model.embed_tokens.weight".into() })
        };
        let target = assisted.ok_or_else(missing)?;
        let mut info = info(config, dir, weight_bytes)?;
        info.feature_layers = target.layers.features();
        info.target_layers = Some(target.layers.count);
        let mut weights = weights.quantizing(quantize.bits());
        let dtype = weights.dtype_of("pre_projection.weight");
        let (hidden, wide) = (sizes.hidden, sizes.target_hidden);
        let pre_projection = Linear::load(&mut weights, "pre_projection", hidden, 2 * wide, false)?;
        let post_projection = Linear::load(&mut weights, "post_projection", wide, hidden, false)?;
        let layers = (0..sizes.layers.len()).map(|at| Layer::load(&mut weights, at, &sizes));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let norm = RmsNorm::load(&mut weights, "model.norm", hidden, sizes.eps)?;
        let head = Head::load(&mut weights, &sizes)?;
        let rope = |kind: usize| Rope::load_kind(config, KINDS[kind], sizes.head_dims[kind]);
        let ropes = [rope(0)?, rope(1)?];
        weights.finish()?;
        let kv_layers = kv_layers(&target, &sizes)?;
        let facts = DraftFacts { info, kv_layers, dtype };
        let last_rows = LastRows::default();
        Ok(Self {
            facts,
            target,
            pre_projection,
            post_projection,
            layers,
            norm,
            head,
            ropes,
            last_rows,
        })
    }

    /// Keys and values of all rows.
    fn shared_rows(&self, rows: &Rows) -> Result<SharedRows> {
        let (hidden, dtype) = (self.info().hidden, self.dtype());
        let of = |kind: usize| -> Result<[Array; 2]> {
            let first = kind as i32 * hidden;
            let inputs = rows.states.try_index((.., first..first + hidden))?;
            let [keys, values] = self.target.sources[kind].keys_values(&inputs, &rows.positions)?;
            Ok([keys.as_dtype(dtype)?, values.as_dtype(dtype)?])
        };
        Ok(SharedRows([of(0)?, of(1)?]))
    }

    /// Writes keys and values of `segments`. Of each as many last rows as `queries` names will
    /// attend.
    fn write(
        &self,
        rows: &SharedRows,
        queries: &[i32],
        segments: &[Segment],
        kv: &mut KvStore,
    ) -> Result<()> {
        for (kind, [keys, values]) in rows.0.iter().enumerate() {
            let values = HeadRows::new(values, self.target.sources[kind].values());
            kv.write(kind, keys, values, Some(queries), segments)?;
        }
        Ok(())
    }

    /// Writes the context, and commits it.
    fn read_context(&self, rows: &Rows, shared: &SharedRows, kv: &mut KvStore) -> Result<()> {
        let new: i32 = rows.segments.iter().map(|segment| segment.length).sum();
        if new == 0 {
            return Ok(());
        }
        let queries = vec![0; rows.segments.len()];
        if new == rows.states.dim(0) {
            self.write(shared, &queries, &rows.segments, kv)?;
        } else {
            let context: Vec<i32> = (0..new).collect();
            self.write(&shared.take(&context)?, &queries, &rows.segments, kv)?;
        }
        rows.segments.iter().try_for_each(|segment| kv.commit(segment.sequence, segment.end()))
    }

    /// Drafts the blocks that begin. `shared` are keys and values of their last context rows,
    /// `hidden` `[B, target's hidden]` the target's final states of them.
    fn chain(
        &self,
        batch: &DraftBatch,
        rows: &Rows,
        shared: &SharedRows,
        hidden: Array,
        kv: &mut KvStore,
    ) -> Result<Chains<'_>> {
        let vocab = self.info().vocab.unwrap_or(0) as u32;
        let mut chains = Chains::new(&batch.parts, vocab, |at| rows.has_begin[at]);
        let blocks = batch.parts.iter().zip(&rows.has_begin).filter(|(_, begins)| **begins);
        let bonus: Vec<u32> =
            blocks.filter_map(|(part, _)| Some(part.block?.bonus_id.min(vocab - 1))).collect();
        let (mut ids, mut hidden) = (Array::from_slice(&bonus, &[bonus.len() as i32]), hidden);
        let mut places: Vec<i32> = (0..bonus.len() as i32).collect();
        let mut written = 0;
        loop {
            let begins: Vec<&Begin> = places.iter().map(|at| &rows.begins[*at as usize]).collect();
            let segments: Vec<Segment> = begins.iter().map(|begin| begin.segment).collect();
            if written != segments.len() {
                // The last row is written again: queries attend up to a row of their forward.
                for segment in &segments {
                    kv.commit(segment.sequence, segment.start)?;
                }
                let queries = vec![1; segments.len()];
                self.write(&shared.take(&places)?, &queries, &segments, kv)?;
                written = segments.len();
            }
            let positions: Vec<i32> = begins.iter().map(|begin| begin.position).collect();
            let normed = self.step(&ids, &hidden, &positions, &segments, kv)?;
            let Some(next) = chains.choose(&self.head.logits(&normed)?)? else { break };
            hidden = self.post_projection.forward(&next.take(&normed)?)?;
            places = next.rows.iter().map(|row| places[*row as usize]).collect();
            ids = next.id_array();
        }
        Ok(chains)
    }

    /// One forward: `ids` `[B]` and `hidden` `[B, target's hidden]` → normed `[B, hidden]`.
    fn step(
        &self,
        ids: &Array,
        hidden: &Array,
        positions: &[i32],
        segments: &[Segment],
        kv: &mut KvStore,
    ) -> Result<Array> {
        let dtype = self.dtype();
        let both = concatenate(&[&self.target.embed(ids, dtype)?, hidden], 1)?;
        let mut x = self.pre_projection.forward(&both)?;
        let ropes = self.ropes.iter().map(|rope| rope.rows(positions, dtype));
        let ropes = ropes.collect::<Result<Vec<_>>>()?;
        for layer in &self.layers {
            x = layer.forward(&x, &ropes[layer.kind], segments, kv)?;
        }
        self.norm.forward(&x)
    }

    fn draft(
        &self,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Option<Proposal>> {
        let any = batch.parts.iter().any(|part| part.block.is_some());
        let drafts = match Rows::of(batch, starts, &self.last_rows)? {
            None => Chains::new(&batch.parts, 0, |_| false),
            Some(rows) => {
                let shared = self.shared_rows(&rows)?;
                self.read_context(&rows, &shared, kv)?;
                if rows.begins.is_empty() {
                    Chains::new(&batch.parts, 0, |_| false)
                } else {
                    let last = Array::from_slice(&rows.last, &[rows.last.len() as i32]);
                    let states = rows.states.take_axis(&last, 0)?;
                    let states = states.try_index((.., 2 * self.info().hidden..))?;
                    let hidden = self.target.norm(&states)?.as_dtype(self.dtype())?;
                    self.chain(batch, &rows, &shared.take(&rows.last)?, hidden, kv)?
                }
            }
        };
        if any { Ok(Some(Proposal::Tokens(drafts.finish(&[])?))) } else { Ok(None) }
    }
}

/// The forms of the target's keys and values, with the assistant's window.
fn kv_layers(target: &AssistedTarget, sizes: &Config) -> Result<Vec<LayerKv>, LoadError> {
    let form = |kind: usize| {
        let growing = target.sources[kind].growing();
        let head_dim = sizes.head_dims[kind];
        if growing.key_dim != head_dim || sizes.n_heads % growing.n_kv != 0 {
            let what = format!(
                "expected heads of {} numbers for layers of {}, a multiple of {} of them, found {} \
                 of {head_dim}: this assistant was made for another target",
                growing.key_dim, KINDS[kind], growing.n_kv, sizes.n_heads
            );
            return Err(LoadError::from(CheckpointError::Config { key: "head_dim".into(), what }));
        }
        let window = growing.window.map(|_| sizes.window);
        Ok(LayerKv::Growing(GrowingKv { window, ..growing }))
    };
    (0..KINDS.len()).map(form).collect()
}

impl Drafter for Assistant {
    fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(self.info())?;
        let starts = lengths(&batch.parts, kv)?;
        let drafted = self.draft(batch, &starts, kv);
        commit_context(&batch.parts, &starts, &drafted, kv)?;
        let drafted = drafted?;
        self.last_rows.keep(batch, kv)?;
        Ok(drafted)
    }
}
