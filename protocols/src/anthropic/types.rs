//! A request of the Messages protocol, with the fields that are served. All other fields of an
//! object are in its `rest`, which [`super::accepted`] checks. The forms of a part with a type come
//! first, then the objects.

use super::accepted;
use crate::accepted::{forms, objects};
use crate::json::{AnyJson, AnyObject, ResentArguments};
use crate::number::{Count, MaxTokens, TopK};
use crate::protocol::Extension;
use crate::values::TextOr;

forms! {
    /// A block of the system prompt.
    pub enum SystemBlock as MessagesSystemBlock {
        /// A text for the model, or of what a search found.
        Text(TextBlock),
    }

    /// A block of a message.
    pub enum Block as MessagesBlock {
        /// A text of the message.
        Text(TextBlock),
        /// An image, in its place among the texts.
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
    pub enum ResultBlock as MessagesResultBlock {
        /// A text of the tool.
        Text(TextBlock),
        /// An image of the tool.
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

    /// The file of an image.
    pub enum ImageSource as MessagesImageSource {
        /// The file itself.
        Base64(ImageFile),
        /// An address. Only an address that contains the file is served.
        Url(ImageUrl),
        /// A file that Anthropic's service keeps. It is refused, or left out of an earlier turn.
        File(KeptFile),
    }

    /// What a search for tools found.
    pub enum ToolSearchContent as MessagesToolSearchContent {
        /// The found tools.
        ToolSearchToolSearchResult(FoundTools),
        /// A search that failed.
        ToolSearchToolResultError(ToolSearchError),
    }

    /// A tool that a search found.
    pub enum FoundTool as MessagesFoundTool {
        /// A tool of `tools`.
        ToolReference(ToolReferenceBlock),
    }

    /// A tool that is added or removed.
    pub enum ChangedTool as MessagesChangedTool {
        /// A tool of `tools`, or one that was defined earlier in the conversation.
        ToolReference(NamedTool),
        /// A new tool. It can only be added.
        ToolDefinition(DefinedTool),
    }

    /// The content of a document.
    pub enum DocumentSource as MessagesDocumentSource {
        /// A file in base64. A file of text is served.
        Base64(ImageFile),
        /// A text, which is `data` as it is.
        Text(ImageFile),
        /// A text, or blocks.
        Content(ContentSource),
        /// An address. Only an address that contains a file of text is served.
        Url(ImageUrl),
        /// A file that Anthropic's service keeps.
        File(KeptFile),
    }

    /// A block of a document.
    pub enum ContentBlock as MessagesContentBlock {
        /// A text of the document.
        Text(TextBlock),
        /// An image of the document, in its place among the texts.
        Image(ImageBlock),
    }
}

objects! {
    /// A request of `/v1/messages` and of `/v1/messages/count_tokens`.
    pub struct MessagesRequest accepts REQUEST {
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
        /// Whether the model calls a tool, and which one.
        pub tool_choice: Option<ToolChoice>,
        /// Whether the model thinks before it answers.
        pub thinking: Option<Thinking>,
        /// How much the model thinks, and the form of its answer.
        pub output_config: Option<OutputConfig>,
        /// Changes of the conversation by the service. Only those that change nothing are accepted.
        pub context_management: Option<ContextManagement>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
    }

    /// One message of the conversation, with its role and its content.
    pub struct Message as MessagesMessage accepts MESSAGE {
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
    }

    /// A text of the system prompt, a message, a document or a tool's answer.
    pub struct TextBlock as MessagesTextBlock accepts TEXT {
        /// Text that the model is shown as it is.
        pub text: String,
    }

    /// An image of a message, a document or a tool's answer.
    pub struct ImageBlock as MessagesImageBlock accepts IMAGE {
        /// File of the image.
        pub source: ImageSource,
    }

    /// A file that Anthropic's service keeps.
    pub struct KeptFile as MessagesKeptFile accepts KEPT_FILE {
        /// Id of the file there.
        pub file_id: String,
    }

    /// The file of an image in base64.
    pub struct ImageFile as MessagesImageFile {
        /// Kind of the file, such as `image/png`. The file's own beginning decides.
        pub media_type: Option<String>,
        /// The file in base64.
        pub data: String,
    }

    /// The address of an image or of a document.
    pub struct ImageUrl as MessagesImageUrl {
        /// A `data:` URL with the file. No other address is fetched.
        pub url: String,
    }

    /// A thought of an earlier answer, which the client resends.
    pub struct ThinkingBlock as MessagesThinkingBlock accepts THINKING {
        /// Text of the thought.
        pub thinking: String,
    }

    /// A thought that another service hid.
    pub struct RedactedThinkingBlock as MessagesRedactedThinkingBlock accepts THINKING {
        /// Text of the thought in that service's encoding.
        pub data: String,
    }

    /// A tool that a search found.
    pub struct ToolReferenceBlock as MessagesToolReferenceBlock accepts TOOL_REFERENCE {
        /// Name of the tool in `tools`.
        pub tool_name: String,
    }

    /// A tool call that Anthropic's service ran itself.
    pub struct ProviderToolUseBlock as MessagesProviderToolUseBlock accepts PROVIDER_TOOL_USE {
        /// Id of the tool call.
        pub id: String,
        /// Name of the tool.
        pub name: String,
        /// Arguments of the tool call.
        #[schema(value_type = Object)]
        pub input: ResentArguments,
    }

    /// The result of a tool that Anthropic's service ran itself.
    pub struct ProviderResultBlock as MessagesProviderResultBlock accepts PROVIDER_RESULT {
        /// Id of the tool call.
        pub tool_use_id: String,
    }

    /// The result of a search for tools that Anthropic's service made.
    pub struct ToolSearchResultBlock as MessagesToolSearchResultBlock accepts TOOL_SEARCH_RESULT {
        /// Id of the search.
        pub tool_use_id: String,
        /// The found tools, or why the search failed.
        pub content: ToolSearchContent,
    }

    /// Tools that a search found.
    pub struct FoundTools as MessagesFoundTools {
        /// The tools. They are offered from here on.
        pub tool_references: Vec<FoundTool>,
    }

    /// A search for tools that failed.
    pub struct ToolSearchError as MessagesToolSearchError accepts TOOL_SEARCH_ERROR {}

    /// A change of the offered tools.
    pub struct ToolChangeBlock as MessagesToolChangeBlock accepts TOOL_REFERENCE {
        /// The tool that is offered from here on, or no longer.
        pub tool: ChangedTool,
    }

    /// A tool by its name.
    pub struct NamedTool as MessagesNamedTool accepts TOOL_REFERENCE {
        /// Name of the tool.
        pub name: String,
    }

    /// A tool by its definition.
    pub struct DefinedTool as MessagesDefinedTool accepts TOOL_REFERENCE {
        /// Definition of the tool.
        pub definition: Box<Tool>,
    }

    /// A tool call of an earlier answer, with its arguments.
    pub struct ToolUseBlock as MessagesToolUseBlock accepts TOOL_USE {
        /// Id of the tool call.
        pub id: String,
        /// Name of the tool.
        pub name: String,
        /// Arguments of the tool call.
        #[schema(value_type = Object)]
        pub input: ResentArguments,
    }

    /// The answer of a tool.
    pub struct ToolResultBlock as MessagesToolResultBlock accepts TOOL_RESULT {
        /// Id of the tool call that it answers.
        pub tool_use_id: String,
        /// A text, or blocks; nothing if the tool has nothing to say.
        pub content: Option<TextOr<ResultBlock>>,
        /// Whether the tool failed.
        pub is_error: Option<bool>,
    }

    /// A tool that the model may call, with the schema of its arguments.
    pub struct Tool as MessagesTool accepts TOOL {
        /// Name of the tool.
        pub name: Option<String>,
        /// Purpose of the tool, for the model.
        pub description: Option<String>,
        /// The JSON schema of its arguments.
        #[schema(value_type = Option<Object>)]
        pub input_schema: Option<AnyJson>,
        /// Whether the arguments of every tool call follow the schema.
        pub strict: Option<bool>,
        /// `custom`, or nothing. Tools that a service itself runs, such as `web_search_20250305`,
        /// are left out: the model is not told of them.
        #[serde(rename = "type")]
        pub kind: Option<String>,
        /// True: the tool is offered only after a `tool_reference` or a `tool_addition` names it.
        /// Beside a search for tools that Anthropic's service makes, it is offered at once.
        pub defer_loading: Option<bool>,
    }

    /// Whether and which tools the model calls.
    pub struct ToolChoice as MessagesToolChoice {
        /// `auto`, `none`, `any` for some tool call, or `tool` for calls of the tool `name`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The tool of `tool`.
        pub name: Option<String>,
        /// True: the answer has one tool call at most, the first of an offered tool.
        pub disable_parallel_tool_use: Option<bool>,
    }

    /// Whether the model thinks before it answers.
    pub struct Thinking as MessagesThinking {
        /// `enabled`, `adaptive` or `disabled`.
        #[serde(rename = "type")]
        pub kind: String,
        /// `summarized` or `omitted`. Thoughts are never summarized; `omitted` leaves their text
        /// out of the answer.
        pub display: Option<String>,
        /// Tokens after which the thought is ended; 0 is no bound. `enabled` has it.
        pub budget_tokens: Option<Count>,
    }

    /// How the model answers.
    pub struct OutputConfig as MessagesOutputConfig {
        /// `low`, `medium`, `high`, `xhigh` or `max`.
        pub effort: Option<String>,
        /// Form that the answer's text must have.
        pub format: Option<OutputFormat>,
    }

    /// Form that the text of an answer must have.
    pub struct OutputFormat as MessagesOutputFormat {
        /// `json_schema`; other formats are refused.
        #[serde(rename = "type")]
        pub kind: String,
        /// JSON schema that the answer's text follows.
        #[schema(value_type = Object)]
        pub schema: AnyJson,
    }

    /// Changes of the conversation by the service.
    pub struct ContextManagement as MessagesContextManagement {
        /// Edits of the conversation. Only the one that keeps all thoughts is accepted.
        #[schema(value_type = Option<Vec<Object>>)]
        pub edits: Option<Vec<AnyObject>>,
    }

    /// A document, which the model is shown as text.
    pub struct DocumentBlock as MessagesDocumentBlock accepts DOCUMENT {
        /// Content of the document.
        pub source: DocumentSource,
        /// Title of the document. The model is shown it before the text.
        pub title: Option<String>,
        /// A text about the document. The model is shown it before the text.
        pub context: Option<String>,
    }

    /// The content of a document in blocks.
    pub struct ContentSource as MessagesContentSource {
        /// A text, or blocks.
        pub content: TextOr<ContentBlock>,
    }

    /// What a search found.
    pub struct SearchResultBlock as MessagesSearchResultBlock accepts DOCUMENT {
        /// Title of the place. The model is shown it before the text.
        pub title: String,
        /// Address of the place. The model is shown it before the text.
        pub source: String,
        /// The found texts.
        pub content: Vec<SystemBlock>,
    }

    /// A summary of earlier messages, which Anthropic's service made.
    pub struct CompactionBlock as MessagesCompactionBlock accepts COMPACTION {
        /// The summary, which the model is shown as a text of its own; nothing if it failed.
        pub content: Option<String>,
    }

    /// A mark that Anthropic's service left in a message.
    pub struct ProviderMarkBlock as MessagesProviderMarkBlock accepts PROVIDER_MARK {}

    /// The tabs of the client's browser after a tool call.
    pub struct BrowserStateBlock as MessagesBrowserStateBlock accepts DOCUMENT {
        /// All open tabs.
        #[schema(value_type = Vec<Object>)]
        pub tabs: AnyJson,
        /// Opened tabs and downloads.
        #[schema(value_type = Option<Vec<Object>>)]
        pub state_changes: Option<AnyJson>,
    }
}
