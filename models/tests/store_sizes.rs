//! Bytes of keys, values and states of each golden family's loaded store, in a file that the plan of a
//! model before its fetch is held against (`checkpoint/tests/before_a_fetch.rs`).

// Elsewhere quantized weights take other bytes.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};

use paceline_checkpoint::ConfigJson;
use paceline_checkpoint::families::is_served;
use paceline_models::{DeviceChoice, KvStore, LoadOptions, device, load_target, plan_target};
use serde_json::{Map, Value, json};

/// Written again by this test if the variable is set.
const WRITES: &str = "PACELINE_WRITE_STORE_SIZES";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The golden checkpoints of served families, by name. Drafters are none.
fn targets() -> Vec<(String, PathBuf)> {
    let golden = repository().join("models/tests/golden");
    let entries =
        std::fs::read_dir(golden).expect("there").map(|entry| entry.expect("read").path());
    let mut targets: Vec<_> = entries
        .filter(|dir| {
            let config = ConfigJson::read(dir).ok();
            let drafts = |config: &ConfigJson| {
                let named: Option<Vec<String>> = config.optional("architectures").ok().flatten();
                let words = ["DFlash", "DSpark", "Eagle3", "Speculator"];
                let is_drafter = |name: &String| words.iter().any(|word| name.contains(word));
                named.is_some_and(|names| names.iter().any(is_drafter))
            };
            config.is_some_and(|config| is_served(&config).unwrap_or(false) && !drafts(&config))
        })
        .map(|dir| (dir.file_name().expect("named").to_string_lossy().into_owned(), dir))
        .collect();
    targets.sort();
    targets
}

fn sizes(dir: &Path) -> Value {
    let model = load_target(dir, &mut |_, _| {}).expect("loads");
    let (layers, context) = (model.kv_layers(), model.info().context);
    let store = KvStore::with_most_rows(&layers, model.dtype(), context, model.most_rows());
    let store = store.expect("sizes");
    let plan = plan_target(dir, LoadOptions::default()).expect("a plan");
    json!({
        "classes": store.class_bytes(),
        "row": store.row_bytes(),
        "states": store.state_bytes(),
        "windows": store.window_bytes(),
        "weights": plan.storage.memory_bytes(),
    })
}

#[test]
fn each_familys_store_has_the_bytes_that_a_plan_is_held_against() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let targets = targets();
    assert!(targets.len() > 25, "{targets:?}");
    let found: Map<String, Value> =
        targets.into_iter().map(|(name, dir)| (name, sizes(&dir))).collect();
    let path = repository().join("checkpoint/tests/store_sizes.json");
    if std::env::var_os(WRITES).is_some() {
        let lines: Vec<String> =
            found.iter().map(|(name, sizes)| format!("\"{name}\": {sizes}")).collect();
        std::fs::write(&path, format!("{{\n{}\n}}\n", lines.join(",\n"))).expect("written");
    }
    let kept = std::fs::read(&path).expect("the file is in the repository");
    let kept: Map<String, Value> = serde_json::from_slice(&kept).expect("an object");
    assert_eq!(found, kept, "if this is meant, write the file again: {WRITES}=1");
}
