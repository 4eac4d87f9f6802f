//! Repositories with GGUF files.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_checkpoint::samples::SampleGguf;
use serde_json::Value;

use crate::hub::{Answer, COMMIT, Hub, Model};
use crate::machine::{Machine, Outcome};

const Q4: &str = "m-Q4_K_M.gguf";
const Q8: [&str; 2] = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];

/// A repository with two models, one of them split, and things that no model needs.
fn several() -> Model {
    let sample = SampleGguf::of("qwen3").bytes();
    let mut model = Model::default();
    for name in [Q4, Q8[0], Q8[1]] {
        model.files.insert(name.to_owned(), sample.clone());
    }
    for name in ["README.md", "mmproj-m-f16.gguf", "imatrix.dat"] {
        model.files.insert(name.to_owned(), b"nobody needs it".to_vec());
    }
    model
}

fn pull(machine: &Machine, hub: &Hub, model: &str, more: &[&str]) -> Outcome {
    machine.pulling(model, &hub.endpoint()).args(more).output().expect("it starts").into()
}

fn offline(machine: &Machine, model: &str, more: &[&str]) -> Outcome {
    let mut command = machine.pulling(model, "http://127.0.0.1:1");
    command.arg("--offline").args(more).output().expect("it starts").into()
}

#[test]
fn several_gguf_files_are_listed_with_sizes_and_a_name_fetches_one_alone() {
    let (machine, hub) = (Machine::new(), Hub::of(several()));
    let kib = format!("{:.1} KiB", several().files[Q4].len() as f64 / 1024.0);
    let list = format!("{Q4} ({kib})");
    let words = ["org/name has 2 GGUF files: ", Q8[0], &list, "`paceline pull org/name:Q8_0`"];
    pull(&machine, &hub, "org/name", &[]).refused(1, &words);
    pull(&machine, &hub, "org/name", &["--plan"]).refused(1, &words);
    let words = ["org/name:Q5_0 is no GGUF file of the repository; it has ", &list];
    pull(&machine, &hub, "org/name:Q5_0", &[]).refused(1, &words);
    assert_eq!(hub.requests_of(Q4).len(), 0);

    let outcome = pull(&machine, &hub, "org/name:q4_k_m", &[]);
    outcome.done();
    let dir = machine.model().join(COMMIT);
    assert_eq!(Path::new(outcome.out.trim()), dir.join(Q4));
    assert_eq!(machine.current(Q4).as_ref(), several().files.get(Q4));
    assert!(!dir.join(Q8[0]).exists() && !dir.join("README.md").exists());
    assert!(hub.requests_of("m-Q8_0-00001-of-00002.gguf").is_empty());

    // A second choice joins the first one.
    let outcome = pull(&machine, &hub, "org/name:Q8_0", &[]);
    outcome.done();
    assert_eq!(Path::new(outcome.out.trim()), dir.join(Q8[0]));
    assert!([Q4, Q8[0], Q8[1]].iter().all(|name| dir.join(name).is_file()));
    assert!(!machine.model().join(format!(".part-{COMMIT}")).exists());
    let before = hub.requests().len();
    pull(&machine, &hub, "org/name:m-Q4_K_M.gguf", &[]).done();
    assert_eq!(hub.requests().len(), before + 1, "it asks for the commit alone");

    let outcome = offline(&machine, "org/name:Q4_K_M", &["--revision", COMMIT]);
    outcome.done();
    assert_eq!(Path::new(outcome.out.trim()), dir.join(Q4));
    offline(&machine, "org/name:Q4_K_M", &["--plan", "--revision", COMMIT]).done();
    let outcome = offline(&machine, "org/name:Q4_K_M", &[]);
    outcome.done();
    assert!(Path::new(outcome.out.trim()).join("config.json").is_file(), "{outcome:?}");
    let words = ["org/name has 2 GGUF files on this machine", "choose one, as org/name:Q8_0"];
    offline(&machine, "org/name", &[]).refused(1, &words);
}

#[test]
fn what_was_fetched_of_one_choice_stays_when_another_one_is_pulled() {
    let (model, is_broken) = (several(), AtomicBool::new(true));
    let hub = Hub::start(move |request| {
        match request.path.ends_with(Q8[1]) && is_broken.load(Ordering::SeqCst) {
            true => Answer::status(404),
            false => {
                is_broken.fetch_and(!request.path.ends_with(Q4), Ordering::SeqCst);
                model.answer(request)
            }
        }
    });
    let machine = Machine::new();
    pull(&machine, &hub, "org/name:Q8_0", &[]).refused(1, &["404"]);
    let fetched = machine.model().join(format!(".part-{COMMIT}")).join(Q8[0]);
    assert!(fetched.is_file());
    for _ in 0..2 {
        pull(&machine, &hub, "org/name:Q4_K_M", &[]).done();
        assert!(fetched.is_file() && machine.current(Q4).is_some());
    }
    pull(&machine, &hub, "org/name:Q8_0", &[]).done();
    assert_eq!(hub.requests_of("m-Q8_0-00001-of-00002.gguf").len(), 1, "it was there");
    assert!([Q4, Q8[0], Q8[1]].iter().all(|name| machine.current(name).is_some()));
    assert!(!machine.model().join(format!(".part-{COMMIT}")).exists());
}

#[test]
fn a_repository_with_one_gguf_file_needs_no_choice() {
    let mut model = several();
    model.files.retain(|name, _| !name.starts_with("Q8_0/"));
    model.files.insert("config.json".to_owned(), b"{}".to_vec());
    let (machine, hub) = (Machine::new(), Hub::of(model));
    pull(&machine, &hub, "org/name", &[]).done();
    assert_eq!(machine.current(Q4).as_ref(), several().files.get(Q4));
    assert!(machine.current("config.json").is_some(), "it has what the file does not say");
    // Safetensors beside it are what the name alone means.
    let mut model = Model::small();
    model.files.insert(Q4.to_owned(), several().files[Q4].clone());
    let (machine, hub) = (Machine::new(), Hub::of(model));
    pull(&machine, &hub, "org/name:Q4_K_M", &[]).done();
    assert!(machine.current(Q4).is_some() && machine.current("model.safetensors").is_none());
    pull(&machine, &hub, "org/name", &[]).done();
    assert!(machine.current(Q4).is_some() && machine.current("model.safetensors").is_some());
}

#[test]
fn the_plan_of_a_gguf_file_has_its_bytes_and_the_configuration_of_its_metadata() {
    let (machine, hub) = (Machine::new(), Hub::of(several()));
    let planned = |model: &str| -> Value {
        let outcome = pull(&machine, &hub, model, &["--plan", "--json"]);
        outcome.done();
        serde_json::from_str(&outcome.out).expect("JSON")
    };
    let plan = planned("org/name:Q4_K_M");
    let bytes = several().files[Q4].len();
    assert_eq!((&plan["fetch_bytes"], &plan["weight_bytes"]), (&bytes.into(), &bytes.into()));
    assert_eq!(plan["files"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&plan["config"]["model_type"], &plan["config"]["gguf_type"]),
        (&"qwen3".into(), &"Q8_0".into())
    );
    let asked = hub.requests_of(Q4);
    assert_eq!((asked.len(), asked[0].header("range")), (1, Some("bytes=0-8388607")));
    assert_eq!(planned("org/name:Q8_0")["weight_bytes"], 2 * bytes);
    assert!(!machine.model().exists(), "nothing is written");

    let mut model = several();
    let mut sample = SampleGguf::of("qwen3");
    sample.set_text("general.architecture", "mamba");
    model.files.insert(Q4.to_owned(), sample.bytes());
    let hub = Hub::of(model);
    let words = ["m-Q4_K_M.gguf: GGUF: ", "mamba"];
    pull(&machine, &hub, "org/name:Q4_K_M", &["--plan", "--json"]).refused(1, &words);
}
