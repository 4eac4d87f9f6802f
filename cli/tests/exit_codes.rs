//! Exit codes of all commands, by the table of docs/troubleshooting.md: one fault has one code in
//! every command.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use paceline_cli::args::Cli;

use built::built;

/// A command with what it needs, its code without a service, and its code with a configuration that has an unknown key.
/// `{none}` is a path where nothing is.
const COMMANDS: [(&str, i32, i32); 44] = [
    ("bench --model {none}", 2, 2),
    ("chat", 3, 2),
    ("completions bash", 0, 0),
    ("config get limits.queue", 0, 2),
    ("config set limits.queue=3", 0, 2),
    ("config show", 0, 2),
    ("config unset limits.queue", 0, 2),
    ("diagnose --yes --output {none}/x", 2, 2),
    ("doctor --json", 0, 1),
    ("drafter start", 3, 2),
    ("drafter stop", 3, 2),
    ("drafter swap", 3, 2),
    ("drain", 3, 2),
    ("events", 3, 2),
    ("generate --prompt x", 3, 2),
    ("inspect {none}", 2, 2),
    ("key digest alice", 2, 2),
    ("key new alice", 0, 0),
    ("launch claude", 3, 2),
    ("logs", 3, 2),
    ("man", 0, 0),
    ("models", 0, 0),
    ("policy set routing.max_concurrent 2", 3, 2),
    ("policy show", 3, 2),
    ("ps", 3, 2),
    ("pull --offline org/none", 1, 1),
    ("restart target", 3, 2),
    ("rm org/none --yes", 2, 2),
    ("routes replay {none}", 2, 2),
    ("run {none} Why?", 2, 2),
    ("selftest --model {none}", 2, 2),
    ("serve --model {none}", 64, 64),
    ("service install --dry-run", 0, 0),
    ("service logs", 1, 1),
    ("service restart", 1, 1),
    ("service start", 1, 1),
    ("service status", 1, 1),
    ("service stop", 1, 1),
    ("service uninstall", 0, 0),
    ("status", 3, 2),
    ("stop", 3, 2),
    ("target swap --model {none}", 3, 2),
    ("top --once", 3, 2),
    ("status --json", 3, 2),
];

/// Commands that have no commands below them, as they are typed.
fn leaves(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    let below: Vec<_> = command.get_subcommands().filter(|one| one.get_name() != "help").collect();
    if below.is_empty() {
        found.insert(path.trim().to_owned());
    }
    below.iter().for_each(|one| leaves(one, &format!("{path} {}", one.get_name()), found));
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        let good = format!(
            "[supervisor]\nruntime_dir = {run:?}\n[gateway]\ngrpc = \"{nobody}\"\nhttp = \"\"\n"
        );
        std::fs::write(dir.path().join("good.toml"), good).unwrap();
        std::fs::write(dir.path().join("broken.toml"), "[target]\nmodle = \"x\"\n").unwrap();
        Self(dir)
    }

    /// The code of a command, and what it says. It gives nobody's home anything.
    fn run(&self, line: &str, config: &str) -> (Option<i32>, String) {
        let path = |name: &str| self.0.path().join(name);
        let line = line.replace("{none}", &path("none").display().to_string());
        let output = Command::new(built("paceline"))
            .args(line.split(' '))
            .env("PACELINE_CONFIG", path(config))
            .env("HOME", self.0.path())
            .env("XDG_CONFIG_HOME", path("config"))
            .env("XDG_CACHE_HOME", path("cache"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The codes of the table below "## Exit codes".
fn documented() -> BTreeSet<i32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/troubleshooting.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("## Exit codes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let code = |line: &str| line.strip_prefix("| ")?.split(' ').next()?.parse().ok();
    section.lines().filter_map(code).collect()
}

#[test]
fn one_fault_has_one_code_in_every_command() {
    let place = Place::new();
    let documented = documented();
    assert!(documented.contains(&64) && documented.contains(&130), "{documented:?}");
    let mut expected = BTreeSet::new();
    leaves(&Cli::command(), "", &mut expected);
    let listed = |command: &String| {
        COMMANDS
            .iter()
            .any(|(line, ..)| *line == command || line.starts_with(&format!("{command} ")))
    };
    let missing: Vec<_> = expected.iter().filter(|command| !listed(command)).collect();
    assert!(missing.is_empty(), "expected a row for each command, found none for {missing:?}");

    for (line, without_service, with_bad_key) in COMMANDS {
        for (config, code) in [("good.toml", without_service), ("broken.toml", with_bad_key)] {
            let (found, said) = place.run(line, config);
            assert_eq!(found, Some(code), "{line} with {config}: {said}");
            assert!(documented.contains(&code), "{code} is not in docs/troubleshooting.md");
            if config == "broken.toml" && (code == 2 || code == 64) {
                let own_fault = ["key digest", "rm ", "diagnose ", "routes "]
                    .iter()
                    .any(|begin| line.starts_with(begin));
                assert!(own_fault || said.contains("target.modle"), "{line}: {said}");
            }
        }
        // Words behind an agent's name are the agent's.
        let wrong = match line.strip_prefix("launch ") {
            Some(agent) => format!("launch --no-such-flag {agent}"),
            None => format!("{line} --no-such-flag"),
        };
        let (found, said) = place.run(&wrong, "good.toml");
        assert_eq!(found, Some(2), "{wrong}: {said}");
    }
}

#[test]
fn a_model_that_is_not_there_is_told_in_one_sentence_by_every_command() {
    let place = Place::new();
    let nothing = place.0.path().join("none");
    let sentence = format!(
        "expected a model directory or a GGUF file, found nothing at {}",
        nothing.display()
    );
    for line in [
        "inspect {none}",
        "show {none}",
        "run {none} Why?",
        "selftest --model {none}",
        "serve {none}",
    ] {
        let (_, said) = place.run(line, "good.toml");
        assert!(said.contains(&sentence), "{line}: {said}");
    }
}
