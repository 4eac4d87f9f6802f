//! A request of the Messages protocol, with the fields that are served. All other fields of an
//! object are in its `rest`, which [`super::accepted`] checks.

mod documents;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::front::http::accepted::Rest;
use crate::front::http::json::{AnyJson, AnyObject, ResentArguments};
use crate::front::http::number::{Count, MaxTokens, TopK};
use crate::front::http::values::TextOr;

pub use documents::{
    BrowserStateBlock, CompactionBlock, ContentBlock, ContentSource, DocumentBlock, DocumentSource,
    ProviderMarkBlock, SearchResultBlock,
};

/// A request of `/v1/messages` and of `/v1/messages/count_tokens`.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// The model; any name that stands for the served one.
    pub model: String,
    /// Most tokens of the answer. Fewer are served if the context has less room.
    /// Required, except where tokens are counted.
    #[schema(inline)]
    pub max_tokens: Option<MaxTokens>,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// Instructions of the operator to the model.
    pub system: Option<TextOr<SystemBlock>>,
    /// Texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Whether the answer comes as events.
    pub stream: Option<bool>,
    /// How random the answer is.
    #[schema(minimum = 0.0, maximum = 100.0)]
    pub temperature: Option<f32>,
    /// The number of most probable tokens that are chosen from; all with 0 or -1.
    #[schema(inline)]
    pub top_k: Option<TopK>,
    /// The share of probability that is chosen from.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f32>,
    /// Tools that the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether it may.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model thinks before it answers.
    pub thinking: Option<Thinking>,
    /// How much it thinks.
    pub output_config: Option<OutputConfig>,
    /// Changes of the conversation by the service. Only those that change nothing are accepted.
    pub context_management: Option<ContextManagement>,
    /// Options that only this service has.
    pub paceline: Option<Extension>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesMessage)]
pub struct Message {
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// A text, or blocks.
    pub content: TextOr<Block>,
    /// The assistant's thought, under the name of other protocols.
    pub reasoning_content: Option<String>,
    /// Another name of `reasoning_content`.
    pub thinking: Option<String>,
    /// Another name of `reasoning_content`.
    pub reasoning: Option<String>,
    /// How long a message of the system is shown: `next_user_message`, or `never` for always.
    pub clear_at: Option<String>,
    /// How much the model thinks in the turn of a message of the system.
    pub output_config: Option<OutputConfig>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A block of the system prompt.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesSystemBlock)]
pub enum SystemBlock {
    /// Text.
    Text(TextBlock),
}

/// A block of a message.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesBlock)]
pub enum Block {
    /// Text.
    Text(TextBlock),
    /// An image.
    Image(ImageBlock),
    /// A document. Its text is served; a PDF is refused, or left out of an earlier turn.
    Document(DocumentBlock),
    /// What a search of the client found.
    SearchResult(SearchResultBlock),
    /// A file for code that Anthropic's service runs. The model is not shown it.
    ContainerUpload(KeptFile),
    /// A summary of earlier messages, which Anthropic's service made.
    Compaction(CompactionBlock),
    /// A mark where another model of Anthropic's service went on. The model is not told of it.
    Fallback(ProviderMarkBlock),
    /// Tools of a server, which Anthropic's service listed. The model is not told of them.
    McpToolListing(ProviderMarkBlock),
    /// A thought of the assistant.
    Thinking(ThinkingBlock),
    /// A thought of the assistant that another service hid. The model is not told of it.
    RedactedThinking(RedactedThinkingBlock),
    /// A tool call of the assistant.
    ToolUse(ToolUseBlock),
    /// The answer of a tool.
    ToolResult(ToolResultBlock),
    /// A tool that is offered from here on, in a message of the system.
    ToolAddition(ToolChangeBlock),
    /// A tool that is not offered any more, in a message of the system.
    ToolRemoval(ToolChangeBlock),
    /// A tool call that Anthropic's service ran itself. The model is not told of it.
    ServerToolUse(ProviderToolUseBlock),
    /// A tool call that Anthropic's service ran at another server. The model is not told of it.
    McpToolUse(ProviderToolUseBlock),
    /// The result of a search for tools that Anthropic's service made.
    ToolSearchToolResult(ToolSearchResultBlock),
    /// The result of a search of the web. The model is not told of it.
    WebSearchToolResult(ProviderResultBlock),
    /// A page of the web. The model is not told of it.
    WebFetchToolResult(ProviderResultBlock),
    /// The result of code that Anthropic's service ran. The model is not told of it.
    CodeExecutionToolResult(ProviderResultBlock),
    /// The result of a command that Anthropic's service ran. The model is not told of it.
    BashCodeExecutionToolResult(ProviderResultBlock),
    /// The result of an edit that Anthropic's service made. The model is not told of it.
    TextEditorCodeExecutionToolResult(ProviderResultBlock),
    /// The advice of another model of Anthropic's service. The model is not told of it.
    AdvisorToolResult(ProviderResultBlock),
    /// The result of a tool of another server. The model is not told of it.
    McpToolResult(ProviderResultBlock),
}

/// A block of a tool's answer.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesResultBlock)]
pub enum ResultBlock {
    /// Text.
    Text(TextBlock),
    /// An image.
    Image(ImageBlock),
    /// A document, as in a message.
    Document(DocumentBlock),
    /// What a search found.
    SearchResult(SearchResultBlock),
    /// The tabs of the client's browser. The model is shown them as JSON.
    BrowserState(BrowserStateBlock),
    /// A tool that the client's search found. It is offered from here on.
    ToolReference(ToolReferenceBlock),
}

/// Text.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesTextBlock)]
pub struct TextBlock {
    /// The text.
    pub text: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesImageBlock)]
pub struct ImageBlock {
    /// File of the image.
    pub source: ImageSource,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The file of an image.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesImageSource)]
pub enum ImageSource {
    /// The file itself.
    Base64(ImageFile),
    /// An address. Only an address that contains the file is served.
    Url(ImageUrl),
    /// A file that Anthropic's service keeps. It is refused, or left out of an earlier turn.
    File(KeptFile),
}

/// A file that Anthropic's service keeps.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesKeptFile)]
pub struct KeptFile {
    /// Id of the file there.
    pub file_id: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The file of an image in base64.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesImageFile)]
pub struct ImageFile {
    /// Kind of the file, such as `image/png`. The file's own beginning decides.
    pub media_type: Option<String>,
    /// The file in base64.
    pub data: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The address of an image.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesImageUrl)]
pub struct ImageUrl {
    /// The address.
    pub url: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A thought.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesThinkingBlock)]
pub struct ThinkingBlock {
    /// Text of the thought.
    pub thinking: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A thought that another service hid.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesRedactedThinkingBlock)]
pub struct RedactedThinkingBlock {
    /// Text of the thought in that service's encoding.
    pub data: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool that a search found.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolReferenceBlock)]
pub struct ToolReferenceBlock {
    /// Name of the tool in `tools`.
    pub tool_name: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool call that Anthropic's service ran itself.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesProviderToolUseBlock)]
pub struct ProviderToolUseBlock {
    /// Id of the tool call.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments of the tool call.
    #[schema(value_type = Object)]
    pub input: ResentArguments,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The result of a tool that Anthropic's service ran itself.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesProviderResultBlock)]
pub struct ProviderResultBlock {
    /// Id of the tool call.
    pub tool_use_id: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The result of a search for tools that Anthropic's service made.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolSearchResultBlock)]
pub struct ToolSearchResultBlock {
    /// Id of the search.
    pub tool_use_id: String,
    /// The found tools, or why the search failed.
    pub content: ToolSearchContent,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// What a search for tools found.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesToolSearchContent)]
pub enum ToolSearchContent {
    /// The found tools.
    ToolSearchToolSearchResult(FoundTools),
    /// A search that failed.
    ToolSearchToolResultError(ToolSearchError),
}

/// Tools that a search found.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesFoundTools)]
pub struct FoundTools {
    /// The tools. They are offered from here on.
    pub tool_references: Vec<FoundTool>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool that a search found.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesFoundTool)]
pub enum FoundTool {
    /// A tool of `tools`.
    ToolReference(ToolReferenceBlock),
}

/// A search for tools that failed.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolSearchError)]
pub struct ToolSearchError {
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A change of the offered tools.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolChangeBlock)]
pub struct ToolChangeBlock {
    /// The tool that is offered from here on, or no longer.
    pub tool: ChangedTool,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool that is added or removed.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesChangedTool)]
pub enum ChangedTool {
    /// A tool of `tools`, or one that was defined earlier in the conversation.
    ToolReference(NamedTool),
    /// A new tool. It can only be added.
    ToolDefinition(DefinedTool),
}

/// A tool by its name.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesNamedTool)]
pub struct NamedTool {
    /// Name of the tool.
    pub name: String,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool by its definition.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesDefinedTool)]
pub struct DefinedTool {
    /// Definition of the tool.
    pub definition: Box<Tool>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolUseBlock)]
pub struct ToolUseBlock {
    /// Id of the tool call.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments of the tool call.
    #[schema(value_type = Object)]
    pub input: ResentArguments,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The answer of a tool.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolResultBlock)]
pub struct ToolResultBlock {
    /// Id of the tool call that it answers.
    pub tool_use_id: String,
    /// A text, or blocks; nothing if the tool has nothing to say.
    pub content: Option<TextOr<ResultBlock>>,
    /// Whether the tool failed.
    pub is_error: Option<bool>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
pub struct Tool {
    /// Name of the tool.
    pub name: Option<String>,
    /// Purpose of the tool, for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<AnyJson>,
    /// Whether the arguments of every tool call follow the schema.
    pub strict: Option<bool>,
    /// `custom`, or nothing. Tools that a service itself runs, such as `web_search_20250305`, are left
    /// out: the model is not told of them.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// True: the tool is offered only after a `tool_reference` or a `tool_addition` names it. Beside a
    /// search for tools that Anthropic's service makes, it is offered at once.
    pub defer_loading: Option<bool>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// Whether and which tools the model calls.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
pub struct ToolChoice {
    /// `auto`, `none`, `any` for some tool call, or `tool` for calls of the tool `name`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool of `tool`.
    pub name: Option<String>,
    /// True: the answer has one tool call at most, the first of an offered tool.
    pub disable_parallel_tool_use: Option<bool>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// Whether the model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesThinking)]
pub struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `summarized` or `omitted`. Thoughts are never summarized; `omitted` leaves their text out of
    /// the answer.
    pub display: Option<String>,
    /// Tokens after which the thought is ended; 0 is no bound. `enabled` has it.
    pub budget_tokens: Option<Count>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// How the model answers.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesOutputConfig)]
pub struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: Option<String>,
    /// Form that the answer's text must have.
    pub format: Option<OutputFormat>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// Form that the text of an answer must have.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesOutputFormat)]
pub struct OutputFormat {
    /// `json_schema`; other formats are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// JSON schema that the answer's text follows.
    #[schema(value_type = Object)]
    pub schema: AnyJson,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// Changes of the conversation by the service.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesContextManagement)]
pub struct ContextManagement {
    /// The changes.
    #[schema(value_type = Option<Vec<Object>>)]
    pub edits: Option<Vec<AnyObject>>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// Options of a request that only this service has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
pub struct Extension {
    /// The lane: `auto`, `plain` or `speculative`.
    pub route: Option<String>,
    /// Variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub template_arguments: Option<AnyObject>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}
