//! Facts of a model's files: the headers of its tensors, the number of its parameters, its family.

use std::io;
use std::path::Path;

use paceline_checkpoint::{config, files};
use paceline_text::checkpoint::header;
use serde_json::{Map, Value};

/// The tensors of all files of a model, by name.
///
/// # Errors
/// A file cannot be read, or has no header.
pub fn tensors(dir: &Path) -> io::Result<Map<String, Value>> {
    let mut tensors = Map::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            tensors.extend(header::tensors(&mut files::open(&path)?)?);
        }
    }
    Ok(tensors)
}

/// Family and format of the weights, as `paceline models` names them: "llama, affine 4-bit".
///
/// # Errors
/// The files cannot be read, or name no family.
pub fn kind(dir: &Path) -> io::Result<String> {
    let config = config::read(dir)?;
    let family = config::family(&config).ok_or(io::ErrorKind::InvalidData)?;
    let format = config::quantization(&config);
    Ok(format!("{family}, {}", format.as_deref().unwrap_or("float")))
}

/// Number of a model's parameters.
///
/// # Errors
/// The files cannot be read.
pub fn parameters(dir: &Path) -> io::Result<u64> {
    Ok(count(&tensors(dir)?, &config::read(dir)?["quantization"]))
}

/// A quantized matrix is a tensor of packed words, with a scale for each group of parameters.
fn count(tensors: &Map<String, Value>, quantization: &Value) -> u64 {
    let elements = |tensor: &Value| -> u64 {
        let shape = tensor["shape"].as_array();
        shape.map_or(0, |shape| shape.iter().filter_map(Value::as_u64).product())
    };
    let one = |(name, tensor): (&String, &Value)| {
        let (matrix, part) = name.rsplit_once('.').unwrap_or(("", name));
        let quantized = tensors.contains_key(&format!("{matrix}.scales"));
        match part {
            _ if name == "__metadata__" => 0,
            "scales" => {
                let own = quantization[matrix]["group_size"].as_u64();
                elements(tensor) * own.or(quantization["group_size"].as_u64()).unwrap_or(1)
            }
            // Biases of the groups; those of a layer are named `bias`.
            "weight" | "biases" if quantized => 0,
            _ => elements(tensor),
        }
    };
    tensors.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn packed_weights_count_by_their_groups() {
        let tensors = json!({
            "__metadata__": { "format": "mlx" },
            "norm.weight": { "dtype": "F32", "shape": [64] },
            "mlp.weight": { "dtype": "U32", "shape": [32, 8] },
            "mlp.scales": { "dtype": "F16", "shape": [32, 1] },
            "mlp.biases": { "dtype": "F16", "shape": [32, 1] },
            "mlp.bias": { "dtype": "F16", "shape": [32] },
            "head.weight": { "dtype": "U32", "shape": [16, 16] },
            "head.scales": { "dtype": "F16", "shape": [16, 2] },
        });
        let quantization =
            json!({ "bits": 4, "group_size": 64, "head": { "bits": 8, "group_size": 32 } });
        let tensors = tensors.as_object().expect("an object");
        assert_eq!(count(tensors, &quantization), 64 + 32 * 64 + 32 + 16 * 2 * 32);
    }

    #[test]
    fn the_kind_is_the_family_and_the_format_of_the_weights() {
        let dir = tempfile::tempdir().expect("a directory");
        let kind = |config: Value| {
            std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
            super::kind(dir.path())
        };
        assert_eq!(kind(json!({ "model_type": "qwen3" })).expect("named"), "qwen3, float");
        let quantized = json!({ "model_type": "llama", "quantization": { "bits": 4 } });
        assert_eq!(kind(quantized).expect("named"), "llama, affine 4-bit");
        assert!(kind(json!({})).is_err());
    }
}
