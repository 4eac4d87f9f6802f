//! A request of the Messages protocol as the input of [`crate::inference`].

use base64::Engine as _;
use paceline_proto::limits;
use paceline_vocabulary::RouteWish;
use serde_json::{Map, Value};

use super::accepted::{self, check_edits, is_billing};
use super::conversation::Turns;
use super::types::{
    Extension, ImageBlock, ImageSource, MessagesRequest, OutputConfig, OutputFormat, SystemBlock,
    TextBlock, Thinking, Tool, ToolChoice,
};
use crate::front::http::accepted::check;
use crate::front::http::error::FieldName;
use crate::front::http::number::{Count, MaxTokens};
use crate::front::http::one_call::AllowedCalls;
use crate::front::http::values::TextOr;
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, quoted};
use crate::inference::grammar::TextForm;
use crate::inference::input::{
    CallRule, ContentPartInput, ConversationInput, MessageInput, PromptInput, RequestInput,
    ToolInput,
};
use crate::inference::params::{GenerationParams, SamplingParams};
use crate::prompt::conversation::Effort;

/// The protocol's names of fields.
pub const FIELDS: &[FieldName] = &[
    FieldName { inner: "limits.max_tokens", outer: "max_tokens" },
    FieldName { inner: "limits.stop", outer: "stop_sequences" },
    FieldName { inner: "sampling", outer: "" },
    FieldName { inner: "template_arguments", outer: "paceline.template_arguments" },
    FieldName { inner: "grammar.json_schema", outer: "output_config.format.schema" },
    FieldName { inner: "grammar", outer: "output_config.format" },
    FieldName { inner: "tools[].parameters", outer: "tools[].input_schema" },
];

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is answered.
    Answer,
    /// The tokens of its prompt are counted.
    Count,
}

/// A decoded request.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedMessages {
    /// For the middle.
    pub input: RequestInput,
    /// The path in the body of each message of the input.
    pub messages: Vec<String>,
    /// Whether the answer comes as events.
    pub stream: bool,
    /// What the answer's writer needs to know.
    pub asked: Asked,
    /// How many calls of a tool the answer may have.
    pub calls: AllowedCalls,
}

/// What the writer of an answer needs to know of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Most tokens that the client allows.
    pub max_tokens: u32,
    /// Whether the text of thoughts is left out.
    pub hide_thinking: bool,
}

/// The request in a body of `/v1/messages` or `/v1/messages/count_tokens`.
///
/// # Errors
/// The first field that is not served, by its path in the body.
pub fn decode(body: MessagesRequest, purpose: Purpose) -> Result<DecodedMessages, InferenceError> {
    let MessagesRequest {
        model,
        max_tokens,
        messages,
        system,
        stop_sequences,
        stream,
        temperature,
        top_k,
        top_p,
        tools,
        tool_choice,
        thinking,
        output_config,
        context_management,
        paceline,
        rest,
    } = body;
    check("", &rest, accepted::REQUEST)?;
    check_elements("messages", messages.len(), limits::MAX_TURNS)?;
    check_elements("tools", tools.as_ref().map_or(0, Vec::len), limits::MAX_TOOLS)?;
    if let Some(management) = &context_management {
        check_edits(management)?;
    }
    let max_tokens = match (max_tokens, purpose) {
        (None, Purpose::Answer) => {
            return Err(InferenceError::invalid("max_tokens", "a number of tokens", "none"));
        }
        (max_tokens, _) => max_tokens.map(MaxTokens::get),
    };
    let mut conversation = Turns::default();
    if let Some(system) = system_message(system)? {
        conversation.push("system".to_owned(), system);
    }
    if purpose == Purpose::Answer && messages.last().is_some_and(|last| last.role == "assistant") {
        let field = format!("messages[{}]", messages.len() - 1);
        let found = "an assistant's message; the service does not continue a begun answer";
        return Err(InferenceError::invalid(
            &field,
            "a message for the assistant to answer",
            found,
        ));
    }
    conversation.add(messages)?;
    let Turns { messages: conversation, paths, .. } = conversation;
    let one_call = tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let calls = AllowedCalls::one_if(one_call == Some(true));
    let choice = tool_rule(tool_choice)?;
    let tools = offered(tools.unwrap_or_default())?;
    let Thoughts { mut arguments, effort, hide, form } = thoughts(thinking, output_config)?;
    let Extension { route, template_arguments } =
        paceline.unwrap_or(Extension { route: None, template_arguments: None });
    // What the client sets by name counts more than what follows from other fields.
    arguments.extend(template_arguments.unwrap_or_default().0);
    let conversation = ConversationInput {
        messages: conversation,
        tools: if choice.is_some() { tools } else { Vec::new() },
        calls: choice.unwrap_or_default(),
        template_arguments: match arguments.is_empty() {
            true => String::new(),
            false => Value::from(arguments).to_string(),
        },
        effort,
    };
    let params = GenerationParams {
        model,
        sampling: SamplingParams {
            temperature,
            top_k: top_k.map(Count::get),
            top_p,
            ..Default::default()
        },
        max_tokens,
        // The protocol's max_tokens is an upper bound: agents send one number for all prompts.
        lower_max_tokens: true,
        stop: stop_sequences.unwrap_or_default(),
        route: route.map(|word| route_wish(&word)).transpose()?,
        // message_start has the cached tokens.
        report_usage: true,
        form,
        ..Default::default()
    };
    Ok(DecodedMessages {
        input: RequestInput { prompt: PromptInput::Conversation(conversation), params },
        messages: paths,
        stream: stream.unwrap_or(false),
        asked: Asked { max_tokens: max_tokens.unwrap_or(0), hide_thinking: hide },
        calls,
    })
}

/// The system prompt as the first message.
fn system_message(
    system: Option<TextOr<SystemBlock>>,
) -> Result<Option<MessageInput>, InferenceError> {
    let mut content = Vec::new();
    match system {
        None => {}
        Some(TextOr::Text(text)) if text.is_empty() => {}
        Some(TextOr::Text(text)) => content.push(ContentPartInput::Text(text)),
        Some(TextOr::List(blocks)) => {
            check_elements("system", blocks.len(), limits::MAX_PARTS)?;
            for (at, SystemBlock::Text(block)) in blocks.into_iter().enumerate() {
                let text = text(&format!("system[{at}]"), block)?;
                if !is_billing(&text) {
                    content.push(ContentPartInput::Text(text));
                }
            }
        }
    }
    let message = MessageInput { role: "system".into(), content, ..Default::default() };
    Ok((!message.content.is_empty()).then_some(message))
}

/// The text of a block.
pub(super) fn text(path: &str, block: TextBlock) -> Result<String, InferenceError> {
    let TextBlock { text, rest } = block;
    check(&format!("{path}."), &rest, accepted::TEXT)?;
    Ok(text)
}

/// The image of a block.
pub(super) fn image(path: &str, block: ImageBlock) -> Result<ContentPartInput, InferenceError> {
    let ImageBlock { source, rest } = block;
    check(&format!("{path}."), &rest, accepted::IMAGE)?;
    match source {
        ImageSource::Url { url } => Ok(ContentPartInput::ImageUrl(url)),
        // The file's own beginning says what it is.
        ImageSource::Base64 { media_type: _, data } => {
            let file =
                base64::engine::general_purpose::STANDARD.decode(&data).map_err(|error| {
                    let field = format!("{path}.source.data");
                    InferenceError::invalid(&field, "a file in base64", format!("{error}"))
                })?;
            Ok(ContentPartInput::Image(file.into()))
        }
    }
}

fn offered(tools: Vec<Tool>) -> Result<Vec<ToolInput>, InferenceError> {
    let tool = |(at, tool): (usize, Tool)| {
        let Tool { name, description, input_schema, strict, kind, rest } = tool;
        let path = format!("tools[{at}]");
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let expected = "custom, because this service runs no tools itself";
            return Err(InferenceError::invalid(&format!("{path}.type"), expected, quoted(&kind)));
        }
        check(&format!("{path}."), &rest, accepted::TOOL)?;
        let Some(schema) = input_schema else {
            let field = format!("{path}.input_schema");
            return Err(InferenceError::invalid(&field, "a JSON schema", "none"));
        };
        Ok(ToolInput {
            name,
            description: description.unwrap_or_default(),
            parameters: schema.text(),
            strict: strict.unwrap_or(false),
        })
    };
    tools.into_iter().enumerate().map(tool).collect()
}

/// How the model uses the tools; `None` if they are left out of the prompt.
fn tool_rule(choice: Option<ToolChoice>) -> Result<Option<CallRule>, InferenceError> {
    let Some(ToolChoice { kind, name, disable_parallel_tool_use: _, rest }) = choice else {
        return Ok(Some(CallRule::Auto));
    };
    check("tool_choice.", &rest, accepted::TOOL_CHOICE)?;
    match (kind.as_str(), name) {
        ("auto", None) => Ok(Some(CallRule::Auto)),
        ("none", None) => Ok(None),
        ("any", None) => Ok(Some(CallRule::Required)),
        ("tool", Some(name)) => Ok(Some(CallRule::Named(name))),
        ("tool", None) => {
            Err(InferenceError::invalid("tool_choice.name", "the name of a tool", "none"))
        }
        ("auto" | "none" | "any", Some(name)) => {
            let expected = format!("nothing with the type {kind}");
            Err(InferenceError::invalid("tool_choice.name", expected, quoted(&name)))
        }
        (other, _) => {
            let expected = "auto, none, any or tool";
            Err(InferenceError::invalid("tool_choice.type", expected, quoted(other)))
        }
    }
}

/// How a request asks for thoughts and for the form of the answer.
struct Thoughts {
    /// Variables of the template.
    arguments: Map<String, Value>,
    /// How much the model is to think.
    effort: Option<Effort>,
    /// Whether the client gets no text of them.
    hide: bool,
    /// What the answer's text is held to.
    form: Option<TextForm>,
}

/// The variable by which published templates turn thoughts on and off, and how long they are to be.
fn thoughts(
    thinking: Option<Thinking>,
    output: Option<OutputConfig>,
) -> Result<Thoughts, InferenceError> {
    let mut thoughts = Thoughts { arguments: Map::new(), effort: None, hide: false, form: None };
    if let Some(Thinking { kind, display, rest }) = thinking {
        let thinks = match kind.as_str() {
            "enabled" | "adaptive" | "between_tools" => true,
            "disabled" => false,
            _ => {
                let expected = "enabled, adaptive or disabled";
                return Err(InferenceError::invalid("thinking.type", expected, quoted(&kind)));
            }
        };
        check("thinking.", &rest, accepted::THINKING_CONFIG)?;
        thoughts.arguments.insert("enable_thinking".into(), thinks.into());
        thoughts.hide = match display.as_deref() {
            None | Some("summarized") => false,
            Some("omitted") => true,
            Some(other) => {
                let expected = "summarized or omitted";
                return Err(InferenceError::invalid("thinking.display", expected, quoted(other)));
            }
        };
    }
    if let Some(OutputConfig { effort, format, rest }) = output {
        check("output_config.", &rest, accepted::OUTPUT_CONFIG)?;
        if let Some(OutputFormat { kind, schema }) = format {
            if kind != "json_schema" {
                let (field, expected) = ("output_config.format.type", "json_schema");
                return Err(InferenceError::invalid(field, expected, quoted(&kind)));
            }
            thoughts.form = Some(TextForm::JsonSchema(schema.text()));
        }
        if let Some(effort) = effort {
            let known = Effort::from_word(&effort).filter(|known| *known >= Effort::Low);
            thoughts.effort = Some(known.ok_or_else(|| {
                let expected = "low, medium, high, xhigh or max";
                InferenceError::invalid("output_config.effort", expected, quoted(&effort))
            })?);
        }
    }
    Ok(thoughts)
}

/// The lane that a client asks for.
fn route_wish(word: &str) -> Result<RouteWish, InferenceError> {
    RouteWish::ALL.iter().copied().find(|wish| wish.word() == word).ok_or_else(|| {
        let words: Vec<_> = RouteWish::ALL.iter().map(|wish| wish.word()).collect();
        InferenceError::invalid("paceline.route", format!("one of {words:?}"), quoted(word))
    })
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
