//! The config.json of a GGUF file: the keys that transformers writes for the architecture.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::notes::Notes;
use super::rope;
use super::weights;
use crate::error::FormatError;
use crate::gguf::{self, BlockType, Gguf, Metadata};

/// One of this many layers of a Gemma 3 attends to all rows, if the file does not say it.
const GEMMA_PATTERN: u64 = 6;
/// Base of the frequencies of Gemma 3's layers with a window, if the file does not say it.
const GEMMA_LOCAL_BASE: f64 = 10_000.0;
/// Layers of the Gemma 3 that scales its queries by the width of the model over its heads. The others
/// scale by the width of a head.
const GEMMA_27B_LAYERS: u64 = 62;
/// One of this many layers of a SmolLM3 does not rotate.
const SMOLLM3_INTERVAL: u64 = 4;
/// Most layers of a model: a list of any number of layers could be larger than memory.
const MOST_LAYERS: u64 = 4_096;

/// The configuration without the ids of tokens.
pub(super) fn config(
    gguf: &Gguf<'_>,
    architecture: &Architecture<'_>,
    notes: &mut Notes<'_>,
) -> Result<Map<String, Value>, FormatError> {
    let (heads, kv_heads) = (architecture.heads()?, architecture.kv_heads()?);
    let (hidden, layers) = (architecture.count("embedding_length")?, layers(architecture)?);
    let head_dim = head_dim(architecture, hidden, heads)?;
    let (vocabulary, _) = weights::embedding(gguf)?;
    let epsilon = architecture.metadata;
    let epsilon = epsilon.float(&architecture.key("attention.layer_norm_rms_epsilon"))?;
    let config = json!({
        "architectures": [architecture.class()],
        "model_type": architecture.model_type(),
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": architecture.for_all_layers("feed_forward_length")?,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": architecture.count("context_length")?,
        "rms_norm_eps": epsilon,
        "rope_theta": rope::base(architecture)?,
        "rope_scaling": rope::scaling(gguf, architecture, head_dim, notes)?,
        "tie_word_embeddings": weights::is_tied(gguf),
        "gguf_type": most_used(gguf),
    });
    let Value::Object(mut config) = config else { return Ok(Map::new()) };
    let own = match architecture.name {
        "gemma3" => gemma3(architecture, notes, [layers, hidden, heads, head_dim], &mut config)?,
        "qwen3moe" => qwen3_moe(architecture, notes, &mut config)?,
        "smollm3" => smollm3(gguf, notes, layers, &mut config),
        "llama" => llama(gguf, notes, &mut config),
        "qwen2" => json!({ "hidden_act": "silu", "use_sliding_window": false }),
        _ => json!({ "hidden_act": "silu", "attention_bias": false, "use_sliding_window": false }),
    };
    if let Value::Object(own) = own {
        config.extend(own);
    }
    Ok(config)
}

/// Layers of the model.
pub(super) fn layers(architecture: &Architecture<'_>) -> Result<u64, FormatError> {
    const NAME: &str = "block_count";
    match architecture.count(NAME)? {
        layers @ 1..=MOST_LAYERS => Ok(layers),
        found => {
            Err(gguf::error(&architecture.key(NAME), format!("1 to {MOST_LAYERS} layers"), found))
        }
    }
}

/// Numbers of a head, all of which rotate.
fn head_dim(architecture: &Architecture<'_>, hidden: u64, heads: u64) -> Result<u64, FormatError> {
    let stated = architecture.optional("attention.key_length", Metadata::count)?;
    let head_dim = stated.unwrap_or(hidden / heads);
    for name in ["attention.value_length", "rope.dimension_count"] {
        let found = architecture.optional(name, Metadata::count)?;
        if let Some(found) = found.filter(|found| *found != head_dim) {
            let expected = format!("{head_dim}, as many as a key has");
            return Err(gguf::error(&architecture.key(name), expected, found));
        }
    }
    Ok(head_dim)
}

/// Whether a layer has a bias in one of these roles.
fn has_bias(gguf: &Gguf<'_>, roles: [&str; 2]) -> bool {
    let is_bias = |name: &str| roles.iter().any(|role| name.ends_with(&format!(".{role}.bias")));
    gguf.tensors.iter().any(|tensor| is_bias(tensor.name))
}

/// The type that has most of the model's numbers.
pub(super) fn most_used(gguf: &Gguf<'_>) -> &'static str {
    let numbers = |kind: BlockType| -> u64 {
        let same = gguf.tensors.iter().filter(|tensor| tensor.kind == kind);
        same.map(|tensor| tensor.bytes / kind.bytes() * kind.values()).sum()
    };
    let most = BlockType::ALL.into_iter().max_by_key(|kind| numbers(*kind));
    most.map_or("", BlockType::name)
}

/// Keys of a Llama, or of a Mistral, whose files are alike.
fn llama(gguf: &Gguf<'_>, notes: &mut Notes<'_>, config: &mut Map<String, Value>) -> Value {
    const WINDOW: &str = "sliding_window";
    let named = ["general.name", "general.basename"].iter().any(|key| {
        let name = gguf.metadata.text(key).unwrap_or_default();
        name.to_ascii_lowercase().contains("mistral")
    });
    if notes.given("model_type").is_some_and(|given| given == "mistral") {
        config.insert("model_type".to_owned(), "mistral".into());
        config.insert("architectures".to_owned(), json!(["MistralForCausalLM"]));
        config.insert(WINDOW.to_owned(), notes.given(WINDOW).cloned().unwrap_or_default());
    } else if named && !notes.has_config() {
        notes.sentences.push(
            "the file does not say whether rows of this Mistral attend to a window: none is assumed; \
             a config.json of the original model beside it would be read"
                .to_owned(),
        );
    }
    json!({
        "hidden_act": "silu",
        "attention_bias": has_bias(gguf, ["attn_q", "attn_output"]),
        "mlp_bias": has_bias(gguf, ["ffn_gate", "ffn_down"]),
    })
}

fn smollm3(
    gguf: &Gguf<'_>,
    notes: &mut Notes<'_>,
    layers: u64,
    config: &mut Map<String, Value>,
) -> Value {
    let rotates = |layer: u64| u8::from(!layer.is_multiple_of(SMOLLM3_INTERVAL));
    let assumed: Vec<u8> = (1..=layers).map(rotates).collect();
    notes.settle(config, "no_rope_layers", json!(assumed));
    json!({
        "hidden_act": "silu",
        "attention_bias": has_bias(gguf, ["attn_q", "attn_output"]),
        "mlp_bias": has_bias(gguf, ["ffn_gate", "ffn_down"]),
        "use_sliding_window": false,
    })
}

fn qwen3_moe(
    architecture: &Architecture<'_>,
    notes: &mut Notes<'_>,
    config: &mut Map<String, Value>,
) -> Result<Value, FormatError> {
    notes.settle(config, "norm_topk_prob", true.into());
    Ok(json!({
        "hidden_act": "silu",
        "attention_bias": false,
        "use_sliding_window": false,
        "num_experts": architecture.count("expert_count")?,
        "num_experts_per_tok": architecture.count("expert_used_count")?,
        "moe_intermediate_size": architecture.count("expert_feed_forward_length")?,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }))
}

/// Keys of a Gemma 3, with its layers, its width, its heads and the numbers of a head.
fn gemma3(
    architecture: &Architecture<'_>,
    notes: &mut Notes<'_>,
    [layers, hidden, heads, head_dim]: [u64; 4],
    config: &mut Map<String, Value>,
) -> Result<Value, FormatError> {
    let scalar = if layers == GEMMA_27B_LAYERS { hidden / heads } else { head_dim };
    notes.settle(config, "query_pre_attn_scalar", scalar.into());
    let local_base = architecture.optional("rope.freq_base_swa", Metadata::float)?;
    let kinds: Vec<&str> = attends_locally(architecture, layers)?
        .into_iter()
        .map(|is_local| if is_local { "sliding_attention" } else { "full_attention" })
        .collect();
    Ok(json!({
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "attn_logit_softcapping": null,
        "final_logit_softcapping": null,
        "layer_types": kinds,
        "sliding_window": architecture.count("attention.sliding_window")?,
        "rope_local_base_freq": local_base.unwrap_or(GEMMA_LOCAL_BASE),
        "use_bidirectional_attention": false,
    }))
}

/// For each layer whether its rows attend to a window.
fn attends_locally(architecture: &Architecture<'_>, layers: u64) -> Result<Vec<bool>, FormatError> {
    const NAME: &str = "attention.sliding_window_pattern";
    let key = architecture.key(NAME);
    if let Ok(flags) = architecture.metadata.flags(&key) {
        return match flags.len() as u64 == layers {
            true => Ok(flags),
            false => Err(gguf::error(&key, format!("{layers} truth values"), flags.len())),
        };
    }
    let pattern = architecture.optional(NAME, Metadata::count)?.unwrap_or(GEMMA_PATTERN);
    // No number is a multiple of 0: all layers have a window.
    Ok((1..=layers).map(|layer| !layer.is_multiple_of(pattern)).collect())
}
