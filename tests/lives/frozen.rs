//! Processes that are stopped like hung ones: who notices, and what clients see.

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::Clock;
use paceline_tests::procs::{Process, stop_at_once};
use paceline_tests::{Stack, chat, signal, wait};
use serde_json::Value;
use tonic::{Code, Status};

/// Longest time to notice a process that stands still and to serve again, beside the time that it
/// may be silent. The goal is a second or two; this is for a busy machine.
const NOTICED_MS: u64 = 10_000;

/// Gateway and supervisor count as frozen after three times this.
const SHORT_HANG: &str = "supervisor.hang_s = 2\nsupervisor.lease_s = 30\n";

fn serves(stack: &Stack) {
    let answer = stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    assert!(!answer.ids.is_empty());
}

/// UNAVAILABLE, to be tried again, with this in its text.
fn refused(status: &Status, words: &str) {
    assert_eq!(
        (status.code(), Reason::of(status)),
        (Code::Unavailable, Some(Reason::Restarting)),
        "{status:?}"
    );
    assert!(status.message().contains(words), "{status:?}");
}

fn pids(status: &Value) -> [u64; 4] {
    ["gateway", "supervisor", "target", "drafter"]
        .map(|process| status[process]["pid"].as_u64().expect("it runs"))
}

#[test]
fn a_hung_supervisor_is_noticed_and_requests_are_refused_until_it_answers() {
    let stack = Stack::ready("supervisor.lease_s = 60\n");
    let supervisor = stack.pid("supervisor");
    let clock = Clock::start();
    signal(supervisor, Signal::SIGSTOP);
    // Sent before any process can know.
    let waiting = stack.start(chat("List three fruits.").max_tokens(8));
    wait("health NOT_SERVING", || (!stack.healthy()).then_some(()));
    // Three seconds without a beat.
    assert!(clock.now().0 < 3_000 + NOTICED_MS, "NOT_SERVING after {} ms", clock.now().0);
    assert!(!stack.serves("worker.target") && !stack.serves("worker.drafter"));
    let health = stack.http_get("/health").expect("answered");
    assert_eq!(health.status(), 503, "{health:?}");
    assert!(health.body.contains("RESTARTING"), "{health:?}");
    let metrics = stack.http_get("/metrics").expect("answered").body;
    assert!(metrics.contains("\npaceline_can_serve 0\n"), "{metrics}");

    let asked = Clock::start();
    let status = stack.ask(chat("List three fruits.")).expect_err("nobody would serve it");
    assert!(asked.now().0 < 2_000, "refused after {} ms", asked.now().0);
    refused(&status, "has not answered for 3 s");
    refused(&waiting.finish().expect_err("nobody serves it"), "has not answered for 3 s");

    let clock = Clock::start();
    signal(supervisor, Signal::SIGCONT);
    wait("health SERVING", || stack.healthy().then_some(()));
    serves(&stack);
    assert!(clock.now().0 < NOTICED_MS, "served again after {} ms", clock.now().0);
    assert_eq!(stack.pid("supervisor"), supervisor);
    stack.stop();
}

#[test]
fn a_frozen_gateway_and_a_frozen_supervisor_are_replaced_and_the_target_stays() {
    let stack = Stack::drafting(SHORT_HANG);
    let before = pids(&stack.status().expect("status"));
    for process in ["gateway", "supervisor"] {
        let clock = Clock::start();
        signal(stack.pid(process), Signal::SIGSTOP);
        let notice = format!("the {process} gave no sign of life for 6 s; killing it");
        wait(&notice, || stack.serve_log().contains(&notice).then_some(()));
        stack.wait_ready();
        let ms = clock.now().0;
        assert!(ms < 6_000 + NOTICED_MS, "the {process} was replaced after {ms} ms");
    }
    stack.wait_ready();
    let after = pids(&stack.wait_linked());
    assert_ne!((after[0], after[1]), (before[0], before[1]));
    assert_eq!(after[2..], before[2..], "the workers were taken over");
    serves(&stack);
    stack.stop();
}

#[test]
fn a_stop_ends_processes_that_are_stopped_at_once() {
    let mut stack = Stack::ready("");
    let pid = stack.pid("gateway");
    let gateway = stack.processes().into_iter().filter(|process| process.pid == pid);
    // All of its threads stand still before `serve` is asked.
    stop_at_once(&gateway.collect::<Vec<_>>());
    let clock = Clock::start();
    stack.signal_serve(Signal::SIGTERM);
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
    assert!(clock.now().0 < 25_000, "it waited for a process that cannot answer");
    stack.sweep();
}

#[test]
#[ignore = "more: ten seconds of standing still"]
fn time_in_which_everything_was_stopped_counts_for_nobody() {
    let stack = Stack::drafting(SHORT_HANG);
    let before = stack.wait_linked();
    let all: Vec<Process> = stack.processes();
    assert_eq!(all.len(), 5, "{all:?}");
    stop_at_once(&all);
    // What is tested is this time: longer than the 6 s that one of them alone may be silent.
    std::thread::sleep(std::time::Duration::from_secs(10));
    // `serve` first, so that it has time to decide before its children beat again.
    let serve = stack.serve_pid();
    signal(serve, Signal::SIGCONT);
    std::thread::sleep(std::time::Duration::from_secs(2));
    all.iter().for_each(|process| process.signal(Signal::SIGCONT));
    stack.wait_ready();
    serves(&stack);
    assert_eq!(pids(&stack.wait_linked()), pids(&before));
    let log = stack.serve_log();
    assert!(!log.contains("sign of life"), "{log}");
    stack.stop();
}
