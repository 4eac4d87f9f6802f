//! The sizes of a tower, from a wrapper's `vision_config`. Values that are not there are the
//! reference's own.

use crate::layers::Gelu;
use crate::load::{ConfigJson, LoadError};
use crate::vision::parts::{activation, rope_theta};
use crate::vision::{ImageForm, VisionInfo};

/// Sizes of one checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) layers: i32,
    pub(super) hidden: i32,
    pub(super) inner: i32,
    pub(super) heads: i32,
    /// Pixels of a patch's side.
    pub(super) patch: i32,
    /// Patches of a side that become one row.
    pub(super) merge: i32,
    /// Rows and columns of the table of positions.
    pub(super) side: i32,
    /// Of the norms of blocks.
    pub(super) eps: f32,
    /// Of the two products of a block.
    pub(super) activation: Gelu,
    /// Base of the heads' rotations by rows and columns; `None`: they do not rotate.
    pub(super) theta: Option<f64>,
}

impl Sizes {
    /// PaddleOCR-VL's. Its file names two frames (`temporal_patch_size`), of which its convolution
    /// has none.
    pub(super) fn of_paddle(config: &ConfigJson) -> Result<Self, LoadError> {
        let image = config.size_or("image_size", 384)?;
        let eps = config.optional("layer_norm_eps")?.unwrap_or(1e-6);
        let read = Self::read(config, image, 14, eps, "gelu_pytorch_tanh")?;
        let read = Self { theta: Some(rope_theta(config, 10_000.0)?), ..read };
        if read.head_dim() % 4 != 0 {
            let what = format!("expected heads of a multiple of 4, found {}", read.head_dim());
            return Err(config.wrong("num_attention_heads", what).into());
        }
        Ok(read)
    }

    /// HunyuanOCR's.
    pub(super) fn of_hunyuan(config: &ConfigJson) -> Result<Self, LoadError> {
        let image = config.size_or("max_image_size", 2048)?;
        let eps = config.optional("rms_norm_eps")?.unwrap_or(1e-5);
        config.check_word("interpolate_mode", "bilinear")?;
        Self::read(config, image, 16, eps, "gelu")
    }

    /// Sizes under the names that both have. `image`: pixels of a side of the image that the table
    /// of positions was made for. `usual`: the activation if the config names none.
    fn read(
        config: &ConfigJson,
        image: i32,
        patch: i32,
        eps: f32,
        usual: &str,
    ) -> Result<Self, LoadError> {
        let patch = config.size_or("patch_size", patch)?;
        let read = Self {
            layers: config.size_or("num_hidden_layers", 27)?,
            hidden: config.size_or("hidden_size", 1152)?,
            inner: config.size_or("intermediate_size", 4304)?,
            heads: config.size_or("num_attention_heads", 16)?,
            patch,
            merge: config.size_or("spatial_merge_size", 2)?,
            side: image / patch,
            eps,
            activation: activation(config, usual)?,
            theta: None,
        };
        read.check(config, image)?;
        Ok(read)
    }

    fn check(&self, config: &ConfigJson, image: i32) -> Result<(), LoadError> {
        let Self { hidden, heads, patch, merge, side, .. } = *self;
        let wrong = |key: &str, what: String| Err(config.wrong(key, what).into());
        config.check_heads("num_attention_heads", heads, hidden / heads.max(1))?;
        if hidden % heads != 0 {
            let what = format!("expected a divisor of hidden_size {hidden}, found {heads}");
            return wrong("num_attention_heads", what);
        }
        // With the bounds of heads these keep products of sizes in the range of i32.
        if patch > 128 || merge > 16 {
            let what =
                format!("expected patches of at most 128, 16 of a side, found {patch} and {merge}");
            return wrong("patch_size", what);
        }
        if !(1..=1 << 12).contains(&side) {
            let what =
                format!("expected an image of 1 to 4096 patches a side, found {image} pixels");
            return wrong("image_size", what);
        }
        let channels = config.size_or("num_channels", 3)?;
        if channels != 3 {
            let what = format!("expected 3 (red, green, blue), found {channels}");
            return wrong("num_channels", what);
        }
        Ok(())
    }

    /// Numbers of a head.
    pub(super) fn head_dim(&self) -> i32 {
        self.hidden / self.heads
    }

    /// Numbers of a square of patches.
    pub(super) fn square(&self) -> i32 {
        self.hidden * self.merge * self.merge
    }

    pub(super) fn info(&self, form: ImageForm, image_token: u32) -> VisionInfo {
        let blocks = self.layers as usize;
        VisionInfo { form, ..VisionInfo::of_grid(self.patch, self.merge, blocks, image_token) }
    }
}
