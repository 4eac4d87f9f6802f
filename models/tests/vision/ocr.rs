//! PaddleOCR-VL and HunyuanOCR against transformers, as published and as MLX's conversions have them.

use std::collections::BTreeSet;

use paceline_models::{LoadOptions, load_target, plan_target};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::hybrid::{case_logits, channels_last, check_chunks_and_neighbours};
use crate::scene::{Sequence, load, load_dir};
use crate::{check_features, check_prompts};

const PADDLE: &str = "paddleocr_vl-tiny";
const HUNYUAN: &str = "hunyuan_vl-tiny";

#[test]
fn features_equal_the_reference() {
    check_features(PADDLE);
    check_features(HUNYUAN);
}

#[test]
fn answers_of_paddleocr_vl_to_images_equal_the_reference() {
    check_prompts(PADDLE);
}

#[test]
fn answers_of_hunyuanocr_to_images_equal_the_reference() {
    check_prompts(HUNYUAN);
}

#[test]
fn chunks_of_any_size_and_neighbours_give_the_same_bits() {
    check_chunks_and_neighbours(PADDLE);
    check_chunks_and_neighbours(HUNYUAN);
}

/// The keys of the text model and those of the whole, as later files have them.
fn with_parts(config: &mut Value) {
    let keys = config.as_object_mut().expect("an object");
    let top = ["model_type", "vision_config", "image_token_id", "tie_word_embeddings"];
    let of_text: Vec<String> =
        keys.keys().filter(|key| !top.contains(&key.as_str())).cloned().collect();
    let text = of_text.into_iter().map(|key| (key.clone(), keys.remove(&key).expect("a key")));
    let text = text.collect::<serde_json::Map<_, _>>();
    keys.insert("text_config".into(), text.into());
}

/// One tensor of the rows of three.
fn joined(all: &mut Tensors, parts: [&str; 3], name: String) {
    let parts = parts.map(|part| all.remove(part).expect("it is there"));
    let [first, ..] = &parts;
    let mut shape = first.shape.clone();
    shape[0] *= 3;
    let dtype = first.dtype;
    let bytes = parts.into_iter().flat_map(|part| part.bytes).collect();
    all.insert(name, Tensor { dtype, shape, bytes });
}

fn renamed(all: &mut Tensors, pairs: &[(&str, &str)]) {
    for (name, mut tensor) in std::mem::take(all) {
        if tensor.shape.len() == 4 {
            channels_last(&mut tensor);
        }
        let pair = pairs.iter().find(|(from, _)| name.starts_with(from));
        let name = pair.map_or(name.clone(), |(from, to)| name.replacen(from, to, 1));
        all.insert(name, tensor);
    }
}

fn paddle_to_mlx(all: &mut Tensors) {
    let is_dropped = |name: &str| name.contains(".head.") || name.contains("packing_position");
    all.retain(|name, _| !is_dropped(name));
    let pairs = [
        ("visual.vision_model.encoder.layers.", "visual.layers."),
        ("visual.vision_model.", "visual."),
        ("mlp_AR.", "visual.projector."),
        ("model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    ];
    renamed(all, &pairs);
    let blocks: BTreeSet<String> = all
        .keys()
        .filter_map(|name| name.strip_prefix("visual.layers.")?.split('.').next())
        .map(str::to_owned)
        .collect();
    for block in &blocks {
        for kind in ["weight", "bias"] {
            let part = |part: &str| format!("visual.layers.{block}.self_attn.{part}.{kind}");
            let parts = ["q_proj", "k_proj", "v_proj"].map(part);
            joined(all, parts.each_ref().map(|name| name.as_str()), part("qkv"));
        }
    }
}

fn hunyuan_to_mlx(all: &mut Tensors) {
    renamed(all, &[("vit.", "vision_tower."), ("model.", "language_model.model.")]);
}

#[test]
fn the_layout_of_mlx_and_a_config_with_parts_give_the_bits_of_what_is_published() {
    let check = |name: &str, to_mlx: fn(&mut Tensors)| {
        let (original, golden) = load(name);
        let cases = [1, 3, 5];
        let expected = case_logits(&*original, &golden, &cases, 1000);
        let dir = changed(name, with_parts, to_mlx);
        let model = load_dir(dir.path());
        assert_eq!(case_logits(&*model, &golden, &cases, 1000), expected, "{name}");
    };
    check(PADDLE, paddle_to_mlx);
    check(HUNYUAN, hunyuan_to_mlx);
}

#[test]
fn a_checkpoint_without_a_tower_reads_text_with_the_same_bits() {
    let is_of_tower =
        |name: &str| ["visual.", "mlp_AR.", "vit."].iter().any(|of| name.starts_with(of));
    for name in [PADDLE, HUNYUAN] {
        let (seeing, golden) = load(name);
        let text =
            golden.cases.iter().position(|case| case.images.is_empty()).expect("one of text");
        let expected = case_logits(&*seeing, &golden, &[text], 1000);
        let no_tensors = |all: &mut Tensors| all.retain(|name, _| !is_of_tower(name));
        let no_sizes = |config: &mut Value| config["vision_config"] = Value::Null;
        for dir in [changed(name, |_| {}, no_tensors), changed(name, no_sizes, unchanged)] {
            let plan = plan_target(dir.path(), LoadOptions::default()).expect("a plan");
            let model = load_dir(dir.path());
            assert!(model.vision().is_none() && !plan.has_vision, "{name}");
            assert_eq!(plan.storage.disk_bytes(), model.info().weight_bytes, "{name}");
            let case = &golden.cases[text];
            let only = Sequence::of_text(&case.prompt).along(case.greedy.clone());
            assert_eq!(crate::hybrid::all_logits(&*model, vec![only], 1000), expected, "{name}");
        }
    }
}

fn refusal(name: &str, config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> String {
    let dir = changed(name, config, tensors);
    let refused = load_target(dir.path(), &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

#[test]
fn contradictory_configs_of_the_towers_are_refused_by_name() {
    load(PADDLE);
    let says = |name: &str, path: &[&str], value: Value, expected: &str| {
        let set = |config: &mut Value| {
            let (last, parts) = path.split_last().expect("a key");
            let object = parts.iter().fold(config, |object, part| &mut object[part]);
            object[last] = value.clone();
        };
        let found = refusal(name, set, unchanged);
        assert!(found.contains(expected), "{name}, {path:?}: {found:?}");
    };
    let tower = "vision_config";
    says(PADDLE, &[tower, "num_hidden_layers"], json!(4), "visual.vision_model.encoder.layers.3.");
    says(PADDLE, &[tower, "num_hidden_layers"], json!(2), "visual.vision_model.encoder.layers.2.");
    says(PADDLE, &[tower, "num_attention_heads"], json!(5), "a divisor of hidden_size 24, found 5");
    says(PADDLE, &[tower, "num_attention_heads"], json!(4), "heads of a multiple of 4, found 6");
    says(PADDLE, &[tower, "image_size"], json!(24), "position_embedding.weight");
    says(PADDLE, &[tower, "image_size"], json!(3), "image_size: expected an image of 1 to 4096");
    says(PADDLE, &[tower, "patch_size"], json!(5), "position_embedding.weight");
    says(PADDLE, &[tower, "hidden_act"], json!("relu"), "hidden_act: expected gelu_pytorch_tanh");
    let axes = json!({"rope_type": "linear"});
    says(PADDLE, &[tower, "rope_parameters"], axes, "rope_type: expected axial, found linear");
    says(PADDLE, &["image_token_id"], Value::Null, "image_token_id: expected the id");
    says(PADDLE, &["rope_scaling", "mrope_section"], json!([2, 3, 4]), "three sizes of 8 in all");
    says(HUNYUAN, &["rope_scaling", "xdrope_section"], json!([2, 2, 2]), "expected four sizes");
    says(HUNYUAN, &[tower, "interpolate_mode"], json!("bicubic"), "interpolate_mode: expected bil");
    says(
        HUNYUAN,
        &[tower, "hidden_size"],
        json!(1 << 20),
        "num_attention_heads: expected heads of",
    );
    says(HUNYUAN, &[tower, "max_image_size"], json!(32), "position_embedding.weight");
    let other_name = |config: &mut Value| {
        config["head_dim"] = Value::Null;
        config["attention_head_dim"] = json!(17);
    };
    let found = refusal(HUNYUAN, other_name, unchanged);
    assert!(found.contains("attention_head_dim: expected an even number, found 17"), "{found}");
}

#[test]
fn tensors_that_are_missing_or_left_over_are_refused_by_name() {
    load(PADDLE);
    let missing = [
        (PADDLE, "mlp_AR.linear_1.bias"),
        (PADDLE, "visual.vision_model.post_layernorm.weight"),
        (HUNYUAN, "vit.perceive.image_newline"),
        (HUNYUAN, "vit.perceive.proj.2.weight"),
        (HUNYUAN, "model.layers.1.self_attn.key_layernorm.weight"),
    ];
    for (checkpoint, name) in missing {
        let found = refusal(checkpoint, |_| {}, |all| drop(all.remove(name)));
        assert!(found.contains(name), "{found}");
    }
    for (checkpoint, name) in [
        (PADDLE, "visual.vision_model.encoder.layers.0.norm.weight"),
        (HUNYUAN, "vit.perceive.image_middle"),
        (HUNYUAN, "model.layers.0.self_attn.q_norm.weight"),
    ] {
        let more = |all: &mut Tensors| {
            let first = all.values().next().expect("some");
            let tensor = Tensor { dtype: first.dtype, shape: vec![1], bytes: vec![0; 2] };
            all.insert(name.into(), tensor);
        };
        let found = refusal(checkpoint, |_| {}, more);
        assert!(found.contains(&format!("does not use, the first is {name}")), "{found}");
    }
    // Which is why the tied head is not: a head of its own is used if it is there.
    let tied = |all: &mut Tensors| drop(all.remove("lm_head.weight"));
    assert_eq!(refusal(PADDLE, |_| {}, tied), "loads");
}
