//! Orders of operators through the command line: each process restarted, the service drained,
//! events read. And what the lifecycle does by itself when a worker hangs, or never stays up.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::RouteWish;
use paceline_system::Clock;
use paceline_tests::{Live, Stack, chat, is_linked, programs, repository, signal, wait};
use serde_json::Value;
use tonic::{Code, Status};

/// A stream that has begun.
fn running(stack: &Stack, tokens: u32) -> Live {
    let mut live = stack.open(chat("Tell a long story.").exactly(tokens)).expect("served");
    live.read(3);
    live
}

fn serves(stack: &Stack) {
    assert!(!stack.ask(chat("List three fruits.").max_tokens(4)).expect("served").ids.is_empty());
}

fn refusal(stack: &Stack) -> Status {
    stack.ask(chat("List three fruits.").max_tokens(4)).expect_err("refused")
}

#[track_caller]
fn assert_reason(status: &Status, reason: Reason) {
    assert_eq!((status.code(), Reason::of(status)), (reason.code(), Some(reason)), "{status:?}");
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command beside what follows.
fn beside<'a>(stack: &'a Stack, words: &[&str]) -> impl FnOnce() -> Output + use<'a> {
    let child = stack.begin(words);
    let _ = stack;
    move || child.wait_with_output().expect("a child")
}

fn pids(status: &Value, processes: &[&str]) -> Vec<Value> {
    processes.iter().map(|process| status[process]["pid"].clone()).collect()
}

#[test]
fn the_target_is_restarted_after_its_streams_or_under_them() {
    let stack = Stack::drafting("limits.queue_wait_s = 60\n");
    let whole = stack.ask(chat("Tell a long story.").exactly(400)).expect("served");
    let before = stack.status().expect("status");
    let stream = running(&stack, 150);
    let restart = beside(&stack, &["restart", "target", "--drain"]);
    wait("no request to be taken", || (!stack.healthy()).then_some(()));
    // A request that arrives now waits for the next target.
    serves(&stack);
    assert_eq!(stream.finish().expect("it has its time").ids.len(), 150);
    assert!(done(&restart()).starts_with("target ready"));
    let after = stack.wait_linked();
    assert_ne!(after["target"]["pid"], before["target"]["pid"]);
    assert_eq!(
        pids(&after, &["gateway", "supervisor", "drafter"]),
        pids(&before, &["gateway", "supervisor", "drafter"])
    );
    assert_eq!(after["target"]["restarts"], 0, "it was asked for");

    let stream = running(&stack, 400);
    done(&stack.paceline(&["restart", "target"], ""));
    assert_eq!(stream.finish().expect("it goes on").ids, whole.ids);
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);
    assert_eq!(stack.processes().len(), 5, "{:?}", stack.processes());
    stack.stop();
}

#[test]
fn the_drafter_is_restarted_under_a_stream() {
    let stack = Stack::drafting("");
    let plain =
        stack.ask(chat("Tell a long story.").exactly(200).route(RouteWish::Plain)).expect("served");
    for words in [&["restart", "drafter"][..], &["restart", "drafter", "--now"]] {
        let before = stack.wait_linked();
        let stream = running(&stack, 200);
        assert!(done(&stack.paceline(words, "")).starts_with("drafter ready"));
        let after = stack.wait_linked();
        assert_ne!(after["drafter"]["pid"], before["drafter"]["pid"], "{words:?}");
        assert_eq!(
            pids(&after, &["gateway", "supervisor", "target"]),
            pids(&before, &["gateway", "supervisor", "target"])
        );
        assert_eq!(after["drafter"]["restarts"], 0, "{words:?}");
        assert_eq!(stream.finish().expect("it goes on").ids, plain.ids, "{words:?}");
    }
    stack.drafter(&["stop"]);
    let output = stack.paceline(&["restart", "drafter"], "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(stack.processes().len(), 4, "{:?}", stack.processes());
    stack.stop();
}

#[test]
fn the_gateway_is_restarted_behind_its_address() {
    let stack = Stack::ready("");
    let before = stack.status().expect("status");
    let stream = running(&stack, 100);
    let restart = beside(&stack, &["restart", "gateway"]);
    assert_eq!(stream.finish().expect("it has its time").ids.len(), 100);
    assert!(done(&restart()).starts_with("gateway ready"));
    let after = stack.status().expect("status");
    assert_ne!(after["gateway"]["pid"], before["gateway"]["pid"]);
    assert_eq!(pids(&after, &["supervisor", "target"]), pids(&before, &["supervisor", "target"]));
    assert_eq!(after["gateway"]["restarts"], 0, "it was asked for");
    serves(&stack);

    let stream = running(&stack, 3_000);
    done(&stack.paceline(&["restart", "gateway", "--now"], ""));
    assert!(stream.finish().is_err(), "it has no time");
    serves(&stack);
    stack.stop();
}

/// Waits until the gateway has found the next supervisor, and drafts can come.
fn attached(stack: &Stack) -> Value {
    stack.wait_status("all to be attached and linked", |status| {
        status["gateway"]["state"] == "ready"
            && status["drafter"]["state"] == "ready"
            && is_linked(status)
    })
}

#[test]
fn the_supervisor_is_restarted_and_the_workers_stay() {
    let stack = Stack::drafting("supervisor.lease_s = 30\n");
    let before = stack.wait_linked();
    let whole = stack.ask(chat("Tell a long story.").exactly(400)).expect("served");
    let stream = running(&stack, 150);
    let restart = beside(&stack, &["restart", "supervisor", "--drain"]);
    assert_eq!(stream.finish().expect("it has its time").ids.len(), 150);
    assert!(done(&restart()).starts_with("supervisor ready"));
    let after = attached(&stack);
    assert_ne!(after["supervisor"]["pid"], before["supervisor"]["pid"]);
    assert!(after["term"].as_u64() > before["term"].as_u64());
    assert_eq!(
        pids(&after, &["gateway", "target", "drafter"]),
        pids(&before, &["gateway", "target", "drafter"])
    );
    for worker in ["target", "drafter"] {
        assert_eq!(after[worker]["weights_loaded_at"], before[worker]["weights_loaded_at"]);
    }
    assert_eq!(after["supervisor"]["restarts"], 0, "it was asked for");
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);

    let stream = running(&stack, 400);
    done(&stack.paceline(&["restart", "supervisor"], ""));
    assert_eq!(stream.finish().expect("it goes on").ids, whole.ids);
    let last = attached(&stack);
    assert_eq!(
        pids(&last, &["gateway", "target", "drafter"]),
        pids(&before, &["gateway", "target", "drafter"])
    );
    assert_eq!(stack.processes().len(), 5, "{:?}", stack.processes());
    stack.stop();
}

#[test]
fn a_drained_service_refuses_until_it_is_undrained() {
    let stack = Stack::ready("");
    let before = stack.status().expect("status");
    let stream = running(&stack, 3_000);
    let output = stack.paceline(&["drain", "--timeout", "1"], "");
    assert_eq!(output.status.code(), Some(1), "one runs: {output:?}");
    wait("health NOT_SERVING", || (!stack.healthy()).then_some(()));
    assert_reason(&refusal(&stack), Reason::Draining);
    drop(stream);
    assert!(done(&stack.paceline(&["drain"], "")).starts_with("drained"));
    assert_eq!(stack.status().expect("it answers")["requests"]["active"], 0);
    done(&stack.paceline(&["drain", "--undo"], ""));
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);
    let after = stack.status().expect("status");
    assert_eq!(
        pids(&after, &["gateway", "supervisor", "target"]),
        pids(&before, &["gateway", "supervisor", "target"])
    );
    stack.stop();
}

#[test]
fn events_can_be_listed_and_followed_and_survive_a_supervisor() {
    let stack = Stack::drafting("supervisor.restarts = 100000\nsupervisor.lease_s = 30\n");
    let mut follower = stack.begin(&["events", "--follow", "--json", "--last", "0"]);
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    let mut until = |wanted: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        let mut seen = vec![];
        loop {
            let line = lines.next().expect("it follows").expect("text");
            let event: Value = serde_json::from_str(&line).expect("an object a line");
            seen.push(event.clone());
            if wanted(&event) {
                return seen;
            }
        }
    };
    // It follows once it shows something; so something has to happen until it does.
    done(&stack.paceline(&["drain"], ""));
    done(&stack.paceline(&["drain", "--undo"], ""));
    done(&stack.paceline(&["restart", "target"], ""));
    let seen = until(&|event| event["subject"] == "target" && event["to"] == "ready");
    assert!(
        seen.iter().all(|event| event["time"].as_str().is_some_and(|time| time.ends_with('Z'))),
        "{seen:?}"
    );
    let caused = seen.iter().filter(|event| event["kind"] == "phase");
    assert!(
        caused.clone().count() > 0 && caused.clone().all(|event| event["cause"] != ""),
        "{seen:?}"
    );

    // It goes on with the next supervisor.
    let term = stack.status().expect("status")["term"].clone();
    signal(stack.pid("supervisor"), Signal::SIGKILL);
    let seen = until(&|event| {
        event["term"] != term && event["subject"] == "target" && event["to"] == "ready"
    });
    assert!(seen.last().is_some_and(|event| event["cause"] == "taken over"), "{seen:?}");
    follower.kill().expect("it runs");
    follower.wait().expect("a child");

    // The present supervisor returns the events of the previous one.
    let told = done(&stack.paceline(&["events", "--json", "--last", "1000"], ""));
    let told: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    let of = |term: &Value, kind: &str| {
        told.iter().filter(|event| event["term"] == *term && event["kind"] == kind).count()
    };
    for kind in ["supervisor", "phase", "link", "gateway", "order", "service"] {
        assert!(of(&term, kind) > 0, "no {kind} in {told:#?}");
    }
    let order: Vec<(u64, u64)> = told
        .iter()
        .filter_map(|event| Some((event["term"].as_u64()?, event["number"].as_u64()?)))
        .collect();
    assert!(order.is_sorted() && order.len() == told.len(), "{order:?}");
    let text = done(&stack.paceline(&["events", "--last", "3"], ""));
    assert_eq!(text.lines().count(), 3, "{text}");
    stack.stop();
}

#[test]
fn a_service_is_listed_asked_in_short_forms_and_stopped() {
    let mut stack = Stack::ready("drafter.model = \"\"\n");
    let listed = done(&stack.paceline(&["ps"], ""));
    for process in ["gateway", "supervisor", "target"] {
        let pid = stack.pid(process).to_string();
        let line = listed.lines().find(|line| line.split_whitespace().nth(1) == Some(process));
        let line = line.unwrap_or_else(|| panic!("no {process} in {listed}"));
        assert!(line.contains(&pid) && line.contains(" ready "), "{line}");
    }
    assert!(!listed.contains("drafter"), "{listed}");

    let shell = |words: &str| done(&stack.shell(words).output().expect("it runs"));
    let models = shell("paceline models");
    assert!(models.contains("demo-target") && models.contains("demo-vision"), "{models}");
    for words in ["paceline ls", "paceline list"] {
        assert_eq!(shell(words), models);
    }
    let target = repository().join("demo/target").display().to_string();
    let about =
        |word| shell(&format!("paceline {word} {target}")).lines().next().map(str::to_owned);
    assert!(about("show").is_some_and(|line| line.starts_with("demo-target at ")));
    assert_eq!(about("show"), about("inspect"));
    assert!(shell("paceline show demo-vision").starts_with("demo-vision at "));
    let known = shell("paceline models --known");
    assert!(known.contains("qwen3-8b") && known.contains("z-lab/Qwen3-8B-DFlash-b16"), "{known}");

    let answer = |words: &[&str], input: &str| {
        let how = ["--max-tokens", "8", "--temperature", "0"];
        done(&stack.paceline(&[&["generate"], words, &how].concat(), input))
    };
    let both = answer(&["--message", "List three fruits.\n\nTell a story."], "");
    assert_eq!(answer(&["List three fruits."], "Tell a story.\n"), both);
    let one = answer(&["--message", "List three fruits."], "");
    assert_eq!(answer(&["List three fruits."], ""), one);
    assert_eq!(answer(&[], "List three fruits.\n"), one);
    assert_ne!(one, both);
    for (words, input) in [(&["generate"][..], "\n"), (&["generate", "a", "--message", "b"], "")] {
        let output = stack.paceline(words, input);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
    }

    let logged = done(&stack.paceline(&["logs", "-n", "1000"], ""));
    for process in ["gateway", "supervisor", "target"] {
        assert!(logged.contains(&format!("/{process}.log <==\n")), "{process}: {logged}");
    }
    let mut followed = stack.shell("exec paceline logs --follow target --lines 1000");
    let mut followed = followed.spawn().expect("it starts");
    let lines = BufReader::new(followed.stdout.take().expect("piped")).lines();
    // A line that comes after the command has begun.
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("loaded weight_bytes=")));
    answer(&["List three fruits."], "");
    let is_end = |line: &str| line.contains("request finished");
    let before = logged.lines().filter(|line| is_end(line)).count();
    assert_eq!(lines.filter(|line| is_end(line)).take(before + 1).count(), before + 1);
    assert!(before > 0, "{logged}");
    followed.kill().expect("it runs");
    followed.wait().expect("a child");

    assert_eq!(done(&stack.paceline(&["stop"], "")), "stopped\n");
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
    stack.sweep();
    assert_eq!(stack.paceline(&["stop"], "").status.code(), Some(3));
}

#[test]
fn bad_commands_and_a_missing_service_are_reported() {
    let stack = Stack::new("");
    for words in [&["restart", "target"][..], &["drain"], &["events"], &["events", "--follow"]] {
        assert_eq!(stack.paceline(words, "").status.code(), Some(3), "{words:?}");
    }
    for words in [&["ps"][..], &["stop"], &["logs"], &["logs", "-f"]] {
        let output = stack.paceline(words, "");
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((said.lines().count(), output.stdout.len()), (1, 0), "{words:?}: {said}");
    }
    for words in [&["restart", "clock"][..], &["drain", "--now"], &["events", "--last", "-1"]] {
        assert_eq!(stack.paceline(words, "").status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn a_frozen_target_becomes_suspect_then_is_replaced() {
    let stack = Stack::drafting("supervisor.hang_s = 3\nlimits.queue_wait_s = 1\n");
    let before = stack.status().expect("status");
    let stream = running(&stack, 1_500);
    let clock = Clock::start();
    signal(stack.pid("target"), Signal::SIGSTOP);
    stack.wait_status("the target to be doubted", |status| status["target"]["state"] == "suspect");
    println!("doubted after {} ms", clock.now().0);
    let begun = Clock::start();
    assert_eq!(refusal(&stack).code(), Code::Unavailable);
    println!("refused within {} ms", begun.now().0);
    assert_eq!(stream.finish().expect("it goes on").ids.len(), 1_500);
    let after = stack.wait_status("another target", |status| {
        status["target"]["state"] == "ready" && status["target"]["pid"] != before["target"]["pid"]
    });
    println!("replaced after {} ms", clock.now().0);
    assert_eq!(
        after["drafter"]["pid"], before["drafter"]["pid"],
        "the drafter is not its target's fate"
    );
    stack.wait_linked();
    serves(&stack);
    stack.stop();
}

#[test]
fn a_frozen_drafter_is_bypassed_then_replaced() {
    let stack = Stack::drafting("supervisor.hang_s = 3\n");
    let before = stack.status().expect("status");
    let plain =
        stack.ask(chat("Tell a long story.").exactly(200).route(RouteWish::Plain)).expect("served");
    let ask = chat("Tell a long story.").exactly(200).route(RouteWish::Speculative);
    let usual = stack.ask(ask.clone()).expect("served");
    let drafter = stack.pid("drafter");
    let mut stream = stack.open(ask).expect("served");
    stream.read(3);
    signal(drafter, Signal::SIGSTOP);
    let answer = stream.finish().expect("it goes on");
    assert_eq!(answer.ids, plain.ids);
    println!(
        "longest pause {:.0} ms, undisturbed {:.0} ms",
        answer.longest_gap_ms(),
        usual.longest_gap_ms()
    );
    // A cycle waits for drafts a small multiple of a plain step, so a stopped drafter is bypassed
    // within 250 ms. Nothing waits for the two seconds until missing heartbeats are noticed. A
    // loose bound for a busy machine.
    assert!(answer.longest_gap_ms() < 1_000.0, "a pause of {} ms", answer.longest_gap_ms());
    serves(&stack);
    let after = stack.wait_status("another drafter", |status| {
        is_linked(status) && status["drafter"]["pid"] != before["drafter"]["pid"]
    });
    assert_eq!(after["target"]["pid"], before["target"]["pid"]);
    stack.stop();
}

/// A program that this test wrote. Copied by another process. A file that this one wrote may still
/// be open in a child that another test just forked, and could not be executed then (ETXTBSY).
fn program(stack: &Stack, name: &str, script: &str) -> PathBuf {
    let (source, path) = (stack.path(&format!("{name}.txt")), stack.path(name));
    std::fs::write(&source, format!("#!/bin/sh\n{script}\n")).expect("writable");
    assert!(Command::new("cp").args([&source, &path]).status().expect("cp exists").success());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("ours");
    path
}

fn real(name: &str) -> String {
    programs().join(name).display().to_string()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_crash_looping_target_is_reported_and_can_be_started_by_hand() {
    let mut stack = Stack::new("");
    let mended = stack.path("mended");
    let script = format!(
        "[ -e {} ] && exec {} \"$@\"\necho the weights are upside down >&2; kill -ABRT $$",
        text(&mended),
        real("paceline-target")
    );
    let target = program(&stack, "target.sh", &script);
    stack.env("PACELINE_TARGET_BIN", &text(&target));
    stack.serve();
    let failed = stack.wait_status("the target to be given up for now", |status| {
        status["target"]["state"] == "failed"
    });
    let reason = failed["target"]["reason"].as_str().expect("a reason");
    for part in ["SIGABRT", "next try in", "the weights are upside down"] {
        assert!(reason.contains(part), "no {part:?} in {reason}");
    }
    assert_eq!(failed["target"]["restarts"], 4, "five starts");
    wait("the gateway to know", || {
        let begun = Clock::start();
        let status = refusal(&stack);
        println!("refused within {} ms: {:?}", begun.now().0, Reason::of(&status));
        (Reason::of(&status) == Some(Reason::CrashLoop)).then_some(())
    });
    // It is started and crashes again, which the command reports.
    let output = stack.paceline(&["restart", "target"], "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("upside down"), "{output:?}");
    std::fs::write(&mended, "").expect("writable");
    done(&stack.paceline(&["restart", "target"], ""));
    stack.wait_ready();
    serves(&stack);
    stack.stop();
}

#[test]
fn a_target_that_crashes_a_few_times_is_restarted() {
    let mut stack = Stack::new("");
    let lives = stack.path("lives");
    let script = format!(
        "echo life >> {lives}\n[ $(wc -l < {lives}) -gt 3 ] && exec {} \"$@\"\necho not yet >&2; exit 70",
        real("paceline-target"),
        lives = text(&lives)
    );
    let target = program(&stack, "target.sh", &script);
    stack.env("PACELINE_TARGET_BIN", &text(&target));
    stack.serve();
    let status = stack.wait_ready();
    assert_eq!(status["target"]["restarts"], 3);
    serves(&stack);
    stack.stop();
}

#[test]
#[ignore = "soak: a minute; run by `make soak`"]
fn a_failed_target_is_tried_again_after_a_minute() {
    let mut stack = Stack::new("");
    let mended = stack.path("mended");
    let script =
        format!("[ -e {} ] && exec {} \"$@\"\nexit 70", text(&mended), real("paceline-target"));
    let target = program(&stack, "target.sh", &script);
    stack.env("PACELINE_TARGET_BIN", &text(&target));
    stack.serve();
    stack.wait_status("the target to be given up for now", |status| {
        status["target"]["state"] == "failed"
    });
    std::fs::write(&mended, "").expect("writable");
    let clock = Clock::start();
    while stack.status().is_none_or(|status| status["target"]["state"] != "ready") {
        assert!(clock.now().0 < 90_000, "not tried again");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    stack.stop();
}

/// How long a plain request takes, in milliseconds.
fn plain_ms(stack: &Stack) -> f64 {
    let begun = paceline_system::clock::monotonic_ns();
    stack.ask(chat("List three fruits.").exactly(24).route(RouteWish::Plain)).expect("served");
    (paceline_system::clock::monotonic_ns() - begun) as f64 / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn a_crash_looping_drafter_delays_no_plain_request() {
    // It comes up each time and falls at once: a second from start to start, for ever.
    let mut stack = Stack::new("supervisor.restarts = 100000\n");
    let script = format!(
        "{} \"$@\" & trap 'kill -9 $!' TERM; sleep 1; kill -9 $!; exit 70",
        real("paceline-drafter")
    );
    let drafter = program(&stack, "drafter.sh", &script);
    stack.env("PACELINE_DRAFTER_BIN", &text(&drafter));
    stack.serve();
    stack.wait_ready();
    let restarts = || stack.snapshot().expect("it answers").drafter.unwrap_or_default().restarts;
    // In turns on one service, so that what else the machine does falls on both.
    let (mut without, mut with) = (vec![], vec![]);
    for _ in 0..2 {
        stack.drafter(&["stop"]);
        without.extend((0..8).map(|_| plain_ms(&stack)));
        // A command that starts it waits for a link, and that it has before it falls.
        stack.drafter(&["start"]);
        let before = restarts();
        let mut beside = vec![];
        wait("the drafter to fall twice", || {
            beside.push(plain_ms(&stack));
            (beside.len() >= 8 && restarts() >= before + 2).then_some(())
        });
        with.extend(beside);
        assert!(stack.healthy(), "the end of a drafter is no outage");
    }
    let (count, most) = (with.len(), with.iter().copied().fold(0.0, f64::max));
    let (without, with) = (median(&mut without), median(&mut with));
    println!(
        "a plain request takes {without:.1} ms without a drafter, {with:.1} ms beside one that falls again and again, at most {most:.1} ms of {count}"
    );
    // Starting a process costs the machine something; a request waits for none of it.
    assert!(with <= without * 1.5, "{without} ms, then {with} ms");
    stack.drafter(&["stop"]);
    stack.stop();
}
