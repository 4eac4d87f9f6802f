//! The vision tower of Gemma 4: patches → blocks → mean of each square of patches → rows of the
//! prompt. Field names are the checkpoint's tensor names. N patches · H heads · D head_dim. Source:
//! transformers 5.23, `models/gemma4/modeling_gemma4.py`.

mod config;
mod unified;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, maximum, minimum};
use mlx_rs::{Array, Dtype};

use super::attention::{attend, in_parts};
use super::{Features, ImageEncoding, ImageForm, ImagePixels, Vision, VisionInfo, grid};
use crate::error::{ModelError, Result};
use crate::layers::{Gelu, Linear, RmsNorm, RopeTables};
use crate::load::{ConfigJson, LoadError, Weights};

use config::Config;
pub(crate) use config::GemmaText;
pub(crate) use unified::UnifiedTower;

/// A product between whose numbers may be clamped.
#[derive(Debug)]
struct ClippedLinear {
    linear: Linear,
    clip: Option<Clip>,
}

/// Least and largest numbers.
#[derive(Debug)]
struct Clip {
    input: [f32; 2],
    output: [f32; 2],
}

impl ClippedLinear {
    fn load(
        weights: &mut Weights,
        name: &str,
        [out, input]: [i32; 2],
        config: &Config,
    ) -> Result<Self, LoadError> {
        let linear = Linear::load(weights, &format!("{name}.linear"), out, input, false)?;
        let mut bound = |part: &str| weights.take_number(&format!("{name}.{part}"));
        if !config.clips {
            // Some exporters write the bounds although nothing is clamped.
            ["input_min", "input_max", "output_min", "output_max"]
                .iter()
                .for_each(|part| weights.skip_tensor(&format!("{name}.{part}")));
            return Ok(Self { linear, clip: None });
        }
        let input = [bound("input_min")?, bound("input_max")?];
        let output = [bound("output_min")?, bound("output_max")?];
        Ok(Self { linear, clip: Some(Clip { input, output }) })
    }

    /// `x` `[rows, input]` → `[rows, out]`.
    fn forward(&self, x: &Array) -> Result<Array> {
        let Some(Clip { input, output }) = &self.clip else { return self.linear.forward(x) };
        clamped(&self.linear.forward(&clamped(x, *input)?)?, *output)
    }
}

fn clamped(x: &Array, [least, most]: [f32; 2]) -> Result<Array> {
    let number = |value: f32| Array::from_f32(value).as_dtype(x.dtype());
    Ok(minimum(maximum(x, number(least)?)?, number(most)?)?)
}

#[derive(Debug)]
struct Attention {
    q_proj: ClippedLinear,
    k_proj: ClippedLinear,
    v_proj: ClippedLinear,
    o_proj: ClippedLinear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    /// Without a weight.
    v_norm: RmsNorm,
    heads: i32,
    dim: i32,
}

impl Attention {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden, heads, head_dim: dim, eps, .. } = *config;
        let wide = heads * dim;
        let mut linear = |part: &str, sizes: [i32; 2]| {
            ClippedLinear::load(weights, &format!("{name}.{part}"), sizes, config)
        };
        let [q_proj, k_proj, v_proj] =
            ["q_proj", "k_proj", "v_proj"].map(|part| linear(part, [wide, hidden]));
        let o_proj = linear("o_proj", [hidden, wide])?;
        Ok(Self {
            q_proj: q_proj?,
            k_proj: k_proj?,
            v_proj: v_proj?,
            o_proj,
            q_norm: RmsNorm::load(weights, &format!("{name}.q_norm"), dim, eps)?,
            k_norm: RmsNorm::load(weights, &format!("{name}.k_norm"), dim, eps)?,
            v_norm: RmsNorm::without_weight(dim, eps)?,
            heads,
            dim,
        })
    }

    /// Every patch attends to all patches. `x` `[N, hidden]` → the same shape.
    fn forward(&self, x: &Array, rope: Option<&RopeTables>) -> Result<Array> {
        let Self { heads, dim, .. } = *self;
        let patches = x.dim(0);
        let normed = |linear: &ClippedLinear, norm: &RmsNorm| -> Result<Array> {
            let numbers = linear.forward(x)?.reshape(&[patches * heads, dim])?;
            Ok(norm.forward(&numbers)?.reshape(&[patches, heads, dim])?)
        };
        let queries = normed(&self.q_proj, &self.q_norm)?;
        let keys = normed(&self.k_proj, &self.k_norm)?;
        let both = concatenate(&[queries, keys], 1)?;
        let both = both.take_axis(pair_order(dim), 2)?;
        let rotated = match rope {
            Some(rope) => rope.apply_to(&both, 2 * heads)?,
            None => both,
        };
        // [1, H, N, D], in one piece: each part of the queries reads them.
        let by_head = |part: Array| part.transpose_axes(&[1, 0, 2])?.expand_dims(0)?.contiguous();
        let keys = by_head(rotated.try_index((.., heads.., ..))?)?;
        let values = by_head(normed(&self.v_proj, &self.v_norm)?)?;
        let attended = attend(&rotated.try_index((.., ..heads, ..))?, &keys, &values, 1.0)?;
        self.o_proj.forward(&attended)
    }
}

/// Order of a head's numbers in which number i rotates with number i + D/2.
///
/// The first half of a head rotates by the column and the second one by the row, and each half pairs
/// its own quarters. Queries and keys have the same order, so their products stay.
fn pair_order(dim: i32) -> Array {
    let quarter = dim / 4;
    let quarters = [0, 2, 1, 3].into_iter();
    let order: Vec<i32> = quarters.flat_map(|at| at * quarter..(at + 1) * quarter).collect();
    Array::from_slice(&order, &[dim])
}

#[derive(Debug)]
struct TowerBlock {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    gate_proj: ClippedLinear,
    up_proj: ClippedLinear,
    down_proj: ClippedLinear,
    post_feedforward_layernorm: RmsNorm,
}

impl TowerBlock {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let (hidden, inner) = (config.hidden, config.intermediate);
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("{name}.{part}"), hidden, config.eps)
        };
        let linear = |weights: &mut Weights, part: &str, sizes: [i32; 2]| {
            ClippedLinear::load(weights, &format!("{name}.mlp.{part}"), sizes, config)
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &format!("{name}.self_attn"), config)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            pre_feedforward_layernorm: norm(weights, "pre_feedforward_layernorm")?,
            gate_proj: linear(weights, "gate_proj", [inner, hidden])?,
            up_proj: linear(weights, "up_proj", [inner, hidden])?,
            down_proj: linear(weights, "down_proj", [hidden, inner])?,
            post_feedforward_layernorm: norm(weights, "post_feedforward_layernorm")?,
        })
    }

    /// `x` `[N, hidden]` → the same shape.
    fn forward(&self, x: &Array, rope: Option<&RopeTables>) -> Result<Array> {
        let mixed = self.self_attn.forward(&self.input_layernorm.forward(x)?, rope)?;
        let x = x.add(self.post_attention_layernorm.forward(&mixed)?)?;
        in_parts(&x, |part| self.feed(part))
    }

    /// The second half, row by row.
    fn feed(&self, x: &Array) -> Result<Array> {
        let normed = self.pre_feedforward_layernorm.forward(x)?;
        let gate = Gelu::Tanh.forward(&self.gate_proj.forward(&normed)?)?;
        let inner = gate.multiply(self.up_proj.forward(&normed)?)?;
        let more = self.post_feedforward_layernorm.forward(&self.down_proj.forward(&inner)?)?;
        Ok(x.add(more)?)
    }
}

/// Projects the tower's rows to the text model's width: a norm without a weight, and a product.
#[derive(Debug)]
struct Projection {
    norm: RmsNorm,
    embedding_projection: Linear,
}

impl Projection {
    /// Reads `{name}.embedding_projection` `[out, input]`.
    fn load(
        weights: &mut Weights,
        name: &str,
        [out, input]: [i32; 2],
        eps: f32,
    ) -> Result<Self, LoadError> {
        let projection = format!("{name}.embedding_projection");
        Ok(Self {
            norm: RmsNorm::without_weight(input, eps)?,
            embedding_projection: Linear::load(weights, &projection, out, input, false)?,
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        self.embedding_projection.forward(&self.norm.forward(x)?)
    }
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct GemmaTower {
    info: VisionInfo,
    config: Config,
    dtype: Dtype,
    input_proj: Linear,
    /// `[2, positions, hidden]`: of columns and of rows.
    position_embedding_table: Array,
    blocks: Vec<TowerBlock>,
    /// What pooled rows are moved by and scaled by, in float32.
    standard: Option<[Array; 2]>,
    embed_vision: Projection,
}

impl GemmaTower {
    /// Reads the tensors under `{root}vision_tower` and `{root}embed_vision` by the sizes in
    /// `config` (a wrapper's `vision_config`).
    pub(crate) fn load(
        config: &ConfigJson,
        weights: &mut Weights,
        root: &str,
        text: GemmaText,
    ) -> Result<Self, LoadError> {
        let config = Config::read(config)?;
        let Config { hidden, positions, eps, .. } = config;
        let name = format!("{root}vision_tower");
        let patch_embedder = format!("{name}.patch_embedder");
        let dtype = weights.dtype_of(&format!("{patch_embedder}.input_proj.weight"));
        let pixels = 3 * config.patches.side.pow(2);
        let input_proj = format!("{patch_embedder}.input_proj");
        let blocks = (0..config.depth)
            .map(|at| TowerBlock::load(weights, &format!("{name}.encoder.layers.{at}"), &config));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        let mut number = |part: &str| -> Result<Array, LoadError> {
            Ok(weights.take(&format!("{name}.{part}"), &[hidden])?.as_dtype(Dtype::Float32)?)
        };
        let standard = match config.standardizes {
            true => Some([number("std_bias")?, number("std_scale")?]),
            false => None,
        };
        let table = format!("{patch_embedder}.position_embedding_table");
        Ok(Self {
            info: VisionInfo {
                patch: config.patches.side as u32,
                merge: config.patches.pooled as u32,
                image_token: text.image_token,
                blocks: blocks.len(),
                form: ImageForm::Indexed,
                whole: text.both_ways,
                most_rows: Some(text.most_rows),
            },
            dtype,
            input_proj: Linear::load(weights, &input_proj, hidden, pixels, false)?,
            position_embedding_table: weights.take(&table, &[2, positions, hidden])?,
            blocks,
            standard,
            embed_vision: Projection::load(
                weights,
                &format!("{root}embed_vision"),
                [text.hidden, hidden],
                eps,
            )?,
            config,
        })
    }

    /// Embeds the patches at these places: `[places, hidden]`.
    fn embed_patches(&self, image: &ImagePixels<'_>, places: &[(i32, i32)]) -> Result<Array> {
        let (n, side) = (places.len() as i32, self.config.patches.side);
        // The reference computes 2 · (x - 0.5) of numbers from 0 to 1 in float32.
        let pixels = grid::patches(image, &self.info, places);
        let pixels: Vec<f32> = pixels.into_iter().map(|number| 2.0 * (number - 0.5)).collect();
        let pixels = Array::from_slice(&pixels, &[n, side * side * 3]).as_dtype(self.dtype)?;
        let positions = positions_of(&self.position_embedding_table, places)?;
        Ok(self.input_proj.forward(&pixels)?.add(positions.as_dtype(self.dtype)?)?)
    }

    /// The mean of each square of patches, as rows of the prompt.
    fn rows(&self, hidden: &Array) -> Result<Array> {
        let Config { hidden: width, patches, .. } = self.config;
        let squares = hidden
            .as_dtype(Dtype::Float32)?
            .reshape(&[-1, patches.pooled.pow(2), width])?
            .mean_axis(1, false)?;
        let mut rows = squares.multiply(Array::from_f32((width as f32).sqrt()))?;
        if let Some([bias, scale]) = &self.standard {
            rows = rows.subtract(bias)?.multiply(scale)?;
        }
        self.embed_vision.forward(&rows.as_dtype(self.dtype)?)
    }
}

/// The sums of the rows of a table `[2, positions, width]` for the columns and for the rows of
/// these places: `[places, width]`.
fn positions_of(table: &Array, places: &[(i32, i32)]) -> Result<Array> {
    let (positions, width) = (table.dim(1), table.dim(2));
    let rows = table.reshape(&[2 * positions, width])?;
    let take = |indices: Vec<i32>| -> Result<Array> {
        Ok(rows.take_axis(Array::from_slice(&indices, &[indices.len() as i32]), 0)?)
    };
    let columns = take(places.iter().map(|(_, column)| *column).collect())?;
    Ok(columns.add(take(places.iter().map(|(row, _)| positions + row).collect())?)?)
}

/// Refuses an image with a longer side than a table has positions.
fn check_sides(image: &ImagePixels<'_>, positions: i32) -> Result<()> {
    let ImagePixels { rows, columns, .. } = *image;
    if rows.max(columns) <= positions as u32 {
        return Ok(());
    }
    Err(ModelError::Batch(format!(
        "expected an image of at most {positions} patches each way, found {rows} x {columns}"
    )))
}

impl Vision for GemmaTower {
    fn info(&self) -> &VisionInfo {
        &self.info
    }

    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding> {
        image.check(&self.info)?;
        check_sides(image, self.config.positions)?;
        let ImagePixels { rows, columns, .. } = *image;
        // The order of patches is free, because all attend to all. In this one those of a row of
        // the prompt are neighbours.
        let places = grid::order(rows as i32, columns as i32, self.config.patches.pooled);
        let hidden = grid::in_parts(&places, |places| self.embed_patches(image, places))?;
        // Of a head's numbers the first ones rotate by the column.
        let rotated: Vec<(i32, i32)> = places.iter().map(|(row, column)| (*column, *row)).collect();
        let rope = grid::rotations(&rotated, self.config.head_dim, self.config.rope_theta)?;
        Ok(ImageEncoding::new(hidden, (rows, columns), Some(rope)))
    }

    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>> {
        pass.advance(
            blocks,
            self.blocks.len(),
            |pass, at| self.blocks[at].forward(&pass.hidden, pass.rope.as_ref()),
            |pass| self.rows(&pass.hidden),
        )
    }
}
