//! Bytes that one token of this model reads: weights, and the KV of every earlier position.

use std::io;
use std::path::Path;

use paceline_checkpoint::config;
use paceline_client::Failure;
use paceline_proto::v1::StatusResponse;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::checkpoint;
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
        let share = share_read(Path::new(&target.model)).map_err(|cause| {
            failed(format!(
                "cannot tell what of the weights in {} a token reads: {cause}",
                target.model
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

/// Share of the weights that each token reads: all except an input embedding that is not also the
/// output head, and the experts that a token does not go through.
fn share_read(dir: &Path) -> io::Result<f64> {
    let experts = share_of_experts(&config::read(dir)?);
    Ok(share_of(&sizes(&checkpoint::tensors(dir)?), experts))
}

/// Share of the experts that a token goes through. The keys are those of Qwen3's models.
fn share_of_experts(config: &Value) -> f64 {
    let of = |key: &str| config["text_config"][key].as_f64().or_else(|| config[key].as_f64());
    // Transformers 5.23 writes the number under its second name.
    let all = of("num_experts").or_else(|| of("num_local_experts"));
    match (of("num_experts_per_tok"), all) {
        (Some(chosen), Some(all)) if all > 0.0 => (chosen / all).min(1.0),
        _ => 1.0,
    }
}

/// The tensors of a quantized matrix have its name with other endings.
fn share_of(tensors: &[(String, u64)], experts: f64) -> f64 {
    let has_head = tensors.iter().any(|(name, _)| name.contains("lm_head."));
    let read = |name: &str| match name {
        _ if name.contains("embed_tokens.") && has_head => 0.0,
        _ if name.contains(".experts.") || name.contains(".switch_mlp.") => experts,
        _ => 1.0,
    };
    let all: u64 = tensors.iter().map(|(_, bytes)| bytes).sum();
    let read: f64 = tensors.iter().map(|(name, bytes)| read(name) * *bytes as f64).sum();
    if all == 0 { 1.0 } else { read / all as f64 }
}

/// Name and bytes of each tensor.
fn sizes(header: &Map<String, Value>) -> Vec<(String, u64)> {
    let bytes = |tensor: &Value| {
        let place = |idx: usize| tensor["data_offsets"][idx].as_u64();
        Some(place(1)?.saturating_sub(place(0)?))
    };
    header.iter().filter_map(|(name, tensor)| Some((name.clone(), bytes(tensor)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{MemoryStatus, ModelStatus, ProcessStatus};
    use paceline_text::checkpoint::header;
    use serde_json::json;

    fn file(header: &Value) -> Vec<u8> {
        let text = header.to_string();
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), b"weights"].concat()
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
    fn an_input_embedding_is_read_where_it_is_the_head_too() {
        let share = |lm_head| {
            let file = file(&tensors(lm_head));
            share_of(&sizes(&header::tensors(&mut file.as_slice()).expect("a header")), 1.0)
        };
        assert_eq!((share(false), share(true)), (1.0, 240.0 / 400.0));
        assert_eq!(share_of(&[], 1.0), 1.0);
        let quantized = ["embed_tokens.scales", "lm_head.weight"].map(|name| (name.to_owned(), 8));
        assert_eq!(share_of(&quantized, 1.0), 0.5);
    }

    #[test]
    fn a_token_reads_the_experts_that_it_goes_through() {
        let config = json!({ "num_local_experts": 8, "num_experts_per_tok": 2 });
        let experts = share_of_experts(&config);
        assert_eq!((experts, share_of_experts(&json!({}))), (0.25, 1.0));
        assert_eq!(share_of_experts(&json!({ "text_config": config })), 0.25);
        for experts_name in ["mlp.experts.0.up_proj.weight", "mlp.switch_mlp.up_proj.scales"] {
            let tensors = [("norm.weight", 40), (experts_name, 160)];
            let tensors = tensors.map(|(name, bytes)| (name.to_owned(), bytes));
            assert_eq!(share_of(&tensors, experts), 80.0 / 200.0);
        }
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
