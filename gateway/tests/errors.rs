//! The error table as clients see it: every row that can be reached at the front has its code, its
//! reason and the details that its code needs, whichever process refused.

use crate::stage::{Stage, ids, limited, text, within};
use paceline_proto::status::{DOMAIN, PUSHBACK, Reason, ReasonStatus as _, Refusal};
use paceline_proto::v1::GenerateRequest;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Reasons of what operators ask for, and of messages between our own processes: no client gets
/// them.
const NOT_OURS: [Reason; 8] = [
    Reason::StaleTerm,
    Reason::StaleEpoch,
    Reason::DrafterLoading,
    Reason::DrafterFailed,
    Reason::DrafterIncompatible,
    Reason::DrafterState,
    Reason::ProcessState,
    Reason::FellBehind,
];

/// Checks a status against its row.
#[track_caller]
fn complete(status: &Status, reason: Reason) {
    assert_eq!((status.code(), Reason::of(status)), (reason.code(), Some(reason)), "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    assert_eq!((info.domain.as_str(), info.reason.as_str()), (DOMAIN, reason.word()));
    assert_eq!(details.retry_info().is_some(), reason.retryable(), "{reason:?}");
    assert_eq!(status.metadata().contains_key(PUSHBACK), reason.retryable(), "{reason:?}");
    assert!(!status.message().is_empty(), "{reason:?}");
    match reason.code() {
        Code::InvalidArgument => {
            let bad = details.bad_request().expect("a BadRequest");
            assert!(
                !bad.field_violations[0].field.is_empty()
                    && !bad.field_violations[0].description.is_empty()
            );
        }
        Code::FailedPrecondition => {
            let failure = details.precondition_failure().expect("a PreconditionFailure");
            assert_eq!(failure.violations[0].r#type, reason.word());
        }
        Code::ResourceExhausted => {
            let failure = details.quota_failure().expect("a QuotaFailure");
            assert!(!failure.violations[0].subject.is_empty(), "{reason:?}: which quota");
        }
        Code::NotFound => {
            assert_eq!(details.resource_info().expect("a ResourceInfo").resource_type, "model")
        }
        Code::Internal => assert!(details.retry_info().is_none()),
        _ => {}
    }
}

#[tokio::test]
async fn every_error_of_the_supervisor_arrives_whole() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut ours: Vec<Reason> =
        Reason::ALL.iter().filter(|reason| !NOT_OURS.contains(reason)).copied().collect();
    // The last one: the gateway does not ask again at once whether a queue that was full has room.
    ours.sort_by_key(|reason| *reason == Reason::QueueFull);
    // In the middle of a stream. After an interruption the request is submitted twice more.
    let submissions = |reason: Reason| if reason.is_interruption() { 3 } else { 1 };
    for &reason in &ours {
        let refused: Status = Refusal::new(reason, "expected x, found y").field("a.field").into();
        let answer = async {
            for at in 0..submissions(reason) {
                let mut accepted = fake.submission().await.accept();
                if at == 0 {
                    accepted.tokens(&[300]).await;
                }
                accepted.batches.send(Err(refused.clone())).await.expect("the stream runs");
            }
        };
        let (response, ()) =
            within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
        let mut stream = response.expect("begun").into_inner();
        within(stream.message()).await.expect("fine").expect("tokens");
        let status = within(stream.message()).await.expect_err("its end");
        complete(&status, reason);
        if reason == Reason::DeadlinePassed {
            assert_eq!(
                status.get_details_error_info().expect("facts").metadata["completion_tokens"],
                "1"
            );
        }
    }
    // Before it. An interruption is awaited as long as the request has time.
    for &reason in ours.iter().filter(|reason| !reason.is_interruption()) {
        let refused: Status =
            Refusal::new(reason, "expected x, found y").field("a.field").fact("limit", 7).into();
        let (refused, ()) = within(async {
            tokio::join!(stage.client.generate(text("Hi")), async {
                fake.submission().await.refuse(refused)
            })
        })
        .await;
        let refused = refused.expect_err("refused");
        complete(&refused, reason);
        if reason == Reason::DeadlinePassed {
            assert_eq!(
                refused.get_details_error_info().expect("facts").metadata["completion_tokens"],
                "0"
            );
        }
    }
}

#[tokio::test]
async fn every_error_of_the_gateway_is_whole() {
    let (mut stage, _fake, _attachment) =
        Stage::serving(|config| config.limits.max_message_bytes = 40_000).await;
    let rows: [(GenerateRequest, Reason); 6] = [
        (GenerateRequest::default(), Reason::InvalidArgument),
        (text(""), Reason::InvalidArgument),
        (limited(text("Hi"), 0), Reason::InvalidArgument),
        (ids(&[1; 5_000]), Reason::PromptTooLong),
        (GenerateRequest { model: "other".into(), ..text("Hi") }, Reason::UnknownModel),
        (text("x".repeat(50_000)), Reason::MessageTooLarge),
    ];
    for (request, reason) in rows {
        complete(&within(stage.client.generate(request)).await.expect_err("refused"), reason);
    }
    let mut request = crate::stage::chat("Hi");
    let image = paceline_proto::v1::Image { data: vec![1].into() };
    request.messages[0].content.push(paceline_proto::v1::ContentPart {
        part: Some(paceline_proto::v1::content_part::Part::Image(image)),
    });
    complete(
        &within(stage.client.chat(request.clone())).await.expect_err("no eyes"),
        Reason::NoVision,
    );
    let far = crate::stage::seeing::chat(vec![crate::stage::seeing::says(
        "user",
        vec![crate::stage::seeing::url("https://example.com/a.png")],
    )]);
    complete(&within(stage.client.chat(far.clone())).await.expect_err("no eyes"), Reason::NoVision);
    let (mut seeing, _supervisor, _attached) = Stage::seeing(|_| {}).await;
    for request in [request, far] {
        complete(
            &within(seeing.client.chat(request)).await.expect_err("no image"),
            Reason::BadImage,
        );
    }
    let hidden = crate::stage::seeing::says(
        "system",
        vec![crate::stage::seeing::image(crate::stage::seeing::file("up.png"))],
    );
    complete(
        &within(seeing.client.chat(crate::stage::seeing::chat(vec![hidden])))
            .await
            .expect_err("not shown"),
        Reason::Template,
    );
    stage.send(paceline_service_core::ending::Event::StopAsked).await;
    let _ = stage.ended().await;
    let alone = Stage::new(|config| config.limits.queue_wait_s = 1);
    let status =
        within(alone.client.clone().generate(text("Hi"))).await.expect_err("no supervisor");
    complete(&status, Reason::Restarting);
}
