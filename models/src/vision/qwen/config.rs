//! The sizes of a Qwen tower, from a wrapper's `vision_config`.

use crate::layers::Gelu;
use crate::load::{ConfigJson, LoadError};

/// Sizes of the text model that the tower belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextModelSizes {
    /// Width of its hidden states.
    pub(crate) hidden: i32,
    pub(crate) n_layers: i32,
    pub(crate) image_token: u32,
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
                    Err(config.wrong(key, what))
                }
            },
        }
    }
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
    /// Rows and columns of the table of positions.
    pub(super) side: i32,
    pub(super) rope_theta: f64,
    /// Blocks after which features are taken, ascending.
    pub(super) deepstack_visual_indexes: Vec<i32>,
    pub(super) activation: Gelu,
}

impl Config {
    /// Values that are not there are the reference's own.
    pub(super) fn read(
        config: &ConfigJson,
        text: TextModelSizes,
        deepstack: Deepstack,
    ) -> Result<Self, LoadError> {
        let positions = config.size_or("num_position_embeddings", 2304)?;
        let read = Self {
            depth: config.size_or("depth", 27)?,
            hidden_size: config.size_or("hidden_size", 1152)?,
            intermediate_size: config.size_or("intermediate_size", 4304)?,
            num_heads: config.size_or("num_heads", 16)?,
            patch_size: config.size_or("patch_size", 16)?,
            temporal_patch_size: config.size_or("temporal_patch_size", 2)?,
            spatial_merge_size: config.size_or("spatial_merge_size", 2)?,
            side: positions.isqrt(),
            rope_theta: rope_theta(config)?,
            deepstack_visual_indexes: deepstack.blocks(config)?,
            activation: activation(config)?,
        };
        if read.side * read.side != positions {
            let what = format!("expected a square number, found {positions}");
            return Err(config.wrong("num_position_embeddings", what));
        }
        read.check_sizes(config)?;
        read.check_against(config, text)?;
        Ok(read)
    }

    /// Checks the sizes against each other and against what memory holds.
    fn check_sizes(&self, config: &ConfigJson) -> Result<(), LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what));
        for (key, size, most) in [
            ("patch_size", self.patch_size, 256),
            ("temporal_patch_size", self.temporal_patch_size, 16),
            ("spatial_merge_size", self.spatial_merge_size, 16),
        ] {
            if size > most {
                return wrong(key, format!("expected at most {most}, found {size}"));
            }
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
        let channels = config.size_or("in_channels", 3)?;
        if channels != 3 {
            let what = format!("expected 3 (red, green, blue), found {channels}");
            return wrong("in_channels", what);
        }
        Ok(())
    }

    /// Checks the sizes against the text model's.
    fn check_against(&self, config: &ConfigJson, text: TextModelSizes) -> Result<(), LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what));
        let out = config.size_or("out_hidden_size", text.hidden)?;
        if out != text.hidden {
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

fn activation(config: &ConfigJson) -> Result<Gelu, LoadError> {
    let name: String = config.optional("hidden_act")?.unwrap_or_else(|| "gelu_pytorch_tanh".into());
    match name.as_str() {
        "gelu_pytorch_tanh" => Ok(Gelu::Tanh),
        "gelu" => Ok(Gelu::Exact),
        other => {
            let what = format!("expected gelu_pytorch_tanh or gelu, found {other}");
            Err(config.wrong("hidden_act", what))
        }
    }
}

fn rope_theta(config: &ConfigJson) -> Result<f64, LoadError> {
    let Some(rope) = config.part("rope_parameters")? else { return Ok(10_000.0) };
    let kind: String = rope.optional("rope_type")?.unwrap_or_else(|| "axial".into());
    if !matches!(kind.as_str(), "axial" | "default") {
        return Err(rope.wrong("rope_type", format!("expected axial, found {kind}")));
    }
    let theta: f64 = rope.optional("rope_theta")?.unwrap_or(10_000.0);
    if theta > 0.0 && theta.is_finite() {
        return Ok(theta);
    }
    Err(config.wrong("rope_parameters.rope_theta", format!("expected above 0, found {theta}")))
}
