//! Drafters that read token ids, for the models with a vision tower: the text model of the demo, and
//! heads of random weights.

use std::path::Path;

use serde_json::{Value, json};

use crate::images::hybrid_model;
use crate::model::{Weights, random_checkpoint};
use crate::repository;

/// Sizes of a head's one layer.
struct Sizes {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head: usize,
    inner: usize,
}

/// Writes the text model of the demo with a vision tower into `dir`, as a Qwen3 of its own: a
/// drafter of kind `model` that knows the answers and cannot see.
///
/// # Panics
/// It cannot be written.
pub fn text_of_demo(dir: &Path) {
    let target = repository().join("demo/vision/target");
    let mut config = config_of(&target)["text_config"].clone();
    config["model_type"] = "qwen3".into();
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    config["tie_word_embeddings"] = true.into();
    config["rope_parameters"] = Value::Null;
    config["rope_theta"] = 10_000.0.into();
    let weights = Weights::read(&target.join("model.safetensors"));
    let text = weights.kept(|name| !name.contains("visual"));
    let text = text.renamed(|name| name.replace("language_model.", ""));
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("model.safetensors"), text.bytes()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(target.join(file), dir.join(file)).unwrap();
    }
}

/// Writes an EAGLE-3 head of random weights for the demo with a vision tower into `dir`. It turns by
/// the positions of images.
///
/// # Panics
/// It cannot be written.
pub fn eagle3_of_demo(dir: &Path) {
    let sizes = Sizes { hidden: 192, heads: 4, kv_heads: 2, head: 64, inner: 64 };
    let (hidden, vocab) = (sizes.hidden, 640);
    let layer = json!({
        "model_type": "llama", "hidden_size": hidden, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head,
        "intermediate_size": sizes.inner, "vocab_size": vocab, "num_hidden_layers": 1,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "mrope_interleaved": true,
            "mrope_section": [12, 10, 10],
        },
    });
    let config = json!({
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "draft_vocab_size": vocab, "eagle_aux_hidden_state_layer_ids": [1, 3],
        "transformer_layer_config": layer, "norm_before_residual": false, "norm_before_fc": false,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": null, "architectures": ["Qwen3VLForConditionalGeneration"]},
        },
    });
    let mut tensors = layer_tensors("layers.0.", &sizes, 2 * hidden, 1);
    let own: [(&str, &[usize]); 5] = [
        ("embed_tokens", &[vocab, hidden]),
        ("lm_head", &[vocab, hidden]),
        ("fc", &[hidden, 2 * hidden]),
        ("norm", &[hidden]),
        ("layers.0.hidden_norm", &[hidden]),
    ];
    tensors.extend(own.map(|(name, shape)| (format!("{name}.weight"), shape.to_vec())));
    random_checkpoint(dir, &config, &tensors);
}

/// Writes a head of kind `mtp` of random weights, in a folder of its own, for the tiny Qwen3.5 with a
/// vision tower.
///
/// # Panics
/// It cannot be written.
pub fn mtp_of_hybrid(dir: &Path) {
    let sizes = Sizes { hidden: 32, heads: 4, kv_heads: 2, head: 32, inner: 48 };
    let hidden = sizes.hidden;
    let mut config = config_of(&hybrid_model());
    config["text_config"]["mtp_num_hidden_layers"] = 1.into();
    // Its queries come with gates, as many as there are numbers in them.
    let mut tensors = layer_tensors("mtp.layers.0.", &sizes, hidden, 2);
    let own: [(&str, &[usize]); 6] = [
        ("fc", &[hidden, 2 * hidden]),
        ("pre_fc_norm_embedding", &[hidden]),
        ("pre_fc_norm_hidden", &[hidden]),
        ("norm", &[hidden]),
        ("layers.0.self_attn.q_norm", &[sizes.head]),
        ("layers.0.self_attn.k_norm", &[sizes.head]),
    ];
    tensors.extend(own.map(|(name, shape)| (format!("mtp.{name}.weight"), shape.to_vec())));
    random_checkpoint(dir, &config, &tensors);
}

/// Tensors of a layer that attends. `input`: width of what it attends with; `queries`: times as many
/// rows of queries as its heads have numbers.
fn layer_tensors(
    prefix: &str,
    sizes: &Sizes,
    input: usize,
    queries: usize,
) -> Vec<(String, Vec<usize>)> {
    let Sizes { hidden, heads, kv_heads, head, inner } = *sizes;
    let tensors: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[hidden]),
        ("post_attention_layernorm", &[hidden]),
        ("self_attn.q_proj", &[queries * heads * head, input]),
        ("self_attn.k_proj", &[kv_heads * head, input]),
        ("self_attn.v_proj", &[kv_heads * head, input]),
        ("self_attn.o_proj", &[hidden, heads * head]),
        ("mlp.gate_proj", &[inner, hidden]),
        ("mlp.up_proj", &[inner, hidden]),
        ("mlp.down_proj", &[hidden, inner]),
    ];
    tensors.map(|(name, shape)| (format!("{prefix}{name}.weight"), shape.to_vec())).to_vec()
}

fn config_of(model: &Path) -> Value {
    let text = std::fs::read(model.join("config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}
