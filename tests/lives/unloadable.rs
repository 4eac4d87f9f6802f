//! A model that can never be loaded, served by a person at a terminal.

use std::path::Path;

use paceline_tests::pty::Pty;
use paceline_tests::{Stack, repository};

fn copied(dir: &Path) {
    std::fs::create_dir(dir).expect("made");
    for entry in std::fs::read_dir(repository().join("demo/target")).expect("there") {
        let entry = entry.expect("fine");
        std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("copied");
    }
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
        ("model.safetensors", |dir| {
            let weights = std::fs::File::options().write(true).open(dir.join("model.safetensors"));
            weights.expect("there").set_len(100_000).expect("cut off");
        }),
    ];
    for (named, damage) in cases {
        let stack = Stack::new("");
        let dir = stack.path("model");
        copied(&dir);
        damage(&dir);
        stack.set(&format!("target.model = {dir:?}\n"));
        let serve = Pty::start(stack.command(&["serve"]), 200, 50);
        let shown = serve.wait_for("the reason", |screen| screen.contains("cannot be served"));
        assert!(shown.contains(named) && !shown.contains("gRPC at"), "{shown}");
        assert_eq!(serve.ended().code(), Some(64), "{named}");
        stack.sweep();
    }
}
