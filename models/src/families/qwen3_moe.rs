//! Qwen3 with experts (arXiv 2505.09388): Qwen3 in whose layers each row goes through a few of many
//! gated blocks, chosen by a router.

use super::decoder::{Decoder, FeedForward, TargetFiles};
use super::qwen3;
use super::sizes::experts;
use crate::layers::{ExpertMlp, ExpertSizes};
use crate::load::{ConfigJson, LoadError, Weights};

/// The layers that have experts, and how large they are. Also those of Qwen3-VL's text model.
pub(super) struct Config {
    pub(super) dense: qwen3::Config,
    experts: ExpertSizes,
    decoder_sparse_step: i32,
    mlp_only_layers: Vec<i32>,
}

impl Config {
    /// `renormalizes`: whether the shares of the chosen experts add up to 1 if the config does not say
    /// so.
    pub(super) fn read(config: &ConfigJson, renormalizes: bool) -> Result<Self, LoadError> {
        let dense = qwen3::Config::read(config)?;
        let renormalized = config.optional("norm_topk_prob")?.unwrap_or(renormalizes);
        let chosen = "num_experts_per_tok";
        let experts = experts(config, chosen, dense.sizes.hidden_size, renormalized)?;
        Ok(Self {
            dense,
            experts,
            decoder_sparse_step: config.size_or("decoder_sparse_step", 1)?,
            mlp_only_layers: config.optional("mlp_only_layers")?.unwrap_or_default(),
        })
    }

    /// The others have one gated block for all rows.
    fn has_experts(&self, layer: i32) -> bool {
        !self.mlp_only_layers.contains(&layer) && (layer + 1) % self.decoder_sparse_step == 0
    }

    /// Reads the second half of a layer.
    pub(super) fn feed_forward(
        &self,
        weights: &mut Weights,
        layer: i32,
        name: &str,
    ) -> Result<FeedForward, LoadError> {
        match self.has_experts(layer) {
            true => Ok(FeedForward::Experts(ExpertMlp::load(weights, name, self.experts)?)),
            false => self.dense.feed_forward()(weights, layer, name),
        }
    }
}

/// Loads it, in the layout of transformers (a tensor for each expert) or of mlx-lm (one for all).
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = Config::read(files.config, false)?;
    let qwen3::Config { sizes, attention, .. } = read.dense;
    Decoder::load_text("qwen3_moe", files, sizes, attention, &|weights, layer, name| {
        read.feed_forward(weights, layer, name)
    })
}
