//! Properties of a loaded target: sizes of its config, and where its files are.

use std::path::PathBuf;

use paceline_vocabulary::Products;

/// Properties of a loaded target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Directory of its checkpoint.
    pub path: PathBuf,
    /// `model_type` of config.json.
    pub architecture: String,
    /// Rows of the output head.
    pub vocab: i32,
    /// Width of the hidden states.
    pub hidden: i32,
    /// Number of layers.
    pub n_layers: usize,
    /// Most positions of one sequence.
    pub context: i32,
    /// Bytes of its tensors on disk.
    pub weight_bytes: u64,
    /// How products by its weights are computed: of integers only if some of them stay quantized.
    pub products: Products,
}
