//! The frame of an answer: thoughts, then what is asked for.

use paceline_vocabulary::generation::TextForm;
use serde_json::json;

use super::lark::{escaped, symbol};
use super::tool_calls::{self, ToolCalls};
use super::{AnswerForm, ModelAnswers, Parts, ThoughtRule};
use crate::error::FieldError;
use crate::prompt::conversation::ToolCallRule;
use crate::prompt::format::{Tag, ToolCallFormat};

/// Any text. Tags that are tokens are no part of it.
const TEXT: &str = "TEXT: /(?s:.*)/\n";
/// Line breaks that belong to the format.
const GAP: &str = "GAP: /\\n\\n?/\n";

/// The frame of an answer. Adds its parts to `parts`.
///
/// # Errors
/// The family's format cannot be held to what is asked.
pub(super) fn write(
    form: AnswerForm,
    model: Option<ModelAnswers<'_>>,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let AnswerForm { text, calls, tools } = form;
    let text = text.map(|text| parts.add(field(&text), false, content(text)));
    let Some(model @ ModelAnswers { tags, .. }) = model else {
        return Ok(format!("start: {}\n", text.unwrap_or_default()));
    };
    // A tool call is free beside a text that is held to a form.
    let offers = !tools.is_empty() && (text.is_none() || calls == ToolCallRule::Auto);
    let is_forced = calls != ToolCallRule::Auto;
    let calls = match offers || is_forced {
        false => None,
        true => tool_calls::write(model, &calls, &tools, parts)?,
    };
    if tags.format().calls == ToolCallFormat::Harmony {
        let rules = HarmonyRules { text, calls, is_forced };
        return Ok(harmony(model, rules));
    }
    let mut rules = String::new();
    let body = match (text.filter(|_| !is_forced), calls) {
        (Some(text), None) => text,
        (Some(text), Some(calls)) => {
            rules.push_str(&calls.rules);
            format!("({text} | calls)")
        }
        (None, Some(calls)) if is_forced => {
            rules.push_str(&calls.rules);
            "calls".to_owned()
        }
        (None, Some(calls)) => {
            rules.push_str(&calls.rules);
            rules.push_str(&calls.beside_text);
            "free".to_owned()
        }
        (None, None) => "TEXT".to_owned(),
    };
    let thought = thought_rules(model, &mut rules);
    Ok(format!("start: {thought}{body}\n{rules}{TEXT}{GAP}"))
}

/// The field of the request that a form of text came from.
fn field(text: &TextForm) -> &'static str {
    match text {
        TextForm::JsonSchema(_) => "grammar.json_schema",
        TextForm::JsonObject => "grammar.json_object",
        TextForm::Regex(_) => "grammar.regex",
        TextForm::Lark(_) => "grammar.lark",
    }
}

/// The form as a part has it: an object is a schema.
fn content(text: TextForm) -> TextForm {
    match text {
        TextForm::JsonObject => TextForm::JsonSchema(json!({"type": "object"}).to_string()),
        other => other,
    }
}

/// The thought before an answer, as the beginning of a rule. A prompt that ends in a thought has it
/// in any case.
fn thought_rules(model: ModelAnswers<'_>, rules: &mut String) -> String {
    let ModelAnswers { tags, thought, .. } = model;
    if !tags.format().thoughts || thought == ThoughtRule::None {
        return String::new();
    }
    let is_open = thought == ThoughtRule::Open;
    let rest = match tags.token(Tag::ThoughtClose) {
        Some(_) => format!("TEXT {}", symbol(tags, Tag::ThoughtClose)),
        None => {
            let close = escaped(tags.characters(Tag::ThoughtClose));
            rules.push_str(&format!("thought_text[lazy]: /(?s:.*){close}/\n"));
            "thought_text".to_owned()
        }
    };
    let open = if is_open { String::new() } else { format!("{} ", symbol(tags, Tag::ThoughtOpen)) };
    rules.push_str(&format!("thought: {open}{rest} GAP?\n"));
    if is_open { "thought ".to_owned() } else { "thought? ".to_owned() }
}

/// Constraints of the messages in channels.
struct HarmonyRules {
    /// The form of the text, if it has one.
    text: Option<String>,
    calls: Option<ToolCalls>,
    /// Whether the answer must be a tool call.
    is_forced: bool,
}

/// Messages in channels: any number of thoughts, then the answer or a tool call.
fn harmony(model: ModelAnswers<'_>, held: HarmonyRules) -> String {
    let ModelAnswers { tags, thought, .. } = model;
    let HarmonyRules { text, calls, is_forced } = held;
    let thinks = thought != ThoughtRule::None;
    let tag = |tag: Tag| symbol(tags, tag);
    let (channel, message) = (tag(Tag::Channel), tag(Tag::Message));
    let next = format!("{} {} \"assistant\"", tag(Tag::End), tag(Tag::Start));
    let analysis = format!("analysis: {channel} \"analysis\" {message} TEXT {next}\n");
    let said = format!("said: {channel} \"commentary\" {message} TEXT {next}\n");
    let (mut before, mut rules, mut last) = (vec![], String::new(), vec![]);
    if thinks {
        before.push("analysis");
        rules.push_str(&analysis);
    }
    if let Some(text) = text.filter(|_| !is_forced) {
        let json = format!("(\" \"? {} \"json\")?", tag(Tag::Constrain));
        last.push(format!("{channel} \"final\" {json} {message} {text}"));
    } else if !is_forced {
        last.push(format!("{channel} \"final\" {message} TEXT"));
        // What the model says before a tool call.
        before.push("said");
        rules.push_str(&said);
    }
    if let Some(calls) = calls {
        rules.push_str(&calls.rules);
        last.push("calls".to_owned());
    }
    let before = match before.is_empty() {
        true => String::new(),
        false => format!("({})* ", before.join(" | ")),
    };
    format!("start: {before}({})\n{rules}{TEXT}{GAP}", last.join(" | "))
}
