//! A request as the engine runs it: every field is in range. `wire` makes it of the message.

use paceline_models::sample::SamplingRule;
use paceline_models::sample::noise::NoiseKey;
use paceline_target_core::Request;
use paceline_vocabulary::generation::ThoughtBudget;
use paceline_vocabulary::{RequestId, TraceContext};

use crate::image_files::LoadedImage;

/// A request that the engine can run.
#[derive(Clone, Debug)]
pub(crate) struct ValidRequest {
    pub(crate) id: RequestId,
    /// Parent of the request's spans, if it is traced.
    pub(crate) trace: Option<TraceContext>,
    /// The part that the scheduler gets.
    pub(crate) scheduling: Request,
    pub(crate) sampling: SamplingRule,
    /// Added to logits: ids and biases, ids ascending.
    pub(crate) bias: Vec<(u32, f32)>,
    /// No stop id is chosen before this many tokens.
    pub(crate) min_tokens: u32,
    /// Log-probabilities are reported, for this many most probable tokens besides the chosen one.
    pub(crate) logprobs: Option<u32>,
    pub(crate) noise: NoiseKey,
    /// Ids from this one on are padding of the vocabulary.
    pub(crate) id_limit: u32,
    pub(crate) wants_margins: bool,
    /// Every batch reports the figures that its last one would report.
    pub(crate) wants_so_far: bool,
    /// Bound of the thought before the answer.
    pub(crate) thought: Option<ThoughtBudget>,
    /// The request's images, as many as `scheduling.images`; empty until their pixels are loaded.
    pub(crate) images: Vec<LoadedImage>,
}
