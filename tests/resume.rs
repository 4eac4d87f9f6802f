//! Streams that go on after a process below the gateway has ended: the client gets a pause, and the
//! tokens of an undisturbed run.

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::grammar::Kind;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{self, Grammar};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Live, Stack, chat, continue_text, images, share, signal, wait};
use serde_json::{Value, json};
use tonic::Code;

/// A budget of restarts that these tests do not use up, and a queue that waits for a slow machine.
const MANY_LIVES: &str =
    "supervisor.restarts = 100000\nsupervisor.lease_s = 30\nlimits.queue_wait_s = 60\n";
/// Streams at once.
const STREAMS: usize = 8;
/// Tokens of a stream: long enough that all of them run when a process is killed.
const TOKENS: u32 = 300;

fn drafting() -> Stack {
    Stack::drafting(MANY_LIVES)
}

/// Requests of different prompts, greedy and seeded in turn.
fn asks() -> Vec<Ask> {
    let prompts = some_of_each(2).into_iter().take(STREAMS).enumerate();
    let ask = |(at, prompt): (usize, paceline_tests::prompts::Prompt)| {
        prompt.sampled((at % 2 == 1).then_some(7 + at as u64)).exactly(TOKENS).with_margins()
    };
    prompts.map(ask).collect()
}

/// Answers of an undisturbed service.
fn undisturbed(stack: &Stack, asks: &[Ask]) -> Vec<Answer> {
    let all: Vec<_> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
    all.into_iter().map(|one| one.finish().expect("served")).collect()
}

/// Opens all requests and reads the beginning of each answer.
fn running(stack: &Stack, asks: &[Ask]) -> Vec<Live> {
    let open = |ask: &Ask| stack.open(ask.clone()).expect("served");
    let mut streams: Vec<Live> = asks.iter().map(open).collect();
    streams.iter_mut().for_each(|stream| stream.read(3));
    streams
}

/// Checks that answers are those of the undisturbed run; returns how often a stream was resumed.
fn completed(streams: Vec<Live>, expected: &[Answer], what: &str) -> u32 {
    let (mut resumed, mut near_ties) = (0, 0);
    // All are read at once: one that is not read holds back none of the others.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(|| stream.finish())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for (at, (answer, expected)) in answers.into_iter().zip(expected).enumerate() {
        let answer = answer.unwrap_or_else(|status| panic!("{what}, stream {at}: {status:?}"));
        same_but_near_ties(expected, &answer, &format!("{what}, stream {at}"), &mut near_ties);
        let (usage, whole) = (answer.usage(), expected.usage());
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (whole.prompt_tokens, whole.completion_tokens),
            "{what}, stream {at}"
        );
        assert_eq!(answer.end.finish_reason, expected.end.finish_reason, "{what}, stream {at}");
        resumed += answer.end.resumed;
    }
    resumed
}

fn kill(stack: &Stack, process: &str) {
    signal(stack.pid(process), Signal::SIGKILL);
}

/// Waits until the target of the next life serves.
fn replaced(stack: &Stack, before: u32) {
    stack.wait_status("another target", |status| {
        status["target"]["state"] == "ready" && status["target"]["pid"] != before
    });
}

#[test]
fn streams_go_on_after_a_killed_target() {
    let stack = drafting();
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let mut resumed = 0;
    for round in 0..share::of(200).max(5) {
        let streams = running(&stack, &asks);
        let before = stack.pid("target");
        kill(&stack, "target");
        resumed += completed(streams, &expected, &format!("round {round}"));
        replaced(&stack, before);
        stack.wait_linked();
    }
    // In some round all streams may have ended before the kill.
    assert!(resumed > 0, "no stream ran when the target was killed");
    wait("all memory to be given back", || (stack.held_bytes() == 0).then_some(()));
    let text = stack.http_get("/metrics").expect("served").body;
    let line = text.lines().find(|line| line.starts_with("paceline_resumed_total"));
    let count: u32 = line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a metric");
    assert_eq!(count, resumed, "{text}");
    stack.stop();
}

#[test]
fn streams_go_on_after_a_killed_supervisor_with_the_same_target() {
    let stack = drafting();
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let (target, mut resumed) = (stack.pid("target"), 0);
    for round in 0..share::of(50).max(2) {
        let streams = running(&stack, &asks);
        kill(&stack, "supervisor");
        resumed += completed(streams, &expected, &format!("round {round}"));
        stack.wait_linked();
        assert_eq!(stack.pid("target"), target, "round {round}: the weights are loaded once");
    }
    assert!(resumed > 0, "no stream ran when the supervisor was killed");
    stack.stop();
}

#[test]
fn an_operators_restart_of_the_target_loses_no_stream() {
    let stack = drafting();
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    for round in 0..share::of(20).max(5) {
        let streams = running(&stack, &asks);
        let output = stack.paceline(&["restart", "target"], "");
        assert!(output.status.success(), "{output:?}");
        completed(streams, &expected, &format!("round {round}"));
        stack.wait_linked();
    }
    let streams = running(&stack, &asks);
    let output = stack.paceline(&["restart", "supervisor"], "");
    assert!(output.status.success(), "{output:?}");
    completed(streams, &expected, "restart of the supervisor");
    let status = stack.wait_linked();
    for process in ["target", "supervisor", "gateway"] {
        assert_eq!(status[process]["restarts"], 0, "{process}: an operator asked for it");
    }
    stack.stop();
}

#[test]
fn a_request_that_arrives_without_a_target_waits_for_it() {
    let stack = drafting();
    let ask = chat("List three fruits.").max_tokens(8);
    let expected = stack.ask(ask.clone()).expect("served");
    for _ in 0..3 {
        let before = stack.pid("target");
        kill(&stack, "target");
        let answer = stack.ask(ask.clone()).expect("it waits");
        assert_eq!(answer.ids, expected.ids);
        replaced(&stack, before);
    }
    stack.stop();
}

/// One request of each kind that has state beyond its ids.
fn kinds() -> Vec<(&'static str, Ask)> {
    let story = || chat("Tell a long story.").exactly(200);
    let with = |mut ask: Ask, change: fn(&mut v1::Sampling)| {
        change(ask.sampling());
        ask
    };
    let penalties: fn(&mut v1::Sampling) = |sampling| {
        sampling.repetition_penalty = Some(1.2);
        sampling.presence_penalty = Some(0.5);
        sampling.frequency_penalty = Some(0.25);
    };
    let mut stopped = chat("Tell a long story.").max_tokens(300);
    stopped.limits().stop = vec!["zzzz".into()];
    let mut held = continue_text("Words: ").max_tokens(200);
    if let Ask::Continue(request) = &mut held {
        request.grammar = Some(Grammar { kind: Some(Kind::Regex("([a-z]{3} ){40}".into())) });
    }
    vec![
        ("greedy", story()),
        ("sampled", story().sampled(0.9, 0.9, 42)),
        ("penalties", with(story().sampled(0.8, 1.0, 5), penalties)),
        ("stop strings", stopped),
        ("log-probabilities", story().with_logprobs(3)),
        ("a grammar", held),
    ]
}

#[test]
fn every_kind_of_request_is_the_same_after_a_kill() {
    let stack = drafting();
    for (kind, ask) in kinds() {
        let ask = ask.with_margins();
        let expected = stack.ask(ask.clone()).unwrap_or_else(|status| panic!("{kind}: {status:?}"));
        let length = expected.ids.len();
        for round in 0..share::of(20).max(2) {
            // Another stream runs beside it, so that no end of the target counts against it.
            let other = stack.open(chat("Count to ten.").exactly(TOKENS)).expect("served");
            let mut stream = stack.open(ask.clone()).expect("served");
            stream.read(1 + (round * 37 + length / 3) % (length / 2).max(1));
            let before = stack.pid("target");
            kill(&stack, "target");
            let answer = stream.finish().unwrap_or_else(|status| panic!("{kind}: {status:?}"));
            let what = format!("{kind}, round {round}");
            same_but_near_ties(&expected, &answer, &what, &mut 0);
            assert_eq!(answer.text, expected.text, "{what}");
            assert_eq!(answer.logprobs, expected.logprobs, "{what}");
            assert_eq!(answer.end.stop, expected.end.stop, "{what}");
            assert_eq!(answer.usage().completion_tokens, length as u32, "{what}");
            other.finish().unwrap_or_else(|status| panic!("{what}, beside it: {status:?}"));
            replaced(&stack, before);
        }
    }
    stack.stop();
}

/// The text of each of three samples. `begun` runs once all have begun.
fn samples_of(stack: &Stack, ask: &Ask, begun: impl Fn()) -> [String; 3] {
    let Ask::Chat(request) = ask.clone() else { panic!("a conversation was meant") };
    let (mut all, mut has_begun) = (<[String; 3]>::default(), false);
    stack.block_on(async {
        let mut client = InferenceClient::new(stack.channel());
        let mut stream = client.chat(request).await.expect("served").into_inner();
        while let Some(message) = stream.message().await.expect("it goes on") {
            all[message.sample_index as usize].push_str(&message.text);
            if !has_begun && all.iter().all(|text| !text.is_empty()) {
                begun();
                has_begun = true;
            }
        }
    });
    all
}

#[test]
fn samples_and_images_go_on_after_a_kill() {
    let stack = images::seeing_and_drafting(MANY_LIVES);
    let image = images::about(images::noise(96, 64, 2), "What is it?").exactly(300);
    let ask = image.with_margins();
    let expected = stack.ask(ask.clone()).expect("served");
    let mut other = stack.open(chat("Count to ten.").exactly(TOKENS)).expect("served");
    let mut stream = stack.open(ask).expect("served");
    stream.read(5);
    other.read(3);
    let before = stack.pid("target");
    kill(&stack, "target");
    let answer = stream.finish().expect("it goes on");
    same_but_near_ties(&expected, &answer, "an image", &mut 0);
    other.finish().expect("it goes on");
    replaced(&stack, before);
    wait("no image's file to be left", || images::waiting(&stack).is_empty().then_some(()));

    let samples = chat("Tell a long story.").exactly(150).sampled(0.9, 1.0, 3).samples(3);
    let expected = samples_of(&stack, &samples, || ());
    let before = stack.pid("target");
    assert_eq!(samples_of(&stack, &samples, || kill(&stack, "target")), expected);
    replaced(&stack, before);
    stack.stop();
}

/// The answer's content in each protocol of HTTP, and its number of tokens.
fn http_requests() -> [(&'static str, Value, [&'static str; 2]); 3] {
    let turn = json!([{"role": "user", "content": "Tell a long story."}]);
    [
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": turn, "max_tokens": 500, "ignore_eos": true, "temperature": 0}),
            ["/choices/0/message", "/usage/completion_tokens"],
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": turn, "max_output_tokens": 500, "temperature": 0}),
            ["/output/0/content", "/usage/output_tokens"],
        ),
        (
            "/v1/messages",
            json!({"model": "m", "messages": turn, "max_tokens": 500, "temperature": 0}),
            ["/content", "/usage/output_tokens"],
        ),
    ]
}

#[test]
fn no_protocol_of_http_shows_a_seam() {
    let stack = drafting();
    let json = "content-type: application/json\r\n";
    let post = |path: &str, body: &Value| {
        let answer = stack.http_post(path, json, &body.to_string()).expect("an answer");
        assert_eq!(answer.status(), 200, "{path}: {answer:?}");
        serde_json::from_str::<Value>(&answer.body).expect("an object")
    };
    for (path, body, shown) in http_requests() {
        let expected = post(path, &body);
        for process in ["target", "supervisor"] {
            let (pid, target) = (stack.pid(process), stack.pid("target"));
            let answer = std::thread::scope(|scope| {
                let answer = scope.spawn(|| post(path, &body));
                wait("the request to run", || {
                    let requests = stack.snapshot().ok()?.requests?;
                    (requests.active == 1 || answer.is_finished()).then_some(())
                });
                signal(pid, Signal::SIGKILL);
                answer.join().expect("served")
            });
            for pointer in shown {
                assert!(expected.pointer(pointer).is_some(), "{path} has no {pointer}: {expected}");
                assert_eq!(
                    answer.pointer(pointer),
                    expected.pointer(pointer),
                    "{path}, {process} killed: {pointer}"
                );
            }
            if process == "target" {
                replaced(&stack, target);
            }
            stack.wait_linked();
        }
    }
    stack.stop();
}

#[test]
fn a_request_at_which_the_target_ends_twice_is_refused_and_the_others_complete() {
    let stack = drafting();
    let poison = chat("Tell a long story.").exactly(3_000);
    let mut stream = stack.open(poison.clone()).expect("served");
    for _ in 0..2 {
        let tokens = stream.so_far.ids.len();
        stream.read(tokens + 3);
        let before = stack.pid("target");
        kill(&stack, "target");
        replaced(&stack, before);
    }
    for outcome in [stream.finish().map(|_| ()), stack.ask(poison).map(|_| ())] {
        let status = outcome.expect_err("it may be what ends the target");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::Internal, Some(Reason::PoisonSuspect)),
            "{status:?}"
        );
    }
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let streams = running(&stack, &asks);
    kill(&stack, "target");
    completed(streams, &expected, "after a suspect");
    stack.stop();
}
