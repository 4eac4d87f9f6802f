//! `--plan`: what a pull would fetch. Writes nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::hub::{Answer, COMMIT, Hub, Model};
use crate::machine::{Machine, Outcome};

fn planned(machine: &Machine, endpoint: &str) -> Outcome {
    let mut command = machine.command(endpoint);
    command.args(["--plan", "--json"]).output().expect("it starts").into()
}

fn plan(machine: &Machine, endpoint: &str) -> Value {
    let outcome = planned(machine, endpoint);
    outcome.done();
    serde_json::from_str(&outcome.out).expect("JSON")
}

#[test]
fn a_plan_has_the_files_the_room_and_the_configuration_and_writes_nothing() {
    let (machine, hub) = (Machine::new(), Hub::of(Model::small()));
    let found = plan(&machine, &hub.endpoint());
    assert!(!machine.model().exists(), "nothing is written");
    let (config, tokenizer, weights) = (22, 2, 300_000);
    assert_eq!(found["model"], "org/name");
    assert_eq!(found["revision"], COMMIT);
    assert_eq!(found["hub"], hub.endpoint().as_str());
    assert_eq!(found["directory"], machine.model().join(COMMIT).display().to_string());
    assert_eq!(found["total_bytes"], config + tokenizer + weights);
    assert_eq!(found["fetch_bytes"], config + tokenizer + weights);
    assert_eq!(found["weight_bytes"], weights);
    assert_eq!(found["config"]["model_type"], "qwen3");
    assert_eq!(found["has_room"], true);
    assert!(found["free_bytes"].as_u64().is_some_and(|free| free > 0), "{found}");
    // The small model's weights begin with no header of safetensors.
    let asked = hub.requests_of("model.safetensors");
    assert_eq!((asked.len(), found["headers"].as_array().map(Vec::len)), (1, Some(0)));
    assert_eq!(asked[0].header("range"), Some("bytes=0-262143"), "the weights are not read");

    machine.pull(&hub.endpoint()).done();
    let whole = plan(&machine, &hub.endpoint());
    assert_eq!((&whole["fetch_bytes"], &whole["total_bytes"]), (&0.into(), &found["total_bytes"]));
    let mut offline = machine.command("http://127.0.0.1:1");
    let offline = offline.args(["--plan", "--offline"]).output().expect("it starts");
    let offline = Outcome::from(offline);
    offline.done();
    assert!(offline.out.starts_with("org/name is there already: "), "{offline:?}");
}

#[test]
fn a_plan_counts_what_an_earlier_pull_left() {
    let (model, is_broken) = (Model::small(), AtomicBool::new(true));
    let hub = Hub::start(move |request| {
        let is_weights = request.path.ends_with("model.safetensors");
        match (is_weights && is_broken.load(Ordering::SeqCst), request.begin()) {
            (true, 0) => model.answer(request).cut(150_000),
            (true, _) => {
                is_broken.store(false, Ordering::SeqCst);
                Answer::status(404)
            }
            (false, _) => model.answer(request),
        }
    });
    let machine = Machine::new();
    machine.pull(&hub.endpoint()).refused(1, &["404"]);
    let found = plan(&machine, &hub.endpoint());
    let files = found["files"].as_array().expect("a list");
    let there = |name: &str| {
        let file = files.iter().find(|file| file["name"] == name).expect("planned");
        file["there_bytes"].as_u64().expect("a number")
    };
    assert_eq!((there("config.json"), there("tokenizer.json")), (22, 2));
    let weights = there("model.safetensors");
    assert!(weights > 0 && weights < 300_000, "{found}");
    assert_eq!(found["fetch_bytes"], 300_000 - weights);
}

#[test]
fn the_shards_of_a_plan_are_those_of_the_index() {
    let (machine, hub) = (Machine::new(), Hub::of(Model::sharded()));
    let found = plan(&machine, &hub.endpoint());
    let files = found["files"].as_array().expect("a list");
    let names: Vec<_> = files.iter().filter_map(|file| file["name"].as_str()).collect();
    assert!(names.contains(&"m-1.safetensors") && names.contains(&"mtp/m-2.safetensors"));
    assert!(!names.contains(&"mtp/other.safetensors"), "{names:?}");
    let model = Model::sharded();
    let bytes: usize = ["m-1.safetensors", "mtp/m-2.safetensors"]
        .iter()
        .map(|name| model.files[*name].len())
        .sum();
    assert_eq!(found["weight_bytes"], bytes);
    assert!(!machine.model().exists());
}

#[test]
fn a_plan_without_room_says_so_and_refuses_what_a_pull_refuses() {
    let mut model = Model::small();
    model.sizes.insert("model.safetensors".to_owned(), 1 << 60);
    let hub = Hub::of(model);
    let found = plan(&Machine::new(), &hub.endpoint());
    assert_eq!((&found["has_room"], &found["weight_bytes"]), (&false.into(), &(1u64 << 60).into()));
    let mut command = Machine::new().command(&hub.endpoint());
    let text = Outcome::from(command.arg("--plan").output().expect("it starts"));
    assert!(text.out.contains("free there: not enough"), "{text:?}");

    let mut model = Model::small();
    model.undigested.insert("model.safetensors".to_owned());
    planned(&Machine::new(), &Hub::of(model).endpoint()).refused(1, &["--allow-unverified"]);
    let mut model = Model::small();
    model.files.insert("config.json".to_owned(), b"<html>".to_vec());
    planned(&Machine::new(), &Hub::of(model).endpoint()).refused(1, &["config.json", "JSON"]);
    planned(&Machine::new(), &Hub::start(|_| Answer::status(404)).endpoint()).refused(1, &["404"]);
    planned(&Machine::new(), "http://127.0.0.1:1").refused(3, &["check the network"]);
}

#[test]
fn a_pull_ends_with_the_program_that_runs_it_and_keeps_what_it_fetched() {
    let (asked, was_asked) = std::sync::mpsc::sync_channel(1);
    let model = Model::small();
    let hub = Hub::start(move |request| {
        if request.path.ends_with("model.safetensors") {
            let _ = asked.try_send(());
            // It never answers.
            loop {
                std::thread::park();
            }
        }
        model.answer(request)
    });
    let machine = Machine::new();
    let (read_end, write_end) = std::io::pipe().expect("a pipe");
    let mut child = machine.command_with_parent(&hub.endpoint(), read_end).spawn().expect("starts");
    was_asked.recv_timeout(std::time::Duration::from_secs(60)).expect("it asks for the weights");
    assert_eq!(child.try_wait().expect("a child"), None, "it runs as long as its parent");
    drop(write_end);
    assert_eq!(child.wait().expect("a child").code(), Some(69));
    let part = machine.model().join(format!(".part-{COMMIT}"));
    assert!(part.join("config.json").is_file());
}
