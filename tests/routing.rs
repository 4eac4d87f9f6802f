//! Routing as operators see it: the policy at run time, the route log and its replay, bursts, and a
//! drafter that rests. None of it touches the target.

use std::path::Path;
use std::process::{Command, Output};

use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use paceline_tests::probe::TargetProbe;
use paceline_tests::prompts::{prompts, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Stack, continue_ids, programs, wait};
use serde_json::Value;

/// The target's process, and when it read its weights.
fn target(stack: &Stack) -> (Value, Value) {
    let status = stack.status().expect("it answers");
    (status["target"]["pid"].clone(), status["target"]["weights_loaded_at"].clone())
}

fn set(stack: &Stack, key: &str, value: &str) -> Output {
    stack.paceline(&["policy", "set", key, value], "")
}

/// Cycles so far, from the target itself: the supervisor's count comes with the next heartbeat.
fn cycles(target: &mut TargetProbe<'_>) -> u64 {
    target.stats().now.and_then(|now| now.speculation).unwrap_or_default().cycles
}

/// A structured request that goes on for a while.
fn long(tokens: u32) -> paceline_tests::ask::Ask {
    let prompt =
        prompts().into_iter().find(|prompt| prompt.kind == "arithmetic").expect("there are some");
    prompt.ask.exactly(tokens)
}

/// The first decision about each request in the route log.
fn first_decisions(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).expect("there");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    lines.filter(|line: &Value| line["event"] == "decided" && line["again"] == false).collect()
}

#[test]
fn each_guard_of_the_route_holds_requests_back_for_its_reason() {
    // Room for sixteen thousand positions of 8 KiB.
    let stack = Stack::drafting(
        "routing.max_concurrent = 1\nrouting.max_context = 400\nkv.budget_bytes = 134217728\n",
    );
    let before = target(&stack);
    let route = |ask| stack.ask(ask).expect("served").route();
    assert_eq!(route(long(32)).0, Lane::Speculative, "alone and short");
    let mut first = stack.open(long(900)).expect("served");
    first.read(8);
    assert_eq!(route(long(8)), (Lane::Plain, RouteReason::Concurrency));
    assert!(first.finish().expect("served").speculation().cycles > 0, "it came first");

    let prompt = |tokens: u32| -> Vec<u32> { (0..tokens).map(|at| 100 + at * 7 % 3_000).collect() };
    let answer = route(continue_ids(&prompt(600)).exactly(8));
    assert_eq!(answer, (Lane::Plain, RouteReason::Context));

    for (key, value) in
        [("max_concurrent", "auto"), ("max_context", "auto"), ("kv_pressure", "0.05")]
    {
        let changed = set(&stack, &format!("routing.{key}"), value);
        assert!(changed.status.success(), "{changed:?}");
    }
    assert_eq!(route(long(32)).0, Lane::Speculative, "no guard holds it back");
    let mut large = stack.open(continue_ids(&prompt(2_100)).exactly(1_900)).expect("served");
    large.read(2);
    stack.wait_status("pressure", |status| status["kv"]["pressure"].as_f64() > Some(0.05));
    assert_eq!(route(long(8)), (Lane::Plain, RouteReason::KvPressure));
    drop(large);
    assert_eq!(target(&stack), before);
    stack.stop();
}

#[test]
fn a_policy_set_at_run_time_changes_the_next_and_the_running_request() {
    let stack = Stack::drafting("");
    let before = target(&stack);
    let plain = stack.ask(reference(long(600))).expect("served");
    assert!(set(&stack, "routing.force", "plain").status.success());
    assert_eq!(stack.ask(long(8)).expect("served").route(), (Lane::Plain, RouteReason::Forced));

    // One that began plainly drafts as soon as it may.
    let mut running = stack.open(long(600)).expect("served");
    running.read(8);
    let mut probe = stack.probe_target();
    let none = cycles(&mut probe);
    assert!(set(&stack, "routing.force", "auto").status.success());
    wait("drafts of a request that began plainly", || {
        running.read(running.so_far.ids.len() + 4);
        (cycles(&mut probe) > none).then_some(())
    });
    // And it stops as soon as it may not, after the drafts that were under way.
    assert!(set(&stack, "routing.force", "plain").status.success());
    let mut last = cycles(&mut probe);
    wait("no more drafts", || {
        running.read(running.so_far.ids.len() + 16);
        let now = cycles(&mut probe);
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    let answer = running.finish().expect("served");
    assert!(answer.speculation().cycles > 0, "{:?}", answer.end);
    same_but_near_ties(&plain, &answer, "over two changes of the policy", &mut 0);

    let status = stack.status().expect("it answers");
    let policy = &status["routing"]["policy"];
    assert_eq!(
        (&policy["epoch"], &policy["settings"]["routing.force"]["source"]),
        (&3.into(), &"operator".into())
    );
    let text = String::from_utf8(stack.paceline(&["status"], "").stdout).expect("text");
    assert!(text.contains("policy 3: routing.force = plain (by an operator)"), "{text}");
    assert!(text.contains("memory: target "), "{text}");
    let shown = stack.paceline(&["policy", "show", "--json"], "");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["settings"]["routing.kv_pressure"]["value"], "0.85");
    for (key, value, expected) in [
        ("routing.max_concurent", "2", "did you mean routing.max_concurrent?"),
        ("routing.max_concurrent", "-2", "routing.max_concurrent: expected \"auto\" or a number"),
        ("limits.queue", "2", "cannot be changed at run time"),
    ] {
        let refused = set(&stack, key, value);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(1) && words.contains(expected),
            "{key} = {value}: {refused:?}"
        );
    }
    assert_eq!(target(&stack), before);
    stack.stop();
}

#[test]
fn a_burst_is_held_back_and_a_single_request_after_it_drafts_at_once() {
    let mut stack = Stack::new("");
    let log = stack.path("routes.jsonl");
    stack.set(&format!("routing.route_log = {log:?}\n"));
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    let before = target(&stack);
    let asks: Vec<_> =
        some_of_each(3).into_iter().take(16).map(|prompt| prompt.ask.max_tokens(48)).collect();
    let running: Vec<_> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
    running.into_iter().for_each(|pending| drop(pending.finish().expect("served")));
    // Sixteen are more than drafting is assumed to pay for until it is measured.
    let first = first_decisions(&log);
    let held_back = first.iter().filter(|line| line["permit"]["reason"] == "concurrency").count();
    assert!(held_back > 0, "{first:?}");
    let single = stack.ask(long(64)).expect("served");
    assert_eq!(single.route().0, Lane::Speculative, "{:?}", single.end);
    assert!(single.speculation().cycles > 0, "{:?}", single.end);
    let routes = stack.snapshot().expect("it answers").routing.unwrap_or_default().routes;
    assert_eq!(routes.iter().map(|count| count.requests).sum::<u64>(), 17, "{routes:?}");
    assert_eq!(target(&stack), before);
    stack.stop();
}

#[test]
fn the_route_log_has_decisions_without_text_and_can_be_replayed() {
    let mut stack = Stack::new("");
    let log = stack.path("routes.jsonl");
    stack.set(&format!("routing.route_log = {log:?}\n"));
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    let canary = "xylophonequartz";
    let ask = paceline_tests::chat(&format!("Repeat the word {canary} ten times.")).max_tokens(24);
    let answers = [
        stack.ask(ask.clone()).expect("served"),
        stack.ask(ask.clone().route(RouteWish::Plain)).expect("served"),
        stack.ask(ask.route(RouteWish::Speculative)).expect("served"),
    ];
    let lines = wait("three decisions and three ends", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.iter().filter(|line| line["event"] == "ended").count() == 3).then_some(lines)
    });
    let text = std::fs::read_to_string(&log).expect("there");
    assert!(!text.contains(canary) && !text.contains("Repeat"), "{text}");
    assert!(!text.contains(answers[0].text.trim()), "{text}");
    let ended: Vec<_> = lines.iter().filter(|line| line["event"] == "ended").collect();
    for (line, answer) in ended.iter().zip(&answers) {
        assert_eq!(line["served"]["completion_tokens"], answer.ids.len(), "{line}");
        assert_eq!(line["served"]["cycles"], answer.speculation().cycles, "{line}");
    }
    let first: Vec<_> =
        lines.iter().filter(|line| line["event"] == "decided" && line["again"] == false).collect();
    let wishes: Vec<_> = first.iter().map(|line| line["wish"].as_str().expect("text")).collect();
    assert_eq!(wishes, ["auto", "plain", "speculative"]);
    assert_eq!(first[0]["signals"]["running"], 1);
    assert_eq!(first[1]["permit"]["reason"], "forced");

    let replay = |words: &[&str]| {
        let mut command = Command::new(programs().join("paceline"));
        command.args(["routes", "replay"]).arg(&log).args(words).output().expect("it runs")
    };
    let same = replay(&["--json"]);
    let same: Value =
        serde_json::from_slice(&same.stdout).unwrap_or_else(|error| panic!("{error}: {same:?}"));
    assert_eq!(
        (&same["decisions"], &same["changes"], &same["unreadable"]),
        (&3.into(), &0.into(), &0.into())
    );
    let plain = replay(&["--set", "routing.force=plain"]);
    let words = String::from_utf8(plain.stdout).expect("text");
    assert!(words.starts_with("3 decisions, 2 would change\n"), "{words}");
    let refused = replay(&["--set", "routing.forse=plain"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("did you mean routing.force?"),
        "{refused:?}"
    );
    stack.stop();
}

#[test]
fn an_unused_drafter_is_stopped_and_the_next_request_starts_it() {
    let stack = Stack::drafting("drafter.idle_stop_s = 2\n");
    let before = target(&stack);
    let status = stack.wait_status("the idle drafter to be stopped", |status| {
        status["drafter"]["state"] == "stopped"
    });
    assert!(
        status["drafter"]["reason"].as_str().is_some_and(|why| why.contains("drafter.idle_stop_s")),
        "{status}"
    );
    assert_eq!(status["drafter"]["pid"], Value::Null);
    // A request that may not draft is none.
    stack.ask(long(8).route(RouteWish::Plain)).expect("served");
    assert_eq!(stack.status().expect("it answers")["drafter"]["state"], "stopped");
    // The first that may starts it, and if it goes on for long enough drafts itself.
    let first = stack.ask(long(8)).expect("served");
    assert_eq!(first.ids.len(), 8);
    wait("drafts", || {
        (stack.ask(long(48)).expect("served").speculation().cycles > 0).then_some(())
    });
    // An operator's stop is an operator's.
    stack.drafter(&["stop"]);
    let answer = stack.ask(long(8)).expect("served");
    assert_eq!(answer.route(), (Lane::Plain, RouteReason::DrafterAbsent));
    assert_eq!(stack.status().expect("it answers")["drafter"]["state"], "stopped");
    assert_eq!(target(&stack), before);
    stack.stop();
}

/// Costs in the status for steps of one request: rows, and whether a draft was measured.
fn step_costs(stack: &Stack) -> Vec<(u64, bool)> {
    let status = stack.status().expect("it answers");
    let costs = status["routing"]["step_costs"].as_array().expect("a list").iter();
    let cost = |cost: &Value| (cost["rows"].as_u64(), cost["draft_us"].as_f64() > Some(0.0));
    costs.map(cost).map(|(rows, drafts)| (rows.expect("a number"), drafts)).collect()
}

#[test]
fn a_restarted_target_begins_with_the_costs_that_were_measured() {
    let costs = tempfile::tempdir().expect("a directory");
    let stack = Stack::drafting(&format!("target.saved_costs = {:?}\n", costs.path()));
    assert_eq!(step_costs(&stack), [], "nothing was measured");
    for ask in [long(200).route(RouteWish::Speculative), long(60).route(RouteWish::Plain)] {
        stack.ask(ask).expect("served");
    }
    let measured = wait("costs of plain steps and of blocks", || {
        let measured = step_costs(&stack);
        let is_there = measured.iter().any(|(rows, drafts)| *rows > 1 && *drafts);
        (is_there && measured.iter().any(|(rows, _)| *rows == 1)).then_some(measured)
    });
    let before = target(&stack);
    assert!(stack.paceline(&["restart", "target"], "").status.success());
    wait("another target", || (target(&stack) != before).then_some(()));
    stack.wait_linked();
    let restored = wait("figures of the new target", || {
        Some(step_costs(&stack)).filter(|restored| !restored.is_empty())
    });
    // The figures may have been written before the last step was measured.
    for (rows, _) in &measured {
        assert!(restored.iter().any(|(known, _)| known == rows), "{measured:?} {restored:?}");
    }
    wait("costs of the linked drafter", || {
        step_costs(&stack).iter().any(|(_, drafts)| *drafts).then_some(())
    });
    let text = String::from_utf8(stack.paceline(&["status"], "").stdout).expect("text");
    assert!(text.contains("ms of a step by rows (+ its draft): 1 "), "{text}");
    stack.stop();
}
