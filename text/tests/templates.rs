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

/// How a rendering compares with the reference's.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    Same,
    /// The template leaves tools, calls or answers out, and the request is refused for it.
    LeftOut,
    /// The reference refuses the conversation, and Paceline renders it.
    RefusedThere,
    /// Paceline refuses the conversation, and the reference renders it.
    RefusedHere(String),
    Differs(String),
}

/// Whether the reference's text lacks a tool, a call or an answer of the case. The name of a tool
/// may be in a call alone, and that of a call among the tools, so other parts of them decide.
fn leaves_out(case: &Value, rendered: &str) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let shown = |value: &Value| rendered.contains(text(value).trim());
    let offered = |tool: &Value| {
        // Templates escape what comes after it.
        let described = text(&tool["function"]["description"]);
        rendered.contains(described.split('<').next().unwrap_or_default())
    };
    let messages = list(&case["messages"]);
    let mut calls = messages.iter().flat_map(|message| list(&message["tool_calls"]));
    let called = |call: &Value| {
        let arguments = object(&call["function"]["arguments"]);
        shown(&call["function"]["name"])
            && arguments.values().filter_map(Value::as_str).all(|value| alone(rendered, value))
    };
    let answers = messages.iter().filter(|message| message["role"] == "tool");
    !(list(&case["tools"]).iter().all(offered)
        && calls.all(|call| called(&call))
        && answers.into_iter().all(|m| shown(&m["content"])))
}

/// Whether a text has a word that is no part of another word.
fn alone(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let around = [text[..at].chars().next_back(), text[at + word.len()..].chars().next()];
        around.iter().flatten().all(|character| !character.is_alphanumeric())
    })
}

fn compared(template: &Template, case: &Value) -> Comparison {
    let once = || {
        let found = template.render(&conversation(case)).map(|rendered| rendered.text);
        match (found, case["rendered"].as_str(), case["error"].as_str()) {
            (Ok(found), Some(expected), _) if found == dated(expected) => Comparison::Same,
            (Ok(found), Some(_), _) => Comparison::Differs(found),
            (Err(RenderError::Conversation(found)), _, Some(expected))
                if found.contains(expected) =>
            {
                Comparison::Same
            }
            (Err(RenderError::NoTools { .. }), Some(text), _) if leaves_out(case, text) => {
                Comparison::LeftOut
            }
            (Err(refused), Some(_), _) => Comparison::RefusedHere(format!("{refused:?}")),
            (Err(_), None, _) => Comparison::Same,
            (Ok(_), None, _) => Comparison::RefusedThere,
        }
    };
    match once() {
        // Once more, as midnight may lie between the two dates.
        Comparison::Differs(_) => once(),
        other => other,
    }
}

fn compile(source: &str) -> Result<Template, String> {
    Template::compile(source, Some("<bos>".into()), Some("<eos>".into()), &[])
        .map_err(|error| error.to_string())
}

#[test]
fn what_the_reference_renders_is_rendered() {
    let fixtures = std::fs::read_to_string(dir().join("fixtures.json")).expect("in the repository");
    let fixtures: Value = serde_json::from_str(&fixtures).expect("JSON");
    let cases = fixtures["cases"].as_array().expect("cases");
    assert!(cases.len() >= 227);
    let mut wrong = Vec::new();
    for case in cases {
        let name = text(&case["template"]);
        let source = std::fs::read_to_string(dir().join(&name)).expect("in the repository");
        let template = compile(&source).expect("Jinja");
        let own = !name.starts_with("corpus/");
        if own && name != "words.jinja" {
            assert!(template.knows_tools(), "{name}");
        }
        let found = compared(&template, case);
        let fits = match found {
            Comparison::Same => true,
            // gpt-oss' template refuses a text beside a thought and calls. Agents send that.
            Comparison::LeftOut | Comparison::RefusedThere => !own,
            Comparison::RefusedHere(_) | Comparison::Differs(_) => false,
        };
        if !fits {
            let expected = case["rendered"].as_str().or(case["error"].as_str()).unwrap_or_default();
            wrong.push(format!(
                "{name} {}:\nexpected\n{expected}\nfound\n{found:?}\n",
                case["name"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn what_jinja2_computes_is_computed() {
    let cases = std::fs::read_to_string(dir().join("expressions.json")).expect("in the repository");
    let cases: Value = serde_json::from_str(&cases).expect("JSON");
    let mut wrong = Vec::new();
    for case in cases["cases"].as_array().expect("cases") {
        let source = text(&case["source"]);
        let source = format!("{{% set text = 'te<x>t' %}}{source}");
        let found = Template::compile(&source, None, None, &[]).map_err(|error| error.to_string());
        let found = found.and_then(|template| {
            let rendered = template.render(&Conversation::default());
            rendered.map(|rendered| rendered.text).map_err(|error| error.to_string())
        });
        if found.as_deref() != Ok(case["rendered"].as_str().expect("Jinja2 renders it")) {
            wrong.push(format!("{source}\n  expected {}\n  found {found:?}", case["rendered"]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Why the packages are not there, if `scripts/test-more.sh` found out. It is also written to the
/// list of skipped tests. On CI no such test may be skipped.
#[expect(clippy::disallowed_methods, reason = "the script that runs the tests sets them")]
fn skipped() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let reason = set("PUBLISHED_TEMPLATES_SKIPPED")?;
    assert!(set("CI").is_none(), "published_templates_are_rendered was skipped on CI: {reason}");
    if let Some(path) = set("SKIPPED_TESTS") {
        let line = format!("published_templates_are_rendered: {reason}\n");
        let file = std::fs::File::options().create(true).append(true).open(path);
        std::io::Write::write_all(&mut file.expect("a file"), line.as_bytes()).expect("writable");
    }
    Some(reason)
}

/// Templates with texts that differ. docs/prompts.md, "Chat templates", has the reasons.
const DIFFERENT: [&str; 13] = [
    // Content is a list, and the conversations have texts.
    "idefics3",
    "llava_next",
    "smolvlm",
    "nemotron_embed_vl",
    "vlm2vec",
    // A thought within the text of an answer is moved to its field.
    "Spark2.5",
    "Laguna-S-2.1",
    "qwen3_8",
    // A thought is read as `reasoning`.
    "tool_chat_template_gemma4",
    "template_minicpmv45",
    "Solar-Open-100B",
    // The template searches its own text.
    "nemotron_3",
    // A text is marked `safe`.
    "functionary",
];

/// Compares the renderings of the templates of packages, which `scripts/published-templates.sh`
/// takes and renders. Names of templates are paths.
#[test]
#[ignore = "more: seconds; renders the chat templates of packages"]
fn published_templates_are_rendered() {
    if let Some(reason) = skipped() {
        println!("SKIPPED: published_templates_are_rendered: {reason}");
        return;
    }
    let path = dir().join("../../../target/debug/published-templates/cases.json");
    let file = std::fs::read_to_string(path).expect("scripts/published-templates.sh made it");
    let file: Value = serde_json::from_str(&file).expect("JSON");
    let compiled: std::collections::BTreeMap<&str, Result<Template, String>> = file["templates"]
        .as_object()
        .expect("templates")
        .iter()
        .map(|(name, source)| (name.as_str(), compile(source.as_str().expect("a text"))))
        .collect();
    let (mut same, mut left_out, mut refused_there) = (0, 0, 0);
    let (mut refused, mut differs) = (Vec::new(), Vec::new());
    for case in file["cases"].as_array().expect("cases") {
        let name = case["template"].as_str().expect("a name");
        let place = format!("{name}: {}", text(&case["name"]));
        match (&compiled[name], case["rendered"].as_str()) {
            (Err(error), Some(_)) => refused.push(format!("{place}: {error}")),
            (Err(_), None) => same += 1,
            (Ok(template), _) => match compared(template, case) {
                Comparison::Same => same += 1,
                Comparison::LeftOut => left_out += 1,
                Comparison::RefusedThere => refused_there += 1,
                Comparison::RefusedHere(error) => refused.push(format!("{place}: {error}")),
                Comparison::Differs(found) => differs.push(format!("{place}\n{found}")),
            },
        }
    }
    println!(
        "{same} same, {left_out} left out by the template, {refused_there} refused there alone, \
         {} refused here alone, {} differ\n{}\n{}",
        refused.len(),
        differs.len(),
        refused.join("\n"),
        differs.join("\n")
    );
    assert!(same > 1_000, "expected the renderings of the packages, found {same}");
    assert_eq!(refused, Vec::<String>::new(), "renderings that are refused here alone");
    differs.retain(|place| {
        let place = place.lines().next().unwrap_or_default();
        !DIFFERENT.iter().any(|name| place.contains(name))
    });
    assert_eq!(differs, Vec::<String>::new(), "texts that differ without a reason");
}
