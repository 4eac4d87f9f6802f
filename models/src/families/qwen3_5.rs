//! Qwen3.5, 3.6 and 3.8 (hybrid): most layers have states of fixed size (gated_delta.rs), every few
//! one attends, with a gate for each head and heads of which only the first numbers rotate. With a
//! vision tower rows stand on three axes; layers with states take an image's rows as any others. The
//! head that predicts the token after the next is a drafter (`draft/mtp.rs`).

use paceline_checkpoint::RecurrentSizes;
use paceline_checkpoint::families::Sizes;
use paceline_checkpoint::families::qwen3_5::recurrent_layers;

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, DecoderSpec, LoadFeedForward, TargetFiles, dense};
use super::stored_norms::stored_norms;
use super::tower;
use crate::layers::{Rope, SectionOrder};
use crate::load::{ConfigJson, Layout, LoadError};
use crate::vision::{Deepstack, Generation, QwenTower};

/// Share of a head that rotates if the config names none. Source: Qwen3.5 in transformers.
const TURNING: f64 = 0.25;

/// Frequencies of each axis if the config of a checkpoint with a tower names none. Source: as of
/// [`TURNING`].
const SECTION: [usize; 3] = [11, 11, 10];

/// Sizes of one checkpoint, dense or with experts.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    /// For each layer the sizes of its states, if it has some.
    recurrent: Vec<Option<RecurrentSizes>>,
}

impl Config {
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let sizes = Sizes::read_any(config)?;
        if !config.optional("attn_output_gate")?.unwrap_or(true) {
            let what = "expected true: this version has no attention of this family without gates";
            return Err(config.wrong("attn_output_gate", what.into()).into());
        }
        Ok(Self { sizes, recurrent: recurrent_layers(config)? })
    }
}

/// Loads it, in the layout of transformers or of mlx-lm.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = Config::read(files.config)?;
    let feed_forward = feed_forward(files.config, read.sizes.hidden_size)?;
    load_as(files, read, &*feed_forward)
}

/// The second half of a layer without experts.
///
/// # Errors
/// The width of the feed-forward is missing or out of range.
pub(super) fn feed_forward(
    config: &ConfigJson,
    hidden: i32,
) -> Result<Box<LoadFeedForward<'static>>, LoadError> {
    Ok(dense(hidden, config.size("intermediate_size")?, false))
}

/// The attention of every layer that attends.
///
/// # Errors
/// A key has another type.
pub(super) fn attention(config: &ConfigJson) -> Result<AttentionSpec, LoadError> {
    let bias = config.optional("attention_bias")?.unwrap_or(false);
    Ok(AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        head_norms: HeadNorms::BeforeRotation,
        gated: true,
        ..AttentionSpec::PLAIN
    })
}

/// How its heads rotate.
///
/// # Errors
/// Rotary keys that are not computed.
pub(super) fn rope(config: &ConfigJson, sizes: &Sizes) -> Result<Rope, LoadError> {
    Rope::load_partial(config, sizes.head_dim, TURNING)
}

/// Loads a checkpoint of the family with its own second halves of layers, and its tower if it has
/// one.
pub(super) fn load_as(
    files: TargetFiles<'_>,
    read: Config,
    feed_forward: &LoadFeedForward<'_>,
) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let [transformers, mlx] = Layout::WITH_VISION;
    let layout = Layout::of(weights.files(), &[transformers, mlx, Layout::TEXT])?;
    let norms = stored_norms(weights.files())?;
    let rope = rope(config, &read.sizes)?;
    let generation = Generation::Three(Deepstack::Without);
    let tower = tower::load_if_there(config, &mut weights, &read.sizes, |part, weights, text| {
        QwenTower::load(part, weights, layout.vision, text, generation)
    })?;
    // Of a text model nothing about axes is read.
    let rope = match tower {
        Some(_) => rope.on_three_axes(config, SectionOrder::Interleaved, SECTION)?,
        None => rope,
    };
    let spec = DecoderSpec {
        architecture: config.required("model_type")?,
        layout,
        sizes: read.sizes,
        attention: attention(config)?,
        norms,
        branch_norms: None,
        rotating: &[],
        recurrent: &read.recurrent,
        feed_forward,
        rope,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
