//! A plan predicts the memory of a loaded model.

use std::path::{Path, PathBuf};

use paceline_models::testing::bounds::is_half;
use paceline_models::{
    Batch, DeviceChoice, KvStore, LayerKv, LoadOptions, Quantize, Segment, SequenceId, Target,
    Wants, device, load_draft, load_target_with, plan_draft, plan_target,
};

/// Bytes that MLX rounds each of some hundred arrays up by.
const ROUNDING_BYTES: f64 = 256.0 * 1024.0;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn a_loaded_model_takes_what_was_planned() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    for (dir, keep_quantized) in [
        (demo, true),
        (golden("qwen3-tiny-q4"), true),
        (golden("qwen3-tiny-q4"), false),
        (golden("qwen3-moe-tiny"), true),
        (golden("qwen3_5-tiny"), true),
        (golden("qwen3_5_moe-tiny-q4"), true),
        (golden("glm-ocr-tiny"), true),
        (golden("gemma4-vl-tiny"), true),
        (golden("gemma4-vl-edge"), true),
        (golden("gemma4-unified-tiny"), true),
        (golden("paddleocr_vl-tiny"), true),
        (golden("hunyuan_vl-tiny"), true),
    ] {
        let options = LoadOptions { keep_quantized, ..LoadOptions::default() };
        let plan = plan_target(&dir, options).expect("a plan");
        let before = device::memory().0;
        let model = load_target_with(&dir, options, &mut |_, _| {}).expect("loads");
        let taken = device::memory().0.saturating_sub(before) as f64;
        let planned = plan.storage.memory_bytes() as f64;
        let off = (taken - planned).abs();
        let name = dir.display();
        assert!(
            off <= 0.05 * planned + ROUNDING_BYTES,
            "{name}, {keep_quantized}: planned {planned}, taken {taken}"
        );
        assert_eq!(plan.storage.disk_bytes(), model.info().weight_bytes, "{name}");
        let info = model.info();
        assert_eq!(
            (plan.hidden, plan.vocab, plan.context, plan.n_layers as usize),
            (info.hidden, info.vocab, info.context, info.n_layers)
        );
        let layers = model.kv_layers();
        let growing = layers.iter().filter_map(LayerKv::growing);
        let sizes = growing.map(|layer| (layer.n_kv, layer.key_dim, layer.value_dim, layer.window));
        let planned = plan.kv_heads.iter();
        let planned = planned.map(|kv| (kv.n_kv, kv.head_dim, kv.head_dim, kv.window));
        assert!(planned.eq(sizes), "{name}: {:?}", plan.kv_heads);
        let number = if is_half(model.dtype()) { 2 } else { 4 };
        assert_eq!(plan.number_bytes, number, "{name}");
        let recurrent = layers.iter().filter_map(|layer| match layer {
            LayerKv::Recurrent(sizes) => Some(*sizes),
            LayerKv::Growing(_) | LayerKv::Shared(_) => None,
        });
        assert_eq!(plan.recurrent, recurrent.collect::<Vec<_>>(), "{name}");
        assert_eq!(plan.has_vision, model.vision().is_some(), "{name}");
    }
}

/// Bytes of arrays that a loaded drafter holds.
fn held(dir: &Path, kind: &str, target: Option<&Path>, quantize: Quantize) -> u64 {
    let before = device::memory().0;
    let drafter = load_draft(dir, kind, target, quantize, &mut |_, _| {}).expect("loads");
    let held = device::memory().0.saturating_sub(before);
    drop(drafter);
    held
}

#[test]
fn what_a_drafter_takes_is_planned_as_it_is_quantized() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/drafter");
    for (drafter, kind, target) in [
        (demo, "auto", None),
        (golden("model-qwen3"), "model", None),
        (golden("dspark-qwen3_5"), "auto", Some(golden("mtp-dense"))),
        (golden("dflash2-qwen3_5"), "auto", Some(golden("mtp-dense"))),
        (golden("eagle3-qwen3"), "auto", None),
        (golden("mtp-dense"), "mtp", Some(golden("mtp-dense"))),
        (golden("mtp-moe"), "mtp", Some(golden("mtp-moe-target"))),
    ] {
        let (name, target) = (drafter.display(), target.as_deref());
        let mut planned = vec![];
        for quantize in [Quantize::None, Quantize::Q8, Quantize::Q4] {
            let plan = plan_draft(&drafter, kind, target, quantize).expect("a plan");
            let bytes = plan.storage.memory_bytes() as f64;
            let held = held(&drafter, kind, target, quantize) as f64;
            let off = (held - bytes).abs();
            let message = format!("{name}, {quantize:?}: planned {bytes}, held {held}");
            assert!(off <= 0.05 * bytes + ROUNDING_BYTES, "{message}");
            planned.push(bytes);
        }
        assert!(planned.is_sorted_by(|more, fewer| more > fewer), "{name}: {planned:?}");
    }
}

#[test]
fn drafters_of_gemma_4_take_what_was_planned() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    // Their rows are too short to be quantized, and are loaded as floats whatever is asked for.
    for (drafter, target) in [
        ("dspark-gemma4", "gemma4-draft-target"),
        ("assistant-dense", "gemma4-draft-target"),
        ("assistant-edge", "gemma4-draft-edge"),
    ] {
        for quantize in [Quantize::None, Quantize::Q8] {
            let (dir, target) = (golden(drafter), golden(target));
            let plan = plan_draft(&dir, "auto", Some(&target), quantize).expect("a plan");
            let bytes = plan.storage.memory_bytes() as f64;
            let held = held(&dir, "auto", Some(&target), quantize) as f64;
            let message = format!("{drafter}, {quantize:?}: planned {bytes}, held {held}");
            assert!((held - bytes).abs() <= 0.05 * bytes + ROUNDING_BYTES, "{message}");
        }
    }
}

/// These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).
#[cfg(any(debug_assertions, feature = "test-graph"))]
mod graphs {
    use paceline_models::testing::rerun::Rerun;

    #[test]
    #[ignore = "more: seconds"]
    fn in_the_graph_of_mlx() {
        // A drafter is quantized at load where the plan counts what nodes of our own can use.
        let only = &["a_loaded_model_takes_what_was_planned"];
        Rerun { graph: "mlx", only, skipped: &[], reruns: &[] }.run();
    }

    #[test]
    #[ignore = "more: seconds"]
    fn in_the_graph_of_a_gpu() {
        let only = &[
            "a_loaded_model_takes_what_was_planned",
            "what_a_drafter_takes_is_planned_as_it_is_quantized",
        ];
        Rerun { graph: "gpu", only, skipped: &[], reruns: &[] }.run();
    }
}

/// A checkpoint that is loaded as text alone has no tower in memory, and the same text model.
#[test]
fn a_checkpoint_may_be_loaded_as_text_alone() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    for name in [
        "qwen3-vl-tiny",
        "qwen3-vl-tiny-mlx",
        "qwen2-vl-tiny",
        "qwen2_5-vl-tiny",
        "qwen3-vl-moe-tiny",
        "glm4v-tiny",
        "glm-ocr-tiny",
        "paddleocr_vl-tiny",
        "hunyuan_vl-tiny",
        "qwen3_5-vl-tiny",
        "qwen3_5_moe-vl-tiny",
        "gemma4-vl-tiny",
        "gemma4-vl-edge",
        "gemma4-unified-tiny",
    ] {
        let dir = golden(name);
        let options = LoadOptions { vision: false, ..LoadOptions::default() };
        let whole = plan_target(&dir, LoadOptions::default()).expect("a plan");
        let plan = plan_target(&dir, options).expect("a plan");
        assert!(whole.has_vision && !plan.has_vision, "{name}");
        assert!(plan.storage.memory_bytes() < whole.storage.memory_bytes(), "{name}");
        let load = |options| load_target_with(&dir, options, &mut |_, _| {}).expect("loads");
        let (seeing, text) = (load(LoadOptions::default()), load(options));
        assert!(seeing.vision().is_some() && text.vision().is_none(), "{name}");
        assert_eq!(plan.storage.disk_bytes(), text.info().weight_bytes, "{name}");
        let logits = |model: &dyn Target| {
            let mut kv = KvStore::new(&model.kv_layers(), model.dtype(), 64).expect("a store");
            kv.open(SequenceId(1)).expect("opens");
            let segment = Segment { sequence: SequenceId(1), start: 0, length: 6, drafted: 0 };
            let batch = Batch::text(vec![5, 9, 13, 21, 7, 30], vec![segment]);
            let wants = Wants { logit_rows: vec![5], ..Wants::default() };
            let logits = model.forward(&batch, &mut kv, &wants).expect("a forward").logits;
            let logits = logits.expect("wanted");
            logits.eval().expect("evaluates");
            logits.try_as_slice::<f32>().expect("floats").to_vec()
        };
        assert_eq!(logits(seeing.as_ref()), logits(text.as_ref()), "{name}");
    }
}
