//! Gemma 3; Gemma 4: dense, with experts, and an edge model, in the layouts of transformers and of MLX.

use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed};
use crate::families::{refusal, set};
use crate::model::{check_checkpoint, check_model, golden, load};

#[test]
fn gemma_3_with_two_rotations_and_norms_less_one() {
    check_model("gemma3-tiny");
}

#[test]
fn gemma_3_has_its_rotations_in_the_keys_of_newer_files_as_well() {
    let newer = |config: &mut Value| {
        let config = config.as_object_mut().expect("an object");
        for key in ["rope_theta", "rope_local_base_freq", "rope_scaling"] {
            config.remove(key).expect("a key");
        }
        let rotations = json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        });
        config.insert("rope_parameters".to_owned(), rotations);
    };
    let dir = changed("gemma3-tiny", newer, crate::changed::unchanged);
    check_checkpoint("gemma3-tiny", dir.path());
}

#[test]
fn gemma_4_with_windows_and_keys_that_are_values() {
    check_model("gemma4-tiny");
}

#[test]
fn gemma_4_with_experts_beside_a_dense_block() {
    check_model("gemma4-tiny-moe");
}

#[test]
fn gemma_4_with_inputs_of_each_layer_and_shared_keys_and_values() {
    check_model("gemma4-tiny-edge");
}

#[test]
fn gemma_4_of_four_bits_with_a_projection_of_eight() {
    check_model("gemma4-tiny-q4");
}

#[test]
fn gemma_4_of_four_bits_with_experts_and_a_router_of_eight() {
    check_model("gemma4-moe-q4");
}

#[test]
fn gemma_4_of_four_bits_with_inputs_of_each_layer() {
    check_model("gemma4-edge-q4");
}

/// The config as a checkpoint with towers has it: the text model's keys in an object.
fn nested(config: &mut Value) {
    let mut text = config.take();
    let tied = text["tie_word_embeddings"].take();
    *config = json!({"model_type": "gemma4", "tie_word_embeddings": tied, "text_config": text,
        "vision_config": {"hidden_size": 8}, "image_token_id": 5});
}

/// As [`nested`], of the model without towers.
fn unified(config: &mut Value) {
    nested(config);
    config["model_type"] = json!("gemma4_unified");
    config["text_config"]["model_type"] = json!("gemma4_unified_text");
    // The model has no such parts, and its configs no such keys.
    let text = config["text_config"].as_object_mut().expect("an object");
    text.remove("hidden_size_per_layer_input");
}

/// The tensors under another prefix, and one of a tower.
fn moved(to: &'static str, tower: &'static str) -> impl Fn(&mut Tensors) {
    move |tensors| {
        let all = std::mem::take(tensors);
        let name = |name: &str| name.replacen("model.", to, 1);
        tensors.extend(all.into_iter().map(|(old, tensor)| (name(&old), tensor)));
        let dtype = safetensors::tensor::Dtype::F32;
        let weight = Tensor { dtype, shape: vec![2], bytes: vec![0; 8] };
        tensors.insert(format!("{tower}encoder.weight"), weight);
    }
}

/// A layer's experts as MLX writes them: gate and up apart.
fn split_experts(tensors: &mut Tensors) {
    let fused: Vec<String> =
        tensors.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    for name in fused {
        let Tensor { dtype, shape, bytes } = tensors.remove(&name).expect("listed");
        let (block, projection) = name.split_once(".experts.").expect("listed");
        let mut add = |projection: &str, shape: Vec<usize>, bytes: Vec<u8>| {
            let name = format!("{block}.experts.switch_glu.{projection}.weight");
            tensors.insert(name, Tensor { dtype, shape, bytes });
        };
        if projection == "down_proj" {
            add(projection, shape, bytes);
            continue;
        }
        let half = [shape[0], shape[1] / 2, shape[2]];
        let expert = bytes.len() / shape[0];
        let part = |from: usize| {
            let of = |expert_bytes: &[u8]| expert_bytes[from..from + expert / 2].to_vec();
            bytes.chunks(expert).flat_map(of).collect::<Vec<u8>>()
        };
        add("gate_proj", half.to_vec(), part(0));
        add("up_proj", half.to_vec(), part(expert / 2));
    }
}

#[test]
fn checkpoints_without_a_tower_for_images_load_their_text_in_both_layouts() {
    for name in ["gemma4-tiny", "gemma4-tiny-edge"] {
        for (prefix, tower) in [
            ("model.language_model.", "model.embed_vision."),
            ("model.language_model.", "model.audio_tower."),
            ("language_model.model.", "embed_vision."),
            ("language_model.model.", "audio_tower."),
        ] {
            let dir = changed(name, nested, moved(prefix, tower));
            assert!(load(dir.path()).vision().is_none());
            check_checkpoint(name, dir.path());
        }
    }
}

#[test]
fn the_model_without_towers_computes_text_as_gemma_4_does() {
    for (prefix, embedder) in
        [("model.language_model.", "model.embed_audio."), ("language_model.model.", "embed_audio.")]
    {
        let dir = changed("gemma4-tiny", unified, moved(prefix, embedder));
        assert!(load(dir.path()).vision().is_none());
        check_checkpoint("gemma4-tiny", dir.path());
    }
    let text = |config: &mut Value| config["model_type"] = json!("gemma4_unified_text");
    check_checkpoint("gemma4-tiny", changed("gemma4-tiny", text, crate::changed::unchanged).path());
}

#[test]
fn experts_in_the_layout_of_mlx_are_read() {
    let dir = changed("gemma4-tiny-moe", |_| {}, split_experts);
    check_checkpoint("gemma4-tiny-moe", dir.path());
}

#[test]
fn layers_have_heads_windows_and_shares_of_their_kind() {
    let layers = load(&golden("gemma4-tiny-edge")).kv_layers();
    let forms: Vec<_> = layers.iter().map(|layer| layer.growing().copied()).collect();
    let [sliding, full] = [forms[0], forms[1]].map(|form| form.expect("its own"));
    assert_eq!((sliding.n_kv, sliding.key_dim, sliding.window), (1, 8, Some(24)));
    assert_eq!((full.n_kv, full.key_dim, full.window), (1, 16, None));
    assert_eq!((forms[3], forms[4]), (None, None), "they share");
    // Keys that are values have heads of their own number.
    let layers = load(&golden("gemma4-tiny")).kv_layers();
    let heads: Vec<_> = layers.iter().filter_map(|layer| Some(layer.growing()?.n_kv)).collect();
    assert_eq!(heads, [2, 2, 1, 2, 1]);
}

#[test]
fn a_gemma_that_is_not_computed_is_refused_by_name() {
    for (key, value, says) in [
        ("hidden_activation", json!("silu"), "hidden_activation: expected gelu_pytorch_tanh"),
        ("rope_parameters", json!({}), "rope_parameters: expected an object sliding_attention"),
        ("num_global_key_value_heads", json!(2), "self_attn.k_proj.weight has shape [16, 64]"),
    ] {
        let found =
            refusal(changed("gemma4-tiny", set(key, value), crate::changed::unchanged).path());
        assert!(found.contains(says), "{found}");
    }
    for (key, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("use_bidirectional_attention", json!(true)),
        ("query_pre_attn_scalar", json!(0)),
    ] {
        let found =
            refusal(changed("gemma3-tiny", set(key, value), crate::changed::unchanged).path());
        assert!(found.contains(&format!("{key}: expected")), "{found}");
    }
}
