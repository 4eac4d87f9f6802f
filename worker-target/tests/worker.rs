//! The real worker process on a tiny checkpoint: its socket, its life, its streams.

mod stage;

use std::path::Path;

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{
    CancelRequest, DescribeRequest, Generation, SamplingRule, Stamp, StatsRequest, StopRequest,
    WorkerPhase,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;

use stage::{BOUND, STAMP, Worker, cases, generate, generation, ids, open, plain_permit, tiny};

#[tokio::test]
async fn loading_reports_progress_and_the_worker_describes_itself() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (beats, _watch) = worker.ready().await;
    let last = beats.last().expect("a beat");
    assert_eq!(last.phase(), WorkerPhase::Idle);
    assert!(
        last.loaded_bytes == last.total_bytes
            && last.total_bytes > 0
            && last.weights_loaded_unix_s > 0
    );
    assert!(beats.iter().all(|beat| beat.epoch == STAMP.epoch));

    let about = worker
        .client
        .describe(DescribeRequest { stamp: Some(STAMP) })
        .await
        .expect("described")
        .into_inner();
    let model = about.model.expect("a model");
    assert_eq!((model.name.as_str(), model.architecture.as_str()), ("qwen3-tiny", "qwen3"));
    assert_eq!(about.pid, worker.child.id());
    assert!(
        about
            .kv_classes
            .windows(2)
            .all(|pair| pair[0].positions < pair[1].positions && pair[0].bytes < pair[1].bytes)
    );
}

#[tokio::test]
async fn answers_equal_the_reference_whole_resumed_and_stopped() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    for (at, (prompt, greedy)) in cases().into_iter().enumerate() {
        let batches = worker
            .generate(generation(&format!("r{at}"), &prompt, greedy.len() as u32))
            .await
            .expect("generates");
        assert_eq!(ids(&batches), greedy);
        let mut next = 0;
        for batch in &batches {
            assert_eq!((batch.first_index, batch.stamp), (next, Some(STAMP)));
            assert!(batch.step_end_ns > 0);
            next += batch.ids.len() as u32;
        }
        let done = batches.last().and_then(|batch| batch.done).expect("the last batch ends it");
        assert_eq!(done.finish_reason(), v1::FinishReason::Length);
        assert_eq!(done.route.expect("a route").reason(), v1::RouteReason::DrafterAbsent);

        // A resumed stream goes on with the same tokens.
        let resumed = Generation {
            continuation_ids: greedy[..10].to_vec(),
            ..generation("again", &prompt, greedy.len() as u32)
        };
        let batches = worker.generate(resumed).await.expect("generates");
        assert_eq!(ids(&batches), greedy[10..]);
        assert_eq!(batches[0].first_index, 10);

        // A stop id ends the stream, and is its last token.
        let first = greedy.iter().position(|id| *id == greedy[5]).expect("it is there");
        let stopped =
            Generation { stop_token_ids: vec![greedy[5]], ..generation("stop", &prompt, 32) };
        let batches = worker.generate(stopped).await.expect("generates");
        assert_eq!(ids(&batches), greedy[..=first]);
        assert_eq!(
            batches.last().and_then(|batch| batch.done).expect("done").finish_reason(),
            v1::FinishReason::Stop
        );
    }
    let stats =
        worker.client.stats(StatsRequest { stamp: Some(STAMP) }).await.expect("stats").into_inner();
    let now = stats.now.expect("figures");
    assert!(stats.decode_tokens > 100 && stats.prefill_tokens > 100 && stats.step_p50_us > 0);
    assert_eq!(
        (now.sequences, now.kv.expect("kv").held_bytes, now.kv.expect("kv").tap_bytes),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn streams_are_the_same_alone_and_together() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    let sampling = Some(SamplingRule {
        temperature: 0.9,
        top_k: 0,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.0,
        ..Default::default()
    });
    let requests: Vec<Generation> = (0..8)
        .map(|at| {
            let (prompt, _) = &cases()[at % 4];
            let request = Generation {
                seed: at as u64,
                report_margins: true,
                ..generation(&format!("r{at}"), prompt, 60)
            };
            if at % 2 == 0 { request } else { Generation { sampling: sampling.clone(), ..request } }
        })
        .collect();
    let mut alone = vec![];
    for request in &requests {
        alone.push(worker.generate(request.clone()).await.expect("generates"));
    }
    let mut handles = vec![];
    for request in requests {
        handles.push(paceline_process::task::spawn(
            "request",
            generate(worker.client.clone(), request),
        ));
    }
    for (handle, alone) in handles.into_iter().zip(&alone) {
        let together = ids(&handle.await.expect("runs").expect("generates"));
        let (alone_ids, margins) =
            (ids(alone), alone.iter().flat_map(|batch| batch.margins.clone()).collect::<Vec<_>>());
        assert_eq!(margins.len(), alone_ids.len());
        if let Some(at) = alone_ids.iter().zip(&together).position(|(a, b)| a != b) {
            // Rows are the same to the bit with the products of our own; elsewhere the order of a
            // sum may decide.
            assert!(
                cfg!(not(target_os = "linux")) && margins[at] < 1e-4,
                "differs at {at} with margin {}",
                margins[at]
            );
        }
        assert_eq!(alone_ids.len(), together.len());
    }
}

#[tokio::test]
async fn report_so_far_adds_the_figures_of_the_end_to_each_batch() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    let prompt = cases()[2].0.clone();
    for asked in [true, false] {
        let request = Generation {
            report_so_far: asked,
            ..generation(&format!("asked-{asked}"), &prompt, 20)
        };
        let batches = worker.generate(request).await.expect("generates");
        let (last, others) = batches.split_last().expect("batches");
        assert!(!others.is_empty() && last.so_far.is_none());
        let end = last.done.expect("the last");
        for batch in others {
            assert!(batch.done.is_none());
            assert_eq!(batch.so_far.is_some(), asked);
            if let Some(so_far) = batch.so_far {
                assert_eq!((so_far.route, so_far.cached_tokens), (end.route, end.cached_tokens));
            }
        }
    }
}

#[tokio::test]
async fn stale_messages_and_bad_requests_are_refused() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    let mut client = worker.client.clone();
    let stale = |stamp| DescribeRequest { stamp: Some(stamp) };
    let status = client.describe(stale(Stamp { epoch: 2, ..STAMP })).await.expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::StaleEpoch));
    client.describe(stale(Stamp { term: 9, ..STAMP })).await.expect("a newer supervisor is obeyed");
    let status = client.describe(stale(STAMP)).await.expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::StaleTerm));
    let status = worker.generate(generation("x", &[1], 4)).await.expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::StaleTerm));
}

#[tokio::test]
async fn dropped_cancelled_and_late_requests_return_their_memory() {
    // More than 60 lines: one story from start to end.
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    let prompt = cases()[2].0.clone();
    let start =
        |id: &str| open(worker.client.clone(), generation(id, &prompt, 200), plain_permit());
    let mut dropped = start("dropped").await.expect("starts");
    dropped.message().await.expect("tokens");
    drop(dropped);

    let mut cancelled = start("cancelled").await.expect("starts");
    let answer = worker
        .client
        .clone()
        .cancel(CancelRequest { stamp: Some(STAMP), request_id: "cancelled".into() })
        .await
        .expect("answers");
    let end = loop {
        match cancelled.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    if answer.into_inner().found {
        assert_eq!(Reason::of(&end.expect_err("cancelled")), Some(Reason::Cancelled));
    }

    let late = Generation {
        deadline_ns: paceline_system::clock::monotonic_ns(),
        ..generation("late", &prompt, 200)
    };
    assert_eq!(
        Reason::of(&worker.generate(late).await.expect_err("late")),
        Some(Reason::DeadlinePassed)
    );

    let free = async {
        loop {
            let now = worker.figures().await;
            if (now.sequences, now.kv.expect("kv").held_bytes) == (0, 0) {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, free).await.expect("everything is given back");
}

#[tokio::test]
async fn a_stop_order_ends_the_worker_and_removes_its_files() {
    let mut worker = Worker::start(&tiny(), &[]);
    let (_, _watch) = worker.ready().await;
    let stop = StopRequest { stamp: Some(STAMP), grace_ms: 0, cause: "test".into() };
    worker.life.stop(stop).await.expect("obeys");
    assert_eq!(worker.wait_end().await, Some(0));
    assert!(
        !worker.dir.path().join("target.sock").exists()
            && !worker.dir.path().join("target.json").exists()
    );
}

#[tokio::test]
async fn the_worker_ends_when_its_lease_is_over() {
    let mut worker = Worker::start(&tiny(), &[("PACELINE_SUPERVISOR__LEASE_S", "1")]);
    let (_, watch) = worker.ready().await;
    drop(watch);
    worker.client = TargetClient::new(paceline_process::socket::channel("/nowhere".into()));
    worker.life = WorkerClient::new(paceline_process::socket::channel("/nowhere".into()));
    assert_eq!(worker.wait_end().await, Some(0));
    assert!(!worker.dir.path().join("target.sock").exists());
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_is_reported_and_ends_the_worker() {
    let mut worker = Worker::start(Path::new("/tmp"), &[]);
    let (beats, _watch) = worker.ready().await;
    let last = beats.last().expect("a beat");
    assert_eq!(last.phase(), WorkerPhase::Failed);
    assert!(last.failure.contains("config.json"), "{}", last.failure);
    assert_eq!(worker.wait_end().await, Some(65));
}
