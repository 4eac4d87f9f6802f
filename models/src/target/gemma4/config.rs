//! Sizes and kinds of layers of a Gemma 4 checkpoint, from config.json.

use crate::kv::{GrowingKv, LayerKv};
use crate::layers::{ExpertSizes, Rope};
use crate::load::{ConfigJson, HeadSizes, LoadError};
use crate::target::sizes;

/// Kinds of layers, in the order of the model's rotations. Rows of the second one attend to all
/// rows before them.
const KINDS: [&str; 2] = ["sliding_attention", "full_attention"];
/// One of this many layers attends to all rows, if the config names no kinds. Source: Gemma 4 in
/// transformers.
const PATTERN: usize = 6;
/// Most layers. Published checkpoints have up to 60; a list of the kinds of any number of layers
/// could be larger than memory.
const MOST_LAYERS: i32 = 1024;

/// Sizes of the attention of one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct AttentionSizes {
    pub(in crate::target) n_heads: i32,
    pub(in crate::target) n_kv: i32,
    pub(in crate::target) head_dim: i32,
    /// Most positions a row attends to, its own included.
    pub(in crate::target) window: Option<i32>,
    /// Whether values are the keys' projections.
    pub(in crate::target) k_eq_v: bool,
}

impl AttentionSizes {
    pub(in crate::target) fn growing(&self) -> GrowingKv {
        let Self { n_kv, head_dim, window, .. } = *self;
        GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window }
    }
}

/// A layer of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct LayerPlan {
    /// Number of its kind, which is that of its rotation.
    pub(in crate::target) kind: usize,
    /// The layer whose keys and values it attends to, if it has none of its own.
    pub(in crate::target) shares: Option<usize>,
    /// Width inside the feed-forward.
    pub(in crate::target) intermediate: i32,
}

/// The model without towers (12B). Some of its keys have other usual values.
const UNIFIED: &str = "gemma4_unified";

/// A checkpoint's config.
#[derive(Clone, Debug)]
pub(in crate::target) struct Config {
    pub(in crate::target) hidden: i32,
    pub(in crate::target) vocab: i32,
    pub(in crate::target) context: i32,
    pub(in crate::target) eps: f32,
    pub(in crate::target) tied: bool,
    pub(in crate::target) softcap: Option<f32>,
    /// By the number of the kind.
    pub(in crate::target) attention: [AttentionSizes; 2],
    pub(in crate::target) layers: Vec<LayerPlan>,
    pub(in crate::target) experts: Option<ExpertSizes>,
    /// Of per-layer embeddings their width in one layer, and the rows of their table; `None`
    /// without such.
    pub(in crate::target) per_layer: Option<[i32; 2]>,
    /// The id whose row of that table the rows of images get.
    pub(in crate::target) pad: Option<u32>,
    /// Whether rows of an image attend to one another both ways in sliding layers.
    pub(in crate::target) both_ways: bool,
}

impl Config {
    /// # Errors
    /// A key is missing, out of range, or names what is not computed.
    pub(in crate::target) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        config.check_word("hidden_activation", "gelu_pytorch_tanh")?;
        if config.optional("attention_bias")?.unwrap_or(false) {
            let what = "expected false: this version has no biases of this family".into();
            return Err(config.wrong("attention_bias", what));
        }
        let both_ways = both_ways(config)?;
        let n_layers = config.size("num_hidden_layers")?;
        config.check_most("num_hidden_layers", n_layers, MOST_LAYERS)?;
        let softcap: Option<f32> = config.optional("final_logit_softcapping")?;
        if let Some(cap) = softcap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
            let what = format!("expected null or a number above 0, found {cap}");
            return Err(config.wrong("final_logit_softcapping", what));
        }
        let layers = layers(config, n_layers as usize)?;
        Ok(Self {
            hidden: config.size("hidden_size")?,
            vocab: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tied: config.optional("tie_word_embeddings")?.unwrap_or(true),
            softcap,
            attention: attention(config, &layers)?,
            layers,
            experts: experts(config)?,
            pad: pad(config)?,
            per_layer: per_layer(config)?,
            both_ways,
        })
    }

    /// The attention of a layer.
    pub(in crate::target) fn attention_of(&self, layer: &LayerPlan) -> AttentionSizes {
        self.attention[layer.kind]
    }

    /// Forms of all layers' keys and values.
    pub(in crate::target) fn kv_layers(&self) -> Vec<LayerKv> {
        let form = |layer: &LayerPlan| match layer.shares {
            Some(of) => LayerKv::Shared(of),
            None => LayerKv::Growing(self.attention_of(layer).growing()),
        };
        self.layers.iter().map(form).collect()
    }

    /// The rotation of each kind.
    pub(in crate::target) fn ropes(&self, config: &ConfigJson) -> Result<Vec<Rope>, LoadError> {
        let rope =
            |kind: usize| Rope::load_kind(config, KINDS[kind], self.attention[kind].head_dim);
        (0..KINDS.len()).map(rope).collect()
    }
}

/// Whether a config is one of [`UNIFIED`], or of its text model.
pub(in crate::target) fn is_unified(config: &ConfigJson) -> Result<bool, LoadError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.is_some_and(|model_type| model_type.starts_with(UNIFIED)))
}

/// Sizes by kind. What newer files name layer by layer counts before the keys of full layers.
fn attention(config: &ConfigJson, layers: &[LayerPlan]) -> Result<[AttentionSizes; 2], LoadError> {
    let n_heads = config.size("num_attention_heads")?;
    let (n_kv, head_dim) = (config.size("num_key_value_heads")?, config.size_or("head_dim", 256)?);
    let k_eq_v = config.optional("attention_k_eq_v")?.unwrap_or(false);
    let usual_window = if is_unified(config)? { 1024 } else { 512 };
    let usual = HeadSizes { head_dim, n_kv };
    let named =
        |kind: usize| config.heads_of_layers(layers.len(), |at| layers[at].kind == kind, usual);
    let of_sliding = named(0)?.unwrap_or(usual);
    let of_full = match named(1)? {
        Some(heads) => heads,
        None => HeadSizes {
            n_kv: if k_eq_v { config.size_or("num_global_key_value_heads", n_kv)? } else { n_kv },
            head_dim: config.size_or("global_head_dim", 512)?,
        },
    };
    let sliding = AttentionSizes {
        n_heads,
        n_kv: of_sliding.n_kv,
        head_dim: of_sliding.head_dim,
        window: Some(config.size_or("sliding_window", usual_window)?),
        k_eq_v: false,
    };
    let full = AttentionSizes {
        n_heads,
        n_kv: of_full.n_kv,
        head_dim: of_full.head_dim,
        window: None,
        k_eq_v,
    };
    for AttentionSizes { n_kv, head_dim, .. } in [sliding, full] {
        if n_heads % n_kv != 0 || head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {n_heads} heads and heads of an even size, found {n_kv} and \
                 {head_dim}"
            );
            return Err(config.wrong("num_key_value_heads", what));
        }
        config.check_heads("num_attention_heads", n_heads, head_dim)?;
    }
    Ok([sliding, full])
}

/// The layers. The last ones attend to the keys and values of the last layer of their kind that has
/// its own.
fn layers(config: &ConfigJson, count: usize) -> Result<Vec<LayerPlan>, LoadError> {
    let wrong = |what: String| config.wrong("layer_types", what);
    let usual = |at: usize| KINDS[usize::from((at + 1).is_multiple_of(PATTERN) || at + 1 == count)];
    let words: Option<Vec<String>> = config.optional("layer_types")?;
    let words = words.unwrap_or_else(|| (0..count).map(|at| usual(at).to_owned()).collect());
    if words.len() != count {
        return Err(wrong(format!("expected {count}, one for each layer, found {}", words.len())));
    }
    let kind = |word: &String| {
        let known = KINDS.iter().position(|kind| kind == word);
        known.ok_or_else(|| wrong(format!("expected {}, found {word}", KINDS.join(" or "))))
    };
    let kinds = words.iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    if kinds.last() == Some(&0) {
        // Transformers makes it a full one, without a word in the config.
        let what = format!("expected {} as the last layer, found {}", KINDS[1], KINDS[0]);
        return Err(wrong(what));
    }
    let shared: usize = config.optional("num_kv_shared_layers")?.unwrap_or(0);
    let own = count.checked_sub(shared).filter(|own| *own > 0);
    let own = own.ok_or_else(|| {
        let what = format!("expected fewer than the {count} layers, found {shared}");
        config.wrong("num_kv_shared_layers", what)
    })?;
    let intermediate = config.size("intermediate_size")?;
    let doubled = config.optional("use_double_wide_mlp")?.unwrap_or(false);
    let layer = |(at, kind): (usize, &usize)| {
        if at < own {
            return Ok(LayerPlan { kind: *kind, shares: None, intermediate });
        }
        let of = kinds[..own].iter().rposition(|other| other == kind);
        let of = of.ok_or_else(|| {
            wrong(format!("layer {at} shares keys and values of {}, found none", KINDS[*kind]))
        })?;
        let intermediate = if doubled { 2 * intermediate } else { intermediate };
        Ok(LayerPlan { kind: *kind, shares: Some(of), intermediate })
    };
    kinds.iter().enumerate().map(layer).collect()
}

fn experts(config: &ConfigJson) -> Result<Option<ExpertSizes>, LoadError> {
    if !config.optional("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    sizes::experts(config, "top_k_experts", config.size("hidden_size")?, true).map(Some)
}

/// Whether rows of an image attend both ways. The model without towers does so if the key is
/// missing.
fn both_ways(config: &ConfigJson) -> Result<bool, LoadError> {
    let key = "use_bidirectional_attention";
    match config.optional::<String>(key)?.as_deref() {
        None => is_unified(config),
        Some("vision") => Ok(true),
        Some(other) => Err(config.wrong(key, format!("expected null or vision, found {other}"))),
    }
}

/// The id of padding, if layers read ids.
fn pad(config: &ConfigJson) -> Result<Option<u32>, LoadError> {
    if per_layer(config)?.is_none() {
        return Ok(None);
    }
    let (pad, vocab) =
        (config.optional("pad_token_id")?.unwrap_or(0), config.size("vocab_size")? as u32);
    if pad < vocab {
        return Ok(Some(pad));
    }
    Err(config.wrong("pad_token_id", format!("expected an id below {vocab}, found {pad}")))
}

fn per_layer(config: &ConfigJson) -> Result<Option<[i32; 2]>, LoadError> {
    let key = "hidden_size_per_layer_input";
    match config.optional::<i64>(key)? {
        None | Some(0) => Ok(None),
        Some(_) => {
            let (width, vocab) = (config.size(key)?, config.size("vocab_size")?);
            let rows = config.size_or("vocab_size_per_layer_input", vocab)?;
            if rows < vocab {
                let what = format!("expected at least the vocabulary of {vocab}, found {rows}");
                return Err(config.wrong("vocab_size_per_layer_input", what));
            }
            Ok(Some([width, rows]))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn base() -> Value {
        json!({"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "global_head_dim": 32, "intermediate_size": 96, "vocab_size": 300,
            "max_position_embeddings": 512, "sliding_window": 32})
    }

    #[test]
    fn the_model_without_towers_has_a_window_of_its_own_if_none_is_named() {
        let window = |changes: Value| read(changes).expect("reads").attention[0].window;
        let unnamed = |model_type: &str| json!({"model_type": model_type, "sliding_window": null});
        assert_eq!(window(unnamed("gemma4_text")), Some(512));
        assert_eq!(window(unnamed("gemma4_unified_text")), Some(1024));
        assert_eq!(window(unnamed("gemma4_unified")), Some(1024));
    }

    fn read(changes: Value) -> Result<Config, String> {
        Config::read(&ConfigJson::changed(base(), &changes)).map_err(|error| error.to_string())
    }

    #[test]
    fn without_kinds_every_sixth_layer_and_the_last_attend_to_all_rows() {
        let config = read(json!({})).expect("reads");
        let kinds: Vec<usize> = config.layers.iter().map(|layer| layer.kind).collect();
        assert_eq!(kinds, [0, 0, 0, 0, 0, 1, 1]);
        let window = |at: usize| config.attention_of(&config.layers[at]).window;
        assert_eq!((window(0), window(5)), (Some(32), None));
        assert_eq!((config.softcap, config.experts, config.per_layer), (None, None, None));
    }

    #[test]
    fn the_last_layers_share_with_the_last_of_their_kind_and_may_be_wider() {
        let kinds = ["sliding", "full", "sliding", "full", "sliding", "sliding", "full"];
        let kinds = kinds.map(|kind| format!("{kind}_attention"));
        let shared = json!({"layer_types": kinds, "num_kv_shared_layers": 3,
            "use_double_wide_mlp": true});
        let config = read(shared).expect("reads");
        let shares: Vec<_> = config.layers.iter().map(|layer| layer.shares).collect();
        assert_eq!(shares, [None, None, None, None, Some(2), Some(2), Some(3)]);
        assert_eq!((config.layers[3].intermediate, config.layers[4].intermediate), (96, 192));
        assert_eq!(config.kv_layers()[6], LayerKv::Shared(3));
    }

    #[test]
    fn keys_that_are_values_have_heads_of_their_own_number() {
        let config = read(json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1}));
        let [sliding, full] = config.expect("reads").attention;
        assert_eq!((sliding.n_kv, sliding.k_eq_v, full.n_kv, full.k_eq_v), (2, false, 1, true));
        // Without it the other key has no meaning.
        let config = read(json!({"num_global_key_value_heads": 1})).expect("reads");
        assert_eq!(config.attention[1].n_kv, 2);
    }

    #[test]
    fn what_is_not_computed_is_refused_with_its_key() {
        let refused = [
            (json!({"hidden_activation": "silu"}), "hidden_activation"),
            (json!({"attention_bias": true}), "attention_bias"),
            (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
            (json!({"layer_types": ["full_attention"]}), "layer_types"),
            (json!({"num_kv_shared_layers": 7}), "num_kv_shared_layers"),
            (json!({"final_logit_softcapping": 0.0}), "final_logit_softcapping"),
            (json!({"num_hidden_layers": 100_000}), "num_hidden_layers"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
            (json!({"hidden_size_per_layer_input": -1}), "hidden_size_per_layer_input"),
            (
                json!({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 20}),
                "vocab_size_per_layer_input",
            ),
            (
                json!({"enable_moe_block": true, "moe_intermediate_size": 8, "num_experts": 2,
                    "top_k_experts": 3}),
                "top_k_experts",
            ),
        ];
        for (changes, key) in refused {
            let error = read(changes.clone()).expect_err("refused");
            assert!(error.contains(key), "{changes}: {error}");
        }
    }
}
