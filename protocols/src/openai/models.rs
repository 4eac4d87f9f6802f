//! `/v1/models`: the served model, in the protocol's list and in the list that Codex CLI reads.

use paceline_vocabulary::report::ImageLimits;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::inference::model::ModelDescription;

/// Instructions that an agent with the catalogue of Codex CLI sends to a model. The agent uses
/// the catalogue's text instead of its own, so an empty one would leave it without any.
const INSTRUCTIONS: &str = "You are a coding agent that works in a terminal on the user's machine. \
Use the tools to read files, to run commands and to change files. Read the code before you change \
it, make small changes, and check them with the project's own tests. When the task is done, say in \
a few sentences what you changed. Ask only when you cannot go on.";
/// Bytes of a tool's output that Codex CLI sends to the model. Its own catalogue has this number for
/// models without a tokenizer of their own.
const TOOL_OUTPUT_BYTES: u64 = 10_000;

/// The models of this service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The served model.
    pub data: Vec<ModelObject>,
    /// The served model, as Codex CLI reads it.
    pub models: Vec<CatalogueModel>,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelObject {
    /// Name of the model.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When the service began to serve it, in seconds since 1970.
    pub created: i64,
    /// `paceline`.
    pub owned_by: String,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
    /// Copy of `context_length`, under the name that other servers have for it.
    pub max_model_len: u32,
    /// Report of this service, for which the protocol has no field.
    pub paceline: ModelExtension,
}

/// Capabilities and limits of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelExtension {
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Tokens of its vocabulary.
    pub vocab_size: u32,
    /// Most tokens of a prompt.
    pub max_prompt_tokens: u32,
    /// Most tokens of an answer.
    pub max_new_tokens: u32,
    /// Tokens that end its answers.
    pub stop_token_ids: Vec<u32>,
    /// Capabilities of the model.
    pub capabilities: ModelCapabilities,
    /// Limits of the images of a request; null if it reads none.
    pub images: Option<ImageBounds>,
}

/// Limits of the images of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageBounds {
    /// Most images of a request.
    pub max_images: u32,
    /// Most pixels of an image as it is sent.
    pub max_pixels: u64,
    /// Most pixels of an image as the model reads it: a larger image is made smaller.
    pub read_pixels: u64,
    /// Most tokens of the prompt that an image becomes.
    pub max_tokens: u32,
}

impl From<ImageLimits> for ImageBounds {
    fn from(limits: ImageLimits) -> Self {
        let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
        Self { max_images, max_pixels, read_pixels, max_tokens }
    }
}

/// Capabilities of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelCapabilities {
    /// Whether it takes conversations.
    pub chat: bool,
    /// Whether its conversations may have tools.
    pub tools: bool,
    /// Whether it reads images.
    pub vision: bool,
}

/// A model, as Codex CLI reads it. All its versions since 0.98 find the fields that they need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CatalogueModel {
    /// Name of the model.
    pub slug: String,
    /// Name of the model for people.
    pub display_name: String,
    /// Description of the model.
    pub description: Option<String>,
    /// Amounts of reasoning to choose from: none, because chat templates differ in them.
    #[schema(value_type = Vec<Object>)]
    pub supported_reasoning_levels: Vec<serde_json::Value>,
    /// How the agent offers its shell: `shell_command`, an ordinary function.
    pub shell_type: String,
    /// `list`: it is shown where a model is chosen.
    pub visibility: String,
    /// Whether it is served with an API key.
    pub supported_in_api: bool,
    /// Place in lists.
    pub priority: u32,
    /// Nothing: a notice that the agent shows when a model is new.
    pub availability_nux: Option<String>,
    /// Nothing: the model that is to be used in its place.
    pub upgrade: Option<String>,
    /// Instructions for the agent.
    pub base_instructions: String,
    /// Whether it sums its reasoning up.
    pub supports_reasoning_summaries: bool,
    /// Whether a request may set the length of its answers.
    pub support_verbosity: bool,
    /// Nothing: the length of its answers.
    pub default_verbosity: Option<String>,
    /// How the agent offers its tool for patches: `freeform`, or nothing.
    pub apply_patch_tool_type: Option<String>,
    /// How much of a tool's output the agent sends.
    pub truncation_policy: TruncationPolicy,
    /// Whether an answer may have several tool calls.
    pub supports_parallel_tool_calls: bool,
    /// Most tokens of prompt and answer together.
    pub context_window: u32,
    /// Copy of `context_window`: the largest value that a user may set.
    pub max_context_window: u32,
    /// Tools that only some models have.
    pub experimental_supported_tools: Vec<String>,
    /// `text`, and `image` if it reads images.
    pub input_modalities: Vec<String>,
}

/// How much of a tool's output an agent sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TruncationPolicy {
    /// `bytes`.
    pub mode: String,
    /// Most of them.
    pub limit: u64,
}

impl ModelObject {
    /// The served model, since this second.
    pub fn of(model: &ModelDescription, created: i64) -> Self {
        let ModelDescription { chat, tools, images, .. } = *model;
        Self {
            id: model.name.clone(),
            object: "model".to_owned(),
            created,
            owned_by: "paceline".to_owned(),
            context_length: model.context_length,
            max_model_len: model.context_length,
            // Samplings differ from request to request, so a default is of no use to clients here.
            paceline: ModelExtension {
                architecture: model.architecture.clone(),
                vocab_size: model.vocab_size,
                max_prompt_tokens: model.max_prompt_tokens,
                max_new_tokens: model.max_new_tokens,
                stop_token_ids: model.stop_token_ids.clone(),
                capabilities: ModelCapabilities { chat, tools, vision: images.is_some() },
                images: images.map(ImageBounds::from),
            },
        }
    }
}

impl ModelList {
    /// The served model, since this second.
    pub fn of(model: &ModelDescription, created: i64) -> Self {
        Self {
            object: "list".to_owned(),
            data: vec![ModelObject::of(model, created)],
            models: vec![CatalogueModel::of(model)],
        }
    }
}

impl CatalogueModel {
    fn of(model: &ModelDescription) -> Self {
        let modalities: &[&str] =
            if model.images.is_some() { &["text", "image"] } else { &["text"] };
        Self {
            slug: model.name.clone(),
            display_name: model.name.clone(),
            description: Some(format!("{} served by Paceline", model.architecture)),
            supported_reasoning_levels: Vec::new(),
            shell_type: "shell_command".to_owned(),
            visibility: "list".to_owned(),
            supported_in_api: true,
            priority: 0,
            availability_nux: None,
            upgrade: None,
            base_instructions: INSTRUCTIONS.to_owned(),
            supports_reasoning_summaries: false,
            support_verbosity: false,
            default_verbosity: None,
            apply_patch_tool_type: model.tools.then(|| "freeform".to_owned()),
            truncation_policy: TruncationPolicy {
                mode: "bytes".to_owned(),
                limit: TOOL_OUTPUT_BYTES,
            },
            supports_parallel_tool_calls: model.tools,
            context_window: model.context_length,
            max_context_window: model.context_length,
            experimental_supported_tools: Vec::new(),
            input_modalities: modalities.iter().map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::sampling::SamplingRule;

    use super::*;

    const LIMITS: ImageLimits =
        ImageLimits { max_images: 8, max_pixels: 9_000, read_pixels: 4_096, max_tokens: 4 };

    fn model(vision: bool) -> ModelDescription {
        ModelDescription {
            name: "m".into(),
            architecture: "qwen3".into(),
            vocab_size: 100,
            context_length: 4096,
            max_prompt_tokens: 4000,
            max_new_tokens: 200,
            weight_bytes: 0,
            chat: true,
            tools: true,
            thinks: false,
            infills: false,
            images: vision.then_some(LIMITS),
            default_sampling: SamplingRule::GREEDY,
            stop_token_ids: vec![2],
        }
    }

    #[test]
    fn a_model_has_its_limits_and_capabilities() {
        let found = ModelObject::of(&model(false), 7);
        assert_eq!((found.id.as_str(), found.created, found.context_length), ("m", 7, 4096));
        let extension = found.paceline;
        assert_eq!((extension.max_prompt_tokens, extension.max_new_tokens), (4000, 200));
        let wanted = ModelCapabilities { chat: true, tools: true, vision: false };
        assert_eq!((extension.capabilities, extension.images), (wanted, None));
        let seeing = ModelObject::of(&model(true), 7).paceline;
        assert!(seeing.capabilities.vision);
        let images = serde_json::to_value(seeing.images).expect("JSON");
        let expected = serde_json::json!({
            "max_images": 8, "max_pixels": 9_000, "read_pixels": 4_096, "max_tokens": 4,
        });
        assert_eq!(images, expected);
    }

    #[test]
    fn codex_finds_every_field_that_it_requires() {
        let list = serde_json::to_value(ModelList::of(&model(true), 7)).expect("JSON");
        let found = &list["models"][0];
        // Fields without a default in its types; those that may be null must be there as well.
        for field in [
            "slug",
            "display_name",
            "description",
            "supported_reasoning_levels",
            "shell_type",
            "visibility",
            "supported_in_api",
            "priority",
            "availability_nux",
            "upgrade",
            "base_instructions",
            "supports_reasoning_summaries",
            "support_verbosity",
            "default_verbosity",
            "apply_patch_tool_type",
            "truncation_policy",
            "supports_parallel_tool_calls",
            "experimental_supported_tools",
        ] {
            assert!(found.get(field).is_some(), "{field}");
        }
        assert_eq!(found["context_window"], 4096);
        assert_eq!(found["input_modalities"], serde_json::json!(["text", "image"]));
        assert_ne!(found["base_instructions"], "", "the agent would have no instructions");
        assert_eq!(list["data"][0]["id"], found["slug"]);
    }
}
