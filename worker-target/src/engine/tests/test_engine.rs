//! An engine with the demo target, on a thread of its own.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_link::{End, Handover, SEGMENT_BYTES, Side, make_pair};
use paceline_models::Target;
use paceline_models::sample::SamplingRule;
use paceline_models::sample::noise::NoiseKey;
use paceline_process::config::WiredMemory;
use paceline_process::worker::{Mail, Progress, Pulse, mailbox};
use paceline_proto::internal::v1::{Done, Stamp, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::Clock;
use paceline_target_core::Policy;
use paceline_vocabulary::{Force, Millis};
use tokio::sync::mpsc;
use tonic::{Code, Status};
use tracing::Dispatch;

use super::faulty_target::{Fault, Faults, FaultyOutputs};
use super::fixture::{self, WrappedTarget};
use super::test_drafter::{Drafts, FEATURE_LAYERS, LONG, play};
use crate::cost_file::CostFile;
use crate::drafting::Drafting;
use crate::engine::{Engine, EngineCommand, EngineParts, LaneForm, WiredState};
use crate::page_store::PageStore;

/// Tokens of an answer.
pub(super) const TOKENS: usize = 16;

/// A request of a test.
#[derive(Clone, Debug)]
pub(super) struct TestRequest {
    pub(super) prompt: Vec<u32>,
    pub(super) sampling: SamplingRule,
    pub(super) margins: bool,
    pub(super) logprobs: Option<u32>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(super) struct TestAnswer {
    pub(super) ids: Vec<u32>,
    pub(super) end: Result<Done, (Code, Option<Reason>)>,
}

/// A fault in one of several requests that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamFault {
    /// Place of the request among them.
    pub(super) stream: usize,
    /// Tokens before the fault.
    pub(super) tokens: usize,
    pub(super) number: f32,
}

/// An engine on a thread of its own.
pub(super) struct TestEngine {
    pub(super) mail: Mail<EngineCommand>,
    pub(super) faults: Arc<Mutex<Faults>>,
    pub(super) progress: Arc<Progress>,
    thread: Option<std::thread::JoinHandle<bool>>,
    /// Requests so far: their sequences' keys count up.
    asked: u64,
    pub(super) links: u64,
}

/// An engine as `load` makes it, with a model that can be made faulty.
pub(super) fn engine(
    faults: Arc<Mutex<Faults>>,
    progress: Arc<Progress>,
    cost_file: CostFile,
) -> Engine {
    let outputs = FaultyOutputs(faults);
    let model: Box<dyn Target> = Box::new(WrappedTarget { model: fixture::load(), outputs });
    let kv = fixture::store(model.as_ref());
    let pulse = Pulse::start(progress.clone(), 1, Duration::from_secs(3600), || {});
    let feature_layers = FEATURE_LAYERS.map(|layer| layer as usize).to_vec();
    let drafting = Drafting::new(fixture::hello(model.as_ref()), feature_layers, 512);
    let scheduler = fixture::scheduler(&kv, &drafting);
    let pages = PageStore::new(&kv, true);
    let clock = Clock::start();
    Engine::new(EngineParts {
        wired: WiredState::new(WiredMemory::Off, |_| {}),
        lanes: LaneForm::Fast,
        model,
        kv,
        scheduler,
        drafting,
        pages,
        cost_file,
        progress,
        pulse,
        clock,
    })
}

impl TestEngine {
    pub(super) fn open() -> Self {
        Self::open_with_log(Dispatch::none())
    }

    /// An engine that logs to this subscriber.
    pub(super) fn open_with_log(log: Dispatch) -> Self {
        Self::open_with(log, CostFile::none())
    }

    /// An engine with costs that an earlier process measured.
    pub(super) fn open_with(log: Dispatch, costs: CostFile) -> Self {
        let (mail, inbox) = mailbox(64).expect("a mailbox");
        let (faults, progress) = (Arc::<Mutex<Faults>>::default(), Arc::new(Progress::default()));
        let (for_engine, reports) = (faults.clone(), progress.clone());
        let run = move || {
            tracing::dispatcher::with_default(&log, || {
                engine(for_engine, reports, costs).run(inbox)
            })
        };
        let thread =
            std::thread::Builder::new().name("engine".into()).spawn(run).expect("a thread");
        Self { mail, faults, progress, thread: Some(thread), asked: 0, links: 0 }
    }

    /// Runs requests together, one of them with a fault if there is one.
    pub(super) fn ask(
        &mut self,
        requests: &[TestRequest],
        fault: Option<StreamFault>,
    ) -> Vec<TestAnswer> {
        self.faults.lock().expect("not poisoned").rows = fault.map(|fault| Fault {
            sequence: self.asked + fault.stream as u64,
            from: (requests[fault.stream].prompt.len() + fault.tokens) as i32 - 1,
            number: fault.number,
        });
        let mut answers = vec![];
        for request in requests {
            let name = format!("r{}", self.asked);
            let (mut running, rx) =
                fixture::request(&name, request.prompt.clone(), TOKENS as u32, request.sampling);
            running.request.noise = NoiseKey { seed: 11, sample: 0 };
            running.request.wants_margins = request.margins;
            running.request.logprobs = request.logprobs;
            self.mail.try_send(EngineCommand::Run(Box::new(running))).expect("there is room");
            self.asked += 1;
            answers.push(rx);
        }
        answers.into_iter().map(answer).collect()
    }

    /// Links a drafter that knows these streams. With [`Drafts::None`], the policy forbids drafts.
    /// The returned receiver is disconnected when the drafter has gone.
    pub(super) fn link(&mut self, drafts: Drafts, known: Vec<Vec<u32>>) -> Receiver<()> {
        let force = if drafts == Drafts::None { Force::Plain } else { Force::Speculative };
        self.link_with(force, drafts, known)
    }

    /// Links a test drafter under this policy.
    pub(super) fn link_with(
        &mut self,
        force: Force,
        drafts: Drafts,
        known: Vec<Vec<u32>>,
    ) -> Receiver<()> {
        let (greeted, wait) = sync_channel(1);
        self.links += 1;
        let for_drafts = (drafts == Drafts::RowsWithoutLogits).then_some(f32::NAN);
        self.faults.lock().expect("not poisoned").drafts = for_drafts;
        let policy =
            Policy { term: 1, epoch: self.links, force, kv_pressure: 1.0, max_context: None };
        self.mail.try_send(EngineCommand::SetPolicy(policy)).expect("there is room");
        if drafts == Drafts::None {
            return wait;
        }
        let pair = make_pair(SEGMENT_BYTES).expect("a pair");
        let segment = pair.segment.try_clone().expect("a descriptor");
        let handover = |socket, segment| Handover {
            stamp: Stamp::default(),
            generation: self.links,
            socket,
            segment,
            segment_bytes: SEGMENT_BYTES,
        };
        let (theirs, ours) = (handover(pair.target, segment), handover(pair.drafter, pair.segment));
        let play =
            move || play(End::open(ours, Side::Drafter).expect("a link"), drafts, &known, &greeted);
        std::thread::Builder::new().name("drafter".into()).spawn(play).expect("a thread");
        self.mail.try_send(EngineCommand::Link(theirs)).expect("there is room");
        wait.recv_timeout(LONG).expect("the target greets the drafter");
        wait
    }

    /// Whether no sequence runs and all of their memory is free.
    pub(super) fn is_free(&self) -> bool {
        let beat = self.progress.heartbeat(1);
        let kv = beat.kv.expect("reported");
        (beat.sequences, kv.held_bytes) == (0, 0) && kv.tap_bytes == 0
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        let _ = self.mail.try_send(EngineCommand::Stop { until: Millis(0) });
        let ended_well = self.thread.take().map(|thread| thread.join());
        if !std::thread::panicking() {
            assert!(
                matches!(ended_well, Some(Ok(true))),
                "the engine ends as it was asked to: {ended_well:?}"
            );
        }
    }
}

pub(super) fn answer(mut rx: mpsc::Receiver<Result<TokenBatch, Status>>) -> TestAnswer {
    let mut ids = vec![];
    loop {
        match rx.blocking_recv().expect("a stream has an end") {
            Ok(batch) => {
                assert_eq!(batch.first_index as usize, ids.len());
                ids.extend(batch.ids);
                if let Some(done) = batch.done {
                    return TestAnswer { ids, end: Ok(done) };
                }
            }
            Err(status) => {
                return TestAnswer { ids, end: Err((status.code(), Reason::of(&status))) };
            }
        }
    }
}
