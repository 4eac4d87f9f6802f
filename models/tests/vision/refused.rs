//! Refusals, by their messages: batches, images, configurations.

use mlx_rs::ops::zeros;
use paceline_models::vision::ImagePixels;
use paceline_models::{
    Array, Batch, KvStore, Override, PendingIds, Positions, Target, Wants, load_target,
};
use serde_json::{Value, json};

use crate::scene::{BIAS, SCALE, Scene, Sequence, folder, load};
use crate::{known, sequence};

fn rows(rows: i32, hidden: i32) -> Array {
    zeros::<f32>(&[rows, hidden]).expect("made")
}

fn refusal(model: &dyn Target, batch: &Batch, kv: &mut KvStore) -> String {
    model.forward(batch, kv, &Wants::default()).expect_err("refused").to_string()
}

// More than 60 lines: a table, one contradiction a statement.
#[test]
fn contradictory_batches_are_refused() {
    let (model, golden) = load("qwen3-vl-tiny");
    let known = known(&*model, &golden);
    let sequences: Vec<Sequence> =
        golden.cases[..1].iter().map(|case| sequence(&*model, &golden, &known, case)).collect();
    let mut scene = Scene::new(&*model, sequences);
    let length = golden.cases[0].prompt.len() as i32;
    let good = scene.batch(&[(0, length)]);
    let (hidden, [part]) = (model.info().hidden, good.overrides.as_slice()) else {
        panic!("one image")
    };
    let n = part.rows.len() as i32;
    let mut check = |batch: &Batch, expected: &str| {
        let found = refusal(&*model, batch, &mut scene.kv);
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    };
    let mut overridden = |changed: Override, expected: &str| {
        check(&Batch { overrides: vec![changed], ..good.clone() }, expected);
    };
    let with_rows = |first: i32| Override { rows: (first..first + n).collect(), ..part.clone() };
    overridden(
        with_rows(length - 1),
        &format!("expected rows of a batch of {length}, found {length}"),
    );
    overridden(with_rows(-1), "found -1");
    overridden(
        Override { rows: part.rows.iter().rev().copied().collect(), ..part.clone() },
        "override 0: expected rows, ascending",
    );
    overridden(Override { rows: vec![3; n as usize], ..part.clone() }, "expected rows, ascending");
    overridden(
        Override { rows: vec![], embeddings: rows(0, hidden), after_layer: vec![] },
        "expected rows, ascending",
    );
    let wrong = Override { embeddings: rows(n - 1, hidden), ..part.clone() };
    overridden(
        wrong,
        &format!("expected embeddings of shape [{n}, {hidden}], found [{}, {hidden}]", n - 1),
    );
    overridden(
        Override { embeddings: rows(n, hidden + 1), ..part.clone() },
        "expected embeddings of shape",
    );
    let after = |layers: &[usize], rows: Array| Override {
        after_layer: layers.iter().map(|layer| (*layer, rows.clone())).collect(),
        ..part.clone()
    };
    overridden(after(&[3], rows(n, hidden)), "expected layers below 3, each once, found 3");
    overridden(after(&[1, 1], rows(n, hidden)), "each once, found 1");
    overridden(after(&[0], rows(1, hidden)), "after layer 0, found [1,");
    check(
        &Batch { overrides: vec![part.clone(), part.clone()], ..good.clone() },
        "override 1: row 6 has another embedding already",
    );
    let pending = Some(PendingIds { rows: vec![7], ids: Array::from_slice(&[1u32], &[1]) });
    check(&Batch { pending, ..good.clone() }, "the id of row 7 is pending");

    let mut axes = golden.cases[0].positions.clone();
    axes[1].pop();
    check(
        &Batch { positions: Positions::Axes(axes.clone()), ..good.clone() },
        "expected one position for each id",
    );
    axes.truncate(1);
    check(
        &Batch { positions: Positions::Axes(axes), ..good.clone() },
        "expected positions on at least 3 axes, found 1",
    );
    // And a batch as it should be goes on, so the refusals above were of what was changed.
    model.forward(&good, &mut scene.kv, &Wants::default()).expect("fits");

    // A model without three axes.
    let plain = load_target(&folder("qwen3-tiny"), &mut |_, _| {}).expect("loads");
    let mut kv =
        KvStore::new(&plain.kv_layers(), plain.dtype(), plain.info().context).expect("made");
    good.segments.iter().for_each(|segment| kv.open(segment.sequence).expect("new"));
    let found = refusal(&*plain, &Batch { overrides: vec![], ..good.clone() }, &mut kv);
    assert!(found.contains("no multi-axis positions"), "{found}");
}

#[test]
fn images_that_do_not_fit_the_tower_are_refused() {
    let (model, golden) = load("qwen3-vl-tiny");
    let tower = model.vision().expect("it sees");
    let shot = &golden.images[0];
    let pixels = shot.pixels();
    let good = ImagePixels {
        pixels: &pixels,
        rows: shot.rows,
        columns: shot.columns,
        scale: SCALE,
        bias: BIAS,
    };
    let check = |image: ImagePixels<'_>, expected: &str| {
        let found = tower.begin(&image).expect_err("refused").to_string();
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    };
    check(
        ImagePixels { rows: 5, ..good },
        "expected an image of a multiple of 2 patches each way, found 5 x 8",
    );
    check(ImagePixels { rows: 0, ..good }, "multiple of 2");
    check(ImagePixels { columns: 10, ..good }, "bytes for 6 x 10 patches");
    check(
        ImagePixels { pixels: &pixels[1..], ..good },
        "expected 2304 bytes for 6 x 8 patches, found 2303",
    );
    check(ImagePixels { rows: u32::MAX - 1, columns: u32::MAX - 1, ..good }, "found");
    check(ImagePixels { scale: [1.0, f32::NAN, 1.0], ..good }, "expected finite scale");
    check(ImagePixels { bias: [f32::INFINITY, 0.0, 0.0], ..good }, "expected finite scale");
    tower.begin(&good).expect("fits");
}

/// Loads the tiny checkpoint with another value at a path of its config.json.
fn with(path: &[&str], value: Value) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let from = folder("qwen3-vl-tiny");
    std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors"))
        .expect("copied");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).expect("there"))
            .expect("JSON");
    let (last, parts) = path.split_last().expect("a key");
    let mut object = &mut config;
    for part in parts {
        object = &mut object[part];
    }
    object[last] = value;
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    load_target(dir.path(), &mut |_, _| {})
        .map(|_| ())
        .map_err(|error| paceline_vocabulary::chain(&error))
}

/// Loading with another value at `path` fails with this message.
fn refuses(path: &[&str], value: Value, expected: &str) {
    let found = with(path, value).expect_err("refused");
    assert!(found.contains(expected), "{path:?}: expected {expected:?}, found {found:?}");
}

#[test]
fn impossible_sizes_of_the_tower_are_refused() {
    load("qwen3-vl-tiny");
    let tower = |key: &str, value: Value, expected: &str| {
        let found = with(&["vision_config", key], value).expect_err("refused");
        assert!(
            found.contains(&format!("vision_config.{key}")) && found.contains(expected),
            "{key}: {expected:?}, found {found:?}"
        );
    };
    tower("depth", json!(0), "expected 1 to 16777216, found 0");
    tower("depth", json!(-3), "found -3");
    tower("depth", json!("three"), "invalid type");
    tower(
        "hidden_act",
        json!("relu"),
        "expected gelu_pytorch_tanh, gelu or quick_gelu, found relu",
    );
    tower("num_position_embeddings", json!(35), "expected a square number, found 35");
    tower("num_heads", json!(5), "expected heads of 24 in all, a multiple of 4 each, found 5");
    tower("num_heads", json!(4), "a multiple of 4 each, found 4");
    tower(
        "deepstack_visual_indexes",
        json!([2, 0]),
        "expected blocks below 3, ascending, found [2, 0]",
    );
    tower("deepstack_visual_indexes", json!([0, 0]), "ascending");
    tower("deepstack_visual_indexes", json!([0, 3]), "below 3");
    tower("deepstack_visual_indexes", json!([-1, 0]), "below 3");
    tower("deepstack_visual_indexes", json!(null), "[8, 16, 24]");
    tower("deepstack_visual_indexes", json!(7), "invalid type");
    tower("out_hidden_size", json!(41), "expected the text model's hidden_size, 40, found 41");
    tower("in_channels", json!(1), "expected 3 (red, green, blue), found 1");
    tower("patch_size", json!(1000), "expected at most 256, found 1000");
    tower("patch_size", json!([4, 4]), "invalid type");
    tower("temporal_patch_size", json!(17), "expected at most 16");
    tower("spatial_merge_size", json!(17), "expected at most 16");
    tower("hidden_size", json!(1 << 20), "expected at most 65536");
    tower("rope_parameters", json!({"rope_type": "yarn"}), "rope_type: expected axial, found yarn");
    tower("rope_parameters", json!({"rope_theta": -1.0}), "expected above 0");

    // Null means absent, which means the reference's own value.
    for key in [
        "temporal_patch_size",
        "spatial_merge_size",
        "in_channels",
        "out_hidden_size",
        "hidden_act",
    ] {
        with(&["vision_config", key], json!(null)).expect(key);
    }
}

#[test]
fn impossible_configurations_are_refused() {
    load("qwen3-vl-tiny");
    refuses(&["vision_config"], json!(5), "vision_config: invalid type");
    refuses(&["text_config"], json!(5), "text_config: expected an object, found 5");
    refuses(
        &["text_config", "hidden_size"],
        json!(null),
        "hidden_size: expected a value, found none",
    );
    let section = |value: Value, expected: &str| {
        refuses(&["text_config", "rope_parameters", "mrope_section"], value, expected);
    };
    section(
        json!([4, 2, 3]),
        "mrope_section: expected three sizes of 8 in all, half of a head's numbers that rotate; found \
         [4, 2, 3]",
    );
    section(json!([4, 4]), "expected three sizes");
    section(json!([-4, 6, 6]), "expected three sizes");
    section(json!(null), "found none, which means [24, 20, 20]");
    refuses(
        &["text_config", "rope_parameters", "mrope_interleaved"],
        json!(false),
        "mrope_interleaved: expected true",
    );
    refuses(
        &["image_token_id"],
        json!(null),
        "image_token_id: expected the id of an image's rows, found none",
    );
    refuses(&["image_token_id"], json!(272), "image_token_id: expected an id below 272, found 272");
    refuses(&["image_token_id"], json!("<image>"), "image_token_id");
    refuses(&["model_type"], json!("qwen4_vl"), "qwen3_8_moe_text, found qwen4_vl");
    with(&["text_config", "tie_word_embeddings"], json!(false)).expect("the wrapper's word counts");
}

#[test]
fn configurations_that_contradict_the_tensors_are_refused() {
    load("qwen3-vl-tiny");
    refuses(
        &["vision_config", "patch_size"],
        json!(8),
        "tensor model.visual.patch_embed.proj.weight has shape [24, 3, 2, 4, 4]",
    );
    refuses(&["vision_config", "spatial_merge_size"], json!(3), "tensor model.visual.");
    refuses(
        &["vision_config", "depth"],
        json!(4),
        "tensor model.visual.blocks.3.norm1.weight is missing",
    );
    refuses(
        &["vision_config", "deepstack_visual_indexes"],
        json!([0]),
        "tensors the model does not use, the first is model.visual.deepstack_merger_list.1",
    );
    refuses(&["tie_word_embeddings"], json!(false), "tensor lm_head.weight is missing");
}
