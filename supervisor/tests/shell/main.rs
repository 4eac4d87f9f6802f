//! The supervisor's shell against a scripted target: real sockets, real services, one process.

mod drafter;
mod fake;
mod grammar;
mod loads;
mod operations;
mod routing;

use std::time::Duration;

use fake::{Answer, BUDGET_BYTES, Life, RunningRequest};
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{Config, RuntimeDir, socket, task};
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::internal::v1::supervisor_notice::Notice;
use paceline_proto::internal::v1::*;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{Lane, ProcessState, RouteReason, StatusRequest, StatusResponse};
use paceline_supervisor::boot_mark::BootMark;
use paceline_supervisor::mailbox::Stop;
use paceline_supervisor_core::drafter::DrafterPlan;
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::Exit;

use paceline_supervisor::status::OwnProcess;
use paceline_supervisor::{Setup, run};
use paceline_supervisor_core::{Settings, WorkerId, worker};
use paceline_vocabulary::Term;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

const TERM: u64 = 5;

/// A bound against hangs, never a wait.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

struct Stack {
    temp: tempfile::TempDir,
    lives: mpsc::Receiver<Life>,
    drafters: mpsc::Receiver<Life>,
    stop: mpsc::Sender<Stop>,
    run: JoinHandle<Exit>,
    gateway: SupervisorClient<Channel>,
    operations: OperationsClient<Channel>,
}

impl Stack {
    fn start(change: impl FnOnce(&mut Settings), earlier: Option<WorkerRecord>) -> Self {
        Self::with_drafter(
            change,
            DrafterPlan::default(),
            earlier.map(|record| (WorkerId::Target, record)),
        )
    }

    fn with_drafter(
        change: impl FnOnce(&mut Settings),
        plan: DrafterPlan,
        earlier: Option<(WorkerId, WorkerRecord)>,
    ) -> Self {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config::default();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(temp.path(), mode).expect("ours");
        config.supervisor.runtime_dir = temp.path().display().to_string();
        let dir = RuntimeDir::locate(&config).expect("a short path");
        dir.prepare().expect("a private directory");
        let mut settings = paceline_supervisor::config::settings(&config);
        change(&mut settings);
        let (lives_tx, lives) = mpsc::channel(8);
        let (drafters_tx, drafters) = mpsc::channel(8);
        let (stop, stops) = mpsc::channel(4);
        let own = OwnProcess { pid: 1, term: TERM, restarts: 2, kv_reduced: false };
        let route_log = settings.log_routes.then(|| temp.path().join("routes.jsonl"));
        let hosts = fake::hosts(&dir, lives_tx, drafters_tx, earlier);
        let channel = socket::channel(dir.socket("supervisor"));
        let setup = Setup {
            settings,
            plan,
            dir,
            term: Term(TERM),
            own,
            route_log,
            target: fake::target_setup(),
            boot_mark: BootMark::none(),
            desk: None,
            planner: None,
        };
        let run = task::spawn("supervisor", run(setup, hosts, stops));
        let gateway = SupervisorClient::new(channel.clone());
        Self {
            temp,
            lives,
            drafters,
            stop,
            run,
            gateway,
            operations: OperationsClient::new(channel),
        }
    }

    /// A supervisor whose target has loaded, and that target.
    async fn ready(change: impl FnOnce(&mut Settings)) -> (Self, Life) {
        let mut stack = Self::start(change, None);
        let life = stack.life().await;
        life.idle();
        stack.serving().await;
        (stack, life)
    }

    async fn life(&mut self) -> Life {
        within(self.lives.recv()).await.expect("a target is started")
    }

    async fn attach(&mut self) -> (mpsc::Sender<GatewayReport>, Streaming<SupervisorNotice>) {
        let (reports, outbound) = mpsc::channel(4);
        let report = GatewayReport {
            epoch: 3,
            pid: 77,
            state: GatewayState::Ready.into(),
            restarts: 1,
            streams: 0,
            images: None,
            // The fake target's model has no path.
            model: Some(paceline_vocabulary::ModelMark::of("").0),
            unread_tool_calls: true,
        };
        reports.send(report).await.expect("room");
        let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
        let notices = within(self.gateway.attach(outbound)).await.expect("attached").into_inner();
        (reports, notices)
    }

    /// Waits until the gateway gets a notice that `wanted` accepts.
    async fn notice(&mut self, wanted: impl Fn(&ServiceState) -> bool) -> ServiceState {
        let (_reports, mut notices) = self.attach().await;
        loop {
            let notice = within(notices.message()).await.expect("a stream").expect("not over");
            assert_eq!(notice.term, TERM);
            if let Some(Notice::Service(state)) = notice.notice
                && wanted(&state)
            {
                return state;
            }
        }
    }

    async fn serving(&mut self) {
        self.notice(|state| state.can_serve).await;
    }

    async fn status(&mut self) -> StatusResponse {
        within(self.operations.status(StatusRequest {})).await.expect("answered").into_inner()
    }

    /// Waits until `active` requests run and `queued` requests wait.
    async fn counts(&mut self, active: u32, queued: u32) {
        loop {
            let requests = self.status().await.requests.expect("always there");
            if (requests.active, requests.queued) == (active, queued) {
                return;
            }
        }
    }

    /// Submits in the background, as a gateway does.
    fn submit(&self, request: SubmitRequest) -> JoinHandle<Result<Answer, Status>> {
        let mut gateway = self.gateway.clone();
        task::spawn("submit", async move {
            gateway.submit(request).await.map(tonic::Response::into_inner)
        })
    }

    async fn refused(&mut self, request: SubmitRequest) -> Status {
        let answer = within(self.gateway.submit(request)).await;
        answer.map(|_| ()).expect_err("refused")
    }

    async fn running(&mut self, life: &mut Life) -> (RunningRequest, Answer) {
        let answer = self.submit(request());
        let running = life.next_request().await;
        running.tokens(0, &[7], false).await;
        let mut answer = within(answer).await.expect("no panic").expect("served");
        assert_eq!(batch(&mut answer).await.ids, [7]);
        (running, answer)
    }
}

fn request() -> SubmitRequest {
    let generation = Generation {
        request_id: "r1".into(),
        prompt_ids: vec![1, 2, 3],
        max_tokens: 8,
        seed: 9,
        traffic_class: "default".into(),
        sampling: Some(SamplingRule::GREEDY),
        ..Default::default()
    };
    SubmitRequest {
        stamp: Some(Stamp { term: TERM, epoch: 3 }),
        generation: Some(generation),
        key_id: 0,
        resumed: 0,
        model_path: String::new(),
    }
}

fn with(change: impl FnOnce(&mut Generation)) -> SubmitRequest {
    let mut request = request();
    change(request.generation.as_mut().expect("there"));
    request
}

async fn batch(answer: &mut Answer) -> TokenBatch {
    within(answer.message()).await.expect("no error").expect("not over")
}

async fn failure(answer: &mut Answer) -> Status {
    within(answer.message()).await.expect_err("it fails")
}

fn state(process: &Option<paceline_proto::v1::ProcessStatus>) -> ProcessState {
    process.as_ref().expect("always there").state()
}

fn assert_retryable(status: &Status, reason: Reason) {
    assert_eq!((status.code(), Reason::of(status)), (reason.code(), Some(reason)), "{status:?}");
    assert!(
        status.get_details_retry_info().is_some_and(|info| info.retry_delay.is_some()),
        "{status:?}"
    );
}

#[tokio::test]
async fn a_target_loads_and_serves() {
    let mut stack = Stack::start(|_| {}, None);
    let mut life = stack.life().await;
    assert_eq!((life.epoch, life.term), (1, TERM));
    life.loading(10, 100);
    let notice = stack.notice(|state| state.message.contains("10 %")).await;
    assert_eq!((notice.can_serve, notice.reason.as_str()), (false, "TARGET_LOADING"));
    let status = stack.status().await;
    assert_eq!(state(&status.target), ProcessState::Loading);
    assert_eq!(
        status.target.map(|target| (target.pid, target.loaded_bytes, target.weight_bytes)),
        Some((4_242, 10, 100))
    );
    assert_retryable(&stack.refused(request()).await, Reason::TargetLoading);

    life.loading(100, 100);
    life.idle();
    stack.serving().await;
    let answer = stack.submit(request());
    let running = life.next_request().await;
    assert_eq!(running.request.stamp, Some(Stamp { term: TERM, epoch: 1 }));
    assert_eq!(running.request.generation, request().generation);
    let permit = running.request.permit.expect("a permit");
    assert_eq!(
        (permit.lane_allowed(), permit.max_draft, permit.reason()),
        (Lane::Plain, 0, RouteReason::DrafterAbsent)
    );
    running.tokens(0, &[11, 12], false).await;
    running.tokens(2, &[13], true).await;
    let mut answer = within(answer).await.expect("no panic").expect("served");
    assert_eq!(batch(&mut answer).await.ids, [11, 12]);
    let last = batch(&mut answer).await;
    assert_eq!((last.ids, last.done.map(|done| done.queue_ms >= 0.0)), (vec![13], Some(true)));
    // The place is free before the end is out.
    let status = stack.status().await;
    assert_eq!(status.requests.map(|requests| requests.active), Some(0));
    drop(running);
    assert!(within(answer.message()).await.expect("a clean end").is_none());

    assert_eq!(state(&status.target), ProcessState::Ready);
    let target = status.target.expect("there");
    assert_eq!(target.weights_loaded_at, "2023-11-14T22:13:20Z");
    assert_eq!(
        (target.model.as_str(), target.weight_bytes, target.epoch, target.restarts),
        ("/models/demo", 100, 1, 0)
    );
    let kv = status.kv.expect("there");
    assert_eq!((kv.budget_bytes, kv.held_bytes, kv.pressure), (BUDGET_BYTES, 250, 0.25));
    assert_eq!(state(&status.drafter), ProcessState::Absent);
    assert_eq!((status.term, status.supervisor.map(|me| me.restarts)), (TERM, Some(2)));
}

#[tokio::test]
async fn a_target_killed_during_a_stream_ends_it_with_target_gone_and_is_restarted() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    let waiting_for_the_first =
        stack.submit(with(|generation| generation.request_id = "r2".into()));
    let second = life.next_request().await;
    life.die(worker::WorkerExit::Signal(9)).await;
    let status = failure(&mut answer).await;
    assert_retryable(&status, Reason::TargetGone);
    assert!(status.message().contains("SIGKILL"), "{}", status.message());
    let status =
        within(waiting_for_the_first).await.expect("no panic").map(drop).expect_err("it fails");
    assert_retryable(&status, Reason::TargetGone);
    drop((running, second));

    let mut next = stack.life().await;
    assert_eq!(next.epoch, 2);
    // Before or after its first heartbeat.
    let status = stack.refused(request()).await;
    let reason = Reason::of(&status).expect("ours");
    assert!(matches!(reason, Reason::Restarting | Reason::TargetLoading), "{status:?}");
    assert_retryable(&status, reason);
    assert!(status.message().contains("SIGKILL"), "{}", status.message());
    next.idle();
    stack.serving().await;
    let (_running, _answer) = stack.running(&mut next).await;
    let target = stack.status().await.target.expect("there");
    assert_eq!((target.restarts, target.epoch), (1, 2));
    assert!(
        target.reason.contains("SIGKILL") && target.reason.contains("the last words"),
        "{}",
        target.reason
    );
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_in_every_state() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    // Before the first token.
    let answer = stack.submit(request());
    let running = life.next_request().await;
    answer.abort();
    within(running.answer.closed()).await;
    stack.counts(0, 0).await;
    // In the middle of the stream.
    let (running, answer) = stack.running(&mut life).await;
    drop(answer);
    within(running.answer.closed()).await;
    stack.counts(0, 0).await;
    // In the queue: two run. The third waits and goes away, and the fourth does not wait for it.
    let (first, mut first_answer) = stack.running(&mut life).await;
    let (_second, _second_answer) = stack.running(&mut life).await;
    let third = stack.submit(request());
    stack.counts(2, 1).await;
    let fourth = stack.submit(with(|generation| generation.request_id = "r4".into()));
    stack.counts(2, 2).await;
    third.abort();
    stack.counts(2, 1).await;
    first.tokens(1, &[8], true).await;
    assert!(batch(&mut first_answer).await.done.is_some());
    assert_eq!(
        life.next_request().await.request.generation.map(|generation| generation.request_id),
        Some("r4".into())
    );
    fourth.abort();
}

/// A signal to the target alone, as an operator may send one: the request can go on with the next
/// one.
#[tokio::test]
async fn a_target_that_was_stopped_by_a_signal_is_gone_for_its_requests() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    let drained = Reason::Draining.status("the target was asked to stop");
    running.answer.send(Err(drained)).await.expect("it is read");
    assert_retryable(&failure(&mut answer).await, Reason::TargetGone);
}

#[tokio::test]
async fn a_long_wait_and_a_full_queue_are_refused_by_their_reasons() {
    let (mut stack, mut life) = Stack::ready(|Settings { admission, .. }| {
        (admission.queue_wait_ms, admission.queue_places) = (50, 1);
    })
    .await;
    let _first = stack.running(&mut life).await;
    let _second = stack.running(&mut life).await;
    assert_retryable(&stack.refused(request()).await, Reason::QueueWait);
    let late =
        stack.refused(with(|generation| generation.deadline_ns = monotonic_ns() + 5_000_000)).await;
    assert_eq!(
        (late.code(), Reason::of(&late)),
        (Code::DeadlineExceeded, Some(Reason::DeadlinePassed))
    );
    stack.counts(2, 0).await;
}

#[tokio::test]
async fn a_request_that_cannot_be_served_is_refused_by_its_field() {
    let (mut stack, _life) = Stack::ready(|_| {}).await;
    let mut stale = request();
    stale.stamp = Some(Stamp { term: TERM - 1, epoch: 3 });
    let status = stack.refused(stale).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::FailedPrecondition, Some(Reason::StaleTerm))
    );
    assert!(status.message().contains("expected term 5, found 4"), "{}", status.message());
    let mut unstamped = request();
    unstamped.stamp = None;
    assert_eq!(Reason::of(&stack.refused(unstamped).await), Some(Reason::StaleTerm));
    let cases = [
        ("request_id", with(|generation| generation.request_id = "a b".into())),
        ("prompt", with(|generation| generation.prompt_ids.clear())),
        ("limits.max_tokens", with(|generation| generation.max_tokens = 0)),
        ("route", with(|generation| generation.route = 99)),
        ("limits.max_tokens", with(|generation| generation.max_tokens = 2_000)),
        ("prompt", with(|generation| generation.prompt_ids = vec![1; 1_024])),
    ];
    for (field, request) in cases {
        let status = stack.refused(request).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert_eq!(
            status.get_details_bad_request().expect("a field").field_violations[0].field,
            field
        );
    }
    let status = stack.refused(with(|generation| generation.max_tokens = 500)).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::ResourceExhausted, Some(Reason::KvExhausted))
    );
    let facts = status.get_details_error_info().expect("facts").metadata;
    assert_eq!((facts["need_bytes"].as_str(), facts["budget_bytes"].as_str()), ("2000", "1000"));
}

#[tokio::test]
async fn a_targets_status_passes_and_a_foreign_status_does_not() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let answer = stack.submit(request());
    let refusal =
        Reason::InvalidArgument.field("sampling.top_p", "expected above 0, at most 1, found 2");
    life.next_request().await.answer.send(Err(refusal)).await.expect("it is read");
    let status = within(answer).await.expect("no panic").map(drop).expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
    assert_eq!(
        status.get_details_bad_request().expect("a field").field_violations[0].field,
        "sampling.top_p"
    );

    for foreign in
        [Status::internal("h2 protocol error"), Reason::StaleEpoch.status("another life")]
    {
        let (running, mut answer) = stack.running(&mut life).await;
        running.answer.send(Err(foreign)).await.expect("it is read");
        assert_retryable(&failure(&mut answer).await, Reason::TargetGone);
    }
    // A stream that just stops is no success.
    let (running, mut answer) = stack.running(&mut life).await;
    drop(running);
    assert_retryable(&failure(&mut answer).await, Reason::TargetGone);
    // Nor is a batch of another life (I7).
    let (running, mut answer) = stack.running(&mut life).await;
    let stamp = Some(Stamp { term: TERM, epoch: 0 });
    running.answer.send(Ok(TokenBatch { stamp, ..Default::default() })).await.expect("it is read");
    assert_retryable(&failure(&mut answer).await, Reason::TargetGone);
    stack.counts(0, 0).await;
}

#[tokio::test]
async fn a_stop_drains_ends_the_target_and_leaves_no_file() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    stack.stop.send(Stop::Asked).await.expect("it runs");
    stack.notice(|state| state.reason == "DRAINING").await;
    assert_retryable(&stack.refused(request()).await, Reason::Draining);
    assert_eq!(state(&stack.status().await.supervisor), ProcessState::Draining);
    running.tokens(1, &[8], true).await;
    assert!(batch(&mut answer).await.done.is_some());
    let stop = within(life.stops.recv()).await.expect("asked to end");
    assert_eq!((stop.stamp, stop.grace_ms), (Some(Stamp { term: TERM, epoch: 1 }), 0));
    life.die(worker::WorkerExit::Code(0)).await;
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::Asked);
    let mut left: Vec<_> = std::fs::read_dir(stack.temp.path())
        .expect("there")
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["events.jsonl", "target.epoch", "target.epoch.spare"],
        "only the counter and the events stay"
    );
}

#[tokio::test]
async fn a_second_stop_cancels_and_a_third_stop_kills() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (running, mut answer) = stack.running(&mut life).await;
    stack.stop.send(Stop::Asked).await.expect("it runs");
    stack.stop.send(Stop::Asked).await.expect("it runs");
    assert_retryable(&failure(&mut answer).await, Reason::Draining);
    within(running.answer.closed()).await;
    within(life.stops.recv()).await.expect("asked to end");
    // It does not end, and no request waits for it: SIGKILL.
    stack.stop.send(Stop::Asked).await.expect("it runs");
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::Asked);
}

#[tokio::test]
async fn a_target_of_an_earlier_supervisor_is_adopted() {
    let earlier = WorkerRecord { pid: 99, started: 1, epoch: 40, boot: String::new() };
    let mut stack = Stack::start(|_| {}, Some(earlier));
    let mut old = stack.life().await;
    old.idle();
    stack.serving().await;
    let target = stack.status().await.target.expect("there");
    assert_eq!(
        (target.state(), target.pid, target.epoch, target.restarts),
        (ProcessState::Ready, 99, 40, 0)
    );
    let (running, mut answer) = stack.running(&mut old).await;
    assert_eq!(running.request.stamp, Some(Stamp { term: TERM, epoch: 40 }));
    // Its end is seen, and another is started.
    old.die(worker::WorkerExit::Unknown).await;
    assert_retryable(&failure(&mut answer).await, Reason::TargetGone);
    let next = stack.life().await;
    next.idle();
    stack.serving().await;
    assert!(stack.lives.try_recv().is_err(), "one and no more");
    // When it is asked to stop, it ends its workers, also those of an earlier supervisor.
    stack.stop.send(Stop::Asked).await.expect("it runs");
    next.die(worker::WorkerExit::Code(0)).await;
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::Asked);
}

#[tokio::test]
async fn a_target_whose_record_names_another_process_is_ended_first() {
    ended_and_replaced(fake::STRANGER).await;
}

#[tokio::test]
async fn a_target_of_another_build_is_ended_first() {
    ended_and_replaced(fake::OTHER_BUILD).await;
}

/// A target that an earlier supervisor recorded as process `pid` is not taken over.
async fn ended_and_replaced(pid: u32) {
    let earlier = WorkerRecord { pid, started: 1, epoch: 40, boot: String::new() };
    let mut stack = Stack::start(|_| {}, Some(earlier));
    let mut old = stack.life().await;
    old.idle();
    let stop = within(old.stops.recv()).await.expect("asked to end");
    assert_eq!((stop.stamp, stop.grace_ms), (Some(Stamp { term: TERM, epoch: 40 }), 0));
    let target = stack.status().await.target.expect("there");
    assert_eq!((target.state(), target.pid, target.epoch), (ProcessState::Draining, pid, 40));
    assert_retryable(&stack.refused(request()).await, Reason::Restarting);
    assert!(stack.lives.try_recv().is_err(), "the next one waits");
    old.die(worker::WorkerExit::Code(0)).await;
    let next = stack.life().await;
    next.idle();
    stack.serving().await;
    assert_eq!(stack.status().await.target.map(|target| target.restarts), Some(0));
}

#[tokio::test]
async fn the_gateways_state_is_shown_while_it_is_attached() {
    let (mut stack, _life) = Stack::ready(|_| {}).await;
    let (reports, notices) = stack.attach().await;
    let attached = loop {
        let gateway = stack.status().await.gateway.expect("there");
        if gateway.state() == ProcessState::Ready {
            break gateway;
        }
    };
    assert_eq!((attached.pid, attached.epoch, attached.restarts), (77, 3, 1));
    drop((reports, notices));
    loop {
        let gateway = stack.status().await.gateway.expect("there");
        if gateway.state() == ProcessState::Stopped {
            assert_eq!(gateway.pid, 0);
            return;
        }
    }
}

#[tokio::test]
async fn a_gateway_gets_the_state_first_and_then_beats() {
    let (mut stack, _life) = Stack::ready(|_| {}).await;
    let (_reports, mut notices) = stack.attach().await;
    let first = within(notices.message()).await.expect("a stream").expect("not over");
    assert!(matches!(first.notice, Some(Notice::Service(_))), "{first:?}");
    let mut beats = 0;
    while beats < 2 {
        let notice = within(notices.message()).await.expect("a stream").expect("not over");
        beats += u32::from(matches!(notice.notice, Some(Notice::Beat(_))));
    }
}
