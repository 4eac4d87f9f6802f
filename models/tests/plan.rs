//! What a plan predicts is what a loaded model takes.

use std::path::{Path, PathBuf};

use paceline_models::{DeviceChoice, LayerKv, LoadOptions, device, load_target_with, plan_target};

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
    ] {
        let options = LoadOptions { keep_quantized };
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
        let row: i32 = growing.map(|layer| layer.n_kv * (layer.key_dim + layer.value_dim)).sum();
        assert_eq!(plan.kv_position_bytes(), 4 * row as u64, "{name}");
        let recurrent = layers.iter().filter_map(|layer| match layer {
            LayerKv::Recurrent(sizes) => Some(*sizes),
            LayerKv::Growing(_) => None,
        });
        assert_eq!(plan.recurrent, recurrent.collect::<Vec<_>>(), "{name}");
        assert_eq!(plan.has_vision, model.vision().is_some(), "{name}");
    }
}
