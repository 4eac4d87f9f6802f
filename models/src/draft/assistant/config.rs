//! config.json of an assistant: the keys of its text model, which have Gemma 4's names, and those
//! of its head.

use serde_json::Value;

use crate::load::{ConfigJson, HeadSizes, LoadError};

/// Kinds of layers, in the order of the target's sources of keys and values.
pub(super) const KINDS: [&str; 2] = ["sliding_attention", "full_attention"];
/// Most layers. Published assistants have 4.
const MOST_LAYERS: i32 = 1024;
/// The key that only assistants have: the hidden size of the target.
const TARGET_SIZE: &str = "backbone_hidden_size";

/// The head for the ids of the best clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClusterSizes {
    /// Clusters, which have the same number of ids each.
    pub(super) count: i32,
    /// How many of them are chosen.
    pub(super) best: i32,
}

/// A checkpoint's config.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden: i32,
    pub(super) target_hidden: i32,
    pub(super) intermediate: i32,
    pub(super) vocab: i32,
    pub(super) context: i32,
    pub(super) eps: f32,
    pub(super) n_heads: i32,
    /// Size of a head, for each kind of layer.
    pub(super) head_dims: [i32; 2],
    /// Most positions a sliding layer attends to.
    pub(super) window: i32,
    /// The number of each layer's kind.
    pub(super) layers: Vec<usize>,
    pub(super) tied: bool,
    pub(super) clusters: Option<ClusterSizes>,
}

/// Whether a config.json is that of an assistant.
///
/// # Errors
/// A key has another type.
pub(super) fn is_assistant(config: &ConfigJson) -> Result<bool, LoadError> {
    Ok(config.optional::<i64>(TARGET_SIZE)?.is_some())
}

impl Config {
    /// # Errors
    /// A key is missing, out of range, or names what is not computed.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        check_layers(config)?;
        let (vocab, tied) = (config.size("vocab_size")?, "tie_word_embeddings");
        let n_heads = config.size("num_attention_heads")?;
        let layers = layers(config)?;
        let head_dims = head_dims(config, &layers)?;
        for head_dim in head_dims {
            config.check_heads("num_attention_heads", n_heads, head_dim)?;
        }
        Ok(Self {
            hidden: config.size("hidden_size")?,
            target_hidden: config.size(TARGET_SIZE)?,
            intermediate: config.size("intermediate_size")?,
            vocab,
            context: config.size("max_position_embeddings")?,
            eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            n_heads,
            head_dims,
            window: config.size_or("sliding_window", 512)?,
            layers,
            tied: config.optional(tied)?.unwrap_or(true),
            clusters: clusters(config, vocab)?,
        })
    }
}

/// Size of a head, for each kind of layer.
fn head_dims(config: &ConfigJson, layers: &[usize]) -> Result<[i32; 2], LoadError> {
    let head_dim = config.size_or("head_dim", 256)?;
    // The heads of keys and values are the target's.
    let usual = HeadSizes { head_dim, n_kv: 1 };
    let named = |kind: usize| {
        let is_wanted = |at: usize| layers[at] == kind;
        config.heads_of_layers(layers.len(), is_wanted, usual)
    };
    let sliding = named(0)?.map_or(head_dim, |heads| heads.head_dim);
    let full = match named(1)? {
        Some(heads) => heads.head_dim,
        None => config.size_or("global_head_dim", 512)?,
    };
    Ok([sliding, full])
}

/// Refuses layers that are not built here.
fn check_layers(config: &ConfigJson) -> Result<(), LoadError> {
    config.check_word("hidden_activation", "gelu_pytorch_tanh")?;
    for key in ["attention_bias", "enable_moe_block", "hidden_size_per_layer_input"] {
        let found = config.optional::<Value>(key)?;
        let is_off = |value: &Value| *value == Value::Bool(false) || value.as_f64() == Some(0.0);
        if let Some(found) = found.filter(|value| !is_off(value)) {
            let what = format!("expected none, found {found}: no assistant has them");
            return Err(config.wrong(key, what).into());
        }
    }
    Ok(())
}

/// The kinds of the layers, all of which share keys and values.
fn layers(config: &ConfigJson) -> Result<Vec<usize>, LoadError> {
    let count = config.size("num_hidden_layers")?;
    config.check_most("num_hidden_layers", count, MOST_LAYERS)?;
    let shared: i32 = config.optional("num_kv_shared_layers")?.unwrap_or(0);
    if shared != 0 && shared != count {
        let what = format!("expected all {count} layers, found {shared}");
        return Err(config.wrong("num_kv_shared_layers", what).into());
    }
    let words: Vec<String> = config.required("layer_types")?;
    if words.len() != count as usize {
        let what = format!("expected one for each of {count} layers, found {}", words.len());
        return Err(config.wrong("layer_types", what).into());
    }
    let kind = |word: &String| {
        let known = KINDS.iter().position(|kind| kind == word);
        let unknown = || format!("expected {}, found {word}", KINDS.join(" or "));
        known.ok_or_else(|| LoadError::from(config.wrong("layer_types", unknown())))
    };
    words.iter().map(kind).collect()
}

fn clusters(config: &ConfigJson, vocab: i32) -> Result<Option<ClusterSizes>, LoadError> {
    if !config.optional("use_ordered_embeddings")?.unwrap_or(false) {
        return Ok(None);
    }
    let count = config.size_or("num_centroids", 2048)?;
    if vocab % count != 0 {
        let what = format!("expected a divisor of the vocabulary of {vocab}, found {count}");
        return Err(config.wrong("num_centroids", what).into());
    }
    let best = config.size_or("centroid_intermediate_top_k", 32)?;
    if best > count {
        let what = format!("expected at most the {count} clusters, found {best}");
        return Err(config.wrong("centroid_intermediate_top_k", what).into());
    }
    Ok(Some(ClusterSizes { count, best }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An edge assistant's, as published.
    fn base() -> Value {
        json!({
            "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
            "backbone_hidden_size": 1536, "use_ordered_embeddings": true, "num_centroids": 2048,
            "centroid_intermediate_top_k": 32, "tie_word_embeddings": true,
            "text_config": {
                "model_type": "gemma4_text", "hidden_size": 256, "num_hidden_layers": 4,
                "num_kv_shared_layers": 4, "num_attention_heads": 4, "head_dim": 256,
                "global_head_dim": 512, "intermediate_size": 2048, "vocab_size": 262144,
                "max_position_embeddings": 131072, "sliding_window": 512,
                "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
                "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                    "full_attention"],
            },
        })
    }

    fn read(changes: &Value) -> Result<Config, String> {
        let config = ConfigJson::changed(base(), changes);
        Config::read(&config).map_err(|error| paceline_vocabulary::chain(&error))
    }

    #[test]
    fn the_keys_of_the_text_model_and_of_the_head_are_read() {
        let config = read(&json!({})).expect("read");
        assert_eq!((config.hidden, config.target_hidden, config.window), (256, 1536, 512));
        assert_eq!((config.head_dims, config.layers), ([256, 512], vec![0, 0, 0, 1]));
        assert_eq!(config.clusters, Some(ClusterSizes { count: 2048, best: 32 }));
        let dense = read(&json!({"use_ordered_embeddings": false})).expect("read");
        assert_eq!((dense.clusters, dense.tied), (None, true));
        assert!(is_assistant(&ConfigJson::changed(base(), &json!({}))).expect("read"));
        let other = ConfigJson::changed(base(), &json!({"backbone_hidden_size": null}));
        assert!(!is_assistant(&other).expect("read"));
    }

    #[test]
    fn heads_may_be_named_layer_by_layer() {
        let by_layer = |layers: Value| json!({ "text_config": { "global_head_dim": null, "per_layer_config": layers } });
        let named = read(&by_layer(json!({"3": {"head_dim": 64, "num_key_value_heads": 1}})));
        assert_eq!(named.expect("read").head_dims, [256, 64]);
        let usual = read(&by_layer(json!({})));
        assert_eq!(usual.expect("read").head_dims, [256, 256]);
    }

    #[test]
    fn what_is_not_computed_is_named() {
        let text = |key: &str, value: Value| json!({ "text_config": { key: value } });
        for (changes, says) in [
            (json!({"num_centroids": 1000}), "num_centroids: expected a divisor"),
            (json!({"centroid_intermediate_top_k": 4096}), "at most the 2048 clusters"),
            (text("num_kv_shared_layers", 2.into()), "expected all 4 layers, found 2"),
            (text("layer_types", json!(["full_attention"])), "each of 4 layers, found 1"),
            (text("enable_moe_block", true.into()), "enable_moe_block: expected none"),
            (text("hidden_activation", "silu".into()), "gelu_pytorch_tanh, found silu"),
        ] {
            let found = read(&changes).expect_err(says);
            assert!(found.contains(says), "{found}");
        }
    }
}
