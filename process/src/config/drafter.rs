//! `[drafter]`: the model that proposes tokens.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Auto, DrafterModels};

/// When the drafter is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterStart {
    /// With the service.
    #[default]
    Eager,
    /// At the first request that would use it.
    Lazy,
    /// When an operator orders it.
    Manual,
}

/// Values of `drafter.kind`.
pub const DRAFTER_KINDS: [&str; 9] =
    ["auto", "assistant", "dflash", "dflash2", "dspark", "eagle3", "model", MTP, LOOKUP];

/// In `drafter.model` and `drafter.kind`: prompt lookup, a drafter without weights.
pub const LOOKUP: &str = "lookup";

/// In `drafter.model`: the head in the target's own checkpoint that predicts the token after the
/// next.
pub const TARGET_HEAD: &str = "target";

/// In `drafter.kind`: such a head, in the target's checkpoint or in files of its own.
pub const MTP: &str = "mtp";

/// Names in `drafter.model` that are no directory and mean the same in every process.
pub const WITHOUT_DIRECTORY: [&str; 2] = [LOOKUP, TARGET_HEAD];

/// Meaning of a name in `drafter.model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrafterChoice {
    /// No drafter.
    None,
    /// Prompt lookup.
    Lookup,
    /// The head in the target's checkpoint, which need not have one.
    TargetHead,
    /// The checkpoint in this directory, which need not exist: a drafter that is not there costs
    /// speed, nothing else (I3).
    Directory(PathBuf),
}

impl DrafterChoice {
    /// The value of `drafter.model` that means it in every process.
    pub fn name(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Lookup => LOOKUP.to_owned(),
            Self::TargetHead => TARGET_HEAD.to_owned(),
            Self::Directory(dir) => dir.display().to_string(),
        }
    }
}

/// Quantization of the drafter's weights at load, in groups of 64. Weights that the files have
/// quantized stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterQuantize {
    /// As in the files.
    #[default]
    None,
    /// 8 bits.
    Q8,
    /// 4 bits.
    Q4,
}

/// `[drafter]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrafterConfig {
    /// "auto" = the drafter that ships with an embedded model, or with a known one if it is on this
    /// machine, else "lookup";
    /// "" = none; "lookup" = prompt lookup, which needs no weights; "target" = the head in the
    /// target's own checkpoint that predicts the token after the next; else a model directory or
    /// `org/name` or `org/name/folder` of a hub, as `target.model`. Default "auto". Of a list, the first one that can be
    /// loaded and that the target accepts.
    pub model: DrafterModels,
    /// Architecture, one of [`DRAFTER_KINDS`]; "auto" reads it from the files. With a list in
    /// `model` it is the kind of each checkpoint of the list.
    pub kind: String,
    /// When it is started.
    pub start: DrafterStart,
    /// Seconds without use after which it is stopped; 0 = never.
    pub idle_stop_s: u64,
    /// Threads of its matrix products on the CPU; auto = all cores.
    pub threads: Auto<u32>,
    /// Quantization at load, on the CPU as on a GPU. A number then takes about 9 bits (q8) or 5
    /// (q4), scales included. Without, it takes 32 on the CPU and as many as in the files on a GPU.
    pub quantize: DrafterQuantize,
    /// How many of the target's first ids a drafter of kind `mtp` can propose, beside special tokens;
    /// 0 = all, the default. Fewer ids make each draft faster and some drafts wrong.
    pub draft_vocabulary: u32,
    /// Most tokens of one draft; 0 = as many as the drafter proposes, the default.
    pub max_tokens: u32,
    /// Bytes of contexts of ended requests that it retains for requests with the same beginning; 0
    /// = none. Default: 256 MiB, which is some ten thousand positions of the published drafters.
    pub prefix_bytes: u64,
}

impl Default for DrafterConfig {
    fn default() -> Self {
        Self {
            model: DrafterModels::default(),
            kind: "auto".into(),
            start: DrafterStart::default(),
            idle_stop_s: 0,
            threads: Auto::Auto,
            quantize: DrafterQuantize::default(),
            draft_vocabulary: 0,
            max_tokens: 0,
            prefix_bytes: 256 << 20,
        }
    }
}
