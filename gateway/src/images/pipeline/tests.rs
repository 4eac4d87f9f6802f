use std::path::Path;

use paceline_process::{Config, RuntimeDir};
use paceline_text::images::Detail;
use paceline_text::samples::processor;
use paceline_vocabulary::Reason;

use super::*;
use crate::images::prepare;

fn encoded(count: usize) -> Vec<EncodedImage> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden/images").join("up.png");
    let file = std::fs::read(path).expect("in the repository");
    let one = |at: usize| EncodedImage {
        field: format!("messages[0].content[{at}]"),
        source: ImageSource::File(file.clone().into()),
        detail: Detail::Full,
    };
    (0..count).map(one).collect()
}

/// A pipeline with its store in `dir`.
fn pipeline_of(dir: &Path) -> ImagePipeline {
    let mut config = Config::default();
    config.supervisor.runtime_dir = dir.display().to_string();
    let dir = RuntimeDir::locate(&config).expect("a short path");
    prepare(&dir).expect("made");
    ImagePipeline::new(ImageStore::new(&dir, 1), &config.limits)
}

#[tokio::test]
async fn a_model_without_vision_refuses_images_and_too_many_are_refused() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let (pipeline, processor) = (pipeline_of(temp.path()), Arc::new(processor()));
    assert!(pipeline.inspect(vec![], 0, None).await.expect("text is fine").is_empty());
    let error = pipeline.inspect(encoded(1), 0, None).await.expect_err("no vision");
    assert_eq!(error.reason(), Reason::NoVision);
    let words = "messages[0].content[0]: Could not process image";
    assert!(error.to_string().starts_with(words), "{error}");
    let of_text = pipeline_of(temp.path()).with_text_alone(true);
    let error = of_text.inspect(encoded(1), 0, None).await.expect_err("text alone");
    assert_eq!(error.reason(), Reason::NoVision);
    assert!(error.to_string().contains("text alone (target.vision = false)"), "{error}");

    let at_limit = pipeline.inspect(encoded(8), 0, Some(&processor)).await;
    assert_eq!(at_limit.expect("as many as may be").len(), 8);
    let error = pipeline.inspect(encoded(9), 0, Some(&processor)).await.expect_err("too many");
    assert_eq!(error.reason(), Reason::BadImage);
    assert_eq!(
        error.to_string(),
        "messages[0].content[8]: Could not process image: expected at most 8 images in a request (limits.max_images), \
         found 9"
    );
}

#[tokio::test]
async fn images_of_earlier_turns_are_left_out_if_they_are_too_many_or_cannot_be_served() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let (pipeline, processor) = (pipeline_of(temp.path()), Arc::new(processor()));
    let kept = async |images: Vec<EncodedImage>, earlier: usize| {
        let inspected = pipeline.inspect(images, earlier, Some(&processor)).await;
        let inspected = inspected.map_err(|error| error.reason())?;
        Ok(inspected
            .iter()
            .map(|image| if image.is_some() { '1' } else { '0' })
            .collect::<String>())
    };
    for (count, earlier, expected) in [
        (8, 7, Ok("11111111")),
        (9, 8, Ok("001111111")),
        (10, 9, Ok("0011111111")),
        (11, 10, Ok("00001111111")),
        // New images are all kept.
        (9, 1, Ok("011111111")),
        (12, 3, Err(Reason::BadImage)),
    ] {
        let found = kept(encoded(count), earlier).await;
        assert_eq!(found, expected.map(str::to_owned), "{count} images, {earlier} earlier");
    }
    let mut broken = encoded(3);
    broken[1].source = ImageSource::Address("https://example.com/a.png".into());
    assert_eq!(kept(broken.clone(), 2).await, Ok("101".to_owned()));
    assert_eq!(kept(broken, 1).await, Err(Reason::BadImage));
    let blind = pipeline.inspect(encoded(2), 2, None).await.expect("both are earlier");
    assert!(blind.len() == 2 && blind.iter().all(Option::is_none));
    let error = pipeline.inspect(encoded(2), 1, None).await.expect_err("one is new");
    assert_eq!(error.field(), Some("messages[0].content[1]"));
}

#[tokio::test]
async fn two_images_are_worked_on_and_others_wait_a_bounded_time() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let (pipeline, processor) = (pipeline_of(temp.path()), Arc::new(processor()));
    let hurried = || ImagePipeline {
        queue_wait: Duration::from_millis(20),
        seats: Arc::clone(&pipeline.seats),
        decoding_memory: Arc::clone(&pipeline.decoding_memory),
        store: Arc::clone(&pipeline.store),
        ..pipeline
    };
    let inspected = pipeline.inspect(encoded(2), 0, Some(&processor)).await.expect("good files");
    let inspected: Vec<_> = inspected.into_iter().flatten().collect();
    assert_eq!((inspected.len(), inspected[0].tokens), (2, 6));
    let header = Header { decoding_bytes: DECODING_BYTES, ..inspected[0].header.clone() };
    let all_memory = pipeline.permit(&header).await.expect("free");
    let second_seat = Arc::clone(&pipeline.seats).acquire_owned().await.expect("free");
    let error = hurried().inspect(encoded(1), 0, Some(&processor)).await.expect_err("no seat");
    assert_eq!(error.reason(), Reason::QueueWait);
    assert!(error.to_string().contains("limits.queue_wait_s"), "{error}");
    drop(second_seat);
    // A seat is free, and no memory.
    let error = hurried().verify(inspected).await.expect_err("no memory");
    assert_eq!(error.reason(), Reason::QueueWait);
    drop(all_memory);
    let inspected = pipeline.inspect(encoded(2), 0, Some(&processor)).await.expect("free again");
    let inspected = inspected.into_iter().flatten().collect();
    let mut stored = pipeline.store(inspected, &processor).await.expect("memory is free");
    stored.place(&[3, 9]);
    let starts =
        |images: &[PromptImage]| images.iter().map(|image| image.start).collect::<Vec<_>>();
    assert_eq!(starts(stored.images()), [3, 9]);
    let linked = stored.link_again().expect("linked");
    assert_eq!(starts(&linked), [3, 9]);
    assert_ne!(linked[0].file, stored.images()[0].file);
    assert_eq!(
        (pipeline.seats.available_permits(), pipeline.decoding_memory.available_permits()),
        (2, (DECODING_BYTES / BYTES_PER_PERMIT) as usize)
    );
}
