//! Words that are values of settings.

use paceline_vocabulary::Force;
use serde::{Deserialize, Serialize};

/// Format of the tool calls in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// As the chat template and the model's family say.
    #[default]
    Auto,
    /// Not at all: an answer is text.
    None,
    /// JSON objects between `<tool_call>` and `</tool_call>`.
    Hermes,
    /// Functions and parameters as tags, of Qwen3-Coder and Qwen3.5.
    QwenXml,
    /// One JSON object, of Llama 3.
    Llama3,
    /// Gemma 4's own form.
    Gemma4,
    /// Channels of gpt-oss.
    Harmony,
    /// A list of JSON objects after `[TOOL_CALLS]`, of Mistral before Small 3.2.
    MistralList,
    /// A name and its arguments after `[TOOL_CALLS]`, of Mistral since Small 3.2.
    MistralArgs,
    /// Functions and parameters as tags with a name, of MiniCPM5.
    #[serde(rename = "minicpm")]
    MiniCpm,
    /// Keys and values as tags, of GLM-4.5 and later.
    Glm,
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The GPU if MLX has one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; none is an error.
    Gpu,
}

/// Whether a plain step gives the bits that verification gives for the same row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExactLanes {
    /// While a drafter is configured, on chips that differ otherwise.
    #[default]
    Auto,
    /// Always, on every GPU.
    On,
    /// Never.
    Off,
}

/// How products by quantized weights are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProductsSetting {
    /// Integers where there are kernels for them and the target is not small, else floats.
    #[default]
    Auto,
    /// The weights become floats.
    Float,
    /// Activations become integers of 8 bits; a place or a checkpoint without kernels for them is an
    /// error.
    Integer,
}

/// Whether the memory of the GPU is wired, so that the system cannot page it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WiredMemory {
    /// Never.
    #[default]
    Off,
    /// While requests run or wait, and for a minute after them.
    Running,
}

/// The value of `target.saved_costs` that stands for the cache directory.
pub const AUTO_COSTS: &str = "auto";

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
pub const DRAFTER_KINDS: [&str; 13] = [
    "auto",
    "assistant",
    "dflash",
    "dflash2",
    "dspark",
    "eagle3",
    "model",
    MTP,
    LOOKUP,
    "lookup+assistant",
    "lookup+eagle3",
    "lookup+model",
    "lookup+mtp",
];

/// Before the kind of a model, in `drafter.kind`: prompt lookup runs beside it.
pub const WITH_LOOKUP: &str = "lookup+";

/// In `drafter.model` and `drafter.kind`: prompt lookup, a drafter without weights.
pub const LOOKUP: &str = "lookup";

/// In `drafter.model`: the head in the target's own checkpoint that predicts the token after the
/// next.
pub const TARGET_HEAD: &str = "target";

/// In `drafter.kind`: such a head, in the target's checkpoint or in files of its own.
pub const MTP: &str = "mtp";

/// Names in `drafter.model` that are no directory and mean the same in every process.
pub const WITHOUT_DIRECTORY: [&str; 2] = [LOOKUP, TARGET_HEAD];

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

/// Form of [`Force`] in the configuration. The vocabulary, which defines it, has no dependencies.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Force", rename_all = "lowercase")]
pub(crate) enum ForceWord {
    Auto,
    Plain,
    Speculative,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}
