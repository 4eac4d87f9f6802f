//! Patches and their positions.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use super::sizes::Sizes;
use crate::error::Result;
use crate::load::{ConfigJson, LoadError, Weights};
use crate::vision::parts::{PatchEmbedding, PatchSizes};
use crate::vision::{ImagePixels, VisionInfo, grid};

/// Where the tensors are.
pub(super) struct EmbeddingNames {
    /// The convolution over patches, with its weight and bias.
    pub(super) patch: String,
    /// The table of positions.
    pub(super) table: String,
    /// Rows of the table before those of the grid: of a token that the tower has not.
    pub(super) leading: i32,
}

/// Patches of one frame by a convolution, and a square table of positions.
#[derive(Debug)]
pub(super) struct Embeddings {
    patch: PatchEmbedding,
    /// `[side², hidden]`
    table: Array,
    side: i32,
    dtype: Dtype,
}

impl Embeddings {
    pub(super) fn load(
        weights: &mut Weights,
        names: &EmbeddingNames,
        sizes: &Sizes,
        named: &ConfigJson,
    ) -> Result<Self, LoadError> {
        let Sizes { hidden, patch, side, .. } = *sizes;
        let dtype = weights.dtype_of(&names.table);
        let rows = side * side;
        let table = weights.take(&names.table, &[names.leading + rows, hidden])?;
        let table = table.try_index((names.leading.., ..))?;
        table.eval()?;
        let patches = PatchSizes { out: hidden, side: patch, frames: None, bias: true };
        let patch = PatchEmbedding::load(weights, &names.patch, patches, named)?;
        Ok(Self { patch, table, side, dtype })
    }

    /// The patches at these places: `[places, hidden]`.
    pub(super) fn forward(
        &self,
        image: &ImagePixels<'_>,
        info: &VisionInfo,
        places: &[(i32, i32)],
    ) -> Result<Array> {
        let (rows, columns) = (image.rows as i32, image.columns as i32);
        let between = grid::between_centres(places, rows, columns, self.side);
        let positions = between.take(&self.table)?.as_dtype(self.dtype)?;
        let patches = self.patch.forward(image, info, places)?.as_dtype(self.dtype)?;
        Ok(patches.add(positions)?)
    }
}
