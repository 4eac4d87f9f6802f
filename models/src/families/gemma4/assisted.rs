//! Parts of a Gemma 4 that its assistant computes with: the embedding, the final norm, and of the
//! last layer of each kind that has keys and values what these are computed by. R rows.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use paceline_checkpoint::families::gemma4::{AttentionSizes, LayerPlan, is_gemma4};

use super::config::Config;
use super::rounded;
use crate::error::Result;
use crate::kv::GrowingKv;
use crate::layers::{Embedding, HeadNorm, Linear, RmsNorm, Rope};
use crate::load::{ConfigJson, LoadError, Weights};

/// The layers of a target that its assistant depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AssistedLayers {
    /// The last layer with keys and values of its own, for each kind of layer.
    sources: [usize; 2],
    /// Layers of the target.
    pub(crate) count: usize,
}

impl AssistedLayers {
    /// Of the target with this config.json.
    ///
    /// # Errors
    /// It is no Gemma 4, or one of the layers reads the embedding.
    pub(crate) fn of(json: &ConfigJson) -> Result<Self, LoadError> {
        if !is_gemma4(json)? {
            let model_type: String = json.required("model_type")?;
            let what =
                format!("expected a Gemma 4 for a drafter of kind assistant, found {model_type}");
            return Err(json.wrong("model_type", what).into());
        }
        let config = Config::read(json)?;
        let source = |kind: usize| {
            let is_source = |layer: &LayerPlan| layer.kind == kind && layer.shares.is_none();
            let at = config.layers.iter().rposition(is_source).filter(|at| *at > 0);
            at.ok_or_else(|| {
                let what = "expected layers of both kinds after the first that have keys and \
                            values, found one kind; no assistant fits";
                json.wrong("layer_types", what.into())
            })
        };
        Ok(Self { sources: [source(0)?, source(1)?], count: config.layers.len() })
    }

    /// Layers whose outputs the assistant reads: those before the sources, and the last one.
    pub(crate) fn features(&self) -> Vec<usize> {
        let [sliding, full] = self.sources;
        vec![sliding - 1, full - 1, self.count - 1]
    }

    /// Modules of the sources in a checkpoint whose text model has this name.
    pub(crate) fn modules(&self, text: &str) -> Vec<String> {
        let parts = ["input_layernorm", "self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm"];
        let names = |at: &usize| parts.map(|part| format!("{text}.layers.{at}.{part}"));
        self.sources.iter().flat_map(names).collect()
    }
}

/// Keys and values of a layer, from the layer's input.
pub(crate) struct LayerKeySource {
    input_layernorm: RmsNorm,
    kv_proj: Linear,
    k_norm: HeadNorm,
    /// Values have a norm without a weight.
    v_norm: RmsNorm,
    /// Heads of values among the projected ones.
    values: Range<i32>,
    sizes: AttentionSizes,
    rope: Rope,
}

impl LayerKeySource {
    fn load(
        weights: &mut Weights,
        text: &str,
        at: usize,
        config: &Config,
        rope: Rope,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("{text}.layers.{at}.{part}");
        let sizes = config.attention_of(&config.layers[at]);
        let AttentionSizes { n_kv, head_dim, k_eq_v, .. } = sizes;
        let (k, v) = (name("self_attn.k_proj"), name("self_attn.v_proj"));
        let projected = [(k.as_str(), n_kv * head_dim), (v.as_str(), n_kv * head_dim)];
        let projected = if k_eq_v { &projected[..1] } else { &projected };
        let first_value = if k_eq_v { 0 } else { n_kv };
        let k_norm = name("self_attn.k_norm");
        Ok(Self {
            input_layernorm: RmsNorm::load(
                weights,
                &name("input_layernorm"),
                config.hidden,
                config.eps,
            )?,
            kv_proj: Linear::load_joined(weights, projected, config.hidden, false)?,
            k_norm: HeadNorm::load(weights, &[(&k_norm, n_kv)], head_dim, config.eps)?,
            v_norm: RmsNorm::without_weight(head_dim, config.eps)?,
            values: first_value..first_value + n_kv,
            sizes,
            rope,
        })
    }

    /// Form of the keys and values.
    pub(crate) fn growing(&self) -> GrowingKv {
        self.sizes.kv_heads().into()
    }

    /// Keys, and heads of which those of [`LayerKeySource::values`] are the values, of rows with these
    /// `inputs` `[R, hidden]` at these positions: `[R, heads, head_dim]` both.
    pub(crate) fn keys_values(&self, inputs: &Array, positions: &[i32]) -> Result<[Array; 2]> {
        let normed = self.input_layernorm.forward(inputs)?;
        let kv = self.kv_proj.forward(&normed)?;
        let kv = kv.reshape(&[kv.dim(0), -1, self.sizes.head_dim])?;
        let keys = self.k_norm.forward(&kv, &self.rope.rows(positions, kv.dtype())?)?;
        Ok([keys, self.v_norm.forward(&kv)?])
    }

    /// Heads of values among those that [`LayerKeySource::keys_values`] gives.
    pub(crate) fn values(&self) -> Range<i32> {
        self.values.clone()
    }
}

/// The parts of a target that its assistant computes with.
pub(crate) struct AssistedTarget {
    embed_tokens: Embedding,
    /// On the embedded rows, as in the target.
    factor: f32,
    norm: RmsNorm,
    /// By the number of the kind.
    pub(crate) sources: [LayerKeySource; 2],
    pub(crate) layers: AssistedLayers,
}

impl AssistedTarget {
    /// Reads them from a checkpoint whose text model has this name.
    ///
    /// # Errors
    /// A tensor is missing, or is not that of the config.
    pub(crate) fn load(
        weights: &mut Weights,
        json: &ConfigJson,
        text: &str,
    ) -> Result<Self, LoadError> {
        let (config, layers) = (Config::read(json)?, AssistedLayers::of(json)?);
        let table = format!("{text}.embed_tokens");
        let stored = weights.dtype_in_file(&format!("{table}.weight"));
        let embed_tokens = Embedding::load(weights, &table, config.vocab, config.hidden)?;
        let norm = RmsNorm::load(weights, &format!("{text}.norm"), config.hidden, config.eps)?;
        let mut ropes = config.ropes(json)?.into_iter();
        let [sliding, full] = layers.sources;
        let mut source = |at: usize| {
            let missing = || json.wrong("rope_parameters", "expected both kinds".into());
            let rope = ropes.next().ok_or_else(missing)?;
            LayerKeySource::load(weights, text, at, &config, rope)
        };
        let sources = [source(sliding)?, source(full)?];
        let factor = rounded((config.hidden as f32).sqrt(), stored);
        Ok(Self { embed_tokens, factor, norm, sources, layers })
    }

    /// Embeddings of `ids` `[R]` → `[R, hidden]`, as the target reads them.
    pub(crate) fn embed(&self, ids: &Array, dtype: Dtype) -> Result<Array> {
        let rows = self.embed_tokens.rows_of(ids)?;
        let factor = Array::from_f32(self.factor).as_dtype(rows.dtype())?;
        Ok(rows.multiply(factor)?.as_dtype(dtype)?)
    }

    /// Outputs of the last layer `[R, hidden]` → the same shape, as the head reads them.
    pub(crate) fn norm(&self, states: &Array) -> Result<Array> {
        self.norm.forward(states)
    }
}
