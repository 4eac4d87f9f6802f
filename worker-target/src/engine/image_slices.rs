//! Slices of the vision tower: a step of their own, between steps with rows.

use paceline_models::ModelError;
use paceline_models::vision::{Features, ImagePixels};
use paceline_proto::internal::v1::WorkerPhase;
use paceline_system::clock::monotonic_ns;
use paceline_target_core::{ImageKey, Sequence, SequenceKey, TowerSlice};

use super::Engine;

/// Result of a slice.
struct SliceOutcome {
    patches: u32,
    /// The image's features, after its last slice.
    features: Option<Features>,
}

impl Engine {
    /// Runs a slice of the vision tower.
    pub(super) fn run_slice(&mut self, slice: TowerSlice) {
        self.flush_all();
        self.progress.set_phase(WorkerPhase::Prefill);
        self.is_trimmed = false;
        let started_ns = monotonic_ns();
        let outcome = self.advance(slice);
        let ended_ns = monotonic_ns();
        // The slice is neither a step with rows nor a draft: no cost is measured from it.
        self.mark_ns = ended_ns;
        self.drafting.tower_stepped();
        let took_us = ((ended_ns - started_ns) / 1000) as u64;
        self.progress.tower_done(took_us);
        let waiting = self.waiting_for(&slice.image);
        self.log_slice(slice, &waiting, took_us);
        for key in waiting {
            if let Some(running) = self.running.get_mut(&key) {
                running.first_token.add_tower(took_us);
            }
        }
        match outcome {
            Ok(SliceOutcome { patches, features }) => {
                self.scheduler.tower.sliced(slice.image, patches, slice.blocks, took_us);
                if let Some(features) = features {
                    self.scheduler.tower.finished(slice.image, features.bytes());
                    self.features.put(slice.image, features);
                }
            }
            Err(error @ ModelError::Mlx(_)) => self.fail(&error),
            Err(error) => self.refuse_image(slice, &error),
        }
    }

    /// Ends the requests with an image that the tower cannot take.
    fn refuse_image(&mut self, slice: TowerSlice, error: &ModelError) {
        for key in self.having(&slice.image) {
            let request_id = self.request_id(key);
            tracing::error!(
                error = paceline_process::chain(error),
                request_id,
                sequence = key.0,
                "an image cannot go through the vision tower"
            );
            self.end_with_bug(
                key,
                "the engine failed on an image of this request; the log has the reason",
            );
        }
    }

    fn advance(&mut self, slice: TowerSlice) -> Result<SliceOutcome, ModelError> {
        let missing = |what: &str| {
            ModelError::Batch(format!("expected {what} of sequence {}, found none", slice.owner.0))
        };
        let vision = self.model.vision().ok_or_else(|| missing("a vision tower for an image"))?;
        let mut pass = match self.features.take_pass(&slice.image) {
            Some(pass) => pass,
            None => {
                let images = self.running.get(&slice.owner).map(|running| &running.request.images);
                let image = images
                    .and_then(|images| images.get(slice.index))
                    .ok_or_else(|| missing("an image"))?;
                vision.begin(&ImagePixels {
                    pixels: &image.pixels,
                    rows: image.rows,
                    columns: image.columns,
                    scale: image.scale,
                    bias: image.bias,
                })?
            }
        };
        let patches = pass.patches();
        let features = vision.advance(&mut pass, slice.blocks)?;
        if features.is_none() {
            self.features.put_pass(slice.image, pass);
        }
        Ok(SliceOutcome { patches, features })
    }

    /// Sequences that have this image and did not read all of its rows.
    fn waiting_for(&self, image: &ImageKey) -> Vec<SequenceKey> {
        let waits = |one: &Sequence| one.unread_images().any(|(_, one)| one.key == *image);
        self.scheduler.iter().filter(|(_, one)| waits(one)).map(|(key, _)| key).collect()
    }

    /// Sequences that have this image.
    fn having(&self, image: &ImageKey) -> Vec<SequenceKey> {
        let has = |one: &Sequence| one.images.iter().any(|one| one.key == *image);
        self.scheduler.iter().filter(|(_, one)| has(one)).map(|(key, _)| key).collect()
    }
}
