//! `drafter.model`: one drafter, or several in the order in which they are tried.
//!
//! An array in the file; in the environment, where there are no arrays, one text with commas. A
//! comma or backslash that belongs to a name has a backslash before it in such a text.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// The drafter that ships with an embedded or a known target, else prompt lookup.
pub const AUTO_DRAFTER: &str = "auto";

/// The drafters that `drafter.model` names, as they are written.
/// `paceline_process::Config::drafter_choices` has what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterModels(Vec<String>);

impl DrafterModels {
    /// No drafter: the value `""`.
    pub fn none() -> Self {
        Self::one("")
    }

    /// One drafter. Commas in its name do not separate.
    pub fn one(name: impl Into<String>) -> Self {
        Self(vec![name.into()])
    }

    /// Several drafters in their order; without any it is [`DrafterModels::none`].
    pub fn of(names: Vec<String>) -> Self {
        if names.is_empty() { Self::none() } else { Self(names) }
    }

    /// The names in their order.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Checks that each place of the list has a drafter.
    ///
    /// # Errors
    /// The list is empty, or one of several places is.
    pub(crate) fn check(&self) -> Result<(), String> {
        let fault = match self.0.as_slice() {
            [] => {
                "expected at least one drafter, found an empty list; write \"\" for none or \"auto\" for the default"
            }
            [_, _, ..] if self.0.iter().any(String::is_empty) => {
                "expected a drafter in each place of the list, found \"\"; remove that place, or write \"\" alone for none"
            }
            _ => return Ok(()),
        };
        Err(fault.to_owned())
    }

    /// The names of a text with commas. Spaces after a comma are left out.
    fn parse(text: &str) -> Self {
        let (mut names, mut name) = (Vec::new(), String::new());
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match (character, characters.peek()) {
                ('\\', Some(&escaped @ (',' | '\\'))) => {
                    name.push(escaped);
                    characters.next();
                }
                (',', _) => {
                    names.push(std::mem::take(&mut name));
                    while characters.next_if_eq(&' ').is_some() {}
                }
                _ => name.push(character),
            }
        }
        names.push(name);
        Self(names)
    }
}

impl Default for DrafterModels {
    fn default() -> Self {
        Self::one(AUTO_DRAFTER)
    }
}

/// The form in the environment.
impl fmt::Display for DrafterModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = self.0.iter().map(|name| name.replace('\\', r"\\").replace(',', r"\,"));
        f.write_str(&escaped.collect::<Vec<_>>().join(","))
    }
}

impl Serialize for DrafterModels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [_] => serializer.serialize_str(&self.to_string()),
            names => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DrafterModels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = DrafterModels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a drafter, or an array of drafters in the order in which to try them")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(DrafterModels::parse(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element::<String>()? {
                    names.push(name);
                }
                Ok(DrafterModels(names))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_environment_is_read_back_as_it_was() {
        for names in [&["auto"][..], &[""], &["/a,b"], &["/a", "lookup"], &[r"/a\", r"/b\,\\,"]] {
            let models = DrafterModels(names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(DrafterModels::parse(&models.to_string()), models, "{models}");
            #[derive(serde::Serialize, serde::Deserialize)]
            struct Written {
                model: DrafterModels,
            }
            let text = toml::to_string(&Written { model: models.clone() }).expect("plain TOML");
            let read: Written = toml::from_str(&text).expect("its own form");
            assert_eq!(read.model, models, "{text}");
        }
    }
}
