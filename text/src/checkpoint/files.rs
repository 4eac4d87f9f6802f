//! The single files of a model directory and the forms that published models give them.

use std::io;
use std::path::Path;

use paceline_checkpoint::files::{
    self, CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, MAX_TEXT_BYTES, MAX_TOKENIZER_BYTES, TOKENIZER,
    TOKENIZER_CONFIG,
};
use paceline_vocabulary::sampling::{OutOfRange, SamplingRule, SamplingWish};
use paceline_vocabulary::with_sampling_parameters;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokenizers::Tokenizer;

use super::{LoadError, TemplateFile, TokenizerFile};

/// `config.json`, as far as it concerns the gateway.
#[derive(Deserialize)]
pub(super) struct ModelConfig {
    eos_token_id: Option<Ids>,
    text_config: Option<TextSection>,
    pub(super) model_type: Option<String>,
    pub(super) image_token_id: Option<u32>,
    pub(super) boi_token_id: Option<u32>,
    pub(super) eoi_token_id: Option<u32>,
    pub(super) vision_config: Option<VisionConfig>,
}

#[derive(Deserialize)]
struct TextSection {
    eos_token_id: Option<Ids>,
}

/// The vision part of `config.json`.
#[derive(Deserialize)]
pub(super) struct VisionConfig {
    pub(super) patch_size: Option<u32>,
    pub(super) spatial_merge_size: Option<u32>,
    pub(super) pooling_kernel_size: Option<u32>,
}

impl ModelConfig {
    pub(super) fn read(dir: &Path) -> Result<Self, LoadError> {
        let path = dir.join(CONFIG);
        json(&path)?.ok_or_else(|| LoadError::missing(&path))
    }

    /// End-of-sequence ids. Those of the text part are more exact.
    pub(super) fn eos_ids(&self) -> Option<Vec<u32>> {
        let of_text = self.text_config.as_ref().and_then(|text| text.eos_token_id.as_ref());
        of_text.or(self.eos_token_id.as_ref()).map(Ids::list)
    }
}

/// A sampling parameter of `generation_config.json`.
#[derive(Clone, Copy, Debug)]
struct Published<T>(T);

impl<'de> Deserialize<'de> for Published<f32> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f32::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Published<u32> {
    /// Published files write "off" as 0 or -1.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        Ok(Self(u32::try_from(number.max(0)).unwrap_or(u32::MAX)))
    }
}

macro_rules! generation_config {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $off:expr, $range:literal, $is_within:expr;)*) => {
        /// `generation_config.json`.
        #[derive(Default, Deserialize)]
        pub(super) struct GenerationConfig {
            eos_token_id: Option<Ids>,
            do_sample: Option<bool>,
            $($name: Option<Published<$type>>,)*
        }

        impl GenerationConfig {
            /// The file's numbers.
            fn wish(&self) -> SamplingWish {
                SamplingWish { $($name: self.$name.map(|published| published.0),)* }
            }
        }
    };
}
with_sampling_parameters!(generation_config);

impl GenerationConfig {
    pub(super) fn read(dir: &Path) -> Result<Self, LoadError> {
        Ok(json(&dir.join(GENERATION_CONFIG))?.unwrap_or_default())
    }

    pub(super) fn eos_ids(&self) -> Option<Vec<u32>> {
        self.eos_token_id.as_ref().map(Ids::list)
    }

    /// The model's own sampling: greedy, unless the model's author switched sampling on. A
    /// temperature that is left out then means 1.
    pub(super) fn sampling(&self, dir: &Path) -> Result<SamplingRule, LoadError> {
        if self.do_sample != Some(true) {
            return Ok(SamplingRule::GREEDY);
        }
        let rule =
            self.wish().completed(&SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY });
        rule.check().map_err(|OutOfRange { name, expected, found }| {
            let what = format!("{name}: expected {expected}, found {found}");
            LoadError::content(&dir.join(GENERATION_CONFIG), what)
        })?;
        Ok(rule)
    }
}

/// `tokenizer_config.json`.
#[derive(Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) chat_template: Option<Templates>,
    #[serde(default, deserialize_with = "special_token")]
    pub(super) bos_token: Option<String>,
    #[serde(default, deserialize_with = "special_token")]
    pub(super) eos_token: Option<String>,
}

impl TokenizerConfig {
    pub(super) fn read(dir: &Path) -> Result<Self, LoadError> {
        let path = dir.join(TOKENIZER_CONFIG);
        json(&path)?.ok_or_else(|| LoadError::missing(&path))
    }
}

/// A special token: as text, or as an object with its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

fn special_token<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let token = Option::<SpecialToken>::deserialize(deserializer)?;
    Ok(token.map(|token| match token {
        SpecialToken::Text(text) | SpecialToken::Object { content: text } => text,
    }))
}

/// The template for conversations with tools, beside `chat_template.jinja`.
const TOOL_USE_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";

/// One template, or several by name. The one named "default" is for conversations, the one named
/// "tool_use" for those with tools.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Templates {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

/// `chat_template.json`.
#[derive(Deserialize)]
struct ProcessorTemplate {
    chat_template: Option<String>,
}

/// The chat template: from `chat_template.jinja`, else from `tokenizer_config.json`, else from
/// `chat_template.json`, where vision models used to have it.
pub(super) fn template(
    dir: &Path,
    in_config: Option<Templates>,
) -> Result<Option<TemplateFile>, LoadError> {
    let path = dir.join("chat_template.jinja");
    if let Some(source) = text(&path)? {
        let with_tools = text(&dir.join(TOOL_USE_TEMPLATE))?;
        return Ok(Some(TemplateFile { path, source, with_tools }));
    }
    let path = dir.join(TOKENIZER_CONFIG);
    match in_config {
        Some(Templates::One(source)) => {
            return Ok(Some(TemplateFile { path, source, with_tools: None }));
        }
        Some(Templates::Several(mut list)) if !list.is_empty() => {
            let mut take = |name: &str| {
                let at = list.iter().position(|named| named.name == name)?;
                Some(list.swap_remove(at).template)
            };
            let source = take("default").ok_or_else(|| {
                let what =
                    "chat_template: expected one named \"default\" among several, found none";
                LoadError::content(&path, what)
            })?;
            return Ok(Some(TemplateFile { path, source, with_tools: take("tool_use") }));
        }
        None | Some(Templates::Several(_)) => {}
    }
    let path = dir.join(CHAT_TEMPLATE);
    let source = json::<ProcessorTemplate>(&path)?.and_then(|file| file.chat_template);
    Ok(source.map(|source| TemplateFile { path, source, with_tools: None }))
}

/// `tokenizer.json`.
pub(super) fn tokenizer(dir: &Path) -> Result<TokenizerFile, LoadError> {
    let path = dir.join(TOKENIZER);
    let json = files::read(&path, MAX_TOKENIZER_BYTES)
        .map_err(|cause| LoadError::Read { path: path.clone(), cause })?;
    let tokenizer = Tokenizer::from_bytes(json)
        .map_err(|cause| LoadError::broken(&path, "no tokenizer", cause))?;
    Ok(TokenizerFile { path, tokenizer })
}

/// One id, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

impl Ids {
    fn list(&self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![*id],
            Ids::Several(ids) => ids.clone(),
        }
    }
}

fn text(path: &Path) -> Result<Option<String>, LoadError> {
    let read = files::read(path, MAX_TEXT_BYTES);
    let read = read.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    });
    match read {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(LoadError::Read { path: path.to_path_buf(), cause }),
    }
}

/// The content of a JSON file; `None` if there is no such file.
pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let Some(text) = text(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|cause| LoadError::broken(path, "not as expected", cause))
}
