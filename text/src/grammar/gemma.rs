//! Tool calls of Gemma 4: `call:name{key:value,…}`, whose texts stand between tags and have no
//! escapes.
//!
//! Arguments come in the order in which the family's templates write them, by their names without
//! regard to case, and of a tool with `strict` no others come. Schemas of its arguments become
//! rules of their own, because a schema of JSON does not describe this form.

use serde_json::{Map, Value};

use super::check::check_sum;
use super::lark::{escaped, quoted, several_calls, symbol};
use super::schema::not_strict;
use super::{CallableTool, ModelAnswers};
use crate::error::FieldError;
use crate::prompt::format::{AnswerTags, Tag};

/// Keywords of a schema that change no value, or that are read here.
const READ: &[&str] = &[
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "default",
    "description",
    "enum",
    "examples",
    "items",
    "properties",
    "required",
    "title",
    "type",
];
/// Most values inside one another in a schema.
const MOST_DEPTH: usize = 16;

/// The rule `calls`, and those that it needs: names held to the request's tools, and the arguments
/// of strict ones to their schemas.
///
/// # Errors
/// A strict tool's schema has a keyword that is not read here, or a name that cannot be written.
pub(super) fn calls(
    model: ModelAnswers<'_>,
    tools: &[&CallableTool],
) -> Result<String, FieldError> {
    let tags = model.tags;
    let bytes = |tool: &&CallableTool| Value::Object(tool.parameters.clone()).to_string().len();
    let strict = tools.iter().copied().filter(|tool| tool.strict);
    check_sum(strict.map(|tool| bytes(&tool)).sum())?;
    let (mut rules, mut all) = (String::new(), Vec::with_capacity(tools.len()));
    for (at, tool) in tools.iter().enumerate() {
        let begin = quoted(&format!("call:{}{{", tool.name));
        let arguments = match tool.strict {
            false => "pairs?".to_owned(),
            true => {
                let name = format!("t{at}");
                let mut held = HeldArguments { tool, tags, name, rules: String::new(), count: 0 };
                let arguments = held.object(&tool.parameters, 0)?;
                rules.push_str(&held.rules);
                arguments
            }
        };
        all.push(format!("{begin} {arguments}"));
    }
    let text = match tags.token(Tag::Quote) {
        Some(_) => format!("text: {0} TEXT {0}\n", symbol(tags, Tag::Quote)),
        None => {
            let quote = escaped(tags.characters(Tag::Quote));
            format!(
                "text: {} quoted_rest\nquoted_rest[lazy]: /(?s:.*){quote}/\n",
                symbol(tags, Tag::Quote)
            )
        }
    };
    let (open, close) = (symbol(tags, Tag::ToolCallOpen), symbol(tags, Tag::ToolCallClose));
    Ok(format!(
        "{}\
         call: {open} inside\n\
         inside: ({}) \"}}\" {close}\n\
         pairs: pair (\",\" pair)*\n\
         pair: KEY \":\" value\n\
         KEY: /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/\n\
         value: text | NUMBER | \"true\" | \"false\" | \"null\" | \"{{\" pairs? \"}}\" | \"[\" values? \"]\"\n\
         values: value (\",\" value)*\n\
         NUMBER: /-?(0|[1-9][0-9]{{0,17}})(\\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?/\n\
         INTEGER: /-?(0|[1-9][0-9]{{0,17}})/\n\
         {text}{rules}",
        several_calls(model.one_call),
        all.join(" | ")
    ))
}

/// The arguments of one strict tool.
struct HeldArguments<'a> {
    tool: &'a CallableTool,
    tags: &'a AnswerTags,
    /// Beginning of the names of its rules.
    name: String,
    rules: String,
    count: usize,
}

impl HeldArguments<'_> {
    fn refuse(&self, what: &str) -> FieldError {
        let why = format!("because this model's tool calls cannot be held to {what}");
        not_strict(self.tool, &why)
    }

    /// Adds a rule. Returns its name.
    fn rule(&mut self, text: &str) -> String {
        let name = format!("{}_{}", self.name, self.count);
        self.count += 1;
        self.rules.push_str(&format!("{name}: {text}\n"));
        name
    }

    fn check_keywords(&self, schema: &Map<String, Value>) -> Result<(), FieldError> {
        let unread = schema.keys().find(|keyword| !READ.contains(&keyword.as_str()));
        unread.map_or(Ok(()), |keyword| Err(self.refuse(keyword)))
    }

    /// What stands between the braces of an object.
    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, FieldError> {
        self.check_keywords(schema)?;
        if schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false)) {
            return Err(self.refuse("additionalProperties beside false"));
        }
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array);
        let required: Vec<&str> =
            required.into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            return Err(self.refuse(&format!("the required argument {name}, which has no schema")));
        }
        let mut names: Vec<&String> = properties.keys().collect();
        names.sort_by_key(|name| name.to_lowercase());
        // From the last argument to the first: what may follow with a comma before it, and without.
        let (mut after_comma, mut first) = (String::new(), String::new());
        for name in names.into_iter().rev() {
            if !is_writable(name) {
                return Err(self.refuse(&format!("an argument of the name {name}")));
            }
            let value = self.value(&properties[name], depth + 1)?;
            let pair = self.rule(&format!("{} {value}", quoted(&format!("{name}:"))));
            let begun = format!("{pair} {after_comma}");
            let optional = !required.contains(&name.as_str());
            first = match (optional, first.is_empty()) {
                (false, _) => begun.clone(),
                (true, true) => format!("({begun})?"),
                (true, false) => self.rule(&format!("{begun} | {first}")),
            };
            let mark = if optional { "?" } else { "" };
            after_comma = self.rule(&format!("(\",\" {pair}){mark} {after_comma}"));
        }
        Ok(first)
    }

    /// A value, as a part of a rule.
    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, FieldError> {
        if depth > MOST_DEPTH {
            return Err(self.refuse(&format!("values more than {MOST_DEPTH} times inside others")));
        }
        let Some(schema) = schema.as_object() else { return Ok("value".to_owned()) };
        self.check_keywords(schema)?;
        let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        if let Some(values) = values.or(schema.get("const").map(std::slice::from_ref)) {
            let values = values.iter().map(|value| self.literal(value));
            return alternatives(values.collect::<Result<Vec<_>, _>>()?);
        }
        if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
            let options = options.iter().map(|option| self.value(option, depth + 1));
            return alternatives(options.collect::<Result<Vec<_>, _>>()?);
        }
        let kinds = match schema.get("type") {
            None => return Ok("value".to_owned()),
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(kind) => kind.as_str().into_iter().collect::<Vec<_>>(),
        };
        let kinds = kinds.into_iter().map(|kind| self.of_type(kind, schema, depth));
        alternatives(kinds.collect::<Result<Vec<_>, _>>()?)
    }

    fn of_type(
        &mut self,
        kind: &str,
        schema: &Map<String, Value>,
        depth: usize,
    ) -> Result<String, FieldError> {
        Ok(match kind {
            "string" => "text".to_owned(),
            "integer" => "INTEGER".to_owned(),
            "number" => "NUMBER".to_owned(),
            "boolean" => "(\"true\" | \"false\")".to_owned(),
            "null" => "\"null\"".to_owned(),
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => "value".to_owned(),
                };
                let item = self.rule(&item);
                format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
            }
            "object" if schema.contains_key("properties") => {
                format!("\"{{\" {} \"}}\"", self.object(schema, depth)?)
            }
            "object" => "\"{\" pairs? \"}\"".to_owned(),
            other => return Err(self.refuse(&format!("the type {other}"))),
        })
    }

    /// One value that is written in this form.
    fn literal(&self, value: &Value) -> Result<String, FieldError> {
        let quote = symbol(self.tags, Tag::Quote);
        match value {
            Value::String(text) if text.contains(self.tags.characters(Tag::Quote)) => {
                Err(self.refuse(&format!("the text {text}, which has the tag of quotes in it")))
            }
            Value::String(text) if text.is_empty() => Ok(format!("{quote} {quote}")),
            Value::String(text) => Ok(format!("{quote} {} {quote}", quoted(text))),
            Value::Array(_) | Value::Object(_) => Err(self.refuse("an enum of lists or objects")),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(quoted(&value.to_string())),
        }
    }
}

/// One of these, as a part of a rule.
fn alternatives(all: Vec<String>) -> Result<String, FieldError> {
    Ok(match all.as_slice() {
        [] => "value".to_owned(),
        [one] => one.clone(),
        _ => format!("({})", all.join(" | ")),
    })
}

/// Whether the reader of tool calls takes this for the name of an argument.
fn is_writable(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters.next().is_some_and(|one| one.is_ascii_alphabetic() || one == '_');
    let goes_on = |one: char| one.is_ascii_alphanumeric() || matches!(one, '_' | '.' | '-');
    begins && name.len() <= 64 && characters.all(goes_on)
}
