//! Target models: the registry by `model_type`, and what every family gives.
//!
//! # What a new family needs
//!
//! - A file named as its `model_type`, with a `load`. If its layers are those of `decoder.rs`, it
//!   reads its own keys and describes what differs.
//! - A line in [`FAMILIES`].
//! - `models/tests/`: parity with its reference implementation, with golden files.

mod attending_layer;
mod attention;
mod decoder;
mod gated_delta;
mod gemma;
mod gemma4;
mod glm4v;
mod glm_block;
mod graph;
mod hunyuan_vl;
mod image_rows;
mod llama;
#[cfg(target_os = "linux")]
mod on_cpu;
mod paddleocr_vl;
mod prepared;
mod qwen2;
mod qwen2_vl;
mod qwen3;
mod qwen3_5;
mod qwen3_5_block;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_vl;
mod refused;
mod sizes;
mod stored_norms;
mod tower;

use std::path::Path;

use mlx_rs::{Array, Dtype};
use paceline_blas::RecurrentSizes;
use paceline_checkpoint::files::TOWERS;

use crate::batch::{Batch, Forward, Wants};
use crate::device::on_gpu;
use crate::error::Result;
use crate::info::TargetInfo;
use crate::kv::{KvStore, LayerKv, MOST_ROWS};
use crate::layers::has_product;
use crate::load::{
    CheckpointPlan, ConfigJson, KvHeads, LoadError, PlannedLayers, Precision, Quantization,
    StoragePlan, TensorFiles, Unserved, WeightForms, Weights,
};
use crate::products::{self, Products};
use crate::sample::softcap;
use crate::vision::Vision;

use decoder::Decoder;

pub(crate) use attending_layer::AttendingLayer;
pub(crate) use decoder::TargetFiles;
pub(crate) use gemma4::{AssistedLayers, AssistedTarget};
pub(crate) use glm_block::{check_glm_ocr, glm_ocr_layer, glm_ocr_sizes, is_glm_ocr};
pub use prepared::{PreparedStep, prepare_next, take_prepared};
pub(crate) use qwen3_5_block::{check_hybrid, hybrid_layer, hybrid_sizes, is_hybrid};
pub(crate) use stored_norms::stored_norms;

/// A model whose distribution clients get. One set of weights, any number of sequences.
pub trait Target {
    /// Properties of the target.
    fn info(&self) -> &TargetInfo;

    /// Forms of its layers' keys and values, for [`KvStore::new`].
    fn kv_layers(&self) -> Vec<LayerKv>;

    /// In which type it computes.
    fn dtype(&self) -> Dtype;

    /// One pass over the rows of a batch: their KV is written, and what `wants` names is computed.
    /// Lazy.
    ///
    /// # Errors
    /// A batch that contradicts itself; MLX's own.
    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward>;

    /// Embeddings of `ids` `[ids, hidden]`.
    ///
    /// # Errors
    /// An id beyond the vocabulary; MLX's own.
    fn embed(&self, ids: &[u32]) -> Result<Array>;

    /// As [`Target::embed`], of ids `[ids]`, uint32, that are a part of a graph. The caller guarantees
    /// that every id is below the vocabulary. Lazy.
    ///
    /// # Errors
    /// MLX's own.
    fn embed_chosen(&self, ids: &Array) -> Result<Array>;

    /// Logits `[rows, vocab]`, float32, of hidden states after the final norm `[rows, hidden]`.
    ///
    /// # Errors
    /// MLX's own.
    fn head(&self, hidden: &Array) -> Result<Array>;

    /// Whether [`Target::head`] caps its logits.
    fn caps_logits(&self) -> bool {
        false
    }

    /// Logits of hidden rows that a drafter proposes, capped as the drafter was trained: by `cap`,
    /// unless the head has a cap of its own. A drafter of such a target names the same cap.
    ///
    /// # Errors
    /// MLX's own.
    fn draft_logits(&self, hidden: &Array, cap: Option<f32>) -> Result<Array> {
        let logits = self.head(hidden)?;
        match cap.filter(|_| !self.caps_logits()) {
            Some(cap) => softcap(&logits, cap),
            None => Ok(logits),
        }
    }

    /// Vision tower of the target, if it has one. Its [`crate::vision::VisionInfo`] tells whether
    /// rows have positions on several axes.
    fn vision(&self) -> Option<&dyn Vision> {
        None
    }

    /// Most rows that a pass adds to a sequence, for [`KvStore::with_most_rows`]: enough for the
    /// rows of an image that must be in one pass.
    fn most_rows(&self) -> i32 {
        let info = self.vision().map(Vision::info).filter(|info| info.whole);
        most_rows(info.and_then(|info| info.most_rows))
    }
}

/// Most rows of a pass, with the rows of an image that must be in one.
fn most_rows(image: Option<u32>) -> i32 {
    let image = image.map_or(0, |rows| i32::try_from(rows).unwrap_or(i32::MAX));
    MOST_ROWS.max(image)
}

/// A family of checkpoints.
struct Family {
    /// `model_type` of its config.json.
    model_type: &'static str,
    load: Load,
    /// For each layer the sizes of its states, if it has some instead of attention.
    recurrent: fn(&ConfigJson) -> Result<Vec<Option<RecurrentSizes>>, LoadError>,
    /// Keys and values of the layers that have some; `None`: as config.json's usual keys say.
    kv_heads: fn(&ConfigJson) -> Result<Option<Vec<KvHeads>>, LoadError>,
    /// Parts that its checkpoints may have and that are not read.
    unserved: Unserved,
    towers: Towers,
    /// Module of layers that are no layers of the model: heads that predict a further token.
    next_token: Option<&'static str>,
    /// Most rows of an image, if all of them must be in one pass.
    whole_image: fn(&Path, &ConfigJson) -> Result<Option<u32>, LoadError>,
}

/// Whether the vision towers of a family are served.
enum Towers {
    /// They are left unread.
    Unread,
    /// In checkpoints that have one, of which these parts are unserved.
    IfThere(Unserved),
}

/// Served parts of one checkpoint.
struct ServedParts<'a> {
    has_tower: bool,
    unserved: &'a Unserved,
    next_token: Option<&'static str>,
    /// Whether config.json ties the head to the embedding.
    tied: bool,
}

impl ServedParts<'_> {
    /// Leaves the other parts unread, the tower if `options` says so, and a head that the embedding is.
    fn keep(&self, files: &mut TensorFiles, options: LoadOptions) {
        files.skip(self.unserved);
        if !options.vision {
            files.skip(&TOWER);
        }
        if let Some(module) = self.next_token {
            files.skip_layers_with(module);
        }
        files.settle_head(self.tied);
    }
}

/// Ends of names in old checkpoints: rotary frequencies, which follow from the config.
const FREQUENCIES: &[&str] = &[".rotary_emb.inv_freq"];
/// A Llama's vision tower and what joins it to the text model, beside a config of the text alone.
const LLAMA: Unserved =
    Unserved { prefixes: &["vision_tower.", "multi_modal_projector."], suffixes: FREQUENCIES };
/// A Qwen's vision tower, in either layout, and its layers that predict several tokens.
const QWEN: Unserved = Unserved {
    prefixes: &["mtp.", "model.mtp.", "visual.", "model.visual.", "vision_tower."],
    suffixes: FREQUENCIES,
};
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
    suffixes: FREQUENCIES,
};
/// Gemma's tower for sound, in a checkpoint whose images are served.
const GEMMA_VL: Unserved = Unserved {
    prefixes: &["model.audio_tower.", "model.embed_audio.", "audio_tower.", "embed_audio."],
    suffixes: FREQUENCIES,
};
/// The tower is served here, or there is none.
const QWEN_VL: Unserved = Unserved { prefixes: &["mtp.", "model.mtp."], suffixes: FREQUENCIES };

/// Towers of checkpoints that are served as text alone.
const TOWER: Unserved = Unserved { prefixes: &TOWERS, suffixes: &[] };

/// As of [`QWEN`], and the layers that predict several tokens in MLX's layout.
const QWEN_HYBRID: Unserved = Unserved {
    prefixes: &[
        "mtp.",
        "model.mtp.",
        "language_model.mtp.",
        "visual.",
        "model.visual.",
        "vision_tower.",
    ],
    suffixes: FREQUENCIES,
};
/// As of [`QWEN_HYBRID`], for a checkpoint whose tower is served.
const QWEN_HYBRID_VL: Unserved =
    Unserved { prefixes: &["mtp.", "model.mtp.", "language_model.mtp."], suffixes: FREQUENCIES };

/// PaddleOCR-VL's tower, in either layout, and what joins it to the text model.
const PADDLE: Unserved =
    Unserved { prefixes: &["visual.", "mlp_AR."], suffixes: PADDLE_VL.suffixes };
/// The tower is served here. What published files have of it beside is of no use: a head, and a
/// second table of positions.
const PADDLE_VL: Unserved = Unserved {
    prefixes: &["visual.vision_model.head."],
    suffixes: &[".rotary_emb.inv_freq", ".packing_position_embedding.weight"],
};
/// HunyuanOCR's tower, in either layout.
const HUNYUAN: Unserved = Unserved { prefixes: &["vit.", "vision_tower."], suffixes: FREQUENCIES };
/// The tower of a HunyuanOCR or a GLM is served, or there is none.
const FREQUENCIES_ONLY: Unserved = Unserved { prefixes: &[], suffixes: FREQUENCIES };

/// All families that are served.
const FAMILIES: [Family; 21] = [
    Family::attending("llama", llama::load, LLAMA),
    Family {
        kv_heads: llama::mistral_kv_heads,
        ..Family::attending("mistral", llama::load_mistral, LLAMA)
    },
    Family::attending("qwen2", qwen2::load, QWEN),
    Family::attending("qwen3", qwen3::load, QWEN),
    Family::attending("qwen3_moe", qwen3_moe::load, QWEN),
    Family::seeing("qwen3_vl", qwen3_vl::load),
    Family::seeing("qwen3_vl_moe", qwen3_vl::load_moe),
    Family::seeing("qwen2_vl", qwen2_vl::load),
    Family::seeing("qwen2_5_vl", qwen2_vl::load_two_and_half),
    Family {
        towers: Towers::IfThere(PADDLE_VL),
        ..Family::attending("paddleocr_vl", paddleocr_vl::load, PADDLE)
    },
    Family {
        kv_heads: hunyuan_vl::kv_heads,
        towers: Towers::IfThere(FREQUENCIES_ONLY),
        ..Family::attending("hunyuan_vl", hunyuan_vl::load, HUNYUAN)
    },
    Family::glm("glm4v", glm4v::load),
    Family::glm("glm_ocr", glm4v::load_ocr),
    Family::gemma("gemma4"),
    Family::gemma("gemma4_text"),
    Family::gemma("gemma4_unified"),
    Family::gemma("gemma4_unified_text"),
    Family::hybrid("qwen3_5", qwen3_5::load),
    Family::hybrid("qwen3_5_text", qwen3_5::load),
    Family::hybrid("qwen3_5_moe", qwen3_5_moe::load),
    Family::hybrid("qwen3_5_moe_text", qwen3_5_moe::load),
];

type Load = fn(TargetFiles<'_>) -> Result<Decoder, LoadError>;

impl Family {
    /// A family whose layers all attend.
    const fn attending(model_type: &'static str, load: Load, unserved: Unserved) -> Self {
        Self {
            model_type,
            load,
            recurrent: |_| Ok(vec![]),
            kv_heads: |_| Ok(None),
            unserved,
            towers: Towers::Unread,
            next_token: None,
            whole_image: |_, _| Ok(None),
        }
    }

    /// A family whose layers all attend, of which some checkpoints have a tower.
    const fn seeing(model_type: &'static str, load: Load) -> Self {
        Self { towers: Towers::IfThere(QWEN_VL), ..Self::attending(model_type, load, QWEN) }
    }

    /// A family of Qwen3.5's layers.
    const fn hybrid(model_type: &'static str, load: Load) -> Self {
        Self {
            recurrent: qwen3_5::recurrent_layers,
            towers: Towers::IfThere(QWEN_HYBRID_VL),
            ..Self::attending(model_type, load, QWEN_HYBRID)
        }
    }

    /// GLM, of which some checkpoints have a tower. A checkpoint may have a layer that predicts a further token.
    const fn glm(model_type: &'static str, load: Load) -> Self {
        Self {
            towers: Towers::IfThere(FREQUENCIES_ONLY),
            next_token: Some("eh_proj"),
            ..Self::attending(model_type, load, FREQUENCIES_ONLY)
        }
    }

    /// Gemma 4.
    const fn gemma(model_type: &'static str) -> Self {
        Self {
            kv_heads: gemma::kv_heads,
            towers: Towers::IfThere(GEMMA_VL),
            whole_image: gemma4::whole_image,
            ..Self::attending(model_type, gemma::load, GEMMA)
        }
    }

    /// Served parts of a checkpoint of the family in `dir`.
    ///
    /// # Errors
    /// It is saved to embed texts, or a key has another type.
    fn parts(
        &self,
        dir: &Path,
        config: &ConfigJson,
        files: &TensorFiles,
    ) -> Result<ServedParts<'_>, LoadError> {
        files.check_answers(dir)?;
        let has_tower = match self.towers {
            Towers::Unread => false,
            Towers::IfThere(_) => tower::is_there(config, files)?,
        };
        let unserved = match &self.towers {
            Towers::IfThere(unserved) if has_tower => unserved,
            _ => &self.unserved,
        };
        let tied = is_tied(config)?;
        Ok(ServedParts { has_tower, unserved, next_token: self.next_token, tied })
    }

    fn of(config: &ConfigJson) -> Result<&'static Self, LoadError> {
        let model_type: String = config.required("model_type")?;
        let unknown = || {
            let known: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
            let known = known.join(", ");
            let what = match refused::reason(&model_type) {
                Some(reason) => format!(
                    "expected one of {known}, found {model_type}, which is not served: {reason} \
                     (docs/models.md)"
                ),
                None => format!("expected one of {known}, found {model_type}"),
            };
            config.wrong("model_type", what)
        };
        FAMILIES.iter().find(|family| family.model_type == model_type).ok_or_else(unknown)
    }
}

/// Whether a target's output head is its embedding if its files have no head. Gemma 4's and
/// HunyuanOCR's is unless config.json denies it, that of other families if config.json names it so.
///
/// # Errors
/// A key has another type.
pub(crate) fn is_tied(config: &ConfigJson) -> Result<bool, LoadError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let is_usual =
        model_type.is_some_and(|name| name.starts_with("gemma4") || name == "hunyuan_vl");
    Ok(config.optional("tie_word_embeddings")?.unwrap_or(is_usual))
}

/// Whether config.json is that of a family that is served.
///
/// # Errors
/// `model_type` is no text.
pub(crate) fn is_served(config: &ConfigJson) -> Result<bool, LoadError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(FAMILIES.iter().any(|family| Some(family.model_type) == model_type.as_deref()))
}

/// Whether a served family's config names layers with states.
///
/// # Errors
/// As [`load_target`] for config.json.
pub(crate) fn has_recurrent_layers(config: &ConfigJson) -> Result<bool, LoadError> {
    Ok((Family::of(config)?.recurrent)(config)?.iter().any(Option::is_some))
}

/// Loads a target whose files are open. Unlike [`load_target`] the caller chooses the form of the
/// weights.
///
/// # Errors
/// As [`load_target`].
pub(crate) fn load_opened(mut files: TargetFiles<'_>) -> Result<Box<dyn Target>, LoadError> {
    let family = Family::of(files.config)?;
    let parts = family.parts(files.dir, files.config, files.weights.files())?;
    files.weights.forgetting(|files| parts.keep(files, LoadOptions::default()));
    Ok(Box::new((family.load)(files)?))
}

/// Choices of a caller that loads a target.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Quantized weights stay as they are stored if the device has products by them. Otherwise the
    /// CPU computes with their numbers as float32; the GPU keeps them in any case.
    pub keep_quantized: bool,
    /// The vision tower of a checkpoint that has one is served. Otherwise it is left unread.
    pub vision: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { keep_quantized: true, vision: true }
    }
}

impl LoadOptions {
    /// config.json of a target that is loaded so: without the sizes of a tower that is left out, it is
    /// that of a text model.
    ///
    /// # Errors
    /// As [`ConfigJson::read`].
    fn config(self, dir: &Path) -> Result<ConfigJson, LoadError> {
        let config = ConfigJson::read(dir)?;
        Ok(if self.vision { config } else { config.without("vision_config") })
    }
}

/// In which form this device keeps the weights.
fn forms(config: &ConfigJson, options: LoadOptions) -> Result<WeightForms, LoadError> {
    forms_on(config, options, on_gpu())
}

/// In which form a GPU, or this process's CPU, keeps the weights.
fn forms_on(
    config: &ConfigJson,
    options: LoadOptions,
    on_gpu: bool,
) -> Result<WeightForms, LoadError> {
    Ok(WeightForms {
        precision: if on_gpu { Precision::AsStored } else { Precision::Float32 },
        quantization: Quantization::read(config)?,
        keeps: match (on_gpu, options.keep_quantized) {
            (true, _) => |_| true,
            (false, true) => has_product,
            (false, false) => |_| false,
        },
        products: Products::Float,
    })
}

/// Settles how products by the weights of this checkpoint are computed.
///
/// # Errors
/// The configuration names products of integers, and there are none.
fn settle_products(
    checkpoint: &TensorFiles,
    forms: WeightForms,
    on_gpu: bool,
) -> Result<WeightForms, LoadError> {
    let products = match on_gpu {
        true => Products::Float,
        false => products::for_target(checkpoint.quantized_bytes()),
    };
    let forms = WeightForms { products, ..forms };
    check_products(checkpoint, &forms).map(|()| forms)
}

/// Refuses a target without products of integers, if the configuration names them.
///
/// # Errors
/// No weight stays quantized on the CPU.
fn check_products(checkpoint: &TensorFiles, forms: &WeightForms) -> Result<(), LoadError> {
    if !products::are_required() || forms.products_of(checkpoint) == Products::Integer {
        return Ok(());
    }
    let storage = StoragePlan::of(checkpoint, forms)?;
    let found = match (forms.products, storage.formats.into_iter().next()) {
        (Products::Float, _) => "a GPU".to_owned(),
        (Products::Integer, first) => first.map_or_else(String::new, |first| first.format),
    };
    Err(LoadError::Products { found })
}

/// Plan of the target in `dir`: its properties and its memory on this device. Reads headers and
/// config.json, and no weight but a head that may be the embedding. Refuses what a load refuses.
///
/// # Errors
/// Broken or foreign files; see [`LoadError`].
pub fn plan_target(dir: &Path, options: LoadOptions) -> Result<CheckpointPlan, LoadError> {
    plan_target_on(dir, options, on_gpu())
}

/// As [`plan_target`], on a GPU or on the CPU, whichever of them this process has.
///
/// # Errors
/// As [`plan_target`].
pub fn plan_target_on(
    dir: &Path,
    options: LoadOptions,
    on_gpu: bool,
) -> Result<CheckpointPlan, LoadError> {
    let config = options.config(dir)?;
    let family = Family::of(&config)?;
    let forms = forms_on(&config, options, on_gpu)?;
    let mut checkpoint = TensorFiles::open(dir)?;
    let parts = family.parts(dir, &config, &checkpoint)?;
    parts.keep(&mut checkpoint, options);
    let forms = settle_products(&checkpoint, forms, on_gpu)?;
    let mut unread = |_: u64| {};
    let weights = Weights::new(checkpoint.clone(), forms.clone(), &mut unread).rehearsing();
    (family.load)(TargetFiles { dir, config: &config, weights, weight_bytes: 0 })?;
    let has_vision = parts.has_tower && config.part("vision_config")?.is_some();
    let whole_image = if has_vision { (family.whole_image)(dir, &config)? } else { None };
    let layers = PlannedLayers {
        most_rows: most_rows(whole_image),
        kv_heads: (family.kv_heads)(&config)?,
        recurrent: (family.recurrent)(&config)?.into_iter().flatten().collect(),
    };
    let plan = CheckpointPlan::of(&checkpoint, &config, &forms, layers)?;
    Ok(CheckpointPlan { has_vision, ..plan })
}

/// Loads the target in `dir`. `progress` is called with (bytes read, bytes in all).
///
/// # Errors
/// Broken or foreign files; see [`LoadError`].
pub fn load_target(
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Target>, LoadError> {
    load_target_with(dir, LoadOptions::default(), progress)
}

/// As [`load_target`], with options.
///
/// # Errors
/// As [`load_target`].
pub fn load_target_with(
    dir: &Path,
    options: LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Target>, LoadError> {
    let config = options.config(dir)?;
    let family = Family::of(&config)?;
    let forms = forms(&config, options)?;
    let mut checkpoint = TensorFiles::open(dir)?;
    let parts = family.parts(dir, &config, &checkpoint)?;
    parts.keep(&mut checkpoint, options);
    let forms = settle_products(&checkpoint, forms, on_gpu())?;
    if !parts.has_tower && config.part("vision_config")?.is_some() {
        tracing::info!("no vision tower is served of this checkpoint: requests with images fail");
    }
    let weight_bytes = checkpoint.total_bytes();
    progress(0, weight_bytes);
    let mut report = |read| progress(read, weight_bytes);
    let weights = Weights::new(checkpoint, forms, &mut report);
    let loaded = (family.load)(TargetFiles { dir, config: &config, weights, weight_bytes })?;
    Ok(Box::new(loaded))
}

#[cfg(test)]
mod tests;
