//! Which contexts a drafter was trained with, and a warning where `routing.max_context` lets it
//! draft for longer ones.

use std::path::Path;

use paceline_checkpoint::ConfigJson;

use super::{Config, DrafterChoice};

/// Tokens of the contexts with which drafters are trained that are published for a target. Their
/// `max_position_embeddings` repeats the target's, so that only a smaller one says something.
const PUBLISHED_TOKENS: u64 = 4_096;
/// Words in the architectures of drafters that are trained for a target.
const TRAINED_FOR_A_TARGET: [&str; 4] = ["DFlash", "DSpark", "Eagle", "Speculator"];

impl Config {
    /// The sentence of [`Config::longer_than_trained`] for `routing.max_context` as it is configured.
    pub fn long_drafts(&self) -> Option<String> {
        self.longer_than_trained(self.routing.max_context.given()?)
    }

    /// A sentence if with `max_context` a configured drafter drafts for longer contexts than it was
    /// trained with. Drafters whose files do not say how long these were are left out.
    pub fn longer_than_trained(&self, max_context: u32) -> Option<String> {
        let longer = self.drafter_choices().into_iter().find_map(|choice| {
            let DrafterChoice::Directory(dir) = &choice else { return None };
            let trained =
                trained_tokens(dir).filter(|trained| *trained < u64::from(max_context))?;
            Some((choice.name(), trained))
        });
        let (name, trained) = longer?;
        Some(format!(
            "routing.max_context = {max_context} is above {trained}, the tokens of context with which \
             the drafter {name} was trained: its guesses get worse there; \"auto\" measures up to \
             which length they pay"
        ))
    }
}

/// Tokens of the contexts with which the drafter in `dir` was trained, if its config.json says so.
fn trained_tokens(dir: &Path) -> Option<u64> {
    let config = ConfigJson::top_level(dir).ok()?;
    let of = |config: &ConfigJson| config.optional::<u64>("max_position_embeddings").ok().flatten();
    let text = config.part("text_config").ok().flatten();
    let positions = of(&config).or_else(|| text.as_ref().and_then(of));
    let architectures: Option<Vec<String>> = config.optional("architectures").ok()?;
    let architecture = architectures.and_then(|all| all.into_iter().next()).unwrap_or_default();
    if TRAINED_FOR_A_TARGET.iter().any(|word| architecture.contains(word)) {
        return Some(positions.unwrap_or(PUBLISHED_TOKENS).min(PUBLISHED_TOKENS));
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DrafterModels;

    fn warned(config_json: &str, max_context: u32) -> Option<String> {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.json"), config_json).expect("written");
        let mut config = Config::default();
        config.drafter.model = DrafterModels::one(dir.path().display().to_string());
        config.longer_than_trained(max_context)
    }

    #[test]
    fn a_context_above_the_drafters_training_is_named_with_both_lengths() {
        let dflash = r#"{"architectures": ["DFlashDraftModel"], "max_position_embeddings": 40960}"#;
        assert_eq!(warned(dflash, 4_096), None);
        let warning = warned(dflash, 9_000).expect("a warning");
        assert!(warning.contains("routing.max_context = 9000 is above 4096"), "{warning}");
        let eagle =
            r#"{"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 2048}"#;
        assert!(warned(eagle, 4_000).expect("a warning").contains("above 2048"));
        let without = r#"{"architectures": ["Eagle3Speculator"]}"#;
        assert!(warned(without, 5_000).expect("a warning").contains("above 4096"));
        // A model that is served elsewhere was trained for its own context.
        let model = r#"{"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960}"#;
        assert_eq!(warned(model, 32_768), None);
        assert!(warned(model, 50_000).expect("a warning").contains("above 40960"));
        for unknown in [r#"{"architectures": ["Qwen3ForCausalLM"]}"#, "no JSON", "[]"] {
            assert_eq!(warned(unknown, u32::MAX), None, "{unknown}");
        }
    }

    #[test]
    fn a_drafter_without_files_causes_no_warning() {
        for name in ["", "lookup", "target", "/nowhere/at/all"] {
            let mut config = Config::default();
            config.drafter.model = DrafterModels::one(name);
            assert_eq!(config.longer_than_trained(u32::MAX), None, "{name}");
        }
    }
}
