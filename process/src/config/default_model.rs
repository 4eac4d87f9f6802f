//! The model that is served if nothing names one: smollm2, which talks. Where it is not on this
//! machine, the embedded demo model takes its place.

use paceline_checkpoint::{DEMO_TARGET, KnownModel, ModelPlaces, ModelRef, SMOLLM2};

/// Environment variable with the model that a process chose because nothing names one. The processes
/// that it starts choose the same, also if smollm2 is pulled meanwhile. Any setting wins over it.
pub const DEFAULT_MODEL_VAR: &str = "PACELINE_DEFAULT_MODEL";

/// The model of a configuration that names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DefaultModel {
    /// Its name.
    pub(super) name: String,
    /// Whether it stands in for smollm2, which is not on this machine.
    pub(super) is_stand_in: bool,
}

impl DefaultModel {
    /// The model for these settings, `None` if they name one. `chosen`: the value of
    /// [`DEFAULT_MODEL_VAR`].
    pub(super) fn of(
        target: Option<&toml::Value>,
        chosen: Option<&str>,
        places: &ModelPlaces,
    ) -> Option<Self> {
        let named = target.and_then(|section| section.get("model")).and_then(toml::Value::as_str);
        if named.is_some_and(|name| !name.is_empty()) {
            return None;
        }
        if let Some(chosen) = chosen.filter(|name| !name.is_empty()) {
            return Some(Self { name: chosen.to_owned(), is_stand_in: false });
        }
        let is_stand_in = places.locate(&ModelRef::Smollm2).is_err();
        let name = if is_stand_in { DEMO_TARGET } else { SMOLLM2 };
        Some(Self { name: name.to_owned(), is_stand_in })
    }
}

/// The sentence about a stand-in. `why` is a clause about smollm2.
pub(super) fn stand_in_sentence(why: &str) -> String {
    let size = KnownModel::named(SMOLLM2).map(KnownModel::size).unwrap_or_default();
    format!(
        "{SMOLLM2} is not here{why}; serving the embedded demo model, which cannot answer questions. \
         `paceline pull {SMOLLM2}` fetches it ({size})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smollm2_is_the_default_if_it_is_here_and_a_choice_that_was_made_holds() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let own = dir.path().join("models");
        let places = ModelPlaces { own: Some(own.clone()), ..ModelPlaces::default() };
        let section = |text: &str| text.parse::<toml::Table>().expect("TOML").into();
        let choose = |target: &str, chosen: Option<&str>| {
            let found = DefaultModel::of(Some(&section(target)), chosen, &places);
            found.map(|found| (found.name, found.is_stand_in))
        };
        let model = |name: &str, is_stand_in| Some((name.to_owned(), is_stand_in));
        for unnamed in ["", "threads = 2", "model = \"\""] {
            assert_eq!(choose(unnamed, None), model("demo-target", true), "{unnamed}");
            assert_eq!(choose(unnamed, Some("")), model("demo-target", true));
            assert_eq!(choose(unnamed, Some("smollm2")), model("smollm2", false));
        }
        assert_eq!(choose("model = \"smollm2\"", None), None, "it was named");
        assert_eq!(choose("model = \"/m\"", Some("smollm2")), None);
        assert_eq!(
            DefaultModel::of(None, None, &places).map(|found| found.is_stand_in),
            Some(true)
        );
        std::fs::create_dir_all(own.join("smollm2")).expect("made");
        for name in ["config.json", "model.safetensors"] {
            std::fs::write(own.join("smollm2").join(name), "{}").expect("written");
        }
        assert_eq!(choose("", None), model("smollm2", false));
        assert_eq!(choose("", Some("demo-target")), model("demo-target", false), "it holds");
    }

    #[test]
    fn the_sentence_about_a_stand_in_has_the_command_and_the_size() {
        assert_eq!(
            stand_in_sentence(" and could not be fetched: no network"),
            "smollm2 is not here and could not be fetched: no network; serving the embedded demo \
             model, which cannot answer questions. `paceline pull smollm2` fetches it (93 MB)"
        );
    }
}
