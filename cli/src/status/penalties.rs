//! Penalties of the model's own generation_config.json: also a request with `temperature: 0` gets
//! them, if it leaves them out (docs/sampling.md).

use std::path::Path;

use paceline_checkpoint::files::{self, GENERATION_CONFIG};
use serde_json::Value;

/// Most bytes of a generation_config.json that is read: published ones have some hundred.
const MAX_BYTES: u64 = 1 << 20;
/// Each penalty, and its value that changes nothing.
const PENALTIES: [(&str, f64); 3] =
    [("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)];

/// A line for a model that has some; empty otherwise, and if the file cannot be read from here.
pub(super) fn line(model: &Path) -> String {
    let text = files::read(&model.join(GENERATION_CONFIG), MAX_BYTES);
    let defaults = text.ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let defaults = defaults.filter(|defaults| defaults["do_sample"] == true).unwrap_or_default();
    let changing = |(name, off): (&str, f64)| {
        let value = defaults[name].as_f64().filter(|value| *value != off)?;
        Some(format!("{name} {value}"))
    };
    let found: Vec<String> = PENALTIES.into_iter().filter_map(changing).collect();
    match found.is_empty() {
        true => String::new(),
        false => format!(
            "sampling: a request that leaves it out gets the model's {}, also at temperature 0\n",
            found.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_that_a_greedy_request_gets_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(line(dir.path()), "");
        for (defaults, named) in [
            (
                r#"{"do_sample": true, "repetition_penalty": 1.1, "top_k": 20}"#,
                "repetition_penalty 1.1",
            ),
            (
                r#"{"do_sample": true, "presence_penalty": 1.5, "frequency_penalty": -0.5}"#,
                "presence_penalty 1.5, frequency_penalty -0.5",
            ),
            (r#"{"do_sample": true, "repetition_penalty": 1.0, "presence_penalty": 0}"#, ""),
            (r#"{"repetition_penalty": 1.1}"#, ""),
            ("[", ""),
        ] {
            std::fs::write(dir.path().join("generation_config.json"), defaults).expect("written");
            let found = line(dir.path());
            assert_eq!(found.is_empty(), named.is_empty(), "{defaults}: {found}");
            assert!(found.contains(named), "{defaults}: {found}");
        }
    }
}
