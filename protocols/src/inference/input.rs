//! A client's request in the gateway's own types: a front makes a [`RequestInput`] of its
//! protocol's message. `request::check` makes a request of it that is well formed.
//!
//! Errors name fields by their path in this input, such as `messages[0].content[1]` or
//! `limits.max_tokens`. They are the field names of inference.proto; the front of a protocol with
//! other names translates them.

use bytes::Bytes;
use paceline_text::images::{Detail, EncodedImage};
pub use paceline_text::json::JsonInput;
use paceline_text::prompt::conversation::Effort;
pub use paceline_text::prompt::conversation::ToolCallRule;

use super::params::GenerationParams;

/// A request as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestInput {
    /// The prompt to continue or to answer.
    pub prompt: PromptInput,
    /// Parameters of the answer.
    pub params: GenerationParams,
}

/// A prompt as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// Text in the model's own format.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// Token ids with one placeholder for each image.
    IdsWithImages {
        /// Token ids of the whole prompt.
        ids: Vec<u32>,
        /// The images, in the order of their placeholders.
        images: Vec<EncodedImage>,
    },
    /// A conversation, for the model's chat template.
    Conversation(ConversationInput),
}

/// A conversation as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationInput {
    /// The messages, oldest first.
    pub messages: Vec<MessageInput>,
    /// Tools that the model may call.
    pub tools: Vec<ToolInput>,
    /// Rule for the model's use of the tools.
    pub calls: ToolCallRule,
    /// Variables of the template: a JSON object.
    pub template_arguments: JsonInput,
    /// How much the model is to think. It becomes the variable of the template for that, unless
    /// `template_arguments` has the variable.
    pub effort: Option<Effort>,
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageInput {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The parts of its content, in order.
    pub content: Vec<ContentPartInput>,
    /// Tool calls that the assistant made.
    pub tool_calls: Vec<ToolCallInput>,
    /// Id of the tool call that a tool answers.
    pub tool_call_id: String,
    /// Name of the participant or of the tool.
    pub name: String,
    /// The assistant's reasoning before its answer.
    pub reasoning: String,
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentPartInput {
    /// Text.
    Text(String),
    /// The file of an image.
    Image(Bytes),
    /// The address of an image. Only an address that contains the file can be served.
    ImageUrl {
        /// The address.
        url: String,
        /// How much of the image the model reads.
        detail: Detail,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolInput {
    /// Name of the tool.
    pub name: String,
    /// Purpose of the tool, for the model.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: JsonInput,
    /// Whether the arguments of every tool call follow the schema.
    pub strict: bool,
    /// Path of the tool in the client's request, for errors; empty if the tool has the same index
    /// there.
    pub path: String,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallInput {
    /// Id of the tool call.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// A JSON object, or another text of the model.
    pub arguments: JsonInput,
}
