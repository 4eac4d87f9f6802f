//! The vision tower of Qwen2-VL and its successors: config → merger → tower. Field names are the
//! checkpoint's tensor names. N patches. Source: transformers 5.23,
//! `models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py`.

mod config;

use config::{Config, MergerNames, Mlp, Windows};
pub(crate) use config::{Deepstack, Generation, TextModelSizes};

use mlx_rs::{Array, Dtype};

use super::parts::{
    AttentionSpec, BlockSpec, MlpSpec, PatchEmbedding, PatchSizes, TowerBlock, TowerNorm,
};
use super::windows::{WindowRun, WindowedPatches};
use super::{Features, ImageEncoding, ImagePixels, Vision, VisionInfo, grid};
use crate::error::Result;
use crate::layers::{Gelu, Linear};
use crate::load::{ConfigJson, LoadError, Weights};

impl Config {
    /// The blocks by their parts.
    fn block(&self) -> BlockSpec<'static> {
        let inner = self.intermediate_size;
        BlockSpec {
            hidden: self.hidden_size,
            norm: self.norm,
            norms: ["norm1", "norm2"],
            attention: AttentionSpec {
                name: "attn",
                projections: &["qkv"],
                output: "proj",
                biases: true,
                heads: self.num_heads,
                head_norms: None,
            },
            mlp: match self.mlp {
                Mlp::Plain(names, activation) => MlpSpec::Plain { names, inner, activation },
                Mlp::Gated => MlpSpec::Gated { name: "mlp", inner, biases: true },
            },
        }
    }
}

/// Neighbouring patches → one row of the prompt.
#[derive(Debug)]
struct Merger {
    norm: TowerNorm,
    /// Whether the norm is of a row's patches together, not of each alone.
    joined: bool,
    first: Linear,
    second: Linear,
    /// Numbers of a row's patches.
    size: i32,
}

impl Merger {
    fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        out: i32,
        joined: bool,
    ) -> Result<Self, LoadError> {
        let size = config.hidden_size * config.spatial_merge_size.pow(2);
        let normed = if joined { size } else { config.hidden_size };
        let MergerNames { norm, products: [first, second] } = config.merger;
        Ok(Self {
            norm: TowerNorm::load(weights, &format!("{name}.{norm}"), normed, config.norm)?,
            joined,
            first: Linear::load(weights, &format!("{name}.{first}"), size, size, true)?,
            second: Linear::load(weights, &format!("{name}.{second}"), out, size, true)?,
            size,
        })
    }

    /// `x` `[N, hidden]` → `[N / merge², out]`.
    fn forward(&self, x: &Array) -> Result<Array> {
        let rows = |x: &Array| x.reshape(&[-1, self.size]);
        let x =
            if self.joined { self.norm.forward(&rows(x)?)? } else { rows(&self.norm.forward(x)?)? };
        self.second.forward(&Gelu::Exact.forward(&self.first.forward(&x)?)?)
    }
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct QwenTower {
    info: VisionInfo,
    config: Config,
    dtype: Dtype,
    patch_embed: PatchEmbedding,
    /// `[side², hidden]`
    pos_embed: Option<Array>,
    blocks: Vec<TowerBlock>,
    merger: Merger,
    deepstack_merger_list: Vec<Merger>,
}

impl QwenTower {
    /// Reads the tensors under `name` by the sizes in `config` (a wrapper's `vision_config`).
    pub(crate) fn load(
        config: &ConfigJson,
        weights: &mut Weights,
        name: &str,
        text: TextModelSizes,
        generation: Generation,
    ) -> Result<Self, LoadError> {
        let named = config;
        let config = Config::read(named, text, generation)?;
        let patches = PatchSizes {
            out: config.hidden_size,
            side: config.patch_size,
            frames: Some(config.temporal_patch_size),
            bias: config.patch_bias,
        };
        let patch_embed = format!("{name}.patch_embed.proj");
        let dtype = weights.dtype_of(&format!("{name}.blocks.0.norm1.weight"));
        let patch_embed = PatchEmbedding::load(weights, &patch_embed, patches, named)?;
        let (blocks, block) = (format!("{name}.blocks"), config.block());
        let blocks = TowerBlock::load_all(weights, &blocks, config.depth, block)?;
        let (patch, merge) = (config.patch_size, config.spatial_merge_size);
        let deepstack = (0..config.deepstack_visual_indexes.len()).map(|at| {
            let name = format!("{name}.deepstack_merger_list.{at}");
            Merger::load(weights, &name, &config, text.hidden, true)
        });
        let deepstack_merger_list = deepstack.collect::<Result<_, _>>()?;
        let pos_embed = match config.side {
            Some(side) => {
                let table = format!("{name}.pos_embed.weight");
                Some(weights.take(&table, &[side * side, config.hidden_size])?)
            }
            None => None,
        };
        Ok(Self {
            info: VisionInfo::of_grid(patch, merge, blocks.len(), text.image_token),
            dtype,
            blocks,
            deepstack_merger_list,
            merger: Merger::load(weights, &format!("{name}.merger"), &config, text.hidden, false)?,
            patch_embed,
            pos_embed,
            config,
        })
    }

    /// Embeds the patches at these places: `[places, hidden]`.
    fn embed_patches(&self, image: &ImagePixels<'_>, places: &[(i32, i32)]) -> Result<Array> {
        let patches = self.patch_embed.forward(image, &self.info, places)?.as_dtype(self.dtype)?;
        let (Some(table), Some(side)) = (&self.pos_embed, self.config.side) else {
            return Ok(patches);
        };
        let (rows, columns) = (image.rows as i32, image.columns as i32);
        let taken = grid::interpolation(places, rows, columns, side).take(table)?;
        Ok(patches.add(taken.as_dtype(self.dtype)?)?)
    }

    /// The windows of block `at`.
    fn windows<'a>(&self, pass: &'a ImageEncoding, at: usize) -> &'a [WindowRun] {
        match &self.config.windows {
            Some(Windows { full, .. }) if full.contains(&(at as i32)) => &[],
            _ => &pass.windows,
        }
    }
}

impl Vision for QwenTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        let ImagePixels { rows, columns, .. } = *image;
        let (high, wide, merge) = (rows as i32, columns as i32, self.config.spatial_merge_size);
        let windowed = self.config.windows.as_ref();
        let windowed =
            windowed.map(|windows| WindowedPatches::new(high, wide, merge, windows.side));
        let (places, windows, order) = match windowed {
            Some(WindowedPatches { places, runs, order }) => (places, runs, Some(order)),
            None => (grid::order(high, wide, merge), vec![], None),
        };
        let hidden = grid::in_parts(&places, |places| self.embed_patches(image, places))?;
        let rope = grid::rotations(&places, self.config.head_dim(), self.config.rope_theta)?;
        let begun = ImageEncoding::new(hidden, (rows, columns), Some(rope));
        Ok(ImageEncoding { windows, order, ..begun })
    }

    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>> {
        let forward = |pass: &mut ImageEncoding, at: usize| {
            let windows = self.windows(pass, at);
            let hidden = self.blocks[at].forward(&pass.hidden, pass.rope.as_ref(), windows)?;
            let taken = &self.config.deepstack_visual_indexes;
            if let Some(layer) = taken.iter().position(|block| *block == at as i32) {
                hidden.eval()?;
                let features = self.deepstack_merger_list[layer].forward(&hidden)?;
                features.eval()?;
                pass.after_layer.push((layer, features));
            }
            Ok(hidden)
        };
        pass.advance(blocks, self.blocks.len(), forward, |pass| {
            let rows = self.merger.forward(&pass.hidden)?;
            let Some(order) = &pass.order else { return Ok(rows) };
            let order = Array::from_slice(order, &[order.len() as i32]);
            Ok(rows.take_axis(&order, 0)?)
        })
    }
}
