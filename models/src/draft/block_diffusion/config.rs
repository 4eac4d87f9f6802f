//! config.json of a drafter with DFlash's backbone, in all the shapes its publishers give it: a
//! flat Qwen3 config with a `dflash_config` inside, the same keys flat, or the speculators layout
//! with a `transformer_layer_config` inside. What would be computed wrongly is refused here, with
//! what was found.

use std::borrow::Cow;
use std::path::Path;

use paceline_vocabulary::link::ProposalKind;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::draft::DraftInfo;
use crate::load::{CheckpointError, ConfigJson, HeadSizes, LoadError};

/// Most layers of a drafter. The largest published one has 8; lists of one entry a layer are made
/// before any tensor is looked up.
const MOST_LAYERS: i32 = 1024;

/// The rows to which a layer's block rows attend. Without a window they attend to all the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::draft) struct AttentionWindow {
    /// Positions back, the row itself included.
    pub(in crate::draft) window: Option<i32>,
    /// Rows of a block do not attend to later rows of it.
    pub(in crate::draft) causal: bool,
}

/// The layers of a backbone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::draft) enum LayerForm {
    /// Layers of Qwen3: a norm before each half.
    Qwen3,
    /// Gemma 4's layers that attend to all rows.
    Gemma4 {
        /// Whether values are the keys' projections.
        k_eq_v: bool,
    },
}

/// Sizes and rules of one checkpoint's backbone.
#[derive(Clone, Debug)]
pub(in crate::draft) struct Config {
    pub(in crate::draft) form: LayerForm,
    pub(in crate::draft) hidden_size: i32,
    pub(in crate::draft) n_heads: i32,
    pub(in crate::draft) n_kv_heads: i32,
    pub(in crate::draft) head_dim: i32,
    pub(in crate::draft) intermediate_size: i32,
    pub(in crate::draft) vocab: Option<i32>,
    pub(in crate::draft) context: i32,
    pub(in crate::draft) rms_norm_eps: f32,
    pub(in crate::draft) attention_bias: bool,
    /// Most rows of a block, the bonus token's included.
    pub(in crate::draft) block: i32,
    pub(in crate::draft) mask_id: u32,
    pub(in crate::draft) feature_layers: Vec<usize>,
    pub(in crate::draft) target_layers: Option<usize>,
    /// One a layer.
    pub(in crate::draft) layers: Vec<AttentionWindow>,
    /// Factor on the embeddings given.
    pub(in crate::draft) embedding_scale: Option<f32>,
    pub(in crate::draft) logit_softcap: Option<f32>,
    pub(in crate::draft) images: bool,
    /// Whether the bonus token's row proposes too. Each row then proposes the token after its own,
    /// and a block of n rows, the bonus token's included, has n − 1 rows in the drafter.
    pub(in crate::draft) bonus_proposes: bool,
    /// Rows of the block before each row that its layers read beside attention.
    pub(in crate::draft) earlier_rows: i32,
}

impl Config {
    /// Inputs and proposals of a drafter of this backbone.
    pub(in crate::draft) fn info(
        &self,
        kind: &str,
        proposal: ProposalKind,
        dir: &Path,
        weight_bytes: u64,
    ) -> DraftInfo {
        DraftInfo {
            path: dir.to_path_buf(),
            kind: kind.into(),
            proposal,
            hidden: self.hidden_size,
            block: self.block,
            feature_layers: self.feature_layers.clone(),
            token_ids: false,
            embeddings: true,
            mask_id: Some(self.mask_id),
            target_layers: self.target_layers,
            vocab: self.vocab,
            context: self.context,
            logit_softcap: None,
            images: self.images,
            weight_bytes,
        }
    }
}

/// An error about `key`.
pub(in crate::draft) fn wrong(key: &str, what: String) -> LoadError {
    LoadError::from(CheckpointError::Config { key: key.to_owned(), what })
}

/// Where a key may stand.
pub(in crate::draft) struct Keys<'a> {
    /// The whole file.
    pub(in crate::draft) drafter: &'a ConfigJson,
    /// Object with the layers' keys: `transformer_layer_config`, else the whole file.
    pub(in crate::draft) layers: Cow<'a, ConfigJson>,
    /// The object under `dflash_config`, which has keys of its own.
    inner: Option<Map<String, Value>>,
    /// The kind that the file names in the speculators layout.
    pub(in crate::draft) speculators: Option<String>,
}

impl<'a> Keys<'a> {
    /// Finds the places of a config.json.
    ///
    /// # Errors
    /// One of them has another type than an object.
    pub(in crate::draft) fn of(config: &'a ConfigJson) -> Result<Self, LoadError> {
        let mut inner = config.optional::<Map<String, Value>>("dflash_config")?;
        if let Some(inner) = &mut inner {
            inner.retain(|_, value| !value.is_null());
        }
        let layers = config.part("transformer_layer_config")?;
        Ok(Self {
            drafter: config,
            layers: layers.map_or(Cow::Borrowed(config), Cow::Owned),
            inner,
            speculators: config.optional("speculators_model_type")?,
        })
    }

    /// The names in `architectures`.
    pub(in crate::draft) fn architectures(&self) -> Result<Vec<String>, LoadError> {
        Ok(self.drafter.optional("architectures")?.unwrap_or_default())
    }

    /// Whether the file has a `dflash_config`.
    pub(in crate::draft) fn has_inner(&self) -> bool {
        self.inner.is_some()
    }

    /// From `dflash_config`, else from the top, else from what is said of the layers.
    pub(in crate::draft) fn either<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<T>, LoadError> {
        match self.inner.as_ref().and_then(|inner| inner.get(key)) {
            None => match self.drafter.optional(key)? {
                Some(value) => Ok(Some(value)),
                None => Ok(self.layers.optional(key)?),
            },
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|error| wrong(&format!("dflash_config.{key}"), error.to_string())),
        }
    }

    /// A size that must be there: at least 1, at most 2^24.
    pub(in crate::draft) fn size(&self, key: &str) -> Result<i32, LoadError> {
        match self.either::<i64>(key)? {
            Some(size) if (1..=1 << 24).contains(&size) => Ok(size as i32),
            Some(size) => Err(wrong(key, format!("expected 1 to 16777216, found {size}"))),
            None => Err(wrong(key, "expected a size, found none".into())),
        }
    }

    /// A number above 0, if it is there.
    pub(in crate::draft) fn positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let value: Option<f32> = self.either(key)?;
        match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err(wrong(key, format!("expected above 0, found {value:?}")))
            }
            value => Ok(value),
        }
    }

    /// Sizes and rules of a backbone of Qwen3's layers, for blocks of `block` rows.
    ///
    /// # Errors
    /// A missing or contradictory key, or a layer that is not built here.
    pub(in crate::draft) fn backbone(&self, block: i32) -> Result<Config, LoadError> {
        self.backbone_of(LayerForm::Qwen3, block)
    }

    /// Sizes and rules of a backbone of layers of this form, for blocks of `block` rows.
    ///
    /// # Errors
    /// A key is missing or of another type, or the config names layers that are not built here.
    pub(in crate::draft) fn backbone_of(
        &self,
        form: LayerForm,
        block: i32,
    ) -> Result<Config, LoadError> {
        self.check_layers(form)?;
        let layers = self.layers.as_ref();
        let (hidden_size, n_heads) =
            (layers.size("hidden_size")?, layers.size("num_attention_heads")?);
        let n_layers = layers.size("num_hidden_layers")?;
        if n_layers > MOST_LAYERS {
            let what = format!("expected 1 to {MOST_LAYERS}, found {n_layers}");
            return Err(wrong("num_hidden_layers", what));
        }
        let target_layers = self.either::<usize>("num_target_layers")?;
        let mask_id = self.either("mask_token_id")?.ok_or_else(|| {
            let what = "expected the id whose embedding stands for a position to fill, found none; add it to dflash_config";
            wrong("dflash_config.mask_token_id", what.into())
        })?;
        let (n_kv_heads, head_dim) = self.heads(form, hidden_size, n_heads)?;
        let read = Config {
            form,
            hidden_size,
            n_heads,
            n_kv_heads,
            head_dim,
            intermediate_size: layers.size("intermediate_size")?,
            vocab: layers
                .optional::<i64>("vocab_size")?
                .map(|_| layers.size("vocab_size"))
                .transpose()?,
            context: layers.context()?.positions,
            rms_norm_eps: layers.optional("rms_norm_eps")?.unwrap_or(1e-6),
            attention_bias: layers.optional("attention_bias")?.unwrap_or(false),
            block,
            mask_id,
            feature_layers: self.feature_layers(n_layers, target_layers)?,
            target_layers,
            layers: self.layers(n_layers)?,
            embedding_scale: self.positive("input_embedding_scale")?,
            logit_softcap: self.positive("final_logit_softcapping")?,
            // Hidden states of an image's rows have the form of any others, so a drafter takes them
            // unless its config refuses them.
            images: self.either("serves_images")?.unwrap_or(true),
            bonus_proposes: false,
            earlier_rows: 0,
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {n_heads} heads and an even head_dim, found {} and {}",
                read.n_kv_heads, read.head_dim
            );
            return Err(wrong("num_key_value_heads", what));
        }
        layers.check_heads("num_attention_heads", n_heads, read.head_dim)?;
        Ok(read)
    }

    /// Heads of keys and values, and numbers of a head. A full layer of Gemma 4 has its own sizes.
    fn heads(&self, form: LayerForm, hidden: i32, n_heads: i32) -> Result<(i32, i32), LoadError> {
        let layers = self.layers.as_ref();
        let n_kv = layers.size_or("num_key_value_heads", n_heads)?;
        match form {
            LayerForm::Qwen3 => Ok((n_kv, layers.size_or("head_dim", (hidden / n_heads).max(1))?)),
            LayerForm::Gemma4 { k_eq_v } => {
                let count = layers.size("num_hidden_layers")? as usize;
                let head_dim = layers.size_or("head_dim", 256)?;
                let usual = HeadSizes { head_dim, n_kv };
                if let Some(heads) = layers.heads_of_layers(count, |_| true, usual)? {
                    return Ok((heads.n_kv, heads.head_dim));
                }
                let own = k_eq_v.then(|| layers.size_or("num_global_key_value_heads", n_kv));
                Ok((own.unwrap_or(Ok(n_kv))?, layers.size("global_head_dim")?))
            }
        }
    }

    /// The form of Gemma 4's layers by its keys.
    ///
    /// # Errors
    /// A layer is not built here.
    pub(in crate::draft) fn gemma_form(&self) -> Result<LayerForm, LoadError> {
        let layers = self.layers.as_ref();
        for key in ["enable_moe_block", "hidden_size_per_layer_input", "num_kv_shared_layers"] {
            let found = layers.optional::<Value>(key)?;
            let is_off =
                |value: &Value| *value == Value::Bool(false) || value.as_f64() == Some(0.0);
            if let Some(found) = found.filter(|value| !is_off(value)) {
                let what = format!("expected none, found {found}: a drafter's layers are dense");
                return Err(wrong(key, what));
            }
        }
        let types: Vec<String> = layers.optional("layer_types")?.unwrap_or_default();
        if let Some(other) = types.iter().find(|name| *name != "full_attention") {
            let what = format!(
                "expected full_attention alone, found {other}: drafters with Gemma's sliding \
                 layers are not built in this version"
            );
            return Err(wrong("layer_types", what));
        }
        let k_eq_v = layers.optional("attention_k_eq_v")?.unwrap_or(false);
        Ok(LayerForm::Gemma4 { k_eq_v })
    }

    /// Refuses layers that are not built here.
    fn check_layers(&self, form: LayerForm) -> Result<(), LoadError> {
        if self.either::<bool>("attention_sink_bias")?.unwrap_or(false) {
            return Err(wrong(
                "attention_sink_bias",
                "expected false: attention sinks are not built in this version".into(),
            ));
        }
        if !self.either::<bool>("rope_is_neox_style")?.unwrap_or(true) {
            return Err(wrong(
                "rope_is_neox_style",
                "expected true: only split-half pairing is built".into(),
            ));
        }
        let (key, expected) = match form {
            LayerForm::Qwen3 => ("hidden_act", "silu"),
            LayerForm::Gemma4 { .. } => ("hidden_activation", "gelu_pytorch_tanh"),
        };
        let activation: String = self.layers.optional(key)?.unwrap_or_else(|| expected.into());
        if activation != expected {
            return Err(wrong(key, format!("expected {expected}, found {activation}")));
        }
        Ok(())
    }

    /// `block_size`, of at least `least` rows.
    ///
    /// # Errors
    /// It is missing or out of range.
    pub(in crate::draft) fn block(&self, least: i64) -> Result<i32, LoadError> {
        let missing = || {
            wrong(
                "block_size",
                "expected a value at the top or in dflash_config, found none".into(),
            )
        };
        // The drafter's own section first: the published DFlash 2 drafter has its 8 rows there, and
        // with blocks of 16 none of its drafts is accepted.
        let block: i64 = self.either("block_size")?.ok_or_else(missing)?;
        if !(least..=1024).contains(&block) {
            return Err(wrong("block_size", format!("expected {least} to 1024, found {block}")));
        }
        Ok(block as i32)
    }

    /// The ids in the file. The speculators layout counts the embedding as layer 0.
    fn layer_ids(&self) -> Result<Option<Vec<usize>>, LoadError> {
        let ids: Option<Vec<usize>> = match self.either("target_layer_ids")? {
            Some(ids) => Some(ids),
            None => self.either("aux_hidden_state_layer_ids")?,
        };
        let (Some(ids), true) = (&ids, self.speculators.is_some()) else { return Ok(ids) };
        let below: Option<Vec<usize>> = ids.iter().map(|id| id.checked_sub(1)).collect();
        let what = || format!("expected layers from 1 on in the speculators layout, found {ids:?}");
        below.map(Some).ok_or_else(|| wrong("aux_hidden_state_layer_ids", what()))
    }

    /// The ids given, or as many as there are draft layers, spread over the target's (z-lab/dflash,
    /// `build_target_layer_ids`).
    fn feature_layers(
        &self,
        n_layers: i32,
        target_layers: Option<usize>,
    ) -> Result<Vec<usize>, LoadError> {
        let key = "dflash_config.target_layer_ids";
        let ids = match (self.layer_ids()?, target_layers) {
            (Some(ids), _) => ids,
            (None, None) => {
                return Err(wrong(
                    key,
                    "expected a list, or num_target_layers to derive it; found neither".into(),
                ));
            }
            (None, Some(all)) if n_layers == 1 => vec![all / 2],
            (None, Some(all)) => {
                let step = (all as f64 - 4.0) / f64::from(n_layers - 1);
                // Halves to even, as Python rounds.
                (0..n_layers)
                    .map(|at| (1.0 + f64::from(at) * step).round_ties_even() as usize)
                    .collect()
            }
        };
        let highest = target_layers.unwrap_or(1 << 16);
        if ids.is_empty() || ids.len() > 256 || ids.iter().any(|id| *id >= highest) {
            return Err(wrong(
                key,
                format!("expected 1 to 256 layers below {highest}, found {ids:?}"),
            ));
        }
        Ok(ids)
    }

    /// Windows and causality. `layer_types` names sliding layers of `sliding_window`; where it
    /// names none, `use_swa` gives all layers a window of `swa_window_size`. Causal: as `is_causal`
    /// or `dflash_config.causal` says for all layers, else those that are sliding by type (vLLM's
    /// rule) unless `sliding_window_non_causal` says that they are not.
    fn layers(&self, n_layers: i32) -> Result<Vec<AttentionWindow>, LoadError> {
        let config = self.layers.as_ref();
        let types: Vec<String> = match config.optional::<Vec<String>>("layer_types")? {
            Some(types) => types,
            None => {
                // Qwen3's own keys: layers from max_window_layers on slide.
                let slides = config.optional("use_sliding_window")?.unwrap_or(false);
                let first: i32 = config.optional("max_window_layers")?.unwrap_or(0);
                let sliding = |at: i32| slides && at >= first;
                (0..n_layers)
                    .map(|at| {
                        if sliding(at) { "sliding_attention" } else { "full_attention" }.to_owned()
                    })
                    .collect()
            }
        };
        if types.len() != n_layers as usize {
            return Err(wrong(
                "layer_types",
                format!("expected one for each of {n_layers} layers, found {}", types.len()),
            ));
        }
        if let Some(other) = types
            .iter()
            .find(|name| !["full_attention", "sliding_attention"].contains(&name.as_str()))
        {
            return Err(wrong(
                "layer_types",
                format!("expected full_attention or sliding_attention, found {other}"),
            ));
        }
        let sliding: Vec<bool> = types.iter().map(|name| name == "sliding_attention").collect();
        let any = sliding.contains(&true);
        let everywhere = !any && self.either("use_swa")?.unwrap_or(false);
        let sizes = [self.either::<i32>("sliding_window")?, self.either("swa_window_size")?];
        let [window, other] = if everywhere { [sizes[1], sizes[0]] } else { sizes };
        let window = window.or(other);
        if (any || everywhere) && window.is_none_or(|window| window < 1) {
            return Err(wrong(
                "sliding_window",
                format!("sliding layers need a window of at least 1, found {window:?}"),
            ));
        }
        let causal = match config.optional::<bool>("is_causal")? {
            Some(causal) => Some(causal),
            None => self.either("causal")?,
        };
        let slides_both_ways = self.either("sliding_window_non_causal")?.unwrap_or(false);
        let attention = |slides: &bool| AttentionWindow {
            window: window.filter(|_| *slides || everywhere),
            causal: causal.unwrap_or(*slides && !slides_both_ways),
        };
        Ok(sliding.iter().map(attention).collect())
    }
}
