//! What is known of a model before its weights are fetched, against the stores of loaded models
//! (`models/tests/store_sizes.rs` writes their sizes).

use std::path::{Path, PathBuf};

use paceline_checkpoint::plan::{
    CheckpointPlan, DeviceKind, PlanOptions, ProductsChoice, ServedCheckpoint,
};
use paceline_checkpoint::{ConfigJson, Tensors};
use serde::Deserialize;

/// Sizes of a loaded model's store, in bytes.
#[derive(Deserialize)]
struct StoreSizes {
    classes: Vec<(i32, u64)>,
    row: u64,
    states: u64,
    windows: u64,
    weights: u64,
}

/// The CPU under Linux, as of the machine that wrote the sizes.
const OPTIONS: PlanOptions = PlanOptions {
    device: DeviceKind { on_gpu: false, has_kernels: true },
    keep_quantized: true,
    vision: true,
    products: ProductsChoice::Float,
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

fn kept() -> Vec<(String, StoreSizes)> {
    let text = include_str!("store_sizes.json");
    let kept: std::collections::BTreeMap<String, StoreSizes> =
        serde_json::from_str(text).expect("sizes");
    assert!(kept.len() > 25);
    kept.into_iter().collect()
}

/// The headers of a golden model's files with weights, and the lengths of these files.
fn headers(name: &str) -> Vec<(String, Vec<u8>, u64)> {
    let files =
        std::fs::read_dir(golden(name)).expect("there").map(|file| file.expect("read").path());
    let weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let header = |path: PathBuf| {
        let file = std::fs::read(&path).expect("readable");
        let length = u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
        (path.display().to_string(), file[8..8 + length].to_vec(), file.len() as u64)
    };
    weights.map(header).collect()
}

#[test]
fn before_a_fetch_keys_and_values_are_those_of_the_loaded_store() {
    for (name, sizes) in kept() {
        let config = ConfigJson::read(&golden(&name)).expect("a config");
        let plan = CheckpointPlan::of_bytes(&config, 1 << 20, &OPTIONS).expect("a plan");
        let found = plan.kv_sizes();
        assert_eq!(found.class_bytes(), sizes.classes, "{name}");
        let rest = (found.row_bytes(), found.state_bytes(), found.window_bytes());
        assert_eq!(rest, (sizes.row, sizes.states, sizes.windows), "{name}");
    }
}

#[test]
fn before_a_fetch_headers_tell_what_weights_take() {
    for (name, sizes) in kept() {
        let headers = headers(&name);
        let headers = headers.iter();
        let headers = headers.map(|(file, header, length)| (&**file, &**header, *length));
        let tensors = Tensors::of_headers(headers);
        let config = ConfigJson::read(&golden(&name)).expect("a config");
        // The other files of a model are not there yet.
        let nowhere = Path::new("/nowhere");
        let served = ServedCheckpoint::of(nowhere, config, tensors.expect("headers"), &OPTIONS);
        let weights = served.expect("served").plan().expect("a plan").storage.memory_bytes();
        let share = weights as f64 / sizes.weights as f64;
        assert!((0.99..=1.01).contains(&share), "{name}: {share}");
    }
}

#[test]
fn before_a_fetch_the_blocks_of_a_gguf_file_take_those_of_groups_or_of_floats() {
    let (name, _) = kept().into_iter().find(|(name, _)| name.starts_with("qwen3")).expect("one");
    let mut text: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden(&name).join("config.json")).expect("there"))
            .expect("JSON");
    text["gguf_type"] = "Q8_0".into();
    let config = ConfigJson::parse(Path::new("config.json"), text.to_string().as_bytes());
    let config = config.expect("an object");
    let bytes = 34 << 20;
    let memory = |keep_quantized| {
        let options = PlanOptions { keep_quantized, ..OPTIONS };
        let plan = CheckpointPlan::of_bytes(&config, bytes, &options).expect("a plan");
        (plan.storage.memory_bytes(), plan.storage.formats[0].format.clone())
    };
    // A group has a bias beside the scale.
    assert_eq!(memory(true), (36 << 20, "Q8_0 of GGUF".to_owned()));
    assert_eq!(memory(false), (128 << 20, "Q8_0 of GGUF, expanded to float32".to_owned()));
}
