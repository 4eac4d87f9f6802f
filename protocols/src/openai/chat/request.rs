//! The request of `/v1/chat/completions`.

use paceline_vocabulary::sampling::SamplingWish;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::accepted::{Rest, objects};
use crate::inference::bounds::SampleCount;
use crate::inference::error::Result;
use crate::inference::params::GenerationParams;
use crate::json::{AnyJson, ResentArguments};
use crate::number::{Biases, Count, MaxTokensOrNone, Samples, Seed, TokenId, TopK, TopLogprobs};
use crate::openai::accepted;
use crate::openai::params::{Extension, StreamOptions, biases, one_penalty, with_parameters};
use crate::values::{TextOr, TextOrObject, ToolChoice};

with_parameters! {
    /// A conversation to answer.
    #[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
    pub struct ChatCompletionRequest: ChatFields {
        /// The served model's name or an alias of it; the served model if it is absent.
        pub model: Option<String>,
        /// The messages, oldest first.
        pub messages: Vec<ChatMessage>,
        /// Tools that the model may call.
        pub tools: Option<Vec<ChatTool>>,
        /// `auto`, `none` to leave the tools out of the prompt, `required`, or a tool by name.
        pub tool_choice: Option<ToolChoice>,
        /// False: the answer has one tool call at most, the first of an offered tool.
        pub parallel_tool_calls: Option<bool>,
        /// Format of the answer's text.
        pub response_format: Option<ResponseFormat>,
        /// Whether the answer comes as server-sent events.
        pub stream: Option<bool>,
        /// Options of the stream.
        pub stream_options: Option<StreamOptions>,
        /// Most tokens of the answer, reasoning included; as many as fit if it is absent or -1.
        #[schema(inline)]
        pub max_completion_tokens: Option<MaxTokensOrNone>,
        /// The older name of `max_completion_tokens`.
        #[schema(inline)]
        pub max_tokens: Option<MaxTokensOrNone>,
        /// Whether log-probabilities are reported.
        pub logprobs: Option<bool>,
        /// Number of the most probable tokens that are reported beside each token.
        #[schema(inline)]
        pub top_logprobs: Option<TopLogprobs>,
        /// How much the model thinks: `minimal`, `low`, `medium`, `high`, `xhigh` or `max`. It becomes
        /// the nearest word of the chat template's variable of this name; a template without it is
        /// asked to think (`enable_thinking`). `none` switches thinking off there. Another word is
        /// passed as it is.
        pub reasoning_effort: Option<String>,
        /// Whether the model thinks, under Qwen's name.
        pub enable_thinking: Option<bool>,
        /// Whether, or how much, the model thinks, under Ollama's name.
        #[schema(value_type = Option<bool>)]
        pub think: Option<Think>,
        /// Whether the model thinks, under the name of DeepSeek and GLM.
        pub thinking: Option<ThinkingSwitch>,
        /// Whether, or how much, the model thinks, under OpenRouter's name.
        pub reasoning: Option<ReasoningSwitch>,
        /// OpenRouter's way to ask for the tokens in a stream.
        pub usage: Option<UsageSwitch>,
        /// Variables of the chat template, under the name that other servers have for them.
        #[schema(value_type = Option<Object>)]
        pub chat_template_kwargs: Option<AnyJson>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
        /// Fields that are not served.
        #[serde(flatten)]
        #[schema(ignore)]
        pub rest: Rest,
    }
}

/// The forms of a message's content, for its schema: that of a generic type would have a copy of
/// the part's.
#[derive(Clone, Debug, ToSchema)]
#[serde(untagged)]
pub enum ChatContent {
    /// A text.
    Text(String),
    /// Parts, in order.
    Parts(Vec<ChatPart>),
}

/// An image by its address, or by an object with that address.
#[derive(Clone, Debug, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum ImageSource {
    /// A `data:` URL. No other address is fetched.
    Address(String),
    /// An object with the address.
    Object(ImageAddress),
}

impl<'de> Deserialize<'de> for ImageSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrObject {
            expected: "an address or an object with a url",
            text: ImageSource::Address,
            object: ImageSource::Object,
        })
    }
}

/// Whether, or how much, the model thinks, as Ollama's clients say it.
#[derive(Clone, Debug, PartialEq)]
pub enum Think {
    /// Whether the model thinks.
    Switch(bool),
    /// How much: `low`, `medium` or `high`.
    Effort(String),
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match AnyJson::deserialize(deserializer)?.0 {
            Value::Bool(switch) => Ok(Self::Switch(switch)),
            Value::String(effort) => Ok(Self::Effort(effort)),
            _ => Err(D::Error::custom("expected a boolean or an amount of thinking")),
        }
    }
}

objects! {
    /// One message of a conversation.
    #[derive(Default)]
    pub struct ChatMessage accepts MESSAGE {
        /// `system`, `developer`, `user`, `assistant` or `tool`.
        pub role: String,
        /// A text, or parts.
        #[schema(value_type = Option<ChatContent>)]
        pub content: Option<TextOr<ChatPart>>,
        /// Name of the participant or of the tool.
        pub name: Option<String>,
        /// Tool calls that the assistant made.
        pub tool_calls: Option<Vec<ChatToolCall>>,
        /// Id of the tool call that a tool answers.
        pub tool_call_id: Option<String>,
        /// The assistant's reasoning before its answer.
        pub reasoning_content: Option<String>,
        /// Another name of `reasoning_content`.
        pub thinking: Option<String>,
        /// Another name of `reasoning_content`.
        pub reasoning: Option<String>,
        /// The assistant's text if it refused.
        pub refusal: Option<String>,
    }

    /// A part of a message's content.
    #[derive(Default)]
    pub struct ChatPart accepts PART {
        /// `text`, `image_url`, `input_image`, `image`, `file`, `input_audio` or, of an assistant,
        /// `refusal`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The text of a part of type `text`.
        pub text: Option<String>,
        /// The text of a part of type `refusal`.
        pub refusal: Option<String>,
        /// The image of a part of type `image_url`, `input_image` or `image`.
        pub image_url: Option<ImageSource>,
        /// The image of a part of type `image`, as templates of chats have it.
        pub image: Option<ImageSource>,
        /// The address of the image of a part of type `image`, likewise.
        pub url: Option<String>,
        /// `detail` of the image, beside its address.
        pub detail: Option<String>,
        /// The file of a part of type `file`. A file of text is served; another is refused, or left
        /// out of an earlier turn.
        pub file: Option<ChatFile>,
        /// The sound of a part of type `input_audio`. It is refused, or left out
        /// of an earlier turn.
        #[schema(value_type = Option<Object>)]
        pub input_audio: Option<AnyJson>,
    }

    /// A file by its content, or by an id. The model is shown it as text.
    #[derive(Default)]
    pub struct ChatFile {
        /// The file in base64, or a `data:` URL with it.
        pub file_data: Option<String>,
        /// Id of a file that another service keeps.
        pub file_id: Option<String>,
        /// Name of the file. The model is shown it before the text.
        pub filename: Option<String>,
    }

    /// The address of an image.
    #[derive(Default)]
    pub struct ImageAddress {
        /// A `data:` URL. No other address is fetched.
        pub url: String,
        /// `low` for few pixels; `auto` or `high` for all that the model reads.
        pub detail: Option<String>,
    }

    /// A tool that the model may call.
    #[derive(Default)]
    pub struct ChatTool accepts TOOL {
        /// `function`, the one type of tools that is served.
        #[serde(rename = "type")]
        pub kind: String,
        /// Function that the model may call.
        pub function: Option<ChatFunction>,
    }

    /// A function that the model may call.
    #[derive(Default)]
    pub struct ChatFunction {
        /// Name of the function.
        pub name: String,
        /// Purpose of the function, for the model.
        pub description: Option<String>,
        /// The JSON schema of its arguments.
        #[schema(value_type = Option<Object>)]
        pub parameters: Option<AnyJson>,
        /// Whether the arguments of every tool call follow the schema.
        pub strict: Option<bool>,
    }

    /// A tool call that the assistant made, as a client resends it.
    #[derive(Default)]
    pub struct ChatToolCall accepts TOOL_CALL {
        /// Id of the tool call.
        pub id: String,
        /// `function`, the one type of tool calls that is served; the same without a type.
        #[serde(rename = "type")]
        pub kind: Option<String>,
        /// Function that was called.
        pub function: CalledFunction,
    }

    /// A function that was called.
    #[derive(Default)]
    pub struct CalledFunction accepts CALLED {
        /// Name of the function.
        pub name: String,
        /// A JSON object as text. Another text is shown to the model as it is.
        #[serde(default)]
        #[schema(value_type = String)]
        pub arguments: ResentArguments,
    }

    /// Format of an answer.
    #[derive(Default)]
    pub struct ResponseFormat {
        /// `text`, `json_object` or `json_schema`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The schema of `json_schema`.
        pub json_schema: Option<NamedSchema>,
    }

    /// A schema with a name.
    #[derive(Default)]
    pub struct NamedSchema {
        /// Name of the schema. The model is not shown it.
        pub name: Option<String>,
        /// Purpose of the schema. The model is not shown it.
        pub description: Option<String>,
        /// JSON schema that the answer follows.
        #[schema(value_type = Option<Object>)]
        pub schema: Option<AnyJson>,
        /// Answers follow the schema also if this is false.
        pub strict: Option<bool>,
    }

    /// Whether the model thinks, as clients of DeepSeek and GLM say it.
    #[derive(Default)]
    pub struct ThinkingSwitch accepts THINKING {
        /// `enabled`, `disabled` or `auto`.
        #[serde(rename = "type")]
        pub kind: Option<String>,
        /// Tokens after which the thought is ended; 0 is no bound.
        pub budget_tokens: Option<Count>,
    }

    /// Whether, or how much, the model thinks, as clients of OpenRouter say it.
    #[derive(Default)]
    pub struct ReasoningSwitch accepts REASONING {
        /// Whether the model thinks.
        pub enabled: Option<bool>,
        /// How much: a word of `reasoning_effort`.
        pub effort: Option<String>,
        /// Tokens after which the thought is ended; 0 is no bound.
        pub max_tokens: Option<Count>,
    }

    /// Whether a stream ends with the request's tokens, as clients of OpenRouter say it.
    #[derive(Default)]
    pub struct UsageSwitch {
        /// Whether the last chunk of the stream has the tokens of the request.
        pub include: Option<bool>,
    }
}
