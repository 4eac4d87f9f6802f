//! The prefix cache of a target with recurrent layers: a sequence continues where states were kept,
//! with the same bits.

use std::path::PathBuf;

use futures::future::join_all;
use paceline_proto::internal::v1::{Generation, SamplingRule, TokenBatch};
use paceline_proto::v1::TokenLogprobs;

use super::stage::{GREEDY, Worker, generate, golden, ids, open, plain_permit};
use super::{PAGE, Stage, done, prompt};

/// Three recurrent layers and one that attends.
fn hybrid() -> PathBuf {
    golden("qwen3_5-tiny")
}

async fn stage(prefix_cache: bool) -> Stage {
    Stage::of(&hybrid(), &[("PACELINE_KV__PREFIX_CACHE", &prefix_cache.to_string())]).await
}

/// All numbers of an answer, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    ids: Vec<u32>,
    margins: Vec<u32>,
    logprobs: Vec<u32>,
}

fn bits(batches: &[TokenBatch]) -> Bits {
    let of = |one: &TokenLogprobs| {
        let top = one.top.iter().map(|top| top.logprob.to_bits());
        std::iter::once(one.logprob.to_bits()).chain(top).collect::<Vec<u32>>()
    };
    Bits {
        ids: ids(batches),
        margins: batches.iter().flat_map(|batch| &batch.margins).map(|m| m.to_bits()).collect(),
        logprobs: batches.iter().flat_map(|batch| &batch.logprobs).flat_map(of).collect(),
    }
}

/// A request that reports all of its numbers.
pub(super) fn detailed(stage: &mut Stage, prompt: &[u32], tokens: u32) -> Generation {
    Generation { report_margins: true, logprobs: Some(3), ..stage.request(prompt, tokens) }
}

/// The numbers of an answer, and how many of the prompt's tokens were found.
pub(super) async fn ask(worker: &Worker, request: Generation) -> (Bits, u32) {
    let batches = worker.generate(request).await.expect("served");
    (bits(&batches), done(&batches).cached_tokens)
}

#[tokio::test]
async fn kept_states_give_the_same_bits() {
    let (mut without, mut with) = (stage(false).await, stage(true).await);
    let whole = prompt(400, 1);
    for length in [5, 63, 64, 65, 127, 128, 129, 300, 400] {
        let prompt = &whole[..length];
        let request = detailed(&mut without, prompt, 20);
        let (expected, none) = ask(&without.worker, request).await;
        assert_eq!((expected.ids.len(), expected.margins.len(), none), (20, 20, 0));
        for again in [false, true] {
            let request = detailed(&mut with, prompt, 20);
            let (found, cached) = ask(&with.worker, request).await;
            assert_eq!(found, expected, "{length} ids, again: {again}");
            if again {
                assert_eq!(cached as usize, (length - 1) / PAGE * PAGE, "{length} ids");
            }
        }
        let kv = with.kv().await;
        assert_eq!((kv.held_bytes, kv.tap_bytes), (0, 0), "{kv:?}");
    }
    assert_eq!(without.kv().await.prefix_bytes, 0);
    // Pages after 384 positions of rows, and states after 64, 128, 256 and 384 of them.
    let page = 64 * 2 * 2 * 32 * 4;
    let states = 3 * 4 * (6 * 16 * 16 + 3 * 160);
    assert_eq!(with.kv().await.prefix_bytes, 6 * page + 4 * states);
    // Another id in the first page, between the second states and the third, in the last page.
    for (at, expected) in [(3, 0), (130, 128), (399, 384)] {
        let mut other = whole.clone();
        other[at] = other[at] % 280 + 5;
        assert_eq!(with.ask(&other, 3, "").await.1, expected, "another id at {at}");
    }
    assert_eq!(with.ask(&whole, 3, "other").await.1, 0, "another scope");
}

#[tokio::test]
async fn another_last_turn_begins_with_the_states_before_it() {
    let (mut without, mut with) = (stage(false).await, stage(true).await);
    let common = prompt(210, 2);
    let mut turn = async |seed: u32, last_turn: Option<u32>| {
        let own = [common.clone(), prompt(90, seed)].concat();
        let request = detailed(&mut without, &own, 12);
        let (expected, _) = ask(&without.worker, request).await;
        let request = Generation { last_turn, ..detailed(&mut with, &own, 12) };
        let (found, cached) = ask(&with.worker, request).await;
        assert_eq!(found, expected, "turn {seed}");
        cached
    };
    assert_eq!(turn(3, None).await, 0);
    assert_eq!(turn(4, Some(210)).await, 0, "the states of the first are after its own turn");
    assert_eq!(turn(5, None).await, 192);
    assert_eq!(turn(4, None).await, 256, "its own end");
}

#[tokio::test]
async fn a_later_turn_and_a_resumed_stream_find_the_prompt() {
    let mut stage = stage(true).await;
    let first = prompt(100, 3);
    let (answer, _) = stage.ask(&first, 120, "").await;
    let second = [first.clone(), answer.clone(), prompt(40, 4)].concat();
    assert_eq!(stage.ask(&second, 5, "").await.1, 64);
    let request =
        Generation { continuation_ids: answer[..100].to_vec(), ..stage.request(&first, 120) };
    let batches = stage.worker.generate(request).await.expect("served");
    assert_eq!((ids(&batches), done(&batches).cached_tokens), (answer[100..].to_vec(), 64));
}

#[tokio::test]
async fn an_abandoned_request_leaves_the_states_of_its_prompt() {
    let mut stage = stage(true).await;
    let prompt = prompt(150, 5);
    let request = stage.request(&prompt, 300);
    let opened = open(stage.worker.client.clone(), request, plain_permit()).await;
    let mut stream = opened.expect("served");
    stream.message().await.expect("tokens");
    drop(stream);
    assert_eq!(stage.ask(&prompt, 3, "").await.1, 128);
}

/// Runs all requests at once. Returns the numbers of each answer, and the found tokens, ascending.
pub(super) async fn at_once(worker: &Worker, requests: Vec<Generation>) -> (Vec<Bits>, Vec<u32>) {
    let all = requests.into_iter().map(|request| generate(worker.client.clone(), request));
    let answers = join_all(all).await.into_iter().map(|answer| answer.expect("served"));
    let answers: Vec<Vec<TokenBatch>> = answers.collect();
    let mut found: Vec<u32> = answers.iter().map(|batches| done(batches).cached_tokens).collect();
    found.sort_unstable();
    (answers.iter().map(|batches| bits(batches)).collect(), found)
}

#[tokio::test]
async fn samples_and_requests_with_one_beginning_compute_it_once() {
    let (mut without, mut with) = (stage(false).await, stage(true).await);
    let common = prompt(330, 6);
    let warm = SamplingRule { temperature: 1.0, top_p: 0.95, ..GREEDY };
    let sample = |stage: &mut Stage, at: u32| Generation {
        sampling: Some(warm.clone()),
        seed: 5,
        sample_index: at,
        ..detailed(stage, &common, 30)
    };
    let turn = |stage: &mut Stage, at: u32| {
        let own = [common.clone(), prompt(20 + at as usize, 7 + at)].concat();
        Generation {
            last_turn: Some(common.len() as u32),
            cache_scope: "turns".into(),
            ..detailed(stage, &own, 30)
        }
    };
    let (mut alone, mut requests) = (vec![], vec![]);
    for at in 0..6 {
        let request = sample(&mut without, at);
        alone.push(ask(&without.worker, request).await.0);
        requests.push(sample(&mut with, at));
    }
    let (found, cached) = at_once(&with.worker, requests).await;
    assert_eq!(found, alone);
    assert!(alone.iter().any(|one| one.ids != alone[0].ids), "samples differ");
    // One of them read it for all.
    assert_eq!(cached, [0, 320, 320, 320, 320, 320]);
    let (mut alone, mut requests) = (vec![], vec![]);
    for at in 0..6 {
        let request = turn(&mut without, at);
        alone.push(ask(&without.worker, request).await.0);
        requests.push(turn(&mut with, at));
    }
    let (found, cached) = at_once(&with.worker, requests).await;
    assert_eq!((found, cached), (alone, vec![0, 320, 320, 320, 320, 320]));
}

#[tokio::test]
async fn a_budget_of_few_states_serves_every_request() {
    // A sequence of 512 positions.
    let class = 512 * 2 * 2 * 32 * 4 + 3 * 4 * (6 * 16 * 16 + 3 * 160);
    // The cache has half of what two running sequences leave. Of three sequences that is less than
    // most of these prompts need; of five it is enough for any of them, and too little for all.
    for (sequences, expected_hits) in [(3, 1), (5, 40)] {
        let budget = (sequences * class).to_string();
        let environment = [("PACELINE_KV__BUDGET_BYTES", budget.as_str())];
        let mut stage = Stage::of(&hybrid(), &environment).await;
        let mut hits = 0;
        for round in 0..30 {
            let prompt = prompt(250 + round % 7 * 20, round as u32 / 3 % 5);
            let requests = vec![stage.request(&prompt, 100), stage.request(&prompt, 100)];
            let (answers, found) = at_once(&stage.worker, requests).await;
            assert!(answers.iter().all(|answer| answer.ids.len() == 100));
            hits += found.iter().filter(|found| **found > 0).count();
            let kv = stage.kv().await;
            assert!(kv.prefix_bytes <= sequences * class / 2 && kv.held_bytes == 0, "{kv:?}");
        }
        assert!(hits >= expected_hits, "{hits} of 60 requests found something");
    }
}
