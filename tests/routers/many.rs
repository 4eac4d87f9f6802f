//! `deploy/many/`: the trial on one machine, and the router as its unit starts it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use paceline_tests::http;
use paceline_tests::python::Clients;
use paceline_tests::router::{Kind, Router};
use paceline_tests::{Stack, programs, repository, signal};
use serde_json::{Value, json};

use crate::smg::{CHAT, MODEL};
use crate::texts::{QUESTION, chat_body, whole_text};

/// The programs' `PATH`: ours, the router's, the caller's.
fn path(clients: &Clients) -> std::ffi::OsString {
    let caller = std::env::var_os("PATH").unwrap_or_default();
    let places = [programs(), clients.programs()].into_iter().chain(std::env::split_paths(&caller));
    std::env::join_paths(places).expect("no colon in a directory of PATH")
}

/// The script. Dropping it interrupts it, and it ends what it started.
struct Trial(Child);

impl Drop for Trial {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            signal(self.0.id(), Signal::SIGINT);
            let _ = self.0.wait();
        }
    }
}

#[test]
#[ignore = "more: a package of a registry"]
fn the_trial_of_several_machines_answers_and_leaves_nothing() {
    let Some(clients) = Kind::Smg.installed("the_trial_of_several_machines") else { return };
    let port = paceline_tests::stack::free_port().to_string();
    let child = Command::new("sh")
        .args(["deploy/many/try.sh", &port])
        .current_dir(repository())
        .env("PATH", path(&clients))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut trial = Trial(child);
    let mut lines = BufReader::new(trial.0.stdout.take().expect("a pipe")).lines();
    let mut line_with = |word: &str| -> String {
        let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("the trial ended before it printed {word:?}"))
    };
    // The request that it prints is answered.
    line_with("Ready:");
    let request = line_with("-d '");
    let (_, body) = request.split_once("-d '").expect("found by it");
    let body: Value = serde_json::from_str(body.trim_end_matches('\'')).expect("JSON");
    let host = format!("127.0.0.1:{port}");
    let answer = http::json(&host, CHAT, &body).expect("an answer");
    assert!(!whole_text(&answer).is_empty());
    let logs = line_with("Logs are in ");
    let dir = logs.split(' ').nth(3).expect("a directory").trim_end_matches('.').to_owned();
    assert!(std::fs::exists(&dir).expect("may be asked"), "{dir}");

    signal(trial.0.id(), Signal::SIGINT);
    let ended = trial.0.wait().expect("a child");
    assert!(ended.success(), "{ended:?}");
    assert!(!std::fs::exists(&dir).expect("may be asked"), "{dir} is left");
    assert!(http::ask(&host, "GET", "/readiness", "").is_err(), "the router is left");
}

#[test]
#[ignore = "more: a package of a registry"]
fn the_unit_of_the_router_starts_it_with_the_machines_of_its_list() {
    let Some(clients) = Kind::Smg.installed("the_unit_of_the_router") else { return };
    let stack = Stack::ready("drafter.model = \"\"\n");
    let list = stack.path("workers.json");
    let worker = json!({"version": 1, "workers": [{"url": Kind::Smg.worker(&stack)}]});
    std::fs::write(&list, worker.to_string()).expect("written");
    let unit = repository().join("deploy/many/paceline-router.service");
    let unit = std::fs::read_to_string(unit).expect("it is there");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[1], "launch");
    // The test has addresses of its own, and a list of its own.
    let own = ["--host", "--port", "--prometheus-port"];
    let mut kept: Vec<String> = vec![];
    for pair in words[2..].chunks(2) {
        match pair {
            ["--discovery-file", _] => {
                kept.extend(["--discovery-file".to_owned(), list.display().to_string()]);
            }
            [flag, _] if own.contains(flag) => {}
            [flag, value] => kept.extend([(*flag).to_owned(), (*value).to_owned()]),
            _ => panic!("expected pairs of a flag and its value, found {pair:?}"),
        }
    }
    let router = Router::start_with(Kind::Smg, &clients, &kept, 1);
    let answer = router.json(CHAT, &chat_body(MODEL, QUESTION, 16));
    assert!(!whole_text(&answer).is_empty());
    drop(router);
    stack.stop();
}
