//! `[target]`: the model that is served.

use serde::{Deserialize, Serialize};

use super::Auto;

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
    /// Model directory, `org/name` of a hub that was pulled, or `smollm2`; "" = the embedded demo
    /// model. A directory of the working directory is written with `./`.
    pub model: String,
    /// Where it runs.
    pub device: Device,
    /// Threads of its matrix products on the CPU; auto = all cores.
    pub threads: Auto<u32>,
    /// Keep a checkpoint's quantized weights as they are stored on the CPU, too. Default: true,
    /// which needs less memory, and reads less of it for each token. false expands them to float32
    /// at load.
    pub keep_quantized: bool,
    /// Directory of measured costs of steps and drafts, with which the next start begins;
    /// [`AUTO_COSTS`] = `paceline/costs` in the cache directory, "" = none are saved.
    pub saved_costs: String,
    /// Longest time in milliseconds that one step reads prompts, half of it beside requests that
    /// generate. Less makes the gaps between a stream's tokens shorter while prompts are read, and
    /// the reading of prompts slower. 10 to 5,000. Default: 250, within which a cancellation is
    /// noticed.
    pub prompt_chunk_ms: u32,
    /// Requests that run at once, if there is memory for them; others wait in the queue. 1 to
    /// [`MOST_SEQUENCES`]. Default: 32, up to which the cost of a step is measured by its number of
    /// sequences.
    pub max_sequences: u32,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            device: Device::default(),
            threads: Auto::Auto,
            keep_quantized: true,
            saved_costs: AUTO_COSTS.into(),
            prompt_chunk_ms: 250,
            max_sequences: 32,
        }
    }
}
