//! The families beside Qwen3, in the layouts and with the keys that published checkpoints have.

use std::path::Path;

use paceline_models::{TargetInfo, load_target};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::model::{check_checkpoint, check_model, golden, load};

#[test]
fn llama_untied_with_scaled_rotary_frequencies() {
    check_model("llama-tiny");
}

#[test]
fn llama_tied_with_biases() {
    check_model("llama-tiny-tied");
}

#[test]
fn smollm3_with_a_layer_that_does_not_rotate() {
    check_model("smollm3-tiny");
}

#[test]
fn layers_of_smollm3_that_do_not_rotate_are_named_or_counted() {
    // The interval says the same as the list.
    let dir = changed(
        "smollm3-tiny",
        |config| drop(config.as_object_mut().expect("an object").remove("no_rope_layers")),
        unchanged,
    );
    check_checkpoint("smollm3-tiny", dir.path());
}

#[test]
fn qwen2() {
    check_model("qwen2-tiny");
}

#[test]
fn qwen3_moe_with_a_dense_layer() {
    check_model("qwen3-moe-tiny");
}

#[test]
fn qwen3_moe_in_every_second_layer() {
    check_model("qwen3-moe-tiny-sparse");
}

#[test]
fn llama_of_four_and_eight_bits() {
    check_model("llama-tiny-q4");
    check_model("llama-tiny-q8");
}

#[test]
fn qwen2_of_four_and_eight_bits_with_float_biases() {
    check_model("qwen2-tiny-q4");
    check_model("qwen2-tiny-q8");
}

#[test]
fn qwen3_moe_of_four_and_eight_bits_with_a_finer_router() {
    check_model("qwen3-moe-tiny-q4");
    check_model("qwen3-moe-tiny-q8");
}

#[test]
fn qwen3_5_with_states_and_gated_attention() {
    check_model("qwen3_5-tiny");
}

#[test]
fn qwen3_5_moe_with_experts_in_one_tensor_and_a_shared_one() {
    check_model("qwen3_5_moe-tiny");
}

#[test]
fn qwen3_5_of_four_bits_in_the_layout_of_mlx_with_overrides() {
    check_model("qwen3_5-tiny-q4");
}

#[test]
fn qwen3_5_moe_of_four_bits_with_finer_routers() {
    check_model("qwen3_5_moe-tiny-q4");
}

pub fn set(key: &'static str, value: Value) -> impl Fn(&mut Value) {
    move |config| config[key] = value.clone()
}

#[test]
fn mistral_with_windows() {
    check_model("mistral-tiny");
    let layers = load(&golden("mistral-tiny")).kv_layers();
    assert!(layers.iter().all(|layer| layer.growing().is_some_and(|kv| kv.window == Some(24))));
}

#[test]
fn mistral_without_windows_is_llama() {
    for window in [Value::Null, json!(512), json!(32768)] {
        let as_mistral = |config: &mut Value| {
            config["model_type"] = "mistral".into();
            config["sliding_window"] = window.clone();
        };
        let dir = changed("llama-tiny", as_mistral, unchanged);
        assert_eq!(load(dir.path()).info().architecture, "mistral");
        check_checkpoint("llama-tiny", dir.path());
    }
}

/// The experts' tensors as mlx-lm writes them: one for all experts of a layer.
fn stack_experts(tensors: &mut Tensors) {
    let names: Vec<String> =
        tensors.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    // In the order of the experts' numbers: there are fewer than ten.
    for name in names {
        let tensor = tensors.remove(&name).expect("listed");
        let (block, rest) = name.split_once(".experts.").expect("an expert's");
        let (_, projection) = rest.split_once('.').expect("behind its number");
        let stacked = format!("{block}.switch_mlp.{projection}");
        let all = tensors.entry(stacked).or_insert_with(|| Tensor {
            shape: [&[0], tensor.shape.as_slice()].concat(),
            dtype: tensor.dtype,
            bytes: vec![],
        });
        all.shape[0] += 1;
        all.bytes.extend(tensor.bytes);
    }
}

#[test]
fn experts_in_the_layout_of_mlx() {
    let dir = changed("qwen3-moe-tiny", |_| {}, stack_experts);
    check_checkpoint("qwen3-moe-tiny", dir.path());
}

#[test]
fn what_is_known_of_a_target_comes_from_its_config() {
    for (name, architecture, kv) in [
        ("llama-tiny", "llama", [2, 12]),
        ("llama-tiny-tied", "llama", [2, 12]),
        ("qwen2-tiny", "qwen2", [1, 8]),
        ("smollm3-tiny", "smollm3", [2, 12]),
        ("qwen3-moe-tiny", "qwen3_moe", [2, 16]),
        ("qwen3-moe-tiny-sparse", "qwen3_moe", [1, 20]),
    ] {
        let model = load(&golden(name));
        let config = std::fs::read(golden(name).join("config.json")).expect("in the repository");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        let TargetInfo { architecture: found, vocab, hidden, n_layers, context, .. } = model.info();
        assert_eq!(found, architecture);
        let expected = ["vocab_size", "hidden_size", "num_hidden_layers"].map(|key| &config[key]);
        assert_eq!([json!(vocab), json!(hidden), json!(n_layers)].each_ref(), expected, "{name}");
        assert_eq!(*context, 512);
        let layers = model.kv_layers();
        assert_eq!(layers.len(), *n_layers);
        for layer in layers {
            let layer = layer.growing().expect("every layer attends");
            assert_eq!([layer.n_kv, layer.key_dim, layer.value_dim], [kv[0], kv[1], kv[1]]);
            assert_eq!(layer.window, None);
        }
    }
}

pub fn refusal(dir: &Path) -> String {
    load_target(dir, &mut |_, _| {}).err().map_or("loads".into(), |error| error.to_string())
}

#[test]
fn configs_that_are_not_computed_are_refused_by_name() {
    let refused = |name: &str, key: &'static str, value: Value, says: &str| {
        let found = refusal(changed(name, set(key, value), unchanged).path());
        assert!(found.contains(says), "{found}");
    };
    refused(
        "llama-tiny",
        "model_type",
        json!("gemma3"),
        "model_type: expected one of llama, mistral, smollm3, qwen2, qwen3, qwen3_moe, qwen3_vl, \
         qwen3_vl_moe, qwen2_vl, qwen2_5_vl, paddleocr_vl, hunyuan_vl, glm4v, glm_ocr, \
         gemma3_text, gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, qwen3_5, \
         qwen3_5_text, qwen3_8, qwen3_8_text, qwen3_5_moe, qwen3_5_moe_text, qwen3_8_moe, \
         qwen3_8_moe_text, found gemma3",
    );
    refused(
        "llama-tiny",
        "sliding_window",
        json!(511),
        "sliding_window: expected null or at least the context of 512",
    );
    refused("qwen2-tiny", "use_sliding_window", json!(true), "use_sliding_window: expected false");
    refused(
        "qwen3-moe-tiny",
        "layer_types",
        json!(["full_attention", "sliding_attention", "full_attention"]),
        "layer_types: expected full_attention for every layer, found sliding_attention",
    );
    refused("llama-tiny", "hidden_act", json!("gelu"), "hidden_act: expected silu, found gelu");
    refused(
        "qwen3-moe-tiny",
        "num_experts_per_tok",
        json!(7),
        "num_experts_per_tok: expected at most the 6 experts, found 7",
    );
    refused("qwen3-moe-tiny", "decoder_sparse_step", json!(0), "decoder_sparse_step: expected 1");
    refused(
        "qwen3-moe-tiny",
        "num_experts",
        json!(5),
        "mlp.gate.weight has shape [6, 40], the model needs [5, 40]",
    );
    for layers in [json!([1, 1, 0]), json!([1, 1, 1, 2])] {
        refused("smollm3-tiny", "no_rope_layers", layers, "expected 0 or 1 for each of 4 layers");
    }
    refused("llama-tiny-tied", "mlp_bias", json!(false), "does not use, the first is");
    refused("llama-tiny", "attention_bias", json!(true), "q_proj.bias is missing");
}

#[test]
fn a_tied_head_may_be_written_out() {
    let written_out = |tensors: &mut Tensors| {
        let Tensor { dtype, shape, bytes } = &tensors["model.embed_tokens.weight"];
        let copy = Tensor { dtype: *dtype, shape: shape.clone(), bytes: bytes.clone() };
        tensors.insert("lm_head.weight".into(), copy);
    };
    let dir = changed("llama-tiny-tied", |_| {}, written_out);
    check_checkpoint("llama-tiny-tied", dir.path());
}

#[test]
fn rotary_frequencies_among_the_tensors_are_skipped() {
    let frequencies = |tensors: &mut Tensors| {
        let tensor = Tensor { dtype: Dtype::F32, shape: vec![6], bytes: vec![0; 24] };
        tensors.insert("model.layers.1.self_attn.rotary_emb.inv_freq".into(), tensor);
    };
    let dir = changed("llama-tiny", |_| {}, frequencies);
    check_checkpoint("llama-tiny", dir.path());
}
