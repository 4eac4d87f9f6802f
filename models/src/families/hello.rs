//! What a target says of itself to a drafter, before it is loaded.

use std::path::Path;

use paceline_checkpoint::plan::CheckpointPlan;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::Hello;

use crate::load::token_digest;

/// The Hello of the target in `dir` over a link of this version, without a generation. A tokenizer that
/// cannot be read counts as none.
pub fn planned_hello(plan: &CheckpointPlan, dir: &Path, version: u32, max_sessions: u32) -> Hello {
    Hello {
        version,
        generation: 0,
        hidden_size: plan.hidden as u32,
        vocab_size: plan.vocab as u32,
        n_layers: plan.n_layers as u32,
        element: TensorType::F32,
        token_digest: token_digest(dir).unwrap_or_default(),
        context_length: plan.context as u32,
        max_sessions,
    }
}
