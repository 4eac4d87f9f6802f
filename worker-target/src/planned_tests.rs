//! The store of a loaded model has the sizes that its plan promises.

use paceline_models::{LoadOptions, plan_target};

use paceline_models::SequenceId;
use paceline_models::sample::SamplingRule;

use crate::engine::tests::fixture;
use paceline_target_core::{ClassBytes, Ledger, Scheduler};

const GREEDY: SamplingRule = SamplingRule::GREEDY;

#[test]
fn the_states_of_recurrent_layers_are_planned_for() {
    let model = fixture::load_hybrid();
    let plan = plan_target(&model.info().path, LoadOptions::default()).expect("a plan");
    let (planned, made) = (plan.kv_sizes(), fixture::store(&*model));
    assert_eq!(planned.class_bytes(), made.class_bytes());
    assert!(planned.state_bytes() > 0 && planned.state_bytes() == made.state_bytes());
}

#[test]
fn the_rows_of_an_image_that_must_be_in_one_pass_are_planned_for() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../models/tests/golden/gemma4-vl-tiny");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let weights = "model.safetensors";
    std::fs::copy(golden.join(weights), dir.path().join(weights)).expect("copied");
    // Slots keep a part of the positions if there are more than a pass and a window have.
    let config = std::fs::read_to_string(golden.join("config.json")).expect("there");
    let (short, long) = ("embeddings\": 512", "embeddings\": 4096");
    assert!(config.contains(short));
    let config = config.replace(short, long);
    std::fs::write(dir.path().join("config.json"), config).expect("written");
    let most_rows = |budget: u32| {
        let settings = format!(r#"{{"image_processor": {{"max_soft_tokens": {budget}}}}}"#);
        std::fs::write(dir.path().join("processor_config.json"), settings).expect("written");
        let plan = plan_target(dir.path(), LoadOptions::default()).expect("a plan");
        let model = paceline_models::load_target(dir.path(), &mut |_, _| {}).expect("loads");
        let (planned, made) = (plan.kv_sizes(), fixture::store(&*model));
        assert_eq!(planned.class_bytes(), made.class_bytes());
        assert_eq!(Some(plan.most_rows), made.most_rows());
        made.most_rows()
    };
    fixture::load_hybrid();
    assert_eq!([280, 1120].map(most_rows), [Some(512), Some(1120)]);
}

#[test]
fn the_states_of_32_sequences_are_held_to_the_byte_and_bound_their_number() {
    let model = fixture::load_hybrid();
    let (mut kv, drafting) = (fixture::store(&*model), fixture::drafting(&*model, false));
    let (positions, class) = kv.class_bytes()[0];
    assert_eq!(class, positions as u64 * kv.row_bytes() + kv.state_bytes());
    let ask = |scheduler: &mut Scheduler, count: usize| {
        for at in 0..count {
            let (running, _) = fixture::request(&format!("r{at}"), vec![5; 10], 9, GREEDY);
            scheduler.add(running.request.scheduling).expect("it could run");
        }
        scheduler.start(|_| 0).keys
    };
    let mut scheduler = fixture::scheduler(&kv, &drafting);
    for key in ask(&mut scheduler, 32) {
        kv.open(SequenceId(key.0)).expect("new");
        kv.reserve(SequenceId(key.0), positions).expect("room");
    }
    assert_eq!((scheduler.ledger().held(), kv.allocated_bytes()), (32 * class, 32 * class));
    let keys: Vec<_> = scheduler.iter().map(|(key, _)| key).collect();
    for key in keys {
        scheduler.remove(key);
        kv.free(SequenceId(key.0));
    }
    assert_eq!((scheduler.ledger().held(), kv.allocated_bytes()), (0, 0));
    // A budget of five states and shortest places, and half of one.
    let classes = [ClassBytes { positions: 256, kv: class, hidden: 0 }];
    let ledger = Ledger::new(5 * class + class / 2, classes.to_vec());
    assert_eq!(ask(&mut Scheduler::new(ledger, 32), 32).len(), 5);
}
