//! The vision tower of Qwen3-VL and its successors: config → attention → block → merger → tower.
//! Field names are the checkpoint's tensor names. N patches · H heads · D head_dim. Source:
//! transformers 5.23, `models/qwen3_vl/modeling_qwen3_vl.py`.

mod config;

use config::Config;
pub(crate) use config::{Deepstack, TextModelSizes};

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use super::attention::{attend, in_parts};
use super::{Features, ImageEncoding, ImagePixels, Vision, VisionInfo, grid};
use crate::error::{ModelError, Result};
use crate::layers::{Gelu, LayerNorm, Linear, RopeTables};
use crate::load::{ConfigJson, LoadError, Weights};

/// Of every layer norm here.
const EPS: f32 = 1e-6;

#[derive(Debug)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: i32,
    dim: i32,
}

impl Attention {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let size = config.hidden_size;
        Ok(Self {
            qkv: Linear::load(weights, &format!("{name}.qkv"), 3 * size, size, true)?,
            proj: Linear::load(weights, &format!("{name}.proj"), size, size, true)?,
            heads: config.num_heads,
            dim: config.head_dim(),
        })
    }

    /// Every patch attends to all patches. `x` `[N, hidden]` → the same shape.
    fn forward(&self, x: &Array, rope: &RopeTables) -> Result<Array> {
        let Self { heads, dim, .. } = *self;
        let patches = x.dim(0);
        let qkv = self.qkv.forward(x)?.reshape(&[patches, 3 * heads, dim])?;
        let turned = rope.apply_to(&qkv, 2 * heads)?;
        // [1, H, N, D], in one piece: each part of the queries reads them.
        let by_head = |part: Array| part.transpose_axes(&[1, 0, 2])?.expand_dims(0)?.contiguous();
        let keys = by_head(turned.try_index((.., heads.., ..))?)?;
        let values = by_head(qkv.try_index((.., 2 * heads.., ..))?)?;
        let scale = (dim as f32).powf(-0.5);
        let attended = attend(&turned.try_index((.., ..heads, ..))?, &keys, &values, scale)?;
        self.proj.forward(&attended)
    }
}

#[derive(Debug)]
struct TowerBlock {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    linear_fc1: Linear,
    activation: Gelu,
    linear_fc2: Linear,
}

impl TowerBlock {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let (size, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            norm1: LayerNorm::load(weights, &format!("{name}.norm1"), size, EPS)?,
            attn: Attention::load(weights, &format!("{name}.attn"), config)?,
            norm2: LayerNorm::load(weights, &format!("{name}.norm2"), size, EPS)?,
            linear_fc1: Linear::load(
                weights,
                &format!("{name}.mlp.linear_fc1"),
                inner,
                size,
                true,
            )?,
            activation: config.activation,
            linear_fc2: Linear::load(
                weights,
                &format!("{name}.mlp.linear_fc2"),
                size,
                inner,
                true,
            )?,
        })
    }

    fn forward(&self, x: &Array, rope: &RopeTables) -> Result<Array> {
        let x = x.add(self.attn.forward(&self.norm1.forward(x)?, rope)?)?;
        in_parts(&x, |part| self.feed(part))
    }

    /// The second half, row by row.
    fn feed(&self, x: &Array) -> Result<Array> {
        let inner = self.activation.forward(&self.linear_fc1.forward(&self.norm2.forward(x)?)?)?;
        Ok(x.add(self.linear_fc2.forward(&inner)?)?)
    }
}

/// Neighbouring patches → one row of the prompt.
#[derive(Debug)]
struct Merger {
    norm: LayerNorm,
    /// Whether the norm is of a row's patches together, not of each alone.
    joined: bool,
    linear_fc1: Linear,
    linear_fc2: Linear,
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
        Ok(Self {
            norm: LayerNorm::load(weights, &format!("{name}.norm"), normed, EPS)?,
            joined,
            linear_fc1: Linear::load(weights, &format!("{name}.linear_fc1"), size, size, true)?,
            linear_fc2: Linear::load(weights, &format!("{name}.linear_fc2"), out, size, true)?,
            size,
        })
    }

    /// `x` `[N, hidden]` → `[N / merge², out]`.
    fn forward(&self, x: &Array) -> Result<Array> {
        let rows = |x: &Array| x.reshape(&[-1, self.size]);
        let x =
            if self.joined { self.norm.forward(&rows(x)?)? } else { rows(&self.norm.forward(x)?)? };
        self.linear_fc2.forward(&Gelu::Exact.forward(&self.linear_fc1.forward(&x)?)?)
    }
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct QwenTower {
    info: VisionInfo,
    config: Config,
    dtype: Dtype,
    /// float32, over a patch's pixels as they lie.
    patch_embed: Linear,
    /// `[side², hidden]`
    pos_embed: Array,
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
        deepstack: Deepstack,
    ) -> Result<Self, LoadError> {
        let named = config;
        let config = Config::read(named, text, deepstack)?;
        let patch_embed = format!("{name}.patch_embed.proj");
        let patch_embed = load_patch_embed(weights, &patch_embed, named, &config)?;
        let table = format!("{name}.pos_embed.weight");
        let dtype = weights.dtype_of(&table);
        let blocks = (0..config.depth)
            .map(|at| TowerBlock::load(weights, &format!("{name}.blocks.{at}"), &config));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        let deepstack = 0..config.deepstack_visual_indexes.len();
        let deepstack = deepstack.map(|at| {
            Merger::load(
                weights,
                &format!("{name}.deepstack_merger_list.{at}"),
                &config,
                text.hidden,
                true,
            )
        });
        Ok(Self {
            info: VisionInfo {
                patch: config.patch_size as u32,
                merge: config.spatial_merge_size as u32,
                image_token: text.image_token,
                blocks: blocks.len(),
                has_axes: true,
                whole: false,
                most_rows: None,
            },
            dtype,
            blocks,
            deepstack_merger_list: deepstack.collect::<Result<_, _>>()?,
            merger: Merger::load(weights, &format!("{name}.merger"), &config, text.hidden, false)?,
            patch_embed,
            pos_embed: weights.take(&table, &[config.side * config.side, config.hidden_size])?,
            config,
        })
    }

    /// Embeds the patches at these places: `[places, hidden]`.
    fn embed_patches(&self, image: &ImagePixels<'_>, places: &[(i32, i32)]) -> Result<Array> {
        let Config { patch_size, hidden_size, side, .. } = self.config;
        let n = places.len() as i32;
        let pixels = Array::from_slice(
            &grid::patches(image, &self.info, places),
            &[n, patch_size * patch_size * 3],
        );
        let (rows, columns) = (image.rows as i32, image.columns as i32);
        let grid::Interpolation { indices, shares } =
            grid::interpolation(places, rows, columns, side);
        let corners = self
            .pos_embed
            .take_axis(Array::from_slice(&indices, &[n * 4]), 0)?
            .reshape(&[n, 4, hidden_size])?;
        let positions =
            corners.multiply(Array::from_slice(&shares, &[n, 4, 1]))?.sum_axis(1, false)?;
        Ok(self
            .patch_embed
            .forward(&pixels)?
            .as_dtype(self.dtype)?
            .add(positions.as_dtype(self.dtype)?)?)
    }
}

/// The convolution over `temporal_patch_size` frames as a product over one: an image is the same
/// in every frame, so their weights are summed. `[out, 3, T, P, P]` as transformers keeps it, or
/// `[out, T, P, P, 3]` as MLX does → `[out, P · P · 3]`.
///
/// The shape tells the order, not the names: conversions of Qwen3.8 to MLX may keep the order of
/// transformers. `named` is the config for an error about sizes by which both orders are the same.
fn load_patch_embed(
    weights: &mut Weights,
    name: &str,
    named: &ConfigJson,
    config: &Config,
) -> Result<Linear, LoadError> {
    let Config { hidden_size: out, temporal_patch_size: frames, patch_size: patch, .. } = *config;
    let weight = format!("{name}.weight");
    let (channels_first, channels_last) =
        ([out, 3, frames, patch, patch], [out, frames, patch, patch, 3]);
    if channels_first == channels_last {
        let what = format!(
            "expected sizes by which the axes of tensor {weight} can be told apart, found {frames} \
             frames and patches of {patch} beside 3 channels"
        );
        return Err(named.wrong("temporal_patch_size", what));
    }
    let is_last = weights.shape(&weight).is_some_and(|shape| {
        shape.iter().map(|size| *size as i64).eq(channels_last.map(i64::from))
    });
    let summed = match is_last {
        true => {
            weights.take(&weight, &channels_last)?.as_dtype(Dtype::Float32)?.sum_axis(1, false)?
        }
        false => {
            let weight = weights.take(&weight, &channels_first)?.as_dtype(Dtype::Float32)?;
            weight.sum_axis(2, false)?.transpose_axes(&[0, 2, 3, 1])?
        }
    };
    let matrix = summed.reshape(&[out, patch * patch * 3])?;
    matrix.eval()?;
    Linear::new(&matrix, weights.take(&format!("{name}.bias"), &[out])?.as_dtype(Dtype::Float32)?)
}

impl Vision for QwenTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        let ImagePixels { rows, columns, .. } = *image;
        let too_large = |_| {
            ModelError::Batch(format!(
                "expected an image of at most {} patches, found {rows} x {columns}",
                i32::MAX
            ))
        };
        i32::try_from(u64::from(rows) * u64::from(columns)).map_err(too_large)?;
        let places = grid::order(rows as i32, columns as i32, self.config.spatial_merge_size);
        let hidden = grid::in_parts(&places, |places| self.embed_patches(image, places))?;
        Ok(ImageEncoding {
            hidden,
            grid: (rows, columns),
            rope: grid::turns(&places, self.config.head_dim(), self.config.rope_theta)?,
            done: 0,
            after_layer: vec![],
        })
    }

    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>> {
        let until = pass.done.saturating_add(blocks.max(1)).min(self.blocks.len());
        while pass.done < until {
            let hidden = self.blocks[pass.done].forward(&pass.hidden, &pass.rope)?;
            hidden.eval()?;
            let at = self
                .config
                .deepstack_visual_indexes
                .iter()
                .position(|block| *block == pass.done as i32);
            if let Some(layer) = at {
                let features = self.deepstack_merger_list[layer].forward(&hidden)?;
                features.eval()?;
                pass.after_layer.push((layer, features));
            }
            pass.hidden = hidden;
            pass.done += 1;
        }
        if pass.done < self.blocks.len() {
            return Ok(None);
        }
        let embeddings = self.merger.forward(&pass.hidden)?;
        embeddings.eval()?;
        Ok(Some(Features { embeddings, after_layer: pass.after_layer.clone() }))
    }
}
