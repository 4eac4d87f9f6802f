//! Directories of the models that a configuration names.

use std::path::PathBuf;

use super::{
    AUTO_DRAFTER, Config, ConfigError, DrafterChoice, DrafterModels, LOOKUP, MTP, TARGET_HEAD,
    WITH_LOOKUP, WITHOUT_DIRECTORY,
};
use crate::chain;
use paceline_checkpoint::{
    CURRENT, EMBEDDED, EmbeddedModel, KnownModel, ModelPlaces, ModelRef, SMOLLM2, known_model,
    name_of,
};

/// Environment variables with the directories of the models of a worker, and the sections of their
/// keys. They win over all settings: an operator may have swapped a model.
pub(super) const PINS: [(&str, &str); 2] =
    [("PACELINE_PINNED_TARGET", "target"), ("PACELINE_PINNED_DRAFTER", "drafter")];

/// The files of a drafter with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterFiles {
    /// Their directory.
    pub dir: PathBuf,
    /// A value of `drafter.kind` other than lookup, without prompt lookup beside it.
    pub kind: String,
    /// Whether prompt lookup runs beside it; `None`: if it can.
    pub lookup: Option<bool>,
}

impl Config {
    /// Replaces the names of models by their absolute directories. Done once by the process that
    /// starts workers, which get the directories ([`Config::model_variables`]).
    ///
    /// # Errors
    /// As [`Config::model_dir`], and a path that is not UTF-8.
    pub fn resolve_models(&mut self) -> Result<(), ConfigError> {
        let text = |key: &str, dir: PathBuf| {
            dir.into_os_string().into_string().map_err(|dir| {
                ConfigError::value(key, format!("expected a path in UTF-8, found {dir:?}"))
            })
        };
        // The drafter of "auto" is that of the target's name.
        let drafters = self.drafter_choices().into_iter().map(|choice| match choice {
            DrafterChoice::Directory(dir) => text("drafter.model", dir),
            choice => Ok(choice.name()),
        });
        let drafters = drafters.collect::<Result<_, _>>()?;
        self.target.model = text("target.model", self.model_dir()?)?;
        self.drafter.model = DrafterModels::of(drafters);
        Ok(())
    }

    /// This configuration with the target in the directory `model`. An embedded drafter goes with
    /// its own target alone, so it becomes [`AUTO_DRAFTER`] again.
    pub fn with_target(&self, model: &str) -> Self {
        let of_known = KnownModel::all().iter().filter_map(KnownModel::embedded_drafter);
        let of_embedded = EMBEDDED.iter().filter_map(EmbeddedModel::drafter_dir);
        let embedded: Vec<PathBuf> = of_embedded.chain(of_known).collect();
        let names = self.drafter.model.names().iter().map(|name| {
            match embedded.iter().any(|dir| dir.as_os_str() == name.as_str()) {
                true => AUTO_DRAFTER.to_owned(),
                false => name.clone(),
            }
        });
        let mut config = self.clone();
        config.drafter.model = DrafterModels::of(names.collect());
        config.target.model = model.to_owned();
        config
    }

    /// Environment variables by which a worker that is started reads the same models.
    pub fn model_variables(&self) -> [(&'static str, String); 2] {
        let [(target, _), (drafter, _)] = PINS;
        [(target, self.target.model.clone()), (drafter, self.drafter.model.to_string())]
    }

    /// Absolute directory of the served model, `target.model`.
    ///
    /// # Errors
    /// The directory does not exist, the named model is not on this machine, or the embedded model
    /// is not where it is installed.
    pub fn model_dir(&self) -> Result<PathBuf, ConfigError> {
        ModelPlaces::of_user()
            .locate(&ModelRef::parse(&self.target.model))
            .map_err(|error| ConfigError::value("target.model", chain(&error)))
    }

    /// The configured drafters, `drafter.model`, in the order in which they are tried. Each is there
    /// once; without any the list is empty.
    pub fn drafter_choices(&self) -> Vec<DrafterChoice> {
        let mut choices = Vec::new();
        for name in self.drafter.model.names() {
            let choice = self.drafter_named(name);
            if choice != DrafterChoice::None && !choices.contains(&choice) {
                choices.push(choice);
            }
        }
        choices
    }

    /// The drafter that this name in `drafter.model` means.
    pub fn drafter_named(&self, model: &str) -> DrafterChoice {
        match model {
            "" => DrafterChoice::None,
            LOOKUP => DrafterChoice::Lookup,
            TARGET_HEAD => DrafterChoice::TargetHead,
            AUTO_DRAFTER if self.drafter.kind == LOOKUP => DrafterChoice::Lookup,
            AUTO_DRAFTER => {
                let own = self.drafter_of_target(&ModelPlaces::of_user());
                own.unwrap_or(DrafterChoice::Lookup)
            }
            model => DrafterChoice::Directory(drafter_place(&ModelPlaces::of_user(), model)),
        }
    }

    /// The drafter that ships with the target: that of an embedded model, that of a known one if it
    /// lies with the programs, or if it is on this machine.
    pub(super) fn drafter_of_target(&self, places: &ModelPlaces) -> Option<DrafterChoice> {
        let target = ModelRef::parse(&self.target.model);
        let embedded = match &target {
            ModelRef::Embedded(model) => Some(*model),
            ModelRef::Directory(dir) | ModelRef::DirectoryIfThere(dir) => EmbeddedModel::at(dir),
            _ => None,
        };
        if let Some(model) = embedded {
            return model.drafter_dir().map(DrafterChoice::Directory);
        }
        let known = known_model(&target)?;
        let KnownModel { drafter, .. } = known;
        if drafter == TARGET_HEAD {
            return Some(DrafterChoice::TargetHead);
        }
        if let Some(dir) = known.embedded_drafter() {
            return Some(DrafterChoice::Directory(dir));
        }
        let there = places.locate(&ModelRef::parse(drafter));
        there.ok().filter(|_| drafter != LOOKUP).map(DrafterChoice::Directory)
    }

    /// Where the weights of a drafter are, and of which kind they are; `None` if it has none.
    ///
    /// # Errors
    /// They are the target's, and [`Config::model_dir`] has no directory of it.
    pub fn drafter_files(
        &self,
        choice: &DrafterChoice,
    ) -> Result<Option<DrafterFiles>, ConfigError> {
        let kind = &self.drafter.kind;
        let (kind, lookup) = match kind.strip_prefix(WITH_LOOKUP) {
            Some(kind) => (kind.to_owned(), Some(true)),
            None => (kind.clone(), (kind != AUTO_DRAFTER).then_some(false)),
        };
        Ok(match choice {
            DrafterChoice::None | DrafterChoice::Lookup => None,
            DrafterChoice::Directory(dir) => Some(DrafterFiles { dir: dir.clone(), kind, lookup }),
            DrafterChoice::TargetHead => {
                Some(DrafterFiles { dir: self.model_dir()?, kind: MTP.to_owned(), lookup })
            }
        })
    }

    /// One error for each checkpoint of `drafter.model` that is not there, with what to do.
    pub fn missing_drafters(&self) -> Vec<ConfigError> {
        let places = ModelPlaces::of_user();
        let names = self.drafter.model.names().iter().map(String::as_str);
        names
            .filter(|name| !["", AUTO_DRAFTER].contains(name) && !WITHOUT_DIRECTORY.contains(name))
            .filter_map(|name| places.locate(&ModelRef::parse(name)).err())
            .map(|error| ConfigError::value("drafter.model", chain(&error)))
            .collect()
    }

    /// Name of the served model for clients: its name on the hub, that of an embedded model, else its
    /// directory's name.
    pub fn model_name(&self) -> String {
        let model = ModelRef::parse(&self.target.model);
        if let Some(name) = model.hub_name() {
            return name.to_string();
        }
        let dir = match model {
            ModelRef::Named(_) => None,
            ModelRef::Embedded(model) => return model.name.to_owned(),
            ModelRef::Smollm2 => return SMOLLM2.to_owned(),
            // The directory that stands for it has its name.
            ModelRef::Foreign(_) => ModelPlaces::of_user().locate(&model).ok(),
            ModelRef::Directory(dir)
            | ModelRef::BelowHome(dir)
            | ModelRef::DirectoryIfThere(dir) => Some(dir),
        };
        let name = dir.and_then(|dir| name_of(&std::path::absolute(&dir).unwrap_or(dir)));
        name.unwrap_or_else(|| self.target.model.clone())
    }
}

/// Where a drafter is, or would be if it were there.
fn drafter_place(places: &ModelPlaces, model: &str) -> PathBuf {
    let model = ModelRef::parse(model);
    if let Ok(dir) = places.locate(&model) {
        return dir;
    }
    let own = places.own.clone().unwrap_or_default();
    let of_hub = model.hub_name().map(|name| own.join(name.folder()).join(CURRENT));
    let path = of_hub.unwrap_or_else(|| match model {
        ModelRef::Named(name) => own.join(name.folder()),
        ModelRef::Smollm2 => own.join(SMOLLM2),
        ModelRef::BelowHome(path) => places.home.clone().unwrap_or_default().join(path),
        ModelRef::Directory(path) | ModelRef::DirectoryIfThere(path) => path,
        ModelRef::Embedded(model) => PathBuf::from(model.name),
        ModelRef::Foreign(name) => PathBuf::from(name.to_string()),
    });
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loaded;

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
    fn a_drafter_that_lies_with_the_programs_stays_with_its_target() {
        for target in ["demo-target", "smollm2"] {
            let mut config = Config::default();
            config.target.model = target.to_owned();
            let own = config.drafter_choices();
            assert_ne!(own, [DrafterChoice::Lookup], "{target}");
            config.drafter.model = DrafterModels::one(own[0].name());
            assert_eq!(config.with_target(target).drafter_choices(), own);
            let other = config.with_target("/models/b");
            assert_eq!(other.drafter_choices(), [DrafterChoice::Lookup], "{target}");
        }
        let named = self::config("model = \"/d\"", &[]).expect("accepted").with_target("/models/b");
        assert_eq!(named.drafter.model.names(), ["/d"]);
    }

    #[test]
    fn a_running_drafter_is_adopted_by_a_supervisor_with_the_same_list() {
        let digest = |models: &str| {
            let config = config(&format!("model = {models:?}"), &[]).expect("accepted");
            (config.drafter_digest(), config.target_digest())
        };
        assert_eq!(digest("/a,lookup"), digest("/a, lookup"));
        assert_ne!(digest("/a,lookup"), digest("lookup,/a"));
        assert_ne!(digest("/a,lookup"), digest(r"/a\,lookup"));
    }
}
