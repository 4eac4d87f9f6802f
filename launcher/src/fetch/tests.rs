//! Which models are fetched, and what is refused.

use paceline_process::config::Assignment;
use serde_json::json;

use super::*;

const GIB: u64 = 1 << 30;

/// Places with the pulled model `org/here`.
fn places() -> (tempfile::TempDir, ModelPlaces) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let own = dir.path().join("paceline/models");
    let model = own.join("org--here/c0");
    std::fs::create_dir_all(&model).expect("made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(model.join(name), "{}").expect("written");
    }
    std::os::unix::fs::symlink("c0", own.join("org--here/current")).expect("linked");
    (dir, ModelPlaces { own: Some(own), ..ModelPlaces::default() })
}

fn loaded(settings: &[(&str, &str)]) -> Loaded {
    let flags: Vec<Assignment> =
        settings.iter().map(|(key, value)| Assignment::new(key, *value)).collect();
    Loaded::find_with_flags(Some("/dev/null".as_ref()), &flags).expect("accepted")
}

fn model(key: &'static str, is_required: bool) -> MissingModel {
    MissingModel { key, name: "org/name".to_owned(), is_required }
}

#[test]
fn models_of_a_hub_that_are_not_there_are_missing() {
    let (_dir, places) = places();
    let found = |settings: &[(&str, &str)]| -> Vec<String> {
        let missing = missing(&places, &loaded(settings));
        missing.iter().map(|model| format!("{} {}", model.key, model.name)).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(found(&[(TARGET, "demo-target")]), none);
    assert_eq!(found(&[(TARGET, "smollm2")]), ["target.model smollm2"]);
    assert_eq!(
        found(&[(TARGET, "coder")]),
        ["target.model mlx-community/Qwen2.5-Coder-1.5B-Instruct-4bit"]
    );
    assert_eq!(found(&[(TARGET, "org/here"), (DRAFTER, "org/here")]), none);
    assert_eq!(found(&[(TARGET, "./org/name"), (DRAFTER, "./smollm2")]), none);
    assert_eq!(found(&[(TARGET, "org/name")]), ["target.model org/name"]);
    let both = [(TARGET, "org/name"), (DRAFTER, "a/b")];
    assert_eq!(found(&both), ["target.model org/name", "drafter.model a/b"]);
    assert_eq!(found(&[(TARGET, "a/b"), (DRAFTER, "a/b")]), ["target.model a/b"], "once");
}

#[test]
fn the_drafter_of_a_known_model_is_fetched_with_it_and_not_alone() {
    let (_dir, places) = places();
    let found = |settings: &[(&str, &str)]| -> Vec<(String, bool)> {
        let missing = missing(&places, &loaded(settings));
        missing.into_iter().map(|model| (model.name, model.is_required)).collect()
    };
    let model = ("mlx-community/Qwen3-8B-4bit".to_owned(), true);
    let drafter = ("z-lab/Qwen3-8B-DFlash-b16".to_owned(), false);
    for target in ["qwen3-8b", "mlx-community/Qwen3-8B-4bit"] {
        assert_eq!(found(&[(TARGET, target)]), [model.clone(), drafter.clone()]);
        let alone = found(&[(TARGET, target), (DRAFTER, "lookup")]);
        assert_eq!(alone.iter().collect::<Vec<_>>(), [&model]);
    }
    let place = places.own.as_ref().expect("set").join("mlx-community--Qwen3-8B-4bit");
    std::fs::create_dir_all(&place).expect("made");
    let here = places.of_model(&"org/here".parse().expect("a name")).expect("set");
    std::os::unix::fs::symlink(here.join("c0"), place.join("current")).expect("linked");
    assert_eq!(found(&[(TARGET, "qwen3-8b")]), []);
}

#[test]
fn a_default_model_that_cannot_be_fetched_is_no_failure_and_a_named_one_is() {
    let mut screen = Screen::over(std::io::sink(), std::io::sink());
    let model = |key, is_required| MissingModel { key, name: "smollm2".to_owned(), is_required };
    let mut outcome = |model| {
        unless_optional(&model, Err(Failure::unreachable("no network")), &mut screen)
            .map_err(|failure| failure.message)
    };
    assert_eq!(outcome(model(TARGET, false)), Ok(" and could not be fetched: no network".into()));
    assert_eq!(outcome(model(TARGET, true)), Err("no network".into()));
    assert_eq!(outcome(model(DRAFTER, false)), Ok(String::new()));
}

#[test]
fn of_several_drafters_those_before_the_first_that_is_there_are_missing() {
    let (_dir, places) = places();
    let found = |drafters: &str| -> Vec<String> {
        let settings = [(TARGET, "demo-target"), (DRAFTER, drafters)];
        let missing = missing(&places, &loaded(&settings));
        missing.iter().map(|model| model.name.to_string()).collect()
    };
    assert_eq!(found("a/b,lookup,c/d"), ["a/b"]);
    assert_eq!(found("./nothing,a/b,org/here,c/d"), ["a/b"]);
    assert_eq!(found("lookup,a/b"), Vec::<String>::new());
}

#[test]
fn a_drafter_is_required_only_if_a_flag_names_it() {
    let (_dir, places) = places();
    let flagged = missing(&places, &loaded(&[(TARGET, "demo-target"), (DRAFTER, "a/b")]));
    assert!(flagged[0].is_required);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "drafter.model = \"a/b\"\ntarget.model = \"c/d\"")
        .expect("written");
    let configured = Loaded::build(Some(file.path()), &[]).expect("accepted");
    let found = missing(&places, &configured);
    assert_eq!(found.iter().map(|one| one.is_required).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_figures_and_what_to_do() {
    let plan = PullPlan {
        hub: "https://h".into(),
        directory: "/d".into(),
        files: vec![json!({}); 3],
        fetch_bytes: 4 * GIB,
        weight_bytes: 4 * GIB,
        free_bytes: Some(5 * GIB),
        has_room: true,
        config: json!({}),
        headers: vec![],
    };
    let memory = ModelMemory { weight_bytes: 8 * GIB, kv_bytes: GIB, form: "as float32".into() };
    let target = model(TARGET, true);
    let device = |gib: u64| Some(gib * GIB);
    let refused = |taken, before, device, plan: &PullPlan| {
        refusal(&target, plan, &memory, taken, before, device)
    };
    assert_eq!(refused(0, 0, device(9), &plan), None);
    assert_eq!(refused(GIB, GIB, device(10), &plan), None);
    assert_eq!(refused(0, 0, None, &plan), None, "unknown is no reason to refuse");
    let why = refused(0, 0, device(8), &plan).expect("too much memory");
    for word in ["target.model: org/name", "9.0 GiB", "as float32", "8.0 GiB can", "smaller model"]
    {
        assert!(why.contains(word), "{word:?} in {why}");
    }
    let why = refused(2 * GIB, 0, device(10), &plan).expect("too much beside the other");
    assert!(why.contains("beside 2.0 GiB of the other model"), "{why}");
    let full = PullPlan { has_room: false, ..plan.clone() };
    let why = refused(0, 0, device(9), &full).expect("no room");
    for word in ["4.0 GiB are to be fetched into /d", "5.0 GiB are free", "Make room"] {
        assert!(why.contains(word), "{word:?} in {why}");
    }
    assert!(refused(0, 2 * GIB, device(9), &plan).expect("too much").contains("6.0 GiB are"));
    let expected = "\
org/name is not on this machine (target.model); it is fetched from https://h
  disk    4.0 GiB to fetch in 3 files, 5.0 GiB free
  memory  about 8.0 GiB of weights (as float32) and 1.0 GiB of KV for a conversation; 9.0 GiB can be used now
  fits this machine (CPU)";
    let here = DeviceReport { usable_bytes: device(9), ..DeviceReport::default() };
    assert_eq!(announcement(&target, &plan, &memory, &here, true), expected);
}

#[tokio::test]
async fn nothing_is_fetched_offline_and_the_refusal_has_the_command() {
    let mut screen = Screen::over(std::io::sink(), std::io::sink());
    let loaded = loaded(&[(TARGET, "no-such/target"), (DRAFTER, "no-such/drafter")]);
    let stop = async || std::future::pending().await;
    let failure = fetch_missing(&loaded, true, &mut screen, stop).await.expect_err("refused");
    let text = failure.to_string();
    for word in ["target.model: no-such/target", "--offline", "`paceline pull no-such/target`"] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
}

#[test]
fn the_end_of_a_pull_has_the_exit_code_of_its_reason() {
    use std::os::unix::process::ExitStatusExt as _;
    let exit =
        |raw: i32| ended("org/name", ExitStatus::from_raw(raw)).map_err(|failure| failure.exit);
    assert_eq!(exit(0), Ok(()));
    for (code, expected) in [(1, 1), (2, 2), (3, 3), (69, 1)] {
        assert_eq!(exit(code << 8), Err(expected), "code {code}");
    }
    for (signal, expected) in [(2, 130), (15, 130), (9, 1)] {
        assert_eq!(exit(signal), Err(expected), "signal {signal}");
    }
}
