//! Patches of pixels to rows of a tower.

use mlx_rs::{Array, Dtype};

use super::super::{ImagePixels, VisionInfo, grid};
use crate::error::Result;
use crate::layers::Linear;
use crate::load::{ConfigJson, LoadError, StoredMatrix, Weights};

/// Sizes of the convolution that embeds patches.
#[derive(Clone, Copy, Debug)]
pub(in crate::vision) struct PatchSizes {
    /// Width of the rows.
    pub(in crate::vision) out: i32,
    /// Pixels of a patch's side.
    pub(in crate::vision) side: i32,
    /// Frames of a patch; `None`: its weight has no axis of frames.
    pub(in crate::vision) frames: Option<i32>,
    pub(in crate::vision) bias: bool,
}

/// A convolution whose patches do not overlap, as a product over a patch's pixels as they lie. In
/// float32.
///
/// Over several frames it is a product over one: an image is the same in every frame, so their
/// weights are summed.
#[derive(Debug)]
pub(in crate::vision) struct PatchEmbedding {
    linear: Linear,
    side: i32,
}

impl PatchEmbedding {
    /// Reads `{name}.weight`, `[out, 3, frames, P, P]` as transformers keeps it, or `[out, frames, P,
    /// P, 3]` as MLX does, and `{name}.bias`.
    ///
    /// The shape tells the order, not the names: conversions of Qwen3.8 to MLX may keep the order of
    /// transformers. `config` is the tower's, for an error about sizes by which both orders are the
    /// same.
    pub(in crate::vision) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: PatchSizes,
        config: &ConfigJson,
    ) -> Result<Self, LoadError> {
        let PatchSizes { out, side, frames, bias } = sizes;
        let weight = format!("{name}.weight");
        let shape = |channels: [&[i32]; 2]| {
            let [before, after] = channels;
            let frames = frames.as_slice();
            [&[out], before, frames, &[side, side], after].concat()
        };
        let (channels_first, channels_last) = (shape([&[3], &[]]), shape([&[], &[3]]));
        if channels_first == channels_last {
            let what = format!(
                "expected sizes by which the axes of tensor {weight} can be told apart, found {} \
                 frames and patches of {side} beside 3 channels",
                frames.unwrap_or(1)
            );
            return Err(config.wrong("temporal_patch_size", what).into());
        }
        let is_last = weights.shape(&weight).is_some_and(|shape| {
            shape.iter().map(|size| *size as i64).eq(channels_last.iter().map(|n| i64::from(*n)))
        });
        let of_frames = frames.unwrap_or(1);
        let summed = if is_last {
            let stored = weights.take(&weight, &channels_last)?.as_dtype(Dtype::Float32)?;
            stored.reshape(&[out, of_frames, side, side, 3])?.sum_axis(1, false)?
        } else {
            let stored = weights.take(&weight, &channels_first)?.as_dtype(Dtype::Float32)?;
            let stored = stored.reshape(&[out, 3, of_frames, side, side])?;
            stored.sum_axis(2, false)?.transpose_axes(&[0, 2, 3, 1])?
        };
        let matrix = summed.reshape(&[out, side * side * 3])?;
        matrix.eval()?;
        let linear = match bias {
            true => {
                let bias = weights.take(&format!("{name}.bias"), &[out])?;
                Linear::new(&matrix, bias.as_dtype(Dtype::Float32)?)?
            }
            false => Linear::of(StoredMatrix::Float(matrix))?,
        };
        Ok(Self { linear, side })
    }

    /// The patches at these places: `[places, out]`, float32.
    pub(in crate::vision) fn forward(
        &self,
        image: &ImagePixels<'_>,
        info: &VisionInfo,
        places: &[(i32, i32)],
    ) -> Result<Array> {
        let shape = [places.len() as i32, self.side * self.side * 3];
        self.linear.forward(&Array::from_slice(&grid::patches(image, info, places), &shape))
    }
}
