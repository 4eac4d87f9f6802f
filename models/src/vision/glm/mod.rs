//! The vision towers of GLM-4.1V and GLM-OCR: config → attention → block → merger → tower. Field
//! names are the checkpoint's tensor names. N patches · H heads · D head_dim. Source: transformers
//! 5.23, `models/glm4v/modeling_glm4v.py` and `models/glm_ocr/modeling_glm_ocr.py`.

mod config;

use config::Config;
pub(crate) use config::GlmKind;

use mlx_rs::{Array, Dtype};

use super::parts::{
    AttentionSpec, BlockSpec, MlpSpec, NormKind, PatchEmbedding, PatchSizes, TowerBlock,
    convolution_as_product,
};
use super::{
    Features, ImageEncoding, ImagePixels, TextModelSizes, Vision, VisionInfo, bicubic, grid,
};
use crate::error::Result;
use crate::layers::{GatedMlp, Gelu, LayerNorm, Linear, RmsNorm};
use crate::load::{ConfigJson, LoadError, Weights};

/// Of the merger's layer norm: torch's usual one.
const MERGER_EPS: f32 = 1e-5;

impl Config {
    /// The blocks by their parts.
    fn block(&self) -> BlockSpec<'static> {
        let is_ocr = self.kind == GlmKind::Ocr;
        BlockSpec {
            hidden: self.hidden_size,
            norm: NormKind::Rms(self.eps),
            norms: ["norm1", "norm2"],
            attention: AttentionSpec {
                name: "attn",
                projections: &["qkv"],
                output: "proj",
                biases: self.biases,
                heads: self.num_heads,
                head_norms: is_ocr.then_some(self.eps),
            },
            mlp: MlpSpec::Gated { name: "mlp", inner: self.inner, biases: self.biases },
        }
    }
}

/// Neighbouring patches → one row of the prompt.
#[derive(Debug)]
struct Merger {
    /// Over a row's patches, from the top, left to right.
    downsample: Linear,
    proj: Linear,
    post_projection_norm: LayerNorm,
    mlp: GatedMlp,
    /// Numbers of a row's patches.
    size: i32,
}

impl Merger {
    /// `named`: the config of the sizes.
    fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        named: &ConfigJson,
    ) -> Result<Self, LoadError> {
        let (out, merger) = (config.out_hidden_size, format!("{name}.merger"));
        let norm = format!("{merger}.post_projection_norm");
        Ok(Self {
            downsample: convolution_as_product(
                weights,
                &format!("{name}.downsample"),
                [out, config.hidden_size, config.spatial_merge_size, config.spatial_merge_size],
                named,
            )?,
            proj: Linear::load(weights, &format!("{merger}.proj"), out, out, false)?,
            post_projection_norm: LayerNorm::load(weights, &norm, out, MERGER_EPS)?,
            mlp: GatedMlp::load(weights, &merger, out, config.merged_inner, false)?,
            size: config.hidden_size * config.spatial_merge_size.pow(2),
        })
    }

    /// `x` `[N, hidden]` → `[N / merge², out]`.
    fn forward(&self, x: &Array) -> Result<Array> {
        let x = self.downsample.forward(&x.reshape(&[-1, self.size])?)?;
        let x = self.post_projection_norm.forward(&self.proj.forward(&x)?)?;
        self.mlp.forward(&Gelu::Exact.forward(&x)?)
    }
}

/// What is added to a patch by its place: its norm first.
#[derive(Debug)]
struct Places {
    post_conv_layernorm: RmsNorm,
    /// `[side², hidden]`
    position_embedding: Array,
    side: i32,
}

impl Places {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let (size, norm) = (config.hidden_size, format!("{name}.post_conv_layernorm"));
        let table = format!("{name}.embeddings.position_embedding.weight");
        let side = config.side;
        Ok(Self {
            post_conv_layernorm: RmsNorm::load(weights, &norm, size, config.eps)?,
            position_embedding: weights.take(&table, &[side * side, size])?,
            side,
        })
    }

    /// `x` `[places, hidden]` of an image, a row for each patch → the same shape.
    fn forward(&self, x: &Array, image: &ImagePixels<'_>, places: &[(i32, i32)]) -> Result<Array> {
        let (rows, columns) = (image.rows as i32, image.columns as i32);
        let taken = bicubic::shares(places, rows, columns, self.side);
        let positions = taken.take(&self.position_embedding)?.as_dtype(x.dtype())?;
        Ok(self.post_conv_layernorm.forward(x)?.add(positions)?)
    }
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct GlmTower {
    info: VisionInfo,
    config: Config,
    dtype: Dtype,
    patch_embed: PatchEmbedding,
    places: Option<Places>,
    blocks: Vec<TowerBlock>,
    post_layernorm: RmsNorm,
    merger: Merger,
}

impl GlmTower {
    /// Reads the tensors under `name` by the sizes in `config` (a wrapper's `vision_config`).
    ///
    /// # Errors
    /// A key or a tensor is missing or does not fit.
    pub(crate) fn load(
        config: &ConfigJson,
        weights: &mut Weights,
        name: &str,
        text: TextModelSizes,
        kind: GlmKind,
    ) -> Result<Self, LoadError> {
        let named = config;
        let config = Config::read(named, text, kind)?;
        let patch_embed = format!("{name}.patch_embed.proj");
        let patches = PatchSizes {
            out: config.hidden_size,
            side: config.patch_size,
            frames: Some(config.temporal_patch_size),
            bias: true,
        };
        let patch_embed = PatchEmbedding::load(weights, &patch_embed, patches, named)?;
        let norm = format!("{name}.post_layernorm");
        let dtype = weights.dtype_of(&format!("{norm}.weight"));
        let (blocks, block) = (format!("{name}.blocks"), config.block());
        let blocks = TowerBlock::load_all(weights, &blocks, config.depth, block)?;
        let (patch, merge) = (config.patch_size, config.spatial_merge_size);
        Ok(Self {
            info: VisionInfo::of_grid(patch, merge, blocks.len(), text.image_token),
            dtype,
            patch_embed,
            places: match kind {
                GlmKind::Large => Some(Places::load(weights, name, &config)?),
                GlmKind::Ocr => None,
            },
            blocks,
            post_layernorm: RmsNorm::load(weights, &norm, config.hidden_size, config.eps)?,
            merger: Merger::load(weights, name, &config, named)?,
            config,
        })
    }

    /// Embeds the patches at these places: `[places, hidden]`.
    fn embed_patches(&self, image: &ImagePixels<'_>, places: &[(i32, i32)]) -> Result<Array> {
        let x = self.patch_embed.forward(image, &self.info, places)?.as_dtype(self.dtype)?;
        match &self.places {
            Some(by_place) => by_place.forward(&x, image, places),
            None => Ok(x),
        }
    }
}

impl Vision for GlmTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        let ImagePixels { rows, columns, .. } = *image;
        let places = grid::order(rows as i32, columns as i32, self.config.spatial_merge_size);
        let hidden = grid::in_parts(&places, |places| self.embed_patches(image, places))?;
        let rope = grid::rotations(&places, self.config.head_dim(), self.config.rope_theta)?;
        Ok(ImageEncoding::new(hidden, (rows, columns), Some(rope)))
    }

    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>> {
        pass.advance(
            blocks,
            self.blocks.len(),
            |pass, at| self.blocks[at].forward(&pass.hidden, pass.rope.as_ref(), &[]),
            |pass| self.merger.forward(&self.post_layernorm.forward(&pass.hidden)?),
        )
    }
}
