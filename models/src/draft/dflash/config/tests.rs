//! The shapes of published configs, and configs that are refused, by their messages.

use serde_json::{Value, json};

use super::*;

fn base() -> Value {
    json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 100,
        "max_position_embeddings": 512, "block_size": 16, "num_target_layers": 36,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 9, 17]},
    })
}

/// The base with `changes` laid over it, one level deep in `dflash_config`; null takes a key away.
fn read(changes: Value) -> Result<Config, LoadError> {
    super::read(&ConfigJson::changed(base(), &changes))
}

fn windows(changes: Value) -> Vec<(Option<i32>, bool)> {
    read(changes).expect("read").layers.iter().map(|one| (one.window, one.causal)).collect()
}

const FULL: (Option<i32>, bool) = (None, false);

#[test]
fn keys_are_found_where_publishers_put_them() {
    let plain = read(json!({})).expect("read");
    assert_eq!(
        (plain.block, plain.mask_id, plain.feature_layers.as_slice()),
        (16, 3, [1, 9, 17].as_slice())
    );
    assert_eq!(
        (plain.target_layers, plain.vocab, plain.logit_softcap, plain.embedding_scale),
        (Some(36), Some(100), None, None)
    );
    let inside = read(
        json!({"block_size": null, "dflash_config": {"block_size": 10, "input_embedding_scale": 2.0}}),
    );
    let inside = inside.expect("read");
    assert_eq!((inside.block, inside.embedding_scale), (10, Some(2.0)));
    assert!(plain.images, "a drafter takes images unless its config says otherwise");
    assert!(!read(json!({"dflash_config": {"serves_images": false}})).expect("read").images);
    assert_eq!(
        read(json!({"final_logit_softcapping": 30.0})).expect("read").logit_softcap,
        Some(30.0)
    );
    let flat = json!({"mask_token_id": 7, "target_layer_ids": [5, 2], "dflash_config": {"mask_token_id": null, "target_layer_ids": null}});
    let flat = read(flat).expect("read");
    assert_eq!((flat.mask_id, flat.feature_layers.as_slice()), (7, [5, 2].as_slice()));
    assert!(read(json!({"architectures": null})).is_ok());
    assert!(read(json!({"num_target_layers": null, "vocab_size": null})).is_ok());
    assert!(
        read(json!({"dflash_config": {"attention_sink_bias": false, "markov_rank": 0}})).is_ok()
    );
}

#[test]
fn the_drafter_of_hunyuanocr_is_plain() {
    // As the vendor's training code has it: `train/dflash_draft.py` of Tencent-Hunyuan/HunyuanOCR.
    let read = read(json!({
        "hidden_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3584, "vocab_size": 120_818, "max_position_embeddings": 32_768, "num_target_layers": 24,
        "dflash_config": {"mask_token_id": 120_817, "target_layer_ids": [1, 8, 15, 22]},
    }));
    let read = read.expect("read");
    assert_eq!((read.block, read.mask_id, read.target_layers), (16, 120_817, Some(24)));
    assert_eq!(read.feature_layers, [1, 8, 15, 22]);
    assert!(read.images && read.layers.iter().all(|one| (one.window, one.causal) == FULL));
}

#[test]
fn feature_layers_are_derived_as_published() {
    let feature_layers = |layers: i32, target: i32| {
        let changes = json!({"num_hidden_layers": layers, "num_target_layers": target, "dflash_config": {"target_layer_ids": null}});
        read(changes).expect("read").feature_layers
    };
    assert_eq!(feature_layers(5, 36), [1, 9, 17, 25, 33]);
    assert_eq!(feature_layers(5, 32), [1, 8, 15, 22, 29]);
    assert_eq!(feature_layers(5, 64), [1, 16, 31, 46, 61]);
    assert_eq!(feature_layers(8, 40), [1, 6, 11, 16, 22, 27, 32, 37]);
    assert_eq!(feature_layers(3, 9), [1, 4, 6], "halves go to the even number: 3.5 is 4");
    assert_eq!(feature_layers(1, 9), [4]);
    assert!(
        read(json!({"num_target_layers": null, "dflash_config": {"target_layer_ids": null}}))
            .is_err()
    );
}

#[test]
fn each_layer_has_the_window_of_its_config() {
    let types = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    assert_eq!(windows(json!({})), [FULL; 3]);
    assert_eq!(
        windows(json!({"layer_types": types, "sliding_window": 8})),
        [(Some(8), true), (Some(8), true), FULL]
    );
    // Words of is_causal go before dflash_config.causal, which go before the layer's type.
    let both = |causal: bool| json!({"layer_types": types, "sliding_window": 8, "dflash_config": {"causal": causal}});
    assert_eq!(windows(both(false)), [(Some(8), false), (Some(8), false), FULL]);
    assert_eq!(windows(both(true)), [(Some(8), true), (Some(8), true), (None, true)]);
    let mut over = both(true);
    over["is_causal"] = json!(false);
    assert_eq!(windows(over), [(Some(8), false), (Some(8), false), FULL]);
    // use_swa: a window on every layer, both ways, unless the types name sliding ones.
    let swa = json!({"use_swa": true, "swa_window_size": 12});
    assert_eq!(windows(json!({"dflash_config": swa})), [(Some(12), false); 3]);
    let mixed = json!({"layer_types": types, "sliding_window": 8, "dflash_config": swa});
    assert_eq!(windows(mixed), [(Some(8), true), (Some(8), true), FULL]);
    assert_eq!(windows(json!({"layer_types": types, "dflash_config": swa}))[0], (Some(12), true));
    // Qwen3's own keys; a window that no key applies is none.
    let qwen = json!({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 9});
    assert_eq!(windows(qwen), [FULL, (Some(9), true), (Some(9), true)]);
    assert_eq!(windows(json!({"use_sliding_window": false, "sliding_window": 9})), [FULL; 3]);
}

#[test]
fn what_is_not_served_is_named() {
    let refused = |changes: Value, expected: &str| {
        let error = paceline_vocabulary::chain(&read(changes.clone()).expect_err(expected));
        assert!(error.contains(expected), "{changes}: {error}");
    };
    refused(
        json!({"architectures": ["DFlash2DraftModel"]}),
        "found [\"DFlash2DraftModel\"] with model_type \"qwen3\"",
    );
    refused(json!({"architectures": ["LlamaForCausalLMEagle3"]}), "serves no such drafter");
    refused(json!({"dflash_config": {"selector_rank": 256}}), "DFlash 2");
    refused(json!({"dflash_config": {"markov_rank": 64}}), "DSpark");
    refused(json!({"dflash_config": {"mask_token_id": null}}), "mask_token_id");
    refused(json!({"dflash_config": {"mask_token_id": -1}}), "mask_token_id");
    refused(json!({"dflash_config": {"attention_sink_bias": true}}), "attention_sink_bias");
    refused(json!({"dflash_config": {"target_layer_ids": [1, 36]}}), "below 36");
    refused(json!({"dflash_config": {"target_layer_ids": []}}), "1 to 256");
    refused(json!({"dflash_config": {"target_layer_ids": [-1]}}), "target_layer_ids");
    refused(json!({"block_size": null}), "block_size");
    refused(json!({"block_size": 1}), "found 1");
    refused(json!({"layer_types": ["full_attention"]}), "3 layers, found 1");
    refused(
        json!({"layer_types": ["full_attention", "full_attention", "linear_attention"]}),
        "linear_attention",
    );
    refused(
        json!({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
        "sliding_window",
    );
    refused(json!({"dflash_config": {"use_swa": true}}), "sliding_window");
    refused(json!({"hidden_act": "gelu"}), "expected silu");
    refused(json!({"rope_is_neox_style": false}), "split-half");
    refused(json!({"num_key_value_heads": 3}), "divisor");
    refused(json!({"final_logit_softcapping": 0.0}), "above 0");
}
