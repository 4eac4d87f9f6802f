//! Both layouts' shapes, and configs that are refused, by their messages.

use serde_json::{Value, json};

use super::*;

fn layers() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 100,
        "max_position_embeddings": 512,
    })
}

/// DeepSeek's layout: all keys at the top.
fn flat() -> Value {
    let mut config = layers();
    let more = json!({
        "architectures": ["Qwen3DSparkModel"], "block_size": 7, "mask_token_id": 3,
        "target_layer_ids": [1, 9, 17], "markov_rank": 6, "enable_confidence_head": true,
    });
    let more = more.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(more);
    config
}

fn speculators() -> Value {
    let mut layers = layers();
    layers["layer_types"] = json!(["sliding_attention", "full_attention"]);
    layers["sliding_window"] = json!(9);
    json!({
        "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark",
        "transformer_layer_config": layers, "draft_vocab_size": 40, "block_size": 7,
        "aux_hidden_state_layer_ids": [2, 10, 18], "mask_token_id": 3, "markov_rank": 6,
    })
}

/// Gemma's: the keys of its target's text, also those that its layers do not use.
fn gemma() -> Value {
    let mut config = flat();
    let more = json!({
        "architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "head_dim": 8,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "num_key_value_heads": 2,
        "attention_k_eq_v": true, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 24,
        "layer_types": ["full_attention", "full_attention"], "final_logit_softcapping": 30.0,
        "enable_moe_block": false, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    });
    config.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
    config
}

fn read(config: Value, changes: &Value) -> Result<Config, LoadError> {
    Config::read(&ConfigJson::changed(config, changes))
}

fn block(config: Value, changes: Value) -> (i32, bool) {
    let read = read(config, &changes).expect("read").backbone;
    (read.block, read.bonus_proposes)
}

#[test]
fn both_layouts_are_read() {
    let [flat, nested] = [flat(), speculators()].map(|config| read(config, &json!({})));
    let (flat, nested) = (flat.expect("read"), nested.expect("read"));
    assert_eq!(flat.backbone.feature_layers, [1, 9, 17]);
    assert_eq!(nested.backbone.feature_layers, [1, 9, 17], "stored one higher");
    assert_eq!((flat.vocab, flat.draft_vocab, flat.rank), (100, 100, 6));
    assert_eq!((nested.vocab, nested.draft_vocab, nested.rank), (100, 40, 6));
    assert_eq!((flat.confidence, nested.confidence), (Some(true), None));
    let causal = |config: &Config| -> Vec<bool> {
        config.backbone.layers.iter().map(|layer| layer.causal).collect()
    };
    assert_eq!(causal(&nested), [true, false]);
    let both_ways = read(speculators(), &json!({"sliding_window_non_causal": true}));
    assert_eq!(causal(&both_ways.expect("read")), [false, false]);
    let flat_ids = json!({"aux_hidden_state_layer_ids": null, "target_layer_ids": [2, 10, 18]});
    let flat_ids = read(speculators(), &flat_ids).expect("read");
    assert_eq!(flat_ids.backbone.feature_layers, [1, 9, 17]);
}

#[test]
fn gemma_s_layers_have_the_sizes_of_full_ones() {
    let config = read(gemma(), &json!({})).expect("read").backbone;
    assert_eq!(config.form, LayerForm::Gemma4 { k_eq_v: true });
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (2, 1, 32));
    assert_eq!((config.logit_softcap, config.block), (Some(30.0), 8));
    assert!(config.layers.iter().all(|layer| layer.window.is_none() && !layer.causal));
    let with_values = read(gemma(), &json!({"attention_k_eq_v": false})).expect("read").backbone;
    assert_eq!(with_values.form, LayerForm::Gemma4 { k_eq_v: false });
    assert_eq!(with_values.n_kv_heads, 2, "the global number is for keys that are values");
}

#[test]
fn a_block_has_the_bonus_token_and_the_proposals() {
    assert_eq!(block(flat(), json!({})), (8, true));
    assert_eq!(block(flat(), json!({"dspark_bonus_anchor": true})), (7, true));
    assert_eq!(block(flat(), json!({"sample_from_anchor": false})), (8, false));
    assert_eq!(block(speculators(), json!({})), (8, true));
    assert_eq!(block(speculators(), json!({"sample_from_anchor": false})), (7, false));
    assert_eq!(block(flat(), json!({"block_size": 1})), (2, true));
}

#[test]
fn what_is_not_served_is_named() {
    let refused = |config: Value, changes: Value, expected: &str| {
        let error = paceline_vocabulary::chain(&read(config, &changes).expect_err(expected));
        assert!(error.contains(expected), "{changes}: {error}");
    };
    refused(flat(), json!({"architectures": ["Other"], "markov_rank": null}), "found [\"Other\"]");
    refused(flat(), json!({"architectures": ["LlamaDSparkModel"]}), "found LlamaDSparkModel");
    let sliding = json!({"layer_types": ["sliding_attention", "full_attention"]});
    refused(gemma(), sliding, "full_attention alone, found sliding_attention");
    refused(gemma(), json!({"enable_moe_block": true}), "expected none, found true");
    refused(gemma(), json!({"hidden_size_per_layer_input": 64}), "expected none, found 64");
    refused(gemma(), json!({"hidden_activation": "silu"}), "gelu_pytorch_tanh, found silu");
    refused(gemma(), json!({"global_head_dim": null}), "global_head_dim");
    refused(flat(), json!({"markov_head_type": "gated"}), "expected vanilla, found gated");
    refused(flat(), json!({"markov_rank": -1}), "markov_rank");
    refused(flat(), json!({"rope_is_neox_style": false}), "split-half");
    refused(flat(), json!({"mask_token_id": null}), "mask_token_id");
    refused(speculators(), json!({"speculators_model_type": "xpress"}), "found xpress");
    refused(speculators(), json!({"draft_vocab_size": 101}), "at most 100, found 101");
    refused(speculators(), json!({"aux_hidden_state_layer_ids": [0, 3]}), "from 1 on");
    refused(speculators(), json!({"block_size": 0}), "found 0");
}
