//! The engine protocol of routers on real processes: the same tokens as for our own client, also when
//! workers are killed, and what the protocol costs. `tests/routers` has the routers themselves.

use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_proto::vllm::grpc::engine::vllm_engine_client::VllmEngineClient;
use paceline_tests::{Stack, continue_ids, signal, wait};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Response, Streaming};
use vllm::generate_request::Input;
use vllm::generate_response::Response as Message;

/// Settings of a service without a drafter.
const ALONE: &str = "drafter.model = \"\"\n";

fn client(stack: &Stack) -> VllmEngineClient<Channel> {
    VllmEngineClient::new(stack.channel())
}

/// Ids of the demo's vocabulary, of any meaning: the answers have a fixed length.
fn prompt() -> Vec<u32> {
    vec![1, 300, 301, 302, 303, 304, 305, 306]
}

/// A greedy answer of exactly this many tokens.
fn request(name: &str, tokens: u32) -> vllm::GenerateRequest {
    let tokenized = vllm::TokenizedInput { original_text: String::new(), input_ids: prompt() };
    let sampling_params = vllm::SamplingParams {
        temperature: Some(0.0),
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Default::default()
    };
    vllm::GenerateRequest {
        request_id: name.into(),
        input: Some(Input::Tokenized(tokenized)),
        sampling_params: Some(sampling_params),
        stream: true,
        ..Default::default()
    }
}

/// An answer that is read.
struct Answering<'a> {
    stack: &'a Stack,
    stream: Streaming<vllm::GenerateResponse>,
    ids: Vec<u32>,
    messages: usize,
}

impl<'a> Answering<'a> {
    fn begin(stack: &'a Stack, request: vllm::GenerateRequest) -> Self {
        let mut client = client(stack);
        let begun = stack.block_on(client.generate(request)).map(Response::into_inner);
        Self { stack, stream: begun.expect("served"), ids: Vec::new(), messages: 0 }
    }

    /// Reads until there are this many tokens.
    fn read(&mut self, tokens: usize) {
        let stack = self.stack;
        stack.block_on(async {
            while self.ids.len() < tokens {
                assert!(self.next().await.is_none(), "it ended after {} tokens", self.ids.len());
            }
        });
    }

    /// The next message; the end, if it is the end.
    async fn next(&mut self) -> Option<vllm::GenerateComplete> {
        let message = self.stream.message().await;
        self.messages += 1;
        match message.expect("no error").expect("no end without its message").response {
            Some(Message::Chunk(chunk)) => {
                self.ids.extend(chunk.token_ids);
                None
            }
            Some(Message::Complete(end)) => Some(end),
            None => panic!("an empty message"),
        }
    }

    /// Reads to the end.
    fn finish(mut self) -> (Vec<u32>, vllm::GenerateComplete, usize) {
        let stack = self.stack;
        stack.block_on(async {
            loop {
                if let Some(end) = self.next().await {
                    return (self.ids, end, self.messages);
                }
            }
        })
    }
}

fn finished(stack: &Stack, request: vllm::GenerateRequest) -> (Vec<u32>, vllm::GenerateComplete) {
    let (ids, end, _) = Answering::begin(stack, request).finish();
    (ids, end)
}

#[test]
fn a_routers_stream_has_the_tokens_of_our_own_client_and_outlives_the_workers() {
    let stack = Stack::drafting("");
    let expected = stack.ask(continue_ids(&prompt()).exactly(400)).expect("served").ids;
    let (ids, end) = finished(&stack, request("undisturbed", 400));
    assert_eq!((ids, end.finish_reason.as_str()), (expected.clone(), "length"));
    assert_eq!(end.prompt_tokens as usize, prompt().len());
    assert!(end.spec_draft_tokens > 0, "the drafter is linked: {end:?}");
    for worker in ["drafter", "target"] {
        let mut answering = Answering::begin(&stack, request(worker, 400));
        answering.read(20);
        signal(stack.pid(worker), Signal::SIGKILL);
        let (ids, end, _) = answering.finish();
        assert_eq!((ids, end.finish_reason.as_str()), (expected.clone(), "length"), "{worker}");
        stack.wait_linked();
    }
    stack.drafter(&["stop"]);
    let (ids, end) = finished(&stack, request("plain", 400));
    assert_eq!((ids, end.spec_draft_tokens), (expected, 0));
    stack.stop();
}

fn is_idle(status: &Value) -> bool {
    status["requests"]["active"] == 0 && status["kv"]["held_bytes"] == 0
}

#[test]
fn an_abort_and_a_router_that_leaves_free_the_memory() {
    let stack = Stack::ready(ALONE);
    for aborts in [true, false] {
        let mut answering = Answering::begin(&stack, request("r", 3_000));
        answering.read(3);
        if aborts {
            let order = vllm::AbortRequest { request_ids: vec!["r".into()] };
            stack.block_on(client(&stack).abort(order)).expect("answered");
            let (_, end, _) = answering.finish();
            assert_eq!(end.finish_reason, "abort");
        } else {
            drop(answering);
        }
        stack.wait_status("free memory", is_idle);
    }
    stack.stop();
}

#[test]
fn a_node_with_a_full_model_reports_what_runs_and_what_waits() {
    let stack = Stack::ready(&format!("{ALONE}target.max_sequences = 1\n"));
    let mut running = Answering::begin(&stack, request("first", 3_000));
    running.read(3);
    let waiting = client(&stack);
    let asked = stack.start(continue_ids(&prompt()).exactly(4));
    let load = || {
        let loads = stack.block_on(waiting.clone().get_loads(vllm::GetLoadsRequest::default()));
        loads.expect("answered").into_inner().loads.remove(0)
    };
    let load = wait("a request that waits", || {
        let load = load();
        let is_full = load.num_running_reqs == 1 && load.num_waiting_reqs == 1;
        (is_full && load.num_used_tokens > 0).then_some(load)
    });
    assert_eq!((load.max_running_requests, load.num_total_reqs), (1, 2));
    assert_eq!(load.num_waiting_uncached_tokens as usize, prompt().len());
    assert!(load.token_usage > 0.0 && load.token_usage < 1.0, "{load:?}");
    assert!(load.max_total_num_tokens > load.num_used_tokens, "{load:?}");
    let order = vllm::AbortRequest { request_ids: vec!["first".into()] };
    stack.block_on(client(&stack).abort(order)).expect("answered");
    asked.finish().expect("served");
    stack.stop();
}

/// Time that all threads of a process have run.
fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let of_task = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    let ns: u64 = tasks.flatten().map(|task| of_task(task.path())).sum();
    Duration::from_nanos(ns)
}

/// Streams of a round in each protocol.
const STREAMS: u32 = 3;
const TOKENS: u32 = 500;
const ROUNDS: usize = 7;

/// The adapter's own cost: the gateway's time for a message in this protocol, less that for one of
/// our own.
#[test]
#[ignore = "soak: a figure of time"]
fn the_adapter_costs_at_most_30_us_a_message() {
    let stack = Stack::ready(ALONE);
    let gateway = stack.pid("gateway");
    let timed = |run: &dyn Fn() -> usize| {
        let (before, mut messages) = (cpu(gateway), 0);
        for _ in 0..STREAMS {
            messages += run();
        }
        (cpu(gateway) - before).as_secs_f64() * 1e6 / messages as f64
    };
    let ours = || {
        let answer = stack.ask(continue_ids(&prompt()).exactly(TOKENS)).expect("served");
        answer.messages
    };
    let engine = || Answering::begin(&stack, request("r", TOKENS)).finish().2;
    let mut figures: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (timed(&ours), timed(&engine))).collect();
    figures.sort_by(|one, other| (one.1 - one.0).total_cmp(&(other.1 - other.0)));
    let (ours, engine) = figures[ROUNDS / 2];
    println!("gateway's CPU time a message: ours {ours:.1} us, engine {engine:.1} us; {figures:?}");
    assert!(engine - ours <= 30.0, "{figures:?}");
    stack.stop();
}
