//! Values of requests that have more than one form.
//!
//! serde's own untagged enums lose the place of an error inside, so each is read by a visitor.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::json::AnyObject;
use super::number::TokenId;
use crate::inference::error::{InferenceError, quoted};
use crate::inference::input::CallRule;

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

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::List)
            }
        }

        deserializer.deserialize_any(Forms(PhantomData))
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

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Prompt::Text(text))
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

/// Whether and which tools the model calls.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `auto`, `none` or `required`.
    Word(String),
    /// A tool by name.
    Tools(Map<String, Value>),
}

impl ToolChoice {
    /// How the model uses the tools; `None` if they are left out of the prompt. `kinds` are the types
    /// of tools, each with the path of the name in the choice.
    ///
    /// # Errors
    /// Another word, or an object that names no tool.
    pub fn rule(self, kinds: &[(&str, &[&str])]) -> Result<Option<CallRule>, InferenceError> {
        const EXPECTED: &str = "auto, none, required or a tool by name";
        let object = match self {
            Self::Word(word) => match word.as_str() {
                "auto" => return Ok(Some(CallRule::Auto)),
                "none" => return Ok(None),
                "required" => return Ok(Some(CallRule::Required)),
                _ => return Err(InferenceError::invalid("tool_choice", EXPECTED, quoted(&word))),
            },
            Self::Tools(object) => object,
        };
        let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
        let Some((_, path)) = kinds.iter().find(|(known, _)| *known == kind) else {
            let known: Vec<&str> = kinds.iter().map(|(known, _)| *known).collect();
            let expected = format!("one of {known:?}, the types that are served");
            return Err(InferenceError::invalid("tool_choice.type", expected, quoted(kind)));
        };
        let mut rest = Value::Object(object);
        let mut name = rest.as_object_mut().and_then(|object| {
            object.remove("type");
            object.remove(*path.first()?)
        });
        for step in path.iter().skip(1) {
            name = name.and_then(|inner| match inner {
                Value::Object(mut inner) if inner.len() == 1 => inner.remove(*step),
                _ => None,
            });
        }
        if let Some(other) = rest.as_object().and_then(|object| object.keys().next()) {
            let found = "a field that this service does not serve";
            let field = format!("tool_choice.{other}");
            return Err(InferenceError::invalid(&field, "no such field", found));
        }
        match name {
            Some(Value::String(name)) => Ok(Some(CallRule::Named(name))),
            _ => {
                let field = format!("tool_choice.{}", path.join("."));
                Err(InferenceError::invalid(&field, "the name of a tool alone", "another value"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = ToolChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("auto, none, required or an object")
            }

            fn visit_str<E>(self, word: &str) -> Result<Self::Value, E> {
                Ok(ToolChoice::Word(word.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
                let object = AnyObject::deserialize(MapAccessDeserializer::new(object))?;
                Ok(ToolChoice::Tools(object.0))
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

    #[test]
    fn a_choice_of_tools_is_a_word_or_a_name() {
        let kinds: &[(&str, &[&str])] =
            &[("function", &["function", "name"]), ("custom", &["name"])];
        let rule = |value: Value| {
            serde_json::from_value::<ToolChoice>(value).expect("a form of it").rule(kinds)
        };
        assert_eq!(rule(json!("auto")), Ok(Some(CallRule::Auto)));
        assert_eq!(rule(json!("none")), Ok(None));
        assert_eq!(rule(json!("required")), Ok(Some(CallRule::Required)));
        let named = Ok(Some(CallRule::Named("f".into())));
        assert_eq!(rule(json!({"type": "function", "function": {"name": "f"}})), named);
        assert_eq!(rule(json!({"type": "custom", "name": "f"})), named);
        for (other, field) in [
            (json!("any"), "tool_choice"),
            (json!({"type": "allowed_tools", "tools": []}), "tool_choice.type"),
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
