//! Gemma 4 with images against transformers: a tower that standardizes, also with experts, one that
//! clamps, and the model without a tower. Values and provenance: `golden/gemma_vision.py`.

use half::bf16;
use paceline_models::testing::bounds::{allowed, assert_within, is_half, largest};
use paceline_models::vision::ImagePixels;
use paceline_models::{Dtype, LoadOptions, SequenceId, Target, Wants, load_target, plan_target};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::hybrid::{GROUP, numbers, quantize_text};
use crate::scene::{Case, Golden, Scene, floats, folder, load, load_dir, worst};
use crate::{known, sequence};

const TOWER: &str = "gemma4-vl-tiny";
const EXPERTS: &str = "gemma4-vl-moe";
const EDGE: &str = "gemma4-vl-edge";
const UNIFIED: &str = "gemma4-unified-tiny";
/// Indices into the two bounds of a checkpoint in [`LOSSES`]: that of an image's rows, and that of
/// logits.
const ROWS: usize = 0;
const LOGITS: usize = 1;
/// Rows of a pass in stores whose slots keep few positions: more than the rows of an image.
const FEW_ROWS: i32 = 90;

/// Shares of the largest number that the reference itself, transformers 5.23, loses if it computes
/// in bfloat16: of the rows of images, and of logits.
const LOSSES: [(&str, [f32; 2]); 3] =
    [(TOWER, [0.030, 0.100]), (EDGE, [0.017, 0.059]), (UNIFIED, [0.008, 0.041])];

/// How far numbers may be off. In bfloat16 up to half more than the reference, if it loses more
/// than the type's bound.
fn allowed_of(name: &str, kind: usize, dtype: Dtype, expected: &[f32]) -> f32 {
    let of_type = allowed(dtype, expected, [1e-4, 2e-3][kind]);
    let loss = LOSSES.iter().find(|(of, _)| *of == name && dtype == Dtype::Bfloat16);
    loss.map_or(of_type, |(_, losses)| of_type.max(1.5 * losses[kind] * largest(expected)))
}

/// Logits of the last row of a prompt, read in one pass.
fn last_logits(model: &dyn Target, golden: &Golden, case: &Case) -> Vec<f32> {
    let sequence = sequence(model, golden, &known(model, golden), case);
    let mut scene = Scene::new(model, vec![sequence]);
    let rows = case.prompt.len() as i32;
    let batch = scene.batch(&[(0, rows)]);
    let forward = scene.run(&batch, &Wants { logit_rows: vec![rows - 1], ..Wants::default() });
    floats(forward.logits.as_ref().expect("wanted"))
}

fn check(name: &str, model: &dyn Target, golden: &Golden) {
    let known = known(model, golden);
    for case in &golden.cases {
        let what = format!("{name}, images {:?}", case.images);
        let found = last_logits(model, golden, case);
        let allowed = allowed_of(name, LOGITS, model.dtype(), &case.logits);
        assert_within(&what, allowed, &case.logits, &found);
        for (chunk, most_rows) in [(1000, 512), (30, FEW_ROWS), (7, FEW_ROWS)] {
            let one = vec![sequence(model, golden, &known, case)];
            let answer = Scene::with_most_rows(model, one, most_rows)
                .go_on(chunk.min(most_rows), case.greedy.len());
            assert_eq!(answer, std::slice::from_ref(&case.greedy), "{what}, chunks of {chunk}");
        }
    }
    // Side by side, in one pass and in chunks.
    for chunk in [300, 40] {
        let all = golden.cases.iter().map(|case| sequence(model, golden, &known, case)).collect();
        let expected: Vec<_> = golden.cases.iter().map(|case| case.greedy.clone()).collect();
        let found = Scene::new(model, all).go_on(chunk, expected[0].len());
        assert_eq!(found, expected, "{name}, {chunk} rows at a time");
    }
}

fn check_golden(name: &str) {
    let (model, golden) = load(name);
    check(name, &*model, &golden);
}

#[test]
fn rows_of_images_equal_the_reference() {
    for name in [TOWER, EXPERTS, EDGE, UNIFIED] {
        let (model, golden) = load(name);
        let tower = model.vision().expect("it sees");
        for shot in &golden.images {
            let what = format!("{name}, image {}", shot.name);
            let found = shot.features(tower, 1);
            assert_eq!(found.rows() as u32, shot.rows * shot.columns / 9, "{what}");
            assert!(found.after_layer.is_empty(), "{what}");
            let allowed = allowed_of(name, ROWS, found.embeddings.dtype(), &shot.merged);
            assert_within(&what, allowed, &shot.merged, &floats(&found.embeddings));
            // However many blocks at a time: the same bits.
            let at_once = shot.features(tower, tower.info().blocks);
            assert_eq!(floats(&at_once.embeddings), floats(&found.embeddings), "{what}");
        }
    }
}

#[test]
fn answers_to_images_equal_the_reference() {
    check_golden(TOWER);
}

#[test]
fn answers_of_experts_to_images_equal_the_reference() {
    check_golden(EXPERTS);
}

#[test]
fn answers_of_an_edge_model_to_images_equal_the_reference() {
    check_golden(EDGE);
}

#[test]
fn answers_of_the_model_without_a_tower_to_images_equal_the_reference() {
    check_golden(UNIFIED);
}

/// Names of mlx-vlm's conversion.
fn to_mlx(all: &mut Tensors) {
    for (name, tensor) in std::mem::take(all) {
        let name = match name.strip_prefix("model.language_model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => name.trim_start_matches("model.").to_owned(),
        };
        all.insert(name, tensor);
    }
}

#[test]
fn the_layout_of_mlx_gives_the_same_answers() {
    for name in [TOWER, EDGE, UNIFIED] {
        let (_, golden) = load(name);
        let dir = changed(name, |_| {}, to_mlx);
        let model = load_dir(dir.path());
        assert!(dir.path().join("config.json").exists() && model.vision().is_some(), "{name}");
        check(name, &*model, &golden);
    }
}

/// Stores a tensor in the type of the checkpoint.
fn in_16_bits(tensor: &mut Tensor) {
    let rounded = numbers(tensor).into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes());
    (tensor.bytes, tensor.dtype) = (rounded.collect(), safetensors::Dtype::BF16);
}

#[test]
fn a_quantized_text_model_keeps_its_tower_as_it_is_stored() {
    for name in [TOWER, EDGE, UNIFIED] {
        let (original, golden) = load(name);
        let formats = |config: &mut Value| {
            config["quantization"] = json!({"group_size": GROUP, "bits": 8, "mode": "affine"});
        };
        let dir = changed(name, formats, |all| {
            to_mlx(all);
            quantize_text(all);
            let is_factor = |name: &str| name.ends_with(".scales") || name.ends_with(".biases");
            let factors = all.iter_mut().filter(|(name, _)| is_factor(name));
            assert!(factors.map(|(_, tensor)| in_16_bits(tensor)).count() > 2, "quantized");
        });
        let model = load_dir(dir.path());
        let [before, after] = [&original, &model].map(|model| known(&**model, &golden));
        for (image, features) in &before {
            let (before, after) = (&features.embeddings, &after[image].embeddings);
            assert_eq!(floats(before), floats(after), "{name}, {image}");
        }
        for case in &golden.cases {
            let off = worst(&case.logits, &last_logits(&*model, &golden, case));
            let most = case.logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
            let share = if is_half(model.dtype()) { 0.2 } else { 0.1 };
            assert!(off < share * most, "{name}: off by {off}, the largest is {most}");
        }
    }
}

#[test]
fn rows_of_an_image_attend_both_ways_only_where_the_config_says_so() {
    for name in [TOWER, UNIFIED] {
        let (model, golden) = load(name);
        assert!(model.vision().expect("it sees").info().whole, "{name}");
        let (prompt, images) = (&golden.cases[0].prompt, &golden.cases[0].images);
        assert!(prompt.len() > 70 && images.len() == 1, "{name}");
    }
    let (model, golden) = load(TOWER);
    let causal = |config: &mut Value| {
        config["text_config"]["use_bidirectional_attention"] = Value::Null;
    };
    let dir = changed(TOWER, causal, unchanged);
    let causal = load_dir(dir.path());
    assert!(!causal.vision().expect("it sees").info().whole);
    for case in &golden.cases {
        let off =
            worst(&last_logits(&*causal, &golden, case), &last_logits(&*model, &golden, case));
        assert_eq!(off > 0.05, !case.images.is_empty(), "{:?}: off by {off}", case.images);
    }
}

#[test]
fn the_rows_of_an_image_read_the_id_of_padding() {
    let (model, golden) = load(EDGE);
    if is_half(model.dtype()) {
        return;
    }
    let other = |config: &mut Value| config["text_config"]["pad_token_id"] = json!(8);
    let dir = changed(EDGE, other, unchanged);
    let off = worst(
        &last_logits(&*load_dir(dir.path()), &golden, &golden.cases[0]),
        &golden.cases[0].logits,
    );
    assert!(off > 0.01, "off by {off}");
}

#[test]
fn a_plan_names_the_images_and_the_rows_of_a_pass() {
    for (name, rows) in [(TOWER, 1120), (EDGE, 512), (UNIFIED, 1120)] {
        let dir = changed(name, |_| {}, unchanged);
        let plan = || plan_target(dir.path(), LoadOptions::default()).expect("a plan");
        assert!(plan().has_vision, "{name}");
        // Without a file the rows are the reference's own.
        assert_eq!(plan().most_rows, 512, "{name}");
        let processor = json!({"image_processor": {"max_soft_tokens": 1120}}).to_string();
        std::fs::write(dir.path().join("processor_config.json"), processor).expect("written");
        assert_eq!(plan().most_rows, rows, "{name}");
        assert_eq!(load_dir(dir.path()).most_rows(), rows, "{name}");
    }
    let text = changed(TOWER, |_| {}, |all| all.retain(|name, _| name.contains("language_model")));
    let plan = plan_target(text.path(), LoadOptions::default()).expect("a plan");
    assert!(!plan.has_vision && load_dir(text.path()).vision().is_none());
}

fn refusal(name: &str, config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> String {
    let dir = changed(name, config, tensors);
    let refused = load_target(dir.path(), &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

#[test]
fn each_tensor_of_a_tower_that_is_missing_is_refused_by_its_name() {
    for name in [TOWER, EDGE, UNIFIED] {
        load(name);
        let bytes = std::fs::read(folder(name).join("model.safetensors")).expect("there");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
        let of_tower = tensors.names().into_iter().filter(|name| name.contains("vision"));
        let mut refused = 0;
        for tensor in of_tower {
            let found = refusal(name, |_| {}, |all| drop(all.remove(tensor)));
            assert!(found.contains(tensor), "{name}, {tensor}: {found}");
            refused += 1;
        }
        assert!(refused > 8, "{name}");
    }
}

#[test]
fn towers_that_are_not_computed_are_refused_by_name() {
    load(TOWER);
    for (key, value, says) in [
        ("hidden_activation", json!("silu"), "hidden_activation: expected gelu_pytorch_tanh"),
        ("num_key_value_heads", json!(1), "num_key_value_heads: expected num_attention_heads, 2"),
        ("head_dim", json!(6), "head_dim: expected a multiple of 4"),
        ("attention_bias", json!(true), "attention_bias: expected false"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "rope_type: expected axial, found yarn"),
        ("pooling_kernel_size", json!(17), "pooling_kernel_size: expected at most 16"),
    ] {
        let found =
            refusal(TOWER, |config| config["vision_config"][key] = value.clone(), unchanged);
        assert!(found.contains(says), "{key}: {found}");
    }
}

#[test]
fn images_that_do_not_fit_are_refused() {
    for name in [TOWER, UNIFIED] {
        let (model, _) = load(name);
        let tower = model.vision().expect("it sees");
        let refused = |rows: u32, columns: u32| {
            let pixels = vec![0; (rows * columns * 12) as usize];
            let (scale, bias) = ([1.0; 3], [0.0; 3]);
            let image = ImagePixels { pixels: &pixels, rows, columns, scale, bias };
            tower.begin(&image).map(|_| ()).expect_err("refused").to_string()
        };
        assert!(refused(24, 27).contains("at most 70 rows of the prompt, found 72"), "{name}");
        assert!(refused(3, 4).contains("a multiple of 3 patches"), "{name}");
        assert!(refused(3, 120).contains("patches each way, found"), "{name}");
    }
}

#[test]
fn an_image_in_rows_that_do_not_follow_one_another_is_refused() {
    let (model, golden) = load(TOWER);
    let known = known(&*model, &golden);
    let case = &golden.cases[0];
    let mut scene = Scene::new(&*model, vec![sequence(&*model, &golden, &known, case)]);
    let mut batch = scene.batch(&[(0, case.prompt.len() as i32)]);
    let last = batch.overrides[0].rows.last_mut().expect("rows");
    *last += 2;
    let refused = model.forward(&batch, &mut scene.kv, &Wants::default()).expect_err("refused");
    let expected = "expected rows of an image that follow one another";
    assert!(refused.to_string().contains(expected), "{refused}");
    assert_eq!(scene.kv.length(SequenceId(0)), Some(0));
}
