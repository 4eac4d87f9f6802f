//! What lists of models say of one.

use std::path::Path;

use serde_json::Value;

use crate::ConfigJson;

/// Family and format of a model in a few words. What config.json does not tell is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSummary {
    /// The family, which is the `model_type` of its config.json.
    pub family: Option<String>,
    /// The usual format of its quantized weights: "affine 4-bit", "gptq", "GGUF Q4_K". `None` for floats.
    pub quantization: Option<String>,
}

impl ModelSummary {
    /// Of the model in `dir`.
    pub fn of(dir: &Path) -> Self {
        ConfigJson::read(dir).map_or_else(|_| Self::default(), |config| Self::read(&config))
    }

    fn read(config: &ConfigJson) -> Self {
        let value = |key: &str| config.optional::<Value>(key).ok().flatten();
        let settings = ["quantization", "quantization_config"].into_iter();
        let settings = settings.filter_map(value).find(Value::is_object);
        let family = value("model_type").and_then(|name| name.as_str().map(str::to_owned));
        let blocks = || Some(format!("GGUF {}", value("gguf_type")?.as_str()?));
        Self { family, quantization: settings.as_ref().map(format).or_else(blocks) }
    }
}

fn format(settings: &Value) -> String {
    if let Some(method) = settings["quant_method"].as_str() {
        return method.to_owned();
    }
    let mode = settings["mode"].as_str().unwrap_or("affine");
    match settings["bits"].as_u64() {
        Some(bits) => format!("{mode} {bits}-bit"),
        None => mode.to_owned(),
    }
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
            (r#"{"gguf_type": "Q4_K"}"#, Some("GGUF Q4_K")),
        ] {
            let config = ConfigJson::parse(Path::new("config.json"), text.as_bytes());
            let found = ModelSummary::read(&config.expect("an object"));
            assert_eq!(found.quantization.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_family_is_named_and_a_broken_file_says_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(ModelSummary::of(dir.path()), ModelSummary::default());
        std::fs::write(dir.path().join("config.json"), "no JSON").expect("written");
        assert_eq!(ModelSummary::of(dir.path()), ModelSummary::default());
        std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#)
            .expect("written");
        assert_eq!(ModelSummary::of(dir.path()).family.as_deref(), Some("llama"));
    }
}
