//! `config.json` for programs that list models or guess from it. Not here: what a graph reads in it,
//! which refuses what it does not know.

use std::io;
use std::path::Path;

use serde_json::Value;

use crate::files::{self, CONFIG, MAX_TEXT_BYTES};

/// The configuration of the model in this directory.
///
/// # Errors
/// The file cannot be read, or is no JSON.
pub fn read(dir: &Path) -> io::Result<Value> {
    Ok(serde_json::from_slice(&files::read(&dir.join(CONFIG), MAX_TEXT_BYTES)?)?)
}

/// Family of a model: its `model_type`.
pub fn family(config: &Value) -> Option<&str> {
    config["model_type"].as_str()
}

/// The usual format of a quantized checkpoint in a few words: "affine 4-bit", "gptq". `None` for
/// floats.
pub fn quantization(config: &Value) -> Option<String> {
    let settings = ["quantization", "quantization_config"].into_iter();
    let settings = settings.filter_map(|key| config.get(key)).find(|value| value.is_object())?;
    if let Some(method) = settings["quant_method"].as_str() {
        return Some(method.to_owned());
    }
    let mode = settings["mode"].as_str().unwrap_or("affine");
    Some(match settings["bits"].as_u64() {
        Some(bits) => format!("{mode} {bits}-bit"),
        None => mode.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_named_in_a_few_words() {
        for (text, expected) in [
            ("{}", None),
            (r#"{"quantization": null}"#, None),
            (r#"{"quantization": {"bits": 4, "group_size": 64}}"#, Some("affine 4-bit")),
            (r#"{"quantization": {"bits": 4, "mode": "mxfp4"}}"#, Some("mxfp4 4-bit")),
            (r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#, Some("gptq")),
        ] {
            let config: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(quantization(&config).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_configuration_is_read_or_the_cause_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = read(dir.path()).expect_err("nothing is there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(dir.path().join(CONFIG), "no JSON").expect("written");
        assert_eq!(read(dir.path()).expect_err("no JSON").kind(), io::ErrorKind::InvalidData);
        std::fs::write(dir.path().join(CONFIG), r#"{"model_type": "llama"}"#).expect("written");
        assert_eq!(family(&read(dir.path()).expect("read")), Some("llama"));
    }
}
