//! What is HunyuanOCR's own: names, and the rows of lines. Source: transformers 5.24,
//! `models/hunyuan_vl/modeling_hunyuan_vl.py`.

use mlx_rs::Array;
use mlx_rs::ops::{broadcast_to, concatenate};

use super::embeddings::EmbeddingNames;
use super::sizes::Sizes;
use crate::error::Result;
use crate::layers::{Gelu, Linear, RmsNorm};
use crate::load::{ConfigJson, LoadError, Weights};
use crate::vision::parts::{AttentionSpec, BlockSpec, MlpSpec, NormKind, convolution_as_product};

/// The blocks by their parts.
pub(super) fn block(sizes: &Sizes) -> BlockSpec<'static> {
    let Sizes { hidden, inner, heads, eps, activation, .. } = *sizes;
    let names = ["mlp.dense_h_to_4h", "mlp.dense_4h_to_h"];
    BlockSpec {
        hidden,
        norm: NormKind::Layer(eps),
        norms: ["input_layernorm", "post_attention_layernorm"],
        attention: AttentionSpec {
            name: "self_attn",
            projections: &["q_proj", "k_proj", "v_proj"],
            output: "o_proj",
            biases: true,
            heads,
            head_norms: None,
        },
        mlp: MlpSpec::Plain { names, inner, activation },
    }
}

pub(super) fn embeddings(name: &str) -> EmbeddingNames {
    EmbeddingNames {
        patch: format!("{name}.embeddings.patch_embedding"),
        table: format!("{name}.embeddings.position_embedding.weight"),
        // The position of a class token, which the tower has not.
        leading: 1,
    }
}

/// Squares of patches → rows of the prompt, with one after each line, one before the first line and
/// one after the last one.
#[derive(Debug)]
pub(super) struct Perceive {
    before_rms: RmsNorm,
    /// A convolution over squares as a product.
    proj_0: Linear,
    activation: Gelu,
    proj_2: Linear,
    /// `[1, 1, 4 · hidden]`
    image_newline: Array,
    mlp: Linear,
    /// `[1, out]`
    image_begin: Array,
    /// `[1, out]`
    image_end: Array,
    after_rms: RmsNorm,
    /// Numbers of a square.
    square: i32,
}

impl Perceive {
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: &Sizes,
        out: i32,
        named: &ConfigJson,
    ) -> Result<Self, LoadError> {
        let Sizes { hidden, merge, eps, .. } = *sizes;
        let part = |part: &str| format!("{name}.{part}");
        let wide = 4 * hidden;
        let mut row = |name: &str, size: i32, shape: &[i32]| {
            let row = weights.take(&part(name), &[size])?.reshape(shape)?;
            row.eval()?;
            Ok::<_, LoadError>(row)
        };
        let image_newline = row("image_newline", wide, &[1, 1, wide])?;
        let image_begin = row("image_begin", out, &[1, out])?;
        let image_end = row("image_end", out, &[1, out])?;
        // No model reads it.
        weights.skip_tensor(&part("image_sep"));
        let mut convolution = |name: &str, shape: [i32; 4]| {
            convolution_as_product(weights, &part(name), shape, named)
        };
        let proj_0 = convolution("proj.0", [2 * hidden, hidden, merge, merge])?;
        let proj_2 = convolution("proj.2", [wide, 2 * hidden, 1, 1])?;
        Ok(Self {
            before_rms: RmsNorm::load(weights, &part("before_rms"), hidden, eps)?,
            proj_0,
            activation: sizes.activation,
            proj_2,
            image_newline,
            mlp: Linear::load(weights, &part("mlp"), out, wide, true)?,
            image_begin,
            image_end,
            after_rms: RmsNorm::load(weights, &part("after_rms"), out, eps)?,
            square: sizes.square(),
        })
    }

    /// `x` `[N, hidden]`, the patches of `lines` lines of `columns` squares → `[lines · (columns + 1) +
    /// 2, out]`.
    pub(super) fn forward(&self, x: &Array, lines: i32, columns: i32) -> Result<Array> {
        let squares = self.before_rms.forward(x)?.reshape(&[-1, self.square])?;
        let inner = self.activation.forward(&self.proj_0.forward(&squares)?)?;
        let squares = self.proj_2.forward(&inner)?;
        let wide = squares.dim(1);
        let newlines = broadcast_to(&self.image_newline, &[lines, 1, wide])?;
        let newlines = newlines.as_dtype(squares.dtype())?;
        let squares = squares.reshape(&[lines, columns, wide])?;
        let lines = concatenate(&[squares, newlines], 1)?.reshape(&[-1, wide])?;
        let rows = self.mlp.forward(&lines)?;
        let around = [&self.image_begin, &self.image_end].map(|row| row.as_dtype(rows.dtype()));
        let [begin, end] = around;
        self.after_rms.forward(&concatenate(&[begin?, rows, end?], 0)?)
    }
}
