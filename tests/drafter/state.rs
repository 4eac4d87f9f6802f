//! State of the drafter in status, routes and health.

use nix::sys::signal::Signal;
use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, repository, signal, wait};

use crate::support::MANY_RESTARTS;

#[test]
fn status_and_routes_follow_the_drafters_state() {
    let stack = Stack::drafting("");
    let ask = || some_of_each(1)[0].ask.clone();
    let status = stack.status().expect("it answers");
    assert!(status["drafter"]["model"].as_str().expect("text").ends_with("drafter"), "{status}");
    assert!(status["drafter"]["weight_bytes"].as_u64() > Some(1 << 20), "{status}");
    assert_eq!(stack.ask(ask()).expect("served").route().0, Lane::Speculative);
    assert_eq!(
        stack.ask(ask().route(RouteWish::Plain)).expect("served").route(),
        (Lane::Plain, RouteReason::Forced)
    );
    stack.drafter(&["stop"]);
    let status = stack.status().expect("it answers");
    assert_eq!(
        (&status["drafter"]["state"], &status["drafter"]["pid"]),
        (&"stopped".into(), &serde_json::Value::Null)
    );
    let plainly = stack.ask(ask().route(RouteWish::Speculative)).expect("served");
    assert_eq!(plainly.route(), (Lane::Plain, RouteReason::DrafterAbsent));
    // A drafter of another model is refused with the reason, and the service goes on.
    let other = repository().join("models/tests/golden/dflash-full");
    let refused =
        stack.paceline(&["drafter", "start", "--model", &other.display().to_string()], "");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("hidden"), "the reason is said: {words}");
    let plainly = stack.ask(ask()).expect("served");
    assert_eq!(plainly.route(), (Lane::Plain, RouteReason::DrafterIncompatible));
    let nowhere = stack.paceline(&["drafter", "start", "--model", "/nowhere"], "");
    assert!(!nowhere.status.success());
    stack.drafter(&["start", "--model", &repository().join("demo/drafter").display().to_string()]);
    assert_eq!(stack.ask(ask()).expect("served").route().0, Lane::Speculative);
    stack.stop();
}

#[test]
fn a_lazy_drafter_starts_at_the_first_request_and_a_manual_one_on_command() {
    let lazy = Stack::ready("drafter.start = \"lazy\"\n");
    assert_eq!(lazy.status().expect("it answers")["drafter"]["state"], "stopped");
    lazy.ask(some_of_each(1)[0].ask.clone()).expect("served");
    lazy.wait_linked();
    assert_eq!(
        lazy.ask(some_of_each(1)[0].ask.clone()).expect("served").route().0,
        Lane::Speculative
    );
    lazy.stop();

    let manual = Stack::ready("drafter.start = \"manual\"\n");
    manual.ask(some_of_each(1)[0].ask.clone()).expect("served");
    assert_eq!(manual.status().expect("it answers")["drafter"]["state"], "stopped");
    manual.drafter(&["start"]);
    assert_eq!(
        manual.ask(some_of_each(1)[0].ask.clone()).expect("served").route().0,
        Lane::Speculative
    );
    manual.stop();
}

#[test]
fn drafter_health_is_separate_from_the_services_health() {
    let stack = Stack::drafting(MANY_RESTARTS);
    let becomes = |serves: bool, why: &str| {
        wait(why, || (stack.serves("worker.drafter") == serves).then_some(()));
        assert!(
            stack.healthy() && stack.serves("worker.target"),
            "{why}: the end of a drafter is no outage"
        );
    };
    becomes(true, "SERVING while it is linked");
    stack.drafter(&["stop"]);
    becomes(false, "NOT_SERVING after it was stopped");
    stack.drafter(&["start"]);
    becomes(true, "SERVING when it was started");
    let drafter = stack.pid("drafter");
    signal(drafter, Signal::SIGSTOP);
    becomes(false, "NOT_SERVING while it gives no sign of life");
    signal(drafter, Signal::SIGCONT);
    becomes(true, "SERVING again, this one or the next");
    stack.stop();
}
