//! The engine and its vision tower: one slice of work at a time, and what came out, until nobody
//! reads it any more. Which picture, how far, and what is kept is the core's to say (`core/tower`).

use std::collections::HashMap;
use std::ops::Range;

use paceline_models::vision::{Features, ImagePixels, TowerPass};
use paceline_models::{Array, ModelError, Override};
use paceline_process::clock::monotonic_ns;
use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::status::{Reason, ReasonStatus as _};

use super::Engine;
use crate::core::{ImageKey, Sequence, SequenceKey, TowerSlice};

/// Arrays of pictures, by what the core calls them. Not `Send`, as its arrays.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    passes: HashMap<ImageKey, TowerPass>,
    features: HashMap<ImageKey, Features>,
}

impl Seen {
    /// What stands in place of these rows of a picture, the first of which is the batch's row `at`.
    ///
    /// # Errors
    /// Its features are not there; MLX's own.
    pub(crate) fn rows(
        &self,
        image: &ImageKey,
        rows: Range<usize>,
        at: i32,
    ) -> Result<Override, ModelError> {
        let missing = || {
            ModelError::Batch(
                "rows of a picture are to be read before it went through the tower".into(),
            )
        };
        let features = self.features.get(image).ok_or_else(missing)?;
        let batch_rows = (at..at + rows.len() as i32).collect();
        if rows.len() == features.rows() as usize {
            let Features { embeddings, after_layer } = features.clone();
            return Ok(Override { rows: batch_rows, embeddings, after_layer });
        }
        let places: Vec<i32> = (rows.start as i32..rows.end as i32).collect();
        let places = Array::from_slice(&places, &[places.len() as i32]);
        let part = |array: &Array| array.take_axis(&places, 0);
        let after_layer =
            features.after_layer.iter().map(|(layer, array)| Ok((*layer, part(array)?)));
        let after_layer = after_layer.collect::<Result<_, ModelError>>()?;
        Ok(Override { rows: batch_rows, embeddings: part(&features.embeddings)?, after_layer })
    }
}

impl Engine {
    /// Lets go of what the core does not name any more: requests were cancelled, or others needed
    /// the room.
    pub(super) fn forget_pictures(&mut self) {
        let Self { seen, scheduler, .. } = self;
        seen.passes.retain(|image, _| scheduler.tower.is_under_way(image));
        seen.features.retain(|image, _| scheduler.tower.has(image));
    }

    /// Does a slice of the tower's work.
    pub(super) fn run_slice(&mut self, slice: TowerSlice) {
        // A long step: nobody's tokens wait for its end.
        for running in self.running.values_mut() {
            let _ = running.outlet.flush();
        }
        self.progress.set_phase(WorkerPhase::Prefill);
        self.tidy = false;
        let started_ns = monotonic_ns();
        let outcome = self.advance(slice);
        let ended_ns = monotonic_ns();
        // It is nobody's step: neither what text costs nor what drafts do is learnt from it.
        self.mark_ns = ended_ns;
        self.drafting.saw();
        let took_us = ((ended_ns - started_ns) / 1000) as u64;
        self.progress.tower_done(took_us);
        for key in self.who_waits_for(&slice.image) {
            if let Some(running) = self.running.get_mut(&key) {
                running.stages.saw(took_us);
            }
        }
        match outcome {
            Ok((patches, features)) => {
                self.scheduler.tower.sliced(slice.image, patches, slice.blocks, took_us);
                if let Some(features) = features {
                    self.scheduler.tower.finished(slice.image, features.bytes());
                    self.seen.features.insert(slice.image, features);
                }
            }
            Err(error @ ModelError::Mlx(_)) => self.break_down(&error),
            Err(error) => {
                tracing::error!(%error, sequence = slice.owner.0, "a picture cannot go through the tower");
                let status = Reason::Bug.status(
                    "the engine failed on a picture of this request; the log has the reason",
                );
                for key in self.who_has(&slice.image) {
                    self.end(key, Some(status.clone()));
                }
            }
        }
    }

    fn advance(&mut self, slice: TowerSlice) -> Result<(u32, Option<Features>), ModelError> {
        let missing = |what: &str| {
            ModelError::Batch(format!("expected {what} of sequence {}, found none", slice.owner.0))
        };
        let vision = self.model.vision().ok_or_else(|| missing("a vision tower for a picture"))?;
        let mut pass = match self.seen.passes.remove(&slice.image) {
            Some(pass) => pass,
            None => {
                let pictures =
                    self.running.get(&slice.owner).map(|running| &running.checked.pictures);
                let picture = pictures
                    .and_then(|pictures| pictures.get(slice.index))
                    .ok_or_else(|| missing("a picture"))?;
                vision.begin(&ImagePixels {
                    pixels: &picture.pixels,
                    rows: picture.rows,
                    columns: picture.columns,
                    scale: picture.scale,
                    bias: picture.bias,
                })?
            }
        };
        let patches = pass.patches();
        let features = vision.advance(&mut pass, slice.blocks)?;
        if features.is_none() {
            self.seen.passes.insert(slice.image, pass);
        }
        Ok((patches, features))
    }

    /// Sequences that have this picture and did not read it yet.
    fn who_waits_for(&self, image: &ImageKey) -> Vec<SequenceKey> {
        let waits = |one: &Sequence| one.unread_images().any(|(_, one)| one.key == *image);
        self.scheduler.iter().filter(|(_, one)| waits(one)).map(|(key, _)| key).collect()
    }

    /// Sequences with this picture.
    fn who_has(&self, image: &ImageKey) -> Vec<SequenceKey> {
        let has =
            self.scheduler.iter().filter(|(_, one)| one.images.iter().any(|one| one.key == *image));
        has.map(|(key, _)| key).collect()
    }
}
