//! `paceline config`: settings with their sources, changes that are in force at once, changes that
//! wait for a restart, and settings that outlive every process.

use std::process::Output;

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::{Stack, chat, is_linked, repository, signal, wait};
use serde_json::Value;

/// Settings of a service whose processes are killed often.
const MANY_LIVES: &str = "supervisor.restarts = 100\n";

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn set(stack: &Stack, setting: &str) -> String {
    done(&stack.paceline(&["config", "set", setting], ""))
}

/// Value and source of a setting.
fn shown(stack: &Stack, key: &str) -> (String, String) {
    let text = done(&stack.paceline(&["config", "show", key, "--json"], ""));
    let object: Value = serde_json::from_str(&text).expect("an object");
    let part = |name: &str| object["settings"][key][name].as_str().expect("a text").to_owned();
    (part("value"), part("source"))
}

/// What a setting waits for.
fn waits(stack: &Stack, key: &str) -> Value {
    let text = done(&stack.paceline(&["config", "show", key, "--json"], ""));
    let object: Value = serde_json::from_str(&text).expect("an object");
    object["settings"][key]["waits"].clone()
}

fn pair(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

fn kept(stack: &Stack) -> String {
    let file = stack.config().with_extension("settings.toml");
    std::fs::read_to_string(file).unwrap_or_default()
}

#[test]
fn settings_change_at_once_or_after_a_restart_and_outlive_each_process() {
    let stack = Stack::drafting(MANY_LIVES);
    let target = stack.pid("target");
    // At once: the route, the queue, the drafter.
    let said = set(&stack, "routing.force=plain");
    assert!(said.starts_with("routing.force = plain: in force\nkept in "), "{said}");
    assert!(set(&stack, "limits.queue=7").starts_with("limits.queue = 7: in force\n"));
    assert!(set(&stack, "drain.notice_s=1").starts_with("drain.notice_s = 1: in force\n"));
    assert_eq!(waits(&stack, "drain.notice_s"), Value::Null);
    let unset = done(&stack.paceline(&["config", "unset", "drain.notice_s"], ""));
    assert!(unset.starts_with("drain.notice_s = 0 (default): in force\n"), "{unset}");
    let drafter = stack.pid("drafter");
    assert!(set(&stack, "drafter.model=lookup").starts_with("drafter.model = lookup: in force\n"));
    let linked = stack.wait_linked();
    assert_eq!(linked["drafter"]["model"], "lookup");
    assert_ne!(stack.pid("drafter"), drafter);
    // After a restart of the gateway, which hands over.
    let said = set(&stack, "limits.max_new_tokens=5");
    assert!(said.contains("in force after `paceline restart gateway`"), "{said}");
    let long = || stack.ask(chat("List three fruits.").max_tokens(6));
    assert_eq!(long().expect("the gateway has the earlier limit").ids.len(), 6);
    assert_eq!(waits(&stack, "limits.max_new_tokens"), "restart_gateway");
    assert_eq!(waits(&stack, "limits.queue"), Value::Null);
    for (key, process) in
        [("target.prompt_chunk_ms", "target"), ("drafter.prefix_bytes", "drafter")]
    {
        set(&stack, &format!("{key}=100"));
        assert_eq!(waits(&stack, key), format!("restart_{process}"));
        done(&stack.paceline(&["config", "unset", key], ""));
        assert_eq!(waits(&stack, key), Value::Null);
    }
    done(&stack.paceline(&["restart", "gateway"], ""));
    wait("the next gateway's settings", || {
        waits(&stack, "limits.max_new_tokens").is_null().then_some(())
    });
    // The connection to the earlier gateway is closed when that gateway has no request any more.
    let refused = wait("an answer of the next gateway", || long().err());
    assert!(refused.message().contains("limits.max_new_tokens"), "{refused:?}");

    let all = |stack: &Stack| {
        ["routing.force", "limits.queue", "drafter.model", "limits.max_new_tokens"]
            .map(|key| shown(stack, key))
    };
    let expected = ["plain", "7", "lookup", "5"].map(|value| pair(value, "config set"));
    assert_eq!(all(&stack), expected);
    for process in ["supervisor", "gateway", "drafter"] {
        let before = stack.pid(process);
        signal(before, Signal::SIGKILL);
        stack.wait_status("another process, linked", |status| {
            status[process]["pid"] != before
                && is_linked(status)
                && status["gateway"]["state"] == "ready"
        });
        assert_eq!(all(&stack), expected, "after a killed {process}");
        let status = stack.wait_linked();
        assert_eq!(status["drafter"]["model"], "lookup", "after a killed {process}");
        let force = &status["routing"]["policy"]["settings"]["routing.force"]["value"];
        assert_eq!(force, "plain", "after a killed {process}");
        assert!(long().is_err(), "after a killed {process}");
    }
    assert_eq!(stack.pid("target"), target, "the weights are loaded once");

    // Taken back: the values of the file and the defaults.
    let keys = ["config", "unset", "routing.force", "limits.queue", "drafter.model"];
    let said = done(&stack.paceline(&keys, ""));
    assert!(said.contains("routing.force = auto (default): in force\n"), "{said}");
    assert_eq!(shown(&stack, "routing.force"), pair("auto", "default"));
    assert_eq!(kept(&stack).lines().last(), Some("max_new_tokens = \"5\""));
    stack.stop();
}

#[test]
fn a_change_that_is_refused_changes_nothing_and_one_that_is_overridden_says_so() {
    let mut stack = Stack::new("limits.queue = 9\n");
    stack.env("PACELINE_ROUTING__MAX_CONCURRENT", "3");
    // Without a service the file is changed.
    assert_eq!(shown(&stack, "limits.queue"), pair("9", "file"));
    let said = set(&stack, "limits.queue=8");
    assert!(said.starts_with("limits.queue = 8: in force when the service starts\n"), "{said}");
    stack.serve();
    stack.wait_ready();
    assert_eq!(shown(&stack, "limits.queue"), pair("8", "config set"));
    let before = kept(&stack);
    for (settings, code, words) in [
        (&["limits.queue=many"][..], 1, "limits.queue: expected integer, found \"many\""),
        (&["limits.queue=2", "limits.qeue=2"], 1, "did you mean limits.queue?"),
        (&["limits.queue=2", "routing.force=maybe"], 1, "routing.force"),
        (&["limits.queue"], 2, "expected KEY=VALUE"),
    ] {
        let words_of = ["config", "set"].iter().chain(settings).copied().collect::<Vec<_>>();
        let output = stack.paceline(&words_of, "");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{settings:?}: {said}");
        assert!(said.contains(words), "{settings:?}: {said}");
        assert_eq!(kept(&stack), before, "{settings:?}");
    }
    let said = set(&stack, "routing.max_concurrent=2");
    let expected =
        "routing.max_concurrent = 3: kept, but a variable of the environment wins over it\n";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(shown(&stack, "routing.max_concurrent"), pair("3", "environment"));
    // What `policy set` changes until the supervisor ends is what is in force.
    done(&stack.paceline(&["policy", "set", "routing.force", "plain"], ""));
    assert_eq!(shown(&stack, "routing.force"), pair("plain", "policy set"));
    // The cap stands in the start log with its source.
    let log = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("a log");
    let cap = log.lines().find(|line| line.contains("routing.max_concurrent"));
    assert!(cap.is_some_and(|line| line.contains('3') && line.contains("environment")), "{log}");
    stack.stop();
}

/// The command line alone. The writer's unit tests kill it at chosen bytes.
#[test]
fn a_full_disk_refuses_a_setting_and_leaves_the_earlier_ones() {
    let stack = Stack::new("");
    set(&stack, "limits.queue=1");
    let before = kept(&stack);
    // No file of this command may have a byte.
    let refused = stack.shell("ulimit -f 0; paceline config set limits.queue=2").output();
    let refused = refused.expect("a shell");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("settings.toml"), "{refused:?}");
    assert_eq!(kept(&stack), before);
    assert_eq!(shown(&stack, "limits.queue"), pair("1", "config set"));
    assert!(set(&stack, "limits.queue=99").contains("= 99"));
    stack.sweep();
}

#[test]
fn texts_of_requests_are_in_the_gateways_log_only_if_an_operator_asks_for_them() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let log = |process: &str| {
        std::fs::read_to_string(stack.run_dir().join(format!("{process}.log"))).unwrap_or_default()
    };
    let ask = |word: &str| stack.ask(chat(word).max_tokens(8)).expect("served").text;
    ask("List the zqcanaryoff fruits.");
    assert!(!log("gateway").contains("zqcanaryoff"));
    assert!(set(&stack, "log.prompts=true").contains("after `paceline restart gateway`"));
    let before = stack.pid("gateway");
    done(&stack.paceline(&["restart", "gateway"], ""));
    assert_ne!(stack.pid("gateway"), before);
    // The connection to the earlier gateway is closed when that gateway has no request any more.
    let answer = wait("a prompt in the log", || {
        let answer = ask("List the zqcanaryon fruits.");
        log("gateway").contains("zqcanaryon").then_some(answer)
    });
    let first = answer.split_whitespace().next().expect("a word").to_owned();
    wait("the answer in the log", || {
        let text = log("gateway");
        let answers = text.lines().any(|line| line.contains("answer=") && line.contains(&first));
        (answers && text.contains("log.prompts is on")).then_some(())
    });
    for process in ["supervisor", "target"] {
        assert!(!log(process).contains("zqcanary"), "{process}");
    }
    stack.stop();
}

#[test]
fn a_shorter_context_is_the_services() {
    let stack = Stack::ready("drafter.model = \"\"\nlimits.context_tokens = 64\n");
    let model: Value =
        serde_json::from_str(&stack.http_get("/v1/models").expect("served").body).expect("a list");
    assert_eq!(model["data"][0]["context_length"], 64, "{model}");
    let status = stack.ask(chat(&"fruit ".repeat(80)).max_tokens(8)).expect_err("too long");
    assert_eq!(Reason::of(&status), Some(Reason::PromptTooLong), "{status:?}");
    assert!(status.message().contains("limits.context_tokens"), "{status:?}");
    stack.stop();
}

#[test]
fn a_model_that_is_kept_is_served_from_the_next_start_on() {
    let mut stack = Stack::new("drafter.model = \"\"\n");
    let vision = repository().join("demo/vision/target");
    done(&stack.paceline(&["config", "set", &format!("target.model={}", vision.display())], ""));
    stack.serve();
    let status = stack.wait_ready();
    assert_eq!(status["target"]["model"], vision.display().to_string());
    stack.stop();
}
