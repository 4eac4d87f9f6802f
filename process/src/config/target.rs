//! `[target]`: the model that is served.

use serde::{Deserialize, Serialize};

use super::Auto;
use paceline_checkpoint::SMOLLM2;

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
/// Largest `target.max_sequences`. Each sequence has a stream of its own on the connection between
/// supervisor and target. An HTTP/2 server accepts 200 streams by default, and heartbeats and
/// orders need some of them.
pub const MOST_SEQUENCES: u32 = 128;

/// `[target]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetConfig {
    /// Model directory, `org/name` of a hub that was pulled, the short name of a known model (`paceline
    /// models --known`), or `demo-target` or `demo-vision`, which are embedded. Default, also "":
    /// smollm2, or demo-target if smollm2 is not on this machine. A directory of the working
    /// directory is written with `./`.
    pub model: String,
    /// Where it runs.
    pub device: Device,
    /// Threads of its matrix products on the CPU; auto = all cores.
    pub threads: Auto<u32>,
    /// Keep a checkpoint's quantized weights as they are stored on the CPU, too. Default: true,
    /// which needs less memory, and reads less of it for each token. false expands them to float32
    /// at load.
    pub keep_quantized: bool,
    /// How products by quantized weights are computed. `integer` rounds activations to 8 bits and
    /// multiplies integers: faster, and logits differ a little from those of `float`. Default: auto,
    /// integers on the CPU under Linux for targets with 256 MB of quantized numbers or more, else
    /// floats. A target that has no such products refuses
    /// `integer`. It is a part of what a stream depends on: running requests do not go on after a
    /// change.
    pub products: ProductsSetting,
    /// Whether images are served, if the checkpoint reads them. Default: true. false serves it as
    /// text alone: the weights of its vision tower are not read, and requests with images are
    /// refused.
    pub vision: bool,
    /// Directory of measured costs of steps and drafts, with which the next start begins;
    /// [`AUTO_COSTS`] = `paceline/costs` in the cache directory, "" = none are saved.
    pub saved_costs: String,
    /// Longest time in milliseconds that one step reads prompts, half of it beside requests that
    /// generate. Less makes the gaps between a stream's tokens shorter while prompts are read, and
    /// the reading of prompts slower. 10 to 5,000. Default: 250, within which a cancellation is
    /// noticed.
    pub prompt_chunk_ms: u32,
    /// Whether macOS keeps the GPU's memory from being paged out: the recommended working set, while
    /// requests run or wait, and 60 s after them. Default: off, because wired memory of a process
    /// that is killed may stay lost until the machine is started again. Elsewhere it does nothing.
    pub wired: WiredMemory,
    /// Whether a plain step on a GPU computes a row alone by the kernels of blocks, so that streams
    /// have the same tokens with and without a drafter. Default: auto, where chips differ (Macs from
    /// M3 on) and a drafter is configured. Two rows should take up to a quarter longer than one; no
    /// Mac was measured.
    pub exact_lanes: ExactLanes,
    /// Requests that run at once, if there is memory for them; others wait in the queue. 1 to
    /// [`MOST_SEQUENCES`]. Default: 32, up to which the cost of a step is measured by its number of
    /// sequences.
    pub max_sequences: u32,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            model: SMOLLM2.to_owned(),
            device: Device::default(),
            threads: Auto::Auto,
            keep_quantized: true,
            products: ProductsSetting::default(),
            vision: true,
            saved_costs: AUTO_COSTS.into(),
            prompt_chunk_ms: 250,
            wired: WiredMemory::default(),
            exact_lanes: ExactLanes::default(),
            max_sequences: 32,
        }
    }
}
