//! A model that can never be loaded, at a terminal and without one.

use std::path::Path;

use paceline_tests::pty::Pty;
use paceline_tests::{Stack, chat, repository};

const WEIGHTS: &str = "model.safetensors";

/// The demo's target or drafter in a directory of its own.
fn copied(part: &str, dir: &Path) {
    std::fs::create_dir(dir).expect("made");
    for entry in std::fs::read_dir(repository().join("demo").join(part)).expect("there") {
        let entry = entry.expect("fine");
        std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("copied");
    }
}

fn cut_off(dir: &Path) {
    let weights = std::fs::File::options().write(true).open(dir.join(WEIGHTS));
    weights.expect("there").set_len(1_000).expect("cut off");
}

fn mend(part: &str, dir: &Path) {
    let whole = repository().join("demo").join(part).join(WEIGHTS);
    std::fs::copy(whole, dir.join(WEIGHTS)).expect("copied");
}

#[test]
fn at_a_terminal_a_model_that_can_never_be_loaded_ends_serve_before_a_port_opens() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 2] = [
        ("nonsense", |dir| {
            let text = std::fs::read_to_string(dir.join("config.json")).expect("there");
            let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            config["model_type"] = "nonsense".into();
            std::fs::write(dir.join("config.json"), config.to_string()).expect("written");
        }),
        ("model.safetensors", cut_off),
    ];
    for (named, damage) in cases {
        let stack = Stack::new("");
        let dir = stack.path("model");
        copied("target", &dir);
        damage(&dir);
        stack.set(&format!("target.model = {dir:?}\n"));
        let serve = Pty::start(stack.command(&["serve"]), 200, 50);
        let shown = serve.wait_for("the reason", |screen| screen.contains("cannot be served"));
        assert!(shown.contains(named) && !shown.contains("gRPC at"), "{shown}");
        assert_eq!(serve.ended().code(), Some(64), "{named}");
        stack.sweep();
    }
}

#[test]
fn without_a_terminal_a_model_that_was_refused_is_tried_again_once_its_files_are_mended() {
    let stack = {
        let mut stack = Stack::new("");
        let dirs = ["target", "drafter"].map(|part| {
            let dir = stack.path(part);
            copied(part, &dir);
            cut_off(&dir);
            dir
        });
        stack.set(&format!("target.model = {:?}\ndrafter.model = {:?}\n", dirs[0], dirs[1]));
        stack.serve();
        stack
    };
    for part in ["target", "drafter"] {
        let status = stack.wait_status(&format!("the {part} to be refused"), |status| {
            let words = status[part]["reason"].as_str().unwrap_or_default();
            words.contains("tried again when its files change")
        });
        assert_eq!(status[part]["state"], "failed", "{status}");
        let words = status[part]["reason"].as_str().expect("words");
        let order = format!("`paceline restart {part}`");
        let is_whole = words.contains("model.safetensors") && words.contains(&order);
        assert!(is_whole && words.lines().count() == 1, "{words}");
    }
    let log = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("a log");
    assert_eq!(log.matches("tried again when its files change").count(), 2, "{log}");
    let first = stack.status().expect("a status");
    for part in ["target", "drafter"] {
        assert_eq!(first[part]["epoch"], 1, "{first}");
        mend(part, &stack.path(part));
    }
    // Two looks, and no order.
    let after = stack.wait_linked();
    for part in ["target", "drafter"] {
        assert_eq!((&after[part]["epoch"], &after[part]["restarts"]), (&2.into(), &1.into()));
    }
    stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    stack.stop();
}
