//! Description of the model once its weights are loaded.

use paceline_models::TargetInfo;
use paceline_models::vision::VisionInfo;
use paceline_vocabulary::report::KvClass;

use crate::grammar::Grammars;

/// The served model, for the gRPC service.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    pub(crate) info: TargetInfo,
    /// Vision tower of the model; `None` if it has none.
    pub(crate) vision: Option<VisionInfo>,
    /// Unit in which its logits are known; 0: that of float32.
    pub(crate) logit_unit: f32,
    /// Bytes that a sequence holds for each patch of its images.
    pub(crate) patch_bytes: u64,
    pub(crate) name: String,
    pub(crate) kv_classes: Vec<KvClass>,
    pub(crate) max_sequences: usize,
    /// Compiled grammars of its requests.
    pub(crate) grammars: Grammars,
}
