//! The decoder that Llama, Mistral and Qwen share: sizes → attention → layer → model. A family's file
//! reads its own keys and describes what differs in a [`DecoderSpec`]. Field names are the
//! checkpoint's tensor names. R rows of a batch · H heads · D head_dim.

use std::path::Path;

use mlx_rs::{Array, Dtype};

use super::{Target, image_rows};
use crate::batch::{Batch, Forward, Wants};
use crate::error::{ModelError, Result};
use crate::hidden_states::HiddenStates;
use crate::info::TargetInfo;
use crate::kv::{AttentionParams, KvStore, LayerKv};
use crate::layers::{
    Embedding, ExpertMlp, GatedMlp, HeadNorm, HeadRows, Linear, RmsNorm, Rope, RopeTables,
};
use crate::load::{ConfigJson, Layout, LoadError, Weights};
use crate::segment::Segment;
use crate::vision::Vision;

/// An opened checkpoint of a target.
pub(crate) struct TargetFiles<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) config: &'a ConfigJson,
    pub(crate) weights: Weights<'a>,
    pub(crate) weight_bytes: u64,
}

/// Sizes that every family has under the same keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) hidden_size: i32,
    pub(super) n_layers: i32,
    pub(super) n_heads: i32,
    pub(super) n_kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) vocab_size: i32,
    pub(super) context: i32,
    rms_norm_eps: f32,
    tie_word_embeddings: bool,
}

impl Sizes {
    /// Reads them, and refuses what no family here computes: other activations, sliding windows.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let (hidden_size, n_heads) =
            (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let read = Self {
            hidden_size,
            n_layers: config.size("num_hidden_layers")?,
            n_heads,
            n_kv_heads: config.size_or("num_key_value_heads", n_heads)?,
            head_dim: config.size_or("head_dim", (hidden_size / n_heads).max(1))?,
            vocab_size: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {} heads and an even head_dim, found {} and {}",
                read.n_heads, read.n_kv_heads, read.head_dim
            );
            return Err(config.wrong("num_key_value_heads", what));
        }
        config.check_heads(read.n_heads, read.head_dim)?;
        let activation: String = config.optional("hidden_act")?.unwrap_or_else(|| "silu".into());
        if activation != "silu" {
            let what = format!("expected silu, found {activation}");
            return Err(config.wrong("hidden_act", what));
        }
        let layer_types: Vec<String> = config.optional("layer_types")?.unwrap_or_default();
        if let Some(other) = layer_types.iter().find(|kind| *kind != "full_attention") {
            let what = format!("expected full_attention for every layer, found {other}");
            return Err(config.wrong("layer_types", what));
        }
        Ok(read)
    }
}

/// Refuses a config that switches sliding windows on by `use_sliding_window`, as Qwen's do.
pub(super) fn refuse_sliding_window(config: &ConfigJson) -> Result<(), LoadError> {
    if config.optional::<bool>("use_sliding_window")?.unwrap_or(false) {
        let what = "expected false: this version has no sliding windows".into();
        return Err(config.wrong("use_sliding_window", what));
    }
    Ok(())
}

/// What a family's attention has beside the four projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSpec {
    /// Biases of q_proj, k_proj and v_proj.
    pub(super) qkv_bias: bool,
    /// A bias of o_proj.
    pub(super) output_bias: bool,
    /// q_norm and k_norm: queries and keys are normed per head before they are turned.
    pub(super) head_norms: bool,
}

/// The second half of a layer.
pub(super) enum FeedForward {
    /// One block for all rows.
    Dense(GatedMlp),
    /// A few of many blocks for each row.
    Experts(ExpertMlp),
}

impl FeedForward {
    /// `x` `[R, hidden]` → the same shape.
    fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }
}

/// Reads the second half of a layer: the layer's number, and the prefix of its tensor names.
pub(super) type LoadFeedForward<'a> =
    dyn Fn(&mut Weights, i32, &str) -> Result<FeedForward, LoadError> + 'a;

/// What is a family's own.
pub(super) struct DecoderSpec<'a> {
    /// `model_type`.
    pub(super) architecture: &'static str,
    pub(super) layout: Layout,
    pub(super) sizes: Sizes,
    pub(super) attention: AttentionSpec,
    pub(super) feed_forward: &'a LoadFeedForward<'a>,
    pub(super) rope: Rope,
    pub(super) tower: Option<Box<dyn Vision>>,
}

struct Attention {
    qkv_proj: Linear,
    o_proj: Linear,
    /// q_norm for the query heads, k_norm for the key heads.
    qk_norm: Option<HeadNorm>,
    sizes: Sizes,
}

impl Attention {
    fn load(
        weights: &mut Weights,
        name: &str,
        sizes: Sizes,
        spec: AttentionSpec,
    ) -> Result<Self, LoadError> {
        let Sizes { n_heads, n_kv_heads, head_dim, hidden_size, .. } = sizes;
        let [q, k, v, o] =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        let qkv = [(q.as_str(), wide), (&k, narrow), (&v, narrow)];
        let [q_norm, k_norm] = ["q_norm", "k_norm"].map(|part| format!("{name}.{part}"));
        let heads = [(q_norm.as_str(), n_heads), (&k_norm, n_kv_heads)];
        // The projections first: their shapes say whether the checkpoint has so many heads.
        let qkv_proj = Linear::load_joined(weights, &qkv, hidden_size, spec.qkv_bias)?;
        let o_proj = Linear::load(weights, &o, hidden_size, wide, spec.output_bias)?;
        let qk_norm = match spec.head_norms {
            true => Some(HeadNorm::load(weights, &heads, head_dim, sizes.rms_norm_eps)?),
            false => None,
        };
        Ok(Self { qkv_proj, o_proj, qk_norm, sizes })
    }

    /// `x` `[R, hidden]` → `[R, hidden]`: queries and keys are turned by their positions.
    fn forward(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        segments: &[Segment],
    ) -> Result<Array> {
        let Sizes { n_heads, n_kv_heads, head_dim, .. } = self.sizes;
        let qkv =
            self.qkv_proj.forward(x)?.reshape(&[x.dim(0), n_heads + 2 * n_kv_heads, head_dim])?;
        let qk = match &self.qk_norm {
            Some(norm) => norm.forward(&qkv, rope)?,
            None => rope.apply_to(&qkv, n_heads + n_kv_heads)?,
        };
        let turned = n_heads + n_kv_heads;
        let (queries, keys) = (HeadRows::new(&qk, 0..n_heads), HeadRows::new(&qk, n_heads..turned));
        let values = HeadRows::new(&qkv, turned..turned + n_kv_heads);
        let params =
            AttentionParams { scale: (head_dim as f32).powf(-0.5), ..AttentionParams::default() };
        self.o_proj.forward(&kv.attend(layer, queries, keys, values, params, segments)?)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    fn load(weights: &mut Weights, at: i32, spec: &DecoderSpec<'_>) -> Result<Self, LoadError> {
        let (name, sizes) = (format!("{}.layers.{at}", spec.layout.text), spec.sizes);
        let norm = |weights: &mut Weights, part: &str| {
            let name = format!("{name}.{part}");
            RmsNorm::load(weights, &name, sizes.hidden_size, sizes.rms_norm_eps)
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(
                weights,
                &format!("{name}.self_attn"),
                sizes,
                spec.attention,
            )?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: (spec.feed_forward)(weights, at, &format!("{name}.mlp"))?,
        })
    }

    fn forward(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        segments: &[Segment],
    ) -> Result<Array> {
        let attended =
            self.self_attn.forward(layer, &self.input_layernorm.forward(x)?, rope, kv, segments)?;
        let x = x.add(&attended)?;
        Ok(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?)
    }
}

/// A loaded model.
pub(super) struct Decoder {
    info: TargetInfo,
    sizes: Sizes,
    dtype: Dtype,
    rope: Rope,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    tower: Option<Box<dyn Vision>>,
}

impl Decoder {
    /// Reads every tensor that `spec` describes, and refuses files with others.
    pub(super) fn load(
        dir: &Path,
        mut weights: Weights,
        weight_bytes: u64,
        spec: DecoderSpec<'_>,
    ) -> Result<Self, LoadError> {
        let (sizes, text) = (spec.sizes, spec.layout.text);
        let embed_tokens = format!("{text}.embed_tokens");
        let dtype = weights.dtype_of(&format!("{embed_tokens}.weight"));
        let embed_tokens =
            Embedding::load(&mut weights, &embed_tokens, sizes.vocab_size, sizes.hidden_size)?;
        let layers = (0..sizes.n_layers).map(|at| Layer::load(&mut weights, at, &spec));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let norm = format!("{text}.norm");
        let norm = RmsNorm::load(&mut weights, &norm, sizes.hidden_size, sizes.rms_norm_eps)?;
        let lm_head = Self::load_head(&mut weights, &spec)?;
        weights.finish()?;
        let info = TargetInfo {
            path: dir.to_path_buf(),
            architecture: spec.architecture.into(),
            vocab: sizes.vocab_size,
            hidden: sizes.hidden_size,
            n_layers: layers.len(),
            context: sizes.context,
            weight_bytes,
        };
        let DecoderSpec { rope, tower, .. } = spec;
        Ok(Self { info, sizes, dtype, rope, embed_tokens, layers, norm, lm_head, tower })
    }

    fn load_head(
        weights: &mut Weights,
        spec: &DecoderSpec<'_>,
    ) -> Result<Option<Linear>, LoadError> {
        let Sizes { vocab_size, hidden_size, tie_word_embeddings, .. } = spec.sizes;
        if tie_word_embeddings {
            // Some exporters write the tied head out as well.
            weights.skip(spec.layout.head);
            return Ok(None);
        }
        Linear::load(weights, spec.layout.head, vocab_size, hidden_size, false).map(Some)
    }

    /// The layers' hidden states that are wanted, from those that were found on the way.
    fn hidden_states(
        &self,
        wants: &Wants,
        features: Vec<Option<Array>>,
    ) -> Result<Option<HiddenStates>> {
        let Some(wanted) = &wants.hidden_states else { return Ok(None) };
        let all: Option<Vec<Array>> = features.into_iter().collect();
        let missing = || {
            ModelError::Batch(format!(
                "expected feature layers below {}, found {:?}",
                self.layers.len(),
                wanted.layers
            ))
        };
        Ok(Some(HiddenStates { layers: all.ok_or_else(missing)?, rows: wanted.rows.clone() }))
    }
}

impl Target for Decoder {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        let Sizes { n_kv_heads, head_dim, .. } = self.sizes;
        vec![
            LayerKv { n_kv: n_kv_heads, key_dim: head_dim, value_dim: head_dim, window: None };
            self.layers.len()
        ]
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward> {
        batch.check(&self.info)?;
        let mut x =
            image_rows::place(self.embed_tokens.rows_of(&batch.id_array()?)?, &batch.overrides)?;
        let additions = image_rows::additions(&x, &batch.overrides)?;
        let rope = self.rope.tables(&batch.positions, self.dtype)?;
        let feature_layers =
            wants.hidden_states.as_ref().map_or(&[][..], |wanted| wanted.layers.as_slice());
        let mut features = vec![None; feature_layers.len()];
        for (at, layer) in self.layers.iter().enumerate() {
            x = layer.forward(at, &x, &rope, kv, &batch.segments)?;
            for (feature, wanted) in features.iter_mut().zip(feature_layers) {
                if *wanted == at {
                    *feature = Some(x.clone());
                }
            }
            // Hidden states are taken before the additions: transformers records a layer's own
            // output, before the model adds to it, and drafters are trained on what it records.
            // (vLLM takes them after the addition. The two differ at an image's rows alone.)
            for (_, addition) in additions.iter().filter(|(layer, _)| *layer == at) {
                x = x.add(addition)?;
            }
        }
        let hidden_states = self.hidden_states(wants, features)?;
        // The norm is per row, so only rows that are wanted are normed.
        let normed = |rows: &[i32]| -> Result<Array> { self.norm.forward(&take_rows(&x, rows)?) };
        let logits = if wants.logit_rows.is_empty() {
            None
        } else {
            Some(self.head(&normed(&wants.logit_rows)?)?)
        };
        let final_hidden =
            if wants.final_hidden.is_empty() { None } else { Some(normed(&wants.final_hidden)?) };
        Ok(Forward { logits, hidden_states, final_hidden })
    }

    fn embed(&self, ids: &[u32]) -> Result<Array> {
        match ids.iter().find(|id| **id >= self.sizes.vocab_size as u32) {
            None => self.embed_tokens.rows(ids),
            Some(id) => Err(ModelError::Batch(format!(
                "expected ids below {}, found {id}",
                self.sizes.vocab_size
            ))),
        }
    }

    fn vision(&self) -> Option<&dyn Vision> {
        self.tower.as_deref()
    }

    fn head(&self, hidden: &Array) -> Result<Array> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden)?,
            None => self.embed_tokens.as_head(hidden)?,
        };
        Ok(logits.as_dtype(Dtype::Float32)?)
    }
}

/// Rows of `x` `[R, …]`; all of them without a copy.
fn take_rows(x: &Array, rows: &[i32]) -> Result<Array> {
    if rows.len() as i32 == x.dim(0) {
        return Ok(x.clone());
    }
    Ok(x.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?)
}
