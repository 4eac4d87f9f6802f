//! Features of images: what the vision tower computed, and its passes under way. The core decides
//! which image is next, how far its pass goes, and which features stay (`target-core/tower`).

use std::collections::HashMap;
use std::ops::Range;

use paceline_models::vision::{Features, ImageEncoding};
use paceline_models::{Array, ModelError, Override};
use paceline_target_core::{ImageKey, Scheduler};

/// Arrays of images, by the core's name of each image. Not `Send`, because arrays are not.
#[derive(Debug, Default)]
pub(crate) struct ImageFeatures {
    passes: HashMap<ImageKey, ImageEncoding>,
    finished: HashMap<ImageKey, Features>,
}

impl ImageFeatures {
    /// The features that replace the embeddings of these rows of an image. The first of these rows
    /// is the batch's row `at`.
    ///
    /// # Errors
    /// The image's features do not exist; MLX's own.
    pub(crate) fn rows(
        &self,
        image: &ImageKey,
        rows: Range<usize>,
        at: i32,
    ) -> Result<Override, ModelError> {
        let missing = || {
            ModelError::Batch(
                "a step has rows of an image that did not go through the vision tower".into(),
            )
        };
        let features = self.finished.get(image).ok_or_else(missing)?;
        let batch_rows = (at..at + rows.len() as i32).collect();
        if rows.len() == features.rows() as usize {
            let Features { embeddings, after_layer } = features.clone();
            return Ok(Override { rows: batch_rows, embeddings, after_layer });
        }
        let indices: Vec<i32> = (rows.start as i32..rows.end as i32).collect();
        let indices = Array::from_slice(&indices, &[indices.len() as i32]);
        let part = |array: &Array| array.take_axis(&indices, 0);
        let after_layer =
            features.after_layer.iter().map(|(layer, array)| Ok((*layer, part(array)?)));
        let after_layer = after_layer.collect::<Result<_, ModelError>>()?;
        Ok(Override { rows: batch_rows, embeddings: part(&features.embeddings)?, after_layer })
    }

    /// Removes the pass of an image from the passes under way, in order to continue it.
    pub(crate) fn take_pass(&mut self, image: &ImageKey) -> Option<ImageEncoding> {
        self.passes.remove(image)
    }

    /// Stores a pass that is not finished.
    pub(crate) fn put_pass(&mut self, image: ImageKey, pass: ImageEncoding) {
        self.passes.insert(image, pass);
    }

    /// Stores the features of an image.
    pub(crate) fn put(&mut self, image: ImageKey, features: Features) {
        self.finished.insert(image, features);
    }

    /// Drops the arrays of images that the core does not name any more: their requests ended, or
    /// other requests needed the memory.
    pub(crate) fn retain_named(&mut self, scheduler: &Scheduler) {
        self.passes.retain(|image, _| scheduler.tower.is_under_way(image));
        self.finished.retain(|image, _| scheduler.tower.has(image));
    }
}
