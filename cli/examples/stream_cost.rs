//! The cost of a stream beside the model: tokens per second at the client, and the time of a
//! message from the end of its step to the client (target → supervisor → gateway → client).
//!
//! `cargo run --release -p paceline-cli --example stream_cost -- ADDRESS PROMPTS.jsonl KIND
//! REQUESTS MAX_TOKENS [CONCURRENCY]` prints one JSON object. The clock of the stamps is that of
//! this machine: client and service must be on the same machine.

use std::sync::{Arc, Mutex};

use paceline_process::task;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ChatRequest, ContentPart, Limits, Message, content_part::Part};
use paceline_system::clock::monotonic_ns;
use serde_json::{Value, json};

/// One request as the client saw it.
struct StreamFigures {
    tokens: u64,
    first_ms: f64,
    tok_per_s: f64,
    hop_us: Vec<f64>,
}

async fn one(
    address: String,
    messages: Vec<Message>,
    max_tokens: u32,
) -> Result<StreamFigures, Box<dyn std::error::Error + Send + Sync>> {
    let mut client = InferenceClient::connect(address).await?;
    let limits =
        Some(Limits { max_tokens: Some(max_tokens), ignore_eos: true, ..Default::default() });
    let started_ns = monotonic_ns();
    let mut stream =
        client.chat(ChatRequest { messages, limits, ..ChatRequest::default() }).await?.into_inner();
    let (mut tokens, mut first_ns, mut last_ns, mut hop_us) = (0, None, 0, vec![]);
    while let Some(message) = stream.message().await? {
        let now_ns = monotonic_ns();
        if !message.token_ids.is_empty() {
            hop_us.push((now_ns - message.step_end_ns) as f64 / 1e3);
            first_ns.get_or_insert(now_ns);
            (tokens, last_ns) = (tokens + message.token_ids.len() as u64, now_ns);
        }
    }
    let first_ns = first_ns.ok_or("no token came")?;
    let decode_s = (last_ns - first_ns) as f64 / 1e9;
    Ok(StreamFigures {
        tokens,
        first_ms: (first_ns - started_ns) as f64 / 1e6,
        tok_per_s: (tokens - 1) as f64 / decode_s,
        hop_us,
    })
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

/// The conversations of a kind in a file of prompts.
fn read_prompts(
    path: &str,
    kind: &str,
) -> Result<Vec<Vec<Message>>, Box<dyn std::error::Error + Send + Sync>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut conversations = vec![];
    for line in std::fs::read_to_string(path)?.lines() {
        let prompt: Value = serde_json::from_str(line)?;
        if prompt["kind"] != kind {
            continue;
        }
        let turns = prompt["messages"].as_array().ok_or("messages")?;
        let message = |turn: &Value| Message {
            role: text(&turn["role"]),
            content: vec![ContentPart { part: Some(Part::Text(text(&turn["content"]))) }],
            ..Default::default()
        };
        conversations.push(turns.iter().map(message).collect());
    }
    Ok(conversations)
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, prompts, kind, requests, max_tokens, rest @ ..] = arguments.as_slice() else {
        return Err(
            "usage: stream_cost ADDRESS PROMPTS.jsonl KIND REQUESTS MAX_TOKENS [CONCURRENCY]"
                .into(),
        );
    };
    let (requests, max_tokens): (usize, u32) = (requests.parse()?, max_tokens.parse()?);
    let concurrency: usize = rest.first().map_or(Ok(1), |text| text.parse())?;
    let queue = read_prompts(prompts, kind)?;
    let address = format!("http://{address}");
    one(address.clone(), queue[0].clone(), max_tokens).await?; // warm-up
    let queue = Arc::new(Mutex::new(
        (0..requests).map(|at| queue[at % queue.len()].clone()).collect::<Vec<_>>(),
    ));
    let started_ns = monotonic_ns();
    let mut workers = vec![];
    for _ in 0..concurrency {
        let (queue, address) = (queue.clone(), address.clone());
        workers.push(task::spawn("client", async move {
            let mut seen = vec![];
            loop {
                let Some(messages) = queue.lock().expect("not poisoned").pop() else {
                    return Ok::<_, Box<dyn std::error::Error + Send + Sync>>(seen);
                };
                seen.push(one(address.clone(), messages, max_tokens).await?);
            }
        }));
    }
    let mut all = vec![];
    for worker in workers {
        all.extend(worker.await??);
    }
    let wall_s = (monotonic_ns() - started_ns) as f64 / 1e9;
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let hops = sorted(all.iter().flat_map(|seen| seen.hop_us.clone()).collect());
    let speeds = sorted(all.iter().map(|seen| seen.tok_per_s).collect());
    let firsts = sorted(all.iter().map(|seen| seen.first_ms).collect());
    let tokens: u64 = all.iter().map(|seen| seen.tokens).sum();
    println!(
        "{}",
        json!({
            "kind": kind, "concurrency": concurrency, "requests": all.len(), "tokens": tokens, "agg_tok_s": tokens as f64 / wall_s,
            "req_tok_s_median": at(&speeds, 0.5), "ttft_ms_p50": at(&firsts, 0.5),
            "hop_us_p50": at(&hops, 0.5), "hop_us_p99": at(&hops, 0.99), "messages": hops.len(),
        })
    );
    Ok(())
}
