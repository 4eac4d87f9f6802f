//! `model.safetensors.index.json`: which shard of a model holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::CheckpointError;
use crate::files::{self, INDEX, MAX_TEXT_BYTES};

/// JSON that the file must hold.
const EXPECTED: &str = "a JSON object with weight_map (name → file)";

/// The index of a model's shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ShardIndex {
    /// The file of each tensor, by the tensor's name. Names of files are data of a stranger.
    pub weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// The index of the model in `dir`; `None` without such a file.
    ///
    /// # Errors
    /// It cannot be read, or is no index.
    pub fn read(dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let path = dir.join(INDEX);
        let text = match files::read(&path, MAX_TEXT_BYTES) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(CheckpointError::read(&path, cause)),
        };
        let read = serde_json::from_slice(&text).map(Some);
        read.map_err(|cause| CheckpointError::Json { path, expected: EXPECTED, cause })
    }

    /// Names of the shards, each once.
    pub fn shards(&self) -> BTreeSet<String> {
        self.weight_map.values().cloned().collect()
    }
}
