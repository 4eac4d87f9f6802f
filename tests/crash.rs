//! Processes killed for real: what clients see, what comes back, and that nothing is left.

use std::io::{Read as _, Write as _};

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::{Live, Stack, chat, signal, wait};
use serde_json::Value;

/// A stream that runs for long and has begun.
fn long(stack: &Stack) -> Live {
    let mut live = stack.open(chat("Tell a long story.").exactly(3000)).expect("served");
    live.read(3);
    live
}

fn serves(stack: &Stack) {
    let answer = stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    assert!(!answer.ids.is_empty());
}

fn kill(pid: u32) {
    signal(pid, Signal::SIGKILL);
}

fn number(status: &Value, process: &str, key: &str) -> u64 {
    status[process][key].as_u64().unwrap_or_else(|| panic!("no {process}.{key} in {status}"))
}

#[test]
fn a_killed_target_pauses_its_streams_and_comes_back() {
    let stack = Stack::ready("");
    let ask = || chat("Tell a long story.").exactly(400);
    let expected = stack.ask(ask()).expect("served");
    let before = stack.status().expect("status");
    let mut stream = stack.open(ask()).expect("served");
    stream.read(3);
    kill(stack.pid("target"));
    let answer = stream.finish().expect("it goes on");
    assert_eq!((answer.ids, answer.end.resumed), (expected.ids, 1));
    let after = stack.wait_status("a new target", |status| {
        status["target"]["state"] == "ready"
            && status["target"]["epoch"] != before["target"]["epoch"]
    });
    assert!(number(&after, "target", "epoch") > number(&before, "target", "epoch"));
    assert_eq!(number(&after, "target", "restarts"), 1);
    assert_eq!(after["kv"]["held_bytes"], 0);
    // Gateway and supervisor lived through it.
    for process in ["gateway", "supervisor"] {
        assert_eq!(after[process]["pid"], before[process]["pid"]);
    }
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);
    stack.stop();
}

#[test]
fn a_stopped_service_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut stack = Stack::ready("");
        assert_eq!(stack.processes().len(), 5, "{:?}", stack.processes());
        stack.signal_serve(signal);
        assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
        // Nothing outlives serve when it was asked to stop.
        assert_eq!(stack.processes(), []);
        stack.sweep();
    }
}

#[test]
fn stopping_lets_running_requests_end() {
    let mut stack = Stack::ready("");
    let mut stream = stack.open(chat("Tell a long story.").exactly(120)).expect("served");
    stream.read(3);
    stack.signal_serve(Signal::SIGTERM);
    let answer = stream.finish().expect("drained, not cut");
    assert_eq!(answer.ids.len(), 120);
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
    stack.sweep();
}

#[test]
fn a_second_request_to_stop_cancels_running_requests() {
    let mut stack = Stack::ready("");
    let stream = long(&stack);
    stack.signal_serve(Signal::SIGTERM);
    wait("it to be stopping", || stack.serve_log().contains("stopping").then_some(()));
    stack.signal_serve(Signal::SIGTERM);
    let status = stream.finish().expect_err("cancelled");
    assert!(Reason::of(&status).is_some(), "{status:?}");
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
    stack.sweep();
}

#[test]
fn a_killed_serve_leaves_nothing_once_the_lease_is_over() {
    let mut stack = Stack::ready("");
    let stream = long(&stack);
    stack.signal_serve(Signal::SIGKILL);
    assert_eq!(stack.serve_ended(), None);
    drop(stream);
    stack.sweep();
    // And it starts again where it was.
    stack.serve();
    stack.wait_ready();
    serves(&stack);
    stack.stop();
}

#[test]
fn a_target_alone_ends_itself_when_its_lease_is_over() {
    let mut stack = Stack::ready("supervisor.lease_s = 1\n");
    let target = stack.pid("target");
    for process in stack.processes() {
        if process.pid != target {
            process.signal(Signal::SIGKILL);
        }
    }
    assert_eq!(stack.serve_ended(), None);
    wait("the end of the target", || stack.processes().is_empty().then_some(()));
    assert!(!stack.run_dir().join("target.sock").exists(), "it takes its socket with it");
    // What the killed ones left is removed by the next start.
    stack.serve();
    stack.wait_ready();
    stack.stop();
}

#[test]
fn a_serve_started_while_the_killed_ones_children_stop_waits_for_them() {
    let mut stack = Stack::ready("");
    stack.signal_serve(Signal::SIGKILL);
    assert_eq!(stack.serve_ended(), None);
    stack.serve();
    stack.wait_ready();
    serves(&stack);
    assert_eq!(stack.processes().len(), 5, "{:?}", stack.processes());
    stack.stop();
}

#[test]
fn all_killed_at_once_leaves_files_that_the_next_start_removes() {
    let mut stack = Stack::ready("");
    let first = stack.status().expect("status");
    for process in stack.processes() {
        process.signal(Signal::SIGKILL);
    }
    assert_eq!(stack.serve_ended(), None);
    wait("all processes gone", || stack.processes().is_empty().then_some(()));
    stack.serve();
    let second = stack.wait_ready();
    assert!(number(&second, "target", "epoch") > number(&first, "target", "epoch"));
    assert!(second["term"].as_u64() > first["term"].as_u64());
    serves(&stack);
    stack.stop();
}

#[test]
fn a_killed_supervisor_is_replaced_and_its_worker_taken_over() {
    let stack = Stack::ready("supervisor.lease_s = 30\n");
    let before = stack.status().expect("status");
    let mut stream = stack.open(chat("Tell a long story.").exactly(400)).expect("served");
    stream.read(3);
    kill(stack.pid("supervisor"));
    assert_eq!(stream.finish().expect("it goes on").ids.len(), 400);
    let after = stack.wait_status("a new supervisor with the same target", |status| {
        status["target"]["state"] == "ready"
            && status["gateway"]["state"] == "ready"
            && status["term"] != before["term"]
    });
    assert_eq!(after["target"]["pid"], before["target"]["pid"]);
    assert_eq!(after["gateway"]["pid"], before["gateway"]["pid"]);
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);
    assert_eq!(stack.processes().len(), 5, "{:?}", stack.processes());
    stack.stop();
}

#[test]
fn a_killed_gateway_is_replaced_behind_the_same_address() {
    let stack = Stack::ready("");
    let before = stack.status().expect("status");
    kill(stack.pid("gateway"));
    let after = stack.wait_status("a new gateway", |status| {
        status["gateway"]["state"] == "ready"
            && status["gateway"]["pid"] != before["gateway"]["pid"]
    });
    assert_eq!(after["target"]["pid"], before["target"]["pid"]);
    assert_eq!(number(&after, "gateway", "restarts"), 1);
    serves(&stack);
    stack.stop();
}

#[test]
fn a_runtime_directory_has_one_service() {
    let stack = Stack::ready("");
    let mut second = stack.another_serve();
    let code = wait("the end of the second serve", || second.try_wait().expect("a child")).code();
    assert_eq!(code, Some(64));
    assert!(stack.serve_log().contains("another service"), "{}", stack.serve_log());
    // The first one never noticed.
    serves(&stack);
    stack.stop();
}

/// How the sequences of these requests ended, by the target's own log.
fn outcomes(stack: &Stack) -> Vec<String> {
    let log = std::fs::read_to_string(stack.run_dir().join("target.log")).expect("there");
    let ends = log.lines().filter(|line| line.contains("request finished"));
    let outcome = |line: &str| Some(line.split_once("outcome=\"")?.1.split_once('"')?.0.to_owned());
    ends.filter_map(outcome).collect()
}

#[test]
fn a_client_that_hangs_up_frees_its_memory() {
    // More tokens than a machine generates within the bound of a wait. The target's own report
    // shows that none of the sequences came to its end.
    const SAMPLES: u32 = 8;
    let stack = Stack::ready("");
    let endless = || chat("Tell a long story.").exactly(3000).sampled(1.0, 1.0, 7).samples(SAMPLES);
    let streams: Vec<_> = (0..3)
        .map(|_| {
            let mut live = stack.open(endless()).expect("served");
            live.read(3);
            live
        })
        .collect();
    wait("memory held", || (stack.held_bytes() > 0).then_some(()));
    assert_eq!(outcomes(&stack), Vec::<String>::new(), "all of them run");
    drop(streams);
    stack.wait_memory_back();
    let requests = stack.snapshot().expect("a supervisor").requests.unwrap_or_default();
    assert_eq!((requests.active, requests.queued), (0, 0));
    let outcomes = outcomes(&stack);
    assert!(outcomes.len() >= 3, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome == "abandoned"), "{outcomes:?}");
    serves(&stack);
    stack.stop();
}

#[test]
fn ctrl_c_on_the_command_line_cancels() {
    let stack = Stack::ready("");
    let forever = ["--ignore-eos", "--max-tokens", "3000"];
    let mut generate =
        stack.begin(&[&["generate", "--message", "Tell a long story."], &forever[..]].concat());
    generate.stdout.as_mut().expect("piped").read_exact(&mut [0; 4]).expect("the answer begins");
    wait("memory held", || (stack.held_bytes() > 0).then_some(()));
    signal(generate.id(), Signal::SIGINT);
    let code = wait("the end of generate", || generate.try_wait().expect("a child")).code();
    assert_eq!(code, Some(130));
    stack.wait_memory_back();

    // In a chat it ends the answer, not the conversation.
    let mut chat = stack.begin(&[&["chat"], &forever[..]].concat());
    let mut input = chat.stdin.take().expect("piped");
    input.write_all(b"Tell a long story.\n").expect("it reads");
    chat.stdout.as_mut().expect("piped").read_exact(&mut [0; 4]).expect("the answer begins");
    wait("memory held", || (stack.held_bytes() > 0).then_some(()));
    signal(chat.id(), Signal::SIGINT);
    stack.wait_memory_back();
    assert!(chat.try_wait().expect("a child").is_none(), "the conversation goes on");
    input.write_all(b"/quit\n").expect("it reads");
    drop(input);
    let output = chat.wait_with_output().expect("a child");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    stack.stop();
}
