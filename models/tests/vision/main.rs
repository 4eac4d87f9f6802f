//! Families with vision towers against transformers on tiny random checkpoints: images
//! to features, prompts with images to tokens. Values and provenance: `golden/*vision.py`,
//! remade by `make golden`.

mod broken;
#[path = "../parity/changed.rs"]
mod changed;
mod gemma;
mod glm;
mod graphs;
mod hybrid;
mod ocr;
mod ocr_draft;
mod qwen;
mod refused;
mod scene;
mod text;

use std::collections::HashMap;

use paceline_models::testing::bounds::assert_close;
use paceline_models::vision::{Features, ImagePixels};
use paceline_models::{Array, FeatureLayers, Target, Wants};
use scene::{BIAS, Case, Golden, SCALE, Scene, Sequence, features, floats, load, worst};

fn known(model: &dyn Target, golden: &Golden) -> HashMap<String, Features> {
    let tower = model.vision().expect("it sees");
    golden.images.iter().map(|shot| (shot.name.clone(), shot.features(tower, 1))).collect()
}

fn sequence(
    model: &dyn Target,
    golden: &Golden,
    known: &HashMap<String, Features>,
    case: &Case,
) -> Sequence {
    let shot = |name: &String| golden.images.iter().find(|shot| shot.name == *name).expect("drawn");
    let shots: Vec<_> = case.images.iter().map(shot).collect();
    let seeing = Sequence::new(&case.prompt, &shots, model.vision().expect("it sees"), known);
    seeing.along(case.greedy.clone())
}

fn check_features(name: &str) {
    let (model, golden) = load(name);
    let tower = model.vision().expect("it sees");
    for shot in &golden.images {
        let found = shot.features(tower, 1);
        let what = format!("{name}, image {}", shot.name);
        let info = tower.info();
        let rows = info.form.rows(shot.rows / info.merge, shot.columns / info.merge);
        assert_eq!(found.rows() as u64, rows, "{what}");
        let dtype = found.embeddings.dtype();
        let close = |what: &str, expected: &[f32], found: &Array| {
            assert_close(what, dtype, expected, &floats(found), 1e-4)
        };
        close(&format!("{what}: features"), &shot.merged, &found.embeddings);
        assert_eq!(found.after_layer.len(), shot.deepstack.len(), "{what}");
        for (at, (expected, (layer, level))) in
            shot.deepstack.iter().zip(&found.after_layer).enumerate()
        {
            assert_eq!(at, *layer, "{what}");
            close(&format!("{what}: features for layer {layer}"), expected, level);
        }
        let numbers = shot.merged.len() + shot.deepstack.iter().map(Vec::len).sum::<usize>();
        assert_eq!(found.bytes(), numbers as u64 * found.embeddings.item_size() as u64, "{what}");
        // However many blocks at a time: the same bits.
        for blocks in [2, 3, 100] {
            let at_once = shot.features(tower, blocks.min(tower.info().blocks));
            assert_eq!(floats(&at_once.embeddings), floats(&found.embeddings), "{what}");
        }
    }
}

fn check_prompts(name: &str) {
    let (model, golden) = load(name);
    check_answers(name, &*model, &golden);
}

/// A model against the golden file of `name`.
fn check_answers(name: &str, model: &dyn Target, golden: &Golden) {
    let known = known(model, golden);
    for case in &golden.cases {
        let what = format!("{name}, images {:?}", case.images);
        let mut scene = Scene::new(model, vec![sequence(model, golden, &known, case)]);
        let rows = case.prompt.len() as i32;
        let batch = scene.batch(&[(0, rows)]);
        assert_eq!(
            batch.positions,
            paceline_models::Positions::Axes(case.positions.clone()),
            "{what}"
        );
        let features =
            FeatureLayers { layers: golden.tap_layers.clone(), rows: case.tap_rows.clone() };
        let forward = scene.run(
            &batch,
            &Wants {
                logit_rows: vec![rows - 1],
                hidden_states: Some(features),
                ..Wants::default()
            },
        );
        let close = |of: &str, expected: &[f32], found: &Array| {
            assert_close(&format!("{what}: {of}"), model.dtype(), expected, &floats(found), 1e-3)
        };
        close("logits", &case.logits, forward.logits.as_ref().expect("wanted"));
        let states = forward.hidden_states.as_ref().expect("wanted").side_by_side().expect("lazy");
        close("hidden states", &case.taps.concat().concat(), &states);

        // Alone, and read in so that chunks end inside images: the same ids.
        for chunk in [1000, 7, 3] {
            let mut scene = Scene::new(model, vec![sequence(model, golden, &known, case)]);
            assert_eq!(
                scene.go_on(chunk, case.greedy.len()),
                std::slice::from_ref(&case.greedy),
                "{what}, {chunk} rows at a time"
            );
        }
    }
    // Side by side, in one forward and in chunks.
    for chunk in [1000, 5] {
        let sequences =
            golden.cases.iter().map(|case| sequence(model, golden, &known, case)).collect();
        let expected: Vec<_> = golden.cases.iter().map(|case| case.greedy.clone()).collect();
        assert_eq!(
            Scene::new(model, sequences).go_on(chunk, expected[0].len()),
            expected,
            "{name}, {chunk} rows at a time"
        );
    }
}

#[test]
fn features_equal_the_reference() {
    check_features("qwen3-vl-tiny");
}

#[test]
fn features_equal_the_reference_in_the_layout_of_mlx() {
    check_features("qwen3-vl-tiny-mlx");
}

#[test]
fn answers_to_images_equal_the_reference() {
    check_prompts("qwen3-vl-tiny");
}

#[test]
fn answers_to_images_equal_the_reference_in_the_layout_of_mlx() {
    check_prompts("qwen3-vl-tiny-mlx");
}

#[test]
fn another_image_gives_other_features_and_another_answer() {
    let (model, golden) = load("qwen3-vl-tiny");
    let tower = model.vision().expect("it sees");
    let mut known = known(&*model, &golden);
    let case = &golden.cases[0];
    let shot = golden.images.iter().find(|shot| shot.name == case.images[0]).expect("drawn");
    let mut pixels = shot.pixels();
    pixels.reverse();
    let turned = ImagePixels {
        pixels: &pixels,
        rows: shot.rows,
        columns: shot.columns,
        scale: SCALE,
        bias: BIAS,
    };
    let turned = features(tower, &turned, 1);
    assert!(worst(&shot.merged, &floats(&turned.embeddings)) > 0.1);
    known.insert(shot.name.clone(), turned);
    let free = sequence(&*model, &golden, &known, case).along(vec![]);
    let mut scene = Scene::new(&*model, vec![free]);
    assert_ne!(scene.go_on(1000, case.greedy.len()), std::slice::from_ref(&case.greedy));
}
