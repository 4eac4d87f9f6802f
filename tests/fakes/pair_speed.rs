//! Two workers and the link, without gateway and supervisor: what a cycle costs and where its time goes.
//!
//! `cargo run --release -p paceline-tests --example pair_speed -- [prompts a kind] [runs]`

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use paceline_link::{SEGMENT_BYTES, handover, make_pair};
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{
    Generation, LinkPhase, Permit, SamplingRule, Stamp, StatsRequest, TargetGenerateRequest, TokenBatch, WatchRequest,
    WorkerPhase,
};
use paceline_proto::v1::{Lane, RouteReason, Speculation};
use serde_json::Value;
use tonic::transport::Channel;

const STAMP: Stamp = Stamp { term: 1, epoch: 1 };

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, dir: &Path, more: &[&str]) -> Reaped {
    let path = std::env::current_exe().expect("a path").parent().and_then(Path::parent).expect("target/x").join(program);
    let mut command = Command::new(path);
    command.args(["--epoch", "1", "--term", "1"]).args(more).stdin(Stdio::null());
    command.env("PACELINE_CONFIG", "").env("PACELINE_SUPERVISOR__RUNTIME_DIR", dir).env("PACELINE_LOG__LEVEL", "warn");
    if program.ends_with("drafter") {
        // As the supervisor gives them: half of two cores.
        command.env("OPENBLAS_NUM_THREADS", "1");
    }
    Reaped(command.spawn().expect("built"))
}

async fn ready(dir: &Path, name: &str) -> tonic::Streaming<paceline_proto::internal::v1::Heartbeat> {
    let mut client = WorkerClient::new(paceline_process::socket::channel(dir.join(format!("{name}.sock"))));
    let mut beats = loop {
        match client.watch(WatchRequest { stamp: Some(STAMP) }).await {
            Ok(beats) => break beats.into_inner(),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    while beats.message().await.expect("beats").expect("goes on").phase() == WorkerPhase::Loading {}
    beats
}

struct Run {
    ids: Vec<u32>,
    ttft_ms: f64,
    decode_ms: f64,
    speculation: Speculation,
}

async fn run(client: &TargetClient<Channel>, generation: Generation, lane: Lane) -> Run {
    let permit = Permit { lane_allowed: lane.into(), max_draft: 15, reason: RouteReason::Prior.into(), policy_epoch: 0 };
    let request = TargetGenerateRequest { stamp: Some(STAMP), generation: Some(generation), permit: Some(permit) };
    let begin = paceline_process::clock::monotonic_ns();
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
fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (per_kind, runs) = (arguments.next().unwrap_or(3), arguments.next().unwrap_or(3));
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = tempfile::Builder::new().prefix("pp").tempdir_in("/tmp").expect("a directory");
    let _target = start("paceline-target", dir.path(), &[]);
    let drafter_dir = repository.join("demo/drafter").display().to_string();
    let _drafter = start("paceline-drafter", dir.path(), &["--model", &drafter_dir]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tokenizer = tokenizers(&repository);
    runtime.block_on(async {
        let mut beats = ready(dir.path(), "target").await;
        let _other = ready(dir.path(), "drafter-0").await;
        let pair = make_pair(SEGMENT_BYTES).expect("a pair");
        for (name, end) in [("target", &pair.target), ("drafter-0", &pair.drafter)] {
            let path = dir.path().join(format!("{name}.link.sock"));
            let (end, segment) = (end.as_fd(), pair.segment.as_fd());
            handover::send(&path, STAMP, 1, end, segment, SEGMENT_BYTES, Duration::from_secs(5)).expect("handed over");
        }
        drop(pair);
        loop {
            let beat = beats.message().await.expect("beats").expect("goes on");
            match beat.link.expect("reported") {
                link if link.phase() == LinkPhase::Up => break,
                link if link.phase() == LinkPhase::Refused => panic!("{link:?}"),
                _ => {}
            }
        }
        let client = TargetClient::new(paceline_process::socket::channel(dir.path().join("target.sock")));
        let mut number = 0;
        for kind in ["json", "arithmetic", "code", "table", "facts", "prose"] {
            let (mut plain, mut fast, mut ttft, mut cycle) = (vec![], vec![], vec![], vec![]);
            let mut total = Speculation::default();
            for (prompt, max_tokens) in tokenizer.iter().filter(|p| p.0 == kind).take(per_kind).map(|p| (&p.1, p.2)) {
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

/// Kind, ids and tokens at most of every embedded prompt, from the golden file, which has them tokenized.
fn tokenizers(repository: &Path) -> Vec<(String, Vec<u32>, u32)> {
    let text = std::fs::read_to_string(repository.join("demo/golden.json")).expect("in the repository");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let cases = golden["cases"].as_array().expect("cases");
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).expect("ids");
    cases
        .iter()
        .map(|case| {
            let count = case["max_tokens"].as_u64().unwrap_or(200) as u32;
            (case["kind"].as_str().unwrap_or_default().to_owned(), ids(&case["prompt"]), count)
        })
        .collect()
}
