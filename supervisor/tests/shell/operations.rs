//! Orders of operators about target, gateway, supervisor and the whole service, with scripted
//! workers.

use paceline_process::task;
use paceline_proto::internal::v1::supervisor_notice::Notice;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{DrainRequest, EventsRequest, Process, ProcessState, RestartRequest};
use paceline_supervisor_core::worker;
use paceline_system::Clock;
use paceline_vocabulary::Exit;
use tonic::Code;

use crate::{Stack, TERM, assert_retryable, batch, failure, request, state, within};

#[tokio::test]
async fn a_restarted_supervisor_leaves_its_workers() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    let attached = stack.attach().await;
    let request_restart = |process: Process, now| RestartRequest {
        process: process.into(),
        now,
        timeout_ms: 0,
        drain: !now,
    };
    let order = request_restart(Process::Supervisor, false);
    let answered = within(stack.operations.restart(order)).await.expect("taken").into_inner();
    assert_eq!(answered.term, TERM);
    assert_retryable(&stack.refused(request()).await, Reason::Restarting);
    let second = within(stack.operations.restart(request_restart(Process::Target, true))).await;
    assert_eq!(Reason::of(&second.expect_err("it leaves")), Some(Reason::Draining));
    // Who runs has its time.
    running.tokens(1, &[8], true).await;
    assert!(batch(&mut answer).await.done.is_some());
    let clock = Clock::start();
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::RestartMe);
    // An attached gateway does not hold it up: its server has two seconds for streams that do not
    // end.
    assert!(clock.now().0 < 1_500, "{} ms", clock.now().0);
    drop(attached);
    assert!(life.stops.try_recv().is_err(), "the target is left alone");
    assert!(stack.temp.path().join("target.sock").exists());
}

#[tokio::test]
async fn a_target_is_restarted_by_an_operator() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    let mut operations = stack.operations.clone();
    let restart = task::spawn("restart", async move {
        let process = Process::Target.into();
        operations.restart(RestartRequest { process, now: true, timeout_ms: 0, drain: false }).await
    });
    assert_retryable(&failure(&mut answer).await, Reason::Restarting);
    drop(running);
    within(life.stops.recv()).await.expect("asked to end");
    life.die(worker::WorkerExit::Code(0)).await;
    let next = stack.life().await;
    next.idle();
    let target = within(restart)
        .await
        .expect("no panic")
        .expect("done")
        .into_inner()
        .process
        .expect("there");
    assert_eq!((target.state(), target.epoch, target.restarts), (ProcessState::Ready, 2, 0));

    // The order and its outcome are events, in this order.
    let events = within(stack.operations.events(EventsRequest { follow: false, last: None }))
        .await
        .expect("received")
        .into_inner();
    let events: Vec<_> = futures::StreamExt::collect::<Vec<_>>(events).await;
    let events: Vec<_> = events.into_iter().map(|event| event.expect("an event")).collect();
    let lines: Vec<String> = events
        .iter()
        .map(|event| format!("{} {} {}", event.kind, event.subject, event.to))
        .collect();
    let expected = [
        "supervisor supervisor serving",
        "phase target ready",
        "order target restart at once",
        "phase target stopped",
    ];
    let mut rest = lines.iter();
    for line in expected {
        assert!(rest.any(|found| found == line), "no {line:?} in {lines:#?}");
    }
    assert!(
        events.iter().all(|event| event.kind == "supervisor" || !event.cause.is_empty()),
        "{events:#?}"
    );
}

#[tokio::test]
async fn a_gateway_restart_is_answered_by_the_next_gateway() {
    let (mut stack, _life) = Stack::ready(|_| {}).await;
    let order =
        RestartRequest { process: Process::Gateway.into(), now: true, timeout_ms: 0, drain: false };
    let (reports, mut notices) = stack.attach().await;
    while state(&stack.status().await.gateway) != ProcessState::Ready {}
    let mut operations = stack.operations.clone();
    let restart = task::spawn("restart", async move { operations.restart(order).await });
    let notice = loop {
        let notice = within(notices.message()).await.expect("a stream").expect("not over");
        if let Some(Notice::Restart(order)) = notice.notice {
            break order;
        }
    };
    assert_eq!(notice.grace_ms, Some(0));
    drop((reports, notices));
    // The next gateway does not get the order for the one before.
    let (_reports, mut notices) = stack.attach().await;
    let gateway = within(restart)
        .await
        .expect("no panic")
        .expect("done")
        .into_inner()
        .process
        .expect("there");
    assert_eq!(gateway.state(), ProcessState::Ready);
    let notice = within(notices.message()).await.expect("a stream").expect("not over");
    assert!(matches!(notice.notice, Some(Notice::Service(_))), "{notice:?}");
}

#[tokio::test]
async fn a_drained_service_takes_nothing_until_the_drain_is_undone() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    let late = within(stack.operations.drain(DrainRequest { undo: false, timeout_ms: 20 }))
        .await
        .expect_err("one runs");
    assert_eq!(
        (late.code(), Reason::of(&late)),
        (Code::DeadlineExceeded, Some(Reason::DeadlinePassed))
    );
    assert_retryable(&stack.refused(request()).await, Reason::Draining);
    assert!(!stack.notice(|_| true).await.can_serve);
    running.tokens(1, &[8], true).await;
    assert!(batch(&mut answer).await.done.is_some());
    let drained = within(stack.operations.drain(DrainRequest::default()))
        .await
        .expect("nothing runs")
        .into_inner();
    assert_eq!(drained.requests.map(|requests| requests.active), Some(0));
    within(stack.operations.drain(DrainRequest { undo: true, timeout_ms: 0 }))
        .await
        .expect("undone");
    let (_running, _answer) = stack.running(&mut life).await;
}
