//! A large answer that is not streamed, at the program itself: it takes a few times its text.

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]

use std::path::Path;

use crate::stage::http::{CHAT, COMPLETIONS, HttpClient};
use crate::stage::program::Program;
use crate::stage::supervisor::{Fake, Submission};
use crate::stage::within;
use http::StatusCode;
use paceline_process::task;
use paceline_proto::internal::v1::{Done, TokenBatch};
use paceline_proto::v1::{FinishReason, TokenLogprobs, TopLogprob};
use serde_json::{Value, json};

/// Tokens of each sample. Two samples have 84,000 log-probabilities, 4 MiB of text.
const TOKENS: u32 = 2_000;
/// Memory that an answer may add: 5 MiB were measured. As one JSON value it would be 80 MiB.
const MAX_ADDED: u64 = 16 << 20;

/// Answers with [`TOKENS`] tokens, each with 20 alternatives.
async fn answer(submission: Submission) {
    let mut accepted = submission.accept();
    let top = |token_id| TopLogprob { token_id, logprob: -1.5 };
    let one = TokenLogprobs { logprob: -0.5, top: (300..320).map(top).collect() };
    for at in (0..TOKENS).step_by(16) {
        let done = Done { finish_reason: FinishReason::Length as i32, ..Default::default() };
        let batch = TokenBatch {
            first_index: at,
            ids: vec![300; 16],
            logprobs: vec![one.clone(); 16],
            done: (at + 16 == TOKENS).then_some(done),
            ..Default::default()
        };
        accepted.send(batch).await;
    }
}

/// The program before a supervisor that answers every request so.
async fn serving(dir: &Path) -> (Program, HttpClient) {
    let run = dir.join("run");
    paceline_process::runtime_dir::private_dir(&run).expect("made");
    let mut fake = Fake::start(&run.join("supervisor.sock"), 1);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let program = Program::start(dir, &demo);
    let client = HttpClient::new(program.http);
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(crate::stage::ready()).await;
    task::spawn("supervisor", async move {
        let _reports = task::spawn("reports", attachment.read_on());
        while let Some(submission) = fake.submissions.recv().await {
            task::spawn("answer", answer(submission));
        }
    });
    // The gateway serves once it knows the supervisor's state.
    within(async {
        while client.get("/health").await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    (program, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_of_many_log_probabilities_takes_a_few_times_its_text() {
    let chat = json!({
        "model": "m", "messages": [{ "role": "user", "content": "Hi" }], "n": 2,
        "logprobs": true, "top_logprobs": 20, "max_tokens": TOKENS,
    });
    let completion =
        json!({ "model": "m", "prompt": "Hi", "n": 2, "logprobs": 20, "max_tokens": TOKENS });
    for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (program, client) = serving(dir.path()).await;
        let before = program.memory("VmRSS");
        let reply = within(client.post(path, &body)).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {reply:?}");
        let text = reply.body.len();
        assert_eq!(reply.header("content-length"), Some(text.to_string().as_str()));
        for choice in reply.json()["choices"].as_array().expect("a list") {
            let logprobs = &choice["logprobs"];
            let list = [&logprobs["content"], &logprobs["top_logprobs"]].map(Value::as_array);
            let list = list.into_iter().flatten().next().expect("a list");
            assert_eq!(list.len(), TOKENS as usize, "{path}");
        }
        let added = program.memory("VmHWM").saturating_sub(before);
        eprintln!("{path}: {} KiB of text, {} KiB of memory", text >> 10, added >> 10);
        assert!(added <= MAX_ADDED, "{path}: {} MiB more than before", added >> 20);
    }
}
