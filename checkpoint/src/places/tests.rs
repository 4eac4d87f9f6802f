use std::fs;
use std::os::unix::fs::symlink;

use super::*;

mod programs;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

struct Machine {
    dir: tempfile::TempDir,
    places: ModelPlaces,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // The temporary directory of macOS is below a link.
        let root = dir.path().canonicalize().expect("there");
        let places = ModelPlaces {
            own: Some(root.join("cache/paceline/models")),
            hub_cache: Some(root.join("hf/hub")),
            home: Some(root.join("home")),
            ollama: vec![root.join("home/.ollama/models"), root.join("service/models")],
            lm_studio: vec![
                root.join("home/.lmstudio/models"),
                root.join("home/.cache/lm-studio/models"),
            ],
        };
        Self { dir, places }
    }

    /// Makes a model of one file in this directory below the root.
    fn model(&self, below: &str) -> PathBuf {
        let dir = self.dir.path().canonicalize().expect("there").join(below);
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("config.json"), "{}").expect("written");
        fs::write(dir.join("model.safetensors"), "12345678").expect("written");
        dir
    }

    fn pulled(&self, commit: &str) -> PathBuf {
        let dir = self.model(&format!("cache/paceline/models/org--name/{commit}"));
        let link = dir.with_file_name(CURRENT);
        let _ = fs::remove_file(&link);
        symlink(commit, link).expect("linked");
        dir
    }

    fn locate(&self, text: &str) -> Result<PathBuf, String> {
        self.places.locate(&ModelRef::parse(text)).map_err(|error| error.to_string())
    }
}

#[test]
fn a_name_is_the_current_revision_that_was_pulled() {
    let machine = Machine::new();
    let refused = machine.locate("org/name").expect_err("nothing is there");
    assert!(refused.contains("run `paceline pull org/name`"), "{refused}");
    let first = machine.pulled(COMMIT);
    assert_eq!(machine.locate("org/name"), Ok(first.clone()));
    let second = machine.pulled("abc");
    assert_eq!(machine.locate("org/name"), Ok(second.clone()));
    fs::remove_file(second.join("model.safetensors")).expect("there");
    assert!(machine.locate("org/name").is_err(), "it is not whole");
    assert!(machine.locate("org/other").is_err());
    let refused = machine.locate("qwen3-4b").expect_err("nothing is there");
    assert!(
        refused.contains("mlx-community/Qwen3-4B-4bit was not pulled")
            && refused.contains("run `paceline pull qwen3-4b`"),
        "{refused}"
    );
    let known = machine.model("cache/paceline/models/mlx-community--Qwen3-4B-4bit/c");
    symlink("c", known.with_file_name(CURRENT)).expect("linked");
    assert_eq!(machine.locate("qwen3-4b"), Ok(known));
}

#[test]
fn a_snapshot_of_the_hugging_face_cache_serves_if_nothing_was_pulled() {
    let machine = Machine::new();
    let model = "hf/hub/models--org--name";
    let old = machine.model(&format!("{model}/snapshots/{COMMIT}"));
    assert_eq!(machine.locate("org/name"), Ok(old.clone()), "the only one");
    let main = machine.model(&format!("{model}/snapshots/main-commit"));
    let refs = old.parent().and_then(Path::parent).expect("above").join("refs");
    fs::create_dir(&refs).expect("made");
    fs::write(refs.join("main"), "main-commit\n").expect("written");
    assert_eq!(machine.locate("org/name"), Ok(main.clone()), "that of refs/main");
    fs::write(refs.join("main"), "../../../elsewhere").expect("written");
    assert!(machine.locate("org/name").is_ok_and(|dir| dir == main || dir == old));
    let pulled = machine.pulled("c");
    assert_eq!(machine.locate("org/name"), Ok(pulled), "what was pulled goes first");
}

#[test]
fn a_model_in_a_folder_of_a_repository_has_a_place_of_its_own() {
    let machine = Machine::new();
    machine.pulled(COMMIT);
    let refused = machine.locate("org/name/dflash").expect_err("nothing is there");
    assert!(refused.contains("run `paceline pull org/name/dflash`"), "{refused}");
    let snapshot = machine.model("hf/hub/models--org--name/snapshots/abc/dflash");
    assert_eq!(machine.locate("org/name/dflash"), Ok(snapshot), "a library fetched all of it");
    let dir = machine.model("cache/paceline/models/org--name--dflash/abc");
    symlink("abc", dir.with_file_name(CURRENT)).expect("linked");
    assert_eq!(machine.locate("org/name/dflash"), Ok(dir.clone()));
    assert_eq!(name_of(&dir).as_deref(), Some("org/name/dflash"));
    let listed = machine.places.list();
    assert!(listed.iter().any(|one| one.name == "org/name/dflash" && one.path == dir));
}

#[test]
fn a_sharded_model_needs_every_shard_of_its_index() {
    let machine = Machine::new();
    let dir = machine.pulled("c");
    fs::remove_file(dir.join("model.safetensors")).expect("there");
    let index =
        r#"{"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-1.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).expect("written");
    fs::write(dir.join("x-1.safetensors"), "").expect("written");
    assert_eq!(missing_files(&dir), ["x-2.safetensors"]);
    fs::write(dir.join("x-2.safetensors"), "").expect("written");
    assert!(missing_files(&dir).is_empty());
    assert_eq!(machine.locate("org/name"), Ok(dir));
}

#[test]
fn a_model_may_be_shards_without_an_index_or_one_file_beside_an_old_one() {
    let machine = Machine::new();
    let dir = machine.model("x");
    let index = dir.join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#)
        .expect("written");
    assert_eq!(missing_files(&dir), [""; 0]);
    fs::remove_file(index).expect("there");
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors"))
        .expect("renamed");
    assert_eq!(missing_files(&dir), ["model-00002-of-00002.safetensors"]);
    fs::write(dir.join("model-00002-of-00002.safetensors"), "").expect("written");
    assert_eq!(missing_files(&dir), [""; 0]);
}

#[test]
fn a_snapshot_is_found_from_the_folders_above_it() {
    let machine = Machine::new();
    let snapshot = machine.model(&format!("disk/models--org--name/snapshots/{COMMIT}"));
    for above in ["disk/models--org--name", "disk/models--org--name/snapshots"] {
        let above = machine.dir.path().canonicalize().expect("there").join(above);
        assert_eq!(machine.locate(&above.display().to_string()), Ok(snapshot.clone()));
    }
    fs::remove_file(snapshot.join("model.safetensors")).expect("there");
    let above = snapshot.parent().and_then(Path::parent).expect("above").display().to_string();
    let refused = machine.locate(&above).expect_err("it is not whole");
    assert!(refused.contains("snapshots") && refused.contains("no whole model"), "{refused}");
}

#[test]
fn what_is_no_model_in_safetensors_is_named_with_what_to_do() {
    let machine = Machine::new();
    let root = machine.dir.path().canonicalize().expect("there");
    for (files, at, says) in [
        (&["b/q4.gguf", "b/q8.gguf"][..], "b", "2 files in the format GGUF (q4.gguf first)"),
        (&["c/adapter_config.json", "c/adapter_model.safetensors"], "c", "an adapter"),
        (&["d/adapters.safetensors"], "d", "an adapter"),
        (&["e/weights.bin"], "e/weights.bin", "found a file at"),
    ] {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("above")).expect("made");
            fs::write(path, "x").expect("written");
        }
        let refused = machine.locate(&root.join(at).display().to_string()).expect_err(says);
        assert!(refused.contains(says), "{refused}");
        assert!(refused.contains("; "), "it says what to do: {refused}");
    }
    // A model beside which such files lie is a model.
    let dir = machine.model("f");
    fs::write(dir.join("q4.gguf"), "x").expect("written");
    fs::write(dir.join("adapter_config.json"), "{}").expect("written");
    assert_eq!(machine.locate(&dir.display().to_string()), Ok(dir));
}

#[test]
fn smollm2_is_found_in_the_users_cache() {
    let machine = Machine::new();
    let refused = machine.locate("smollm2").expect_err("nothing is there");
    assert!(refused.contains("run `paceline pull smollm2`"), "{refused}");
    let dir = machine.model("cache/paceline/models/smollm2");
    assert_eq!(machine.locate("smollm2"), Ok(dir));
}

#[test]
fn directories_are_absolute_and_must_exist() {
    let machine = Machine::new();
    let dir = machine.model("home/models/x");
    assert_eq!(machine.locate(&dir.display().to_string()), Ok(dir.clone()));
    assert_eq!(machine.locate("~/models/x"), Ok(dir));
    let missing = machine.locate("/nowhere/at/all").expect_err("missing");
    assert!(missing.contains("found nothing at /nowhere/at/all"), "{missing}");
    let word = machine.locate("no-such-word").expect_err("missing");
    assert!(word.contains("org/name") && word.contains("\"no-such-word\""), "{word}");
    // The tests run in the crate's folder, which has a folder src/name.
    assert!(machine.locate("./src/name").is_ok_and(|dir| dir.is_absolute()));
    let refused = machine.locate("src/name").expect_err("a name, and not pulled");
    assert!(refused.contains("or write ./src/name for the directory"), "{refused}");
    let homeless = ModelPlaces::default();
    assert!(homeless.locate(&ModelRef::parse("~/x")).is_err());
    assert!(homeless.locate(&ModelRef::parse("smollm2")).is_err());
}

#[test]
fn every_listed_name_is_accepted_again() {
    let machine = Machine::new();
    machine.model("cache/paceline/models/smollm2");
    machine.pulled(COMMIT);
    let listed = machine.places.list();
    assert_eq!(listed.len(), 4);
    for one in listed {
        assert_eq!(machine.locate(&one.name), Ok(one.path), "{}", one.name);
    }
}

#[test]
fn the_list_has_every_model_with_its_bytes_and_what_it_lacks() {
    let machine = Machine::new();
    machine.model("cache/paceline/models/smollm2");
    machine.pulled(COMMIT);
    let current = machine.pulled("second");
    fs::create_dir(current.with_file_name(".part-third")).expect("made");
    let snapshot = machine.model("hf/hub/models--a--b/snapshots/x");
    fs::remove_file(snapshot.join("model.safetensors")).expect("there");
    fs::create_dir_all(snapshot.with_file_name("of-a-tokenizer")).expect("made");
    let listed: Vec<_> = machine
        .places
        .list()
        .into_iter()
        .filter(|one| one.kind != CheckpointKind::Embedded)
        .map(|one| (one.name, one.kind, one.revision, one.bytes, one.missing))
        .collect();
    let pulled = |is_current| CheckpointKind::Pulled { is_current };
    let some = |text: &str| Some(text.to_owned());
    let name = || "org/name".to_owned();
    assert_eq!(
        listed,
        [
            (name(), pulled(false), some(COMMIT), 10, vec![]),
            (name(), pulled(true), some("second"), 10, vec![]),
            ("smollm2".to_owned(), CheckpointKind::Smollm2, None, 10, vec![]),
            (
                "a/b".to_owned(),
                CheckpointKind::HubCache { is_current: false },
                some("x"),
                2,
                vec!["model.safetensors".to_owned()]
            ),
        ]
    );
}

#[test]
fn clients_call_a_model_by_its_name_not_by_its_commit() {
    for (dir, name) in [
        ("/c/paceline/models/org--name/0123abc", "org/name"),
        ("/hf/hub/models--org--name/snapshots/0123abc", "org/name"),
        ("/c/paceline/models/smollm2", "smollm2"),
        ("/models/qwen", "qwen"),
        ("/x/org--name/y", "y"),
        ("/x/snapshots/y", "y"),
    ] {
        assert_eq!(name_of(Path::new(dir)).as_deref(), Some(name), "{dir}");
    }
    assert_eq!(name_of(Path::new("/")), None);
}

#[test]
fn a_revisions_directory_is_known_by_the_name_of_its_folder() {
    let known = |text: &str| known_model(&ModelRef::parse(text)).map(|row| &*row.name);
    for (text, expected) in [
        ("qwen3-8b", Some("qwen3-8b")),
        ("mlx-community/Qwen3-8B-4bit", Some("qwen3-8b")),
        ("/c/paceline/models/mlx-community--Qwen3-8B-4bit/0123", Some("qwen3-8b")),
        ("/h/hub/models--mlx-community--Qwen3-8B-4bit/snapshots/0123", Some("qwen3-8b")),
        ("/models/qwen3-8b", None),
        ("/c/paceline/models/smollm2", Some("smollm2")),
        ("/models/smollm2", None),
        ("smollm2", Some("smollm2")),
        ("Qwen/Qwen3-8B", None),
        ("demo-target", None),
    ] {
        assert_eq!(known(text), expected, "{text}");
    }
}
