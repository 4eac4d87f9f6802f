//! One sequence whose logits are not finite among seven that are well, in the engine itself. The
//! fault is made behind the model's forward, because no request that the worker accepts makes one
//! with a sound checkpoint.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_link::{End, Frame, Handover, SEGMENT_BYTES, Side, handshake, make_pair};
use paceline_models::sample::Sampling;
use paceline_models::sample::noise::NoiseKey;
use paceline_models::{
    Array, Batch, Dtype, Forward, KvStore, LayerKv, ModelError, Target, TargetInfo, Wants,
};
use paceline_process::worker::{Mail, Progress, Pulse, mailbox};
use paceline_proto::internal::v1::{
    Done, Draft, Feed, Hello, LinkPhase, Proposal, ProposalKind, Reach, SessionReach, Stamp,
    TensorType, TokenBatch, Want, Welcome,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_vocabulary::{Force, Millis};
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::{Command, Engine, fixture};
use crate::cache::Cache;
use crate::core::Policy;
use crate::drafting::Drafting;

/// Of the demo target.
const HIDDEN: u32 = 256;
const TAP_LAYERS: [u32; 4] = [1, 3, 5, 6];
/// Rows of a played drafter's block.
const BLOCK: u32 = 8;
/// Streams at once.
const STREAMS: usize = 8;
/// Tokens of an answer.
const TOKENS: usize = 16;
/// Ids of a prompt: more than two pages of the prefix cache.
const PROMPT: u32 = 150;
/// How long the test waits for the played drafter. It is a bound and no pause.
const LONG: Duration = Duration::from_secs(60);
/// A draft may be late where the machine is busy. A run in which all of them were is made again,
/// this many times at most.
const RUNS: usize = 20;

/// Which logits are overwritten, and with what.
#[derive(Clone, Copy, Debug)]
struct Fault {
    /// Key of the sequence.
    sequence: u64,
    /// First position whose row is faulty.
    from: i32,
    number: f32,
}

/// All that is faulty.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Of the rows from which tokens are chosen.
    rows: Option<Fault>,
    /// What is added to all logits of drafts.
    drafts: Option<f32>,
}

/// A target whose logits are faulty where the test says so.
struct Faulty {
    model: Box<dyn Target>,
    faults: Arc<Mutex<Faults>>,
}

impl Target for Faulty {
    fn info(&self) -> &TargetInfo {
        self.model.info()
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        self.model.kv_layers()
    }

    fn dtype(&self) -> Dtype {
        self.model.dtype()
    }

    fn forward(
        &self,
        batch: &Batch,
        kv: &mut KvStore,
        wants: &Wants,
    ) -> Result<Forward, ModelError> {
        let forward = self.model.forward(batch, kv, wants)?;
        let fault = self.faults.lock().expect("not poisoned").rows;
        let (Some(fault), Some(logits)) = (fault, &forward.logits) else { return Ok(forward) };
        let mut added = vec![];
        let mut first = 0;
        for segment in &batch.segments {
            let rows = first..first + segment.length;
            let of_segment = wants.logit_rows.iter().filter(|row| rows.contains(row));
            added.extend(of_segment.map(|row| {
                let position = segment.start + row - first;
                if segment.sequence.0 == fault.sequence && position >= fault.from {
                    fault.number
                } else {
                    0.0
                }
            }));
            first = rows.end;
        }
        let added = Array::from_slice(&added, &[added.len() as i32, 1]);
        Ok(Forward { logits: Some(logits.add(&added)?), ..forward })
    }

    fn embed(&self, ids: &[u32]) -> Result<Array, ModelError> {
        self.model.embed(ids)
    }

    fn head(&self, hidden: &Array) -> Result<Array, ModelError> {
        let logits = self.model.head(hidden)?;
        match self.faults.lock().expect("not poisoned").drafts {
            Some(number) => Ok(logits.add(Array::from_f32(number))?),
            None => Ok(logits),
        }
    }
}

/// What the played drafter drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drafts {
    /// Nothing: there is no drafter.
    None,
    /// The right ids, every third draft with a wrong one in it.
    Ids,
    /// Hidden rows of noise.
    Rows,
    /// The same, and the target's head makes NaN of them.
    RowsWithoutLogits,
    /// Hidden rows of NaN, for which the link is ended.
    NotANumber,
}

impl Drafts {
    /// Whether drafts come to be verified.
    fn are_verified(self) -> bool {
        !matches!(self, Drafts::None | Drafts::NotANumber)
    }
}

/// One request of the test.
#[derive(Clone, Debug)]
struct Asked {
    prompt: Vec<u32>,
    sampling: Sampling,
    margins: bool,
    logprobs: Option<u32>,
}

/// What came of it.
#[derive(Clone, Debug)]
struct Answer {
    ids: Vec<u32>,
    end: Result<Done, (Code, Option<Reason>)>,
}

/// An engine on a thread of its own.
struct House {
    mail: Mail<Command>,
    faults: Arc<Mutex<Faults>>,
    progress: Arc<Progress>,
    thread: Option<std::thread::JoinHandle<bool>>,
    /// Requests so far: their sequences' keys count up.
    asked: u64,
    links: u64,
}

/// An engine as `run` makes it, with a model that can be made faulty.
fn engine(faults: Arc<Mutex<Faults>>, progress: Arc<Progress>) -> Engine {
    let model: Box<dyn Target> = Box::new(Faulty { model: fixture::load(), faults });
    let kv = fixture::store(model.as_ref());
    let pulse = Pulse::start(progress.clone(), 1, Duration::from_secs(3600), || {});
    let info = model.info();
    let hello = Hello {
        version: handshake::VERSION,
        hidden_size: info.hidden as u32,
        vocab_size: info.vocab as u32,
        n_layers: info.n_layers as u32,
        r#type: TensorType::F32.into(),
        context_length: info.context as u32,
        max_sessions: 32,
        ..Hello::default()
    };
    let drafting = Drafting::new(hello, TAP_LAYERS.map(|layer| layer as usize).to_vec(), 512);
    let (scheduler, cache) = (fixture::scheduler(&kv, &drafting), Cache::new(&kv, true));
    Engine::new(
        model,
        kv,
        scheduler,
        drafting,
        cache,
        (progress, pulse),
        paceline_process::Clock::start(),
    )
}

impl House {
    fn open() -> Self {
        let (mail, inbox) = mailbox(64).expect("a mailbox");
        let (faults, progress) = (Arc::<Mutex<Faults>>::default(), Arc::new(Progress::default()));
        let (for_engine, reports) = (faults.clone(), progress.clone());
        let run = move || engine(for_engine, reports).run(inbox);
        let thread =
            std::thread::Builder::new().name("engine".into()).spawn(run).expect("a thread");
        Self { mail, faults, progress, thread: Some(thread), asked: 0, links: 0 }
    }

    /// Runs requests at once. The fault, if any, is the one of them at this place, from its so
    /// many-th token on.
    fn ask(&mut self, requests: &[Asked], fault: Option<(usize, usize, f32)>) -> Vec<Answer> {
        self.faults.lock().expect("not poisoned").rows = fault.map(|(at, tokens, number)| Fault {
            sequence: self.asked + at as u64,
            from: (requests[at].prompt.len() + tokens) as i32 - 1,
            number,
        });
        let mut answers = vec![];
        for request in requests {
            let name = format!("r{}", self.asked);
            let (mut running, rx) =
                fixture::request(&name, request.prompt.clone(), TOKENS as u32, request.sampling);
            running.checked.noise = NoiseKey { seed: 11, sample: 0 };
            running.checked.wants_margins = request.margins;
            running.checked.logprobs = request.logprobs;
            self.mail.try_send(Command::Run(Box::new(running))).expect("there is room");
            self.asked += 1;
            answers.push(rx);
        }
        answers.into_iter().map(answer).collect()
    }

    /// Links a drafter that knows these streams, or takes the one there is away. What it returns is
    /// disconnected when the drafter has gone.
    fn link(&mut self, drafts: Drafts, known: Vec<Vec<u32>>) -> Receiver<()> {
        let (greeted, wait) = sync_channel(1);
        self.links += 1;
        let for_drafts = (drafts == Drafts::RowsWithoutLogits).then_some(f32::NAN);
        self.faults.lock().expect("not poisoned").drafts = for_drafts;
        let force = if drafts == Drafts::None { Force::Plain } else { Force::Speculative };
        let policy =
            Policy { term: 1, epoch: self.links, force, kv_pressure: 1.0, max_context: None };
        self.mail.try_send(Command::Policy(policy)).expect("there is room");
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
        self.mail.try_send(Command::Link(theirs)).expect("there is room");
        wait.recv_timeout(LONG).expect("the target greets the drafter");
        wait
    }

    fn held(&self) -> (u32, u64, u64) {
        let beat = self.progress.heartbeat(1);
        let kv = beat.kv.expect("reported");
        (beat.sequences, kv.held_bytes, kv.tap_bytes)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.mail.try_send(Command::Stop { until: Millis(0) });
        let ended_well = self.thread.take().map(|thread| thread.join());
        if !std::thread::panicking() {
            assert!(
                matches!(ended_well, Some(Ok(true))),
                "the engine ends as it was asked to: {ended_well:?}"
            );
        }
    }
}

fn answer(mut rx: mpsc::Receiver<Result<TokenBatch, Status>>) -> Answer {
    let mut ids = vec![];
    loop {
        match rx.blocking_recv().expect("a stream has an end") {
            Ok(batch) => {
                assert_eq!(batch.first_index as usize, ids.len());
                ids.extend(batch.ids);
                if let Some(done) = batch.done {
                    return Answer { ids, end: Ok(done) };
                }
            }
            Err(status) => return Answer { ids, end: Err((status.code(), Reason::of(&status))) },
        }
    }
}

/// A drafter, until the link ends.
fn play(mut end: End, drafts: Drafts, known: &[Vec<u32>], greeted: &SyncSender<()>) {
    let (mut round, mut kind) = (0, ProposalKind::Hidden);
    if drafts == Drafts::Ids {
        kind = ProposalKind::Tokens;
    }
    loop {
        match end.receive(LONG) {
            Ok(Some(Frame::Hello(hello))) => {
                let welcome = Welcome {
                    version: handshake::VERSION,
                    generation: hello.generation,
                    kind: "played".into(),
                    proposal: kind.into(),
                    hidden_size: HIDDEN,
                    tap_layers: TAP_LAYERS.to_vec(),
                    block_size: BLOCK,
                    mask_id: 3,
                    r#type: TensorType::F32.into(),
                    ..Welcome::default()
                };
                end.send(Frame::Welcome(welcome)).expect("sent");
                let _ = greeted.try_send(());
            }
            Ok(Some(Frame::MaskRow(row))) => {
                _ = end.take(&row.tensor.expect("there")).expect("fine")
            }
            Ok(Some(Frame::Feed(feed))) => {
                for tensor in [&feed.taps, &feed.bonus].into_iter().flatten() {
                    end.take(tensor).expect("fine");
                }
                round += 1;
                let answer = match feed.round {
                    0 => Ok(Frame::Reach(reach(&feed))),
                    _ => proposal(&mut end, &feed, drafts, known, round),
                };
                if answer.and_then(|frame| end.send(frame)).is_err() {
                    return;
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => return,
        }
    }
}

fn reach(feed: &Feed) -> Reach {
    let sessions = feed
        .contexts
        .iter()
        .map(|c| SessionReach { session: c.session, position: c.position + c.rows });
    Reach { sessions: sessions.collect(), missed: vec![] }
}

fn proposal(
    end: &mut End,
    feed: &Feed,
    drafts: Drafts,
    known: &[Vec<u32>],
    round: usize,
) -> Result<Frame, paceline_link::LinkError> {
    let of = |want: &Want| {
        let (at, length) = (want.position as usize, want.block as usize - 1);
        let mut ids = vec![7; length];
        if let Some(stream) = known.iter().find(|stream| stream.get(at) == Some(&want.bonus_id)) {
            ids.iter_mut().zip(&stream[at + 1..]).for_each(|(id, right)| *id = *right);
        }
        if round.is_multiple_of(3) {
            ids[length / 2] = 9;
        }
        let ids = if drafts == Drafts::Ids { ids } else { vec![] };
        Draft { session: want.session, position: want.position, rows: length as u32, ids }
    };
    let all: Vec<Draft> = feed.wants.iter().map(of).collect();
    let rows: u32 = all.iter().map(|draft| draft.rows).sum();
    let hidden = match drafts {
        Drafts::Ids | Drafts::None => None,
        Drafts::Rows | Drafts::RowsWithoutLogits | Drafts::NotANumber => {
            let number = |at: u32| {
                if drafts == Drafts::NotANumber { f32::NAN } else { (at as f32 * 0.37).sin() }
            };
            let bytes: Vec<u8> =
                (0..rows * HIDDEN).flat_map(|at| number(at).to_ne_bytes()).collect();
            end.put(rows, HIDDEN, TensorType::F32, &bytes)?
        }
    };
    Ok(Frame::Proposal(Proposal { round: feed.round, drafts: all, hidden }))
}

/// No two prompts have a page in common.
fn prompt(at: u32) -> Vec<u32> {
    (0..PROMPT + at).map(|place| 4 + (place * 7 + 131 * at + place * place / 3) % 4000).collect()
}

/// Requests of all kinds, or only such as are chosen in the graph, where the next step's graph is
/// built ahead of time.
fn requests(mixed: bool) -> Vec<Asked> {
    let warm = Sampling { temperature: 0.8, top_p: 0.95, ..Sampling::GREEDY };
    let request = |at: usize| {
        let prompt = prompt(at as u32);
        let plain = Asked { prompt, sampling: Sampling::GREEDY, margins: false, logprobs: None };
        match at % 4 {
            _ if !mixed => plain,
            0 => plain,
            1 => Asked { sampling: warm, ..plain },
            2 => Asked { margins: true, logprobs: Some(2), ..plain },
            _ => Asked {
                sampling: Sampling { repetition_penalty: 1.2, frequency_penalty: 0.3, ..warm },
                ..plain
            },
        }
    };
    (0..STREAMS).map(request).collect()
}

/// Each request alone, without a drafter.
fn solos(house: &mut House, requests: &[Asked]) -> Vec<Vec<u32>> {
    house.link(Drafts::None, vec![]);
    let alone =
        requests.iter().map(|request| house.ask(std::slice::from_ref(request), None).remove(0));
    let check = |answer: Answer| {
        assert!(answer.end.is_ok() && answer.ids.len() == TOKENS, "{answer:?}");
        answer.ids
    };
    alone.map(check).collect()
}

/// The streams as a drafter knows them: prompts and answers.
fn whole(requests: &[Asked], solos: &[Vec<u32>]) -> Vec<Vec<u32>> {
    requests
        .iter()
        .zip(solos)
        .map(|(request, ids)| [request.prompt.clone(), ids.clone()].concat())
        .collect()
}

/// Runs all requests with one at fault and checks every stream. How many tokens were drafted and
/// accepted for those that are well.
fn check(
    house: &mut House,
    requests: &[Asked],
    solos: &[Vec<u32>],
    fault: (usize, usize, f32),
    what: &str,
) -> (u64, u64) {
    let (mut drafted, mut accepted) = (0, 0);
    let answers = house.ask(requests, Some(fault));
    for (at, (answer, solo)) in answers.into_iter().zip(solos).enumerate() {
        if at == fault.0 {
            assert_eq!(
                answer.end,
                Err((Code::Internal, Some(Reason::Numerics))),
                "{what}: {:?}",
                answer.ids
            );
            assert_eq!(
                answer.ids,
                solo[..fault.1],
                "{what}: the tokens before the fault, and no other"
            );
        } else {
            let done =
                answer.end.unwrap_or_else(|end| panic!("{what}: stream {at} ended with {end:?}"));
            assert_eq!(&answer.ids, solo, "{what}: stream {at}");
            let speculation = done.speculation.expect("reported");
            (drafted, accepted) = (drafted + speculation.drafted, accepted + speculation.accepted);
        }
    }
    assert_eq!(house.held(), (0, 0, 0), "{what}: all memory is free");
    (drafted, accepted)
}

/// The drafter has gone as it sent what is no number, and one stream alone is what it was.
fn check_ejected(
    house: &mut House,
    drafter: &Receiver<()>,
    requests: &[Asked],
    solos: &[Vec<u32>],
    what: &str,
) {
    assert_eq!(
        drafter.recv_timeout(LONG),
        Err(RecvTimeoutError::Disconnected),
        "{what}: the drafter is told"
    );
    // The engine says how the link stands before it takes the next request.
    let answer = house.ask(&requests[..1], None).remove(0);
    assert!(answer.end.is_ok() && answer.ids == solos[0], "{what}: {answer:?}");
    let link = house.progress.heartbeat(1).link.expect("reported");
    assert_eq!(
        (link.phase(), link.generation, link.serving),
        (LinkPhase::Ejected, house.links, 0),
        "{what}: {link:?}"
    );
    assert!(link.reason.contains("not finite"), "{what}: {link:?}");
}

#[test]
fn a_sequence_whose_logits_are_not_finite_ends_alone_and_its_seven_neighbours_equal_their_solo_runs()
 {
    let mut house = House::open();
    for mixed in [false, true] {
        let requests = requests(mixed);
        let solos = solos(&mut house, &requests);
        // Of a drafter, which stream is at fault, behind how many tokens, and with what.
        let faults = [
            (Drafts::None, 0, 0, f32::NAN),
            (Drafts::None, 4, 9, f32::INFINITY),
            (Drafts::None, 1, 13, f32::NAN),
            (Drafts::Ids, 0, 10, f32::INFINITY),
            (Drafts::Ids, 3, 11, f32::NAN),
            (Drafts::Rows, 6, 2, f32::NAN),
            (Drafts::RowsWithoutLogits, 2, 7, f32::NAN),
            (Drafts::NotANumber, 5, TOKENS - 1, f32::INFINITY),
        ];
        for (drafts, at, tokens, number) in faults {
            let what =
                format!("{drafts:?}, stream {at} from token {tokens} on {number}, mixed {mixed}");
            let mut run = || {
                let drafter = house.link(drafts, whole(&requests, &solos));
                let (drafted, accepted) =
                    check(&mut house, &requests, &solos, (at, tokens, number), &what);
                match drafts {
                    Drafts::NotANumber => {
                        check_ejected(&mut house, &drafter, &requests, &solos, &what)
                    }
                    // The others draft what is right by chance at most.
                    Drafts::Ids => return accepted > 0,
                    Drafts::None | Drafts::Rows | Drafts::RowsWithoutLogits => {}
                }
                assert!(drafted == 0 || drafts.are_verified(), "{what}: {drafted} tokens drafted");
                drafted > 0 || !drafts.are_verified()
            };
            assert!((0..RUNS).any(|_| run()), "{what}: in {RUNS} runs no drafts were verified");
        }
    }
}

#[test]
fn nothing_of_a_faulty_sequence_is_found_in_the_prefix_cache() {
    let mut house = House::open();
    let requests = requests(false);
    let solos = solos(&mut house, &requests);
    let cached = |house: &mut House, at: usize| {
        let answer = house.ask(&requests[at..=at], None).remove(0);
        assert_eq!(answer.ids, solos[at]);
        answer.end.expect("it is well").cached_tokens
    };
    assert!(
        cached(&mut house, 3) >= 128 && cached(&mut house, 5) >= 128,
        "pages of earlier requests are found"
    );
    for tokens in [0, 12] {
        let answer = house.ask(&requests[3..=3], Some((0, tokens, f32::NAN))).remove(0);
        assert_eq!(answer.end, Err((Code::Internal, Some(Reason::Numerics))));
        assert_eq!(
            cached(&mut house, 3),
            0,
            "{tokens} tokens: its pages are gone, those of earlier requests too"
        );
        assert!(cached(&mut house, 3) >= 128, "and come again with a sound run");
        assert!(cached(&mut house, 5) >= 128, "other prompts keep theirs");
    }
}

#[test]
fn tokens_leave_before_the_engine_waits_for_a_draft() {
    const LONG_MS: u64 = 30_000;
    let (mail, mut inbox) = mailbox(1).expect("a mailbox");
    let (running, mut rx) = fixture::request("r", prompt(0), 9, Sampling::GREEDY);
    let clock = paceline_process::Clock::start();
    let until = clock.now() + LONG_MS;
    let wait = move || {
        let mut engine = engine(Arc::default(), Arc::new(Progress::default()));
        let (mut running, batch) = (running, |index: u32| TokenBatch {
            first_index: index,
            ids: vec![index],
            step_end_ns: paceline_process::clock::monotonic_ns(),
            ..TokenBatch::default()
        });
        // The first token is on its way, the second is so soon behind it that it is kept.
        for index in 0..2 {
            running.outlet.add(batch(index));
            running.outlet.offer();
        }
        let key = engine.scheduler.admit(running.checked.request.clone()).expect("room");
        engine.running.insert(key, running);
        // Until the test says that it has seen enough, or the draft is late.
        while inbox.try_recv().is_err() && engine.clock.now() < until {
            engine.wait_for_draft(&mut inbox, until);
        }
    };
    let thread = std::thread::Builder::new().name("engine".into()).spawn(wait).expect("a thread");
    let mut ids = vec![];
    while ids.len() < 2 {
        ids.extend(rx.blocking_recv().expect("the engine is there").expect("tokens").ids);
    }
    assert_eq!(ids, [0, 1]);
    assert!(clock.now() < until, "the second token left long before the draft was late");
    mail.try_send(Command::Stop { until: Millis(0) }).expect("there is room");
    thread.join().expect("it ends well");
}
