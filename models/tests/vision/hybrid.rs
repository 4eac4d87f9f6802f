//! Qwen3.5 with a vision tower against transformers, dense and with experts. Text, chunks, batches
//! and layouts give the bits of one another.

use half::bf16;
use mlx_rs::Array;
use mlx_rs::ops::quantize;
use paceline_models::sample::{RowRule, choose};
use paceline_models::testing::bounds::assert_same;
use paceline_models::{LoadOptions, SequenceId, Target, Wants, load_target, plan_target};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::scene::{Case, Golden, Scene, Sequence, floats, load, load_dir, worst};
use crate::{check_features, check_prompts, known, sequence};

pub const DENSE: &str = "qwen3_5-vl-tiny";
pub const EXPERTS: &str = "qwen3_5_moe-vl-tiny";

#[test]
fn features_equal_the_reference() {
    check_features(DENSE);
    check_features(EXPERTS);
}

#[test]
fn answers_to_images_equal_the_reference() {
    check_prompts(DENSE);
}

#[test]
fn answers_of_experts_to_images_equal_the_reference() {
    check_prompts(EXPERTS);
}

/// Ids that each sequence decodes after its prompt.
const MORE: usize = 8;

/// All logits from which these sequences' ids are chosen, each sequence's one after another. Prompts
/// are read `chunk` rows at a time, side by side.
pub fn all_logits(model: &dyn Target, sequences: Vec<Sequence>, chunk: i32) -> Vec<Vec<f32>> {
    let ends: Vec<usize> = sequences.iter().map(|sequence| sequence.ids.len() + MORE).collect();
    let mut scene = Scene::new(model, sequences);
    let mut all = vec![vec![]; ends.len()];
    loop {
        let unfinished = (0..ends.len()).filter(|at| scene.sequences[*at].ids.len() < ends[*at]);
        let mut next: Vec<(usize, i32)> = unfinished
            .map(|at| {
                let done = scene.kv.length(SequenceId(at as u64)).expect("open");
                (at, chunk.min(scene.sequences[at].ids.len() as i32 - done))
            })
            .collect();
        if next.is_empty() {
            return all;
        }
        next.sort_by_key(|(at, _)| scene.kv.order(SequenceId(*at as u64)));
        let batch = scene.batch(&next);
        let (mut row, mut rows, mut choosing) = (0, vec![], vec![]);
        for ((at, length), segment) in next.iter().zip(&batch.segments) {
            row += length;
            if segment.end() as usize == scene.sequences[*at].ids.len() {
                rows.push(row - 1);
                choosing.push(*at);
            }
        }
        let wants = Wants { logit_rows: rows, ..Wants::default() };
        let Some(logits) = scene.run(&batch, &wants).logits else {
            scene.kv.evaluate().expect("evaluates");
            continue;
        };
        let rules = vec![RowRule::greedy(&[], 0); choosing.len()];
        let choices = choose(&logits, &rules, &[]).expect("choices");
        let numbers = floats(&logits);
        let by_row = numbers.chunks(model.info().vocab as usize);
        for ((at, numbers), choice) in choosing.iter().zip(by_row).zip(choices) {
            all[*at].extend_from_slice(numbers);
            scene.sequences[*at].choose(model.dtype(), numbers, choice.token);
        }
    }
}

/// [`all_logits`] of the cases of a golden file.
pub fn case_logits(
    model: &dyn Target,
    golden: &Golden,
    cases: &[usize],
    chunk: i32,
) -> Vec<Vec<f32>> {
    let known = known(model, golden);
    let one = |case: &usize| sequence(model, golden, &known, &golden.cases[*case]);
    all_logits(model, cases.iter().map(one).collect(), chunk)
}

pub fn check_chunks_and_neighbours(name: &str) {
    let (model, golden) = load(name);
    let every: Vec<usize> = (0..golden.cases.len()).collect();
    let logits = |cases: &[usize], chunk| case_logits(&*model, &golden, cases, chunk);
    let same = |what: &str, expected: &[f32], found: &[f32]| {
        assert_same(&format!("{name}, {what}"), model.dtype(), expected, found)
    };
    let alone: Vec<Vec<f32>> = every.iter().flat_map(|case| logits(&[*case], 1000)).collect();
    for case in &every {
        let prompt = golden.cases[*case].prompt.len();
        for chunk in [1, 7, 64] {
            let what = format!("prompt of {prompt}, chunks of {chunk}");
            same(&what, &alone[*case], &logits(&[*case], chunk)[0]);
        }
    }
    for chunk in [5, 1000] {
        for (expected, found) in alone.iter().zip(logits(&every, chunk)) {
            same(&format!("together, chunks of {chunk}"), expected, &found);
        }
    }
}

#[test]
fn chunks_of_any_size_and_neighbours_give_the_same_bits() {
    check_chunks_and_neighbours(DENSE);
}

#[test]
fn chunks_of_any_size_and_neighbours_of_experts_give_the_same_bits() {
    check_chunks_and_neighbours(EXPERTS);
}

pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype {
        Dtype::F32 => {
            tensor.bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
        }
        Dtype::BF16 => {
            let halves = tensor.bytes.as_chunks().0.iter();
            halves.map(|two| bf16::from_le_bytes(*two).to_f32()).collect()
        }
        other => panic!("a tensor of {other:?}"),
    }
}

/// Stores these numbers in float32.
pub fn store(tensor: &mut Tensor, numbers: &[f32]) {
    tensor.bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    tensor.dtype = Dtype::F32;
}

/// Moves the axis after the first one to the end.
pub fn channels_last(tensor: &mut Tensor) {
    let shape: Vec<i32> = tensor.shape.iter().map(|size| *size as i32).collect();
    let array = Array::from_slice(&numbers(tensor), &shape);
    let mut axes: Vec<i32> = (0..shape.len() as i32).collect();
    axes.remove(1);
    axes.push(1);
    let turned = array.transpose_axes(&axes).expect("turned");
    tensor.shape = turned.shape().iter().map(|size| *size as usize).collect();
    store(tensor, &floats(&turned));
}

/// Whether the axes of the tower's convolution are turned, too.
#[derive(Clone, Copy, PartialEq)]
pub enum Patches {
    ChannelsFirst,
    ChannelsLast,
}

/// Makes a checkpoint of transformers into mlx-vlm's conversion of it, but for rounding.
pub fn to_mlx(all: &mut Tensors, patches: Patches) {
    for (name, mut tensor) in std::mem::take(all) {
        let is_norm = !name.contains("visual")
            && !name.contains("linear_attn")
            && name.ends_with("norm.weight");
        if is_norm {
            let whole: Vec<f32> = numbers(&tensor).iter().map(|number| number + 1.0).collect();
            store(&mut tensor, &whole);
        }
        let is_patch_embed = name.ends_with("patch_embed.proj.weight");
        if name.ends_with("conv1d.weight") || (is_patch_embed && patches == Patches::ChannelsLast) {
            channels_last(&mut tensor);
        }
        let name = name
            .replace("model.visual.", "vision_tower.")
            .replace("model.language_model.", "language_model.model.");
        all.insert(name, tensor);
    }
}

#[test]
fn the_layout_of_mlx_gives_the_bits_of_that_of_transformers() {
    let (original, golden) = load(DENSE);
    let cases = [1, 3];
    let expected = case_logits(&*original, &golden, &cases, 1000);
    for patches in [Patches::ChannelsLast, Patches::ChannelsFirst] {
        let dir = changed(DENSE, |_| {}, |all| to_mlx(all, patches));
        let model = load_dir(dir.path());
        assert_eq!(case_logits(&*model, &golden, &cases, 1000), expected);
    }
}

/// Numbers that share a scale.
pub const GROUP: usize = 32;

/// Quantizes the matrices of a text model in MLX's layout to 8 bits. The tower stays as it is.
pub fn quantize_text(all: &mut Tensors) {
    for (name, tensor) in std::mem::take(all) {
        let module = name.strip_suffix(".weight").filter(|module| {
            let whole_groups = tensor.shape.last().is_some_and(|inputs| inputs % GROUP == 0);
            module.starts_with("language_model.") && tensor.shape.len() == 2 && whole_groups
        });
        let Some(module) = module else {
            all.insert(name, tensor);
            continue;
        };
        let shape: Vec<i32> = tensor.shape.iter().map(|size| *size as i32).collect();
        let matrix = Array::from_slice(&numbers(&tensor), &shape);
        let (packed, scales, biases) = quantize(&matrix, GROUP as i32, 8).expect("quantized");
        let shape = |array: &Array| array.shape().iter().map(|size| *size as usize).collect();
        let words = packed.try_as_slice::<u32>().expect("words").iter();
        let bytes = words.flat_map(|word| word.to_le_bytes()).collect();
        all.insert(
            format!("{module}.weight"),
            Tensor { dtype: Dtype::U32, shape: shape(&packed), bytes },
        );
        for (part, array) in [("scales", scales), ("biases", biases)] {
            let mut tensor = Tensor { dtype: Dtype::F32, shape: shape(&array), bytes: vec![] };
            store(&mut tensor, &floats(&array));
            all.insert(format!("{module}.{part}"), tensor);
        }
    }
}

#[test]
fn a_quantized_text_model_keeps_its_tower_as_it_is_stored() {
    let (original, golden) = load(DENSE);
    let formats = |config: &mut Value| {
        config["quantization"] = json!({ "group_size": GROUP, "bits": 8, "mode": "affine" });
    };
    let dir = changed(DENSE, formats, |all| {
        to_mlx(all, Patches::ChannelsLast);
        quantize_text(all);
    });
    let model = load_dir(dir.path());
    let [before, after] = [&original, &model].map(|model| known(&**model, &golden));
    for (name, features) in &before {
        assert_eq!(floats(&features.embeddings), floats(&after[name].embeddings), "{name}");
    }
    for case in &golden.cases {
        let mut scene = Scene::new(&*model, vec![sequence(&*model, &golden, &after, case)]);
        let rows = case.prompt.len() as i32;
        let batch = scene.batch(&[(0, rows)]);
        let wants = Wants { logit_rows: vec![rows - 1], ..Wants::default() };
        let logits = scene.run(&batch, &wants).logits.expect("wanted");
        let off = worst(&case.logits, &floats(&logits));
        let most = case.logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
        // Eight bits of each weight, through three layers: a few hundredths of the largest logit.
        assert!(off < 0.1 * most, "prompt of {rows}: off by {off}, the largest is {most}");
    }
}

fn without_tower(all: &mut Tensors) {
    all.retain(|name, _| !name.contains("visual"));
}

#[test]
fn a_checkpoint_without_a_tower_is_the_text_model_bit_by_bit() {
    let (seeing, golden) = load(DENSE);
    let text = golden.cases.iter().position(|case| case.images.is_empty()).expect("one of text");
    let expected = case_logits(&*seeing, &golden, &[text], 1000);
    let no_sizes = |config: &mut Value| config["vision_config"] = Value::Null;
    // mlx-lm's conversions have the sizes and no tensors. Without sizes tensors are left unread.
    for dir in [changed(DENSE, |_| {}, without_tower), changed(DENSE, no_sizes, unchanged)] {
        let plan = plan_target(dir.path(), LoadOptions::default()).expect("a plan");
        let model = load_dir(dir.path());
        assert!(model.vision().is_none() && !plan.has_vision);
        assert_eq!(plan.storage.disk_bytes(), model.info().weight_bytes);
        let Case { prompt, greedy, .. } = &golden.cases[text];
        let only = Sequence::of_text(prompt).along(greedy.clone());
        assert_eq!(all_logits(&*model, vec![only], 1000), expected);
    }
    let plan = plan_target(&crate::scene::folder(DENSE), LoadOptions::default()).expect("a plan");
    assert!(seeing.vision().is_some() && plan.has_vision);
    assert_eq!(plan.storage.disk_bytes(), seeing.info().weight_bytes);
}

fn refusal(config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> String {
    let dir = changed(DENSE, config, tensors);
    let refused = load_target(dir.path(), &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

#[test]
fn contradictory_configs_of_the_tower_are_refused_by_name() {
    load(DENSE);
    let says = |path: &[&str], value: Value, expected: &str| {
        let found = refusal(
            |config| {
                let (last, parts) = path.split_last().expect("a key");
                let object = parts.iter().fold(config, |object, part| &mut object[part]);
                object[last] = value.clone();
            },
            unchanged,
        );
        assert!(found.contains(expected), "{path:?}: expected {expected:?}, found {found:?}");
    };
    says(
        &["vision_config", "deepstack_visual_indexes"],
        json!([1]),
        "deepstack_visual_indexes: expected no blocks for this model_type, found [1]",
    );
    says(&["vision_config", "out_hidden_size"], json!(33), "expected the text model's hidden_size");
    says(&["vision_config", "depth"], json!(4), "model.visual.blocks.3.norm1.weight is missing");
    says(&["vision_config", "depth"], json!(2), "the first is model.visual.blocks.2.");
    says(&["image_token_id"], Value::Null, "image_token_id: expected the id of an image's rows");
    says(&["image_token_id"], json!(272), "image_token_id: expected an id below 272, found 272");
    says(
        &["text_config", "rope_parameters", "mrope_section"],
        json!([11, 11, 10]),
        "expected three sizes of 8 in all, half of a head's numbers that rotate; found [11, 11, 10]",
    );
    says(
        &["text_config", "rope_parameters", "mrope_section"],
        Value::Null,
        "found none, which means [11, 11, 10]",
    );
    says(
        &["text_config", "rope_parameters", "mrope_interleaved"],
        json!(false),
        "mrope_interleaved: expected true",
    );
    // Of a text model nothing about axes is read.
    let text = |config: &mut Value| {
        config["vision_config"] = Value::Null;
        config["text_config"]["rope_parameters"]["mrope_section"] = json!([1]);
    };
    assert_eq!(refusal(text, unchanged), "loads");
}

#[test]
fn a_convolution_whose_axes_cannot_be_told_apart_is_refused_by_name() {
    load(DENSE);
    let sizes = |config: &mut Value| {
        config["vision_config"]["patch_size"] = json!(3);
        config["vision_config"]["temporal_patch_size"] = json!(3);
    };
    let found = refusal(sizes, |all| {
        let name = "model.visual.patch_embed.proj.weight";
        let tensor = all.get_mut(name).expect("it is there");
        tensor.shape = vec![24, 3, 3, 3, 3];
        tensor.bytes = vec![0; 2 * 24 * 81];
    });
    let expected = "temporal_patch_size: expected sizes by which the axes of tensor \
                    model.visual.patch_embed.proj.weight can be told apart, found 3 frames and \
                    patches of 3";
    assert!(found.contains(expected), "{found}");
}
