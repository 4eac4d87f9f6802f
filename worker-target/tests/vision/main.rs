//! Requests with images through the real worker, on a tiny Qwen3-VL and on a tiny Qwen3.5. An answer
//! is a pure function of the request (I1): other requests, chunks and the cache change no token. An
//! image that cannot be used fails its own request and no other (I5).

mod gemma;
#[cfg(any(debug_assertions, feature = "test-graph"))]
mod graphs;
mod hybrid;
mod requests;
#[path = "../stage/mod.rs"]
mod stage;
mod vision_worker;

use std::sync::Arc;

use futures::future::join_all;
use paceline_link::{End, LinkError};
use paceline_proto::internal::v1::{CancelRequest, DescribeRequest, Generation};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind};
use tonic_types::StatusExt as _;

use requests::{
    ATTENDING, HYBRID, Image, ImageRequest, LINES, NEIGHBOURS, PAGE, SECTIONS, TestImage, Text,
    VOCAB, VisionModel, golden, request, texts,
};
use stage::drafter::{Known, Script, oracle, propose_ids, propose_rows, roll};
use stage::{BOUND, STAMP, Worker, open, plain_permit, tiny};
use vision_worker::VisionWorker;

#[tokio::test]
async fn answers_equal_the_reference_alone_and_in_a_batch() {
    check_reference(ATTENDING).await;
}

#[tokio::test]
async fn answers_of_a_glm_equal_the_reference_alone_and_in_a_batch() {
    check_reference(NEIGHBOURS).await;
}

#[tokio::test]
async fn answers_about_images_on_axes_in_sections_and_of_lines_equal_the_reference() {
    check_reference(SECTIONS).await;
    check_reference(LINES).await;
}

async fn check_reference(model: VisionModel) {
    let worker = VisionWorker::of(model, &[]).await;
    let golden = golden(model);
    assert!(golden.iter().any(|(one, _)| one.images.len() > 1), "several images in one request");
    let mut about = worker.process.client.clone();
    let described = about
        .describe(DescribeRequest { stamp: Some(STAMP) })
        .await
        .expect("described")
        .into_inner();
    assert!(described.model.expect("a model").vision && described.image_patch_bytes > 0);
    for (one, expected) in &golden {
        assert_eq!(
            worker.ask(&one.scope("alone")).await.0,
            *expected,
            "{}",
            one.generation.request_id
        );
    }
    let texts = texts();
    let mut plain = vec![];
    for text in &texts {
        plain.push(worker.ask(&text.scope("alone")).await.0);
    }
    // All images at one moment, each twice, beside eight streams of text.
    let all: Vec<ImageRequest> = texts
        .iter()
        .chain(golden.iter().map(|(one, _)| one))
        .chain(golden.iter().map(|(one, _)| one))
        .cloned()
        .collect();
    let all: Vec<ImageRequest> = all.iter().map(|one| one.scope("together")).collect();
    let answers = join_all(all.iter().map(|one| worker.ask(one))).await;
    let greedy = || golden.iter().map(|(_, expected)| expected);
    for (at, (found, expected)) in
        answers.iter().zip(plain.iter().chain(greedy()).chain(greedy())).enumerate()
    {
        assert_eq!(found.0, *expected, "request {at} of them");
    }
    assert_eq!((worker.left_over(), worker.held_bytes().await), (0, 0));
}

#[tokio::test]
async fn chunks_cache_and_resumption_change_no_token() {
    let (tall, wide) = (TestImage::random(20, 12, 1), TestImage::random(8, 30, 2));
    // A cold worker's first chunk has 256 rows and ends inside the second image.
    let long = request(&[Text(130, 1), Image(&tall), Text(30, 2), Image(&wide), Text(60, 3)], 50);
    let (first, end) = (
        long.generation.images[1].first as usize,
        long.generation.images[1].first as usize + wide.places(),
    );
    assert!(first < 256 && 256 < end, "{first}..{end}");
    let worker = VisionWorker::new(&[("PACELINE_KV__PREFIX_CACHE", "true")]).await;
    let (expected, done) = worker.ask(&long).await;
    assert_eq!((expected.len(), done.cached_tokens), (50, 0));
    // Fast rows make long chunks: in one, or in other ones.
    assert_eq!(worker.ask(&long.scope("other")).await.0, expected);
    // The cache has all of its pages, and then neither tower nor features are needed.
    let (found, done) = worker.ask(&long).await;
    assert_eq!(
        (found, done.cached_tokens as usize),
        (expected.clone(), (long.prompt().len() - 1) / PAGE * PAGE)
    );
    // Other text after the second image: what is found ends inside it, and the rest of its rows
    // are read.
    let other = vec![9; long.prompt().len() - end];
    let prompt_ids = [&long.prompt()[..end], &other].concat();
    let other = ImageRequest {
        generation: Generation { prompt_ids, ..long.generation.clone() },
        images: long.images.clone(),
    };
    let (fresh, again) = (worker.ask(&other.scope("fresh")).await.0, worker.ask(&other).await);
    assert_eq!((&again.0, again.1.cached_tokens as usize), (&fresh, end / PAGE * PAGE));
    assert!(first < end / PAGE * PAGE && fresh != expected);
    // Text, with the ids of images' neighbours, where the second image was.
    let prompt_ids =
        [&long.prompt()[..first], &vec![7; wide.places()], &long.prompt()[end..]].concat();
    let images = long.generation.images[..1].to_vec();
    let one = ImageRequest {
        generation: Generation { prompt_ids, images, ..long.generation.clone() },
        images: vec![tall],
    };
    let (fresh, again) = (worker.ask(&one.scope("fresh")).await.0, worker.ask(&one).await);
    assert_eq!((again.0, again.1.cached_tokens as usize), (fresh, first / PAGE * PAGE));
    // Resumed in the middle of its answer, with and without what is kept.
    for given in [1, 17, 49] {
        for scope in ["", "resumed"] {
            let (rest, _) = worker.ask(&long.continued(&expected[..given]).scope(scope)).await;
            assert_eq!(rest, expected[given..], "{given} given, scope {scope:?}");
        }
    }
    // Warm streams likewise.
    let warm = long.warm(5);
    let (expected, _) = worker.ask(&warm.scope("w1")).await;
    assert_eq!(worker.ask(&warm).await.0, expected);
    assert_eq!(worker.ask(&warm.continued(&expected[..20]).scope("w2")).await.0, expected[20..]);
    // The same by a worker that keeps nothing.
    let without = VisionWorker::new(&[("PACELINE_KV__PREFIX_CACHE", "false")]).await;
    let (found, done) = without.ask(&warm).await;
    assert_eq!((found, done.cached_tokens), (expected, 0));
}

#[tokio::test]
async fn pages_of_one_image_are_never_used_for_another() {
    let worker = VisionWorker::new(&[]).await;
    let images: Vec<TestImage> = (0..4).map(|seed| TestImage::random(16, 16, 10 + seed)).collect();
    let see = |image: &TestImage| request(&[Text(70, 1), Image(image), Text(80, 2)], 40);
    let mut answers = vec![];
    for image in &images {
        let (answer, done) = worker.ask(&see(image)).await;
        // The page before the image is all they have in common.
        assert_eq!(done.cached_tokens as usize, if answers.is_empty() { 0 } else { PAGE });
        assert!(done.tower_ms > 0.0 && done.prefill_ms > 0.0, "both took time: {done:?}");
        answers.push(answer);
    }
    for (at, answer) in answers.iter().enumerate() {
        assert!(answers[..at].iter().all(|other| other != answer), "images change the answer");
        let (again, done) = worker.ask(&see(&images[at])).await;
        assert_eq!((&again, done.cached_tokens as usize), (answer, (70 + 64 + 79) / PAGE * PAGE));
        assert!(
            done.tower_ms == 0.0 && done.prefill_ms > 0.0,
            "its rows were there, and the rest was read: {done:?}"
        );
    }
    // The same pixels as another grid, and seen with other eyes.
    let turned = TestImage { rows: 8, columns: 32, ..images[0].clone() };
    assert_ne!(worker.ask(&see(&turned)).await.0, answers[0]);
    let mut dark = see(&images[0]);
    dark.generation.images[0].bias = vec![-0.5; 3];
    let status =
        worker.run(worker.submitted(&dark), None).await.expect_err("the digest is of all of it");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
    // Scopes share no image.
    let (other, done) = worker.ask(&see(&images[0]).scope("x")).await;
    assert_eq!((&other, done.cached_tokens), (&answers[0], 0));
    assert!(done.tower_ms > 0.0, "{done:?}");
}

#[tokio::test]
async fn a_preempted_sequence_recomputes_its_images() {
    // Rows of 768 bytes: room for a sequence of 1,024 positions and hardly more, or for two of half
    // as many.
    let worker = VisionWorker::new(&[
        ("PACELINE_KV__BUDGET_BYTES", "860000"),
        ("PACELINE_KV__PREFIX_CACHE", "false"),
    ])
    .await;
    let image = TestImage::random(16, 12, 3);
    let young =
        request(&[Text(20, 1), Image(&image), Text(30, 2), Image(&image), Text(10, 3)], 140)
            .warm(3);
    // It outgrows its first half of the room after 92 tokens, and then the younger request has the
    // other half.
    let old = request(&[Text(420, 4)], 180);
    let (expected, text) = (worker.ask(&young).await.0, worker.ask(&old).await.0);
    assert!(!worker.process.log().contains("request preempted"));
    let (first, second) = worker.ask_together(&old, &young).await;
    assert_eq!((first.0, second.0), (text, expected));
    let log = worker.process.log();
    let preempted = log.lines().find(|line| line.contains("request preempted"));
    assert!(preempted.is_some_and(|line| line.contains("request_id=\"r-")), "{log}");
    assert_eq!(worker.held_bytes().await, 0);
}

#[tokio::test]
async fn drafts_after_images_change_no_token() {
    check_drafts(ATTENDING).await;
}

async fn check_drafts(model: VisionModel) {
    let mut worker = VisionWorker::of(model, &[]).await;
    let (one, two) = (TestImage::random(12, 20, 5), TestImage::random(6, 8, 6));
    let mut requests = vec![
        request(&[Text(10, 1), Image(&one), Text(20, 2)], 60),
        request(&[Text(10, 1), Image(&one), Text(20, 2)], 60).warm(9),
        request(&[Image(&two), Text(5, 3), Image(&one), Image(&two), Text(3, 4)], 60),
        request(&[Text(200, 5), Image(&two), Text(90, 6)], 60).warm(4),
    ];
    requests.extend(texts().into_iter().take(4));
    let mut plain = vec![];
    for request in &requests {
        plain.push(worker.ask(request).await.0);
    }
    let known: Known = Arc::default();
    for (request, plain) in requests.iter().zip(&plain) {
        known.lock().expect("not poisoned").push([request.prompt(), plain].concat());
    }
    let mut seed = 7;
    let guess = move |end: &mut End, feed: &Feed| {
        let own = roll(&mut seed);
        propose_ids(end, feed, |request| {
            (0..request.block - 1).map(|at| ((own + u64::from(at)) % VOCAB) as u32).collect()
        })
    };
    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| -> Result<bool, LinkError> {
        propose_rows(end, feed, model.hidden, &mut seed)
    };
    let drafters: [(&str, ProposalKind, Script); 3] = [
        ("perfect drafts", ProposalKind::Tokens, oracle(known)),
        ("guessed ids", ProposalKind::Tokens, Box::new(guess)),
        ("random rows", ProposalKind::Hidden, Box::new(rows)),
    ];
    for ((what, proposal, script), generation) in drafters.into_iter().zip(1..) {
        worker.attach(generation, proposal, script).await;
        for scope in ["", what] {
            // From the cache, and read anew.
            let all: Vec<ImageRequest> =
                requests.iter().map(|request| request.scope(scope)).collect();
            let mut counts = vec![v1::Speculation::default(); all.len()];
            let mut left: Vec<usize> = (0..all.len()).collect();
            let every_one_drafts = async {
                // On a busy machine all drafts of a short stream may be late. Such a stream runs
                // once more.
                while !left.is_empty() {
                    let answers = join_all(left.iter().map(|at| worker.drafted(&all[*at]))).await;
                    for (at, (found, done)) in left.iter().zip(answers) {
                        assert_eq!(found, plain[*at], "{what}, scope {scope:?}, request {at}");
                        counts[*at] = done.speculation.expect("counted");
                    }
                    left.retain(|at| counts[*at].cycles == 0);
                }
            };
            let in_time = tokio::time::timeout(BOUND, every_one_drafts).await;
            assert!(in_time.is_ok(), "{what}, scope {scope:?}, in {BOUND:?}: {counts:?}");
            if what == "perfect drafts" {
                let sum = |of: fn(&v1::Speculation) -> u64| counts[..4].iter().map(of).sum::<u64>();
                assert!(
                    sum(|one| one.accepted) * 10 >= sum(|one| one.drafted) * 8,
                    "images first: {counts:?}"
                );
            }
        }
    }
}

/// A drafter that reads hidden states gets those of an image's rows as of any others: they depend on
/// the pixels, and so do those of the text after the image.
#[tokio::test]
async fn a_drafter_gets_the_hidden_states_of_images() {
    for model in [ATTENDING, HYBRID] {
        let mut worker = VisionWorker::of(model, &[]).await;
        let seen = worker.watch_rows(1).await;
        let mut of_images = vec![];
        for seed in [5, 6] {
            let image = TestImage::random(12, 20, seed);
            let one = request(&[Text(10, 1), Image(&image), Text(20, 2)], 30);
            seen.lock().expect("not poisoned").clear();
            worker.drafted(&one).await;
            let length = one.prompt().len();
            let all_came = async {
                while seen.lock().expect("not poisoned").len() < length {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(BOUND, all_came).await.expect("the prompt's rows come");
            let seen = seen.lock().expect("not poisoned");
            let rows: Vec<Vec<u8>> = seen.values().take(length).cloned().collect();
            of_images.push((one, rows));
        }
        let [(one, first), (_, second)] = of_images.as_slice() else { panic!("two") };
        for (at, (id, rows)) in one.prompt().iter().zip(first.iter().zip(second)).enumerate() {
            // Before the image the rows may differ in their last bits: they are read in other pieces.
            assert!(at < 10 || rows.0 != rows.1, "{model:?}, position {at}, id {id}");
            let halves = rows.0.chunks(rows.0.len() / 2);
            let is_empty = |half: &[u8]| half.iter().all(|byte| *byte == 0);
            assert!(!halves.into_iter().any(is_empty), "{model:?}, position {at}: zeros");
        }
    }
}

/// Images of one size in the same text: each request gets the answer about its own, also while
/// others come and go.
#[tokio::test]
async fn images_of_requests_that_run_at_once_are_not_mixed_up() {
    for model in [ATTENDING, HYBRID] {
        let worker = VisionWorker::of(model, &[]).await;
        let images: Vec<TestImage> = (20..32).map(|seed| TestImage::random(6, 8, seed)).collect();
        let about = |image: &TestImage, scope: &str| {
            request(&[Text(10, 1), Image(image), Text(5, 2)], 24).warm(3).scope(scope)
        };
        let mut alone = vec![];
        for image in &images {
            alone.push(worker.ask(&about(image, "alone")).await.0);
        }
        let different: std::collections::BTreeSet<_> = alone.iter().collect();
        assert_eq!(different.len(), images.len(), "{model:?}: a mix-up would not be seen");
        for round in 0..4 {
            let scope = format!("round {round}");
            let stays = images.iter().enumerate().filter(|(at, _)| at % 4 != round);
            let stays: Vec<usize> = stays.map(|(at, _)| at).collect();
            let leave = images.iter().skip(round).step_by(4).map(async |image| {
                let one = worker.submitted(&about(image, &scope));
                let client = worker.process.client.clone();
                let mut stream = open(client, one, plain_permit()).await.expect("served");
                stream.message().await.expect("served").expect("a token");
            });
            let asked: Vec<_> = stays.iter().map(|at| about(&images[*at], &scope)).collect();
            let stay = join_all(asked.iter().map(|one| worker.ask(one)));
            let (answers, _) = tokio::join!(stay, join_all(leave));
            for (at, (answer, _)) in stays.iter().zip(answers) {
                assert_eq!(answer, alone[*at], "{model:?}, {scope}, image {at}");
            }
        }
    }
}

/// Change to a request before it is sent.
type Damage = fn(&VisionWorker, &mut Generation);

#[tokio::test]
async fn an_unusable_image_fails_its_request_alone() {
    let worker = VisionWorker::new(&[]).await;
    let image = TestImage::random(8, 8, 1);
    let good = request(&[Text(10, 1), Image(&image), Text(10, 2), Image(&image), Text(5, 3)], 20);
    let (expected, _) = worker.ask(&good).await;
    let text = request(&[Text(40, 9)], 200);
    let (beside, _) = worker.ask(&text).await;
    let broken: [(&str, &str, Damage); 8] = [
        ("missing", "images[1].file", |worker, g| {
            std::fs::remove_file(worker.folder().join(&g.images[1].file)).expect("there")
        }),
        ("too short", "images[0].file", |worker, g| {
            std::fs::write(worker.folder().join(&g.images[0].file), [7; 99]).expect("writable")
        }),
        ("other pixels", "images[1].digest", |worker, g| {
            std::fs::write(
                worker.folder().join(&g.images[1].file),
                vec![7; g.images[1].bytes as usize],
            )
            .expect("writable");
        }),
        ("another folder", "images[0].file", |_, g| g.images[0].file = "../target.sock".into()),
        ("another size", "images[0].bytes", |_, g| g.images[0].bytes += 1),
        ("no digest", "images[0].digest", |_, g| g.images[0].digest = vec![].into()),
        ("another place", "prompt_ids", |_, g| g.images[0].first += 1),
        ("a place without one", "prompt_ids", |_, g| g.images.truncate(1)),
    ];
    let stream = worker.ask(&text);
    let all = async {
        for (what, field, damage) in broken {
            let mut generation = worker.submitted(&good);
            damage(&worker, &mut generation);
            let status = worker.run(generation, None).await.expect_err(what);
            let named =
                status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone());
            assert_eq!(
                (Reason::of(&status), named.as_deref()),
                (Some(Reason::InvalidArgument), Some(field)),
                "{what}: {status}"
            );
            assert_eq!(worker.ask(&good).await.0, expected, "after {what}");
        }
    };
    let ((found, _), ()) = tokio::join!(stream, all);
    assert_eq!(found, beside);
    assert_eq!(worker.held_bytes().await, 0);

    let mut blind = Worker::start(&tiny(), &[]);
    blind.ready().await;
    let status = blind.generate(worker.submitted(&good)).await.expect_err("it does not see");
    assert_eq!(Reason::of(&status), Some(Reason::NoVision));
}

#[tokio::test]
async fn a_large_image_runs_beside_streams_and_can_be_cancelled() {
    let worker = VisionWorker::new(&[]).await;
    let (large, small) = (TestImage::random(56, 56, 1), TestImage::random(8, 8, 2));
    let big = request(&[Text(5, 1), Image(&large), Text(5, 2)], 10);
    let little = request(&[Text(5, 1), Image(&small), Text(5, 2)], 30);
    let (of_big, of_little) =
        (worker.ask(&big.scope("alone")).await.0, worker.ask(&little.scope("alone")).await.0);
    let texts = texts();
    let mut plain = vec![];
    for text in &texts {
        plain.push(worker.ask(text).await.0);
    }
    let given_up = async {
        // Whatever it is doing at that moment, its memory is free then.
        for (at, requests) in [(0, 0), (1, 1), (2, 3), (3, 10)] {
            let generation = Generation {
                request_id: format!("up{at}"),
                ..worker.submitted(&big.scope(&format!("up{at}")))
            };
            let mut client = worker.process.client.clone();
            let cancelled = async {
                // A few requests later, wherever it is then.
                for _ in 0..requests {
                    worker.held_bytes().await;
                }
                loop {
                    let request =
                        CancelRequest { stamp: Some(STAMP), request_id: format!("up{at}") };
                    if client.cancel(request).await.expect("answered").into_inner().found {
                        return;
                    }
                }
            };
            let (answer, ()) = tokio::join!(worker.run(generation, None), cancelled);
            assert_eq!(Reason::of(&answer.expect_err("cancelled")), Some(Reason::Cancelled));
        }
    };
    let streams = join_all(texts.iter().map(|text| worker.ask(text)));
    let (big, little) = (big.scope("beside"), little.scope("beside"));
    let (answers, big_again, little_again, ()) =
        tokio::join!(streams, worker.ask(&big), worker.ask(&little), given_up);
    for (at, ((found, _), expected)) in answers.iter().zip(&plain).enumerate() {
        assert_eq!(found, expected, "stream {at}");
    }
    assert_eq!((big_again.0, little_again.0), (of_big, of_little));
    assert_eq!((worker.held_bytes().await, worker.left_over()), (0, 0));
}
