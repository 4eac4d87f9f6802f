//! DFlash drafter: fills a block of masked positions in one forward (arXiv 2602.06036). Attention →
//! layer → drafter. S context rows · L block rows, of all parts one after another · H heads · D
//! head_dim. Field names are the checkpoint's tensor names. Source of the arithmetic: z-lab/dflash,
//! `dflash/model.py`.

mod config;

use std::path::Path;

use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use paceline_vocabulary::link::ProposalKind;

use config::{AttentionWindow, Config};

use super::{DraftBatch, DraftInfo, DraftPart, Drafter, DrafterFiles, Kind, Proposal};
use crate::error::{ModelError, Result};
use crate::kv::{AttentionParams, KvStore, LayerKv};
use crate::layers::{GatedMlp, HeadNorm, HeadRows, Linear, RmsNorm, Rope, RopeTables};
use crate::load::{LoadError, Weights};
use crate::segment::Segment;

/// What every layer of one forward needs. Keys and values are of all context rows, then of all
/// block rows; queries are of block rows.
struct Step {
    segments: Vec<Segment>,
    queries: Vec<i32>,
    /// `None` where there is no such row.
    context: Option<Array>,
    key_rope: RopeTables,
    query_rope: RopeTables,
}

struct Attention {
    q_proj: Linear,
    kv_proj: Linear,
    o_proj: Linear,
    q_norm: HeadNorm,
    k_norm: HeadNorm,
    n_heads: i32,
    n_kv_heads: i32,
    head_dim: i32,
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
        let Config {
            n_heads, n_kv_heads, head_dim, hidden_size, attention_bias, rms_norm_eps, ..
        } = *config;
        let [q, k, v, o] =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        let norm = |weights: &mut Weights, part: &str, heads: i32| {
            HeadNorm::load(weights, &[(&format!("{name}.{part}"), heads)], head_dim, rms_norm_eps)
        };
        Ok(Self {
            q_proj: Linear::load(weights, &q, wide, hidden_size, attention_bias)?
                .quantized(bits)?,
            kv_proj: Linear::load_joined(
                weights,
                &[(&k, narrow), (&v, narrow)],
                hidden_size,
                attention_bias,
            )?
            .quantized(bits)?,
            o_proj: Linear::load(weights, &o, hidden_size, wide, attention_bias)?
                .quantized(bits)?,
            q_norm: norm(weights, "q_norm", n_heads)?,
            k_norm: norm(weights, "k_norm", n_kv_heads)?,
            n_heads,
            n_kv_heads,
            head_dim,
            causal: attention.causal,
        })
    }

    /// Keys `[rows, Hkv, D]`, and in the second half of the heads of `[rows, 2 · Hkv, D]` values, of
    /// context (not normed per layer) and block rows by the same weights.
    fn keys_values(&self, rows: &Array, step: &Step) -> Result<(Array, Array)> {
        let kv = self.kv_proj.forward(rows)?.reshape(&[
            rows.dim(0),
            2 * self.n_kv_heads,
            self.head_dim,
        ])?;
        Ok((self.k_norm.forward(&kv, &step.key_rope)?, kv))
    }

    /// The values of [`Attention::keys_values`].
    fn values<'a>(&self, keys_values: &'a Array) -> HeadRows<'a> {
        HeadRows::new(keys_values, self.n_kv_heads..2 * self.n_kv_heads)
    }

    /// Block rows see the context and one another, forwards too unless the layer is causal. `block`
    /// `[L, hidden]` → the same.
    fn forward(&self, layer: usize, block: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        let queries =
            self.q_proj.forward(block)?.reshape(&[block.dim(0), self.n_heads, self.head_dim])?;
        let queries = self.q_norm.forward(&queries, &step.query_rope)?;
        let (keys, both) = match &step.context {
            Some(context) => self.keys_values(&concatenate(&[context, block], 0)?, step)?,
            None => self.keys_values(block, step)?,
        };
        let params = AttentionParams {
            scale: (self.head_dim as f32).powf(-0.5),
            queries: Some(&step.queries),
            both_ways: !self.causal,
        };
        let values = self.values(&both);
        self.o_proj.forward(&kv.attend(layer, &queries, &keys, values, params, &step.segments)?)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Layer {
    fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        attention: AttentionWindow,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(
                weights,
                &format!("{name}.{part}"),
                config.hidden_size,
                config.rms_norm_eps,
            )
        };
        let mlp = GatedMlp::load(
            weights,
            &format!("{name}.mlp"),
            config.hidden_size,
            config.intermediate_size,
            false,
        )?;
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(
                weights,
                &format!("{name}.self_attn"),
                config,
                attention,
                bits,
            )?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: mlp.quantized(bits)?,
        })
    }

    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        let x =
            x.add(self.self_attn.forward(layer, &self.input_layernorm.forward(x)?, step, kv)?)?;
        Ok(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?)
    }
}

/// Refuses a checkpoint with tensors of a related kind.
fn check_tensors(weights: &Weights<'_>) -> Result<(), LoadError> {
    for foreign in [
        "layers.0.attention_conv.base_kernel",
        "candidate_selector.predecessor_codebook",
        "layers.0.self_attn.sinks",
    ] {
        if weights.has(foreign) {
            let what = format!(
                "the checkpoint has tensor {foreign}: not plain DFlash, which is all this version \
                 serves"
            );
            return Err(LoadError::Config { key: "architectures".into(), what });
        }
    }
    Ok(())
}

/// How DFlash drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "dflash",
    is_config_of: Config::is_dflash,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?, dir, weight_bytes)),
    load: |files| Ok(Box::new(Dflash::load(files)?)),
};

/// What a drafter with this config reads and proposes.
fn info(sizes: &Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    DraftInfo {
        path: dir.to_path_buf(),
        kind: KIND.name.into(),
        proposal: ProposalKind::Hidden,
        hidden: sizes.hidden_size,
        block: sizes.block,
        feature_layers: sizes.feature_layers.clone(),
        token_ids: false,
        embeddings: true,
        mask_id: Some(sizes.mask_id),
        target_layers: sizes.target_layers,
        vocab: sizes.vocab,
        context: sizes.context,
        logit_softcap: sizes.logit_softcap,
        images: sizes.images,
        weight_bytes,
    }
}

/// A loaded DFlash drafter.
pub(super) struct Dflash {
    info: DraftInfo,
    config: Config,
    dtype: Dtype,
    rope: Rope,
    fc: Linear,
    hidden_norm: RmsNorm,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// On the embeddings given; `None` is 1.
    embedding_scale: Option<Array>,
}

impl Dflash {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize } = files;
        let sizes = Config::read(config)?;
        let bits = quantize.bits();
        let mut weights =
            if weights.has("model.fc.weight") { weights.with_prefix("model.") } else { weights };
        check_tensors(&weights)?;
        let hidden = sizes.hidden_size;
        let rope = Rope::load(config, sizes.head_dim)?;
        let dtype = weights.dtype_of("fc.weight");
        // fc reads all hidden states and every layer reads its output: 8 bits at least. With 4 the
        // demo pair drafted 3 % fewer tokens a cycle.
        let fc = Linear::load(
            &mut weights,
            "fc",
            hidden,
            sizes.feature_layers.len() as i32 * hidden,
            false,
        )?
        .quantized(bits.map(|bits| bits.max(8)))?;
        let hidden_norm = RmsNorm::load(&mut weights, "hidden_norm", hidden, sizes.rms_norm_eps)?;
        let layer = |(at, attention): (usize, &AttentionWindow)| {
            Layer::load(&mut weights, &format!("layers.{at}"), &sizes, *attention, bits)
        };
        let layers = sizes.layers.iter().enumerate().map(layer).collect::<Result<Vec<_>, _>>()?;
        let norm = RmsNorm::load(&mut weights, "norm", hidden, sizes.rms_norm_eps)?;
        weights.finish()?;
        let scale = |scale| Array::from_f32(scale).as_dtype(dtype);
        let info = info(&sizes, dir, weight_bytes);
        let embedding_scale = sizes.embedding_scale.map(scale).transpose()?;
        Ok(Self {
            info,
            config: sizes,
            dtype,
            rope,
            fc,
            hidden_norm,
            layers,
            norm,
            embedding_scale,
        })
    }

    fn step(&self, batch: &DraftBatch, kv: &KvStore) -> Result<Step> {
        let mut segments = Vec::with_capacity(batch.parts.len());
        for part in &batch.parts {
            let unknown =
                || ModelError::Batch(format!("sequence {} is not in the store", part.sequence.0));
            let start = kv.length(part.sequence).ok_or_else(unknown)?;
            let length = part.context + part.block_rows();
            segments.push(Segment { sequence: part.sequence, start, length });
        }
        let context =
            batch.parts.iter().flat_map(|part| part.position..part.position + part.context);
        let block = batch
            .parts
            .iter()
            .flat_map(|part| (part.position + part.context..).take(part.block_rows() as usize));
        let positions: Vec<i32> = context.chain(block).collect();
        let key_rope = self.rope.rows(&positions, self.dtype)?;
        let queries: Vec<i32> = batch.parts.iter().map(DraftPart::block_rows).collect();
        let query_rope = key_rope.last(queries.iter().sum())?;
        let context = match &batch.hidden_states {
            Some(rows) => {
                Some(self.hidden_norm.forward(&self.fc.forward(&rows.as_dtype(self.dtype)?)?)?)
            }
            None => None,
        };
        Ok(Step { segments, queries, context, key_rope, query_rope })
    }

    /// Rows 1… of every block of `x` `[L, hidden]`.
    fn proposing_rows(x: &Array, queries: &[i32]) -> Result<Array> {
        if let [_] = queries {
            return Ok(x.try_index((1.., ..))?);
        }
        let mut end = 0;
        let mut rows = Vec::with_capacity(x.dim(0) as usize);
        for block in queries.iter().filter(|block| **block > 0) {
            rows.extend(end + 1..end + block);
            end += block;
        }
        Ok(x.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)?)
    }
}

impl Drafter for Dflash {
    fn info(&self) -> &DraftInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        let Config { n_kv_heads: n_kv, head_dim, .. } = self.config;
        let layer = |attention: &AttentionWindow| LayerKv {
            n_kv,
            key_dim: head_dim,
            value_dim: head_dim,
            window: attention.window,
        };
        self.config.layers.iter().map(layer).collect()
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(&self.info)?;
        let step = self.step(batch, kv)?;
        let hidden = match (&batch.embeddings, &step.context) {
            (Some(embeddings), _) => {
                let mut x = embeddings.as_dtype(self.dtype)?;
                if let Some(scale) = &self.embedding_scale {
                    x = x.multiply(scale)?;
                }
                for (at, layer) in self.layers.iter().enumerate() {
                    x = layer.forward(at, &x, &step, kv)?;
                }
                Some(self.norm.forward(&Self::proposing_rows(&x, &step.queries)?)?)
            }
            (None, Some(context)) => {
                // Context rows do not depend on the layers below: nothing but keys and values is
                // needed.
                for (at, layer) in self.layers.iter().enumerate() {
                    let (keys, both) = layer.self_attn.keys_values(context, &step)?;
                    let values = layer.self_attn.values(&both);
                    kv.write(at, &keys, values, Some(&step.queries), &step.segments)?;
                }
                None
            }
            (None, None) => return Err(ModelError::Batch("expected rows".into())),
        };
        for (segment, part) in step.segments.iter().zip(&batch.parts) {
            kv.commit(segment.sequence, segment.start + part.context)?;
        }
        Ok(hidden.map(Proposal::Hidden))
    }
}
