//! Chat templates against the reference implementation: what it renders is rendered, character for
//! character, and what it refuses is refused with its words. tests/templates/make.py says how the
//! fixtures were made.

use std::path::PathBuf;

use paceline_text::prompt::conversation::{
    ContentPart, Conversation, Message, Role, Tool, ToolCall,
};
use paceline_text::prompt::{RenderError, Template};
use serde_json::{Map, Value};

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Text, or a list with images in it.
fn parts(content: &Value) -> Vec<ContentPart> {
    let part = |(number, part): (usize, &Value)| match part["type"].as_str() {
        Some("image") => ContentPart::Image(number),
        _ => ContentPart::Text(text(&part["text"])),
    };
    match content.as_array() {
        Some(list) => list.iter().enumerate().map(part).collect(),
        None => vec![ContentPart::Text(text(content))],
    }
}

/// A conversation as the fixtures have it: as templates get it.
fn conversation(case: &Value) -> Conversation {
    let call = |call: &Value| ToolCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: object(&call["function"]["arguments"]).into(),
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let message = |json: &Value| Message {
        role: Role::from_word(&text(&json["role"])).expect("a role"),
        parts: parts(&json["content"]),
        calls: list(&json["tool_calls"]).iter().map(call).collect(),
        call_id: text(&json["tool_call_id"]),
        name: text(&json["name"]),
        reasoning: text(&json["reasoning_content"]),
    };
    let tool = |tool: &Value| Tool {
        name: text(&tool["function"]["name"]),
        description: text(&tool["function"]["description"]),
        parameters: object(&tool["function"]["parameters"]),
        strict: false,
    };
    Conversation {
        messages: list(&case["messages"]).iter().map(message).collect(),
        tools: list(&case["tools"]).iter().map(tool).collect(),
        arguments: object(&case["arguments"]),
        ..Default::default()
    }
}

/// Dates are those of now.
#[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
fn dated(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<strftime ") {
        let (format, behind) = after.split_once('>').expect("closed");
        out += before;
        out += &jiff::fmt::strtime::format(format, &jiff::Zoned::now()).expect("a format");
        rest = behind;
    }
    out + rest
}

#[test]
fn what_the_reference_renders_is_rendered() {
    let fixtures = std::fs::read_to_string(dir().join("fixtures.json")).expect("in the repository");
    let fixtures: Value = serde_json::from_str(&fixtures).expect("JSON");
    let cases = fixtures["cases"].as_array().expect("cases");
    assert!(cases.len() >= 173);
    let mut wrong = Vec::new();
    for case in cases {
        let source = std::fs::read_to_string(dir().join(text(&case["template"])))
            .expect("in the repository");
        let template = Template::compile(&source, Some("<bos>".into()), Some("<eos>".into()), &[])
            .expect("Jinja");
        if case["template"] != "words.jinja" {
            assert!(template.knows_tools(), "{}", case["template"]);
        }
        let found = || template.render(&conversation(case)).map(|rendered| rendered.text);
        let fits = |found: &Result<String, RenderError>| match (
            found,
            case["rendered"].as_str(),
            case["error"].as_str(),
        ) {
            (Ok(found), Some(expected), _) => *found == dated(expected),
            (Err(RenderError::Conversation(found)), _, Some(expected)) => found.contains(expected),
            _ => false,
        };
        let first = found();
        // Once more, as midnight may lie between the two dates.
        if !fits(&first) && !fits(&found()) {
            let expected = case["rendered"].as_str().or(case["error"].as_str()).unwrap_or_default();
            let shown = first.unwrap_or_else(|refused| format!("{refused:?}"));
            wrong.push(format!(
                "{} {}:\nexpected\n{expected}\nfound\n{shown}\n",
                case["template"], case["name"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
