//! The drafter, end to end but for the models: processes, links with real descriptors, orders
//! through the real service.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use paceline_link::Handover;

use paceline_process::config::DrafterStart;
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::task;
use paceline_proto::internal::v1::{LinkPhase, Stamp};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{
    DrafterResponse, Lane, LinkStatus, ProcessState, ProcessStatus, RouteReason,
    StartDrafterRequest, StopDrafterRequest, SwapDrafterRequest,
};
use paceline_supervisor::mailbox::Stop;
use paceline_supervisor_core::drafter::DrafterPlan;
use paceline_supervisor_core::worker;
use paceline_supervisor_core::{WorkerId, WorkerSlot};
use paceline_vocabulary::Exit;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::fake::{self, Life};
use crate::{Stack, TERM, batch, request, state, with, within};

type Answered = JoinHandle<Result<DrafterResponse, Status>>;

/// Links of this term, counted from 1.
fn generation(n: u64) -> u64 {
    (TERM << 32) + n
}

impl Stack {
    pub(crate) fn plan(start: DrafterStart) -> DrafterPlan {
        DrafterPlan { models: vec!["/models/drafter".into()], start, ..DrafterPlan::default() }
    }

    pub(crate) async fn drafter(&mut self) -> Life {
        within(self.drafters.recv()).await.expect("a drafter is started")
    }

    /// Target and drafter have loaded and have their ends of the first link.
    pub(crate) async fn linked() -> (Self, Life, Life) {
        let mut stack = Self::with_drafter(|_| {}, Self::plan(DrafterStart::Eager), None);
        let mut target = stack.life().await;
        let mut drafter = stack.drafter().await;
        target.idle();
        drafter.idle();
        stack.link_up(&mut target, &mut drafter, 1).await;
        stack.serving().await;
        (stack, target, drafter)
    }

    pub(crate) async fn link_up(&mut self, target: &mut Life, drafter: &mut Life, n: u64) {
        let (theirs, its) = (target.handed().await, drafter.handed().await);
        for (handover, life) in [(&theirs, &*target), (&its, &*drafter)] {
            assert_eq!(handover.stamp, Stamp { term: TERM, epoch: life.epoch });
            assert_eq!(handover.generation, generation(n));
        }
        target.link(generation(n), LinkPhase::Up, "");
        // The last report may still be of an earlier link.
        let is_up = |link: LinkStatus| link.state == "up" && link.generation == generation(n);
        while !is_up(self.status().await.link.expect("always there")) {}
    }

    async fn link_is(&mut self, word: &str) {
        while self.status().await.link.expect("always there").state != word {}
    }

    async fn drafter_is(&mut self, wanted: ProcessState) -> ProcessStatus {
        loop {
            let drafter = self.status().await.drafter.expect("always there");
            if drafter.state() == wanted {
                return drafter;
            }
        }
    }

    fn start_drafter(&self, model: &str, timeout_ms: u32) -> Answered {
        let (mut client, model) = (self.operations.clone(), model.to_owned());
        let order =
            async move { client.start_drafter(StartDrafterRequest { model, timeout_ms }).await };
        task::spawn("start", async move { order.await.map(tonic::Response::into_inner) })
    }

    fn stop_drafter(&self) -> Answered {
        let mut client = self.operations.clone();
        let order = async move { client.stop_drafter(StopDrafterRequest { timeout_ms: 0 }).await };
        task::spawn("stop", async move { order.await.map(tonic::Response::into_inner) })
    }

    fn swap_drafter(&self, model: &str) -> Answered {
        let (mut client, model) = (self.operations.clone(), model.to_owned());
        let order =
            async move { client.swap_drafter(SwapDrafterRequest { model, timeout_ms: 0 }).await };
        task::spawn("swap", async move { order.await.map(tonic::Response::into_inner) })
    }

    /// A directory that can be named.
    fn model_dir(&self, name: &str) -> String {
        let path: PathBuf = self.temp.path().join(name);
        std::fs::create_dir_all(&path).expect("made");
        path.display().to_string()
    }
}

impl Stack {
    /// Health of the drafter, as a gateway that attaches now is notice.
    async fn drafter_serves(&mut self) -> bool {
        self.notice(|_| true).await.drafter_serves
    }
}

async fn done(answer: Answered) -> ProcessStatus {
    within(answer).await.expect("no panic").expect("done").drafter.expect("always there")
}

async fn refused(answer: Answered) -> Status {
    within(answer).await.expect("no panic").expect_err("refused")
}

/// Ends a worker that was asked to.
async fn leaves(life: &mut Life) {
    within(life.stops.recv()).await.expect("asked to end");
    life.die(worker::WorkerExit::Code(0)).await;
}

#[tokio::test]
async fn both_ends_of_a_link_reach_each_other_and_the_same_memory() {
    let mut stack = Stack::with_drafter(|_| {}, Stack::plan(DrafterStart::Eager), None);
    let (mut target, mut drafter) = (stack.life().await, stack.drafter().await);
    assert_eq!(
        (drafter.worker, drafter.epoch, drafter.model.as_str()),
        (WorkerId::Drafter(WorkerSlot::First), 1, "/models/drafter")
    );
    target.idle();
    drafter.idle();
    let (theirs, its) = (target.handed().await, drafter.handed().await);
    let Handover { socket: ours, segment: memory, segment_bytes, .. } = theirs;
    let (mut ours, mut other) = (UnixStream::from(ours), UnixStream::from(its.socket));
    ours.set_nonblocking(false).expect("ours");
    other.set_nonblocking(false).expect("ours");
    other.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("ours");
    ours.write_all(b"hello").expect("the other end is there");
    let mut received = [0; 5];
    other.read_exact(&mut received).expect("received");
    assert_eq!(&received, b"hello");
    use std::os::fd::AsFd as _;
    let mut mine =
        paceline_link::SharedSegment::map(memory.as_fd(), segment_bytes).expect("mapped");
    let its =
        paceline_link::SharedSegment::map(its.segment.as_fd(), segment_bytes).expect("mapped");
    mine.write(64, b"rows");
    assert_eq!(its.read(64, 4), b"rows");
    // Nothing of the link is left with us: one end closed is the end of the other.
    drop(ours);
    assert_eq!(other.read(&mut received).expect("an end"), 0);
}

#[tokio::test]
async fn a_linked_drafter_is_used_and_its_crash_ends_no_request() {
    let (mut stack, mut target, drafter) = Stack::linked().await;
    let answer = stack.submit(request());
    let running = target.next_request().await;
    let permit = running.request.permit.expect("a permit");
    assert_eq!(
        (permit.lane_allowed(), permit.max_draft, permit.reason()),
        (Lane::Speculative, 15, RouteReason::Prior)
    );
    running.tokens(0, &[7], false).await;
    let mut answer = within(answer).await.expect("no panic").expect("served");
    assert_eq!(batch(&mut answer).await.ids, [7]);
    let status = stack.status().await;
    let shown = status.drafter.expect("there");
    assert_eq!(
        (shown.state(), shown.pid, shown.epoch, shown.restarts),
        (ProcessState::Ready, 4_242, 1, 0)
    );
    assert_eq!((shown.model.as_str(), shown.weight_bytes), ("/models/drafter", 50));
    assert_eq!(shown.weights_loaded_at, "2023-11-14T22:13:20Z");
    let link = status.link.expect("there");
    assert_eq!((link.generation, link.late, link.bytes), (generation(1), 2, 4_096));
    assert_eq!(
        link.speculation.map(|totals| (totals.cycles, totals.drafted, totals.accepted)),
        Some((10, 40, 25))
    );

    drafter.die(worker::WorkerExit::Signal(9)).await;
    let changes = within(target.permits.recv()).await.expect("received");
    assert_eq!(changes.len(), 1);
    let permit = changes[0].permit.expect("a permit");
    assert_eq!((changes[0].request_id.as_str(), permit.lane_allowed()), ("r1", Lane::Plain));
    assert_eq!(permit.reason(), RouteReason::DrafterLoading);
    target.link(generation(1), LinkPhase::Lost, "the peer is gone");
    let mut next = stack.drafter().await;
    assert_eq!(next.epoch, 2);
    next.idle();
    stack.link_up(&mut target, &mut next, 2).await;
    let changes = within(target.permits.recv()).await.expect("received");
    assert_eq!(changes[0].permit.map(|permit| permit.lane_allowed()), Some(Lane::Speculative));
    running.tokens(1, &[8], true).await;
    assert!(batch(&mut answer).await.done.is_some());
    let status = stack.status().await;
    assert_eq!(status.drafter.map(|drafter| (drafter.restarts, drafter.epoch)), Some((1, 2)));
    assert_eq!(status.target.map(|target| (target.restarts, target.epoch)), Some((0, 1)));
}

#[tokio::test]
async fn a_refused_drafter_of_a_list_is_followed_by_the_next_and_its_reason_is_kept() {
    let models = vec!["/models/a".to_owned(), "/models/b".to_owned()];
    let plan = DrafterPlan { models, ..DrafterPlan::default() };
    let mut stack = Stack::with_drafter(|_| {}, plan, None);
    let (mut target, mut first) = (stack.life().await, stack.drafter().await);
    assert_eq!(first.model, "/models/a");
    target.idle();
    first.idle();
    let (_theirs, _its) = (target.handed().await, first.handed().await);
    target.link(generation(1), LinkPhase::Refused, "other sizes");
    leaves(&mut first).await;
    let mut second = stack.drafter().await;
    assert_eq!((second.model.as_str(), second.epoch), ("/models/b", 2));
    second.idle();
    stack.link_up(&mut target, &mut second, 2).await;
    let status = stack.status().await;
    assert_eq!(status.drafter.map(|drafter| drafter.model).as_deref(), Some("/models/b"));
    let refused = status.refused_drafters.iter();
    let refused: Vec<_> = refused.map(|one| (one.model.as_str(), one.reason.as_str())).collect();
    assert_eq!(refused, [("/models/a", "other sizes")]);
    let events = std::fs::read_to_string(stack.temp.path().join("events.jsonl")).expect("there");
    let event = events.lines().find(|line| line.contains("\"refused\"")).expect("an event");
    assert!(
        event.contains("/models/a") && event.contains("other sizes; /models/b is tried"),
        "{event}"
    );
}

/// Longer than 60 lines: one story from start to end.
#[tokio::test]
async fn orders_return_when_they_are_carried_out() {
    let mut stack = Stack::with_drafter(|_| {}, Stack::plan(DrafterStart::Manual), None);
    let mut target = stack.life().await;
    target.idle();
    stack.serving().await;
    assert_eq!(state(&stack.status().await.drafter), ProcessState::Stopped);
    let start = stack.start_drafter("", 0);
    let mut first = stack.drafter().await;
    assert_eq!(first.model, "/models/drafter");
    first.idle();
    let (_theirs, _its) = (target.handed().await, first.handed().await);
    assert!(!start.is_finished(), "the link is not up");
    target.link(generation(1), LinkPhase::Up, "");
    assert_eq!(done(start).await.state(), ProcessState::Ready);

    // Another beside it, which takes over; then the one before goes.
    let model = stack.model_dir("next");
    let swap = stack.swap_drafter(&model);
    let mut second = stack.drafter().await;
    assert_eq!(
        (second.worker, second.model.as_str(), second.epoch),
        (WorkerId::Drafter(WorkerSlot::Second), model.as_str(), 2)
    );
    second.idle();
    let (_theirs, _its) = (target.handed().await, second.handed().await);
    target.link_beside(generation(2), LinkPhase::Greeting, "", generation(1));
    stack.link_is("greeting").await;
    assert_eq!(
        stack.status().await.drafter.map(|drafter| drafter.epoch),
        Some(1),
        "the one before goes on"
    );
    target.link(generation(2), LinkPhase::Up, "");
    let stop = within(first.stops.recv()).await.expect("asked to end");
    assert_eq!(stop.stamp, Some(Stamp { term: TERM, epoch: 1 }));
    assert!(!swap.is_finished(), "the one before is not gone");
    first.die(worker::WorkerExit::Code(0)).await;
    let shown = done(swap).await;
    assert_eq!(
        (shown.state(), shown.epoch, shown.restarts, shown.model),
        (ProcessState::Ready, 2, 0, model)
    );

    let stop = stack.stop_drafter();
    within(second.stops.recv()).await.expect("asked to end");
    assert!(!stop.is_finished());
    second.die(worker::WorkerExit::Code(0)).await;
    let shown = done(stop).await;
    assert_eq!((shown.state(), shown.pid, shown.restarts), (ProcessState::Stopped, 0, 0));
    assert_eq!(state(&stack.status().await.target), ProcessState::Ready);
    let left = |name: &str| stack.temp.path().join(name).exists();
    for name in [
        "drafter-0.sock",
        "drafter-1.sock",
        "drafter-0.link.sock",
        "drafter-1.link.sock",
        "drafter-1.json",
    ] {
        assert!(!left(name), "{name}");
    }
}

/// Longer than 60 lines: one story from start to end.
#[tokio::test]
async fn orders_that_cannot_be_carried_out_return_the_reason() {
    let (mut stack, mut target, mut drafter) = Stack::linked().await;
    let status = refused(stack.start_drafter("next", 0)).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::InvalidArgument, Some(Reason::InvalidArgument))
    );
    assert_eq!(
        status.get_details_bad_request().expect("a field").field_violations[0].field,
        "model"
    );
    let status = refused(stack.swap_drafter("/nowhere/at/all")).await;
    assert!(status.message().contains("found nothing at /nowhere/at/all"), "{}", status.message());
    let model = stack.model_dir("next");
    let status = refused(stack.start_drafter(&model, 0)).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::FailedPrecondition, Some(Reason::DrafterState))
    );

    // The target refuses the next one: the one before goes on, and links as before.
    let swap = stack.swap_drafter(&model);
    let mut odd = stack.drafter().await;
    odd.idle();
    let (_theirs, _its) = (target.handed().await, odd.handed().await);
    target.link_beside(
        generation(2),
        LinkPhase::Refused,
        "hidden size 8, expected 16",
        generation(1),
    );
    let status = refused(swap).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::FailedPrecondition, Some(Reason::DrafterIncompatible))
    );
    assert!(status.message().contains("hidden size 8"), "{}", status.message());
    leaves(&mut odd).await;
    let answer = stack.submit(with(|generation| generation.request_id = "r2".into()));
    let running = target.next_request().await;
    assert_eq!(running.request.permit.map(|permit| permit.lane_allowed()), Some(Lane::Speculative));
    answer.abort();

    // Files that cannot be read.
    let swap = stack.swap_drafter("");
    let bad = stack.drafter().await;
    bad.die(worker::WorkerExit::Code(69)).await;
    let status = refused(swap).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::Unavailable, Some(Reason::DrafterFailed))
    );
    assert!(
        status.message().contains("exit code 69") && status.message().contains("the last words"),
        "{}",
        status.message()
    );

    // A wait is bounded, its order stands.
    let stop = stack.stop_drafter();
    leaves(&mut drafter).await;
    done(stop).await;
    let status = refused(stack.start_drafter("", 50)).await;
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::DeadlineExceeded, Some(Reason::DeadlinePassed))
    );
    assert!(status.message().contains("the order stands; the drafter is "), "{}", status.message());
    let mut next = stack.drafter().await;
    next.idle();
    stack.link_up(&mut target, &mut next, 3).await;
}

#[tokio::test]
async fn an_incompatible_drafter_stays_stopped_until_an_order() {
    let mut stack = Stack::with_drafter(|_| {}, Stack::plan(DrafterStart::Eager), None);
    let (mut target, mut drafter) = (stack.life().await, stack.drafter().await);
    target.idle();
    drafter.idle();
    let (_theirs, _its) = (target.handed().await, drafter.handed().await);
    target.link(generation(1), LinkPhase::Refused, "mask id 9, vocabulary 8");
    leaves(&mut drafter).await;
    let shown = stack.drafter_is(ProcessState::Failed).await;
    assert!(shown.reason.contains("incompatible with the target: mask id 9"), "{}", shown.reason);
    assert_eq!(shown.restarts, 0);
    stack.serving().await;
    let answer = stack.submit(request());
    let permit = target.next_request().await.request.permit.expect("a permit");
    assert_eq!(
        (permit.lane_allowed(), permit.reason()),
        (Lane::Plain, RouteReason::DrafterIncompatible)
    );
    answer.abort();
    assert!(stack.drafters.try_recv().is_err(), "it is not started again");
    let model = stack.model_dir("other");
    let start = stack.start_drafter(&model, 0);
    let mut next = stack.drafter().await;
    assert_eq!(next.model, model);
    next.idle();
    stack.link_up(&mut target, &mut next, 2).await;
    assert_eq!(done(start).await.state(), ProcessState::Ready);
}

#[tokio::test]
async fn a_drafter_that_breaks_the_protocol_is_killed_and_restarted() {
    let (mut stack, mut target, _drafter) = Stack::linked().await;
    target.link(generation(1), LinkPhase::Ejected, "a frame of 4 GiB");
    // The scripted drafter takes no control message here: SIGKILL it is.
    let mut next = stack.drafter().await;
    next.idle();
    stack.link_up(&mut target, &mut next, 2).await;
    let shown = stack.status().await.drafter.expect("there");
    assert_eq!((shown.restarts, shown.epoch), (1, 2));
    assert!(
        shown.reason.contains("broke the link's protocol: a frame of 4 GiB"),
        "{}",
        shown.reason
    );
}

#[tokio::test]
async fn a_lazy_drafter_starts_at_its_first_use() {
    let mut stack = Stack::with_drafter(|_| {}, Stack::plan(DrafterStart::Lazy), None);
    let mut target = stack.life().await;
    target.idle();
    stack.serving().await;
    assert!(stack.drafters.try_recv().is_err(), "nobody has used it");
    let answer = stack.submit(request());
    let permit = target.next_request().await.request.permit.expect("a permit");
    assert_eq!(
        (permit.lane_allowed(), permit.reason()),
        (Lane::Plain, RouteReason::DrafterLoading)
    );
    assert_eq!(stack.drafter().await.epoch, 1);
    answer.abort();
}

#[tokio::test]
async fn a_drafter_of_an_earlier_supervisor_is_adopted_and_linked_again() {
    let earlier = (
        WorkerId::Drafter(WorkerSlot::Second),
        WorkerRecord { pid: 98, started: 1, epoch: 30, boot: String::new() },
    );
    let mut stack = Stack::with_drafter(|_| {}, DrafterPlan::default(), Some(earlier));
    let mut old = stack.drafter().await;
    let mut target = stack.life().await;
    target.idle();
    stack.serving().await;
    old.idle();
    let (theirs, ours) = (old.handed().await, target.handed().await);
    assert_eq!(theirs.generation, ours.generation);
    assert_eq!(theirs.stamp, Stamp { term: TERM, epoch: 30 });
    target.link(ours.generation, LinkPhase::Up, "");
    loop {
        let drafter = stack.status().await.drafter.expect("there");
        if drafter.state() == ProcessState::Ready {
            assert_eq!(
                (drafter.pid, drafter.epoch, drafter.model.as_str()),
                (98, 30, fake::EARLIER_MODEL)
            );
            break;
        }
    }
    // The service waits for its end, also if an earlier supervisor started it.
    stack.stop.send(Stop::Asked).await.expect("it runs");
    leaves(&mut target).await;
    assert!(!stack.run.is_finished());
    leaves(&mut old).await;
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::Asked);
}

#[tokio::test]
async fn a_foreign_drafter_of_an_earlier_supervisor_is_ended() {
    let earlier = (
        WorkerId::Drafter(WorkerSlot::Second),
        WorkerRecord { pid: fake::STRANGER, started: 1, epoch: 30, boot: String::new() },
    );
    let mut stack = Stack::with_drafter(|_| {}, DrafterPlan::default(), Some(earlier));
    let mut old = stack.drafter().await;
    old.idle();
    let stop = within(old.stops.recv()).await.expect("asked to end");
    assert_eq!(stop.stamp, Some(Stamp { term: TERM, epoch: 30 }));
    old.die(worker::WorkerExit::Code(0)).await;
    while state(&stack.status().await.drafter) != ProcessState::Absent {}
    assert!(stack.drafters.try_recv().is_err(), "none is configured");
}

#[tokio::test]
async fn a_service_that_stops_ends_target_and_drafter() {
    let (stack, mut target, mut drafter) = Stack::linked().await;
    stack.stop.send(Stop::Asked).await.expect("it runs");
    leaves(&mut target).await;
    leaves(&mut drafter).await;
    assert_eq!(within(stack.run).await.expect("no panic"), Exit::Asked);
    let mut left: Vec<_> = std::fs::read_dir(stack.temp.path())
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain"))
        .collect();
    left.sort();
    let counters_and_events = [
        "drafter.epoch",
        "drafter.epoch.spare",
        "events.jsonl",
        "target.epoch",
        "target.epoch.spare",
    ];
    assert_eq!(left, counters_and_events);
}

#[tokio::test]
async fn the_gateways_notice_says_whether_drafts_arrive_in_time() {
    let mut bare = Stack::start(|_| {}, None);
    bare.life().await.idle();
    bare.serving().await;
    assert!(!bare.drafter_serves().await, "there is none");

    let mut stack = Stack::with_drafter(|_| {}, Stack::plan(DrafterStart::Eager), None);
    let (mut target, mut drafter) = (stack.life().await, stack.drafter().await);
    target.idle();
    stack.serving().await;
    stack.drafter_is(ProcessState::Loading).await;
    assert!(!stack.drafter_serves().await, "it loads");
    drafter.idle();
    stack.drafter_is(ProcessState::Ready).await;
    assert!(!stack.drafter_serves().await, "it is not linked");
    stack.link_up(&mut target, &mut drafter, 1).await;
    assert!(stack.drafter_serves().await);
    // An open attachment receives each change.
    target.link(generation(1), LinkPhase::Suspect, "late");
    stack.drafter_is(ProcessState::Suspect).await;
    assert!(!stack.drafter_serves().await, "its drafts are late");
    target.link(generation(1), LinkPhase::Up, "");
    let notice = stack.notice(|state| state.drafter_serves).await;
    assert!(notice.can_serve, "requests are served all the time");

    drafter.die(worker::WorkerExit::Signal(9)).await;
    let mut next = stack.drafter().await;
    assert!(!stack.drafter_serves().await, "it was killed");
    next.idle();
    stack.link_up(&mut target, &mut next, 2).await;
    assert!(stack.drafter_serves().await);
    target.link(generation(2), LinkPhase::Ejected, "frame too long");
    let mut third = stack.drafter().await;
    assert!(!stack.drafter_serves().await, "it broke the protocol");
    third.idle();
    let _ends = (target.handed().await, third.handed().await);
    assert!(!stack.drafter_serves().await, "it greets");
    target.link(generation(3), LinkPhase::Refused, "hidden 256, expected 512");
    leaves(&mut third).await;
    stack.drafter_is(ProcessState::Failed).await;
    assert!(!stack.drafter_serves().await, "the target refuses it");

    let model = stack.model_dir("fits");
    let start = stack.start_drafter(&model, 0);
    let mut fourth = stack.drafter().await;
    fourth.idle();
    stack.link_up(&mut target, &mut fourth, 4).await;
    done(start).await;
    assert!(stack.drafter_serves().await);
    let stop = stack.stop_drafter();
    leaves(&mut fourth).await;
    done(stop).await;
    assert!(!stack.drafter_serves().await, "an operator stopped it");
    assert!(stack.notice(|_| true).await.can_serve);
}
