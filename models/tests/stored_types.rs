//! The types that a GPU keeps, on the CPU: `PACELINE_TEST_GRAPH=gpu` in a process of its own.

use std::path::Path;
use std::process::Command;

use paceline_models::{
    Batch, DeviceChoice, Dtype, FeatureLayers, KvStore, Segment, SequenceId, Wants, device,
    load_target,
};

/// Runs this file's test of that name, ignored elsewhere, with the graph of a GPU.
fn with_the_graph_of_a_gpu(name: &str) {
    let tests = std::env::current_exe().expect("this program");
    let output = Command::new(tests)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("PACELINE_TEST_GRAPH", "gpu")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

#[test]
fn every_layer_answers_in_the_type_of_the_model() {
    with_the_graph_of_a_gpu("layers_in_the_graph_of_a_gpu");
}

#[test]
#[ignore = "needs the environment that the test above gives it"]
fn layers_in_the_graph_of_a_gpu() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    // Stores one norm of each recurrent layer in float32, as published checkpoints do.
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3_5-tiny");
    let model = load_target(&dir, &mut |_, _| {}).expect("loads");
    assert_eq!(model.dtype(), Dtype::Bfloat16);
    let mut kv = KvStore::new(&model.kv_layers(), model.dtype(), 64).expect("a store");
    kv.open(SequenceId(0)).expect("new");
    let segment = Segment { sequence: SequenceId(0), start: 0, length: 5, drafted: 0 };
    let layers: Vec<usize> = (0..model.info().n_layers).collect();
    let wants =
        Wants { hidden_states: Some(FeatureLayers { layers, rows: vec![] }), ..Wants::default() };
    let forward = model.forward(&Batch::text(vec![5, 6, 7, 8, 9], vec![segment]), &mut kv, &wants);
    let states = forward.expect("a forward").hidden_states.expect("wanted");
    let types: Vec<Dtype> = states.arrays().iter().map(|layer| layer.dtype()).collect();
    assert_eq!(types, vec![Dtype::Bfloat16; types.len()]);
}
