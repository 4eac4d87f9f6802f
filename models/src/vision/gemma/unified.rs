//! Images of `gemma4_unified` (12B), which has no tower: each square of patches becomes a row of
//! the prompt by itself. Field names are the checkpoint's tensor names. Source: transformers 5.23,
//! `models/gemma4_unified/modeling_gemma4_unified.py`.

use mlx_rs::{Array, Dtype};

use super::config::{GemmaText, PatchSizes};
use super::{Projection, check_sides, positions_of};
use crate::error::Result;
use crate::layers::{LayerNorm, Linear};
use crate::load::{ConfigJson, LoadError, Weights};
use crate::vision::attention::in_parts;
use crate::vision::{Features, ImageEncoding, ImageForm, ImagePixels, Vision, VisionInfo, grid};

/// Of every layer norm here: torch's usual one.
const EPS: f32 = 1e-5;

/// What makes rows of squares of pixels.
#[derive(Debug)]
pub(crate) struct UnifiedTower {
    info: VisionInfo,
    /// As `info`, of squares of patches.
    squares: VisionInfo,
    dtype: Dtype,
    patch_ln1: LayerNorm,
    patch_dense: Linear,
    patch_ln2: LayerNorm,
    /// `[2, positions, width]`: of columns and of rows.
    pos_embedding: Array,
    pos_norm: LayerNorm,
    embed_vision: Projection,
}

impl UnifiedTower {
    /// Reads the tensors under `{root}vision_embedder` and `{root}embed_vision` by the sizes in
    /// `config` (a wrapper's `vision_config`).
    pub(crate) fn load(
        config: &ConfigJson,
        weights: &mut Weights,
        root: &str,
        text: GemmaText,
    ) -> Result<Self, LoadError> {
        let PatchSizes { side, pooled } = PatchSizes::read(config)?;
        let width = config.size_or("mm_embed_dim", 3840)?;
        let positions = config.size_or("mm_posemb_size", 1120)?;
        let eps = config.optional("rms_norm_eps")?.unwrap_or(1e-6);
        let pixels = 3 * (side * pooled).pow(2);
        let name = |part: &str| format!("{root}vision_embedder.{part}");
        let table = name("pos_embedding");
        let info = VisionInfo {
            patch: side as u32,
            merge: pooled as u32,
            image_token: text.image_token,
            // All of it is computed at once.
            blocks: 1,
            form: ImageForm::Indexed,
            whole: text.both_ways,
            most_rows: Some(text.most_rows),
        };
        let pos_embedding = weights.take(&table, &[positions, 2, width])?;
        let pos_embedding = pos_embedding.transpose_axes(&[1, 0, 2])?.contiguous()?;
        pos_embedding.eval()?;
        Ok(Self {
            squares: VisionInfo { patch: (side * pooled) as u32, merge: 1, ..info.clone() },
            info,
            dtype: weights.dtype_of(&name("patch_dense.weight")),
            patch_ln1: LayerNorm::load(weights, &name("patch_ln1"), pixels, EPS)?,
            patch_dense: Linear::load(weights, &name("patch_dense"), width, pixels, true)?,
            patch_ln2: LayerNorm::load(weights, &name("patch_ln2"), width, EPS)?,
            pos_embedding,
            pos_norm: LayerNorm::load(weights, &name("pos_norm"), width, EPS)?,
            embed_vision: Projection::load(
                weights,
                &format!("{root}embed_vision"),
                [text.hidden, width],
                eps,
            )?,
        })
    }

    /// Squares of pixels `[rows, pixels]`, and their positions `[rows, width]`.
    fn embed(&self, pixels: &Array, positions: &Array) -> Result<Array> {
        let dense = |part: &Array| {
            self.patch_ln2.forward(&self.patch_dense.forward(&self.patch_ln1.forward(part)?)?)
        };
        let placed = in_parts(pixels, dense)?.add(positions)?;
        self.embed_vision.forward(&self.pos_norm.forward(&placed)?)
    }
}

impl Vision for UnifiedTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        let (rows, columns) = (image.rows / self.info.merge, image.columns / self.info.merge);
        let squares = ImagePixels { rows, columns, ..*image };
        check_sides(&squares, self.pos_embedding.dim(1))?;
        let places = grid::order(rows as i32, columns as i32, 1);
        let numbers = grid::patches(&squares, &self.squares, &places);
        let side = self.squares.patch as i32;
        let hidden = Array::from_slice(&numbers, &[places.len() as i32, side * side * 3]);
        let hidden = hidden.as_dtype(self.dtype)?;
        hidden.eval()?;
        Ok(ImageEncoding::new(hidden, (image.rows, image.columns), None))
    }

    fn advance(&self, pass: &mut ImageEncoding, _: usize) -> Result<Option<Features>> {
        let merge = self.info.merge;
        let places = grid::order((pass.grid.0 / merge) as i32, (pass.grid.1 / merge) as i32, 1);
        let positions = positions_of(&self.pos_embedding, &places)?.as_dtype(self.dtype)?;
        let embeddings = self.embed(&pass.hidden, &positions)?;
        embeddings.eval()?;
        pass.done = 1;
        Ok(Some(Features { embeddings, after_layer: vec![] }))
    }
}
