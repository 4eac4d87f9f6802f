//! Qwen3.5, 3.6 and 3.8 (hybrid): most layers have states of fixed size (gated_delta.rs), every few
//! one attends, with a gate for each head and heads of which only the first numbers turn. With a
//! vision tower rows stand on three axes; layers with states take an image's rows as any others. The
//! head that predicts the token after the next is a drafter (`draft/mtp.rs`).

use paceline_blas::{MOST_TAPS, RecurrentSizes};

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, DecoderSpec, LoadFeedForward, TargetFiles, dense};
use super::sizes::Sizes;
use super::stored_norms::stored_norms;
use super::tower;
use crate::layers::{Rope, SectionOrder};
use crate::load::{ConfigJson, Layout, LoadError};
use crate::vision::{Deepstack, Generation, QwenTower};

/// Share of a head that turns if the config names none. Source: Qwen3.5 in transformers.
const TURNING: f64 = 0.25;

/// Frequencies of each axis if the config of a checkpoint with a tower names none. Source: as of
/// [`TURNING`].
const SECTION: [usize; 3] = [11, 11, 10];

/// Most layers. Published checkpoints have up to 64; a list of the kinds of any number of layers
/// could be larger than memory.
const MOST_LAYERS: i32 = 1024;

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
            return Err(config.wrong("attn_output_gate", what.into()));
        }
        Ok(Self { sizes, recurrent: recurrent_layers(config)? })
    }
}

/// For each layer the sizes of its states, if it has some instead of attention.
///
/// # Errors
/// A key is missing, contradicts another, or names a layer that is not computed.
pub(super) fn recurrent_layers(
    config: &ConfigJson,
) -> Result<Vec<Option<RecurrentSizes>>, LoadError> {
    let (states, n_layers) = (states(config)?, config.size("num_hidden_layers")?);
    config.check_most("num_hidden_layers", n_layers, MOST_LAYERS)?;
    let interval = config.size_or("full_attention_interval", 4)?;
    let usual = |at: i32| match (at + 1) % interval {
        0 => "full_attention".to_owned(),
        _ => "linear_attention".to_owned(),
    };
    let kinds: Option<Vec<String>> = config.optional("layer_types")?;
    let kinds = kinds.unwrap_or_else(|| (0..n_layers).map(usual).collect());
    let wrong = |what: String| Err(config.wrong("layer_types", what));
    if kinds.len() != n_layers as usize {
        return wrong(format!("expected {n_layers}, one for each layer, found {}", kinds.len()));
    }
    let known = ["linear_attention", "full_attention"];
    if let Some(other) = kinds.iter().find(|kind| !known.contains(&kind.as_str())) {
        return wrong(format!("expected {}, found {other}", known.join(" or ")));
    }
    if !kinds.iter().any(|kind| kind == known[1]) {
        return wrong("expected a layer of full_attention, found none".into());
    }
    Ok(kinds.iter().map(|kind| (kind == known[0]).then_some(states)).collect())
}

fn states(config: &ConfigJson) -> Result<RecurrentSizes, LoadError> {
    let mut sizes = [0; 4];
    let keys = [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ];
    for (size, key) in sizes.iter_mut().zip(keys) {
        *size = config.size(key)?;
    }
    let [key_heads, value_heads, key_dim, value_dim] = sizes;
    config.check_heads(keys[0], key_heads, key_dim)?;
    config.check_heads(keys[1], value_heads, value_dim)?;
    if value_heads % key_heads != 0 {
        let what = format!("expected a multiple of {key_heads} key heads, found {value_heads}");
        return Err(config.wrong(keys[1], what));
    }
    let taps = config.size_or("linear_conv_kernel_dim", 4)?;
    if !(2..=MOST_TAPS as i32).contains(&taps) {
        let what = format!("expected 2 to {MOST_TAPS}, found {taps}");
        return Err(config.wrong("linear_conv_kernel_dim", what));
    }
    let [key_heads, value_heads, key_dim, value_dim] = sizes.map(|size| size as usize);
    Ok(RecurrentSizes { key_heads, value_heads, key_dim, value_dim, taps: taps as usize })
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
        head_norms: HeadNorms::BeforeTurn,
        gated: true,
        ..AttentionSpec::PLAIN
    })
}

/// How its heads turn.
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
    let layout = Layout::of(&weights, &[transformers, mlx, Layout::TEXT])?;
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
        recurrent: &read.recurrent,
        feed_forward,
        rope,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
