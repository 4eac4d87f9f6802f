//! Bytes that one token of this model reads: weights, and the KV of every earlier position.

use std::path::Path;

use paceline_checkpoint::plan::share_read_of;
use paceline_client::Failure;
use paceline_process::chain;
use paceline_proto::v1::StatusResponse;
use serde::Serialize;

use crate::report::failed;

/// The served model, by its service's status and its files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Model {
    /// Most positions of a sequence.
    pub context: u32,
    /// Rows of the output head.
    pub vocab: u32,
    /// Bytes of weights that each token reads.
    pub weight_bytes: u64,
    /// Bytes of KV of a position.
    pub position_bytes: u64,
}

impl Model {
    /// From a status of a service that has loaded and served nothing yet. Its target's memory is
    /// then the weights, in the type that computes, which on a CPU is wider than in the file.
    ///
    /// # Errors
    /// The status lacks a figure, or the model's files cannot be read.
    pub fn of(status: &StatusResponse) -> Result<Self, Failure> {
        let (Some(model), Some(target)) = (&status.model, &status.target) else {
            return Err(failed(
                "expected the served model in the service's status, found none; is it of this version?",
            ));
        };
        let resident = status.memory.unwrap_or_default().target_bytes.max(target.weight_bytes);
        let share = share_read_of(Path::new(&target.model)).map_err(|error| {
            failed(format!(
                "cannot tell what of the weights in {} a token reads: {}",
                target.model,
                chain(&error)
            ))
        })?;
        Ok(Self {
            context: model.context_length,
            vocab: model.vocab_size,
            weight_bytes: (resident as f64 * share) as u64,
            position_bytes: model.position_bytes,
        })
    }

    /// Bytes that a token reads after this number of positions.
    pub fn token_bytes(&self, positions: f64) -> f64 {
        self.weight_bytes as f64 + positions * self.position_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{MemoryStatus, ModelStatus, ProcessStatus};
    use serde_json::{Value, json};

    fn file(header: &Value) -> Vec<u8> {
        let text = header.to_string();
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 400]].concat()
    }

    fn tensors(lm_head: bool) -> Value {
        let mut header = json!({
            "__metadata__": { "format": "pt" },
            "model.embed_tokens.weight": { "dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160] },
            "model.norm.weight": { "dtype": "F32", "shape": [20], "data_offsets": [160, 240] },
        });
        if lm_head {
            header["lm_head.weight"] =
                json!({ "dtype": "F32", "shape": [10, 4], "data_offsets": [240, 400] });
        }
        header
    }

    #[test]
    fn bytes_read_are_weights_in_memory_and_kv_by_positions() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.json"), "{}").expect("written");
        std::fs::write(dir.path().join("model.safetensors"), file(&tensors(true)))
            .expect("written");
        let model = dir.path().display().to_string();
        let status = StatusResponse {
            target: Some(ProcessStatus { model, weight_bytes: 400, ..Default::default() }),
            model: Some(ModelStatus {
                name: "m".into(),
                context_length: 99,
                vocab_size: 10,
                position_bytes: 8,
                ..ModelStatus::default()
            }),
            memory: Some(MemoryStatus { target_bytes: 1_000, ..Default::default() }),
            ..Default::default()
        };
        let found = Model::of(&status).expect("said");
        assert_eq!(found, Model { context: 99, vocab: 10, weight_bytes: 600, position_bytes: 8 });
        assert_eq!(found.token_bytes(50.0), 1_000.0);
        // A service that does not report held bytes reports the bytes that it read.
        assert_eq!(
            Model::of(&StatusResponse { memory: None, ..status.clone() })
                .expect("said")
                .weight_bytes,
            240
        );
        assert!(Model::of(&StatusResponse { model: None, ..status }).is_err());
    }
}
