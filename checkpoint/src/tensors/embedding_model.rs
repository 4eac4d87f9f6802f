//! Checkpoints of models that embed texts and do not answer.

use std::path::Path;

use super::Tensors;
use crate::CheckpointError;

/// The file in which sentence-transformers lists the steps of an embedding.
const MODULES: &str = "modules.json";

impl Tensors {
    /// Refuses a model that was saved to embed texts: sentence-transformers writes a list of steps
    /// beside it, and names of tensors begin without the part that a head stands beside.
    ///
    /// # Errors
    /// It is one.
    pub fn check_answers(&self, dir: &Path) -> Result<(), CheckpointError> {
        let found = match (dir.join(MODULES).exists(), self.has("embed_tokens.weight")) {
            (false, false) => return Ok(()),
            (true, _) => format!("an embedding model ({MODULES} of sentence-transformers)"),
            (false, true) => {
                "an embedding model (its tensors begin at embed_tokens.weight, beside which no head \
                 stands)"
                    .to_owned()
            }
        };
        let what = format!(
            "expected a model that answers, found {found}; embeddings are not served in this version"
        );
        Err(CheckpointError::Broken { path: dir.to_path_buf(), what })
    }
}
