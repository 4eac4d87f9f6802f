//! Requests with pictures through the real worker, on a tiny Qwen3-VL: what it answers is a pure
//! function of the request (I1), whoever runs beside it and however it is read, and a picture that
//! cannot be had is an error and nothing else (I5).

mod stage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_link::{End, LinkError};
use paceline_proto::internal::v1::{
    CancelRequest, DescribeRequest, Done, Generation, LinkPhase, Permit, Picture, SamplingRule,
    StatsRequest, TargetGenerateRequest, TokenBatch,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind, Welcome};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tonic::Status;
use tonic_types::StatusExt as _;

use stage::drafter::{
    BLOCK, Known, Script, attach, oracle, propose_ids, propose_rows, roll, welcome,
};
use stage::{BOUND, GREEDY, STAMP, Worker, generation, ids, tiny};

const IMAGE: u32 = 261;
const PATCH: usize = 4;
const MERGE: u32 = 2;
const HIDDEN: u32 = 40;
const VOCAB: u64 = 256;
const PAGE: usize = 64;
/// Turns of the runtime in which the client's connection writes what was asked; two or three are
/// enough.
const TURNS: usize = 100;

fn seeing() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/qwen3-vl-tiny")
}

/// A picture, sizes in patches.
#[derive(Clone)]
struct Shot {
    rows: u32,
    columns: u32,
    pixels: Arc<Vec<u8>>,
}

impl Shot {
    fn random(rows: u32, columns: u32, mut seed: u64) -> Self {
        seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let pixels = (0..rows as usize * columns as usize * PATCH * PATCH * 3)
            .map(|_| roll(&mut seed) as u8)
            .collect();
        Self { rows, columns, pixels: Arc::new(pixels) }
    }

    /// Rows of a prompt.
    fn places(&self) -> usize {
        (self.rows * self.columns / MERGE / MERGE) as usize
    }

    fn announced(&self, first: usize) -> Picture {
        let (scale, bias) = ([2.0_f32 / 255.0; 3], [-1.0_f32; 3]);
        let mut digest = Sha256::new();
        [self.rows, self.columns].iter().for_each(|size| digest.update(size.to_le_bytes()));
        scale.iter().chain(&bias).for_each(|number| digest.update(number.to_le_bytes()));
        digest.update(&*self.pixels);
        Picture {
            file: String::new(),
            bytes: self.pixels.len() as u64,
            digest: digest.finalize().to_vec().into(),
            first: first as u32,
            rows: self.rows,
            columns: self.columns,
            scale: scale.to_vec(),
            bias: bias.to_vec(),
        }
    }
}

#[derive(Clone)]
enum Piece<'a> {
    /// So many ids, from this seed.
    Text(usize, u64),
    See(&'a Shot),
}
use Piece::{See, Text};

/// A request and the pictures it needs.
#[derive(Clone)]
struct Asked {
    generation: Generation,
    shots: Vec<Shot>,
}

fn asked(pieces: &[Piece<'_>], max_tokens: u32) -> Asked {
    let (mut prompt, mut pictures, mut shots) = (vec![], vec![], vec![]);
    for piece in pieces {
        match piece {
            Text(length, seed) => {
                let mut seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                prompt.extend((0..*length).map(|_| (roll(&mut seed) % VOCAB) as u32));
            }
            See(shot) => {
                pictures.push(shot.announced(prompt.len()));
                prompt.extend(vec![IMAGE; shot.places()]);
                shots.push((*shot).clone());
            }
        }
    }
    Asked { generation: Generation { pictures, ..generation("r", &prompt, max_tokens) }, shots }
}

impl Asked {
    fn scope(&self, scope: &str) -> Self {
        Self {
            generation: Generation { cache_scope: scope.into(), ..self.generation.clone() },
            shots: self.shots.clone(),
        }
    }

    fn warm(&self, seed: u64) -> Self {
        let sampling =
            Some(SamplingRule { temperature: 0.9, top_p: 0.95, repetition_penalty: 1.1, ..GREEDY });
        Self {
            generation: Generation { sampling, seed, ..self.generation.clone() },
            shots: self.shots.clone(),
        }
    }

    fn continued(&self, ids: &[u32]) -> Self {
        Self {
            generation: Generation { continuation_ids: ids.to_vec(), ..self.generation.clone() },
            shots: self.shots.clone(),
        }
    }

    fn prompt(&self) -> &[u32] {
        &self.generation.prompt_ids
    }
}

struct House {
    worker: Worker,
    names: AtomicU64,
}

impl House {
    async fn new(environment: &[(&str, &str)]) -> Self {
        let mut worker = Worker::start(&seeing(), environment);
        worker.ready().await;
        std::fs::create_dir(worker.dir.path().join("pictures")).expect("a folder");
        Self { worker, names: AtomicU64::new(0) }
    }

    /// As the gateway does before it submits: each picture in a file of its own.
    fn submitted(&self, asked: &Asked) -> Generation {
        let mut generation = asked.generation.clone();
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        generation.request_id = format!("{}-{number}", generation.request_id);
        for (at, (picture, shot)) in generation.pictures.iter_mut().zip(&asked.shots).enumerate() {
            picture.file = format!("p{number}-{at}");
            std::fs::write(self.folder().join(&picture.file), &*shot.pixels).expect("writable");
        }
        generation
    }

    fn folder(&self) -> PathBuf {
        self.worker.dir.path().join("pictures")
    }

    fn left_over(&self) -> usize {
        std::fs::read_dir(self.folder()).expect("a folder").count()
    }

    async fn run(
        &self,
        generation: Generation,
        permit: Option<Permit>,
    ) -> Result<(Vec<u32>, Done), Status> {
        let plain = Permit {
            lane_allowed: v1::Lane::Plain.into(),
            reason: v1::RouteReason::Modality.into(),
            ..Permit::default()
        };
        let request = TargetGenerateRequest {
            stamp: Some(STAMP),
            generation: Some(generation),
            permit: Some(permit.unwrap_or(plain)),
        };
        let mut stream = self.worker.client.clone().generate(request).await?.into_inner();
        let mut batches: Vec<TokenBatch> = vec![];
        while let Some(batch) =
            tokio::time::timeout(BOUND, stream.message()).await.expect("tokens in time")?
        {
            batches.push(batch);
        }
        let done = batches.last().and_then(|batch| batch.done).expect("the last batch ends it");
        Ok((ids(&batches), done))
    }

    async fn ask(&self, asked: &Asked) -> (Vec<u32>, Done) {
        self.run(self.submitted(asked), None).await.expect("served")
    }

    /// Both requests reach the worker while it is stopped by a signal, in this order, so that they
    /// always run together: the worker reads its connection and passes requests on with one thread.
    async fn ask_together(
        &self,
        first: &Asked,
        second: &Asked,
    ) -> ((Vec<u32>, Done), (Vec<u32>, Done)) {
        let worker = Pid::from_raw(self.worker.child.id() as i32);
        kill(worker, Signal::SIGSTOP).expect("the worker runs");
        let resume = async {
            // Each turn runs whatever is ready on this thread: the client's connection writes both
            // requests.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            kill(worker, Signal::SIGCONT).expect("the worker is stopped");
        };
        let (first, second, ()) = tokio::join!(self.ask(first), self.ask(second), resume);
        (first, second)
    }

    async fn drafted(&self, asked: &Asked) -> (Vec<u32>, Done) {
        let permit = Permit {
            lane_allowed: v1::Lane::Speculative.into(),
            max_draft: BLOCK - 1,
            reason: v1::RouteReason::Forced.into(),
            policy_epoch: 0,
        };
        self.run(self.submitted(asked), Some(permit)).await.expect("served")
    }

    /// Plays a drafter and waits until it is linked.
    async fn attach(&mut self, generation: u64, proposal: ProposalKind, script: Script) {
        let (_, mut beats) = self.worker.ready().await;
        let welcome = Welcome { hidden_size: HIDDEN, ..welcome(generation, proposal) };
        attach(&self.worker, generation, Some(welcome), script);
        let up = async {
            loop {
                let link =
                    beats.message().await.expect("beats").expect("goes on").link.expect("reported");
                if link.generation == generation && link.phase() == LinkPhase::Up {
                    return;
                }
            }
        };
        tokio::time::timeout(BOUND, up).await.expect("linked in time");
    }

    async fn held_bytes(&self) -> u64 {
        let stats = self
            .worker
            .client
            .clone()
            .stats(StatsRequest { stamp: Some(STAMP) })
            .await
            .expect("stats")
            .into_inner();
        stats.now.expect("figures").kv.expect("kv").held_bytes
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.worker.dir.path().join("log")).expect("a log")
    }
}

/// The cases of the parity tests, with the ids that transformers chooses.
fn golden() -> Vec<(Asked, Vec<u32>)> {
    #[derive(Deserialize)]
    struct Golden {
        pictures: Vec<Taken>,
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Taken {
        name: String,
        rows: u32,
        columns: u32,
        pixels: String,
    }
    #[derive(Deserialize)]
    struct Case {
        prompt: Vec<u32>,
        pictures: Vec<String>,
        greedy: Vec<u32>,
    }
    let text = std::fs::read(seeing().with_extension("json"))
        .expect("the golden file is in the repository");
    let golden: Golden = serde_json::from_slice(&text).expect("it has these fields");
    let shot = |name: &String| {
        let taken = golden
            .pictures
            .iter()
            .find(|taken| taken.name == *name)
            .expect("a picture of this name");
        let digits: Vec<u8> = taken
            .pixels
            .bytes()
            .map(|digit| (digit as char).to_digit(16).expect("hex") as u8)
            .collect();
        let pixels = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        Shot { rows: taken.rows, columns: taken.columns, pixels: Arc::new(pixels) }
    };
    let case = |(at, case): (usize, &Case)| {
        let shots: Vec<Shot> = case.pictures.iter().map(shot).collect();
        let (mut pictures, mut behind) = (vec![], 0);
        for shot in &shots {
            let first =
                behind + case.prompt[behind..].iter().position(|id| *id == IMAGE).expect("a place");
            pictures.push(shot.announced(first));
            behind = first + shot.places();
        }
        let generation = Generation {
            pictures,
            ..generation(&format!("g{at}"), &case.prompt, case.greedy.len() as u32)
        };
        (Asked { generation, shots }, case.greedy.clone())
    };
    golden.cases.iter().enumerate().map(case).collect()
}

/// Eight streams of text, greedy and warm.
fn texts() -> Vec<Asked> {
    let text = |at: u64| {
        let asked = asked(&[Text(20 + 30 * at as usize, 100 + at)], 60);
        if at.is_multiple_of(2) { asked } else { asked.warm(at) }
    };
    (0..8).map(text).collect()
}

#[tokio::test]
async fn a_worker_answers_as_the_reference_alone_and_among_others() {
    let house = House::new(&[]).await;
    let golden = golden();
    assert!(
        golden.iter().any(|(asked, _)| asked.shots.len() > 1),
        "several pictures in one request"
    );
    let mut about = house.worker.client.clone();
    let described = about
        .describe(DescribeRequest { stamp: Some(STAMP) })
        .await
        .expect("described")
        .into_inner();
    assert!(described.model.expect("a model").vision && described.picture_patch_bytes > 0);
    for (asked, expected) in &golden {
        assert_eq!(
            house.ask(&asked.scope("alone")).await.0,
            *expected,
            "{}",
            asked.generation.request_id
        );
    }
    let texts = texts();
    let mut plain = vec![];
    for text in &texts {
        plain.push(house.ask(&text.scope("alone")).await.0);
    }
    // All pictures at one moment, each twice, beside eight streams of text.
    let all: Vec<Asked> = texts
        .iter()
        .chain(golden.iter().map(|(asked, _)| asked))
        .chain(golden.iter().map(|(asked, _)| asked))
        .cloned()
        .collect();
    let all: Vec<Asked> = all.iter().map(|asked| asked.scope("together")).collect();
    let answers = join_all(all.iter().map(|asked| house.ask(asked))).await;
    let greedy = || golden.iter().map(|(_, expected)| expected);
    for (at, (found, expected)) in
        answers.iter().zip(plain.iter().chain(greedy()).chain(greedy())).enumerate()
    {
        assert_eq!(found.0, *expected, "request {at} of them");
    }
    assert_eq!((house.left_over(), house.held_bytes().await), (0, 0));
}

#[tokio::test]
async fn however_it_is_read_the_answer_is_the_same() {
    let (tall, wide) = (Shot::random(20, 12, 1), Shot::random(8, 30, 2));
    // A cold worker's first chunk has 256 rows and ends inside the second picture.
    let long = asked(&[Text(130, 1), See(&tall), Text(30, 2), See(&wide), Text(60, 3)], 50);
    let (first, end) = (
        long.generation.pictures[1].first as usize,
        long.generation.pictures[1].first as usize + wide.places(),
    );
    assert!(first < 256 && 256 < end, "{first}..{end}");
    let house = House::new(&[("PACELINE_KV__PREFIX_CACHE", "true")]).await;
    let (expected, done) = house.ask(&long).await;
    assert_eq!((expected.len(), done.cached_tokens), (50, 0));
    // Fast rows make long chunks: in one, or in other ones.
    assert_eq!(house.ask(&long.scope("other")).await.0, expected);
    // The cache has all of its pages, and then neither tower nor features are needed.
    let (found, done) = house.ask(&long).await;
    assert_eq!(
        (found, done.cached_tokens as usize),
        (expected.clone(), (long.prompt().len() - 1) / PAGE * PAGE)
    );
    // Other text behind the second picture: what is found ends inside it, and the rest of its rows
    // are read.
    let other = vec![9; long.prompt().len() - end];
    let prompt_ids = [&long.prompt()[..end], &other].concat();
    let other = Asked {
        generation: Generation { prompt_ids, ..long.generation.clone() },
        shots: long.shots.clone(),
    };
    let (fresh, again) = (house.ask(&other.scope("fresh")).await.0, house.ask(&other).await);
    assert_eq!((&again.0, again.1.cached_tokens as usize), (&fresh, end / PAGE * PAGE));
    assert!(first < end / PAGE * PAGE && fresh != expected);
    // Text, with the ids of pictures' neighbours, where the second picture was.
    let prompt_ids =
        [&long.prompt()[..first], &vec![7; wide.places()], &long.prompt()[end..]].concat();
    let pictures = long.generation.pictures[..1].to_vec();
    let one = Asked {
        generation: Generation { prompt_ids, pictures, ..long.generation.clone() },
        shots: vec![tall],
    };
    let (fresh, again) = (house.ask(&one.scope("fresh")).await.0, house.ask(&one).await);
    assert_eq!((again.0, again.1.cached_tokens as usize), (fresh, first / PAGE * PAGE));
    // Resumed in the middle of its answer, with and without what is kept.
    for given in [1, 17, 49] {
        for scope in ["", "resumed"] {
            let (rest, _) = house.ask(&long.continued(&expected[..given]).scope(scope)).await;
            assert_eq!(rest, expected[given..], "{given} given, scope {scope:?}");
        }
    }
    // Warm streams likewise.
    let warm = long.warm(5);
    let (expected, _) = house.ask(&warm.scope("w1")).await;
    assert_eq!(house.ask(&warm).await.0, expected);
    assert_eq!(house.ask(&warm.continued(&expected[..20]).scope("w2")).await.0, expected[20..]);
    // The same by a worker that keeps nothing.
    let without = House::new(&[("PACELINE_KV__PREFIX_CACHE", "false")]).await;
    let (found, done) = without.ask(&warm).await;
    assert_eq!((found, done.cached_tokens), (expected, 0));
}

#[tokio::test]
async fn another_picture_is_another_answer_and_none_of_it_is_found() {
    let house = House::new(&[]).await;
    let shots: Vec<Shot> = (0..4).map(|seed| Shot::random(16, 16, 10 + seed)).collect();
    let see = |shot: &Shot| asked(&[Text(70, 1), See(shot), Text(80, 2)], 40);
    let mut answers = vec![];
    for shot in &shots {
        let (answer, done) = house.ask(&see(shot)).await;
        // The page before the picture is all they have in common.
        assert_eq!(done.cached_tokens as usize, if answers.is_empty() { 0 } else { PAGE });
        assert!(done.tower_ms > 0.0 && done.prefill_ms > 0.0, "both took time: {done:?}");
        answers.push(answer);
    }
    for (at, answer) in answers.iter().enumerate() {
        assert!(answers[..at].iter().all(|other| other != answer), "pictures change the answer");
        let (again, done) = house.ask(&see(&shots[at])).await;
        assert_eq!((&again, done.cached_tokens as usize), (answer, (70 + 64 + 79) / PAGE * PAGE));
        assert!(
            done.tower_ms == 0.0 && done.prefill_ms > 0.0,
            "its rows were there, and the rest was read: {done:?}"
        );
    }
    // The same pixels as another grid, and seen with other eyes.
    let turned = Shot { rows: 8, columns: 32, ..shots[0].clone() };
    assert_ne!(house.ask(&see(&turned)).await.0, answers[0]);
    let mut dark = see(&shots[0]);
    dark.generation.pictures[0].bias = vec![-0.5; 3];
    let status =
        house.run(house.submitted(&dark), None).await.expect_err("the digest is of all of it");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
    // Scopes share no picture.
    let (other, done) = house.ask(&see(&shots[0]).scope("x")).await;
    assert_eq!((&other, done.cached_tokens), (&answers[0], 0));
    assert!(done.tower_ms > 0.0, "{done:?}");
}

#[tokio::test]
async fn who_gives_way_begins_again_with_its_pictures() {
    // Rows of 768 bytes: room for a sequence of 1,024 positions and hardly more, or for two of half
    // as many.
    let house = House::new(&[
        ("PACELINE_KV__BUDGET_BYTES", "860000"),
        ("PACELINE_KV__PREFIX_CACHE", "false"),
    ])
    .await;
    let shot = Shot::random(16, 12, 3);
    let young =
        asked(&[Text(20, 1), See(&shot), Text(30, 2), See(&shot), Text(10, 3)], 140).warm(3);
    // It outgrows its first half of the room after 92 tokens, and then the younger request has the
    // other half.
    let old = asked(&[Text(420, 4)], 180);
    let (expected, text) = (house.ask(&young).await.0, house.ask(&old).await.0);
    assert!(!house.log().contains("request preempted"));
    let (first, second) = house.ask_together(&old, &young).await;
    assert_eq!((first.0, second.0), (text, expected));
    assert!(house.log().contains("request preempted"), "{}", house.log());
    assert_eq!(house.held_bytes().await, 0);
}

#[tokio::test]
async fn behind_pictures_drafts_change_nothing_but_when() {
    let mut house = House::new(&[]).await;
    let (one, two) = (Shot::random(12, 20, 5), Shot::random(6, 8, 6));
    let mut requests = vec![
        asked(&[Text(10, 1), See(&one), Text(20, 2)], 60),
        asked(&[Text(10, 1), See(&one), Text(20, 2)], 60).warm(9),
        asked(&[See(&two), Text(5, 3), See(&one), See(&two), Text(3, 4)], 60),
        asked(&[Text(200, 5), See(&two), Text(90, 6)], 60).warm(4),
    ];
    requests.extend(texts().into_iter().take(4));
    let mut plain = vec![];
    for request in &requests {
        plain.push(house.ask(request).await.0);
    }
    let known: Known = Arc::default();
    for (request, plain) in requests.iter().zip(&plain) {
        known.lock().expect("not poisoned").push([request.prompt(), plain].concat());
    }
    let mut seed = 7;
    let guess = move |end: &mut End, feed: &Feed| {
        let own = roll(&mut seed);
        propose_ids(end, feed, |request| {
            (0..request.block - 1).map(|at| ((own + u64::from(at)) % VOCAB) as u32).collect()
        })
    };
    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| -> Result<bool, LinkError> {
        propose_rows(end, feed, HIDDEN, &mut seed)
    };
    let drafters: [(&str, ProposalKind, Script); 3] = [
        ("perfect drafts", ProposalKind::Tokens, oracle(known)),
        ("guessed ids", ProposalKind::Tokens, Box::new(guess)),
        ("random rows", ProposalKind::Hidden, Box::new(rows)),
    ];
    for ((what, proposal, script), generation) in drafters.into_iter().zip(1..) {
        house.attach(generation, proposal, script).await;
        for scope in ["", what] {
            // From the cache, and read anew.
            let all: Vec<Asked> = requests.iter().map(|request| request.scope(scope)).collect();
            let mut counts = vec![v1::Speculation::default(); all.len()];
            let mut left: Vec<usize> = (0..all.len()).collect();
            let every_one_drafts = async {
                // On a busy machine the drafts of a short stream may all come too late: it is asked
                // once more then.
                while !left.is_empty() {
                    let answers = join_all(left.iter().map(|at| house.drafted(&all[*at]))).await;
                    for (at, (found, done)) in left.iter().zip(answers) {
                        assert_eq!(found, plain[*at], "{what}, scope {scope:?}, request {at}");
                        counts[*at] = done.speculation.expect("counted");
                    }
                    left.retain(|at| counts[*at].cycles == 0);
                }
            };
            let in_time = tokio::time::timeout(BOUND, every_one_drafts).await;
            assert!(in_time.is_ok(), "{what}, scope {scope:?}, in {BOUND:?}: {counts:?}");
            if what == "perfect drafts" {
                let sum = |of: fn(&v1::Speculation) -> u64| counts[..4].iter().map(of).sum::<u64>();
                assert!(
                    sum(|one| one.accepted) * 10 >= sum(|one| one.drafted) * 8,
                    "pictures first: {counts:?}"
                );
            }
        }
    }
}

/// What is done to a request before it is sent.
type Damage = fn(&House, &mut Generation);

#[tokio::test]
async fn a_picture_that_cannot_be_had_is_an_error_and_nothing_else() {
    let house = House::new(&[]).await;
    let shot = Shot::random(8, 8, 1);
    let good = asked(&[Text(10, 1), See(&shot), Text(10, 2), See(&shot), Text(5, 3)], 20);
    let (expected, _) = house.ask(&good).await;
    let text = asked(&[Text(40, 9)], 200);
    let (beside, _) = house.ask(&text).await;
    let broken: [(&str, &str, Damage); 8] = [
        ("missing", "pictures[1].file", |house, g| {
            std::fs::remove_file(house.folder().join(&g.pictures[1].file)).expect("there")
        }),
        ("too short", "pictures[0].file", |house, g| {
            std::fs::write(house.folder().join(&g.pictures[0].file), [7; 99]).expect("writable")
        }),
        ("other pixels", "pictures[1].digest", |house, g| {
            std::fs::write(
                house.folder().join(&g.pictures[1].file),
                vec![7; g.pictures[1].bytes as usize],
            )
            .expect("writable");
        }),
        ("another folder", "pictures[0].file", |_, g| g.pictures[0].file = "../target.sock".into()),
        ("another size", "pictures[0].bytes", |_, g| g.pictures[0].bytes += 1),
        ("no digest", "pictures[0].digest", |_, g| g.pictures[0].digest = vec![].into()),
        ("another place", "prompt_ids", |_, g| g.pictures[0].first += 1),
        ("a place without one", "prompt_ids", |_, g| g.pictures.truncate(1)),
    ];
    let stream = house.ask(&text);
    let all = async {
        for (what, field, damage) in broken {
            let mut generation = house.submitted(&good);
            damage(&house, &mut generation);
            let status = house.run(generation, None).await.expect_err(what);
            let named =
                status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone());
            assert_eq!(
                (Reason::of(&status), named.as_deref()),
                (Some(Reason::InvalidArgument), Some(field)),
                "{what}: {status}"
            );
            assert_eq!(house.ask(&good).await.0, expected, "behind {what}");
        }
    };
    let ((found, _), ()) = tokio::join!(stream, all);
    assert_eq!(found, beside);
    assert_eq!(house.held_bytes().await, 0);

    let mut blind = Worker::start(&tiny(), &[]);
    blind.ready().await;
    let status = blind.generate(house.submitted(&good)).await.expect_err("it does not see");
    assert_eq!(Reason::of(&status), Some(Reason::NoVision));
}

#[tokio::test]
async fn a_large_picture_goes_through_beside_streams_and_may_be_given_up() {
    let house = House::new(&[]).await;
    let (large, small) = (Shot::random(56, 56, 1), Shot::random(8, 8, 2));
    let big = asked(&[Text(5, 1), See(&large), Text(5, 2)], 10);
    let little = asked(&[Text(5, 1), See(&small), Text(5, 2)], 30);
    let (of_big, of_little) =
        (house.ask(&big.scope("alone")).await.0, house.ask(&little.scope("alone")).await.0);
    let texts = texts();
    let mut plain = vec![];
    for text in &texts {
        plain.push(house.ask(text).await.0);
    }
    let given_up = async {
        // Whatever it is doing at that moment, its memory is free then.
        for (at, calls) in [(0, 0), (1, 1), (2, 3), (3, 10)] {
            let generation = Generation {
                request_id: format!("up{at}"),
                ..house.submitted(&big.scope(&format!("up{at}")))
            };
            let mut client = house.worker.client.clone();
            let cancelled = async {
                // A few calls later, wherever it is then.
                for _ in 0..calls {
                    house.held_bytes().await;
                }
                loop {
                    let request =
                        CancelRequest { stamp: Some(STAMP), request_id: format!("up{at}") };
                    if client.cancel(request).await.expect("answered").into_inner().found {
                        return;
                    }
                }
            };
            let (answer, ()) = tokio::join!(house.run(generation, None), cancelled);
            assert_eq!(Reason::of(&answer.expect_err("cancelled")), Some(Reason::Cancelled));
        }
    };
    let streams = join_all(texts.iter().map(|text| house.ask(text)));
    let (big, little) = (big.scope("beside"), little.scope("beside"));
    let (answers, big_again, little_again, ()) =
        tokio::join!(streams, house.ask(&big), house.ask(&little), given_up);
    for (at, ((found, _), expected)) in answers.iter().zip(&plain).enumerate() {
        assert_eq!(found, expected, "stream {at}");
    }
    assert_eq!((big_again.0, little_again.0), (of_big, of_little));
    assert_eq!((house.held_bytes().await, house.left_over()), (0, 0));
}
