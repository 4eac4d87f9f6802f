//! GLM-4.1V and GLM-OCR with images against transformers, in both layouts. Values and provenance:
//! `golden/glm_vision.py`.

use half::bf16;
use paceline_models::{LoadOptions, Wants, load_target, plan_target};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::changed::{Tensors, changed, unchanged};
use crate::hybrid::{GROUP, channels_last, numbers, quantize_text};
use crate::scene::{Scene, floats, folder, load, load_dir, worst};
use crate::{check_answers, check_features, check_prompts, known, sequence};

const LARGE: &str = "glm4v-tiny";
const OCR: &str = "glm-ocr-tiny";

#[test]
fn features_of_glm_4v_equal_the_reference() {
    check_features(LARGE);
}

#[test]
fn features_of_glm_ocr_equal_the_reference() {
    check_features(OCR);
}

#[test]
fn answers_of_glm_4v_to_images_equal_the_reference() {
    check_prompts(LARGE);
}

#[test]
fn answers_of_glm_ocr_to_images_equal_the_reference() {
    check_prompts(OCR);
}

/// Makes a checkpoint of transformers into mlx-vlm's conversion of it.
fn to_mlx(all: &mut Tensors) {
    for (name, mut tensor) in std::mem::take(all) {
        if name.ends_with("patch_embed.proj.weight") || name.ends_with("downsample.weight") {
            channels_last(&mut tensor);
            // As it was stored: the turned numbers are the same.
            let halves = numbers(&tensor).into_iter().map(bf16::from_f32);
            tensor.bytes = halves.flat_map(bf16::to_le_bytes).collect();
            tensor.dtype = Dtype::BF16;
        }
        let name = name
            .replace("model.visual.", "vision_tower.")
            .replace("model.language_model.", "language_model.model.")
            .replace("lm_head.", "language_model.lm_head.");
        all.insert(name, tensor);
    }
}

#[test]
fn the_layout_of_mlx_gives_the_same_answers_of_glm_4v() {
    check_layout_of_mlx(LARGE);
}

#[test]
fn the_layout_of_mlx_gives_the_same_answers_of_glm_ocr() {
    check_layout_of_mlx(OCR);
}

fn check_layout_of_mlx(name: &str) {
    let (_, golden) = load(name);
    let dir = changed(name, |_| {}, to_mlx);
    check_answers(name, &*load_dir(dir.path()), &golden);
}

/// Quantized rows of queries and keys are read in another order, and those of a fused feed-forward in
/// theirs. A row in a wrong place changes logits by as much as they are.
#[test]
fn a_quantized_text_model_keeps_its_tower_as_it_is_stored() {
    for name in [LARGE, OCR] {
        let (original, golden) = load(name);
        let formats = |config: &mut Value| {
            config["quantization"] = json!({ "group_size": GROUP, "bits": 8, "mode": "affine" });
        };
        let dir = changed(name, formats, |all| {
            to_mlx(all);
            quantize_text(all);
        });
        let model = load_dir(dir.path());
        let [before, after] = [&original, &model].map(|model| known(&**model, &golden));
        for (shot, features) in &before {
            assert_eq!(floats(&features.embeddings), floats(&after[shot].embeddings), "{shot}");
        }
        for case in &golden.cases {
            let mut scene = Scene::new(&*model, vec![sequence(&*model, &golden, &after, case)]);
            let rows = case.prompt.len() as i32;
            let batch = scene.batch(&[(0, rows)]);
            let wants = Wants { logit_rows: vec![rows - 1], ..Wants::default() };
            let logits = scene.run(&batch, &wants).logits.expect("wanted");
            let off = worst(&case.logits, &floats(&logits));
            let most = case.logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
            // Eight bits of each weight: a few hundredths of the largest logit.
            assert!(off < 0.1 * most, "{name}, prompt of {rows}: off by {off} of {most}");
        }
    }
}

#[test]
fn a_layer_that_predicts_a_further_token_is_no_part_of_the_target() {
    let (model, _) = load(OCR);
    let plan = plan_target(&folder(OCR), LoadOptions::default()).expect("a plan");
    assert_eq!((plan.n_layers, model.info().n_layers), (2, 2));
    assert!(plan.has_vision && plan.storage.disk_bytes() == model.info().weight_bytes);
    let without = changed(OCR, |_| {}, |all| all.retain(|name, _| !name.contains(".layers.2.")));
    let smaller = plan_target(without.path(), LoadOptions::default()).expect("a plan");
    assert_eq!(smaller.storage.disk_bytes(), plan.storage.disk_bytes());
    load_dir(without.path());
    // A layer that only the config lacks is an error.
    let short = |config: &mut Value| config["text_config"]["num_hidden_layers"] = json!(1);
    let found = refusal(OCR, short, unchanged);
    assert!(found.contains("the first is model.language_model.layers.1."), "{found}");
}

fn refusal(name: &str, config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> String {
    let dir = changed(name, config, tensors);
    let refused = load_target(dir.path(), &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

#[test]
fn contradictory_configs_are_refused_by_name() {
    load(OCR);
    let says = |name: &str, path: [&str; 2], value: Value, expected: &str| {
        let set = |config: &mut Value| config[path[0]][path[1]] = value.clone();
        let found = refusal(name, set, unchanged);
        assert!(found.contains(expected), "{path:?}: expected {expected:?}, found {found:?}");
    };
    let tower = |key: &'static str| ["vision_config", key];
    says(OCR, tower("hidden_act"), json!("gelu"), "hidden_act: expected silu, found gelu");
    says(OCR, tower("num_heads"), json!(5), "num_heads: expected heads of 16 in all");
    says(OCR, tower("in_channels"), json!(1), "in_channels: expected 3 (red, green, blue)");
    says(OCR, tower("out_hidden_size"), json!(33), "expected the text model's hidden_size, 32");
    says(OCR, tower("patch_size"), json!(257), "patch_size: expected at most 256, found 257");
    says(OCR, tower("depth"), json!(3), "model.visual.blocks.2.norm1.weight is missing");
    says(OCR, tower("attention_bias"), json!(false), "the first is model.visual.blocks.0.attn.");
    says(LARGE, tower("image_size"), json!(3), "image_size: expected 1 to 4096 patches");
    says(LARGE, tower("image_size"), json!(24), "position_embedding.weight has shape [25, 24]");
    says(LARGE, tower("depth"), json!(2), "the first is model.visual.blocks.2.");
    let section = json!({ "rope_type": "default", "mrope_section": [2, 3, 2] });
    let text = ["text_config", "rope_parameters"];
    says(OCR, text, section, "expected three sizes of 8 in all");
    says(OCR, ["text_config", "intermediate_size"], json!(31), "gate_up_proj.weight has shape");
    // Every checkpoint of one family has the biases, and none of the other.
    let other = |config: &mut Value| config["model_type"] = json!("glm_ocr");
    let found = refusal(LARGE, other, unchanged);
    assert!(found.contains("q_norm.weight is missing"), "{found}");
}
