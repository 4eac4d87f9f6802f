//! Qwen2-VL, Qwen2.5-VL and Qwen3-VL with experts against transformers, in the layouts of published
//! checkpoints and in MLX's.

use std::path::Path;

use mlx_rs::Array;
use paceline_models::{LoadOptions, Wants, load_target, plan_target};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::hybrid::{channels_last, numbers, store};
use crate::scene::{Scene, floats, folder, load, load_dir};
use crate::{check_features, check_prompts, known, sequence};

const TWO: &str = "qwen2-vl-tiny";
const TWO_AND_HALF: &str = "qwen2_5-vl-tiny";
const EXPERTS: &str = "qwen3-vl-moe-tiny";

#[test]
fn features_of_qwen2_vl_equal_the_reference() {
    check_features(TWO);
}

#[test]
fn features_of_windows_and_beside_experts_equal_the_reference() {
    [TWO_AND_HALF, EXPERTS].into_iter().for_each(check_features);
}

#[test]
fn answers_of_qwen2_vl_equal_the_reference() {
    check_prompts(TWO);
}

#[test]
fn answers_of_qwen2_5_vl_equal_the_reference() {
    check_prompts(TWO_AND_HALF);
}

#[test]
fn answers_of_qwen3_vl_with_experts_equal_the_reference() {
    check_prompts(EXPERTS);
}

/// Experts `[experts, in, out]` in one tensor as MLX has them, `[experts, out, in]` for each
/// projection.
fn by_projection(name: &str, tensor: &Tensor) -> Vec<(&'static str, Tensor)> {
    let shape: Vec<i32> = tensor.shape.iter().map(|size| *size as i32).collect();
    let matrices = Array::from_slice(&numbers(tensor), &shape).swap_axes(1, 2).expect("turned");
    let names: &[&str] = match name {
        "gate_up_proj" => &["gate_proj", "up_proj"],
        _ => &["down_proj"],
    };
    let parts = matrices.split_equal(names.len() as i32, 1).expect("equal halves");
    let stored = |part: &Array| {
        let shape = part.shape().iter().map(|size| *size as usize).collect();
        let mut tensor = Tensor { dtype: tensor.dtype, shape, bytes: vec![] };
        store(&mut tensor, &floats(part));
        tensor
    };
    names.iter().copied().zip(parts.iter().map(stored)).collect()
}

/// Renames the tensors of published checkpoints to what MLX's conversions call them, and turns the
/// axes that they turn.
fn to_mlx(all: &mut Tensors) {
    for (name, mut tensor) in std::mem::take(all) {
        let renamed = [
            ("model.visual.", "vision_tower."),
            ("visual.", "vision_tower."),
            ("model.language_model.", "language_model.model."),
            ("model.", "language_model.model."),
            ("lm_head.", "language_model.lm_head."),
        ];
        let rename = |(old, new): &(&str, &str)| Some(format!("{new}{}", name.strip_prefix(old)?));
        let new = renamed.iter().find_map(rename).expect("a name that is known");
        if new.ends_with("patch_embed.proj.weight") {
            channels_last(&mut tensor);
        }
        match new.split_once(".experts.") {
            None => drop(all.insert(new, tensor)),
            Some((block, part)) => {
                for (name, part) in by_projection(part, &tensor) {
                    all.insert(format!("{block}.switch_mlp.{name}.weight"), part);
                }
            }
        }
    }
}

#[test]
fn the_layout_of_mlx_gives_the_bits_of_the_published_one() {
    for name in [TWO, TWO_AND_HALF, EXPERTS] {
        let (original, golden) = load(name);
        let converted = changed(name, |_| {}, to_mlx);
        let converted = load_dir(converted.path());
        for case in &golden.cases {
            let [expected, found] = [&original, &converted].map(|model| {
                let known = known(&**model, &golden);
                let sequences = vec![sequence(&**model, &golden, &known, case)];
                let mut scene = Scene::new(&**model, sequences);
                let rows = case.prompt.len() as i32;
                let batch = scene.batch(&[(0, rows)]);
                let wants = Wants { logit_rows: vec![rows - 1], ..Wants::default() };
                floats(scene.run(&batch, &wants).logits.as_ref().expect("wanted"))
            });
            assert_eq!(expected, found, "{name}");
        }
    }
}

#[test]
fn a_checkpoint_without_its_tower_is_a_text_model() {
    for name in [TWO, TWO_AND_HALF, EXPERTS] {
        let without = |all: &mut Tensors| all.retain(|name, _| !name.contains("visual"));
        let no_sizes = |config: &mut Value| config["vision_config"] = Value::Null;
        let plan = |dir: &Path| plan_target(dir, LoadOptions::default()).expect("a plan");
        for dir in [changed(name, |_| {}, without), changed(name, no_sizes, unchanged)] {
            let dir = dir.path();
            assert!(load_dir(dir).vision().is_none() && !plan(dir).has_vision, "{name}");
        }
        let (seeing, _) = load(name);
        let whole = plan(&folder(name));
        assert!(seeing.vision().is_some() && whole.has_vision, "{name}");
        assert_eq!(whole.storage.disk_bytes(), seeing.info().weight_bytes, "{name}");
    }
}

#[test]
fn contradictory_configs_are_refused_by_name() {
    load(TWO);
    let says = |name: &str, path: &[&str], value: Value, expected: &str| {
        let change = |config: &mut Value| {
            let (last, parts) = path.split_last().expect("a key");
            let object = parts.iter().fold(config, |object, part| &mut object[part]);
            object[last] = value.clone();
        };
        let dir = changed(name, change, unchanged);
        let refused = load_target(dir.path(), &mut |_, _| {}).err();
        let found = refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error));
        assert!(found.contains(expected), "{name} {path:?}: {expected:?}, found {found:?}");
    };
    let of = |key| ["vision_config", key];
    says(TWO, &of("hidden_size"), json!(32), "expected the text model's hidden_size, 48, found 32");
    says(TWO, &of("embed_dim"), json!(26), "a multiple of 4 each, found 2");
    says(TWO, &of("mlp_ratio"), json!(0), "mlp_ratio: expected 0.01 to 1024");
    says(TWO, &of("hidden_act"), json!("relu"), "gelu or quick_gelu, found relu");
    says(TWO, &of("in_chans"), json!(1), "in_chans: expected 3");
    says(TWO, &["use_sliding_window"], json!(true), "use_sliding_window: expected false");
    says(TWO, &["rope_scaling", "mrope_section"], json!([2, 2]), "expected three sizes");
    says(TWO, &["rope_scaling", "mrope_interleaved"], json!(true), "interleaved: expected false");
    says(TWO_AND_HALF, &of("window_size"), json!(7), "window_size: expected at least 8");
    says(TWO_AND_HALF, &of("hidden_act"), json!("gelu"), "hidden_act: expected silu");
    says(TWO_AND_HALF, &of("out_hidden_size"), json!(48), "the text model's hidden_size, 40");
    says(EXPERTS, &["text_config", "num_experts"], json!(7), ".mlp.gate.weight has shape");
    says(EXPERTS, &["text_config", "moe_intermediate_size"], json!(12), "experts.gate_up_proj");
}
