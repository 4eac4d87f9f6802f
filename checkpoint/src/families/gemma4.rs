//! Gemma 4: layers of two kinds, of which the last share keys and values with earlier ones; images fill
//! a budget of rows. Source: `models/gemma4` in transformers.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Family, Towers};
use crate::config::HeadSizes;
use crate::files::{self, MAX_TEXT_BYTES, PREPROCESSOR_CONFIG, PROCESSOR_CONFIG};
use crate::{CheckpointError, ConfigJson, KvHeads, Unserved};

/// Gemma's towers for images and sound, and what joins them to the text model.
const GEMMA: Unserved = Unserved {
    prefixes: &[
        "model.vision_tower.",
        "model.vision_embedder.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.embed_audio.",
        "vision_tower.",
        "vision_embedder.",
        "embed_vision.",
        "audio_tower.",
        "embed_audio.",
    ],
    suffixes: Unserved::FREQUENCIES,
};
/// Gemma's tower for sound, in a checkpoint whose images are served.
const GEMMA_VL: Unserved = Unserved {
    prefixes: &["model.audio_tower.", "model.embed_audio.", "audio_tower.", "embed_audio."],
    suffixes: Unserved::FREQUENCIES,
};

pub(super) const FAMILY: Family = Family {
    kv_heads: |config| kv_heads(config).map(Some),
    towers: Towers::IfThere(GEMMA_VL),
    whole_image,
    is_tied: true,
    ..Family::attending(&["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"], GEMMA)
};

/// Kinds of layers, in the order of the model's rotations. Rows of the second one attend to all
/// rows before them.
pub const KINDS: [&str; 2] = ["sliding_attention", "full_attention"];
/// One of this many layers attends to all rows, if the config names no kinds. Source: Gemma 4 in
/// transformers.
const PATTERN: usize = 6;
/// Most layers. Published checkpoints have up to 60; a list of the kinds of any number of layers
/// could be larger than memory.
pub(super) const MOST_LAYERS: i32 = 1024;

/// Sizes of the attention of one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Heads of queries.
    pub n_heads: i32,
    /// Heads of keys and values.
    pub n_kv: i32,
    /// Elements of a head.
    pub head_dim: i32,
    /// Most positions a row attends to, its own included.
    pub window: Option<i32>,
    /// Whether values are the keys' projections.
    pub k_eq_v: bool,
}

impl AttentionSizes {
    /// Keys and values of such an attention.
    pub fn kv_heads(&self) -> KvHeads {
        let Self { n_kv, head_dim, window, .. } = *self;
        KvHeads { n_kv, head_dim, window }
    }
}

/// A layer of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Number of its kind, which is that of its rotation.
    pub kind: usize,
    /// The layer whose keys and values it attends to, if it has none of its own.
    pub shares: Option<usize>,
    /// Width inside the feed-forward.
    pub intermediate: i32,
}

/// The model without towers (12B). Some of its keys have other usual values.
const UNIFIED: &str = "gemma4_unified";

/// The layers of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Sizes by the number of the kind.
    pub attention: [AttentionSizes; 2],
    /// The layers, the first one first.
    pub layers: Vec<LayerPlan>,
}

impl Layers {
    /// Reads the layers.
    ///
    /// # Errors
    /// A key is missing, out of range, or names what is not computed.
    pub fn read(config: &ConfigJson) -> Result<Self, CheckpointError> {
        let n_layers = config.size("num_hidden_layers")?;
        config.check_most("num_hidden_layers", n_layers, MOST_LAYERS)?;
        let layers = layers(config, n_layers as usize)?;
        Ok(Self { attention: attention(config, &layers)?, layers })
    }
}

/// Keys and values of the layers that have their own.
fn kv_heads(config: &ConfigJson) -> Result<Vec<KvHeads>, CheckpointError> {
    let Layers { attention, layers } = Layers::read(config)?;
    let own = layers.iter().filter(|layer| layer.shares.is_none());
    Ok(own.map(|layer| attention[layer.kind].kv_heads()).collect())
}

/// Whether config.json is that of a model of the family.
///
/// # Errors
/// `model_type` is no text.
pub fn is_gemma4(config: &ConfigJson) -> Result<bool, CheckpointError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.is_some_and(|name| FAMILY.model_types.contains(&name.as_str())))
}

/// Whether a config is one of [`UNIFIED`], or of its text model.
///
/// # Errors
/// `model_type` is no text.
pub fn is_unified(config: &ConfigJson) -> Result<bool, CheckpointError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.is_some_and(|model_type| model_type.starts_with(UNIFIED)))
}

/// Sizes by kind. What newer files name layer by layer counts before the keys of full layers.
fn attention(
    config: &ConfigJson,
    layers: &[LayerPlan],
) -> Result<[AttentionSizes; 2], CheckpointError> {
    let n_heads = config.size("num_attention_heads")?;
    let (n_kv, head_dim) = (config.size("num_key_value_heads")?, config.size_or("head_dim", 256)?);
    let k_eq_v = config.optional("attention_k_eq_v")?.unwrap_or(false);
    let usual_window = if is_unified(config)? { 1024 } else { 512 };
    let usual = HeadSizes { head_dim, n_kv };
    let named =
        |kind: usize| config.heads_of_layers(layers.len(), |at| layers[at].kind == kind, usual);
    let of_sliding = named(0)?.unwrap_or(usual);
    let of_full = match named(1)? {
        Some(heads) => heads,
        None => HeadSizes {
            n_kv: if k_eq_v { config.size_or("num_global_key_value_heads", n_kv)? } else { n_kv },
            head_dim: config.size_or("global_head_dim", 512)?,
        },
    };
    let sliding = AttentionSizes {
        n_heads,
        n_kv: of_sliding.n_kv,
        head_dim: of_sliding.head_dim,
        window: Some(config.size_or("sliding_window", usual_window)?),
        k_eq_v: false,
    };
    let full = AttentionSizes {
        n_heads,
        n_kv: of_full.n_kv,
        head_dim: of_full.head_dim,
        window: None,
        k_eq_v,
    };
    for AttentionSizes { n_kv, head_dim, .. } in [sliding, full] {
        if n_heads % n_kv != 0 || head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {n_heads} heads and heads of an even size, found {n_kv} and \
                 {head_dim}"
            );
            return Err(config.wrong("num_key_value_heads", what));
        }
        config.check_heads("num_attention_heads", n_heads, head_dim)?;
    }
    Ok([sliding, full])
}

/// The numbers of the layers' kinds. `usual` has a layer's kind where the config names none.
///
/// # Errors
/// There is another number of them, or another word.
pub(super) fn kinds(
    config: &ConfigJson,
    count: usize,
    usual: impl Fn(usize) -> &'static str,
) -> Result<Vec<usize>, CheckpointError> {
    let wrong = |what: String| config.wrong("layer_types", what);
    let words: Option<Vec<String>> = config.optional("layer_types")?;
    let words = words.unwrap_or_else(|| (0..count).map(|at| usual(at).to_owned()).collect());
    if words.len() != count {
        return Err(wrong(format!("expected {count}, one for each layer, found {}", words.len())));
    }
    let kind = |word: &String| {
        let known = KINDS.iter().position(|kind| kind == word);
        known.ok_or_else(|| wrong(format!("expected {}, found {word}", KINDS.join(" or "))))
    };
    words.iter().map(kind).collect()
}

/// The layers. The last ones attend to the keys and values of the last layer of their kind that has
/// its own.
fn layers(config: &ConfigJson, count: usize) -> Result<Vec<LayerPlan>, CheckpointError> {
    let wrong = |what: String| config.wrong("layer_types", what);
    let usual = |at: usize| KINDS[usize::from((at + 1).is_multiple_of(PATTERN) || at + 1 == count)];
    let kinds = kinds(config, count, usual)?;
    if kinds.last() == Some(&0) {
        // Transformers makes it a full one, without a word in the config.
        let what = format!("expected {} as the last layer, found {}", KINDS[1], KINDS[0]);
        return Err(wrong(what));
    }
    let shared: usize = config.optional("num_kv_shared_layers")?.unwrap_or(0);
    let own = count.checked_sub(shared).filter(|own| *own > 0);
    let own = own.ok_or_else(|| {
        let what = format!("expected fewer than the {count} layers, found {shared}");
        config.wrong("num_kv_shared_layers", what)
    })?;
    let intermediate = config.size("intermediate_size")?;
    let doubled = config.optional("use_double_wide_mlp")?.unwrap_or(false);
    let layer = |(at, kind): (usize, &usize)| {
        if at < own {
            return Ok(LayerPlan { kind: *kind, shares: None, intermediate });
        }
        let of = kinds[..own].iter().rposition(|other| other == kind);
        let of = of.ok_or_else(|| {
            wrong(format!("layer {at} shares keys and values of {}, found none", KINDS[*kind]))
        })?;
        let intermediate = if doubled { 2 * intermediate } else { intermediate };
        Ok(LayerPlan { kind: *kind, shares: Some(of), intermediate })
    };
    kinds.iter().enumerate().map(layer).collect()
}

/// Whether rows of an image attend both ways. The model without towers does so if the key is
/// missing.
///
/// # Errors
/// The key has another type or value.
pub fn both_ways(config: &ConfigJson) -> Result<bool, CheckpointError> {
    let key = "use_bidirectional_attention";
    match config.optional::<String>(key)?.as_deref() {
        None => is_unified(config),
        Some("vision") => Ok(true),
        Some(other) => Err(config.wrong(key, format!("expected null or vision, found {other}"))),
    }
}

/// Most rows of an image if no file names them. Source: Gemma 4's image processor in transformers.
const USUAL_ROWS: u32 = 280;
/// Most rows that a published processor has.
const MOST_ROWS: u32 = 1120;

/// Most rows of an image of which all must be in one pass; `None` if a chunk may end in an image.
///
/// # Errors
/// A key has another type or value; a file of the image processor is broken.
pub fn whole_image(dir: &Path, config: &ConfigJson) -> Result<Option<u32>, CheckpointError> {
    if both_ways(config)? { most_rows(dir).map(Some) } else { Ok(None) }
}

/// Most rows of an image, from the files of the image processor. `processor_config.json` wins if it
/// has settings for images.
///
/// # Errors
/// A file of the image processor is broken, or names another number.
pub fn most_rows(dir: &Path) -> Result<u32, CheckpointError> {
    let key = "max_soft_tokens";
    let all = settings(&dir.join(PROCESSOR_CONFIG))?;
    let (file, of_images) = match all.get("image_processor") {
        Some(Value::Object(of_images)) => (PROCESSOR_CONFIG, of_images.clone()),
        _ => {
            let file = PREPROCESSOR_CONFIG;
            (file, settings(&dir.join(file))?)
        }
    };
    let broken = |found: &Value| CheckpointError::Broken {
        path: dir.join(file),
        what: format!("{key}: expected a number from 1 to {MOST_ROWS}, found {found}"),
    };
    match of_images.get(key) {
        None | Some(Value::Null) => Ok(USUAL_ROWS),
        Some(value) => match value.as_u64().and_then(|rows| u32::try_from(rows).ok()) {
            Some(rows) if (1..=MOST_ROWS).contains(&rows) => Ok(rows),
            _ => Err(broken(value)),
        },
    }
}

/// The object in a file; an empty one if the file is not there.
fn settings(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    let text = match files::read(path, MAX_TEXT_BYTES) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(cause) => return Err(CheckpointError::read(path, cause)),
    };
    serde_json::from_slice(&text).map_err(|cause| CheckpointError::Json {
        path: path.to_owned(),
        expected: "a JSON object",
        cause,
    })
}
