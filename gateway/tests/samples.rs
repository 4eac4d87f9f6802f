//! Several answers to one request, and answers that a stop string ends, through a gateway with a
//! scripted supervisor behind it.

use paceline_proto::internal::v1::{Done, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{self, FinishReason, GenerateRequest, GenerateResponse, Limits};
use tonic::{Code, Streaming};

use crate::stage::supervisor::{Accepted, Fake, Submission};
use crate::stage::{Stage, is, text, within};

fn samples(count: u32) -> GenerateRequest {
    GenerateRequest { samples: count, ..text("Hi") }
}

/// The submissions of one request, by sample index.
async fn submissions(fake: &mut Fake, count: usize) -> Vec<Submission> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(fake.submission().await);
    }
    all.sort_by_key(|submission| submission.generation().sample_index);
    all
}

async fn message(stream: &mut Streaming<GenerateResponse>) -> GenerateResponse {
    within(stream.message()).await.expect("fine").expect("open")
}

/// Sends a request, and runs `upstream` as the supervisor meanwhile.
async fn ask<T>(
    stage: &Stage,
    request: GenerateRequest,
    upstream: impl Future<Output = T>,
) -> (Result<Streaming<GenerateResponse>, tonic::Status>, T) {
    let mut client = stage.client.clone();
    let (response, done) = within(async { tokio::join!(client.generate(request), upstream) }).await;
    (response.map(tonic::Response::into_inner), done)
}

#[tokio::test]
async fn samples_come_interleaved_and_end_each() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let begin = async {
        let all = submissions(&mut fake, 3).await;
        let generations: Vec<_> =
            all.iter().map(|submission| submission.generation().clone()).collect();
        let mut accepted: Vec<Accepted> = all.into_iter().map(Submission::accept).collect();
        accepted[1].tokens(&[300]).await;
        (generations, accepted)
    };
    let (stream, (generations, mut accepted)) = ask(&stage, samples(3), begin).await;
    let mut stream = stream.expect("begun");
    let first = &generations[0];
    for (at, generation) in generations.iter().enumerate() {
        assert_eq!((generation.seed, &generation.prompt_ids), (first.seed, &first.prompt_ids));
        assert_eq!(generation.sample_index, at as u32);
        assert!(
            generations.iter().filter(|other| other.request_id == generation.request_id).count()
                == 1,
            "an id of its own"
        );
    }
    attachment.report(|report| report.streams == 1).await;
    let seen = message(&mut stream).await;
    assert_eq!((seen.sample_index, seen.token_ids.as_slice()), (1, &[300][..]));
    let id = seen.request_id;
    accepted[0].tokens(&[301, 302]).await;
    assert_eq!(message(&mut stream).await.sample_index, 0);
    accepted[1].tokens(&[303]).await;
    assert_eq!(message(&mut stream).await.token_ids, [303]);
    let last = accepted.pop().expect("three");
    let over = last.done(&[2]).await;
    let seen = message(&mut stream).await;
    assert_eq!((seen.sample_index, &seen.request_id), (2, &id));
    let said = seen.r#final.expect("this sample's last");
    assert_eq!((said.usage.expect("set").completion_tokens, said.seed), (1, first.seed));
    for (at, sample) in accepted.into_iter().enumerate() {
        let over = sample.done(&[2]).await;
        let seen = message(&mut stream).await;
        assert_eq!(seen.sample_index, at as u32);
        assert_eq!(
            seen.r#final.expect("this sample's last").usage.expect("set").completion_tokens,
            3
        );
        assert!(within(over).await.is_err());
    }
    assert!(within(stream.message()).await.expect("a good end").is_none());
    assert!(within(over).await.is_err(), "each stream was read to its end");
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn one_failed_sample_fails_the_request_and_a_client_that_leaves_ends_all_samples() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let begin = async {
        let all = submissions(&mut fake, 2).await;
        let mut accepted: Vec<Accepted> = all.into_iter().map(Submission::accept).collect();
        accepted[0].tokens(&[300]).await;
        accepted
    };
    let (stream, mut accepted) = ask(&stage, samples(2), begin).await;
    let mut stream = stream.expect("begun");
    message(&mut stream).await;
    let failing = accepted.remove(1);
    failing
        .batches
        .send(Err(Reason::CrashLoop.status("it crashed")))
        .await
        .expect("the stream runs");
    is(&within(stream.message()).await.expect_err("failed"), Code::Unavailable, Reason::CrashLoop);
    assert!(within(accepted.remove(0).over).await.is_err(), "the other one was dropped");

    let begin = async {
        let all = submissions(&mut fake, 2).await;
        let mut all = all.into_iter();
        let mut accepted = all.next().expect("two").accept();
        accepted.tokens(&[300]).await;
        (accepted, all.next().expect("two"))
    };
    let (stream, (accepted, waiting)) = ask(&stage, samples(2), begin).await;
    drop(stream.expect("begun"));
    assert!(within(accepted.over).await.is_err() && within(waiting.over).await.is_err());

    // Before anything came, a failure comes without headers.
    let refuse = async {
        let mut all = submissions(&mut fake, 2).await;
        all.remove(1).refuse(Reason::KvExhausted.status("too long"));
        all
    };
    let (refused, all) = ask(&stage, samples(2), refuse).await;
    is(&refused.expect_err("refused"), Code::ResourceExhausted, Reason::KvExhausted);
    for submission in all {
        assert!(within(submission.over).await.is_err());
    }
}

#[tokio::test]
async fn a_sample_without_room_waits_for_another_sample_of_its_request() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let begin = async {
        let mut all = submissions(&mut fake, 2).await;
        all.remove(1).refuse(Reason::QueueWait.status("10 s"));
        let mut accepted = all.remove(0).accept();
        accepted.tokens(&[300]).await;
        accepted
    };
    let (stream, accepted) = ask(&stage, samples(2), begin).await;
    let mut stream = stream.expect("begun");
    message(&mut stream).await;
    let over = accepted.done(&[2]).await;
    assert!(message(&mut stream).await.r#final.is_some());
    let again = fake.submission().await;
    assert_eq!(again.generation().sample_index, 1);
    let last = again.accept().done(&[300, 2]).await;
    let seen = message(&mut stream).await;
    assert_eq!((seen.sample_index, seen.r#final.is_some()), (1, true));
    assert!(within(stream.message()).await.expect("a good end").is_none());
    assert!(within(over).await.is_err() && within(last).await.is_err());

    // The refusal of the one may arrive after the end of the other one, and is outdated then.
    let begin = async {
        let mut all = submissions(&mut fake, 2).await;
        let other = all.remove(1);
        (all.remove(0).accept().done(&[2]).await, other)
    };
    let (stream, (over, refused)) = ask(&stage, samples(2), begin).await;
    let mut stream = stream.expect("begun");
    assert!(message(&mut stream).await.r#final.is_some());
    refused.refuse(Reason::QueueFull.status("64 wait"));
    let last = fake.submission().await.accept().done(&[2]).await;
    assert_eq!(message(&mut stream).await.sample_index, 1);
    assert!(within(stream.message()).await.expect("a good end").is_none());
    assert!(within(over).await.is_err() && within(last).await.is_err());

    // Where none of them has a place, there is none to wait for.
    let refuse = async {
        for submission in submissions(&mut fake, 2).await {
            submission.refuse(Reason::QueueFull.status("64 wait"));
        }
    };
    let (refused, ()) = ask(&stage, samples(2), refuse).await;
    is(&refused.expect_err("no room"), Code::ResourceExhausted, Reason::QueueFull);
}

#[tokio::test]
async fn a_stop_string_ends_generation_upstream() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let language = paceline_text::prompt::Language::read(&demo()).expect("in the repository");
    let ids = language.tokens.encode("Hello there STOP and more", false).expect("encodes");
    let limits = Some(Limits { stop: vec!["never".into(), "STOP".into()], ..Default::default() });
    let begin = async {
        let submission = fake.submission().await;
        assert!(submission.generation().report_so_far);
        let mut accepted = submission.accept();
        for (at, id) in ids.iter().enumerate() {
            let route = Some(v1::Route {
                lane: v1::Lane::Plain.into(),
                reason: v1::RouteReason::DrafterAbsent.into(),
            });
            let so_far =
                Some(Done { queue_ms: 2.5, cached_tokens: at as u32, route, ..Default::default() });
            accepted
                .send(TokenBatch {
                    first_index: at as u32,
                    ids: vec![*id],
                    so_far,
                    ..Default::default()
                })
                .await;
        }
        accepted
    };
    let (stream, accepted) = ask(&stage, GenerateRequest { limits, ..text("Hi") }, begin).await;
    let mut stream = stream.expect("begun");
    let (mut shown, mut seen) = (String::new(), Vec::new());
    let last = loop {
        let message = message(&mut stream).await;
        shown += &message.text;
        seen.extend(message.token_ids);
        if let Some(said) = message.r#final {
            break said;
        }
    };
    assert_eq!(shown, "Hello there ");
    assert_eq!(seen, ids[..seen.len()]);
    let decoded = |count: usize| language.tokens.decode(&ids[..count]).expect("decodes");
    assert!(decoded(seen.len()).contains("STOP") && !decoded(seen.len() - 1).contains("STOP"));
    assert_eq!((last.stop.as_str(), last.finish_reason()), ("STOP", FinishReason::Stop));
    let usage = last.usage.expect("set");
    assert_eq!(
        (usage.completion_tokens as usize, usage.cached_tokens as usize),
        (seen.len(), seen.len() - 1)
    );
    assert_eq!(last.route.expect("known").reason(), v1::RouteReason::DrafterAbsent);
    assert_eq!(last.timing.expect("set").queue_ms, 2.5);
    assert!(within(stream.message()).await.expect("a good end").is_none());
    assert!(within(accepted.over).await.is_err(), "it goes on for nobody");
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let status = within(stage.client.generate(samples(17))).await.expect_err("too many");
    is(&status, Code::InvalidArgument, Reason::InvalidArgument);
    assert!(status.message().contains("samples: expected at most 16, found 17"), "{status:?}");
    let limits = Some(Limits { stop: vec![String::new()], ..Default::default() });
    let status = within(stage.client.generate(GenerateRequest { limits, ..text("Hi") }))
        .await
        .expect_err("empty");
    assert!(status.message().contains("limits.stop[0]"), "{status:?}");
    assert!(fake.submissions.try_recv().is_err());
}

fn demo() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
}
