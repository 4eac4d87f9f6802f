//! `paceline models`: the models of this machine, with sizes. Reads their config.json and the heads of GGUF
//! files, no weights.

use std::fmt::Write as _;

use paceline_checkpoint::{CheckpointKind, ListedCheckpoint, ModelPlaces, ModelSummary};
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use serde::Serialize;

use crate::args::ModelsArgs;
use crate::known_models;

/// Digits of a commit that a person needs.
const COMMIT_DIGITS: usize = 12;

/// A model of this machine, as the command prints it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Model {
    /// Name of the model in `target.model`.
    name: String,
    /// Where it came from: embedded, smollm2, pulled, hub cache, Ollama, LM Studio.
    source: &'static str,
    /// Commit of the hub.
    revision: Option<String>,
    /// Whether its name stands for it, and not for another revision.
    current: bool,
    /// Bytes of its files.
    bytes: u64,
    /// `model_type` of its config.json, or the architecture of its GGUF file.
    family: Option<String>,
    /// Quantization that its config.json names, or the usual type of its GGUF file.
    quantization: Option<String>,
    /// Files that it lacks.
    missing: Vec<String>,
    /// Directory of the model, or its GGUF file.
    path: String,
}

/// Runs the command.
///
/// # Errors
/// The output was closed.
pub async fn run(args: &ModelsArgs, screen: &mut Screen) -> Result<(), Failure> {
    if args.known {
        return known_models::run(args.json, screen).await;
    }
    let models: Vec<Model> = ModelPlaces::of_user().list().into_iter().map(Model::of).collect();
    let text = match args.json {
        true => format!("{}\n", serde_json::json!({ "models": models })),
        false => table(&models),
    };
    screen.text(&text)
}

impl Model {
    fn of(listed: ListedCheckpoint) -> Self {
        let ModelSummary { family, quantization } = listed.summary();
        let ListedCheckpoint { name, kind, revision, path, bytes, missing } = listed;
        let (source, current) = match kind {
            CheckpointKind::Embedded => ("embedded", true),
            CheckpointKind::Smollm2 => ("smollm2", true),
            CheckpointKind::Pulled { is_current } => ("pulled", is_current),
            CheckpointKind::HubCache { is_current } => ("hub cache", is_current),
            CheckpointKind::Ollama => ("Ollama", true),
            CheckpointKind::LmStudio => ("LM Studio", true),
        };
        let path = path.display().to_string();
        Self { name, source, revision, current, bytes, family, quantization, missing, path }
    }
}

fn table(models: &[Model]) -> String {
    let mut text = String::new();
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    for model in models {
        let family = model.family.as_deref().unwrap_or("?");
        let format = model.quantization.as_deref().unwrap_or("float");
        let size = bytes(model.bytes);
        let _ =
            write!(text, "{:width$}  {size:>10}  {family}, {format}, {}", model.name, model.source);
        if let Some(revision) = &model.revision {
            let short: String = revision.chars().take(COMMIT_DIGITS).collect();
            let _ = write!(text, " {short}{}", if model.current { "" } else { " (not current)" });
        }
        if !model.missing.is_empty() {
            let _ = write!(text, "; lacks {}", model.missing.join(", "));
        }
        text.push('\n');
    }
    if models.is_empty() {
        text.push_str("no models; `paceline pull ORG/NAME` fetches one\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_one_line_with_size_family_and_format() {
        let model = |name: &str, revision: Option<&str>, current, missing: &[&str]| Model {
            name: name.to_owned(),
            source: "pulled",
            revision: revision.map(str::to_owned),
            current,
            bytes: 3 << 20,
            family: Some("qwen3".to_owned()),
            quantization: None,
            missing: missing.iter().map(|name| (*name).to_owned()).collect(),
            path: "/x".to_owned(),
        };
        let commit = "0123456789abcdef";
        let models = [model("a/b", Some(commit), false, &[]), model("smollm2", None, true, &["x"])];
        assert_eq!(
            table(&models),
            "a/b         3.0 MiB  qwen3, float, pulled 0123456789ab (not current)\n\
             smollm2     3.0 MiB  qwen3, float, pulled; lacks x\n"
        );
        assert!(table(&[]).contains("paceline pull"));
    }

    #[test]
    fn a_model_of_another_program_is_listed_with_whose_it_is() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let below = |path: &str| home.path().join(path);
        let hex = "0".repeat(64);
        let manifest = below("ollama/manifests/registry.ollama.ai/library/coder/1.5b");
        let layer = format!(
            r#"{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{hex}","size":4}}"#
        );
        let file = below("lmstudio/a/b/m-Q8_0.gguf");
        for (path, text) in [
            (&manifest, &*format!(r#"{{"layers":[{layer}]}}"#)),
            (&below(&format!("ollama/blobs/sha256-{hex}")), "GGUF"),
            (&file, "GGUF"),
        ] {
            std::fs::create_dir_all(path.parent().expect("above")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let places = ModelPlaces {
            ollama: vec![below("ollama")],
            lm_studio: vec![below("lmstudio")],
            ..ModelPlaces::default()
        };
        let mut models: Vec<_> = places.list().into_iter().map(Model::of).collect();
        models.retain(|model| model.source != "embedded");
        // Files that cannot be read have no format.
        assert_eq!(
            table(&models),
            "ollama:coder:1.5b         4 B  ?, GGUF, Ollama\n\
             lmstudio:a/b              4 B  ?, GGUF, LM Studio\n"
        );
        let json = serde_json::to_value(&models[1]).expect("JSON");
        assert_eq!((&json["source"], &json["bytes"]), (&"LM Studio".into(), &4.into()));
        assert_eq!(json["path"], below("lmstudio/a/b").display().to_string());
    }

    #[test]
    fn the_embedded_models_are_listed() {
        let models: Vec<_> = ModelPlaces::default().list().into_iter().map(Model::of).collect();
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["demo-target", "demo-vision"], "the tests run in the source tree");
        for demo in models {
            assert!(demo.source == "embedded" && demo.family.is_some(), "{demo:?}");
            assert!(demo.bytes > 1_000_000 && demo.missing.is_empty(), "{demo:?}");
        }
    }
}
