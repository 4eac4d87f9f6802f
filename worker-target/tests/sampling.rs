//! Every way to choose tokens gives one stream and one set of log-probabilities (I1). The request
//! runs alone, beside others, continued from any place, and with drafts that are right, guessed or
//! noise.

#![cfg(feature = "mlx")]

mod stage;

use std::sync::Arc;

use futures::future::join_all;
use paceline_link::End;
use paceline_proto::internal::v1::{
    Generation, Heartbeat, LinkPhase, Permit, SamplingRule, TokenBatch,
};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind};
use tonic::Streaming;

use stage::drafter::{
    BLOCK, HIDDEN, Known, Script, VOCAB, attach, oracle, propose_ids, propose_rows, roll, welcome,
};
use stage::{GREEDY, Worker, cases, finish, generate, generation, open, tiny, until_link};

const TOKENS: u32 = 40;
/// How far log-probabilities may be apart in two lanes (natural logarithm).
const NEAR: f32 = 1e-3;

/// Results of a request.
#[derive(Debug)]
struct Stream {
    ids: Vec<u32>,
    logprobs: Vec<v1::TokenLogprobs>,
    speculation: v1::Speculation,
}

impl Stream {
    fn of(batches: Vec<TokenBatch>) -> Self {
        let (mut ids, mut logprobs, mut done) = (vec![], vec![], None);
        for batch in batches {
            assert_eq!(batch.logprobs.len(), batch.ids.len(), "one for each token");
            ids.extend(batch.ids);
            logprobs.extend(batch.logprobs);
            done = batch.done;
        }
        Self { ids, logprobs, speculation: done.expect("an end").speculation.expect("counted") }
    }
}

fn bias(list: impl IntoIterator<Item = (u32, f32)>) -> Vec<v1::LogitBias> {
    let mut list: Vec<_> =
        list.into_iter().map(|(token_id, bias)| v1::LogitBias { token_id, bias }).collect();
    list.sort_by_key(|one| one.token_id);
    list.dedup_by_key(|one| one.token_id);
    list
}

/// Every sampler alone, and together. Bias and stop ids are about ids that would be chosen without
/// them.
fn requests() -> Vec<Generation> {
    // More than 60 lines: a table, one sampler a row.
    let warm = SamplingRule { temperature: 0.8, ..GREEDY };
    let penalties = SamplingRule {
        repetition_penalty: 1.1,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        ..warm.clone()
    };
    let mut ways: Vec<(&str, SamplingRule)> = vec![
        ("greedy", GREEDY),
        ("temperature", warm.clone()),
        ("top_k", SamplingRule { temperature: 1.3, top_k: 20, ..GREEDY }),
        ("top_p", SamplingRule { top_p: 0.9, ..warm.clone() }),
        ("min_p", SamplingRule { temperature: 1.2, min_p: 0.05, ..GREEDY }),
        ("repetition", SamplingRule { repetition_penalty: 1.3, ..GREEDY }),
        ("presence", SamplingRule { presence_penalty: 1.5, ..GREEDY }),
        ("frequency", SamplingRule { frequency_penalty: 0.7, ..GREEDY }),
        (
            "encouraged",
            SamplingRule { presence_penalty: -1.0, frequency_penalty: -0.2, ..warm.clone() },
        ),
        ("penalties", SamplingRule { top_p: 0.95, ..penalties.clone() }),
        ("forced", SamplingRule { logit_bias: bias([(77, 100.0)]), ..warm.clone() }),
    ];
    let cases = cases();
    let greedy = |at: usize| &cases[at % cases.len()].1;
    let mild = |at: usize| {
        bias(
            greedy(at)
                .iter()
                .take(6)
                .zip([1.5, -2.0, 0.5, -0.5, 3.0, -4.0])
                .map(|(id, bias)| (*id, bias)),
        )
    };
    let forbidden = bias(greedy(ways.len()).iter().take(8).map(|id| (*id, -100.0)));
    ways.push(("forbidden", SamplingRule { logit_bias: forbidden, ..GREEDY }));
    ways.push(("biased", SamplingRule { logit_bias: mild(ways.len()), ..warm.clone() }));
    ways.push(("min tokens", GREEDY));
    ways.push(("min tokens, sampled", warm));
    let all = SamplingRule {
        top_k: 60,
        top_p: 0.95,
        min_p: 0.01,
        logit_bias: mild(ways.len()),
        ..penalties
    };
    ways.push(("all, min tokens", all));
    let request = |(at, (name, rule)): (usize, (&str, SamplingRule))| {
        let waits = name.contains("min tokens");
        Generation {
            sampling: Some(rule),
            seed: 500 + at as u64,
            sample_index: at as u32 % 3,
            min_tokens: if waits { 12 } else { 0 },
            stop_token_ids: if waits { greedy(at)[..5].to_vec() } else { vec![] },
            logprobs: Some(at as u32 % 6),
            ..generation(&name.replace([' ', ','], "_"), &cases[at % cases.len()].0, TOKENS)
        }
    };
    ways.into_iter().enumerate().map(request).collect()
}

/// Holds a stream, or its end from `from` on, against the whole one; the largest distance of
/// log-probabilities.
fn same(whole: &Stream, found: &Stream, from: usize, what: &str) -> f32 {
    assert_eq!(found.ids, whole.ids[from..], "{what}");
    let mut worst = 0.0f32;
    for (found, expected) in found.logprobs.iter().zip(&whole.logprobs[from..]) {
        assert_eq!(found.top.len(), expected.top.len(), "{what}");
        let of = |one: &v1::TokenLogprobs| -> Vec<f32> {
            std::iter::once(one.logprob).chain(one.top.iter().map(|top| top.logprob)).collect()
        };
        let distances = of(found).into_iter().zip(of(expected)).map(|(a, b)| (a - b).abs());
        worst = distances.fold(worst, f32::max);
    }
    assert!(worst <= NEAR, "{what}: log-probabilities differ by {worst}");
    worst
}

async fn speculative(worker: &Worker, request: Generation) -> Stream {
    let permit = Permit {
        lane_allowed: v1::Lane::Speculative.into(),
        max_draft: BLOCK - 1,
        reason: v1::RouteReason::Forced.into(),
        policy_epoch: 0,
    };
    let stream = open(worker.client.clone(), request, permit).await.expect("served");
    Stream::of(finish(stream).await.expect("served"))
}

/// Links a drafter, and waits until it is up.
async fn link(
    worker: &Worker,
    beats: &mut Streaming<Heartbeat>,
    number: u64,
    proposal: ProposalKind,
    script: Script,
) {
    attach(worker, number, Some(welcome(number, proposal)), script);
    until_link(beats, number, LinkPhase::Up).await;
}

#[tokio::test]
async fn each_sampler_gives_one_stream_and_its_log_probabilities() {
    // More than 60 lines: one story from start to end.
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, mut beats) = worker.ready().await;
    let requests = requests();
    let named = |request: &Generation, how: &str| Generation {
        request_id: format!("{}-{how}", request.request_id),
        ..request.clone()
    };
    let plain = async |request: Generation| {
        Stream::of(generate(worker.client.clone(), request).await.expect("served"))
    };
    let mut whole = vec![];
    for request in &requests {
        let stream = plain(request.clone()).await;
        let asked = request.logprobs.expect("asked for") as usize;
        assert!(
            stream.logprobs.iter().all(|one| one.top.len() == asked && one.logprob <= 0.0),
            "{}",
            request.request_id
        );
        // What is reported does not change what is chosen.
        let bare = Generation { logprobs: None, ..named(request, "bare") };
        let batches = generate(worker.client.clone(), bare).await.expect("served");
        assert!(batches.iter().all(|batch| batch.logprobs.is_empty()));
        assert_eq!(stage::ids(&batches), stream.ids, "{}", request.request_id);
        whole.push(stream);
    }
    its_own(&requests, &whole);

    let mut worst = 0.0f32;
    let together = join_all(requests.iter().map(|request| plain(named(request, "beside")))).await;
    for ((request, whole), found) in requests.iter().zip(&whole).zip(&together) {
        worst = worst.max(same(whole, found, 0, &format!("{} beside others", request.request_id)));
        // From any place: counts and min_tokens go over what is there already.
        for from in [1, 9, whole.ids.len() / 2, whole.ids.len() - 1] {
            let what = format!("from-{from}");
            let resumed = Generation {
                continuation_ids: whole.ids[..from].to_vec(),
                ..named(request, &what)
            };
            worst = worst.max(same(
                whole,
                &plain(resumed).await,
                from,
                &format!("{} {what}", request.request_id),
            ));
        }
    }

    let known: Known = Arc::default();
    for (request, whole) in requests.iter().zip(&whole) {
        known
            .lock()
            .expect("not poisoned")
            .push([request.prompt_ids.clone(), whole.ids.clone()].concat());
    }
    let mut seed = 7;
    let guess = move |end: &mut End, feed: &Feed| {
        let own = roll(&mut seed);
        propose_ids(end, feed, |request| {
            (0..request.block - 1)
                .map(|at| ((own + u64::from(at)) % u64::from(VOCAB)) as u32)
                .collect()
        })
    };
    let mut noise = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut noise);
    let drafters: [(&str, ProposalKind, Script); 3] = [
        ("known", ProposalKind::Tokens, oracle(known)),
        ("guessed", ProposalKind::Tokens, Box::new(guess)),
        ("rows", ProposalKind::Hidden, Box::new(rows)),
    ];
    for (number, (how, kind, script)) in (1..).zip(drafters) {
        link(&worker, &mut beats, number, kind, script).await;
        let all =
            join_all(requests.iter().map(|request| speculative(&worker, named(request, how))))
                .await;
        let (mut accepted, mut drafted, mut idle) = (0, 0, vec![]);
        for ((request, whole), found) in requests.iter().zip(&whole).zip(&all) {
            worst = worst.max(same(
                whole,
                found,
                0,
                &format!("{}, {how} beside others", request.request_id),
            ));
            let alone = speculative(&worker, named(request, &format!("{how}-alone"))).await;
            worst =
                worst.max(same(whole, &alone, 0, &format!("{}, {how} alone", request.request_id)));
            if alone.speculation.cycles == 0 {
                idle.push(request.request_id.as_str());
            }
            (accepted, drafted) =
                (accepted + alone.speculation.accepted, drafted + alone.speculation.drafted);
        }
        println!("{how}: {accepted} of {drafted} accepted, none drafted for {idle:?}");
        // A machine with other work may not let the drafter's end run in time for a stream of a few
        // milliseconds.
        assert!(
            idle.len() <= 2,
            "{how}: nothing was drafted for {idle:?} of {} streams",
            requests.len()
        );
        assert!(how != "known" || accepted * 2 > drafted, "{accepted} of {drafted}");
    }
    println!("log-probabilities differ by at most {worst}");
}

/// Each way did what it is for, so that the same streams are not the same for nothing.
fn its_own(requests: &[Generation], whole: &[Stream]) {
    let cases = cases();
    for (at, (request, stream)) in requests.iter().zip(whole).enumerate() {
        let (ids, greedy) = (&stream.ids, &cases[at % cases.len()].1);
        let name = request.request_id.as_str();
        let stops = |ids: &[u32]| ids.iter().any(|id| request.stop_token_ids.contains(id));
        let met = match name {
            "greedy" => ids.starts_with(greedy),
            "forced" => {
                ids.iter().all(|id| *id == 77)
                    && stream.logprobs.iter().all(|one| one.logprob > -1e-6)
            }
            "forbidden" => !ids.iter().any(|id| greedy[..8].contains(id)),
            "presence" | "frequency" | "repetition" => !ids.starts_with(greedy),
            _ if request.min_tokens > 0 => !stops(&ids[..12]),
            _ => true,
        };
        assert!(met, "{name}: {ids:?}, greedy {greedy:?}");
    }
    let waiting = requests.iter().zip(whole).filter(|(request, _)| request.min_tokens > 0);
    assert!(
        waiting.clone().any(|(_, stream)| stream.ids.len() < TOKENS as usize),
        "none was ended by a stop id after min_tokens"
    );
}
