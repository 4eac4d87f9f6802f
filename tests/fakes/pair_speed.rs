//! Two workers and the link, without gateway and supervisor: what a cycle costs and where its time
//! goes.
//!
//! `cargo run --release -p paceline-tests --example pair_speed -- [prompts a kind] [runs]`

mod pair;

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{
    Generation, Permit, SamplingRule, StatsRequest, TargetGenerateRequest, TokenBatch,
};
use paceline_proto::v1::{Lane, RouteReason, Speculation};
use tonic::transport::Channel;

use pair::{Pair, STAMP};

struct Run {
    ids: Vec<u32>,
    ttft_ms: f64,
    decode_ms: f64,
    speculation: Speculation,
}

async fn run(client: &TargetClient<Channel>, generation: Generation, lane: Lane) -> Run {
    let permit = Permit {
        lane_allowed: lane.into(),
        max_draft: 15,
        reason: RouteReason::Forced.into(),
        policy_epoch: 0,
    };
    let request = TargetGenerateRequest {
        stamp: Some(STAMP),
        generation: Some(generation),
        permit: Some(permit),
    };
    let begin = paceline_system::clock::monotonic_ns();
    let mut stream = client.clone().generate(request).await.expect("served").into_inner();
    let mut batches: Vec<TokenBatch> = vec![];
    while let Some(batch) = stream.message().await.expect("goes on") {
        batches.push(batch);
    }
    let (first, last) = (batches[0].step_end_ns, batches[batches.len() - 1].step_end_ns);
    Run {
        ids: batches.iter().flat_map(|batch| batch.ids.clone()).collect(),
        ttft_ms: (first - begin) as f64 / 1e6,
        decode_ms: (last - first) as f64 / 1e6,
        speculation: batches[batches.len() - 1].done.expect("an end").speculation.expect("counted"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
// More than 60 lines: a tool's steps in order, with nothing to share.
fn main() {
    let mut arguments =
        std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (per_kind, runs) = (arguments.next().unwrap_or(3), arguments.next().unwrap_or(3));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let prompts = pair::prompts();
    runtime.block_on(async {
        let pair = Pair::start().await;
        let client = pair.client.clone();
        let mut number = 0;
        for kind in ["json", "arithmetic", "code", "table", "facts", "prose"] {
            let (mut plain, mut fast, mut ttft, mut cycle) = (vec![], vec![], vec![], vec![]);
            let mut total = Speculation::default();
            for (prompt, max_tokens) in prompts.iter().filter(|p| p.0 == kind).take(per_kind).map(|p| (&p.1, p.2)) {
                for _ in 0..runs {
                    let mut ask = |lane| {
                        number += 1;
                        let generation = Generation {
                            request_id: format!("r{number}"),
                            prompt_ids: prompt.clone(),
                            sampling: Some(SamplingRule { top_p: 1.0, repetition_penalty: 1.0, ..SamplingRule::default() }),
                            max_tokens,
                            stop_token_ids: vec![2],
                            tokenizer_vocab: 4096,
                            ..Generation::default()
                        };
                        run(&client, generation, lane)
                    };
                    let a = ask(Lane::Plain).await;
                    let b = ask(Lane::Speculative).await;
                    assert_eq!(a.ids, b.ids);
                    plain.push((a.ids.len() - 1) as f64 / a.decode_ms * 1e3);
                    fast.push((b.ids.len() - 1) as f64 / b.decode_ms * 1e3);
                    ttft.push(b.ttft_ms / a.ttft_ms);
                    cycle.push(b.decode_ms / b.speculation.cycles.max(1) as f64);
                    total.cycles += b.speculation.cycles;
                    total.accepted += b.speculation.accepted;
                    total.drafted += b.speculation.drafted;
                }
            }
            let (plain, fast) = (median(plain), median(fast));
            println!(
                "{kind:11} plain {plain:6.0} tok/s  drafted {fast:6.0} tok/s  {:4.2}x  {:5.2} tokens a cycle of {:5.2} ms  ttft {:4.2}x",
                fast / plain,
                (total.accepted + total.cycles) as f64 / total.cycles.max(1) as f64,
                median(cycle),
                median(ttft),
            );
        }
        for length in [512, 2000] {
            let (mut plain, mut fast) = (vec![], vec![]);
            for at in 0..3 * runs as u32 {
                let mut ask = |lane| {
                    number += 1;
                    let generation = Generation {
                        request_id: format!("r{number}"),
                        prompt_ids: (0..length).map(|i| 4 + (i * 7 + at * 13) % 4000).collect(),
                        sampling: Some(SamplingRule { top_p: 1.0, repetition_penalty: 1.0, ..SamplingRule::default() }),
                        max_tokens: 8,
                        ..Generation::default()
                    };
                    run(&client, generation, lane)
                };
                // Which goes first changes: the second finds the caches warm.
                let (a, b) = match at % 2 {
                    0 => (ask(Lane::Plain).await, ask(Lane::Speculative).await),
                    _ => {
                        let b = ask(Lane::Speculative).await;
                        (ask(Lane::Plain).await, b)
                    }
                };
                plain.push(a.ttft_ms);
                fast.push(b.ttft_ms);
            }
            let (plain, fast) = (median(plain), median(fast));
            println!("prompt of {length:4}: first token after {plain:.1} ms plain, {fast:.1} ms with the drafter, {:.3}x", fast / plain);
        }
        let stats = client.clone().stats(StatsRequest { stamp: Some(STAMP) }).await.expect("answers").into_inner();
        let total = stats.now.expect("figures").speculation.expect("counted");
        println!("{total:?}, {} bytes over the link a cycle", total.link_bytes / total.cycles.max(1));
    });
}
