//! `paceline top` as a person has it: in a terminal, beside a service that starts, changes and
//! ends.

use nix::sys::signal::Signal;
use paceline_tests::pty::Pty;
use paceline_tests::{Stack, chat, wait};

fn top(stack: &Stack) -> Pty {
    Pty::start(stack.command(&["top"]), 100, 30)
}

/// The row of a process, if it is as wanted.
fn has_row(screen: &str, process: &str, state: &str) -> bool {
    screen.lines().any(|line| line.starts_with(process) && line.contains(state))
}

#[test]
fn the_page_follows_a_service_and_gives_orders_only_after_a_yes() {
    let mut stack = Stack::new("");
    let mut page = top(&stack);
    page.wait_text("no service at");
    page.wait_text("trying again");

    stack.serve();
    stack.wait_ready();
    let before = stack.wait_linked();
    page.wait_for("all processes to be ready", |screen| {
        ["gateway", "supervisor", "target", "drafter"]
            .iter()
            .all(|name| has_row(screen, name, "ready"))
    });
    assert!(!stack.ask(chat("List three fruits.").exactly(64)).expect("served").ids.is_empty());
    page.wait_for("the request to be counted", |screen| screen.contains("drafted accepted"));
    page.wait_for("the throughput", |screen| screen.contains("throughput:"));

    page.press("rd");
    page.wait_text("Restart the drafter? Running requests go on in the plain lane");
    page.press("n");
    page.wait_text("nothing was ordered");
    assert_eq!(stack.status().expect("status")["drafter"]["pid"], before["drafter"]["pid"]);

    page.press("rd");
    page.wait_text("Restart the drafter?");
    page.press("y");
    page.wait_text("drafter ready");
    assert_ne!(stack.wait_linked()["drafter"]["pid"], before["drafter"]["pid"]);

    page.press("sw/no/such/directory\r");
    page.wait_text("Swap the drafter for /no/such/directory?");
    page.press("y");
    page.wait_text("found nothing at /no/such/directory");
    page.wait_for("the earlier drafter to stay", |screen| has_row(screen, "drafter", "ready"));

    page.press("dd");
    page.wait_text("Drain the service?");
    page.press("y");
    page.wait_text("drained by an operator");
    wait("health NOT_SERVING", || (!stack.healthy()).then_some(()));
    page.press("duy");
    page.wait_text("requests are taken again");
    wait("health SERVING", || stack.healthy().then_some(()));
    page.wait_for("no notice of a drain", |screen| !screen.contains("drained by an operator"));

    stack.signal_serve(Signal::SIGTERM);
    assert_eq!(stack.serve_ended(), Some(0));
    page.wait_text("figures of");
    page.wait_text("trying again");
    page.press("q");
    assert_eq!(page.ended().code(), Some(0));
    stack.sweep();
}

#[test]
fn every_end_gives_the_terminal_back() {
    let stack = Stack::new("");
    let mut interrupted = top(&stack);
    interrupted.wait_text("no service at");
    interrupted.press("\x03");
    assert_eq!(interrupted.ended().code(), Some(0));
    let terminated = top(&stack);
    terminated.wait_text("no service at");
    terminated.signal(Signal::SIGTERM);
    assert_eq!(terminated.ended().code(), Some(0));
}

#[test]
fn without_a_terminal_there_is_a_sentence_and_one_frame() {
    let stack = Stack::new("");
    let output = stack.paceline(&["top"], "");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said.contains("expected a terminal") && said.contains("paceline status"), "{said}");
    let output = stack.paceline(&["top", "--once"], "");
    assert_eq!(output.status.code(), Some(3), "no service: {output:?}");

    let stack = Stack::ready("drafter.model = \"\"\n");
    let output = stack.paceline(&["top", "--once", "--size", "100x24"], "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let frame = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(frame.lines().count(), 24, "{frame}");
    assert!(has_row(&frame, "target", "ready") && has_row(&frame, "drafter", "absent"), "{frame}");
    assert!(frame.contains("events (UTC)") && !frame.contains('\x1b'), "{frame}");
    stack.stop();
}
