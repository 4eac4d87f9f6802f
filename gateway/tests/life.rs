//! A gateway's life beside its supervisor: health, attachment, losing and finding the supervisor,
//! ending in order.

use crate::stage::supervisor::{Accepted, Fake};
use crate::stage::{Stage, is, ready, text, within};
use paceline_proto::internal::v1::{GatewayState, ServiceState};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::GenerateResponse;
use paceline_service_core::ending::Event;
use paceline_vocabulary::Exit;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt;

/// A request with its first tokens out.
async fn running(stage: &mut Stage, fake: &mut Fake) -> (Streaming<GenerateResponse>, Accepted) {
    let answer = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300]).await;
        accepted
    };
    let (response, accepted) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), answer) }).await;
    let mut stream = response.expect("begun").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    (stream, accepted)
}

#[tokio::test]
async fn health_is_true_from_the_first_instant() {
    let mut stage = Stage::new(|config| config.limits.queue_wait_s = 1);
    assert!(!stage.health_now("").await);
    is(
        &within(stage.client.generate(text("Hi"))).await.expect_err("nobody there"),
        Code::Unavailable,
        Reason::Restarting,
    );

    let mut fake = Fake::start(&stage.dir.path().join("supervisor.sock"), 1);
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    let report = attachment.report(|_| true).await;
    assert_eq!((report.epoch, report.pid, report.streams), (7, std::process::id(), 0));
    assert_eq!(report.state, GatewayState::Ready as i32);
    assert!(!stage.health_now("").await, "attached, and nothing reported");

    let loading = ServiceState {
        reason: "TARGET_LOADING".into(),
        message: "loading: 1 of 2 GB".into(),
        ..Default::default()
    };
    attachment.service(loading).await;
    let status = loop {
        let status = within(stage.client.generate(text("Hi"))).await.expect_err("loading");
        if Reason::of(&status) != Some(Reason::Restarting) {
            break status;
        }
    };
    is(&status, Code::Unavailable, Reason::TargetLoading);
    assert_eq!(status.message(), "loading: 1 of 2 GB");
    assert!(status.get_details_retry_info().is_some());
    for name in ["", "paceline.v1.Inference", "worker.target"] {
        assert!(!stage.health_now(name).await, "{name:?}");
    }

    attachment.service(ready()).await;
    stage.health_until("", ServingStatus::Serving).await;
    assert!(
        stage.health_now("paceline.v1.Inference").await && stage.health_now("worker.target").await
    );
}

#[tokio::test]
async fn before_a_drain_health_says_so_and_requests_are_served() {
    let (mut stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    attachment.service(ServiceState { leaving: true, ..ready() }).await;
    stage.health_until("", ServingStatus::NotServing).await;
    assert!(!stage.health_now("paceline.v1.Inference").await);
    assert!(stage.health_now("worker.target").await, "the worker is as it was");
    let (_stream, _accepted) = running(&mut stage, &mut fake).await;
    attachment.service(ready()).await;
    stage.health_until("", ServingStatus::Serving).await;
}

#[tokio::test]
async fn an_order_to_drain_ends_with_the_life_of_its_supervisor() {
    let (mut stage, fake, mut attachment) = Stage::serving(|_| {}).await;
    attachment.drain().await;
    stage.health_until("", ServingStatus::NotServing).await;
    assert!(stage.health_now("worker.target").await, "the worker is as it was");
    attachment.report(|report| report.state == GatewayState::Draining as i32).await;
    is(
        &within(stage.client.generate(text("Hi"))).await.expect_err("draining"),
        Code::Unavailable,
        Reason::Draining,
    );

    let mut watch = stage.watch("worker.target").await;
    assert_eq!(
        within(watch.message()).await.expect("fine").expect("open").status,
        ServingStatus::Serving as i32
    );
    fake.kill();
    assert_eq!(
        within(watch.message()).await.expect("fine").expect("open").status,
        ServingStatus::NotServing as i32
    );
    let (mut fake, mut attachment) = stage.attach(2).await;
    stage.health_until("", ServingStatus::Serving).await;
    attachment.report(|report| report.state == GatewayState::Ready as i32).await;
    let submitted = async {
        let submission = fake.submission().await;
        let term = submission.request.stamp.expect("always set").term;
        submission.refuse(Reason::CrashLoop.status("it does not stay up"));
        term
    };
    let (_, term) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), submitted) }).await;
    assert_eq!(term, 2);
}

#[tokio::test]
async fn requests_go_on_with_the_supervisor_after_the_one_that_died() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let (mut stream, _accepted) = running(&mut stage, &mut fake).await;
    let mut client = stage.client.clone();
    let waiting =
        paceline_process::task::spawn("generate", async move { client.generate(text("Hi")).await });
    let _submission = fake.submission().await;
    fake.kill();
    stage.health_until("", ServingStatus::NotServing).await;
    let (mut fake, _attachment) = stage.attach(2).await;
    for _ in 0..2 {
        let submission = within(fake.submission()).await;
        assert_eq!(submission.request.stamp.expect("always set").term, 2);
        let before = submission.generation().continuation_ids.clone();
        assert!(before.is_empty() || before == [300], "{before:?}");
        let _over = submission.accept_after(before.len() as u32).done(&[2]).await;
    }
    let last = within(stream.message()).await.expect("it goes on").expect("its end");
    assert_eq!((last.token_ids, last.r#final.expect("the end").resumed), (vec![2], 1));
    within(waiting).await.expect("no panic").expect("it goes on");
}

#[tokio::test]
async fn a_supervisor_whose_beats_stop_serves_nothing_until_it_answers_again() {
    let (mut stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    attachment.beat().await;
    let mut client = stage.client.clone();
    let waiting =
        paceline_process::task::spawn("generate", async move { client.generate(text("Hi")).await });
    let _submission = fake.submission().await;
    stage.health_until("", ServingStatus::NotServing).await;
    stage.health_until("worker.target", ServingStatus::NotServing).await;
    let asked = within(stage.client.generate(text("Hi"))).await.expect_err("it hangs");
    is(&asked, Code::Unavailable, Reason::Restarting);
    let waited = within(waiting).await.expect("no panic").expect_err("it hangs");
    is(&waited, Code::Unavailable, Reason::Restarting);
    attachment.beat().await;
    stage.health_until("", ServingStatus::Serving).await;
    let serving = async { Some(fake.submission().await.accept().done(&[2]).await) };
    let (answer, _over) =
        within(async { tokio::join!(stage.client.generate(text("Hi")), serving) }).await;
    answer.expect("served again");
}

#[tokio::test]
async fn a_stop_lets_running_requests_finish_and_answers_new_ones() {
    let (mut stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let (mut stream, accepted) = running(&mut stage, &mut fake).await;
    let mut watch = stage.watch("").await;
    within(watch.message()).await.expect("fine").expect("open");
    stage.send(Event::StopAsked).await;
    assert_eq!(
        within(watch.message()).await.expect("fine").expect("open").status,
        ServingStatus::NotServing as i32
    );
    attachment.report(|report| report.state == GatewayState::Draining as i32).await;
    // On the old connection and on a new one.
    is(
        &within(stage.client.generate(text("Hi"))).await.expect_err("draining"),
        Code::Unavailable,
        Reason::Draining,
    );
    let fresh = tonic::transport::Endpoint::from_shared(format!("http://{}", stage.address))
        .expect("an address")
        .connect_lazy();
    let mut fresh = paceline_proto::v1::inference_client::InferenceClient::new(fresh);
    is(
        &within(fresh.generate(text("Hi"))).await.expect_err("draining"),
        Code::Unavailable,
        Reason::Draining,
    );

    accepted.done(&[2]).await;
    let last = within(stream.message()).await.expect("fine").expect("the end");
    assert!(last.r#final.is_some());
    assert!(within(stream.message()).await.expect("a good end").is_none());
    assert_eq!(stage.ended().await, Exit::Asked);
    assert!(
        within(watch.message()).await.is_ok_and(|message| message.is_none()),
        "watches end in order"
    );
}

#[tokio::test]
async fn a_second_stop_cancels() {
    let (mut stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let (mut stream, accepted) = running(&mut stage, &mut fake).await;
    let mut client = stage.client.clone();
    let waiting =
        paceline_process::task::spawn("generate", async move { client.generate(text("Hi")).await });
    let submission = fake.submission().await;
    stage.send(Event::StopAsked).await;
    attachment.report(|report| report.state == GatewayState::Draining as i32).await;
    stage.send(Event::StopAsked).await;
    is(
        &within(stream.message()).await.expect_err("cancelled"),
        Code::Unavailable,
        Reason::Draining,
    );
    is(
        &within(waiting).await.expect("no panic").expect_err("cancelled"),
        Code::Unavailable,
        Reason::Draining,
    );
    assert!(within(accepted.over).await.is_err() && within(submission.over).await.is_err());
    assert_eq!(stage.ended().await, Exit::Asked);
}

#[tokio::test]
async fn a_third_stop_ends_at_once() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let _running = running(&mut stage, &mut fake).await;
    for _ in 0..3 {
        stage.send(Event::StopAsked).await;
    }
    assert_eq!(stage.ended().await, Exit::Asked);
}

#[tokio::test]
async fn an_ordered_restart_drains_and_asks_to_be_started_again() {
    let (mut stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let (mut stream, accepted) = running(&mut stage, &mut fake).await;
    attachment.restart().await;
    attachment
        .report(|report| report.state == GatewayState::Draining as i32 && report.streams == 1)
        .await;
    accepted.done(&[2]).await;
    while within(stream.message()).await.expect("a good end").is_some() {}
    assert_eq!(stage.ended().await, Exit::RestartMe);
}

#[tokio::test]
async fn an_idle_gateway_ends_at_once() {
    let (mut stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    stage.send(Event::ParentGone).await;
    assert_eq!(stage.ended().await, Exit::Asked);
}
