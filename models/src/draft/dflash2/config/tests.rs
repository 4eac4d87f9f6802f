//! The published config's shape, and configs that are refused, by their messages.

use serde_json::{Value, json};

use super::*;

/// The published shape with `changes` laid over it, one level deep in `dflash_config`; null takes a
/// key away.
fn read(changes: &Value) -> Result<Config, LoadError> {
    let config = json!({
        "architectures": [ARCHITECTURE], "model_type": "qwen3", "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 48, "vocab_size": 100, "max_position_embeddings": 512,
        "num_target_layers": 36, "is_causal": false, "sliding_window": 9,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "dflash_config": {
            "block_size": 8, "mask_token_id": 3, "target_layer_ids": [1, 9, 17],
            "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 6, "selector_top_k": 4,
        },
    });
    Config::read(&ConfigJson::changed(config, changes))
}

#[test]
fn the_published_shape_is_read() {
    let plain = read(&json!({})).expect("read");
    assert_eq!((plain.backbone.block, plain.backbone.earlier_rows), (8, 1));
    assert_eq!(plain.convolution, Convolution { kernel: 2, group: 16 });
    assert_eq!((plain.rank, plain.top_k, plain.vocab, plain.output_multiplier), (6, 4, 100, None));
    let attention = plain.backbone.layers.iter().map(|layer| (layer.window, layer.causal));
    assert_eq!(attention.collect::<Vec<_>>(), [(Some(9), false); 2]);
}

#[test]
fn the_drafter_s_own_section_gives_the_block() {
    assert_eq!(read(&json!({"block_size": 16})).expect("read").backbone.block, 8);
    let outside = json!({"block_size": 5, "dflash_config": {"block_size": null}});
    assert_eq!(read(&outside).expect("read").backbone.block, 5);
}

#[test]
fn the_selector_s_rank_names_the_kind_too() {
    assert!(read(&json!({"architectures": null})).is_ok());
    assert!(read(&json!({"architectures": ["DFlashDraftModel"]})).is_ok());
}

#[test]
fn what_is_not_served_is_named() {
    let refused = |changes: Value, expected: &str| {
        let error = paceline_vocabulary::chain(&read(&changes).expect_err(expected));
        assert!(error.contains(expected), "{changes}: {error}");
    };
    let inner = |key: &str, value: Value| json!({"dflash_config": {key: value}});
    refused(
        json!({"architectures": ["Other"], "dflash_config": {"selector_rank": null}}),
        "found [\"Other\"]",
    );
    refused(json!({"speculators_model_type": "dflash2"}), "layout of z-lab");
    refused(inner("conv_kernel_size", json!(null)), "conv_kernel_size");
    refused(inner("conv_kernel_size", json!(17)), "1 to 16, found 17");
    refused(inner("conv_group_size", json!(5)), "a divisor of hidden_size, 32, found 5");
    refused(inner("selector_rank", json!(0)), "selector_rank");
    refused(inner("selector_top_k", json!(101)), "1 to 64, found 101");
    refused(inner("output_multiplier", json!(0.0)), "above 0");
    refused(json!({"vocab_size": null}), "vocab_size");
}
