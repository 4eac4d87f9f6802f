//! Routing end to end but for the models: the policy at run time, what the target receives, and the
//! route log.

use paceline_process::task;
use paceline_proto::internal::v1::{Done, PolicyForce, RepermitResponse, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{
    Lane, PolicyResponse, Route, RouteReason, SetPolicyRequest, ShowPolicyRequest, Speculation,
};
use paceline_supervisor::route_log::RouteLogLine;
use tonic::{Code, Status};

use crate::fake::Life;
use crate::{Stack, TERM, batch, request, with, within};

impl Stack {
    async fn set(&mut self, key: &str, value: &str) -> Result<PolicyResponse, Status> {
        let request = SetPolicyRequest { key: key.into(), value: value.into() };
        within(self.operations.set_policy(request)).await.map(tonic::Response::into_inner)
    }
}

async fn next_policy(target: &mut Life) -> paceline_proto::internal::v1::Policy {
    within(target.policies.recv()).await.expect("received")
}

/// Longer than 60 lines: one story from start to end.
#[tokio::test]
async fn a_policy_set_at_run_time_reaches_target_and_running_requests() {
    let (mut stack, mut target, _drafter) = Stack::linked().await;
    assert_eq!(
        (
            next_policy(&mut target).await.epoch,
            stack.status().await.routing.unwrap_or_default().policy_epoch
        ),
        (0, 0)
    );
    let answer = stack.submit(request());
    let running = target.next_request().await;
    assert_eq!(
        running.request.permit.map(|permit| (permit.lane_allowed(), permit.policy_epoch)),
        Some((Lane::Speculative, 0))
    );

    let set = stack.set("routing.force", "plain").await.expect("set");
    let changed: Vec<_> =
        set.policy.iter().filter(|setting| setting.source == "operator").collect();
    assert_eq!(
        (set.epoch, changed.len(), changed[0].key.as_str(), changed[0].value.as_str()),
        (1, 1, "routing.force", "plain")
    );
    let policy = next_policy(&mut target).await;
    assert_eq!(
        (policy.epoch, policy.force(), policy.max_concurrent),
        (1, PolicyForce::Plain, None)
    );
    let changes = within(target.permits.recv()).await.expect("received");
    let permit = changes[0].permit.expect("a permit");
    assert_eq!(
        (permit.lane_allowed(), permit.reason(), permit.policy_epoch),
        (Lane::Plain, RouteReason::Forced, 1)
    );

    for (key, value, expected) in [
        ("routing.max_concurent", "2", "did you mean routing.max_concurrent?"),
        ("routing.kv_pressure", "7", "expected above 0, at most 1, found 7"),
        ("limits.queue", "7", "cannot be changed at run time"),
    ] {
        let refused = stack.set(key, value).await.expect_err("refused");
        assert_eq!(
            (refused.code(), Reason::of(&refused)),
            (Code::InvalidArgument, Some(Reason::InvalidArgument))
        );
        assert!(refused.message().contains(expected), "{refused:?}");
    }
    stack.set("routing.force", "auto").await.expect("set");
    stack.set("routing.max_concurrent", "1").await.expect("set");
    let shown = within(stack.operations.show_policy(ShowPolicyRequest {}))
        .await
        .expect("shown")
        .into_inner();
    let values: Vec<_> = shown
        .policy
        .iter()
        .map(|setting| format!("{}={}", setting.value, setting.source))
        .collect();
    assert_eq!(
        (shown.epoch, values.join(" ").as_str()),
        (3, "auto=operator 1=operator auto=configuration 0.85=configuration")
    );
    // Those between may be passed over, the last one never.
    while next_policy(&mut target).await.epoch < 3 {}
    running.tokens(0, &[1], true).await;
    assert!(
        batch(&mut within(answer).await.expect("no panic").expect("served")).await.done.is_some()
    );

    // The next epoch of the target gets the policy at its start.
    target.die(paceline_supervisor_core::worker::WorkerExit::Signal(9)).await;
    let mut target = stack.life().await;
    target.idle();
    assert_eq!(next_policy(&mut target).await.epoch, 3);
}

#[tokio::test]
async fn permits_that_the_target_did_not_take_are_sent_again() {
    let (mut stack, mut target, _drafter) = Stack::linked().await;
    let _answer = stack.submit(request());
    let running = target.next_request().await;
    let refused = Err(Status::unavailable("not now"));
    let unknown = Ok(RepermitResponse { unknown: vec!["r1".into(), "r0".into()] });
    target.permit_answers.lock().expect("not poisoned").extend([refused, unknown]);
    stack.set("routing.force", "plain").await.expect("set");
    for _ in 0..3 {
        let changes = within(target.permits.recv()).await.expect("received");
        let permit = changes[0].permit.expect("a permit");
        assert_eq!(
            (changes.len(), changes[0].request_id.as_str(), permit.policy_epoch),
            (1, "r1", 1)
        );
        assert_eq!((permit.lane_allowed(), permit.reason()), (Lane::Plain, RouteReason::Forced));
    }
    // It is taken now; what comes next is new.
    stack.set("routing.force", "auto").await.expect("set");
    let changes = within(target.permits.recv()).await.expect("received");
    assert_eq!(
        changes[0].permit.map(|permit| (permit.lane_allowed(), permit.policy_epoch)),
        Some((Lane::Speculative, 2))
    );
    drop(running);
}

#[tokio::test]
async fn a_request_ended_at_a_stop_string_counts_as_served() {
    let (mut stack, mut target, _drafter) = Stack::linked().await;
    let answer = stack.submit(request());
    let running = target.next_request().await;
    let route = Route { lane: Lane::Speculative.into(), reason: RouteReason::Prior.into() };
    let so_far = Done { route: Some(route), queue_ms: -1.0, ..Default::default() };
    let tokens = TokenBatch {
        stamp: running.request.stamp,
        ids: vec![1, 2],
        so_far: Some(so_far),
        ..Default::default()
    };
    running.answer.send(Ok(tokens)).await.expect("it is read");
    let mut answer = within(answer).await.expect("no panic").expect("served");
    let so_far = batch(&mut answer).await.so_far.expect("handed on");
    assert!(so_far.queue_ms >= 0.0, "the wait is the supervisor's to say");
    drop(answer);
    within(running.answer.closed()).await;
    stack.counts(0, 0).await;
    let routing = stack.status().await.routing.expect("there");
    let counts: Vec<_> =
        routing.routes.iter().map(|count| (count.lane(), count.reason(), count.requests)).collect();
    assert_eq!(counts, [(Lane::Speculative, RouteReason::Prior, 1)]);
}

/// Longer than 60 lines: one story from start to end.
#[tokio::test]
async fn the_route_log_has_decision_and_end_and_no_text() {
    let mut stack = Stack::with_drafter(
        |settings| settings.log_routes = true,
        Stack::plan(Default::default()),
        None,
    );
    let mut target = stack.life().await;
    let mut drafter = stack.drafter().await;
    target.idle();
    drafter.idle();
    stack.link_up(&mut target, &mut drafter, 1).await;
    let canary = [31_337, 31_338, 31_339];
    let answer = stack.submit(with(|generation| {
        generation.prompt_ids = canary.to_vec();
        generation.traffic_class = "code".into();
    }));
    let running = target.next_request().await;
    let route = Route { lane: Lane::Speculative.into(), reason: RouteReason::Prior.into() };
    let speculation = Speculation { cycles: 2, drafted: 30, accepted: 5 };
    let done = Done { route: Some(route), speculation: Some(speculation), ..Default::default() };
    let stamp = running.request.stamp;
    let last =
        TokenBatch { stamp, ids: vec![31_340, 31_341], done: Some(done), ..Default::default() };
    running.answer.send(Ok(last)).await.expect("it is read");
    assert!(
        batch(&mut within(answer).await.expect("no panic").expect("served")).await.done.is_some()
    );
    // One whose client goes away ends too.
    let gone = stack.submit(with(|generation| generation.request_id = "r2".into()));
    let running = target.next_request().await;
    gone.abort();
    within(running.answer.closed()).await;
    stack.counts(0, 0).await;
    let routing = stack.status().await.routing.expect("there");
    let counts: Vec<_> =
        routing.routes.iter().map(|count| (count.lane(), count.reason(), count.requests)).collect();
    assert_eq!(counts, [(Lane::Speculative, RouteReason::Prior, 1)]);

    let path = stack.temp.path().join("routes.jsonl");
    let read = path.clone();
    let text = within(task::spawn("read", async move {
        loop {
            let text = std::fs::read_to_string(&read).unwrap_or_default();
            if text.lines().count() == 4 {
                return text;
            }
            tokio::task::yield_now().await;
        }
    }));
    let text = text.await.expect("no panic");
    for id in [31_337, 31_338, 31_339, 31_340, 31_341] {
        assert!(!text.contains(&id.to_string()), "a token of a request is in the log: {text}");
    }
    let lines: Vec<RouteLogLine> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let RouteLogLine::Decided(first) = &lines[0] else { panic!("{text}") };
    assert_eq!(
        (first.request.as_str(), first.class.as_str(), first.wish.as_str(), first.term),
        ("r1", "code", "auto", TERM)
    );
    assert_eq!(
        (first.signals.running, first.signals.context_tokens, first.signals.kv_pressure),
        (1, 3, 0.25)
    );
    assert_eq!(
        (first.permit.lane.as_str(), first.permit.reason.as_str(), first.again),
        ("speculative", "prior", false)
    );
    let RouteLogLine::Ended(end) = &lines[1] else { panic!("{text}") };
    let served = end.served.as_ref().expect("it ended well");
    assert_eq!(
        (served.cycles, served.drafted, served.accepted, served.completion_tokens),
        (2, 30, 5, 2)
    );
    let RouteLogLine::Ended(end) = &lines[3] else { panic!("{text}") };
    assert_eq!((end.request.as_str(), &end.served), ("r2", &None));
}
