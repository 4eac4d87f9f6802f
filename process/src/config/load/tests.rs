use std::fs;

use super::*;
use crate::config::flags_text;

/// A directory with a configuration file.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(text: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        fs::write(place.file(), text).expect("writable");
        place
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("paceline.toml")
    }

    fn kept(&self) -> PathBuf {
        self.dir.path().join("paceline.settings.toml")
    }

    fn load(&self, environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        Loaded::build(Some(&self.file()), &owned(environment))
    }

    fn keep(
        &self,
        changes: &[KeptChange],
        environment: &[(&str, &str)],
    ) -> Result<Loaded, ConfigError> {
        let environment = owned(environment);
        let files = Files::of(Some(&self.file()), &environment).expect("a path");
        Loaded::keep_with(files, changes, &environment)
    }
}

fn owned(environment: &[(&str, &str)]) -> Vec<(String, String)> {
    environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn set(key: &str, value: &str) -> KeptChange {
    KeptChange::Set(Assignment::new(key, value))
}

fn queue(loaded: &Loaded) -> (u32, Source) {
    (loaded.config.limits.queue, loaded.source("limits.queue"))
}

#[test]
fn a_flag_wins_over_the_environment_it_over_kept_settings_and_they_over_the_file() {
    let place = Place::new("");
    let check = |environment: &[(&str, &str)], expected| {
        assert_eq!(queue(&place.load(environment).expect("accepted")), expected);
    };
    check(&[], (128, Source::Default));
    fs::write(place.file(), "[limits]\nqueue = 1\n").expect("writable");
    check(&[], (1, Source::File));
    place.keep(&[set("limits.queue", "2")], &[]).expect("kept");
    check(&[], (2, Source::Kept));
    let variable = ("PACELINE_LIMITS__QUEUE", "3");
    check(&[variable], (3, Source::Environment));
    let flags = flags_text(&[Assignment::new("limits.queue", "4")]);
    check(&[variable, (FLAGS_VAR, &flags)], (4, Source::Flag));
    let own = [Assignment::new("limits.queue", "5")];
    let files = Files::of(Some(&place.file()), &[]).expect("a path");
    let loaded = Loaded::read(files, &owned(&[(FLAGS_VAR, &flags)]), &own).expect("accepted");
    assert_eq!(queue(&loaded), (5, Source::Flag));
    // A process that this one starts reads the same.
    let variables = loaded.variables().map(|(name, value)| (name.to_owned(), value));
    let files = Files::find(None, &variables).expect("paths");
    assert_eq!(queue(&Loaded::read(files, &variables, &[]).expect("accepted")), (5, Source::Flag));
}

#[test]
fn a_kept_setting_that_is_overridden_is_kept_all_the_same() {
    let place = Place::new("");
    let loaded =
        place.keep(&[set("limits.queue", "2")], &[("PACELINE_LIMITS__QUEUE", "3")]).expect("kept");
    assert_eq!(queue(&loaded), (3, Source::Environment));
    assert_eq!(queue(&place.load(&[]).expect("accepted")), (2, Source::Kept));
}

#[test]
fn a_change_that_the_configuration_refuses_changes_nothing() {
    let place = Place::new("[kv]\nbudget_bytes = 1000\n");
    place.keep(&[set("limits.queue", "2")], &[]).expect("kept");
    let before = fs::read_to_string(place.kept()).expect("written");
    for (change, expected) in [
        (
            set("limits.queue", "many"),
            "limits.queue: expected integer, found \"many\" in config set",
        ),
        (set("limits.qeue", "2"), "did you mean limits.queue?"),
        (set("queue", "2"), "did you mean limits.queue?"),
        (set("routing.force", "maybe"), "routing.force: unknown variant"),
        (set("limits.deadline_s", "0"), "limits.deadline_s: expected at least 1"),
        (set("kv.budget_fraction", "0.5"), "expected one of kv.budget_bytes and"),
    ] {
        let refused = place.keep(&[set("limits.queue", "3"), change], &[]).expect_err("refused");
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    let slip = KeptChange::Unset("limits.qeue".to_owned());
    let refused = place.keep(&[slip], &[]).expect_err("no such key").to_string();
    assert!(refused.contains("did you mean limits.queue?"), "{refused}");
    assert_eq!(fs::read_to_string(place.kept()).expect("there"), before);
}

#[test]
fn settings_are_taken_back() {
    let place = Place::new("");
    let changes = [
        set("limits.queue", "2"),
        set("classes.Alice", "code"),
        set("drafter.model", "/a,lookup"),
        set("routing.max_concurrent", "3"),
    ];
    let loaded = place.keep(&changes, &[]).expect("kept");
    assert_eq!(loaded.config.classes["Alice"], "code");
    assert_eq!(loaded.config.drafter.model.names(), ["/a", "lookup"]);
    let kept = |loaded: &Loaded| {
        let kept = loaded.settings().iter().filter(|setting| setting.source == Source::Kept);
        kept.map(|setting| format!("{}={}", setting.key, setting.value)).collect::<Vec<_>>()
    };
    assert_eq!(
        kept(&loaded),
        [
            "classes.Alice=code",
            "drafter.model=[\"/a\", \"lookup\"]",
            "limits.queue=2",
            "routing.max_concurrent=3"
        ]
    );
    let unset = |key: &str| KeptChange::Unset(key.to_owned());
    let changes =
        ["limits.queue", "classes.Alice", "drafter.model", "limits.deadline_s"].map(unset);
    let loaded = place.keep(&changes, &[]).expect("taken back");
    assert_eq!(kept(&loaded), ["routing.max_concurrent=3"]);
    assert_eq!(queue(&loaded), (128, Source::Default));
    let text = fs::read_to_string(place.kept()).expect("there");
    assert!(text.starts_with("# Written by `paceline config set`"), "{text}");
    assert!(!text.contains("[limits]"), "{text}");
}

#[test]
fn a_file_that_a_killed_writer_left_is_no_obstacle() {
    let place = Place::new("");
    place.keep(&[set("limits.queue", "2")], &[]).expect("kept");
    fs::write(place.dir.path().join(".paceline.settings.toml.new"), "[limits]\nque")
        .expect("writable");
    assert_eq!(queue(&place.load(&[]).expect("accepted")), (2, Source::Kept));
    let loaded = place.keep(&[set("limits.queue", "3")], &[]).expect("kept");
    assert_eq!(queue(&loaded), (3, Source::Kept));
    assert_eq!(fs::read_dir(place.dir.path()).expect("a directory").count(), 2);
}

#[test]
fn kept_settings_go_with_a_file_or_are_named() {
    let place = Place::new("");
    let elsewhere = place.dir.path().join("elsewhere.toml");
    let name = elsewhere.display().to_string();
    let files =
        |environment: &[(&str, &str)]| Files::find(None, &owned(environment)).expect("paths");
    let config = place.file().display().to_string();
    assert_eq!(files(&[(CONFIG_VAR, &config)]).kept, Some(place.kept()));
    assert_eq!(files(&[(CONFIG_VAR, &config), (SETTINGS_VAR, "")]).kept, None);
    assert_eq!(files(&[(CONFIG_VAR, "")]).kept, None);
    assert_eq!(files(&[(CONFIG_VAR, ""), (SETTINGS_VAR, &name)]).kept, Some(elsewhere));
    let refused = Loaded::keep_with(files(&[(CONFIG_VAR, "")]), &[set("limits.queue", "2")], &[]);
    let refused = refused.expect_err("no place").to_string();
    assert!(refused.contains("unset PACELINE_CONFIG"), "{refused}");
}

#[test]
fn a_pinned_model_wins_and_its_setting_has_its_source() {
    let place = Place::new("[target]\nmodel = \"org/name\"\n");
    let flags = flags_text(&[Assignment::new("drafter.model", "lookup")]);
    let loaded = place
        .load(&[
            (FLAGS_VAR, &flags),
            ("PACELINE_PINNED_TARGET", "/models/other"),
            ("PACELINE_PINNED_DRAFTER", "/models/drafter"),
        ])
        .expect("accepted");
    assert_eq!(loaded.config.target.model, "/models/other");
    assert_eq!(loaded.source("target.model"), Source::File);
    assert_eq!(loaded.config.drafter.model.names(), ["/models/drafter"]);
    assert_eq!(loaded.source("drafter.model"), Source::Flag);
}

#[test]
fn a_choice_of_the_default_model_goes_on_to_children_and_any_setting_wins_over_it() {
    let place = Place::new("");
    let loaded = place.load(&[(DEFAULT_MODEL_VAR, "demo-target")]).expect("accepted");
    assert_eq!(loaded.config.target.model, "demo-target");
    assert_eq!(loaded.variables()[3], (DEFAULT_MODEL_VAR, "demo-target".to_owned()));
    assert!(!loaded.has_stand_in() && loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let shown = loaded.settings().iter().find(|setting| setting.key == "target.model");
    let shown = shown.map(|setting| (setting.value.as_str(), setting.source));
    assert_eq!(shown, Some(("smollm2", Source::Default)));
    for (variable, named) in [("PACELINE_TARGET__MODEL", "/m"), ("PACELINE_PINNED_TARGET", "/m")] {
        let loaded =
            place.load(&[(DEFAULT_MODEL_VAR, "demo-target"), (variable, named)]).expect("accepted");
        assert_eq!(loaded.config.target.model, "/m");
        assert_eq!(loaded.variables()[3].1, "");
    }
}

#[test]
fn a_stand_in_is_replaced_by_a_default_model_that_has_come_and_else_stays_with_a_sentence() {
    let place = Place::new("");
    let own = place.dir.path().join("models");
    let places = ModelPlaces { own: Some(own.clone()), ..ModelPlaces::default() };
    let stand_in = || {
        let mut loaded = place.load(&[(DEFAULT_MODEL_VAR, "demo-target")]).expect("accepted");
        loaded.default_model.as_mut().expect("nothing is named").is_stand_in = true;
        loaded.warnings = vec![stand_in_sentence("")];
        loaded
    };
    let mut loaded = stand_in();
    let said = loaded.settle_default_model(&places, " and could not be fetched: x").expect("none");
    assert!(said.starts_with("smollm2 is not here and could not be fetched: x; serving"), "{said}");
    assert!(loaded.warnings.is_empty() && !loaded.has_stand_in(), "it is said once");
    assert_eq!(loaded.variables()[3].1, "demo-target");
    std::fs::create_dir_all(own.join("smollm2")).expect("made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(own.join("smollm2").join(name), "{}").expect("written");
    }
    let mut loaded = stand_in();
    assert_eq!(loaded.settle_default_model(&places, ""), None);
    assert_eq!((&*loaded.config.target.model, &*loaded.variables()[3].1), ("smollm2", "smollm2"));
    assert!(loaded.warnings.is_empty());
    let mut named = place.load(&[("PACELINE_TARGET__MODEL", "/m")]).expect("accepted");
    assert_eq!(named.settle_default_model(&places, ""), None);
    assert_eq!(named.config.target.model, "/m");
}

#[test]
fn kept_settings_that_are_broken_are_refused_by_their_file() {
    let place = Place::new("");
    for (text, expected) in [
        ("[limits", "is not valid TOML"),
        ("[limits]\nqeue = 1\n", "paceline.settings.toml); did you mean"),
    ] {
        fs::write(place.kept(), text).expect("writable");
        let refused = place.load(&[]).expect_err("refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn the_changed_policy_has_values_and_sources_and_no_default() {
    let place = Place::new("routing.max_concurrent = 3\nlimits.queue = 2\n");
    let environment = [
        ("PACELINE_ROUTING__FORCE".to_owned(), "auto".to_owned()),
        ("PACELINE_ROUTING__MAX_CONTEXT".to_owned(), "9".to_owned()),
    ];
    let loaded = Loaded::build(Some(&place.file()), &environment).expect("accepted");
    let mut found: Vec<String> = loaded
        .changed_policy()
        .map(|setting| format!("{}={} {}", setting.key, setting.value, setting.source))
        .collect();
    found.sort();
    assert_eq!(found, ["routing.max_concurrent=3 file", "routing.max_context=9 environment"]);
}
