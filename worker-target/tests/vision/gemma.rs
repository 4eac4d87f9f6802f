//! Gemma 4 with images: windows beside images, whose rows are never cut, and positions on one axis.

use futures::future::join_all;

use crate::requests::{EDGE, ImageRequest, UNIFIED, VisionModel, WINDOWED, golden};
use crate::vision_worker::VisionWorker;

async fn check(model: VisionModel) {
    let worker = VisionWorker::of(model, &[]).await;
    let golden = golden(model);
    assert!(golden.iter().any(|(one, _)| one.images.len() > 1), "several images in one request");
    for (one, expected) in &golden {
        // The second time its prompt is cached.
        for _ in 0..2 {
            let found = worker.ask(&one.scope("alone")).await.0;
            assert_eq!(found, *expected, "{}", one.generation.request_id);
        }
    }
    // All at one moment, each twice.
    let twice = || golden.iter().chain(&golden);
    let all: Vec<ImageRequest> = twice().map(|(one, _)| one.scope("together")).collect();
    let answers = join_all(all.iter().map(|one| worker.ask(one))).await;
    for (at, (found, (_, expected))) in answers.iter().zip(twice()).enumerate() {
        assert_eq!(found.0, *expected, "request {at} of them");
    }
    assert_eq!((worker.left_over(), worker.held_bytes().await), (0, 0));
}

#[tokio::test]
async fn answers_to_images_whose_rows_attend_both_ways_equal_the_reference() {
    check(WINDOWED).await;
}

#[tokio::test]
async fn answers_of_the_model_without_a_tower_equal_the_reference() {
    check(UNIFIED).await;
}

#[tokio::test]
async fn answers_of_an_edge_model_to_images_equal_the_reference() {
    check(EDGE).await;
}
