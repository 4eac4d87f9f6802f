//! Checkpoints as transformers 5.23 and mlx-vlm save them: the golden ones with other keys and other
//! names of tensors. What a plan refuses is what loading refuses.

use std::path::Path;

use paceline_models::{DeviceChoice, LoadOptions, device, load_target, plan_target};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::families::{refusal, set};
use crate::model::{check_checkpoint, golden, load};

/// The part of a config with the keys of the text model.
fn text(config: &mut Value) -> &mut Value {
    match config.get("text_config").is_some() {
        true => &mut config["text_config"],
        false => config,
    }
}

fn take(config: &mut Value, key: &str) -> Value {
    config.as_object_mut().expect("an object").remove(key).unwrap_or_default()
}

fn plan(dir: &Path) -> Result<paceline_checkpoint::plan::CheckpointPlan, String> {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    plan_target(dir, LoadOptions::default()).map_err(|error| paceline_vocabulary::chain(&error))
}

/// The number of experts under its newer name.
fn local_experts(config: &mut Value) {
    let text = text(config);
    text["num_local_experts"] = take(text, "num_experts");
}

#[test]
fn experts_may_be_counted_as_local_ones() {
    let dir = changed("qwen3-moe-tiny", local_experts, unchanged);
    check_checkpoint("qwen3-moe-tiny", dir.path());
    let [as_before, found] = [&golden("qwen3-moe-tiny"), dir.path()].map(plan);
    assert_eq!(found.expect("a plan").token_bytes, as_before.expect("a plan").token_bytes);
    for name in ["qwen3-vl-moe-tiny", "qwen3_5_moe-tiny", "gemma4-tiny-moe"] {
        load(changed(name, local_experts, unchanged).path());
    }
    let both = |config: &mut Value| config["num_local_experts"] = 5.into();
    load(changed("qwen3-moe-tiny", both, unchanged).path());
    let none = |config: &mut Value| {
        local_experts(config);
        config["num_local_experts"] = 0.into();
    };
    let found = refusal(changed("qwen3-moe-tiny", none, unchanged).path());
    assert!(found.contains("num_local_experts: expected 1 to"), "{found}");
}

/// The heads of full layers as transformers 5.23 names them.
fn heads_by_layer(config: &mut Value) {
    let text = text(config);
    let (head_dim, n_kv) =
        (take(text, "global_head_dim"), take(text, "num_global_key_value_heads"));
    let is_full = |(_, kind): &(usize, &Value)| *kind == "full_attention";
    let kinds = text["layer_types"].as_array().expect("a list").clone();
    let layers = kinds.iter().enumerate().filter(is_full).map(|(at, _)| {
        let mut heads = json!({ "head_dim": head_dim });
        if text["attention_k_eq_v"] == true {
            heads["num_key_value_heads"] = n_kv.clone();
        }
        (at.to_string(), heads)
    });
    text["per_layer_config"] = Value::Object(layers.collect());
}

#[test]
fn heads_of_gemma_4_may_be_named_layer_by_layer() {
    for name in ["gemma4-tiny", "gemma4-tiny-moe", "gemma4-tiny-edge"] {
        check_checkpoint(name, changed(name, heads_by_layer, unchanged).path());
    }
    for name in ["gemma4-unified-tiny", "gemma4-vl-tiny"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for file in std::fs::read_dir(golden(name)).expect("in the repository") {
            let path = file.expect("readable").path();
            std::fs::copy(&path, dir.path().join(path.file_name().expect("named")))
                .expect("copied");
        }
        let other = changed(name, heads_by_layer, unchanged);
        std::fs::copy(other.path().join("config.json"), dir.path().join("config.json"))
            .expect("copied");
        load(dir.path());
    }
    // What both kinds of keys name is read from the newer ones.
    let both = |config: &mut Value| {
        heads_by_layer(config);
        (config["global_head_dim"], config["num_global_key_value_heads"]) = (json!(4), json!(2));
    };
    check_checkpoint("gemma4-tiny", changed("gemma4-tiny", both, unchanged).path());
}

#[test]
fn layers_of_one_kind_with_different_heads_are_refused_by_name() {
    for (key, value, says) in [
        ("4", json!({"head_dim": 8}), "layers of one kind to have the same heads"),
        ("4", json!({"head_dim": 16, "sliding_window": 3}), "head_dim or num_key_value_heads"),
        ("9", json!({"head_dim": 16}), "a layer below 5"),
        ("4", json!({"head_dim": 0}), "per_layer_config.4.head_dim: expected 1 to"),
        ("x", json!({}), "a layer below 5"),
    ] {
        let change = |config: &mut Value| {
            heads_by_layer(config);
            config["per_layer_config"][key] = value.clone();
        };
        let found = refusal(changed("gemma4-tiny", change, unchanged).path());
        assert!(found.contains("per_layer_config") && found.contains(says), "{found}");
    }
}

/// The names of tensors as mlx-vlm has them.
fn below_language_model(tensors: &mut Tensors) {
    let all = std::mem::take(tensors);
    tensors
        .extend(all.into_iter().map(|(name, tensor)| (format!("language_model.{name}"), tensor)));
}

#[test]
fn text_models_may_have_the_names_of_mlx_vlm() {
    let overrides = |config: &mut Value| {
        let Some(Value::Object(all)) = config.get_mut("quantization") else { return };
        let renamed =
            std::mem::take(all).into_iter().map(|(name, value)| match name.contains('.') {
                true => (format!("language_model.{name}"), value),
                false => (name, value),
            });
        *all = renamed.collect();
    };
    for name in [
        "llama-tiny",
        "llama-tiny-tied",
        "mistral-tiny",
        "smollm3-tiny",
        "qwen2-tiny",
        "qwen3-tiny",
        "qwen3-tiny-q4",
        "qwen3-moe-tiny",
        "qwen3-moe-tiny-q4",
    ] {
        check_checkpoint(name, changed(name, overrides, below_language_model).path());
    }
}

fn copy(tensor: &Tensor) -> Tensor {
    Tensor { dtype: tensor.dtype, shape: tensor.shape.clone(), bytes: tensor.bytes.clone() }
}

#[test]
fn a_head_that_differs_from_the_embedding_counts_though_the_config_ties_it() {
    let tied = set("tie_word_embeddings", true.into());
    for name in ["llama-tiny", "qwen3-tiny-q8", "llama-tiny-q4"] {
        let dir = changed(name, &tied, unchanged);
        check_checkpoint(name, dir.path());
        let notes = plan(dir.path()).expect("a plan").notes;
        assert!(notes.iter().any(|note| note.contains("lm_head")), "{name}: {notes:?}");
        assert_eq!(plan(&golden(name)).expect("a plan").notes, [""; 0], "{name}");
    }
    // A head of the same values in another type is the embedding.
    let widened = |tensors: &mut Tensors| {
        let Tensor { shape, bytes, .. } = copy(&tensors["model.embed_tokens.weight"]);
        let bytes = bytes.chunks(2).flat_map(|two| [0, 0, two[0], two[1]]).collect();
        let dtype = safetensors::tensor::Dtype::F32;
        tensors.insert("lm_head.weight".into(), Tensor { dtype, shape, bytes });
    };
    let dir = changed("qwen2-tiny", |_| {}, widened);
    check_checkpoint("qwen2-tiny", dir.path());
    let found = plan(dir.path()).expect("a plan");
    let as_before = plan(&golden("qwen2-tiny")).expect("a plan");
    assert_eq!((found.storage, found.notes), (as_before.storage, vec![]), "it is left unread");
}

#[test]
fn yarn_with_its_original_length_gives_the_context() {
    let yarn = json!({"factor": 4.0, "original_max_position_embeddings": 256});
    for (group, kind) in
        [("rope_scaling", "type"), ("rope_scaling", "rope_type"), ("rope_parameters", "rope_type")]
    {
        let stretched = |config: &mut Value| {
            config[group] = yarn.clone();
            config[group][kind] = "yarn".into();
        };
        let dir = changed("qwen3-tiny", stretched, unchanged);
        let found = plan(dir.path()).expect("a plan");
        assert_eq!((found.context, load(dir.path()).info().context), (1024, 1024), "{group}");
        assert!(found.notes[0].contains("max_position_embeddings is 512"), "{:?}", found.notes);
        let known = |config: &mut Value| {
            stretched(config);
            config["max_position_embeddings"] = 2048.into();
        };
        let found = plan(changed("qwen3-tiny", known, unchanged).path()).expect("a plan");
        assert_eq!((found.context, found.notes), (2048, vec![]));
    }
}

#[test]
fn a_plan_refuses_what_loading_refuses() {
    let without = |name: &'static str| {
        move |tensors: &mut Tensors| drop(tensors.remove(name).expect("it is there"))
    };
    let longer = |name: &'static str| {
        move |tensors: &mut Tensors| {
            let tensor = tensors.get_mut(name).expect("it is there");
            tensor.shape[0] *= 2;
            tensor.bytes.extend(tensor.bytes.clone());
        }
    };
    let spare = |tensors: &mut Tensors| {
        let norm = copy(&tensors["model.norm.weight"]);
        tensors.insert("model.layers.99.norm.weight".into(), norm);
    };
    let dirs = [
        changed("llama-tiny", |_| {}, without("model.layers.1.self_attn.k_proj.weight")),
        changed("llama-tiny", |_| {}, without("lm_head.weight")),
        changed("qwen3-tiny", |_| {}, longer("model.norm.weight")),
        changed("qwen3-tiny", |_| {}, spare),
        changed("qwen3-tiny-q4", |_| {}, longer("model.embed_tokens.scales")),
        changed("qwen3-moe-tiny", set("moe_intermediate_size", 4.into()), unchanged),
        changed("qwen3-moe-tiny", |config| drop(take(config, "num_experts")), unchanged),
        changed("qwen3-moe-tiny", set("num_experts_per_tok", 7.into()), unchanged),
        changed(
            "qwen3_5-tiny",
            |config| text(config)["linear_num_key_heads"] = 1.into(),
            unchanged,
        ),
        changed("gemma4-tiny", set("global_head_dim", 8.into()), unchanged),
        changed("llama-tiny", set("hidden_act", "gelu".into()), unchanged),
        changed("llama-tiny", set("rope_scaling", json!({"rope_type": "x"})), unchanged),
        changed("qwen2-vl-tiny", |config| drop(take(config, "image_token_id")), unchanged),
        changed(
            "qwen3-vl-moe-tiny",
            |config| config["vision_config"]["depth"] = 4.into(),
            unchanged,
        ),
    ];
    for (at, dir) in dirs.iter().enumerate() {
        let found = load_target(dir.path(), &mut |_, _| {}).err();
        let found = found
            .map(|error| paceline_vocabulary::chain(&error))
            .unwrap_or_else(|| panic!("checkpoint {at} loads"));
        assert_eq!(plan(dir.path()).err(), Some(found), "checkpoint {at}");
    }
}

#[test]
fn an_embedding_model_is_refused_as_one() {
    let bare = |tensors: &mut Tensors| {
        let all = std::mem::take(tensors);
        let name = |name: &str| name.strip_prefix("model.").map(str::to_owned);
        tensors.extend(all.into_iter().filter_map(|(full, tensor)| Some((name(&full)?, tensor))));
    };
    let dirs = [changed("qwen3-tiny", |_| {}, bare), changed("qwen3-tiny", |_| {}, unchanged)];
    std::fs::write(dirs[1].path().join("modules.json"), "[]").expect("written");
    for dir in dirs {
        for found in [refusal(dir.path()), plan(dir.path()).expect_err("refused")] {
            assert!(found.contains("an embedding model"), "{found}");
            assert!(found.contains("embeddings are not served"), "{found}");
        }
    }
}
