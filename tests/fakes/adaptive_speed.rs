//! Measures the worth of adaptive speculation with two workers and the link. Each kind of prompt
//! runs at several loads in three lanes in turn: plain, always drafted, and as the target decides.
//! Tokens over wall clock of all streams of a cell together.
//!
//! `cargo run --release -p paceline-tests --example adaptive_speed -- [runs] [streams,...]
//! [kind,...]`

mod pair;

use std::collections::BTreeMap;

use futures::future::join_all;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{
    Generation, Permit, SamplingRule, StatsRequest, TargetGenerateRequest,
};
use paceline_proto::v1::{Lane, Route, RouteReason};
use paceline_system::clock::monotonic_ns;
use tonic::transport::Channel;

use pair::{Pair, STAMP};

/// A lane, and the reason in the permit.
#[derive(Clone, Copy)]
struct MeasuredLane {
    lane: Lane,
    reason: RouteReason,
}

/// Plain, forced, routed.
const LANES: [MeasuredLane; 3] = [
    MeasuredLane { lane: Lane::Plain, reason: RouteReason::DrafterAbsent },
    MeasuredLane { lane: Lane::Speculative, reason: RouteReason::Forced },
    MeasuredLane { lane: Lane::Speculative, reason: RouteReason::Prior },
];

/// Figures of the routed lane in a cell.
#[derive(Default)]
struct Served {
    tokens: u64,
    cycles: u64,
    accepted: u64,
    reasons: Vec<RouteReason>,
}

struct Answer {
    ids: Vec<u32>,
    cycles: u64,
    accepted: u64,
    route: Route,
}

async fn run(client: TargetClient<Channel>, generation: Generation, lane: usize) -> Answer {
    let MeasuredLane { lane, reason } = LANES[lane];
    let max_draft = if lane == Lane::Plain { 0 } else { 15 };
    let permit =
        Permit { lane_allowed: lane.into(), max_draft, reason: reason.into(), policy_epoch: 0 };
    let request = TargetGenerateRequest {
        stamp: Some(STAMP),
        generation: Some(generation),
        permit: Some(permit),
    };
    let mut stream = client.clone().generate(request).await.expect("served").into_inner();
    let (mut ids, mut done) = (vec![], None);
    while let Some(batch) = stream.message().await.expect("goes on") {
        ids.extend(batch.ids);
        done = batch.done.or(done);
    }
    let done = done.expect("an end");
    let speculation = done.speculation.expect("counted");
    Answer {
        ids,
        cycles: speculation.cycles,
        accepted: speculation.accepted,
        route: done.route.expect("reported"),
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
// More than 60 lines: a tool's steps in order, with nothing to share.
fn main() {
    let mut arguments = std::env::args().skip(1);
    let runs: usize = arguments.next().map_or(7, |text| text.parse().expect("a number"));
    let streams = arguments.next().unwrap_or_else(|| "1,8".into());
    let streams: Vec<usize> =
        streams.split(',').map(|text| text.parse().expect("numbers")).collect();
    let kinds = arguments.next().unwrap_or_else(|| "json,code,prose".into());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let prompts = pair::prompts();
    runtime.block_on(async {
        let pair = Pair::start().await;
        let client = pair.client.clone();
        let mut number = 0;
        // The first round is not counted: it touches memory, and step costs are measured in it.
        let mut rates: BTreeMap<(String, usize), [Vec<f64>; 3]> = BTreeMap::new();
        let mut routes: BTreeMap<(String, usize), Served> = BTreeMap::new();
        for round in 0..=runs {
            for (kind, streams) in kinds.split(',').flat_map(|kind| streams.iter().map(move |streams| (kind, *streams))) {
                let mine: Vec<_> = prompts.iter().filter(|prompt| prompt.0 == kind).collect();
                let cell = (kind.to_owned(), streams);
                let mut first: Vec<Vec<u32>> = vec![];
                // Which lane goes first changes.
                for lane in (0..3).map(|at| (at + round) % 3) {
                    let begin = monotonic_ns();
                    let all = (0..streams.max(2)).map(|at| {
                        number += 1;
                        let (_, ids, max_tokens) = mine[(at + round * streams) % mine.len()];
                        let generation = Generation {
                            request_id: format!("r{number}"),
                            prompt_ids: ids.clone(),
                            sampling: Some(SamplingRule { top_p: 1.0, repetition_penalty: 1.0, ..SamplingRule::default() }),
                            max_tokens: *max_tokens,
                            stop_token_ids: vec![2],
                            tokenizer_vocab: 4096,
                            traffic_class: "default".into(),
                            ..Generation::default()
                        };
                        run(client.clone(), generation, lane)
                    });
                    let answers = if streams == 1 {
                        let mut answers = vec![];
                        for one in all {
                            answers.push(one.await);
                        }
                        answers
                    } else {
                        join_all(all).await
                    };
                    let seconds = (monotonic_ns() - begin) as f64 / 1e9;
                    let ids: Vec<Vec<u32>> = answers.iter().map(|answer| answer.ids.clone()).collect();
                    if first.is_empty() {
                        first = ids;
                    } else {
                        assert_eq!(first, ids, "the lanes give the same tokens");
                    }
                    let tokens: usize = first.iter().map(Vec::len).sum();
                    if round > 0 {
                        rates.entry(cell.clone()).or_default()[lane].push(tokens as f64 / seconds);
                    }
                    if lane == 2 && round > 0 {
                        let entry = routes.entry(cell.clone()).or_default();
                        entry.tokens += tokens as u64;
                        for answer in answers {
                            entry.cycles += answer.cycles;
                            entry.accepted += answer.accepted;
                            entry.reasons.push(answer.route.reason());
                        }
                    }
                }
            }
        }
        for (cell, lanes) in &rates {
            let medians: Vec<f64> = lanes.iter().map(|rates| quantile(rates, 0.5)).collect();
            // Run by run against the better of the two others by the medians of all runs.
            let better = if medians[0] >= medians[1] { 0 } else { 1 };
            let ratios: Vec<f64> = lanes[2].iter().zip(&lanes[better]).map(|(one, other)| one / other).collect();
            let Served { tokens, cycles, accepted, reasons } = &routes[cell];
            let count = |reason: RouteReason| reasons.iter().filter(|one| **one == reason).count();
            let words = [RouteReason::Benefit, RouteReason::Prior, RouteReason::Probe, RouteReason::NotWorth, RouteReason::DrafterBehind]
                .map(|reason| format!("{} {}", count(reason), reason.word()));
            println!(
                "{:10} x{:<2} plain {:5.0}  forced {:5.0}  routed {:5.0} tok/s  routed over the better {:.3} ({:.2} to {:.2})  {:4.1} cycles of {:4.1} tokens in 100  {}",
                cell.0, cell.1, medians[0], medians[1], medians[2], quantile(&ratios, 0.5), quantile(&ratios, 0.0), quantile(&ratios, 1.0),
                *cycles as f64 * 100.0 / *tokens as f64,
                (accepted + cycles) as f64 / (*cycles).max(1) as f64,
                words.join(", "),
            );
        }
        let stats = client.clone().stats(StatsRequest { stamp: Some(STAMP) }).await.expect("answers").into_inner();
        let now = stats.now.expect("figures");
        let figures = now.figures.expect("figures");
        println!("step {:?}\ndraft {:?}", figures.step, figures.draft);
        for class in &figures.classes {
            println!("{} {} cycles, survival {:.2?}", class.class, class.cycles, class.survival);
        }
        for bucket in figures.by_sequences.iter().chain(&figures.by_context).filter(|bucket| bucket.steps > 0) {
            println!("up to {}: {} steps, gain {:.2}", bucket.up_to, bucket.steps, bucket.gain);
        }
        println!("{:?} {:?} late {}", now.step_times, now.memory, now.speculation.expect("counted").late);
    });
}
