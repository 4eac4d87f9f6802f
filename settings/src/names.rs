//! Lists of words: an array in the file; in the environment, where there are no arrays, one text
//! with commas.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// Reads a list of words: an array, or one text with commas. Spaces around a word and empty words
/// are left out.
///
/// # Errors
/// Neither.
pub(crate) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Words;
    impl<'de> Visitor<'de> for Words {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of texts, or one text with commas")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(trimmed(text.split(',')))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut words = Vec::new();
            while let Some(word) = seq.next_element::<String>()? {
                words.push(word);
            }
            Ok(trimmed(words.iter().map(String::as_str)))
        }
    }
    deserializer.deserialize_any(Words)
}

fn trimmed<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Names under which a client may ask for the served model, besides its own. Clients of hosted
/// services often send a fixed foreign name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelAliases {
    /// `"auto"`: any name where only this machine reaches the listener, else none.
    #[default]
    Auto,
    /// `"*"`: any name.
    Any,
    /// These names.
    Named(Vec<String>),
}

impl ModelAliases {
    /// Whether `name` stands for the served model. `is_loopback`: the listener's address is one that
    /// only this machine reaches.
    pub fn accepts(&self, name: &str, is_loopback: bool) -> bool {
        match self {
            Self::Auto => is_loopback,
            Self::Any => true,
            Self::Named(names) => names.iter().any(|known| known == name),
        }
    }
}

impl Serialize for ModelAliases {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Any => serializer.serialize_str("*"),
            Self::Named(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ModelAliases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = words(deserializer)?;
        Ok(match names.as_slice() {
            [word] if word == "auto" => Self::Auto,
            _ if names.iter().any(|name| name == "*") => Self::Any,
            _ => Self::Named(names),
        })
    }
}

/// Where Ollama's API is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OllamaApi {
    /// `off`, or false: nowhere.
    #[default]
    Off,
    /// `on`, or true: on the address of HTTP.
    WithHttp,
    /// There, and on this address.
    At(String),
}

impl OllamaApi {
    /// Whether it is served.
    pub fn is_served(&self) -> bool {
        *self != Self::Off
    }

    /// The address that it has besides that of HTTP.
    pub fn address(&self) -> Option<&str> {
        match self {
            Self::At(address) => Some(address),
            Self::Off | Self::WithHttp => None,
        }
    }

    fn of_text(text: &str) -> Self {
        match text {
            "off" | "false" | "" => Self::Off,
            "on" | "true" => Self::WithHttp,
            address => Self::At(address.to_owned()),
        }
    }
}

impl Serialize for OllamaApi {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Off => "off",
            Self::WithHttp => "on",
            Self::At(address) => address,
        })
    }
}

impl<'de> Deserialize<'de> for OllamaApi {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = OllamaApi;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("on, off or an address")
            }
            fn visit_bool<E: de::Error>(self, served: bool) -> Result<OllamaApi, E> {
                Ok(if served { OllamaApi::WithHttp } else { OllamaApi::Off })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OllamaApi, E> {
                Ok(OllamaApi::of_text(text))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ollamas_api_is_off_on_or_at_an_address() {
        let of = |value: toml::Value| OllamaApi::deserialize(value).expect("a form of it");
        let at = || OllamaApi::At("127.0.0.1:11434".to_owned());
        for (value, expected) in [
            (false.into(), OllamaApi::Off),
            (true.into(), OllamaApi::WithHttp),
            ("off".into(), OllamaApi::Off),
            ("true".into(), OllamaApi::WithHttp),
            ("127.0.0.1:11434".into(), at()),
        ] {
            assert_eq!(of(value), expected);
        }
        for one in [OllamaApi::Off, OllamaApi::WithHttp, at()] {
            let written = toml::Value::try_from(&one).expect("plain");
            assert!(written.is_str(), "a text, which flags and the environment can set");
            assert_eq!(of(written), one);
        }
    }

    fn aliases(text: &str) -> ModelAliases {
        #[derive(serde::Deserialize)]
        struct Written {
            names: ModelAliases,
        }
        toml::from_str::<Written>(&format!("names = {text}")).expect("accepted").names
    }

    #[test]
    fn aliases_are_a_word_an_array_or_a_text_with_commas() {
        let named = |names: &[&str]| {
            ModelAliases::Named(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(aliases("\"auto\""), ModelAliases::Auto);
        assert_eq!(aliases("\"*\""), ModelAliases::Any);
        assert_eq!(aliases("[\"gpt-5\", \"*\"]"), ModelAliases::Any);
        assert_eq!(aliases("[\"gpt-5\", \"a/b\"]"), named(&["gpt-5", "a/b"]));
        assert_eq!(aliases("\"gpt-5, a/b,\""), named(&["gpt-5", "a/b"]));
        assert_eq!(aliases("[]"), named(&[]));
        assert_eq!(aliases("\"\""), named(&[]));
    }

    #[test]
    fn any_name_is_an_alias_by_default_only_where_this_machine_alone_connects() {
        assert!(ModelAliases::Auto.accepts("gpt-5", true));
        assert!(!ModelAliases::Auto.accepts("gpt-5", false));
        assert!(ModelAliases::Any.accepts("gpt-5", false));
        let named = aliases("[\"gpt-5\"]");
        assert!(named.accepts("gpt-5", false) && !named.accepts("gpt-5-mini", true));
        assert!(!aliases("[]").accepts("gpt-5", true));
    }
}
