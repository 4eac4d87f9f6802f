//! Vision towers built as SigLIP's (arXiv 2303.15343): PaddleOCR-VL's and HunyuanOCR's. Both embed
//! patches of one frame, add a table of positions that is resampled to the image's grid, and run
//! blocks of full attention. They differ in the rotation of heads and in what is done with the patches
//! afterwards. N patches · H heads · D head_dim.

mod embeddings;
mod hunyuan;
mod paddle;
mod sizes;

use super::parts::TowerBlock;
use super::{
    Features, ImageEncoding, ImageForm, ImagePixels, TextModelSizes, Vision, VisionInfo, grid,
};
use crate::error::Result;
use crate::layers::LayerNorm;
use crate::load::{ConfigJson, LoadError, Weights};
use embeddings::Embeddings;
use hunyuan::Perceive;
use mlx_rs::Array;
use paddle::Projector;
use sizes::Sizes;

/// Rows of a prompt from the patches after all blocks.
#[derive(Debug)]
enum Output {
    /// A norm, and a product for each square of patches.
    Projector { post_layernorm: LayerNorm, projector: Projector },
    /// Products for each square, and rows of its own around the lines.
    Perceive(Perceive),
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct SiglipTower {
    info: VisionInfo,
    sizes: Sizes,
    embeddings: Embeddings,
    blocks: Vec<TowerBlock>,
    output: Output,
}

impl SiglipTower {
    /// Reads PaddleOCR-VL's, by the sizes in `config` (a wrapper's `vision_config`). `is_mlx`: the
    /// names are those of MLX's conversions.
    ///
    /// # Errors
    /// A key or a tensor is missing or does not fit.
    pub(crate) fn load_paddle(
        config: &ConfigJson,
        weights: &mut Weights,
        is_mlx: bool,
        text: TextModelSizes,
    ) -> Result<Self, LoadError> {
        let sizes = Sizes::of_paddle(config)?;
        let names = if is_mlx { paddle::MLX } else { paddle::HUB };
        let embeddings = Embeddings::load(weights, &names.embeddings(), &sizes, config)?;
        let block = names.block(&sizes);
        let blocks = TowerBlock::load_all(weights, names.layers, sizes.layers, block)?;
        let post_layernorm =
            LayerNorm::load(weights, names.post_layernorm, sizes.hidden, sizes.eps)?;
        let projector = Projector::load(weights, names.projector, &sizes, text.hidden)?;
        let output = Output::Projector { post_layernorm, projector };
        let info = sizes.info(ImageForm::Grid, text.image_token);
        Ok(Self { info, sizes, embeddings, blocks, output })
    }

    /// Reads HunyuanOCR's, as [`SiglipTower::load_paddle`]. `name`: the beginning of its names.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn load_hunyuan(
        config: &ConfigJson,
        weights: &mut Weights,
        name: &str,
        text: TextModelSizes,
    ) -> Result<Self, LoadError> {
        let sizes = Sizes::of_hunyuan(config)?;
        let embeddings = Embeddings::load(weights, &hunyuan::embeddings(name), &sizes, config)?;
        let (blocks, block) = (format!("{name}.layers"), hunyuan::block(&sizes));
        let blocks = TowerBlock::load_all(weights, &blocks, sizes.layers, block)?;
        let perceive =
            Perceive::load(weights, &format!("{name}.perceive"), &sizes, text.hidden, config)?;
        let info = sizes.info(ImageForm::Lines, text.image_token);
        Ok(Self { info, sizes, embeddings, blocks, output: Output::Perceive(perceive) })
    }

    /// Rows of the prompt from `x` `[N, hidden]`, the patches after all blocks.
    fn rows(&self, x: &Array, (rows, columns): (u32, u32)) -> Result<Array> {
        match &self.output {
            Output::Projector { post_layernorm, projector } => {
                projector.forward(&post_layernorm.forward(x)?)
            }
            Output::Perceive(perceive) => {
                let merge = self.info.merge;
                perceive.forward(x, (rows / merge) as i32, (columns / merge) as i32)
            }
        }
    }
}

impl Vision for SiglipTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        let ImagePixels { rows, columns, .. } = *image;
        let places = grid::order(rows as i32, columns as i32, self.sizes.merge);
        let hidden =
            grid::in_parts(&places, |places| self.embeddings.forward(image, &self.info, places))?;
        let rotations = |theta| grid::rotations(&places, self.sizes.head_dim(), theta);
        let rope = self.sizes.theta.map(rotations).transpose()?;
        Ok(ImageEncoding::new(hidden, (rows, columns), rope))
    }

    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>> {
        pass.advance(
            blocks,
            self.blocks.len(),
            |pass, at| self.blocks[at].forward(&pass.hidden, pass.rope.as_ref(), &[]),
            |pass| self.rows(&pass.hidden, pass.grid),
        )
    }
}
