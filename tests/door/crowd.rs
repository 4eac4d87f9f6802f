//! Connections, requests and answers that their clients leave lying: others are served as without
//! them.

use std::net::TcpStream;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, generate_request::Prompt};
use paceline_tests::{Stack, chat, images, wait};
use tonic::transport::Endpoint;

use crate::http2::{connect, frame, headers, send};

/// Connections of `limits.connections`.
const CONNECTIONS: usize = 512;
/// Requests inside the gateway at the default of `limits.queue`.
const REQUESTS: u32 = 256;
/// Requests of one connection (`limits.streams_per_connection`).
const REQUESTS_OF_ONE: u32 = 128;

/// This process has a socket for each, and the gateway too: it inherits the bound.
fn raise_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("known");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(4_096), hard).expect("raised");
}

#[test]
fn a_newcomer_is_served_beside_512_idle_connections_and_256_requests_without_a_message() {
    raise_descriptors();
    let stack = Stack::ready("");
    let address = stack.address();
    let mut held: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(&address)).collect();
    for stream in held.iter_mut().rev().take((REQUESTS / REQUESTS_OF_ONE) as usize) {
        let head = headers("/paceline.v1.Inference/Generate");
        let requests: Vec<u8> =
            (0..REQUESTS_OF_ONE).flat_map(|at| frame(1, 4, 2 * at + 1, &head)).collect();
        send(stream, &requests);
    }
    // A connection of its own.
    let output = stack.paceline(&["generate", "--prompt", "Hi", "--max-tokens", "4"], "");
    assert!(output.status.success(), "{output:?}");
    // And one that was there before all of them.
    stack.ask(chat("List three fruits.").max_tokens(4)).expect("served");
    drop(held);
    stack.stop();
}

/// Unread streams: more than sixteen, the windows that a connection between processes
/// once had.
const UNREAD: usize = 24;
/// Tokens of each. With 20 log-probabilities a place has about 200 bytes, and an answer about 280
/// KiB. That is more than a window of 4 KiB, the gateway's buffer of 64 KiB and 16 / 24 of a window
/// of 256 KiB together.
const TOKENS: u32 = 1_400;

#[test]
fn twenty_four_unread_streams_with_logprobs_do_not_stop_a_reader() {
    // The tiny model: its steps are short, and the streams are as long.
    let stack = images::seeing("limits.unread_s = 600\nrouting.force = \"plain\"\n");
    let endpoint =
        Endpoint::from_shared(format!("http://{}", stack.address())).expect("an address");
    let endpoint =
        endpoint.initial_stream_window_size(4 << 10).initial_connection_window_size(1 << 20);
    let mut client = InferenceClient::new(stack.block_on(endpoint.connect()).expect("connects"));
    let mut open = || {
        let request = GenerateRequest {
            prompt: Some(Prompt::Text("Once upon a time".into())),
            limits: Some(Limits {
                max_tokens: Some(TOKENS),
                ignore_eos: true,
                ..Default::default()
            }),
            logprobs: Some(20),
            ..Default::default()
        };
        stack.block_on(client.generate(request)).expect("begun").into_inner()
    };
    let unread: Vec<_> = (0..UNREAD).map(|_| open()).collect();
    // The target does not wait for readers: what is not read fills the windows, and the rest is
    // kept by the target.
    let all = UNREAD as u64 * u64::from(TOKENS - 1);
    for part in 1..=10 {
        let so_far = part * all / 10;
        wait("the unread answers to be made", || {
            (stack.target_stats().decode_tokens >= so_far).then_some(())
        });
    }
    let answer = stack
        .ask(chat("List three fruits.").exactly(20).with_logprobs(20))
        .expect("served beside them");
    assert_eq!(answer.ids.len(), 20);
    drop(unread);
    stack.wait_memory_back();
    stack.stop();
}
