//! Processes that die while images are under way, clients that leave, and images made to do
//! harm.

#[path = "../../gateway/tests/hostile/mod.rs"]
mod hostile;

use nix::sys::signal::Signal;
use paceline_proto::status::Reason;
use paceline_tests::ask::Ask;
use paceline_tests::images::{
    about, image, noise, path, seeing, seeing_and_drafting, text, turn, waiting,
};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat, kill_at_once, signal, wait};
use tonic::Code;

use super::{Compared, all_is_over, refused};

/// A target that a test has stopped is not replaced for it.
const LONG_HANG_TIME: &str = "supervisor.hang_s = 600\n";

fn shown(number: u64) -> Ask {
    about(noise(96, 64, number), "What is it?").exactly(40).with_margins()
}

/// A request whose images wait for a target that stands still.
fn stuck(stack: &Stack) -> Pending {
    signal(stack.pid("target"), Signal::SIGSTOP);
    let two = vec![turn(vec![image(noise(96, 64, 71)), image(noise(64, 64, 72)), text("Both?")])];
    let pending = stack.start(paceline_tests::ask::conversation(two).exactly(40));
    wait("its two images to be in files", || (waiting(stack).len() == 4).then_some(()));
    pending
}

#[test]
fn a_killed_targets_images_are_removed_and_the_next_target_has_vision() {
    let stack = seeing_and_drafting(LONG_HANG_TIME);
    let (expected, text) = (
        stack.ask(shown(1)).expect("served"),
        chat("Tell a long story.").exactly(60).with_margins(),
    );
    let said = stack.ask(text.clone()).expect("served");
    let mut compared = Compared::default();
    let again = |compared: &mut Compared, what: &str| {
        stack.wait_ready();
        compared.same(&expected, &stack.ask(shown(1)).expect("served"), what);
        compared.same(&said, &stack.ask(text.clone()).expect("served"), what);
        all_is_over(&stack);
    };
    // In the middle of answers.
    let before = stack.status().expect("it answers");
    let target = stack.pid("target");
    let long = |number| about(noise(96, 64, number), "What is it?").exactly(600);
    let asks = [long(2), chat("Tell a long story.").exactly(600), long(3)];
    let whole = asks.clone().map(|ask| stack.ask(ask.with_margins()).expect("served"));
    let streams = asks.map(|ask| stack.open(ask));
    let streams = streams.map(|stream| {
        let mut stream = stream.expect("served");
        stream.read(3);
        stream
    });
    signal(target, Signal::SIGKILL);
    for (stream, whole) in streams.into_iter().zip(&whole) {
        compared.same(whole, &stream.finish().expect("it goes on"), "in the middle of an answer");
    }
    stack.wait_status("a new target", |status| {
        status["target"]["state"] == "ready"
            && status["target"]["epoch"] != before["target"]["epoch"]
    });
    again(&mut compared, "after a kill in the middle of an answer");

    // Before it has read the images.
    let target = stack.pid("target");
    let pending = stuck(&stack);
    signal(target, Signal::SIGKILL);
    assert_eq!(pending.finish().expect("the next one reads them").ids.len(), 40);
    wait("the files to go with their request", || waiting(&stack).is_empty().then_some(()));
    again(&mut compared, "after a kill before its images were read");
    let after = stack.status().expect("it answers");
    for process in ["gateway", "supervisor"] {
        assert_eq!(after[process]["pid"], before[process]["pid"]);
    }
    stack.stop();
}

#[test]
fn a_killed_gateway_leaves_images_that_the_next_one_removes() {
    let mut stack = seeing(LONG_HANG_TIME);
    let expected = stack.ask(shown(1)).expect("served");
    let (gateway, target) = (stack.pid("gateway"), stack.pid("target"));
    let pending = stuck(&stack);
    signal(gateway, Signal::SIGKILL);
    pending.finish().expect_err("its gateway is gone");
    // The target stands still, so it is not the target that removes them.
    wait("the next gateway to have removed them", || waiting(&stack).is_empty().then_some(()));
    signal(target, Signal::SIGCONT);
    let status = stack.wait_ready();
    assert_eq!(status["target"]["pid"], target);
    assert_ne!(status["gateway"]["pid"], gateway);
    Compared::default().same(
        &expected,
        &stack.ask(shown(1)).expect("served"),
        "after a gateway's end",
    );
    all_is_over(&stack);

    // All processes at once: nothing can remove the files until the next start.
    let pending = stuck(&stack);
    kill_at_once(&stack.processes());
    assert_eq!(stack.serve_ended(), None);
    pending.finish().expect_err("all are gone");
    wait("all processes gone", || stack.processes().is_empty().then_some(()));
    assert_eq!(waiting(&stack).len(), 4);
    stack.serve();
    stack.wait_ready();
    assert!(waiting(&stack).is_empty(), "{:?}", waiting(&stack));
    Compared::default().same(&expected, &stack.ask(shown(1)).expect("served"), "after all ended");
    all_is_over(&stack);
    stack.stop();
}

#[test]
fn a_killed_supervisor_interrupts_running_requests_and_reloads_no_weights() {
    let stack = seeing(&format!("{LONG_HANG_TIME}supervisor.lease_s = 30\n"));
    let expected = stack.ask(shown(1)).expect("served");
    let before = stack.status().expect("it answers");
    let (supervisor, target) = (stack.pid("supervisor"), stack.pid("target"));
    let pending = stuck(&stack);
    signal(supervisor, Signal::SIGKILL);
    signal(target, Signal::SIGCONT);
    assert_eq!(pending.finish().expect("it goes on").ids.len(), 40);
    wait("the files to go with their request", || waiting(&stack).is_empty().then_some(()));
    let after = stack.wait_status("a new supervisor with the same target", |status| {
        status["target"]["state"] == "ready"
            && status["gateway"]["state"] == "ready"
            && status["term"] != before["term"]
    });
    for (process, key) in [("target", "pid"), ("target", "weights_loaded_at"), ("gateway", "pid")] {
        assert_eq!(after[process][key], before[process][key], "{process} {key}");
    }
    stack.wait_ready();
    Compared::default().same(
        &expected,
        &stack.ask(shown(1)).expect("served"),
        "after a supervisor's end",
    );
    all_is_over(&stack);
    stack.stop();
}

#[test]
fn images_of_a_client_that_hangs_up_are_removed() {
    let stack = seeing(LONG_HANG_TIME);
    let target = stack.pid("target");
    let image = path("up.png").display().to_string();
    // While they wait: the target stands still, so it is not the target that removes them.
    signal(target, Signal::SIGSTOP);
    let mut client =
        stack.begin(&["generate", "--image", &image, "--image", &image, "--message", "What?"]);
    wait("its two images to be in files", || (waiting(&stack).len() == 4).then_some(()));
    signal(client.id(), Signal::SIGINT);
    assert_eq!(
        wait("the end of generate", || client.try_wait().expect("a child")).code(),
        Some(130)
    );
    wait("the files to go with their client", || waiting(&stack).is_empty().then_some(()));
    signal(target, Signal::SIGCONT);
    // In the middle of an answer.
    for number in 0..3 {
        let mut live =
            stack.open(about(noise(96, 64, number), "What?").exactly(1_500)).expect("served");
        live.read(3);
    }
    all_is_over(&stack);
    assert!(!stack.ask(shown(5)).expect("it serves on").ids.is_empty());
    assert_eq!(stack.pid("target"), target);
    stack.stop();
}

#[test]
fn hostile_images_do_not_disturb_a_stream_beside_them() {
    let stack = seeing("");
    let (gateway, target) = (stack.pid("gateway"), stack.pid("target"));
    let text = chat("Tell a long story.").exactly(400).with_margins();
    let expected = stack.ask(text.clone()).expect("served");
    let (seen, mut compared) = (stack.ask(shown(1)).expect("served"), Compared::default());
    let hostile = hostile::all();
    assert!(hostile.len() >= 40, "{}", hostile.len());
    for some in hostile.chunks(8) {
        let beside = stack.start(text.clone());
        let asks =
            some.iter().map(|one| (one, stack.start(about(one.file.clone(), "What is it?"))));
        for (one, pending) in asks.collect::<Vec<_>>() {
            let status = pending.finish().map(|_: Answer| ()).expect_err(one.name);
            refused(
                &status,
                Code::InvalidArgument,
                Reason::BadImage,
                &["messages[0].content[0]", one.word],
                one.name,
            );
        }
        compared.same(
            &expected,
            &beside.finish().expect("served"),
            "a stream beside hostile images",
        );
        compared.same(
            &seen,
            &stack.ask(shown(1)).expect("served"),
            "a good image after hostile ones",
        );
    }
    assert_eq!((stack.pid("gateway"), stack.pid("target")), (gateway, target), "both are up");
    all_is_over(&stack);
    stack.stop();
}
