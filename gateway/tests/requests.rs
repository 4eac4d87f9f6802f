//! Requests through a gateway with a scripted supervisor behind it.

use std::time::Duration;

use paceline_gateway::front::grpc::status::REQUEST_ID;
use paceline_proto::internal::v1::TokenBatch;
use paceline_proto::status::{PUSHBACK, Reason, ReasonStatus as _, Refusal};
use paceline_proto::v1;
use paceline_system::clock::monotonic_ns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use crate::stage::supervisor::{Accepted, Fake};
use crate::stage::{Stage, chat, ids, is, limited, ready, text, within};

/// "Hello" in the demo vocabulary is not needed: any ids will do where text is not looked at.
const ANY: &[u32] = &[300, 301];

#[tokio::test]
async fn a_grammar_goes_to_the_supervisor_with_the_ids_that_end_the_answer() {
    use paceline_proto::internal::v1::{Grammar, GrammarPart, grammar_part::Content};
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut client = stage.client.clone();
    let kind = Some(v1::grammar::Kind::Regex("a+/b".into()));
    let request = v1::ChatRequest { grammar: Some(v1::Grammar { kind }), ..chat("Hi") };
    let asked = paceline_process::task::spawn("chat", async move { client.chat(request).await });
    let submission = fake.submission().await;
    let part = GrammarPart {
        field: "grammar.regex".into(),
        lenient: false,
        content: Some(Content::Regex("a+/b".into())),
    };
    let Grammar { frame, parts, end_ids } = submission.generation().grammar.clone().expect("sent");
    assert!(frame.starts_with("start: @part_0\n"), "{frame}");
    assert_eq!((parts, end_ids), (vec![part], vec![2]));
    let accepted = submission.accept();
    let _over = accepted.done(&[2]).await;
    within(asked).await.expect("no panic").expect("answered");
}

#[tokio::test]
async fn a_conversation_is_answered() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut client = stage.client.clone();
    let asked = paceline_process::task::spawn("chat", async move { client.chat(chat("Hi")).await });
    let submission = fake.submission().await;
    let stamp = submission.request.stamp.expect("always set");
    assert_eq!((stamp.term, stamp.epoch), (1, 7));
    let generation = submission.generation().clone();
    let language = paceline_text::prompt::Language::read(&demo()).expect("in the repository");
    let prompt = language
        .tokens
        .encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", false)
        .expect("encodes");
    assert_eq!(generation.prompt_ids, prompt);
    assert_eq!(
        (generation.stop_token_ids.as_slice(), generation.tokenizer_vocab),
        (&[2][..], 4096)
    );
    assert_eq!(generation.max_tokens, 4096 - prompt.len() as u32);

    let answer = language.tokens.encode("Grüße 🦀!", false).expect("encodes");
    let (head, tail) = answer.split_at(answer.len() - 2);
    let mut accepted = submission.accept();
    accepted.tokens(head).await;
    let response = within(asked).await.expect("no panic").expect("answered");
    let named =
        response.metadata().get(REQUEST_ID).expect("named").to_str().expect("text").to_owned();
    assert_eq!(named, generation.request_id);
    let mut stream = response.into_inner();
    let over = accepted.done(&[tail, &[2]].concat()).await;

    let mut messages = Vec::new();
    while let Some(message) = within(stream.message()).await.expect("a good stream") {
        messages.push(message);
    }
    assert!(within(over).await.is_err(), "the stream of the supervisor ended");
    assert!(messages.iter().all(|message| message.request_id == named));
    assert_eq!(
        messages.iter().map(|message| message.text.as_str()).collect::<String>(),
        "Grüße 🦀!"
    );
    assert_eq!(
        messages.iter().flat_map(|message| message.token_ids.clone()).collect::<Vec<_>>(),
        [&answer[..], &[2]].concat()
    );
    assert_eq!(messages[0].step_end_ns, 77);
    let (last, rest) = messages.split_last().expect("messages");
    assert!(rest.iter().all(|message| message.r#final.is_none()));
    let last = last.r#final.as_ref().expect("the last says how it ended");
    let completion_tokens = answer.len() as u32 + 1;
    let usage =
        v1::Usage { prompt_tokens: prompt.len() as u32, completion_tokens, ..Default::default() };
    assert_eq!((last.usage, last.finish_reason), (Some(usage), v1::FinishReason::Stop as i32));
    assert_eq!((last.seed, last.resumed), (generation.seed, 0));
    let timing = last.timing.expect("set");
    assert_eq!(timing.queue_ms, 1.5);
    assert!(0.0 < timing.ttft_ms && timing.ttft_ms <= timing.total_ms, "{timing:?}");
}

#[tokio::test]
async fn one_request_after_another_is_answered() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    for _ in 0..2 {
        let answered = async {
            let _over = fake.submission().await.accept().done(ANY).await;
        };
        let asked = stage.client.generate(text("Hi"));
        let (response, ()) = within(async { tokio::join!(asked, answered) }).await;
        response.expect("answered");
    }
}

#[tokio::test]
async fn an_error_before_the_first_token_comes_without_headers_and_unchanged() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    // Below, headers came; here they wait for the first token, so the error is still one that lost
    // nothing.
    let late = Reason::CrashLoop.status("it crashed");
    let answer = async {
        let accepted = fake.submission().await.accept();
        accepted.batches.send(Err(late)).await.expect("the stream runs");
    };
    let (refused, ()) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
    let status = refused.expect_err("refused before headers");
    is(&status, Code::Unavailable, Reason::CrashLoop);
    assert_eq!(status.message(), "it crashed");

    let full: Status = Refusal::new(Reason::QueueFull, "64 wait")
        .retry_after(Duration::from_millis(250))
        .field("queue")
        .into();
    let expected = full.clone();
    let (refused, ()) = within(async {
        tokio::join!(stage.client.generate(text("Hi")), async {
            fake.submission().await.refuse(full)
        })
    })
    .await;
    let status = refused.expect_err("refused");
    assert_eq!(
        (status.code(), status.message(), status.details()),
        (expected.code(), expected.message(), expected.details())
    );
    assert_eq!(status.metadata().get(PUSHBACK).expect("a pause"), "250");
    assert!(status.metadata().get(REQUEST_ID).is_some());
}

/// Sends a request that is refused. Returns whether the gateway refused it itself, because of a
/// refusal by the supervisor a moment ago.
async fn refused(stage: &Stage, fake: &mut Fake) -> bool {
    let mut client = stage.client.clone();
    let mut asked = std::pin::pin!(client.generate(text("Hi")));
    let (was_submitted, outcome) = within(async {
        tokio::select! {
            outcome = &mut asked => (false, outcome),
            submission = fake.submission() => {
                submission.refuse(Reason::QueueFull.status("64 wait"));
                (true, asked.await)
            }
        }
    })
    .await;
    let status = outcome.expect_err("refused");
    is(&status, Code::ResourceExhausted, Reason::QueueFull);
    assert_eq!(status.message(), "64 wait");
    assert!(status.metadata().get(REQUEST_ID).is_some());
    !was_submitted
}

#[tokio::test]
async fn no_request_is_submitted_to_a_full_queue_until_one_leaves() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let running = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300]).await;
        accepted
    };
    let (stream, accepted) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), running) }).await;
    let mut stream = stream.expect("served").into_inner();
    // A moment is short: on a machine that is slow now the next one may come too late for it.
    while !refused(&stage, &mut fake).await {}
    let over = accepted.done(&[2]).await;
    while within(stream.message()).await.expect("fine").is_some() {}
    assert!(within(over).await.is_err());
    assert!(!refused(&stage, &mut fake).await, "a place came free: it is asked");
}

/// Accepts a request that goes on after these tokens, the given time.
async fn resumed(fake: &mut Fake, before: &[u32], times: u32) -> Accepted {
    let submission = fake.submission().await;
    assert_eq!(submission.generation().continuation_ids, before);
    assert_eq!(submission.request.resumed, times);
    let id = &submission.generation().request_id;
    assert_eq!(id.ends_with(&format!("-r{times}")), times > 0, "{id}");
    submission.accept_after(before.len() as u32)
}

#[tokio::test]
async fn a_broken_stream_goes_on_with_its_next_token() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let answer = async {
        resumed(&mut fake, &[], 0).await.tokens(&[300, 301]).await;
        // A new token before each break: no number of them is too many.
        resumed(&mut fake, &[300, 301], 1).await.tokens(&[302]).await;
        resumed(&mut fake, &[300, 301, 302], 2).await.tokens(&[303]).await;
        let mut last = resumed(&mut fake, &[300, 301, 302, 303], 3).await;
        last.tokens(&[304]).await;
        Some(last.done(&[2]).await)
    };
    let reading = async {
        let mut stream = stage.client.generate(text("Hi")).await.expect("begun").into_inner();
        let (mut ids, mut end) = (vec![], None);
        while let Some(message) = stream.message().await.expect("it goes on") {
            ids.extend(message.token_ids);
            end = message.r#final;
        }
        (ids, end.expect("an end"))
    };
    let ((ids, end), over) = within(async { tokio::join!(reading, answer) }).await;
    assert_eq!(ids, [300, 301, 302, 303, 304, 2]);
    assert_eq!((end.resumed, end.usage.expect("set").completion_tokens), (3, 6));
    let over = over.expect("always");
    assert!(within(over).await.is_err(), "the stream was read to its end");
}

#[tokio::test]
async fn a_stream_that_breaks_again_and_again_without_a_token_is_given_up() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let answer = async {
        for times in 0..3 {
            drop(resumed(&mut fake, &[], times).await);
        }
    };
    let (refused, ()) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
    is(&refused.expect_err("nothing came"), Code::Unavailable, Reason::TargetGone);

    let answer = async {
        resumed(&mut fake, &[], 0).await.tokens(ANY).await;
        for times in 1..3 {
            drop(resumed(&mut fake, ANY, times).await);
        }
    };
    let (response, ()) = within(async {
        tokio::join!(
            async { stage.client.generate(text("Hi")).await.map(|it| it.into_inner()) },
            answer
        )
    })
    .await;
    let mut stream = response.expect("begun");
    assert_eq!(within(stream.message()).await.expect("fine").expect("tokens").token_ids, ANY);
    let status = within(stream.message()).await.expect_err("no end");
    is(&status, Code::Unavailable, Reason::TargetGone);
    assert!(status.get_details_retry_info().is_some());
    assert!(status.metadata().get(REQUEST_ID).is_some());
}

#[tokio::test]
async fn a_gap_in_the_supervisors_stream_is_a_bug() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let answer = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(ANY).await;
        accepted.send(TokenBatch { first_index: 3, ids: vec![5], ..Default::default() }).await;
        accepted
    };
    let (response, accepted) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
    let mut stream = response.expect("begun").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    is(&within(stream.message()).await.expect_err("a gap"), Code::Internal, Reason::Bug);
    assert!(within(accepted.over).await.is_err(), "the broken stream was dropped");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    // Before the first token.
    let mut client = stage.client.clone();
    let asked =
        paceline_process::task::spawn("generate", async move { client.generate(text("Hi")).await });
    let submission = fake.submission().await;
    attachment.report(|report| report.streams == 1).await;
    asked.abort();
    assert!(within(submission.over).await.is_err());
    attachment.report(|report| report.streams == 0).await;
    // In the middle.
    let mut client = stage.client.clone();
    let answer = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(ANY).await;
        accepted
    };
    let (response, accepted) =
        within(async { tokio::join!(client.generate(text("Hi")), answer) }).await;
    let mut stream = response.expect("begun").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    drop(stream);
    assert!(within(accepted.over).await.is_err());
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn a_large_message_is_refused_with_the_limit() {
    let (mut stage, _fake, _attachment) =
        Stage::serving(|config| config.limits.max_message_bytes = 4096).await;
    let status =
        within(stage.client.generate(text("x".repeat(5000)))).await.expect_err("too large");
    is(&status, Code::ResourceExhausted, Reason::MessageTooLarge);
    assert!(status.message().contains("at most 4096 bytes"), "{status:?}");
    assert_eq!(status.get_details_error_info().expect("facts").metadata["limit_bytes"], "4096");
}

/// A GenerateRequest of some later version.
#[derive(Clone, PartialEq, prost::Message)]
struct Later {
    #[prost(string, tag = "2")]
    text: String,
    #[prost(uint32, tag = "77")]
    stop_after: u32,
}

#[tokio::test]
async fn an_unknown_field_is_refused_by_number() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let mut grpc = tonic::client::Grpc::new(stage.channel.clone());
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<Later, v1::GenerateResponse>::default();
    let path = "/paceline.v1.Inference/Generate".parse().expect("a path");
    let later = Later { text: "Hi".into(), stop_after: 1 };
    let status = within(grpc.server_streaming(Request::new(later), path, codec))
        .await
        .expect_err("unknown field");
    is(&status, Code::InvalidArgument, Reason::InvalidArgument);
    assert!(
        status.message().contains("field number 77 of paceline.v1.GenerateRequest"),
        "{status:?}"
    );
}

#[tokio::test]
async fn broken_requests_are_refused_by_the_gateway() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let refusals = [
        (v1::GenerateRequest::default(), Code::InvalidArgument, Reason::InvalidArgument),
        (ids(&[1; 5000]), Code::InvalidArgument, Reason::PromptTooLong),
        (limited(ids(&[1; 4000]), 97), Code::InvalidArgument, Reason::InvalidArgument),
        (
            v1::GenerateRequest { model: "other".into(), ..text("Hi") },
            Code::NotFound,
            Reason::UnknownModel,
        ),
    ];
    for (request, code, reason) in refusals {
        let status = within(stage.client.generate(request)).await.expect_err("refused");
        is(&status, code, reason);
        assert!(status.metadata().get(REQUEST_ID).is_some());
    }
    let mut request = chat("Hi");
    let image = v1::Image { data: vec![1].into() };
    request.messages[0]
        .content
        .push(v1::ContentPart { part: Some(v1::content_part::Part::Image(image)) });
    is(
        &within(stage.client.chat(request)).await.expect_err("no eyes"),
        Code::FailedPrecondition,
        Reason::NoVision,
    );
    assert!(fake.submissions.try_recv().is_err(), "no broken request was submitted");
}

#[tokio::test]
async fn the_earlier_deadline_is_submitted_and_kept_by_the_gateway() {
    let (mut stage, mut fake, _attachment) =
        Stage::serving(|config| config.limits.deadline_s = 1).await;
    // The supervisor never answers: the backstop does. (A loose bound: it comes at 1.02 s.)
    let before = monotonic_ns();
    let (refused, submission) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), fake.submission()) }).await;
    is(&refused.expect_err("too late"), Code::DeadlineExceeded, Reason::DeadlinePassed);
    let second = 1_000_000_000;
    let left = submission.generation().deadline_ns - before;
    assert!((second..10 * second).contains(&left), "{left}");
    assert!(within(submission.over).await.is_err(), "the submission was dropped");
    // Between two messages likewise.
    let answer = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(ANY).await;
        accepted
    };
    let (response, _accepted) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
    let mut stream = response.expect("begun").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    let status = within(stream.message()).await.expect_err("too late");
    is(&status, Code::DeadlineExceeded, Reason::DeadlinePassed);
    assert_eq!(status.get_details_error_info().expect("facts").metadata["completion_tokens"], "2");
}

#[tokio::test]
async fn the_clients_own_timeout_counts() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut request = Request::new(text("Hi"));
    request.set_timeout(Duration::from_secs(60));
    let before = monotonic_ns();
    let (_, submission) = within(async {
        tokio::join!(stage.client.generate(request), async {
            let submission = fake.submission().await;
            let left = submission.generation().deadline_ns - before;
            submission.refuse(Reason::QueueFull.status("no"));
            left
        })
    })
    .await;
    assert!((59_000_000_000..90_000_000_000).contains(&submission), "{submission}");
    let mut request = Request::new(text("Hi"));
    request.metadata_mut().insert("grpc-timeout", "soon".parse().expect("ASCII"));
    let status = within(stage.client.generate(request)).await.expect_err("malformed");
    is(&status, Code::InvalidArgument, Reason::InvalidArgument);
    assert!(status.message().contains("grpc-timeout: expected at most 8 digits"), "{status:?}");
}

#[tokio::test]
async fn connections_without_http2_are_closed_and_disturb_no_other() {
    let (mut stage, _fake, mut attachment) = Stage::serving(|_| {}).await;
    let mut stranger = tokio::net::TcpStream::connect(stage.address).await.expect("connects");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
    let mut rest = Vec::new();
    // Closed without a word, or reset.
    let _ = within(stranger.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    attachment.service(ready()).await;
    assert!(stage.health_now("").await);
}

fn demo() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
}
