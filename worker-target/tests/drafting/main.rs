//! The target's end of the link, against a drafter that the test plays over a real link. The
//! drafter is perfect, guesses, is late, or breaks one of the rules. Whatever the drafter does, the
//! tokens are those of the plain lane (I1, I3).

mod controller;
mod faults;
#[cfg(any(debug_assertions, feature = "test-graph"))]
mod graphs;
mod handover;
mod hybrid;
mod lifecycle;
#[path = "../stage/mod.rs"]
mod stage;
mod windows;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use paceline_link::End;
use paceline_proto::internal::v1::{
    Generation, Heartbeat, LinkPhase, Permit, Policy, SamplingRule, SetPolicyRequest, TokenBatch,
};
use paceline_proto::v1;
use paceline_vocabulary::link::{DraftRequest, DraftTokens, Feed, ProposalKind, SessionId};
use tonic::{Status, Streaming};

use stage::drafter::{
    BLOCK, HIDDEN, Known, VOCAB, attach, oracle, propose_ids, propose_rows, propose_tokens, roll,
    welcome,
};
use stage::{
    GREEDY, STAMP, Worker, cases_of, finish, generate, generation, golden, ids, open, until_link,
};

fn speculative() -> Permit {
    Permit {
        lane_allowed: v1::Lane::Speculative.into(),
        max_draft: BLOCK - 1,
        reason: v1::RouteReason::Prior.into(),
        policy_epoch: 0,
    }
}

/// Requests with every way to choose tokens, on the prompts of a tiny checkpoint.
fn requests(checkpoint: &str) -> Vec<Generation> {
    let warm = SamplingRule { temperature: 0.8, top_p: 0.95, repetition_penalty: 1.1, ..GREEDY };
    let samplings = [
        GREEDY,
        SamplingRule { repetition_penalty: 1.3, ..GREEDY },
        warm.clone(),
        SamplingRule { temperature: 1.3, top_k: 20, ..GREEDY },
        SamplingRule { min_p: 0.02, ..warm.clone() },
        SamplingRule { presence_penalty: 0.5, frequency_penalty: 0.2, ..GREEDY },
        SamplingRule { logit_bias: vec![v1::LogitBias { token_id: 9, bias: 2.5 }], ..warm },
        // As HunyuanOCR's card asks for.
        SamplingRule { repetition_penalty: 1.08, ..GREEDY },
    ];
    let prompts = cases_of(checkpoint);
    let request = |(at, sampling): (usize, SamplingRule)| Generation {
        sampling: Some(sampling),
        seed: 1000 + at as u64,
        report_margins: at % 2 == 1,
        ..generation(&format!("r{at}"), &prompts[at % prompts.len()].0, 70)
    };
    samplings.into_iter().enumerate().map(request).collect()
}

struct Stage {
    worker: Worker,
    beats: Streaming<Heartbeat>,
    requests: Vec<Generation>,
    plain: Vec<Vec<u32>>,
    names: AtomicU64,
    /// Reason of the permits: forced, or left to the target.
    reason: v1::RouteReason,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new() -> Self {
        Self::of("qwen3-tiny")
    }

    fn of(checkpoint: &str) -> Self {
        Self::of_dir(&golden(checkpoint), checkpoint)
    }

    /// A target in this directory, with the prompts of a tiny checkpoint.
    fn of_dir(dir: &Path, checkpoint: &str) -> Self {
        Self::with(dir, requests(checkpoint))
    }

    /// A target in this directory, with these requests.
    fn with(dir: &Path, requests: Vec<Generation>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (worker, beats) = runtime.block_on(async {
            let mut worker = Worker::start(dir, &[]);
            let (_, beats) = worker.ready().await;
            (worker, beats)
        });
        let plain = requests.iter().map(|request| {
            let batches =
                runtime.block_on(generate(worker.client.clone(), request.clone())).expect("served");
            ids(&batches)
        });
        let plain = plain.collect();
        Self {
            worker,
            beats,
            requests,
            plain,
            names: AtomicU64::new(0),
            reason: v1::RouteReason::Forced,
            runtime,
        }
    }

    /// Reads heartbeats until the newest link is in `phase`; its reason.
    fn until(&mut self, generation: u64, phase: LinkPhase) -> String {
        self.runtime.block_on(until_link(&mut self.beats, generation, phase))
    }

    fn named(&self, request: &Generation) -> Generation {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        Generation { request_id: format!("{}-{number}", request.request_id), ..request.clone() }
    }

    async fn open(&self, request: Generation) -> Streaming<TokenBatch> {
        let permit = Permit { reason: self.reason.into(), ..speculative() };
        open(self.worker.client.clone(), request, permit).await.expect("served")
    }

    /// Runs all requests at once with a speculative permit, compares every token, and returns what
    /// speculation did.
    fn same_as_plain(&self, what: &str) -> Vec<v1::Speculation> {
        let all = async {
            let streams =
                join_all(self.requests.iter().map(|request| self.open(self.named(request)))).await;
            join_all(streams.into_iter().map(finish)).await
        };
        let answers = self.runtime.block_on(all);
        let mut done = vec![];
        for ((answer, plain), request) in answers.into_iter().zip(&self.plain).zip(&self.requests) {
            let batches =
                answer.unwrap_or_else(|status| panic!("{what}, {}: {status}", request.request_id));
            assert_eq!(&ids(&batches), plain, "{what}, {}", request.request_id);
            if request.report_margins {
                assert_eq!(
                    batches.iter().map(|batch| batch.margins.len()).sum::<usize>(),
                    plain.len()
                );
            }
            let last = batches.last().and_then(|batch| batch.done).expect("an end");
            done.push(last.speculation.expect("counted"));
        }
        done
    }

    /// As [`Stage::same_as_plain`], until a run in which every request had more than 20 drafts. On a
    /// busy machine a draft may be late, and requests then go on plainly for a while.
    fn same_as_plain_with_drafts(&self, what: &str) {
        let mut seen = Vec::new();
        for _ in 0..40 {
            seen = self.same_as_plain(what);
            if seen.iter().all(|speculation| speculation.cycles > 20) {
                return;
            }
        }
        panic!("{what}: expected a run with more than 20 drafts for each request, found {seen:?}");
    }

    /// Runs one request, compares its tokens, and returns how it was served.
    fn one(&self, request: &Generation, plain: &[u32]) -> (v1::Route, v1::Speculation) {
        let stream = self.runtime.block_on(self.open(self.named(request)));
        let batches = self.runtime.block_on(finish(stream)).expect("served");
        assert_eq!(ids(&batches), plain);
        let done = batches.last().and_then(|batch| batch.done).expect("an end");
        (done.route.expect("reported"), done.speculation.expect("counted"))
    }

    /// Prompt and answer of every request.
    fn streams(&self) -> Vec<Vec<u32>> {
        let both = self.requests.iter().zip(&self.plain);
        both.map(|(request, plain)| [request.prompt_ids.as_slice(), plain].concat()).collect()
    }

    fn set_policy(&self, policy: Option<Policy>) -> Result<(), Status> {
        let request = SetPolicyRequest { stamp: Some(STAMP), policy };
        self.runtime.block_on(self.worker.client.clone().set_policy(request)).map(|_| ())
    }

    fn pid(&self) -> u32 {
        self.worker.child.id()
    }
}

#[test]
fn drafting_changes_timing_not_tokens() {
    let mut stage = Stage::new();
    // Without a link a speculative permit is served plainly.
    assert!(stage.same_as_plain("no link").iter().all(|speculation| speculation.cycles == 0));

    let known: Known = Arc::new(Mutex::new(stage.streams()));
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    let perfect = stage.same_as_plain("perfect drafts");
    let (cycles, drafted, accepted) = perfect
        .iter()
        .fold((0, 0, 0), |(c, d, a), s| (c + s.cycles, d + s.drafted, a + s.accepted));
    // If two streams share a token at a position, the oracle may take one for the other. Most
    // drafts are right.
    assert!(accepted * 10 >= drafted * 8 && accepted >= 4 * cycles, "{perfect:?}");

    let mut seed = 7;
    let guess = move |end: &mut End, feed: &Feed| {
        let mut own = roll(&mut seed);
        propose_ids(end, feed, |request| {
            (0..request.block - 1)
                .map(|at| ((own + u64::from(at)) % u64::from(VOCAB)) as u32)
                .collect()
        })
        .inspect(|_| own = own.wrapping_add(1))
    };
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), Box::new(guess));
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain_with_drafts("guessed ids");

    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut seed);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Hidden)), Box::new(rows));
    stage.until(3, LinkPhase::Up);
    stage.same_as_plain_with_drafts("random hidden rows");
}

/// Draft requests that a drafter got, each with the id of the client's request.
type RecordedRequests = Arc<Mutex<Vec<(String, DraftRequest)>>>;

#[test]
fn sampling_reaches_the_drafter_and_token_drafts_with_logprobs_are_accepted() {
    let mut stage = Stage::new();
    let (streams, seen) = (stage.streams(), RecordedRequests::default());
    let (record, mut ids_of) =
        (seen.clone(), std::collections::HashMap::<SessionId, String>::new());
    let script = move |end: &mut End, feed: &Feed| {
        for context in feed.contexts.iter().filter(|context| context.fresh) {
            let id = context.request_id.as_ref().expect("a fresh context names its request");
            ids_of.insert(context.session, id.as_str().to_owned());
        }
        let of = |request: &DraftRequest| (ids_of[&request.session].clone(), *request);
        record.lock().expect("not poisoned").extend(feed.requests.iter().map(of));
        propose_tokens(end, feed, |request| {
            let at = request.position as usize;
            let right = streams.iter().find(|stream| stream.get(at) == Some(&request.bonus_id));
            let next = right.map_or(&[][..], |stream| &stream[at + 1..]);
            let ids: Vec<u32> = next.iter().copied().take(request.block as usize - 1).collect();
            let logprobs = ids.iter().map(|id| -0.25 * (id % 5) as f32).collect();
            let DraftRequest { session, position, .. } = *request;
            DraftTokens { session, position, ids, logprobs, drafts_from: 0 }
        })
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(script));
    stage.until(1, LinkPhase::Up);
    let served = stage.same_as_plain("tokens with logprobs");
    assert!(served.iter().map(|speculation| speculation.accepted).sum::<u64>() > 0, "{served:?}");
    let seen = seen.lock().expect("not poisoned");
    for request in &stage.requests {
        let sampling = request.sampling.as_ref().expect("set");
        let name = format!("{}-", request.request_id);
        let own: Vec<_> = seen.iter().filter(|(id, _)| id.starts_with(&name)).collect();
        assert!(!own.is_empty(), "no draft was requested for {name}");
        for (_, draft) in own {
            let found = draft.sampling;
            assert_eq!((found.seed, found.sample_index), (request.seed, 0));
            // Greedy is a temperature of 0, whatever else is set.
            let rule = found.rule;
            assert_eq!(
                (rule.temperature, rule.top_k, rule.top_p, rule.min_p),
                (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
                "{name}"
            );
            assert!(draft.position as usize >= request.prompt_ids.len());
        }
    }
}
