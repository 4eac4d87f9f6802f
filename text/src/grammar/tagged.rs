//! Tool calls as tags (Qwen3-Coder and Qwen3.5, MiniCPM5, GLM): each argument stands between tags
//! such as `<parameter=name>` and `</parameter>`. A text has no quotes there; other values are JSON.
//!
//! Arguments come in the order of the schema's properties, and no others come. For a tool without
//! `strict` whose schema does not say which arguments there are, names and values are free.

use serde_json::{Map, Value};

use super::lark::{escaped, quoted, symbol};
use super::schema::{not_strict, schema_part, type_of};
use super::{CallableTool, Parts};
use crate::error::FieldError;
use crate::prompt::format::{AnswerTags, Tag};

/// Keywords of a text's schema that a text without quotes cannot be held to.
const UNSERVED: &[&str] =
    &["$ref", "allOf", "anyOf", "format", "maxLength", "minLength", "oneOf", "pattern"];
/// Keywords of a tool's schema beside its properties that would be left out.
const WHOLE: &[&str] = &["$ref", "allOf", "anyOf", "oneOf", "patternProperties", "minProperties"];

/// What stands around a name: parts of rules, and inside of them characters.
struct Around {
    rules: [String; 2],
    characters: [&'static str; 2],
}

impl Around {
    /// Characters alone.
    fn characters(characters: [&'static str; 2]) -> Self {
        Self { rules: Default::default(), characters }
    }

    /// The name as a part of a rule.
    fn name(&self, name: &str) -> String {
        let ([before, after], [open, close]) = (&self.rules, self.characters);
        format!("{before} {} {after}", quoted(&format!("{open}{name}{close}")))
    }

    /// Any name as a part of a rule.
    fn any(&self) -> String {
        let [before, after] = &self.rules;
        let shown = |text: &str| if text.is_empty() { String::new() } else { quoted(text) };
        let [open, close] = self.characters.map(shown);
        format!("{before} {open} NAME {close} {after}")
    }
}

/// How a family writes the arguments of a tool call.
pub(super) struct Syntax {
    tool: Around,
    argument: Around,
    /// The end of a value, as a part of a rule.
    end: String,
    /// After the last argument; empty for a family whose closing tag is written elsewhere.
    close: &'static str,
    /// The rules `text_value` and those that it needs.
    text: String,
    /// Characters that a name cannot have.
    signs: &'static [char],
    /// Whether a text with a sign of XML or a line break stands in CDATA.
    is_xml: bool,
}

impl Syntax {
    /// Qwen3-Coder and Qwen3.5.
    pub(super) fn qwen() -> Self {
        Self {
            tool: Around::characters(["<function=", ">\n"]),
            argument: Around::characters(["<parameter=", ">\n"]),
            end: quoted("\n</parameter>\n"),
            close: "\"</function>\"",
            text: "text_value[lazy]: /(?s:.*)\\n<\\/parameter>\\n/\n".to_owned(),
            signs: &['>'],
            is_xml: false,
        }
    }

    /// MiniCPM5, after the tag that opens a tool call.
    pub(super) fn minicpm(tags: &AnswerTags) -> Self {
        let end = symbol(tags, Tag::ValueClose);
        let cdata = quoted("<![CDATA[");
        Self {
            tool: Around::characters([" name=\"", "\">"]),
            argument: Around {
                rules: [symbol(tags, Tag::Key), String::new()],
                characters: [" name=\"", "\">"],
            },
            text: format!(
                "text_value: PLAIN? {end} | {cdata} cdata_rest {end}\n\
                 PLAIN: /[^<&\\n]+/\n\
                 cdata_rest[lazy]: /(?s:.*)\\]\\]>/\n"
            ),
            end,
            close: "",
            signs: &['>', '<', '&', '"', '\''],
            is_xml: true,
        }
    }

    /// GLM, after the tag that opens a tool call. Some versions write line breaks between the tags.
    pub(super) fn glm(tags: &AnswerTags) -> Self {
        const LINE: &str = "\"\\n\"?";
        let tag = |tag: Tag| symbol(tags, tag);
        let end = format!("{} {LINE}", tag(Tag::ValueClose));
        let text = match tags.token(Tag::ValueClose) {
            Some(_) => format!("text_value: TEXT {end}\n"),
            None => {
                let close = escaped(tags.characters(Tag::ValueClose));
                format!("text_value: value_rest {LINE}\nvalue_rest[lazy]: /(?s:.*){close}/\n")
            }
        };
        let after = format!("{} {LINE} {}", tag(Tag::KeyClose), tag(Tag::Value));
        Self {
            tool: Around { rules: [String::new(), LINE.to_owned()], characters: ["", ""] },
            argument: Around { rules: [tag(Tag::Key), after], characters: ["", ""] },
            end,
            close: "",
            text,
            signs: &['>', '<'],
            is_xml: false,
        }
    }

    /// A text that is the whole value of an argument.
    fn literal(&self, text: &str) -> String {
        match self.is_xml && text.contains(['<', '&', '\n']) {
            true => quoted(&format!("<![CDATA[{text}]]>")),
            false => quoted(text),
        }
    }

    /// Whether a name can stand in a tag.
    fn writes(&self, name: &str) -> bool {
        let is_sign = |character: char| self.signs.contains(&character) || character.is_control();
        !name.is_empty() && !name.contains(is_sign)
    }
}

/// The rule `one` of these tools, and those that it needs.
///
/// # Errors
/// A strict tool's schema cannot be written so.
pub(super) fn calls(
    syntax: &Syntax,
    tools: &[&CallableTool],
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let mut all = Vec::with_capacity(tools.len());
    for tool in tools {
        let begin = syntax.tool.name(&tool.name);
        all.push(format!("{begin} {} {}", parameters(syntax, tool, parts)?, syntax.close));
    }
    Ok(format!(
        "one: {}\n\
         any_parameter: {} text_value\n\
         NAME: /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/\n\
         {}",
        all.join(" | "),
        syntax.argument.any(),
        syntax.text
    ))
}

/// The parameters of one tool, as a part of a rule.
fn parameters(
    syntax: &Syntax,
    tool: &CallableTool,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let refuse = |what: &str| {
        let why = format!("because this model's tool calls cannot be held to {what}");
        Err(not_strict(tool, &why))
    };
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let none = Map::new();
    let properties = properties.unwrap_or(&none);
    let is_known = |name: &str| properties.contains_key(name);
    let left_out = WHOLE.iter().copied().find(|keyword| tool.parameters.contains_key(*keyword));
    let unknown = required.iter().copied().find(|name| !is_known(name));
    let unwritable = properties.keys().find(|name| !syntax.writes(name)).map(String::as_str);
    if let Some(what) = left_out.or(unknown).or(unwritable) {
        return if tool.strict { refuse(what) } else { Ok("any_parameter*".to_owned()) };
    }
    let mut all = vec![];
    for (name, schema) in properties {
        let begin = syntax.argument.name(name);
        let value = match schema.as_object() {
            Some(schema) => value(syntax, tool, name, schema, parts)?,
            None => "text_value".to_owned(),
        };
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        all.push(format!("({begin} {value}){optional}"));
    }
    Ok(all.join(" "))
}

/// The value of an argument with its end, as a part of a rule.
fn value(
    syntax: &Syntax,
    tool: &CallableTool,
    name: &str,
    schema: &Map<String, Value>,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let end = &syntax.end;
    if !may_be_text(schema) {
        let schema = with_definitions(tool, schema);
        return Ok(format!("{} {end}", schema_part(tool, &schema, parts)?));
    }
    let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let values = values.or(schema.get("const").map(std::slice::from_ref)).unwrap_or_default();
    let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    if !texts.is_empty() && texts.len() == values.len() {
        let texts: Vec<String> = texts.into_iter().map(|text| syntax.literal(text)).collect();
        return Ok(format!("({}) {end}", texts.join(" | ")));
    }
    // `anyOf` of a text and null is a text: the reader makes null of the word.
    let unserved = UNSERVED.iter().find(|keyword| schema.contains_key(**keyword));
    let is_held = tool.strict && (unserved.is_some() || !values.is_empty());
    if is_held && !is_optional_text(schema) {
        let keyword = unserved.copied().unwrap_or("enum");
        let why = format!(
            "because this model writes texts without quotes, which cannot be held to {keyword} of {name}"
        );
        return Err(not_strict(tool, &why));
    }
    Ok("text_value".to_owned())
}

/// Whether the reader of tool calls takes a value of this schema as a text: if it may be one, or if
/// the schema does not name its type.
fn may_be_text(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => return kind == "string",
        Some(Value::Array(kinds)) => return kinds.iter().any(|kind| kind == "string"),
        _ => {}
    }
    let options = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
    let options: Vec<&Value> = options.flatten().collect();
    let text = |option: &&Value| option.as_object().is_none_or(may_be_text);
    options.is_empty() || options.iter().any(text)
}

/// Whether a schema is `anyOf` of a plain text and null, as Pydantic writes an optional text.
fn is_optional_text(schema: &Map<String, Value>) -> bool {
    let Some(options) = schema.get("anyOf").and_then(Value::as_array) else { return false };
    let is_plain = |option: &Value| {
        option.as_object().is_some_and(|option| {
            option.len() == 1 && matches!(type_of(option), Some("string" | "null"))
        })
    };
    options.iter().all(is_plain)
}

/// The schema of one property, with the definitions that it may refer to.
fn with_definitions(tool: &CallableTool, schema: &Map<String, Value>) -> Value {
    let mut whole = schema.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = tool.parameters.get(name) {
            whole.insert(name.to_owned(), definitions.clone());
        }
    }
    Value::Object(whole)
}
