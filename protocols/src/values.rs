//! Values of requests that have more than one form.
//!
//! serde's own untagged enums lose the place of an error inside, so each is read by a visitor.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use paceline_text::images::Detail;
use paceline_vocabulary::RouteWish;
use serde::Serialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::accepted::{Accepted, check_members};
use super::json::AnyObject;
use super::number::TokenId;
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::input::{ToolCallRule, ToolInput};

/// The lane that a client asks for.
///
/// # Errors
/// An unknown word.
pub fn route(word: &str) -> Result<RouteWish> {
    RouteWish::from_word(word).ok_or_else(|| {
        let words: Vec<_> = RouteWish::ALL.iter().map(|wish| wish.word()).collect();
        InferenceError::invalid("paceline.route", format!("one of {words:?}"), quoted(word))
    })
}

/// A text, or a list.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TextOr<T> {
    /// A text.
    Text(String),
    /// A list.
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Forms<T> {
            type Value = TextOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::List)
            }
        }

        deserializer.deserialize_any(Forms(PhantomData))
    }
}

/// Reads a text or an object. An error inside the object keeps its path.
pub struct TextOrObject<T, O> {
    /// Both forms, for an error.
    pub expected: &'static str,
    /// Makes the value of a text.
    pub text: fn(String) -> T,
    /// Makes the value of an object.
    pub object: fn(O) -> T,
}

impl<'de, T, O: Deserialize<'de>> Visitor<'de> for TextOrObject<T, O> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok((self.text)(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<T, E> {
        Ok((self.text)(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        O::deserialize(MapAccessDeserializer::new(object)).map(self.object)
    }
}

/// A prompt in one of its forms.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

/// A prompt in one of its forms.
// For the schema alone: a million token ids are read without a type of their own.
#[derive(Clone, Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = Prompt)]
pub enum PromptForms {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<TokenId>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<TokenId>>),
}

/// The first element of a prompt that is a list. It decides what the others are.
enum First {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Prompt::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                Ok(match list.next_element()? {
                    None => Prompt::Tokens(Vec::new()),
                    Some(First::Text(first)) => Prompt::Texts(with_rest(first, list)?),
                    Some(First::Token(first)) => Prompt::Tokens(with_rest(first, list)?),
                    Some(First::Tokens(first)) => Prompt::TokenLists(with_rest(first, list)?),
                })
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

fn with_rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    first: T,
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = list.next_element()? {
        all.push(next);
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = First;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(First::Text(text.to_owned()))
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Self::Value, E> {
                let unexpected = serde::de::Unexpected::Unsigned(id);
                let id = u32::try_from(id).map_err(|_| E::invalid_value(unexpected, &self))?;
                Ok(First::Token(id))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(First::Tokens)
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

/// How much of an image the model reads, by OpenAI's word in this field.
///
/// # Errors
/// Another word.
pub fn detail_of(field: &str, word: Option<String>) -> Result<Detail> {
    match word.as_deref() {
        None | Some("auto" | "high" | "original") => Ok(Detail::Full),
        Some("low") => Ok(Detail::Low),
        Some(other) => refuse(field, "auto, low, high or original", quoted(other)),
    }
}

/// Names of a message's thought, in the order in which templates look for it.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The thought of a message of this role, whose path is `path` with a dot at its end. `texts` are
/// those of [`THOUGHTS`]; empty ones say nothing.
///
/// # Errors
/// Two texts that differ; a thought of another role than the assistant.
pub fn thought(path: &str, role: &str, texts: [Option<String>; 3]) -> Result<String> {
    let given = THOUGHTS.into_iter().zip(texts.into_iter().map(Option::unwrap_or_default));
    let mut given = given.filter(|(_, text)| !text.is_empty());
    let Some((first, text)) = given.next() else { return Ok(String::new()) };
    if let Some((name, other)) = given.find(|(_, other)| *other != text) {
        return refuse(&format!("{path}{name}"), format!("the text of {first}"), quoted(&other));
    }
    // The middle checks the same and knows one of the names alone.
    if ["system", "developer", "user", "tool"].contains(&role) {
        let expected = "nothing, as only assistant turns have it";
        return refuse(&format!("{path}{first}"), expected, format!("one of role {role}"));
    }
    Ok(text)
}

/// Whether and which tools the model calls.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `auto`, `none` or `required`.
    Word(String),
    /// A tool by name, or some tools.
    Tools(Map<String, Value>),
}

/// A type of tools in a protocol.
#[derive(Clone, Copy, Debug)]
pub struct ToolKind {
    /// Name of the type.
    pub name: &'static str,
    /// Where an object of this type has the tool's name. Without a path the type has one tool, whose
    /// name is the type's.
    pub path: &'static [&'static str],
    /// Fields beside the name that change nothing.
    pub accepted: &'static [Accepted],
}

/// How the model uses the tools of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallChoice {
    /// Not at all: they are left out of the prompt.
    None,
    /// By this rule.
    Rule(ToolCallRule),
    /// Only some of them are offered.
    Allowed {
        /// The path of the list.
        field: String,
        /// The names of the tools that are offered, as the client knows them.
        names: Vec<String>,
        /// Whether the model must call one.
        required: bool,
    },
}

impl Default for ToolCallChoice {
    fn default() -> Self {
        Self::Rule(ToolCallRule::Auto)
    }
}

impl ToolCallChoice {
    /// The offered tools and the rule for them. `model_name` gives the name that the model knows a
    /// client's tool by.
    ///
    /// # Errors
    /// An allowed tool is none of the request's.
    pub fn applied(
        self,
        mut tools: Vec<ToolInput>,
        model_name: impl Fn(&str) -> String,
    ) -> Result<(Vec<ToolInput>, ToolCallRule)> {
        match self {
            Self::None => Ok((Vec::new(), ToolCallRule::Auto)),
            Self::Rule(ToolCallRule::Named(name)) => {
                Ok((tools, ToolCallRule::Named(model_name(&name))))
            }
            Self::Rule(rule) => Ok((tools, rule)),
            Self::Allowed { field, names, required } => {
                let known: HashSet<String> = tools.iter().map(|tool| tool.name.clone()).collect();
                let mut allowed = HashSet::with_capacity(names.len().min(known.len()));
                for (at, name) in names.iter().enumerate() {
                    let name = model_name(name);
                    if !known.contains(&name) {
                        let field = format!("{field}[{at}]");
                        let expected = "the name of one of the request's tools";
                        return refuse(&field, expected, quoted(&name));
                    }
                    allowed.insert(name);
                }
                tools.retain(|tool| allowed.contains(&tool.name));
                Ok((tools, if required { ToolCallRule::Required } else { ToolCallRule::Auto }))
            }
        }
    }
}

impl ToolChoice {
    /// How the model uses the tools. `kinds` are the types of tools; a list of allowed tools stands at
    /// `allowed` of the object, and its entries that `is_left_out` names are not looked at.
    ///
    /// # Errors
    /// Another word, or an object that names no tool.
    pub fn rule(
        self,
        kinds: &[ToolKind],
        allowed: Option<&str>,
        is_left_out: impl Fn(&Map<String, Value>) -> bool,
    ) -> Result<ToolCallChoice> {
        const EXPECTED: &str = "auto, none, required, a tool by name, or allowed tools";
        let object = match self {
            Self::Word(word) => match word.as_str() {
                "auto" => return Ok(ToolCallChoice::Rule(ToolCallRule::Auto)),
                "none" => return Ok(ToolCallChoice::None),
                "required" => return Ok(ToolCallChoice::Rule(ToolCallRule::Required)),
                _ => return refuse("tool_choice", EXPECTED, quoted(&word)),
            },
            Self::Tools(object) => object,
        };
        if object.get("type").and_then(Value::as_str) == Some(ALLOWED_TOOLS) {
            return allowed_tools(object, allowed, kinds, is_left_out);
        }
        named_tool("tool_choice", object, kinds)
            .map(|name| ToolCallChoice::Rule(ToolCallRule::Named(name)))
    }
}

/// The type of a choice among some tools.
const ALLOWED_TOOLS: &str = "allowed_tools";

/// A choice among some tools. Its mode and list stand in the object, or in its member `inner`.
fn allowed_tools(
    mut object: Map<String, Value>,
    inner: Option<&str>,
    kinds: &[ToolKind],
    is_left_out: impl Fn(&Map<String, Value>) -> bool,
) -> Result<ToolCallChoice> {
    let mut path = "tool_choice".to_owned();
    object.remove("type");
    if let Some(inner) = inner {
        let inside = object.remove(inner);
        no_other_field(&path, &object)?;
        path = format!("{path}.{inner}");
        object = match inside {
            Some(Value::Object(inside)) => inside,
            _ => return refuse(&path, "an object", "another value or none"),
        };
    }
    let (mode, list) = (object.remove("mode"), object.remove("tools"));
    no_other_field(&path, &object)?;
    let required = match mode.as_ref().and_then(Value::as_str) {
        Some("auto") => false,
        Some("required") => true,
        _ => {
            return refuse(&format!("{path}.mode"), "auto or required", "another value");
        }
    };
    let field = format!("{path}.tools");
    let Some(Value::Array(list)) = list else {
        return refuse(&field, "a list of tools", "another value or none");
    };
    let mut names = Vec::new();
    for (at, tool) in list.into_iter().enumerate() {
        let field = format!("{field}[{at}]");
        let Value::Object(tool) = tool else {
            return refuse(&field, "a tool by name", "another value");
        };
        if !is_left_out(&tool) {
            names.push(named_tool(&field, tool, kinds)?);
        }
    }
    Ok(ToolCallChoice::Allowed { field, names, required })
}

/// The name in an object that names a tool by its type, and has no other field but accepted ones.
fn named_tool(field: &str, mut object: Map<String, Value>, kinds: &[ToolKind]) -> Result<String> {
    let kind = object.remove("type");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    let known = kinds.iter().find(|known| known.name == kind);
    let Some(ToolKind { name: _, path, accepted }) = known else {
        let known: Vec<&str> = kinds.iter().map(|known| known.name).collect();
        let expected = format!("one of {known:?}, the types that are served");
        return refuse(&format!("{field}.type"), expected, quoted(kind));
    };
    let mut steps = path.iter();
    let mut name = match steps.next() {
        Some(step) => object.remove(*step),
        None => Some(Value::from(kind)),
    };
    for step in steps {
        name = name.and_then(|inner| match inner {
            Value::Object(mut inner) => {
                let name = inner.remove(*step);
                no_other_field(field, &inner).ok().and(name)
            }
            _ => None,
        });
    }
    check_members(&format!("{field}."), &object, accepted)?;
    match name {
        Some(Value::String(name)) => Ok(name),
        _ => {
            let field = format!("{field}.{}", path.join("."));
            refuse(&field, "the name of a tool alone", "another value")
        }
    }
}

/// Refuses what is left of an object after its fields were taken.
fn no_other_field(path: &str, rest: &Map<String, Value>) -> Result<()> {
    check_members(&format!("{path}."), rest, &[])
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrObject {
            expected: "auto, none, required or an object",
            text: ToolChoice::Word,
            object: |AnyObject(object)| ToolChoice::Tools(object),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accepted::{Values, accepted};

    #[test]
    fn each_form_is_read() {
        let text = |value| serde_json::from_value::<TextOr<String>>(value).expect("a form of it");
        assert_eq!(text(json!("a")), TextOr::Text("a".into()));
        assert_eq!(text(json!(["a", "b"])), TextOr::List(vec!["a".into(), "b".into()]));
        let prompt = |value| serde_json::from_value::<Prompt>(value).ok();
        assert_eq!(prompt(json!("a")), Some(Prompt::Text("a".into())));
        assert_eq!(prompt(json!([7, 8])), Some(Prompt::Tokens(vec![7, 8])));
        assert_eq!(prompt(json!(["a", "b"])), Some(Prompt::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(prompt(json!([[7], []])), Some(Prompt::TokenLists(vec![vec![7], vec![]])));
        for mixture in [json!([7, "a"]), json!(["a", 7]), json!([[7], 7]), json!([-1]), json!(7)] {
            assert_eq!(prompt(mixture), None);
        }
        let choice = |value| serde_json::from_value::<ToolChoice>(value).expect("a form of it");
        assert_eq!(choice(json!("none")), ToolChoice::Word("none".into()));
        assert!(matches!(choice(json!({"type": "function"})), ToolChoice::Tools(_)));
    }

    fn kinds() -> [ToolKind; 2] {
        [
            ToolKind { name: "function", path: &["function", "name"], accepted: &[] },
            ToolKind { name: "custom", path: &["name"], accepted: &[] },
        ]
    }

    #[test]
    fn a_choice_of_tools_is_a_word_or_a_name() {
        let rule = |value: Value| {
            let choice = serde_json::from_value::<ToolChoice>(value).expect("a form of it");
            choice.rule(&kinds(), None, |_| false)
        };
        assert_eq!(rule(json!("auto")), Ok(ToolCallChoice::default()));
        assert_eq!(rule(json!("none")), Ok(ToolCallChoice::None));
        assert_eq!(rule(json!("required")), Ok(ToolCallChoice::Rule(ToolCallRule::Required)));
        let named = Ok(ToolCallChoice::Rule(ToolCallRule::Named("f".into())));
        assert_eq!(rule(json!({"type": "function", "function": {"name": "f"}})), named);
        assert_eq!(rule(json!({"type": "custom", "name": "f", "mode": null})), named);
        for (other, field) in [
            (json!("any"), "tool_choice"),
            (json!({"type": "allowed", "tools": []}), "tool_choice.type"),
            (json!({"name": "f"}), "tool_choice.type"),
            (json!({"type": "function", "name": "f"}), "tool_choice.name"),
            (json!({"type": "function", "function": "f"}), "tool_choice.function.name"),
            (
                json!({"type": "function", "function": {"name": "f", "x": 1}}),
                "tool_choice.function.name",
            ),
            (json!({"type": "custom"}), "tool_choice.name"),
            (json!({"type": "custom", "name": "f", "mode": 1}), "tool_choice.mode"),
        ] {
            let error = rule(other).expect_err("refused");
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn allowed_tools_are_the_only_ones_that_are_offered() {
        let tool = |name: &str| ToolInput { name: name.into(), ..Default::default() };
        let chosen = |value: Value, inner: Option<&str>| {
            let choice = serde_json::from_value::<ToolChoice>(value).expect("a form of it");
            let choice =
                choice.rule(&kinds(), inner, |tool| tool.get("type") == Some(&json!("web_search")));
            let all = vec![tool("f"), tool("g")];
            let (tools, rule) = choice.and_then(|choice| choice.applied(all, str::to_owned))?;
            let names: Vec<String> = tools.into_iter().map(|tool| tool.name).collect();
            Ok::<_, InferenceError>((names, rule))
        };
        let entry = |name: &str| json!({"type": "custom", "name": name});
        let flat = |mode: &str, tools: Value| json!({"type": "allowed_tools", "mode": mode, "tools": tools});
        let g = Ok((vec!["g".to_owned()], ToolCallRule::Required));
        assert_eq!(chosen(flat("required", json!([entry("g"), {"type": "web_search"}])), None), g);
        let list = json!({"mode": "required", "tools": [entry("g")]});
        let nested = json!({"type": "allowed_tools", "allowed_tools": list});
        assert_eq!(chosen(nested.clone(), Some("allowed_tools")), g);
        assert_eq!(chosen(flat("auto", json!([])), None), Ok((vec![], ToolCallRule::Auto)));
        for (value, inner, field) in [
            (flat("often", json!([])), None, "tool_choice.mode"),
            (flat("auto", json!([entry("x")])), None, "tool_choice.tools[0]"),
            (flat("auto", json!(["f"])), None, "tool_choice.tools[0]"),
            (flat("auto", json!([{"type": "shell"}])), None, "tool_choice.tools[0].type"),
            (flat("auto", json!("f")), None, "tool_choice.tools"),
            (nested, None, "tool_choice.allowed_tools"),
            (flat("auto", json!([])), Some("allowed_tools"), "tool_choice.tools"),
        ] {
            let error = chosen(value, inner).expect_err("refused");
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_type_of_one_tool_names_it_by_itself() {
        const SEARCH: ToolKind = ToolKind {
            name: "tool_search",
            path: &[],
            accepted: &[accepted("execution", Values::Words(&["client"]), "a client")],
        };
        let rule = |value: Value| {
            let choice = serde_json::from_value::<ToolChoice>(value).expect("a form of it");
            choice.rule(&[SEARCH], None, |_| false)
        };
        let named = Ok(ToolCallChoice::Rule(ToolCallRule::Named("tool_search".into())));
        assert_eq!(rule(json!({"type": "tool_search"})), named);
        assert_eq!(rule(json!({"type": "tool_search", "execution": "client"})), named);
        let entry = json!({"type": "tool_search", "execution": "server"});
        let list = json!({"type": "allowed_tools", "mode": "auto", "tools": [entry]});
        for (other, field) in [
            (entry.clone(), "tool_choice.execution"),
            (list, "tool_choice.tools[0].execution"),
            (json!({"type": "tool_search", "name": "f"}), "tool_choice.name"),
        ] {
            let error = rule(other).expect_err("refused");
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn an_error_inside_a_list_has_its_place() {
        let text = r#"{"stop": ["a", 7]}"#;
        #[derive(Debug, serde::Deserialize)]
        struct Request {
            #[expect(dead_code, reason = "only its errors matter")]
            stop: Option<TextOr<String>>,
        }
        let reader = &mut serde_json::Deserializer::from_str(text);
        let error = serde_path_to_error::deserialize::<_, Request>(reader).expect_err("a number");
        assert_eq!(error.path().to_string(), "stop[1]");
    }
}
