//! A request of the Responses protocol, with the fields that are served. All other fields of an
//! object are in its `rest`, which [`super::accepted`] checks. The forms of a part with a type come
//! first, then the objects.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::accepted::{self, OTHER_SERVICES_ITEMS, is_run_by_provider};
use crate::accepted::{forms, objects};
use crate::json::{AnyJson, AnyObject, ResentArguments};
use crate::number::{MaxTokensOrNone, Seed, TopLogprobs};
use crate::protocol::Extension;
use crate::values::{TextOr, ToolChoice};

/// An item of a conversation; `None` for one that another service made. The model is not shown it.
#[derive(Clone, Debug, PartialEq, ToSchema)]
#[schema(as = ResponsesInputItem)]
pub struct InputItem(pub Option<Item>);

impl<'de> Deserialize<'de> for InputItem {
    /// A message may come without its type.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let AnyObject(mut item) = AnyObject::deserialize(deserializer)?;
        if item.get("type").is_none_or(Value::is_null) && item.contains_key("role") {
            item.insert("type".into(), "message".into());
        }
        let kind = item.get("type").and_then(Value::as_str);
        if kind.is_some_and(|kind| OTHER_SERVICES_ITEMS.contains(&kind)) {
            return Ok(Self(None));
        }
        serde_json::from_value(Value::Object(item)).map(Self).map_err(D::Error::custom)
    }
}

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub enum Tool {
    /// A tool that the client runs.
    Client(ClientTool),
    /// A tool that OpenAI's service runs, such as a search of the web. The model is not told of it.
    Provider(AnyObject),
}

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let AnyObject(tool) = AnyObject::deserialize(deserializer)?;
        let text = |name| tool.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        let is_own_search = kind == "tool_search" && text("execution") == "client";
        if is_run_by_provider(kind) && !is_own_search {
            return Ok(Tool::Provider(AnyObject(tool)));
        }
        serde_json::from_value(Value::Object(tool)).map(Tool::Client).map_err(D::Error::custom)
    }
}

impl TextFormat {
    /// The format as the answer repeats it.
    pub fn repeated(&self) -> Value {
        let Self { kind, schema, name, rest } = self;
        let mut repeated = Map::from_iter([("type".to_owned(), Value::from(kind.as_str()))]);
        repeated.extend(name.iter().map(|name| ("name".to_owned(), Value::from(name.as_str()))));
        let schema = schema.iter().map(|AnyJson(schema)| ("schema".to_owned(), schema.clone()));
        repeated.extend(schema);
        repeated.extend(rest.0.clone());
        Value::Object(repeated)
    }
}

forms! {
    /// An item by its type.
    pub enum Item as ResponsesItem {
        /// A message.
        Message(MessageItem),
        /// A thought of the model.
        Reasoning(ReasoningItem),
        /// A tool call of a function.
        FunctionCall(FunctionCallItem),
        /// The answer of a function.
        FunctionCallOutput(OutputItem),
        /// A tool call with any text.
        CustomToolCall(CustomToolCallItem),
        /// The answer of such a tool.
        CustomToolCallOutput(OutputItem),
        /// Further tools.
        AdditionalTools(AdditionalToolsItem),
        /// A search for tools.
        ToolSearchCall(ToolSearchCallItem),
        /// The tools that it found.
        ToolSearchOutput(ToolSearchOutputItem),
        /// A command of a shell, as a tool call of `local_shell`.
        LocalShellCall(ShellCallItem),
        /// Its output.
        LocalShellCallOutput(ShellOutputItem),
        /// Commands of a shell, as a tool call of `shell`.
        ShellCall(ShellCallItem),
        /// Their output.
        ShellCallOutput(ShellOutputItem),
        /// A change of a file, as a tool call of `apply_patch`.
        ApplyPatchCall(ShellCallItem),
        /// What became of it.
        ApplyPatchCallOutput(ShellOutputItem),
        /// The name of an item that another service keeps. It is refused.
        ItemReference(RefusedItem),
        /// An order to compact the conversation. It is refused.
        CompactionTrigger(RefusedItem),
        /// A change of the request's fields. It is refused.
        ConfigurationUpdate(RefusedItem),
    }

    /// A part of a message or of a tool's answer.
    pub enum ResponsesPart as ResponsesPart {
        /// Text of a person or a tool.
        InputText(TextPart),
        /// Text of the model.
        OutputText(TextPart),
        /// Text of the model in which it refuses.
        Refusal(RefusalPart),
        /// An image.
        InputImage(ImagePart),
        /// A file. A file of text is served; another is refused, or left out of an earlier turn.
        InputFile(FilePart),
        /// A sound. It is refused, or left out of an earlier turn.
        InputAudio(AudioPart),
    }

    /// A tool that the client runs, by its type.
    pub enum ClientTool as ResponsesTool {
        /// A function.
        Function(FunctionTool),
        /// A tool that takes any text.
        Custom(CustomTool),
        /// A group of tools.
        Namespace(NamespaceTool),
        /// A search for tools that are deferred.
        ToolSearch(ToolSearchTool),
    }

    /// The form of a custom tool's text.
    pub enum CustomFormat as ResponsesCustomFormat {
        /// Any text.
        Text(PlainFormat),
        /// Text of a grammar. The model is told of it and not held to it.
        Grammar(GrammarFormat),
    }

    /// A tool of a group.
    pub enum GroupedTool as ResponsesGroupedTool {
        /// A function.
        Function(FunctionTool),
        /// A tool that takes any text.
        Custom(CustomTool),
    }
}

objects! {
    /// A request of `/v1/responses`.
    pub struct ResponsesRequest accepts REQUEST {
        /// The model; any name that stands for the served one.
        pub model: Option<String>,
        /// A text of the user, or the whole conversation: the service keeps none.
        pub input: TextOr<InputItem>,
        /// Instructions of the operator to the model.
        pub instructions: Option<String>,
        /// Most tokens of the answer; as many as fit with -1.
        #[schema(inline)]
        pub max_output_tokens: Option<MaxTokensOrNone>,
        /// Whether the answer comes as events.
        pub stream: Option<bool>,
        /// How random the answer is.
        #[schema(minimum = 0.0, maximum = 100.0)]
        pub temperature: Option<f32>,
        /// The share of probability that is chosen from.
        #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
        pub top_p: Option<f32>,
        /// The seed of the random numbers; drawn if it is absent or -1.
        #[schema(inline)]
        pub seed: Option<Seed>,
        /// Texts that end the answer.
        pub stop: Option<TextOr<String>>,
        /// False: special tokens that do not end the answer are part of its text.
        pub skip_special_tokens: Option<bool>,
        /// Tools that the model may call.
        #[schema(value_type = Option<Vec<ClientTool>>)]
        pub tools: Option<Vec<Tool>>,
        /// Whether it may.
        pub tool_choice: Option<ToolChoice>,
        /// How much the model thinks.
        pub reasoning: Option<Reasoning>,
        /// The form of the answer's text.
        pub text: Option<TextConfig>,
        /// Further parts of the answer.
        pub include: Option<Vec<String>>,
        /// How many alternatives of each token of a message are reported, 0 to 20, if `include`
        /// asks for its log-probabilities.
        #[schema(inline)]
        pub top_logprobs: Option<TopLogprobs>,
        /// False: the answer has one tool call at most, the first of an offered tool.
        pub parallel_tool_calls: Option<bool>,
        /// Labels of the request, which the answer repeats.
        #[schema(value_type = Option<Object>)]
        pub metadata: Option<AnyObject>,
        /// `auto`: the oldest items are left out of a conversation that does not fit. `disabled`:
        /// such a conversation is refused.
        pub truncation: Option<String>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
    }

    /// A message.
    pub struct MessageItem as ResponsesMessageItem accepts ITEM {
        /// `user`, `assistant`, `system` or `developer`.
        pub role: String,
        /// A text, or parts; nothing is an empty text.
        pub content: Option<TextOr<ResponsesPart>>,
        /// The assistant's thought, under the name of other protocols.
        pub reasoning_content: Option<String>,
        /// Another name of `reasoning_content`.
        pub thinking: Option<String>,
        /// Another name of `reasoning_content`.
        pub reasoning: Option<String>,
    }

    /// A text of a message or of a tool's answer.
    pub struct TextPart as ResponsesTextPart accepts TEXT {
        /// The text.
        pub text: String,
    }

    /// Text in which the model refuses.
    pub struct RefusalPart as ResponsesRefusalPart accepts TEXT {
        /// The text.
        pub refusal: String,
    }

    /// An image of a message or of a tool's answer.
    pub struct ImagePart as ResponsesImagePart accepts IMAGE {
        /// Address of the image. Only an address that contains the file is served.
        pub image_url: Option<String>,
        /// Id of a file that another service keeps, in place of the address. It is refused, or left
        /// out of an earlier turn.
        pub file_id: Option<String>,
        /// `low` for few pixels; `auto`, `high` or `original` for all that the model reads.
        pub detail: Option<String>,
    }

    /// A thought. A client resends what it got: its text, or the text in `encrypted_content`.
    pub struct ReasoningItem as ResponsesReasoningItem accepts ITEM {
        /// A summary in parts.
        pub summary: Option<Vec<ReasoningText>>,
        /// The text in parts.
        pub content: Option<Vec<ReasoningText>>,
        /// The text, in a form that only this service reads.
        pub encrypted_content: Option<String>,
    }

    /// A part of a thought.
    pub struct ReasoningText as ResponsesReasoningText {
        /// `summary_text`, `reasoning_text` or `text`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The text.
        pub text: String,
    }

    /// A tool call of a function.
    pub struct FunctionCallItem as ResponsesFunctionCallItem accepts ITEM {
        /// Id of the tool call.
        pub call_id: String,
        /// The function.
        pub name: String,
        /// The group of the function.
        pub namespace: Option<String>,
        /// Arguments of the tool call: an object of JSON as text. Another text is shown to the
        /// model as it is.
        #[serde(default)]
        #[schema(value_type = String)]
        pub arguments: ResentArguments,
    }

    /// A tool call with any text.
    pub struct CustomToolCallItem as ResponsesCustomToolCallItem accepts ITEM {
        /// Id of the tool call.
        pub call_id: String,
        /// The tool.
        pub name: String,
        /// The group of the tool.
        pub namespace: Option<String>,
        /// The text.
        pub input: String,
    }

    /// The answer of a tool.
    pub struct OutputItem as ResponsesOutputItem accepts ITEM {
        /// Id of the tool call that it answers.
        pub call_id: String,
        /// A text, or parts; nothing is an empty text.
        pub output: Option<TextOr<ResponsesPart>>,
    }

    /// Tools that came in the middle of a conversation.
    pub struct AdditionalToolsItem as ResponsesAdditionalToolsItem accepts ITEM {
        /// The tools.
        #[schema(value_type = Vec<ClientTool>)]
        pub tools: Vec<Tool>,
    }

    /// A search for tools, which the client or OpenAI's service made.
    pub struct ToolSearchCallItem as ResponsesToolSearchCallItem accepts ITEM {
        /// Id of the search. A search without one is of OpenAI's service. The model is not shown it.
        pub call_id: Option<String>,
        /// `client` or `server`.
        pub execution: Option<String>,
        /// Arguments of the search.
        #[serde(default)]
        #[schema(value_type = Object)]
        pub arguments: ResentArguments,
    }

    /// The tools that a search found. They are offered from there on.
    pub struct ToolSearchOutputItem as ResponsesToolSearchOutputItem accepts ITEM {
        /// The search that it answers.
        pub call_id: Option<String>,
        /// `client` or `server`.
        pub execution: Option<String>,
        /// The tools.
        #[schema(value_type = Vec<ClientTool>)]
        pub tools: Vec<Tool>,
    }

    /// A function.
    pub struct FunctionTool as ResponsesFunctionTool accepts FUNCTION {
        /// Name of the tool.
        pub name: String,
        /// Purpose of the tool, for the model.
        pub description: Option<String>,
        /// The JSON schema of its arguments.
        #[schema(value_type = Option<Object>)]
        pub parameters: Option<AnyJson>,
        /// Whether the arguments of every tool call follow the schema.
        pub strict: Option<bool>,
        /// True: if the client searches for tools itself, the tool is offered only after a search
        /// found it. Otherwise it is offered at once.
        pub defer_loading: Option<bool>,
    }

    /// A tool that takes any text.
    pub struct CustomTool as ResponsesCustomTool accepts TOOL {
        /// Name of the tool.
        pub name: String,
        /// Purpose of the tool, for the model.
        pub description: Option<String>,
        /// The form of its text.
        pub format: Option<CustomFormat>,
        /// True: if the client searches for tools itself, the tool is offered only after a search
        /// found it. Otherwise it is offered at once.
        pub defer_loading: Option<bool>,
    }

    /// Any text.
    pub struct PlainFormat as ResponsesPlainFormat {}

    /// Text of a grammar.
    pub struct GrammarFormat as ResponsesGrammarFormat {
        /// `lark` or `regex`.
        pub syntax: String,
        /// The grammar.
        pub definition: String,
    }

    /// A group of tools.
    pub struct NamespaceTool as ResponsesNamespaceTool accepts TOOL {
        /// Name of the group.
        pub name: String,
        /// Purpose of the tools in the group, for the model.
        pub description: Option<String>,
        /// Tools of the group.
        pub tools: Vec<GroupedTool>,
        /// True: as if each of its tools had it.
        pub defer_loading: Option<bool>,
    }

    /// A search for tools that the client makes. A search by OpenAI's service is left out.
    pub struct ToolSearchTool as ResponsesToolSearchTool {
        /// `client`.
        pub execution: String,
        /// Purpose of the search, for the model.
        pub description: Option<String>,
        /// The JSON schema of its arguments.
        #[schema(value_type = Option<Object>)]
        pub parameters: Option<AnyJson>,
    }

    /// How much the model thinks.
    #[derive(Default)]
    pub struct Reasoning as ResponsesReasoning accepts REASONING {
        /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
        pub effort: Option<String>,
    }

    /// The form of the answer's text.
    pub struct TextConfig as ResponsesTextConfig accepts TEXT_CONFIG {
        /// Plain text or JSON of a schema; absent means plain text.
        pub format: Option<TextFormat>,
    }

    /// A format of text.
    pub struct TextFormat as ResponsesTextFormat accepts FORMAT {
        /// `text`, `json_object` or `json_schema`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The schema of `json_schema`.
        #[schema(value_type = Option<Object>)]
        pub schema: Option<AnyJson>,
        /// The schema's name. The model is not told of it.
        pub name: Option<String>,
    }

    /// A file, which the model is shown as text.
    pub struct FilePart as ResponsesFilePart accepts FILE {
        /// The file in base64, or a `data:` URL with it.
        pub file_data: Option<String>,
        /// Address of the file. Only an address that contains the file is served.
        pub file_url: Option<String>,
        /// Id of a file that another service keeps.
        pub file_id: Option<String>,
        /// Name of the file. The model is shown it before the text.
        pub filename: Option<String>,
    }

    /// A sound, which no model here hears.
    pub struct AudioPart as ResponsesAudioPart accepts IMAGE {
        /// The sound. It is not read.
        #[schema(value_type = Object)]
        pub input_audio: AnyJson,
    }

    /// A call of a tool that only OpenAI's models know by its own type of item.
    pub struct ShellCallItem as ResponsesShellCallItem accepts ITEM {
        /// Id of the tool call.
        pub call_id: Option<String>,
        /// Id of the item, which is the tool call's in items without `call_id`.
        pub id: Option<String>,
        /// Arguments of the tool call.
        #[schema(value_type = Option<Object>)]
        pub action: Option<ResentArguments>,
        /// Arguments of `apply_patch`.
        #[schema(value_type = Option<Object>)]
        pub operation: Option<ResentArguments>,
    }

    /// The answer of such a tool.
    pub struct ShellOutputItem as ResponsesShellOutputItem accepts ITEM {
        /// Id of the tool call that it answers.
        pub call_id: Option<String>,
        /// The same in items without `call_id`.
        pub id: Option<String>,
        /// A text, or a list that the model is shown as JSON.
        #[serde(default)]
        #[schema(value_type = Option<Vec<Object>>)]
        pub output: AnyJson,
    }

    /// An item that asks for what this service does not do.
    pub struct RefusedItem as ResponsesRefusedItem accepts ITEM {}
}
