//! A request of the Messages protocol as the input of [`crate::inference`].

use paceline_proto::limits;
use paceline_text::prompt::conversation::Effort;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::SamplingWish;
use serde_json::{Map, Value};

use super::accepted::{check_edits, is_billing};
use super::blocks::text;
use super::conversation::{OpenMessage, Turns};
use super::error::ERROR_CODE;
use super::tools::offered;
use super::types::{
    ContextManagement, MessagesRequest, OutputConfig, OutputFormat, SystemBlock, Thinking,
    ToolChoice,
};
use crate::accepted::{Rest, check, quoted_value};
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::input::{
    ContentPartInput, ConversationInput, PromptInput, RequestInput, ToolCallRule,
};
use crate::inference::params::GenerationParams;
use crate::number::{Count, MaxTokens, TopK};
use crate::paths::{FieldName, FieldPaths};
use crate::protocol::{AllowedToolCalls, Decoded, Extension};
use crate::values::{self, TextOr};

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

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is answered.
    Answer,
    /// The tokens of its prompt are counted.
    Count,
}

/// Parts of the request that the writer of an answer needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Most tokens that the client allows.
    pub max_tokens: u32,
    /// Whether the text of thoughts is left out.
    pub hide_thinking: bool,
}

/// The request in a body of `/v1/messages` or `/v1/messages/count_tokens`.
/// Longer than 60 lines: all fields are taken apart in one place.
///
/// # Errors
/// The first field that is not served, by its path in the body.
pub fn decode(body: MessagesRequest, purpose: Purpose) -> Result<Decoded<Asked>> {
    let MessagesRequest {
        model: _, // checked by the front
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
    check_thread(&rest)?;
    check("", &rest, MessagesRequest::ACCEPTED)?;
    check_elements("messages", messages.len(), limits::MAX_TURNS)?;
    check_elements("tools", tools.as_ref().map_or(0, Vec::len), limits::MAX_TOOLS)?;
    if let Some(management) = &context_management {
        check("context_management.", &management.rest, ContextManagement::ACCEPTED)?;
        check_edits(management.edits.as_deref().unwrap_or_default())?;
    }
    let max_tokens = match (max_tokens, purpose) {
        (None, Purpose::Answer) => {
            return refuse("max_tokens", "a number of tokens", "none");
        }
        (max_tokens, _) => max_tokens.map(MaxTokens::get),
    };
    let mut conversation = Turns::default();
    if let Some(system) = system_message(system)? {
        conversation.push(system);
    }
    if purpose == Purpose::Answer && messages.last().is_some_and(|last| last.role == "assistant") {
        let field = format!("messages[{}]", messages.len() - 1);
        let found = "an assistant's message; the service does not continue a begun answer";
        return refuse(&field, "a message for the assistant to answer", found);
    }
    conversation.add(messages)?;
    let Turns { messages: conversation, paths, changes, outputs, .. } = conversation;
    let only_one = tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let calls = AllowedToolCalls::one_if(only_one == Some(true));
    let choice = tool_rule(tool_choice)?;
    let tools = offered(tools.unwrap_or_default(), changes)?;
    let thoughts = thoughts(thinking, output_config)?;
    let Thoughts { mut arguments, mut effort, budget, hide, form } = thoughts;
    for (path, config) in outputs {
        effort = effort_of_turn(&path, config)?.or(effort);
    }
    let Extension { route, template_arguments, rest } = paceline.unwrap_or_default();
    check("paceline.", &rest, Extension::ACCEPTED)?;
    // What the client sets by name counts more than what follows from other fields.
    arguments.extend(template_arguments.unwrap_or_default().0);
    let tools = if choice.is_some() { tools } else { Vec::new() };
    let paths = FieldPaths { messages: paths, ..FieldPaths::new(FIELDS).of_tools(&tools) };
    let conversation = ConversationInput {
        messages: conversation,
        tools,
        calls: choice.unwrap_or_default(),
        template_arguments: arguments.into(),
        effort,
    };
    let params = GenerationParams {
        sampling: SamplingWish {
            temperature,
            top_k: top_k.map(TopK::or_all),
            top_p,
            ..Default::default()
        },
        max_tokens,
        // The protocol's max_tokens is an upper bound: agents send one number for all prompts.
        lower_max_tokens: true,
        stop: stop_sequences.unwrap_or_default(),
        route: route.map(|word| values::route(&word)).transpose()?,
        // message_start has the cached tokens.
        report_usage: true,
        shape: AnswerShape { thinking_budget: budget, ..AnswerShape::of_text(form) },
        ..Default::default()
    };
    Ok(Decoded {
        input: RequestInput { prompt: PromptInput::Conversation(conversation), params },
        more: Vec::new(),
        writer: Asked { max_tokens: max_tokens.unwrap_or(0), hide_thinking: hide },
        stream: stream.unwrap_or(false),
        calls,
        paths,
    })
}

/// Refuses a thread with the code on which Anthropic's own package sends the whole conversation.
fn check_thread(rest: &Rest) -> Result<()> {
    match rest.0.get("thread") {
        None | Some(Value::Null) => Ok(()),
        Some(thread) => {
            let expected = "no thread, because this service keeps no conversation";
            let error = InferenceError::invalid("thread", expected, quoted_value(thread));
            Err(error.fact(ERROR_CODE, "thread_unsupported_request"))
        }
    }
}

/// The system prompt as the first message.
fn system_message(system: Option<TextOr<SystemBlock>>) -> Result<Option<OpenMessage>> {
    let mut message = OpenMessage::new("system", "system");
    match system {
        None => {}
        Some(TextOr::Text(text)) if text.is_empty() => {}
        Some(TextOr::Text(text)) => message.add("system", ContentPartInput::Text(text)),
        Some(TextOr::List(blocks)) => {
            check_elements("system", blocks.len(), limits::MAX_PARTS)?;
            for (at, SystemBlock::Text(block)) in blocks.into_iter().enumerate() {
                let path = format!("system[{at}]");
                let text = text(&path, block)?;
                if !is_billing(&text) {
                    message.add(path, ContentPartInput::Text(text));
                }
            }
        }
    }
    Ok((!message.is_empty()).then_some(message))
}

/// How the model uses the tools; `None` if they are left out of the prompt.
fn tool_rule(choice: Option<ToolChoice>) -> Result<Option<ToolCallRule>> {
    let Some(ToolChoice { kind, name, disable_parallel_tool_use: _, rest }) = choice else {
        return Ok(Some(ToolCallRule::Auto));
    };
    check("tool_choice.", &rest, ToolChoice::ACCEPTED)?;
    match (kind.as_str(), name) {
        ("auto", None) => Ok(Some(ToolCallRule::Auto)),
        ("none", None) => Ok(None),
        ("any", None) => Ok(Some(ToolCallRule::Required)),
        ("tool", Some(name)) => Ok(Some(ToolCallRule::Named(name))),
        ("tool", None) => refuse("tool_choice.name", "the name of a tool", "none"),
        ("auto" | "none" | "any", Some(name)) => {
            refuse("tool_choice.name", format!("nothing with the type {kind}"), quoted(&name))
        }
        (other, _) => refuse("tool_choice.type", "auto, none, any or tool", quoted(other)),
    }
}

/// How a request asks for thoughts and for the form of the answer.
#[derive(Default)]
struct Thoughts {
    /// Variables of the template.
    arguments: Map<String, Value>,
    /// How much the model is to think.
    effort: Option<Effort>,
    /// Most tokens of them.
    budget: Option<u32>,
    /// Whether the client gets no text of them.
    hide: bool,
    /// Form of the answer's text that the request demands.
    form: Option<TextForm>,
}

/// The variable by which published templates turn thoughts on and off, and how long they are to be.
fn thoughts(thinking: Option<Thinking>, output: Option<OutputConfig>) -> Result<Thoughts> {
    let mut thoughts = Thoughts::default();
    if let Some(Thinking { kind, display, budget_tokens, rest }) = thinking {
        let thinks = match kind.as_str() {
            "enabled" | "adaptive" | "between_tools" => true,
            "disabled" => false,
            _ => {
                return refuse("thinking.type", "enabled, adaptive or disabled", quoted(&kind));
            }
        };
        check("thinking.", &rest, Thinking::ACCEPTED)?;
        thoughts.arguments.insert("enable_thinking".into(), thinks.into());
        thoughts.budget = budget_tokens.map(Count::get);
        thoughts.hide = match display.as_deref() {
            None | Some("summarized") => false,
            Some("omitted") => true,
            Some(other) => {
                return refuse("thinking.display", "summarized or omitted", quoted(other));
            }
        };
    }
    if let Some(OutputConfig { effort, format, rest }) = output {
        check("output_config.", &rest, OutputConfig::ACCEPTED)?;
        if let Some(OutputFormat { kind, schema, rest }) = format {
            check("output_config.format.", &rest, OutputFormat::ACCEPTED)?;
            if kind != "json_schema" {
                let (field, expected) = ("output_config.format.type", "json_schema");
                return refuse(field, expected, quoted(&kind));
            }
            thoughts.form = Some(TextForm::JsonSchema(schema.text()));
        }
        thoughts.effort = effort.map(|word| amount("output_config", &word)).transpose()?;
    }
    Ok(thoughts)
}

/// How much the model thinks, in the field `effort` of the object at `path`.
fn amount(path: &str, word: &str) -> Result<Effort> {
    let known = Effort::from_word(word).filter(|known| *known >= Effort::Low);
    known.ok_or_else(|| {
        let expected = "low, medium, high, xhigh or max";
        InferenceError::invalid(&format!("{path}.effort"), expected, quoted(word))
    })
}

/// How much the model thinks in one turn, by a message of the system at `path`.
fn effort_of_turn(path: &str, config: OutputConfig) -> Result<Option<Effort>> {
    let OutputConfig { effort, format, rest } = config;
    check(&format!("{path}."), &rest, OutputConfig::ACCEPTED)?;
    if format.is_some() {
        let expected = "nothing, because the form of the answer is the request's";
        return refuse(&format!("{path}.format"), expected, "a format");
    }
    effort.map(|word| amount(path, &word)).transpose()
}

#[cfg(test)]
mod tests;
