//! config.json of a DFlash drafter, in all the shapes its publishers give it: a flat Qwen3 config
//! with a `dflash_config` inside. What would be computed wrongly is refused here, with what was
//! found.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::load::{ConfigJson, LoadError};

/// The rows to which a layer's block rows attend. Without a window they attend to all the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionWindow {
    /// Positions back, the row itself included.
    pub(super) window: Option<i32>,
    /// Rows of a block do not attend to later rows of it.
    pub(super) causal: bool,
}

/// The name in `architectures`.
const ARCHITECTURE: &str = "DFlashDraftModel";

/// Sizes and rules of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden_size: i32,
    pub(super) n_heads: i32,
    pub(super) n_kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) intermediate_size: i32,
    pub(super) vocab: Option<i32>,
    pub(super) context: i32,
    pub(super) rms_norm_eps: f32,
    pub(super) attention_bias: bool,
    pub(super) block: i32,
    pub(super) mask_id: u32,
    pub(super) feature_layers: Vec<usize>,
    pub(super) target_layers: Option<usize>,
    /// One a layer.
    pub(super) layers: Vec<AttentionWindow>,
    /// Factor on the embeddings given.
    pub(super) embedding_scale: Option<f32>,
    pub(super) logit_softcap: Option<f32>,
    pub(super) images: bool,
}

/// Keys of other kinds of drafters, and the kind of each.
const FOREIGN: [(&str, &str); 9] = [
    ("conv_kernel_size", "DFlash 2"),
    ("conv_group_size", "DFlash 2"),
    ("selector_rank", "DFlash 2"),
    ("selector_top_k", "DFlash 2"),
    ("output_multiplier", "DFlash 2"),
    ("markov_rank", "DSpark"),
    ("markov_head_type", "DSpark"),
    ("enable_confidence_head", "DSpark"),
    ("speculators_model_type", "the speculators layout"),
];

impl Config {
    /// Whether a config.json is that of a DFlash drafter.
    pub(super) fn is_dflash(config: &ConfigJson) -> Result<bool, LoadError> {
        let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
        let named = architectures.iter().any(|name| name == ARCHITECTURE);
        let has_keys = || Ok(config.optional::<Map<String, Value>>("dflash_config")?.is_some());
        if architectures.is_empty() { has_keys() } else { Ok(named) }
    }

    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let mut inner = config.optional::<Map<String, Value>>("dflash_config")?;
        if let Some(inner) = &mut inner {
            inner.retain(|_, value| !value.is_null());
        }
        let keys = Keys { config, inner };
        keys.check_kind()?;
        let (hidden_size, n_heads) =
            (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let n_layers = config.size("num_hidden_layers")?;
        let target_layers = keys.either::<usize>("num_target_layers")?;
        let mask_id = keys.either("mask_token_id")?.ok_or_else(|| {
            let what = "expected the id whose embedding stands for a position to fill, found none; add it to dflash_config";
            wrong("dflash_config.mask_token_id", what.into())
        })?;
        let read = Self {
            hidden_size,
            n_heads,
            n_kv_heads: config.size_or("num_key_value_heads", n_heads)?,
            head_dim: config.size_or("head_dim", (hidden_size / n_heads).max(1))?,
            intermediate_size: config.size("intermediate_size")?,
            vocab: config
                .optional::<i64>("vocab_size")?
                .map(|_| config.size("vocab_size"))
                .transpose()?,
            context: config.size("max_position_embeddings")?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            attention_bias: config.optional("attention_bias")?.unwrap_or(false),
            block: keys.block()?,
            mask_id,
            feature_layers: keys.feature_layers(n_layers, target_layers)?,
            target_layers,
            layers: keys.layers(n_layers)?,
            embedding_scale: keys.either("input_embedding_scale")?,
            logit_softcap: keys.either("final_logit_softcapping")?,
            // Hidden states of an image's rows have the form of any others, so a drafter takes them
            // unless its config refuses them.
            images: keys.either("serves_images")?.unwrap_or(true),
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {n_heads} heads and an even head_dim, found {} and {}",
                read.n_kv_heads, read.head_dim
            );
            return Err(wrong("num_key_value_heads", what));
        }
        config.check_heads(n_heads, read.head_dim)?;
        for (key, value) in [
            ("input_embedding_scale", read.embedding_scale),
            ("final_logit_softcapping", read.logit_softcap),
        ] {
            if value.is_some_and(|value| !(value > 0.0 && value.is_finite())) {
                return Err(wrong(key, format!("expected above 0, found {value:?}")));
            }
        }
        Ok(read)
    }
}

fn wrong(key: &str, what: String) -> LoadError {
    LoadError::Config { key: key.to_owned(), what }
}

/// Where a key may stand.
struct Keys<'a> {
    config: &'a ConfigJson,
    /// `dflash_config`.
    inner: Option<Map<String, Value>>,
}

impl Keys<'_> {
    /// From `dflash_config`, else from the top.
    fn either<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, LoadError> {
        match self.inner.as_ref().and_then(|inner| inner.get(key)) {
            None => self.config.optional(key),
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|error| wrong(&format!("dflash_config.{key}"), error.to_string())),
        }
    }

    /// DFlash and no relative of it, of the layers built here.
    fn check_kind(&self) -> Result<(), LoadError> {
        let architectures: Vec<String> = self.config.optional("architectures")?.unwrap_or_default();
        let model_type: String = self.config.optional("model_type")?.unwrap_or_default();
        if !Config::is_dflash(self.config)? {
            let what = format!(
                "expected [\"DFlashDraftModel\"], found {architectures:?} with model_type {model_type:?}: this version serves no other drafter"
            );
            return Err(wrong("architectures", what));
        }
        for (key, kind) in FOREIGN {
            let found = self
                .either::<Value>(key)?
                .filter(|value| *value != Value::Bool(false) && value.as_f64() != Some(0.0));
            if let Some(value) = found {
                return Err(wrong(
                    key,
                    format!("found {value}, a key of {kind}, which this version does not serve"),
                ));
            }
        }
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
        let activation: String =
            self.config.optional("hidden_act")?.unwrap_or_else(|| "silu".into());
        if activation != "silu" {
            return Err(wrong("hidden_act", format!("expected silu, found {activation}")));
        }
        Ok(())
    }

    fn block(&self) -> Result<i32, LoadError> {
        let missing = || {
            wrong(
                "block_size",
                "expected a value at the top or in dflash_config, found none".into(),
            )
        };
        let top: Option<i64> = self.config.optional("block_size")?;
        let block = top
            .map_or_else(|| self.either("block_size"), |top| Ok(Some(top)))?
            .ok_or_else(missing)?;
        match block {
            2..=1024 => Ok(block as i32),
            _ => Err(wrong("block_size", format!("expected 2 to 1024, found {block}"))),
        }
    }

    /// The ids given, or as many as there are draft layers, spread over the target's (z-lab/dflash,
    /// `build_target_layer_ids`).
    fn feature_layers(
        &self,
        n_layers: i32,
        target_layers: Option<usize>,
    ) -> Result<Vec<usize>, LoadError> {
        let key = "dflash_config.target_layer_ids";
        let ids = match (self.either::<Vec<usize>>("target_layer_ids")?, target_layers) {
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
    /// rule).
    fn layers(&self, n_layers: i32) -> Result<Vec<AttentionWindow>, LoadError> {
        let config = self.config;
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
        let attention = |slides: &bool| AttentionWindow {
            window: window.filter(|_| *slides || everywhere),
            causal: causal.unwrap_or(*slides),
        };
        Ok(sliding.iter().map(attention).collect())
    }
}

#[cfg(test)]
mod tests;
