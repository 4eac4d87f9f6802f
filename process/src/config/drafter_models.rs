//! `drafter.model`: one drafter, or several in the order in which they are tried.
//!
//! An array in the file; in the environment, where there are no arrays, one text with commas. A
//! comma or backslash that belongs to a name has a backslash before it in such a text.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// The drafter that ships with an embedded or a known target, else prompt lookup.
pub const AUTO_DRAFTER: &str = "auto";

/// The drafters that `drafter.model` names, as they are written. [`super::Config::drafter_choices`]
/// has what they mean.
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
    pub(super) fn of(names: Vec<String>) -> Self {
        if names.is_empty() { Self::none() } else { Self(names) }
    }

    /// The names in their order.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Fault of the value; `None` if there is none.
    pub(super) fn fault(&self) -> Option<&'static str> {
        match self.0.as_slice() {
            [] => Some(
                "expected at least one drafter, found an empty list; write \"\" for none or \"auto\" for the default",
            ),
            [_] => None,
            names if names.iter().any(String::is_empty) => Some(
                "expected a drafter in each place of the list, found \"\"; remove that place, or write \"\" alone for none",
            ),
            _ => None,
        }
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
    use crate::config::{Config, ConfigError, DrafterChoice, Loaded};

    fn config(value: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let text = if value.is_empty() { String::new() } else { format!("[drafter]\n{value}\n") };
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Loaded::from_text(&text, &environment).map(|loaded| loaded.config)
    }

    fn names(value: &str, environment: &[(&str, &str)]) -> Vec<String> {
        config(value, environment).expect("accepted").drafter.model.names().to_vec()
    }

    #[test]
    fn drafters_are_a_text_an_array_or_a_text_with_commas() {
        let variable = |value| [("PACELINE_DRAFTER__MODEL", value)];
        for (written, variables, expected) in [
            ("", None, &["auto"][..]),
            ("model = \"lookup\"", None, &["lookup"]),
            ("model = \"\"", None, &[""]),
            ("model = [\"\"]", None, &[""]),
            ("model = [\"a\", \"lookup\"]", None, &["a", "lookup"]),
            ("model = [\"a,b\", \"auto\"]", None, &["a,b", "auto"]),
            ("model = \"a, b\"", None, &["a", "b"]),
            ("model = [\"a\", \"b\"]", Some("c"), &["c"]),
            ("model = \"a\"", Some("c,org/d, lookup"), &["c", "org/d", "lookup"]),
            ("", Some(""), &[""]),
            ("", Some(r"a\,b,c\\,d\e"), &["a,b", r"c\", r"d\e"]),
        ] {
            let found = names(written, variables.map(variable).as_slice().concat().as_slice());
            assert_eq!(found, expected, "{written} {variables:?}");
        }
    }

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

    #[test]
    fn an_empty_list_and_an_empty_place_are_refused_with_what_to_do() {
        let refusal = |value: &str, environment: &[(&str, &str)]| {
            config(value, environment).expect_err("refused").to_string()
        };
        let empty = refusal("model = []", &[]);
        assert!(
            empty.contains("drafter.model: expected at least one drafter, found an empty list")
                && empty.contains("\"\" for none"),
            "{empty}"
        );
        for (value, environment) in [
            ("model = [\"a\", \"\"]", &[][..]),
            ("", &[("PACELINE_DRAFTER__MODEL", "a,,lookup")]),
            ("", &[("PACELINE_DRAFTER__MODEL", "a,")]),
        ] {
            let place = refusal(value, environment);
            assert!(
                place.contains("drafter.model: expected a drafter in each place of the list")
                    && place.contains("\"\" alone for none"),
                "{place}"
            );
        }
        for value in ["model = 3", "model = [3]", "model = true"] {
            assert!(refusal(value, &[]).contains("drafter.model"), "{value}");
        }
    }

    #[test]
    fn a_kind_is_that_of_each_checkpoint_of_the_list() {
        let with =
            |models: &str, kind: &str| config(&format!("model = {models}\nkind = {kind:?}"), &[]);
        for (models, kind) in [
            ("[\"/a\", \"lookup\"]", "auto"),
            ("[\"/a\", \"/b\", \"lookup\"]", "dflash"),
            ("[\"auto\", \"lookup\"]", "lookup"),
            ("[\"/a\"]", "dflash"),
        ] {
            assert!(with(models, kind).is_ok(), "{models} {kind}");
        }
        for (models, kind) in
            [("[\"/a\", \"lookup\"]", "lookup"), ("[\"lookup\", \"lookup\"]", "dflash")]
        {
            let refused = with(models, kind).expect_err("refused").to_string();
            let expected = format!("drafter.kind: expected \"auto\" with drafter.model = {models}");
            assert!(refused.contains(&expected) && refused.contains(kind), "{refused}");
        }
        let refused = with("[\"lookup\"]", "dflash").expect_err("refused").to_string();
        assert!(refused.contains("with drafter.model = \"lookup\", found"), "{refused}");
    }

    #[test]
    fn a_list_is_resolved_to_directories_without_repetitions() {
        let mut config = config(
            "model = [\"/d\", \"auto\", \"lookup\", \"/d\"]",
            &[("PACELINE_TARGET__MODEL", "/t")],
        )
        .expect("accepted");
        let expected = [DrafterChoice::Directory("/d".into()), DrafterChoice::Lookup];
        assert_eq!(config.drafter_choices(), expected);
        config.target.model = "/".into();
        config.resolve_models().expect("the target is there, and drafters need not be");
        assert_eq!(config.drafter.model.names(), ["/d", "lookup"]);
        assert_eq!(config.model_variables().map(|(_, model)| model)[1], "/d,lookup");
        let missing = config.missing_drafters();
        assert!(
            matches!(missing.as_slice(), [one] if one.to_string().contains("drafter.model")),
            "{missing:?}"
        );
        config.drafter.model = DrafterModels::none();
        assert_eq!(config.drafter_choices(), []);
        config.resolve_models().expect("no drafter is named");
        assert_eq!(config.drafter.model, DrafterModels::none());
    }

    #[test]
    fn the_embedded_drafter_stays_with_the_embedded_target() {
        let mut config = Config::default();
        config.target.model = "demo-target".to_owned();
        config.resolve_models().expect("the embedded models are there");
        let embedded = config.drafter.model.names().to_vec();
        assert_ne!(embedded, ["lookup"], "it was found");
        let same = config.with_target("demo-target").drafter_choices();
        assert_eq!(same.iter().map(DrafterChoice::name).collect::<Vec<_>>(), embedded);
        let other = config.with_target("/models/b");
        assert_eq!(other.drafter_choices(), [DrafterChoice::Lookup]);
        let named = self::config("model = \"/d\"", &[]).expect("accepted").with_target("/models/b");
        assert_eq!(named.drafter.model.names(), ["/d"]);
    }

    #[test]
    fn a_running_drafter_is_adopted_by_a_supervisor_with_the_same_list() {
        let digest = |models: &str| {
            let mut config = Config::default();
            config.drafter.model = DrafterModels::parse(models);
            (config.drafter_digest(), config.target_digest())
        };
        assert_eq!(digest("/a,lookup"), digest("/a, lookup"));
        assert_ne!(digest("/a,lookup"), digest("lookup,/a"));
        assert_ne!(digest("/a,lookup"), digest(r"/a\,lookup"));
    }
}
