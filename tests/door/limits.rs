//! Clients that do not read, and more sockets than descriptors: other clients are served as
//! without them.

#[cfg(target_os = "linux")]
use std::net::TcpStream;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::time::Duration;

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, generate_request::Prompt};
use paceline_tests::{Stack, chat, wait};
use prost::Message as _;
use tonic::Code;
use tonic::transport::Endpoint;

#[test]
fn a_client_that_never_reads_does_not_slow_seven_others() {
    let stack = Stack::ready("limits.unread_s = 2\nrouting.force = \"plain\"\n");
    let asks: Vec<_> =
        (0..7).map(|at| chat(&format!("Tell me about the number {at}.")).exactly(200)).collect();
    let alone: Vec<_> =
        asks.iter().map(|ask| stack.ask(ask.clone()).expect("served").ids).collect();

    // A client with a window of a few messages, which then reads none of them.
    let endpoint = Endpoint::from_shared(format!("http://{}", stack.address())).unwrap();
    let channel =
        stack.block_on(endpoint.initial_stream_window_size(4 << 10).connect()).expect("connects");
    let request = GenerateRequest {
        prompt: Some(Prompt::Text("Once upon a time".into())),
        limits: Some(Limits { max_tokens: Some(3_000), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    };
    let mut unread = stack
        .block_on(InferenceClient::new(channel).generate(request))
        .expect("begun")
        .into_inner();

    let running: Vec<_> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
    for (pending, alone) in running.into_iter().zip(alone) {
        let answer = pending.finish().expect("served beside one that does not read");
        assert_eq!(answer.ids, alone);
    }
    wait("the one that does not read to be let go of", || {
        let requests = stack.snapshot().expect("a supervisor").requests.unwrap_or_default();
        (requests.active == 0 && stack.held_bytes() == 0).then_some(())
    });
    // What was on its way is read, and then the status.
    let (mut bytes, mut ids) = (0, 0);
    let status = loop {
        match stack
            .block_on(async {
                tokio::time::timeout(Duration::from_secs(60), unread.message()).await
            })
            .expect("not hung")
        {
            Ok(Some(message)) => {
                (bytes, ids) = (bytes + message.encoded_len(), ids + message.token_ids.len())
            }
            Ok(None) => panic!("it ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::ResourceExhausted, Some(Reason::SlowReader)),
        "{status:?}"
    );
    assert!(bytes < 2 << 20 && ids < 3_000, "{bytes} bytes, {ids} ids");
    stack.stop();
}

/// Opens silent connections; they are closed by the service, or when this is dropped.
#[cfg(target_os = "linux")]
fn silent(stack: &Stack, count: usize) -> Vec<TcpStream> {
    // A full backlog makes a connect wait, so it has a bound. Connections that time out do not
    // count.
    let address = stack.address().parse().expect("an address");
    (0..count)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect()
}

#[cfg(target_os = "linux")]
#[test]
fn without_free_descriptors_running_streams_continue_and_new_clients_are_served_soon() {
    let stack = Stack::ready("");
    let mut live = stack.open(chat("Tell a long story.").exactly(600)).expect("served");
    live.read(1);
    let gateway = stack.pid("gateway");
    let limit = Command::new("prlimit")
        .args(["--pid", &gateway.to_string(), "--nofile=48:48"])
        .status()
        .expect("prlimit of util-linux");
    assert!(limit.success());
    let held = silent(&stack, 150);
    assert!(held.len() > 48, "{} connections", held.len());
    // A new client, while all of them are open: silent connections are closed for it.
    wait("a newcomer to be served", || {
        stack
            .paceline(&["generate", "--prompt", "Hi", "--max-tokens", "1"], "")
            .status
            .success()
            .then_some(())
    });
    assert_eq!(live.finish().expect("undisturbed").ids.len(), 600);
    drop(held);
    assert_eq!(stack.pid("gateway"), gateway);
    stack.stop();
}
