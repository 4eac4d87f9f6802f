//! What the gateway reads from a model directory beside `tokenizer.json`: chat template, special
//! tokens, the stop set and the model's own sampling. Every refusal names the file.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::sampling::{OutOfRange, SamplingRule};

/// Why a model directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file's content is not what its name says.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        what: String,
    },
}

impl LoadError {
    /// A file with content that cannot be used.
    pub fn content(path: &Path, what: impl ToString) -> Self {
        Self::Content { path: path.to_path_buf(), what: what.to_string() }
    }
}

/// A chat template and where it stands.
#[derive(Debug)]
pub struct TemplateFile {
    /// The file, for messages.
    pub path: PathBuf,
    /// Jinja.
    pub source: String,
}

/// What the files say.
#[derive(Debug)]
pub struct ModelFiles {
    /// The chat template, if the model has one.
    pub template: Option<TemplateFile>,
    /// Text of the beginning-of-sequence token.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token.
    pub eos_token: Option<String>,
    /// End-of-sequence ids by number, from generation_config.json, else config.json.
    pub eos_ids: Vec<u32>,
    /// The model's own sampling.
    pub sampling: SamplingRule,
}

/// A special token: as text, or as an object with its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    fn text(self) -> String {
        match self {
            SpecialToken::Text(text) | SpecialToken::Object { content: text } => text,
        }
    }
}

/// One template, or several by name, of which "default" is for conversations.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct ProcessorTemplate {
    chat_template: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
}

/// One id, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Several(ids) => ids,
        }
    }
}

#[derive(Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<Ids>,
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
}

#[derive(Deserialize)]
struct ModelConfig {
    eos_token_id: Option<Ids>,
    text_config: Option<TextConfig>,
}

#[derive(Deserialize)]
struct TextConfig {
    eos_token_id: Option<Ids>,
}

impl ModelFiles {
    /// Reads the files of `dir`. `generation_config.json` and `chat_template.jinja` may be absent.
    ///
    /// # Errors
    /// The first file that is missing, is not JSON or holds a value that cannot be served.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let config_path = dir.join("config.json");
        let config: ModelConfig = json(&config_path)?.ok_or_else(|| missing(&config_path))?;
        let generation_path = dir.join("generation_config.json");
        let generation: GenerationConfig = json(&generation_path)?.unwrap_or_default();
        let tokenizer_path = dir.join("tokenizer_config.json");
        let tokenizer: TokenizerConfig =
            json(&tokenizer_path)?.ok_or_else(|| missing(&tokenizer_path))?;

        let sampling =
            own_sampling(&generation).map_err(|what| LoadError::content(&generation_path, what))?;
        let of_config =
            config.text_config.and_then(|text| text.eos_token_id).or(config.eos_token_id);
        let eos_ids = generation.eos_token_id.or(of_config).map(Ids::list).unwrap_or_default();

        let beside = dir.join("chat_template.jinja");
        let template = match text(&beside)? {
            Some(source) => Some(TemplateFile { path: beside, source }),
            None => {
                let found = inside(tokenizer.chat_template)
                    .map_err(|what| LoadError::content(&tokenizer_path, what))?;
                match found.map(|source| TemplateFile { path: tokenizer_path, source }) {
                    None => of_processor(dir)?,
                    found => found,
                }
            }
        };
        Ok(Self {
            template,
            bos_token: tokenizer.bos_token.map(SpecialToken::text),
            eos_token: tokenizer.eos_token.map(SpecialToken::text),
            eos_ids,
            sampling,
        })
    }
}

fn inside(templates: Option<Templates>) -> Result<Option<String>, String> {
    match templates {
        None => Ok(None),
        Some(Templates::One(source)) => Ok(Some(source)),
        Some(Templates::Several(list)) if list.is_empty() => Ok(None),
        Some(Templates::Several(list)) => list
            .into_iter()
            .find(|named| named.name == "default")
            .map(|named| Some(named.template))
            .ok_or_else(|| {
                "chat_template: expected one named \"default\" among several, found none".to_owned()
            }),
    }
}

/// The template in `chat_template.json`, where models that see used to have theirs.
fn of_processor(dir: &Path) -> Result<Option<TemplateFile>, LoadError> {
    let path = dir.join("chat_template.json");
    let source = json::<ProcessorTemplate>(&path)?.and_then(|file| file.chat_template);
    Ok(source.map(|source| TemplateFile { path, source }))
}

/// The model's own sampling counts only if its author switched sampling on; a temperature left out
/// then means 1.
fn own_sampling(generation: &GenerationConfig) -> Result<SamplingRule, String> {
    if generation.do_sample != Some(true) {
        return Ok(SamplingRule::GREEDY);
    }
    let rule = SamplingRule {
        temperature: generation.temperature.unwrap_or(1.0),
        // Published files write "off" as 0 or -1.
        top_k: u32::try_from(generation.top_k.unwrap_or(0).max(0)).unwrap_or(u32::MAX),
        top_p: generation.top_p.unwrap_or(1.0),
        min_p: generation.min_p.unwrap_or(0.0),
        repetition_penalty: generation.repetition_penalty.unwrap_or(1.0),
        presence_penalty: generation.presence_penalty.unwrap_or(0.0),
        frequency_penalty: generation.frequency_penalty.unwrap_or(0.0),
    };
    match rule.check() {
        Ok(()) => Ok(rule),
        Err(OutOfRange { name, expected, found }) => {
            Err(format!("{name}: expected {expected}, found {found}"))
        }
    }
}

fn missing(path: &Path) -> LoadError {
    LoadError::Read { path: path.to_path_buf(), cause: io::ErrorKind::NotFound.into() }
}

fn text(path: &Path) -> Result<Option<String>, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(LoadError::Read { path: path.to_path_buf(), cause }),
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let Some(text) = text(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|cause| LoadError::content(path, format!("not as expected: {cause}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).expect("writable");
        }
        dir
    }

    fn read(files: &[(&str, &str)]) -> Result<ModelFiles, LoadError> {
        ModelFiles::read(dir(files).path())
    }

    #[test]
    fn the_stop_set_comes_from_the_generation_configuration_first() {
        let tokenizer =
            ("tokenizer_config.json", r#"{"eos_token": {"content": "</s>"}, "bos_token": null}"#);
        let config =
            ("config.json", r#"{"eos_token_id": 7, "text_config": {"eos_token_id": [8, 9]}}"#);
        let with =
            read(&[tokenizer, config, ("generation_config.json", r#"{"eos_token_id": [1, 106]}"#)])
                .expect("complete");
        assert_eq!(with.eos_ids, [1, 106]);
        assert_eq!((with.eos_token.as_deref(), with.bos_token), (Some("</s>"), None));
        assert_eq!(read(&[tokenizer, config]).expect("complete").eos_ids, [8, 9]);
        assert_eq!(
            read(&[tokenizer, ("config.json", r#"{"eos_token_id": 7}"#)])
                .expect("complete")
                .eos_ids,
            [7]
        );
        let without = [tokenizer, ("config.json", r#"{"eos_token_id": null}"#)];
        assert_eq!(read(&without).expect("complete").eos_ids, [0; 0]);
    }

    #[test]
    fn the_models_own_sampling_needs_do_sample() {
        let base = [("tokenizer_config.json", "{}"), ("config.json", "{}")];
        let of = |text| {
            read(&[base[0], base[1], ("generation_config.json", text)]).map(|files| files.sampling)
        };
        assert_eq!(of(r#"{"temperature": 0.6, "top_k": 20}"#).expect("fine"), SamplingRule::GREEDY);
        let own = SamplingRule {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.05,
            ..SamplingRule::GREEDY
        };
        let full = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}"#;
        assert_eq!(of(full).expect("fine"), own);
        assert_eq!(
            of(r#"{"do_sample": true, "top_k": -1}"#).expect("fine"),
            SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY }
        );
        let penalized =
            of(r#"{"do_sample": true, "presence_penalty": 1.5, "frequency_penalty": -0.5}"#)
                .expect("fine");
        assert_eq!((penalized.presence_penalty, penalized.frequency_penalty), (1.5, -0.5));
        assert!(of(r#"{"do_sample": true, "presence_penalty": 3}"#).is_err());
        let error = of(r#"{"do_sample": true, "top_p": 0}"#).expect_err("no mass").to_string();
        assert!(error.contains("generation_config.json: top_p: expected"), "{error}");
    }

    #[test]
    fn the_template_beside_wins_and_the_default_of_several() {
        let tokenizer = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let base = [("tokenizer_config.json", tokenizer), ("config.json", "{}")];
        let source =
            |files: &[_]| read(files).expect("complete").template.expect("there is one").source;
        assert_eq!(source(&base), "d");
        assert_eq!(source(&[base[0], base[1], ("chat_template.jinja", "beside")]), "beside");
        let none = [("tokenizer_config.json", "{}"), ("config.json", "{}")];
        assert!(read(&none).expect("complete").template.is_none());
        let processor = ("chat_template.json", r#"{"chat_template": "p"}"#);
        assert_eq!(source(&[none[0], none[1], processor]), "p");
        assert_eq!(source(&[base[0], base[1], processor]), "d", "the tokenizer's own is newer");
        assert!(
            read(&[none[0], none[1], ("chat_template.json", "[]")])
                .expect_err("no object")
                .to_string()
                .contains("chat_template.json")
        );
    }

    #[test]
    fn missing_and_broken_files_are_named() {
        let error = |files: &[_]| read(files).expect_err("refused").to_string();
        assert!(error(&[("tokenizer_config.json", "{}")]).contains("config.json"));
        assert!(error(&[("config.json", "{}")]).contains("tokenizer_config.json"));
        assert!(
            error(&[("config.json", "{"), ("tokenizer_config.json", "{}")])
                .contains("config.json: not as expected")
        );
        let typed =
            error(&[("config.json", r#"{"eos_token_id": "x"}"#), ("tokenizer_config.json", "{}")]);
        assert!(typed.contains("config.json: not as expected"), "{typed}");
    }
}
