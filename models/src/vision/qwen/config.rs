//! The sizes of a Qwen tower, from a wrapper's `vision_config`.

use super::super::parts::{NormKind, activation, rope_theta};
use crate::layers::Gelu;
use crate::load::{ConfigJson, LoadError};

/// eps of every norm here.
const EPS: f32 = 1e-6;

/// Sizes of the text model that the tower belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextModelSizes {
    /// Width of its hidden states.
    pub(crate) hidden: i32,
    pub(crate) n_layers: i32,
    pub(crate) image_token: u32,
}

/// A generation of the tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Qwen2-VL: no table of positions.
    Two,
    /// Qwen2.5-VL: gated blocks, most of which attend within windows.
    TwoAndHalf,
    /// Qwen3-VL and later: a table of positions.
    Three(Deepstack),
}

/// Whether a tower has features that are added after layers of the text model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deepstack {
    /// After the blocks that `deepstack_visual_indexes` lists (Qwen3-VL).
    AsConfigured,
    /// None (Qwen3.5, 3.6 and 3.8): the list is empty or missing.
    Without,
}

impl Deepstack {
    /// Blocks after which features are taken.
    ///
    /// # Errors
    /// The list has another type, or blocks where there are none.
    fn blocks(self, config: &ConfigJson) -> Result<Vec<i32>, LoadError> {
        let key = "deepstack_visual_indexes";
        let named: Option<Vec<i32>> = config.optional(key)?;
        match self {
            Self::AsConfigured => Ok(named.unwrap_or_else(|| vec![8, 16, 24])),
            Self::Without => match named.unwrap_or_default() {
                none if none.is_empty() => Ok(none),
                blocks => {
                    let what = format!("expected no blocks for this model_type, found {blocks:?}");
                    Err(config.wrong(key, what).into())
                }
            },
        }
    }
}

/// The second half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mlp {
    /// Two products, with these names, and an activation between them.
    Plain([&'static str; 2], Gelu),
    /// With a gate.
    Gated,
}

/// Windows of patches.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Rows of the prompt on a side of a window.
    pub(super) side: i32,
    /// Blocks in which all patches attend to all.
    pub(super) full: Vec<i32>,
}

/// Names of a merger's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergerNames {
    pub(super) norm: &'static str,
    pub(super) products: [&'static str; 2],
}

/// Sizes of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) depth: i32,
    pub(super) hidden_size: i32,
    pub(super) intermediate_size: i32,
    pub(super) num_heads: i32,
    pub(super) patch_size: i32,
    pub(super) temporal_patch_size: i32,
    pub(super) spatial_merge_size: i32,
    /// Whether patches are embedded with a bias.
    pub(super) patch_bias: bool,
    /// Rows and columns of the table of positions, if there is one.
    pub(super) side: Option<i32>,
    pub(super) rope_theta: f64,
    pub(super) norm: NormKind,
    pub(super) mlp: Mlp,
    pub(super) merger: MergerNames,
    pub(super) windows: Option<Windows>,
    /// Blocks after which features are taken, ascending.
    pub(super) deepstack_visual_indexes: Vec<i32>,
}

impl Config {
    /// Values that are not there are the reference's own.
    pub(super) fn read(
        config: &ConfigJson,
        text: TextModelSizes,
        generation: Generation,
    ) -> Result<Self, LoadError> {
        let read = match generation {
            Generation::Two => Self::two(config, text)?,
            Generation::TwoAndHalf => Self::two_and_half(config)?,
            Generation::Three(deepstack) => Self::three(config, deepstack)?,
        };
        read.check_sizes(config)?;
        read.check_against(config, text, generation)?;
        Ok(read)
    }

    fn three(config: &ConfigJson, deepstack: Deepstack) -> Result<Self, LoadError> {
        let positions = config.size_or("num_position_embeddings", 2304)?;
        let side = positions.isqrt();
        if side * side != positions {
            let what = format!("expected a square number, found {positions}");
            return Err(config.wrong("num_position_embeddings", what).into());
        }
        Ok(Self {
            depth: config.size_or("depth", 27)?,
            hidden_size: config.size_or("hidden_size", 1152)?,
            intermediate_size: config.size_or("intermediate_size", 4304)?,
            num_heads: config.size_or("num_heads", 16)?,
            patch_size: config.size_or("patch_size", 16)?,
            temporal_patch_size: config.size_or("temporal_patch_size", 2)?,
            spatial_merge_size: config.size_or("spatial_merge_size", 2)?,
            patch_bias: true,
            side: Some(side),
            rope_theta: rope_theta(config, 10_000.0)?,
            norm: NormKind::Layer(EPS),
            mlp: Mlp::Plain(
                ["mlp.linear_fc1", "mlp.linear_fc2"],
                activation(config, "gelu_pytorch_tanh")?,
            ),
            merger: MergerNames { norm: "norm", products: ["linear_fc1", "linear_fc2"] },
            windows: None,
            deepstack_visual_indexes: deepstack.blocks(config)?,
        })
    }

    /// What Qwen2-VL and Qwen2.5-VL share.
    fn older(config: &ConfigJson, hidden_size: i32) -> Result<Self, LoadError> {
        Ok(Self {
            depth: config.size_or("depth", 32)?,
            hidden_size,
            intermediate_size: hidden_size,
            num_heads: config.size_or("num_heads", 16)?,
            patch_size: config.size_or("patch_size", 14)?,
            temporal_patch_size: config.size_or("temporal_patch_size", 2)?,
            spatial_merge_size: config.size_or("spatial_merge_size", 2)?,
            patch_bias: false,
            side: None,
            rope_theta: rope_theta(config, 10_000.0)?,
            norm: NormKind::Layer(EPS),
            mlp: Mlp::Gated,
            merger: MergerNames { norm: "ln_q", products: ["mlp.0", "mlp.2"] },
            windows: None,
            deepstack_visual_indexes: vec![],
        })
    }

    fn two(config: &ConfigJson, text: TextModelSizes) -> Result<Self, LoadError> {
        let hidden_size = config.size_or("embed_dim", 1280)?;
        let ratio: f64 = config.optional("mlp_ratio")?.unwrap_or(4.0);
        if !(0.01..=1024.0).contains(&ratio) {
            let what = format!("expected 0.01 to 1024, found {ratio}");
            return Err(config.wrong("mlp_ratio", what).into());
        }
        // The width of the rows that the tower makes.
        let out = config.size_or("hidden_size", text.hidden)?;
        if out != text.hidden {
            let expected = text.hidden;
            let what = format!("expected the text model's hidden_size, {expected}, found {out}");
            return Err(config.wrong("hidden_size", what).into());
        }
        let activation = activation(config, "quick_gelu")?;
        Ok(Self {
            intermediate_size: ((f64::from(hidden_size) * ratio) as i32).max(1),
            mlp: Mlp::Plain(["mlp.fc1", "mlp.fc2"], activation),
            ..Self::older(config, hidden_size)?
        })
    }

    fn two_and_half(config: &ConfigJson) -> Result<Self, LoadError> {
        config.check_word("hidden_act", "silu")?;
        let older = Self::older(config, config.size_or("hidden_size", 1280)?)?;
        let square = older.spatial_merge_size.saturating_mul(older.patch_size);
        let pixels = config.size_or("window_size", 112)?;
        let full: Option<Vec<i32>> = config.optional("fullatt_block_indexes")?;
        let full = full.unwrap_or_else(|| vec![7, 15, 23, 31]);
        if pixels < square {
            let what = format!("expected at least {square}, the pixels of a row, found {pixels}");
            return Err(config.wrong("window_size", what).into());
        }
        Ok(Self {
            intermediate_size: config.size_or("intermediate_size", 3420)?,
            norm: NormKind::Rms(EPS),
            windows: Some(Windows { side: pixels / square, full }),
            ..older
        })
    }

    /// Checks the sizes against each other and against what memory holds.
    fn check_sizes(&self, config: &ConfigJson) -> Result<(), LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what).into());
        for (key, size, most) in [
            ("patch_size", self.patch_size, 256),
            ("temporal_patch_size", self.temporal_patch_size, 16),
            ("spatial_merge_size", self.spatial_merge_size, 16),
        ] {
            config.check_most(key, size, most)?;
        }
        let Self { hidden_size, num_heads, intermediate_size, .. } = *self;
        if hidden_size % num_heads != 0 || hidden_size / num_heads % 4 != 0 {
            let what = format!(
                "expected heads of {hidden_size} in all, a multiple of 4 each, found {num_heads}"
            );
            return wrong("num_heads", what);
        }
        if hidden_size > 1 << 16 || intermediate_size > 1 << 20 {
            let what = format!(
                "expected at most 65536 and an intermediate_size of at most 1048576, found {hidden_size} and {intermediate_size}"
            );
            return wrong("hidden_size", what);
        }
        for key in ["in_channels", "in_chans"] {
            let channels = config.size_or(key, 3)?;
            if channels != 3 {
                let what = format!("expected 3 (red, green, blue), found {channels}");
                return wrong(key, what);
            }
        }
        Ok(())
    }

    /// Checks the sizes against the text model's.
    fn check_against(
        &self,
        config: &ConfigJson,
        text: TextModelSizes,
        generation: Generation,
    ) -> Result<(), LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what).into());
        let out = config.size_or("out_hidden_size", text.hidden)?;
        if out != text.hidden && generation != Generation::Two {
            let expected = text.hidden;
            let what = format!("expected the text model's hidden_size, {expected}, found {out}");
            return wrong("out_hidden_size", what);
        }
        let (indexes, depth) = (&self.deepstack_visual_indexes, self.depth);
        let below = indexes.iter().all(|index| (0..depth).contains(index));
        if !indexes.is_sorted_by(|a, b| a < b) || !below {
            let what = format!("expected blocks below {depth}, ascending, found {indexes:?}");
            return wrong("deepstack_visual_indexes", what);
        }
        if indexes.len() > text.n_layers as usize {
            let what = format!(
                "expected at most one for each of {} layers of the text model, found {indexes:?}",
                text.n_layers
            );
            return wrong("deepstack_visual_indexes", what);
        }
        Ok(())
    }

    /// Numbers of a head.
    pub(super) fn head_dim(&self) -> i32 {
        self.hidden_size / self.num_heads
    }
}
