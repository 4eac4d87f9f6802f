//! Tool calls in each family's format.

use serde_json::{Value, json};

use super::lark::{escaped, quoted, several_calls, symbol};
use super::schema::{not_strict, schema_part};
use super::tagged::Syntax;
use super::{CallableTool, ModelAnswers, Parts, ThoughtRule, gemma, tagged};
use crate::error::FieldError;
use crate::prompt::conversation::ToolCallRule;
use crate::prompt::format::{AnswerTags, Tag, ToolCallFormat};

/// Rules of tool calls.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    /// The rule `calls`, one or more tool calls, and those that it needs.
    pub(super) rules: String,
    /// The rule `free`: text with any number of tool calls.
    pub(super) beside_text: String,
}

/// The rules of tool calls of these tools; `None` for a family whose answers have no calls beside
/// text that a client asked for.
///
/// # Errors
/// Tool calls are forced, or held to a schema, and the family's format does not allow that.
pub(super) fn write(
    model: ModelAnswers<'_>,
    rule: &ToolCallRule,
    tools: &[CallableTool],
    parts: &mut Parts,
) -> Result<Option<ToolCalls>, FieldError> {
    let named = |tool: &&CallableTool| match rule {
        ToolCallRule::Named(name) => tool.name == *name,
        ToolCallRule::Auto | ToolCallRule::Required => true,
    };
    let called: Vec<&CallableTool> = tools.iter().filter(named).collect();
    let tags = model.tags;
    let calls = match tags.format().calls {
        ToolCallFormat::None => return unknown(rule, &called).map(|()| None),
        ToolCallFormat::Hermes => between_tags(model, &json_calls(&called, "arguments", parts)?),
        ToolCallFormat::QwenXml => {
            between_tags(model, &tagged::calls(&Syntax::qwen(), &called, parts)?)
        }
        ToolCallFormat::Llama3 => whole(model, &json_calls(&called, "parameters", parts)?),
        ToolCallFormat::Gemma4 => {
            ToolCalls { rules: gemma::calls(model, &called)?, beside_text: beside_text(model) }
        }
        ToolCallFormat::Harmony => harmony(tags, &called, parts)?,
        ToolCallFormat::MistralList => {
            opened(model, "calls: call GAP?\n", &mistral_list(model, &called, parts)?)
        }
        ToolCallFormat::MistralArgs => {
            let calls = if model.one_call { "calls: call\n" } else { "calls: call+ GAP?\n" };
            opened(model, calls, &mistral_args(tags, &called, parts)?)
        }
        ToolCallFormat::MiniCpm => closed(model, &Syntax::minicpm(tags), &called, parts)?,
        ToolCallFormat::Glm => closed(model, &Syntax::glm(tags), &called, parts)?,
    };
    Ok(Some(calls))
}

/// A model whose format of tool calls is not known makes none that the service reads.
fn unknown(rule: &ToolCallRule, tools: &[&CallableTool]) -> Result<(), FieldError> {
    const WHY: &str = "because the format of this model's tool calls is not known";
    if *rule != ToolCallRule::Auto {
        let expected = format!("auto or none, {WHY}");
        return Err(FieldError::new("tool_choice", expected, "a forced tool call"));
    }
    match tools.iter().find(|tool| tool.strict) {
        None => Ok(()),
        Some(tool) => Err(not_strict(tool, WHY)),
    }
}

/// The arguments of a tool as JSON: a part of the frame.
fn arguments(tool: &CallableTool, parts: &mut Parts) -> Result<String, FieldError> {
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let schema = match &tool.parameters {
        none if none.is_empty() => nothing,
        parameters => Value::Object(parameters.clone()),
    };
    schema_part(tool, &schema, parts)
}

/// The rule `one`: `{"name": …, "arguments": {…}}`, with the family's word for arguments.
fn json_calls(
    tools: &[&CallableTool],
    word: &str,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let call = |tool: &&CallableTool| {
        let begin = format!("{{\"name\": \"{}\", \"{word}\": ", tool.name);
        Ok(format!("{} {} \"}}\"", quoted(&begin), arguments(tool, parts)?))
    };
    let all = tools.iter().map(call).collect::<Result<Vec<_>, FieldError>>()?;
    Ok(format!("one: {}\n", all.join(" | ")))
}

/// Tool calls between the family's tags, with text before, between and after them.
fn between_tags(model: ModelAnswers<'_>, one: &str) -> ToolCalls {
    let close = symbol(model.tags, Tag::ToolCallClose);
    let inside = format!("\"\\n\" one \"\\n\" {close}\n{one}");
    opened(model, several_calls(model.one_call), &inside)
}

/// Tool calls that an opening tag begins, with text before, between and after them. `calls` is the
/// rule of this name, `inside` what follows the tag, and perhaps more rules.
fn opened(model: ModelAnswers<'_>, calls: &str, inside: &str) -> ToolCalls {
    let open = symbol(model.tags, Tag::ToolCallOpen);
    let rules = format!("{calls}call: {open} inside\ninside: {inside}");
    ToolCalls { rules, beside_text: beside_text(model) }
}

/// Tool calls as tags between an opening and a closing tag.
fn closed(
    model: ModelAnswers<'_>,
    syntax: &Syntax,
    tools: &[&CallableTool],
    parts: &mut Parts,
) -> Result<ToolCalls, FieldError> {
    let close = symbol(model.tags, Tag::ToolCallClose);
    let one = tagged::calls(syntax, tools, parts)?;
    Ok(opened(model, several_calls(model.one_call), &format!("one {close}\n{one}")))
}

/// A list of JSON objects, each with an id or without.
fn mistral_list(
    model: ModelAnswers<'_>,
    tools: &[&CallableTool],
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let call = |tool: &&CallableTool| {
        let begin = format!("{{\"name\": \"{}\", \"arguments\": ", tool.name);
        Ok(format!("{} {}", quoted(&begin), arguments(tool, parts)?))
    };
    let all = tools.iter().map(call).collect::<Result<Vec<_>, FieldError>>()?.join(" | ");
    let id = format!("({} ID \"\\\"\")?", quoted(", \"id\": \""));
    let more = if model.one_call { "" } else { " (\", \" one)*" };
    Ok(format!("\" \"? \"[\" one{more} \"]\"\none: ({all}) {id} \"}}\"\n{MISTRAL_ID}"))
}

/// The name and the arguments of a tool, with an id between them or without.
fn mistral_args(
    tags: &AnswerTags,
    tools: &[&CallableTool],
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let (id, args) = (symbol(tags, Tag::CallId), symbol(tags, Tag::Arguments));
    let call = |tool: &&CallableTool| {
        Ok(format!("{} ({id} ID)? {args} {}", quoted(&tool.name), arguments(tool, parts)?))
    };
    let all = tools.iter().map(call).collect::<Result<Vec<_>, FieldError>>()?.join(" | ");
    Ok(format!("{all}\n{MISTRAL_ID}"))
}

/// The id that a model of Mistral writes into a call.
const MISTRAL_ID: &str = "ID: /[A-Za-z0-9]{9}/\n";

/// Text with any number of tool calls, which are an opening tag and the rule `inside`.
fn beside_text(model: ModelAnswers<'_>) -> String {
    let tags = model.tags;
    // A format whose tool calls may begin without the opening tag.
    let other = tags.characters(Tag::Function);
    let mut excluded: Vec<&str> = if other.is_empty() { vec![] } else { vec![other] };
    excluded.extend(excluded_thought(model));
    match tags.token(Tag::ToolCallOpen) {
        Some(_) => format!("free: SAID (call SAID)*\n{}", said(&excluded)),
        None => {
            let characters = tags.characters(Tag::ToolCallOpen);
            let text = if excluded.is_empty() { "(?s:.*)" } else { "[^<]*" };
            excluded.push(characters);
            let begun = format!("begun[lazy]: /{text}{}/\n", escaped(characters));
            format!("free: (begun inside)* SAID\n{begun}{}", said(&excluded))
        }
    }
}

/// The characters that would begin a thought, if there may be none and no token stands for them.
fn excluded_thought(model: ModelAnswers<'_>) -> Option<&'static str> {
    let ModelAnswers { tags, thought, .. } = model;
    let is_spelled = tags.format().thoughts && tags.token(Tag::ThoughtOpen).is_none();
    (is_spelled && thought == ThoughtRule::None).then(|| tags.characters(Tag::ThoughtOpen))
}

/// Text without these characters.
fn said(excluded: &[&str]) -> String {
    let without =
        excluded.iter().map(|characters| format!(" & ~/(?s:.*){}(?s:.*)/", escaped(characters)));
    format!("SAID: /(?s:.*)/{}\n", without.collect::<String>())
}

/// One tool call that is the whole answer.
fn whole(model: ModelAnswers<'_>, one: &str) -> ToolCalls {
    let tags = model.tags;
    let rules = format!("calls: one\n{one}");
    let tag = tags.characters(Tag::ToolCallOpen);
    let mut beside_text = "free: one | SAID?\nSAID: /[^{\\s](?s:.*)/".to_owned();
    let spelled = (tags.token(Tag::ToolCallOpen).is_none() && !tag.is_empty()).then_some(tag);
    for characters in spelled.into_iter().chain(excluded_thought(model)) {
        beside_text.push_str(&format!(" & ~/(?s:.*){}(?s:.*)/", escaped(characters)));
    }
    beside_text.push('\n');
    ToolCalls { rules, beside_text }
}

/// A message whose recipient is a function.
fn harmony(
    tags: &AnswerTags,
    tools: &[&CallableTool],
    parts: &mut Parts,
) -> Result<ToolCalls, FieldError> {
    let tag = |tag: Tag| symbol(tags, tag);
    let call = |tool: &&CallableTool| {
        let recipient = quoted(&format!("commentary to=functions.{} ", tool.name));
        let header = format!("{} {recipient} {} \"json\"", tag(Tag::Channel), tag(Tag::Constrain));
        Ok(format!("{header} {} {}", tag(Tag::Message), arguments(tool, parts)?))
    };
    let all = tools.iter().map(call).collect::<Result<Vec<_>, FieldError>>()?;
    Ok(ToolCalls { rules: format!("calls: {}\n", all.join(" | ")), beside_text: String::new() })
}
