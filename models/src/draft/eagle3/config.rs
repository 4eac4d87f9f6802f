//! config.json of an EAGLE-3 drafter in the speculators layout: the layer's config lies in
//! `transformer_layer_config`. What would be computed wrongly is refused here, with what was found.

use paceline_checkpoint::families::Sizes;
use serde::Deserialize;

use crate::load::{ConfigJson, LoadError};

/// Rows of the longest block if the config names no number of drafts: the depth to which the
/// published drafters were trained, with the bonus token.
const USUAL_BLOCK: i32 = 8;
/// Rows that a block may have at most; the link allows no more.
const MOST_ROWS: i64 = 64;

/// Sizes and rules of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden_size: i32,
    /// Width of one layer's hidden states of the target.
    pub(super) target_hidden_size: i32,
    pub(super) n_heads: i32,
    pub(super) n_kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) intermediate_size: i32,
    /// Ids of the target, each with an embedding here.
    pub(super) vocab: i32,
    /// Ids that can be proposed.
    pub(super) draft_vocab: i32,
    pub(super) context: i32,
    pub(super) rms_norm_eps: f32,
    pub(super) attention_bias: bool,
    pub(super) mlp_bias: bool,
    /// Queries and keys are normed per head before they are rotated.
    pub(super) head_norms: bool,
    /// The residual starts from the normed hidden state.
    pub(super) norm_before_residual: bool,
    /// How the hidden states are normed before they are projected.
    pub(super) feature_norm: FeatureNorm,
    /// A draft's row reads the output of the row before after the final norm (EAGLE 3.1).
    pub(super) norm_output: bool,
    pub(super) block: i32,
    /// Target layers whose output is read.
    pub(super) feature_layers: Vec<usize>,
}

/// Norms of the target's hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeatureNorm {
    None,
    /// One of all layers' side by side (`norm_before_fc`).
    Whole,
    /// One of each layer's (`fc_norm`).
    Each,
}

/// One of `speculators_config.proposal_methods`.
#[derive(Deserialize)]
struct ProposalMethod {
    speculative_tokens: Option<i64>,
}

impl Config {
    /// Sizes of the layer, as those of a model of one layer.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            hidden_size: self.hidden_size,
            n_layers: 1,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab,
            context: self.context,
            rms_norm_eps: self.rms_norm_eps,
            tie_word_embeddings: false,
            window: None,
        }
    }

    /// Whether a config.json is that of an EAGLE-3 drafter in the speculators layout.
    pub(super) fn is_eagle3(config: &ConfigJson) -> Result<bool, LoadError> {
        let name: Option<String> = config.optional("speculators_model_type")?;
        Ok(name.as_deref() == Some("eagle3"))
    }

    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        if !Self::is_eagle3(config)? {
            let found: Option<String> = config.optional("speculators_model_type")?;
            let what = format!(
                "expected eagle3, found {found:?}: of EAGLE drafters this version serves EAGLE-3 in \
                 the speculators layout; convert the checkpoint with the speculators package"
            );
            return Err(config.wrong("speculators_model_type", what).into());
        }
        let layer = layer_config(config)?;
        let (hidden_size, n_heads) =
            (layer.size("hidden_size")?, layer.size("num_attention_heads")?);
        let vocab = layer.size("vocab_size")?;
        let read = Self {
            hidden_size,
            target_hidden_size: config.size_or("target_hidden_size", hidden_size)?,
            n_heads,
            n_kv_heads: layer.size_or("num_key_value_heads", n_heads)?,
            head_dim: layer.size_or("head_dim", (hidden_size / n_heads).max(1))?,
            intermediate_size: layer.size("intermediate_size")?,
            vocab,
            draft_vocab: config.size_or("draft_vocab_size", vocab)?,
            context: layer.context()?.positions,
            rms_norm_eps: layer.optional("rms_norm_eps")?.unwrap_or(1e-6),
            attention_bias: layer.optional("attention_bias")?.unwrap_or(false),
            mlp_bias: layer.optional("mlp_bias")?.unwrap_or(false),
            head_norms: layer.required::<String>("model_type")? == "qwen3",
            norm_before_residual: config.optional("norm_before_residual")?.unwrap_or(false),
            feature_norm: feature_norm(config)?,
            norm_output: config.optional("norm_output")?.unwrap_or(false),
            block: block(config)?,
            feature_layers: feature_layers(config)?,
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {n_heads} heads and an even head_dim, found {} and {}",
                read.n_kv_heads, read.head_dim
            );
            return Err(layer.wrong("num_key_value_heads", what).into());
        }
        layer.check_heads("num_attention_heads", n_heads, read.head_dim)?;
        if read.draft_vocab > vocab {
            let what =
                format!("expected at most the vocabulary, {vocab}, found {}", read.draft_vocab);
            return Err(config.wrong("draft_vocab_size", what).into());
        }
        Ok(read)
    }
}

/// The config of the one layer, after a check that it is one that is built here.
pub(super) fn layer_config(config: &ConfigJson) -> Result<ConfigJson, LoadError> {
    let key = "transformer_layer_config";
    let missing = || config.wrong(key, "expected the layer's config, found none".into());
    let layer = config.part(key)?.ok_or_else(missing)?;
    let model_type: String = layer.required("model_type")?;
    if !["llama", "qwen3"].contains(&model_type.as_str()) {
        let what = format!("expected llama or qwen3, found {model_type}");
        return Err(layer.wrong("model_type", what).into());
    }
    let n_layers = layer.size("num_hidden_layers")?;
    if n_layers != 1 {
        let what = format!("expected 1, as EAGLE-3 is published, found {n_layers}");
        return Err(layer.wrong("num_hidden_layers", what).into());
    }
    layer.check_word("hidden_act", "silu")?;
    let types: Vec<String> = layer.optional("layer_types")?.unwrap_or_default();
    let slides = layer.optional("use_sliding_window")?.unwrap_or(false);
    if slides || types.iter().any(|name| name != "full_attention") {
        let what = format!("expected full attention, found {types:?}, use_sliding_window {slides}");
        return Err(layer.wrong("layer_types", what).into());
    }
    Ok(layer)
}

fn feature_norm(config: &ConfigJson) -> Result<FeatureNorm, LoadError> {
    let [whole, each] = ["norm_before_fc", "fc_norm"].map(|key| config.optional::<bool>(key));
    match (whole?.unwrap_or(false), each?.unwrap_or(false)) {
        (false, false) => Ok(FeatureNorm::None),
        (true, false) => Ok(FeatureNorm::Whole),
        (false, true) => Ok(FeatureNorm::Each),
        (true, true) => Err(config
            .wrong("fc_norm", "expected false beside norm_before_fc, found true".into())
            .into()),
    }
}

/// Drafts of the first proposal method, and the bonus token's row.
fn block(config: &ConfigJson) -> Result<i32, LoadError> {
    let Some(speculators) = config.part("speculators_config")? else { return Ok(USUAL_BLOCK) };
    let methods: Vec<ProposalMethod> =
        speculators.optional("proposal_methods")?.unwrap_or_default();
    match methods.iter().find_map(|method| method.speculative_tokens) {
        None => Ok(USUAL_BLOCK),
        Some(drafts) if (1..MOST_ROWS).contains(&drafts) => Ok(drafts as i32 + 1),
        Some(drafts) => {
            let what = format!("expected 1 to {}, found {drafts}", MOST_ROWS - 1);
            Err(speculators.wrong("proposal_methods.speculative_tokens", what).into())
        }
    }
}

/// The layout numbers a hidden state by the layer that it enters: id j is the output of layer j − 1.
fn feature_layers(config: &ConfigJson) -> Result<Vec<usize>, LoadError> {
    let key = "eagle_aux_hidden_state_layer_ids";
    let Some(ids) = config.optional::<Vec<i64>>(key)? else {
        let what = "expected the target layers that the hidden states enter, found none; add the \
                    list that it was trained with (usually 2, half of the target's layers, and all \
                    but 3)";
        return Err(config.wrong(key, what.into()).into());
    };
    let fits = |id: &i64| (1..=1 << 16).contains(id);
    if ids.is_empty() || ids.len() > 256 || !ids.iter().all(fits) {
        let what = format!("expected 1 to 256 layers from 1 up, found {ids:?}");
        return Err(config.wrong(key, what).into());
    }
    Ok(ids.iter().map(|id| *id as usize - 1).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn usual() -> Value {
        json!({
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "draft_vocab_size": 48, "norm_before_residual": true,
            "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
            "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
            "transformer_layer_config": {
                "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 96,
                "num_hidden_layers": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-5
            }
        })
    }

    fn read(change: impl Fn(&mut Value)) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut config = usual();
        change(&mut config);
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
        let config = ConfigJson::read(dir.path()).expect("an object");
        Config::read(&config).map_err(|error| paceline_vocabulary::chain(&error))
    }

    #[test]
    fn sizes_come_from_the_layer_and_rules_from_the_top() {
        let found = read(|_| {}).expect("read");
        assert_eq!((found.hidden_size, found.target_hidden_size, found.head_dim), (32, 32, 8));
        assert_eq!((found.vocab, found.draft_vocab, found.block), (96, 48, 6));
        assert_eq!(found.feature_layers, [1, 15, 28], "id j enters layer j");
        assert!(found.norm_before_residual && !found.norm_output && !found.head_norms);
        let bare = read(|config| {
            let top = config.as_object_mut().expect("an object");
            top.retain(|key, _| {
                !["speculators_config", "draft_vocab_size"].contains(&key.as_str())
            });
            top.insert("target_hidden_size".into(), 40.into());
        });
        let bare = bare.expect("read");
        assert_eq!((bare.block, bare.draft_vocab, bare.target_hidden_size), (8, 96, 40));
    }

    #[test]
    fn what_is_not_built_is_refused_with_what_was_found() {
        let layer = |key: &'static str, value: Value| {
            move |config: &mut Value| config["transformer_layer_config"][key] = value.clone()
        };
        let top =
            |key: &'static str, value: Value| move |config: &mut Value| config[key] = value.clone();
        let refused = |found: Result<Config, String>, says: &str| {
            let error = found.expect_err(says);
            assert!(error.contains(says), "{error}");
        };
        refused(read(top("speculators_model_type", "eagle".into())), "expected eagle3, found Some");
        refused(read(top("transformer_layer_config", Value::Null)), "expected the layer's config");
        refused(
            read(layer("model_type", "gpt_oss".into())),
            "expected llama or qwen3, found gpt_oss",
        );
        refused(read(layer("num_hidden_layers", 2.into())), "num_hidden_layers: expected 1");
        refused(read(layer("hidden_act", "gelu".into())), "expected silu, found gelu");
        refused(read(layer("use_sliding_window", true.into())), "expected full attention");
        refused(read(layer("num_key_value_heads", 3.into())), "expected a divisor of 4 heads");
        refused(read(top("draft_vocab_size", 97.into())), "at most the vocabulary, 96, found 97");
        let both = read(|config| {
            config["norm_before_fc"] = true.into();
            config["fc_norm"] = true.into();
        });
        refused(both, "expected false beside norm_before_fc");
        refused(read(top("eagle_aux_hidden_state_layer_ids", Value::Null)), "add the list");
        refused(read(top("eagle_aux_hidden_state_layer_ids", json!([0, 2]))), "from 1 up");
        let methods = json!({"proposal_methods": [{"speculative_tokens": 64}]});
        refused(read(top("speculators_config", methods)), "expected 1 to 63, found 64");
    }
}
