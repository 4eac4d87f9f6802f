//! A target with states and a vision tower: an image's rows change the states as any others do.

use crate::requests::{HYBRID, Image, ImageRequest, TestImage, Text, request};
use crate::vision_worker::VisionWorker;
use crate::{check_drafts, check_reference};

#[tokio::test]
async fn answers_of_a_target_with_states_equal_the_reference_alone_and_in_a_batch() {
    check_reference(HYBRID).await;
}

#[tokio::test]
async fn drafts_after_images_change_no_token_of_a_target_with_states() {
    check_drafts(HYBRID).await;
}

#[tokio::test]
async fn resumption_in_the_middle_of_an_answer_changes_no_token_of_a_target_with_states() {
    let (tall, wide) = (TestImage::random(20, 12, 1), TestImage::random(8, 30, 2));
    // A cold worker's first chunk has 256 rows and ends inside the second image.
    let pieces = [Text(130, 1), Image(&tall), Text(30, 2), Image(&wide), Text(60, 3)];
    let long = request(&pieces, 50);
    let end = long.generation.images[1].first as usize + wide.places();
    assert!((end - wide.places()..end).contains(&256), "{end}");
    let worker = VisionWorker::of(HYBRID, &[]).await;
    let greedy: ImageRequest = long.scope("greedy");
    for (what, one) in [("greedy", greedy), ("warm", long.warm(5).scope("warm"))] {
        let expected = worker.ask(&one).await.0;
        assert_eq!(expected.len(), 50, "{what}");
        for given in [1, 17, 49] {
            let (rest, _) = worker.ask(&one.continued(&expected[..given])).await;
            assert_eq!(rest, expected[given..], "{what}, {given} given");
        }
    }
    assert_eq!((worker.held_bytes().await, worker.left_over()), (0, 0));
}
