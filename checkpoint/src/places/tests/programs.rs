//! Models that other programs fetched, and choices among GGUF files.

use super::*;
use crate::files::GGUF_NOTES;
use crate::samples::SampleGguf;

/// Digest of a blob of the tests.
const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OLLAMA: &str = "home/.ollama/models";
const LM_STUDIO: &str = "home/.lmstudio/models";

impl Machine {
    fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("there")
    }

    fn write(&self, below: &str, bytes: &[u8]) -> PathBuf {
        let path = self.root().join(below);
        fs::create_dir_all(path.parent().expect("above")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    fn gguf(&self, below: &str) -> PathBuf {
        self.write(below, &SampleGguf::of("qwen3").bytes())
    }

    /// Writes a model of Ollama with a template and parameters; returns its blob.
    fn ollama(&self, root: &str, place: &str) -> PathBuf {
        let blob = self.gguf(&format!("{root}/blobs/sha256-{HEX}"));
        self.manifest(root, place, fs::metadata(&blob).expect("there").len());
        blob
    }

    fn manifest(&self, root: &str, place: &str, size: u64) {
        let layer = |kind: &str, hex: &str, size: u64| {
            format!(
                r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"sha256:{hex}","size":{size}}}"#
            )
        };
        let layers =
            [layer("model", HEX, size), layer("template", "1", 1), layer("params", "2", 1)];
        let text =
            format!(r#"{{"schemaVersion":2,"config":{{}},"layers":[{}]}}"#, layers.join(","));
        self.write(&format!("{root}/manifests/{place}"), text.as_bytes());
    }

    fn refused(&self, text: &str, words: &[&str]) {
        let error = self.locate(text).expect_err(text);
        for word in words {
            assert!(error.contains(word), "{word:?} in {error}");
        }
    }

    /// The files of the directory that stands for a model lead to this file.
    fn stands_for(&self, text: &str, file: &Path) -> PathBuf {
        let dir = self.locate(text).expect(text);
        assert!(dir.starts_with(self.root().join("cache/paceline/gguf")), "{}", dir.display());
        let linked = dir.join("model.gguf").canonicalize().expect("linked");
        assert_eq!(linked, file.canonicalize().expect("there"), "{text}");
        dir
    }

    fn listed(&self) -> Vec<(String, CheckpointKind, Vec<String>)> {
        let listed = self.places.list().into_iter();
        let listed = listed.filter(|one| one.kind != CheckpointKind::Embedded);
        listed.map(|one| (one.name, one.kind, one.missing)).collect()
    }
}

/// Every path below `dir` with its length and time, to see that nothing was written.
fn content(dir: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut found = vec![];
    for entry in fs::read_dir(dir).expect("there").flatten() {
        let meta = entry.metadata().expect("there");
        found.push((entry.path(), meta.len(), meta.modified().expect("known")));
        if meta.is_dir() {
            found.extend(content(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_model_of_ollama_is_the_blob_of_its_manifest_and_nothing_is_written_there() {
    let machine = Machine::new();
    let blob = machine.ollama(OLLAMA, "registry.ollama.ai/library/coder/latest");
    machine.ollama(OLLAMA, "registry.ollama.ai/library/coder/1.5b");
    machine.ollama(OLLAMA, "registry.ollama.ai/me/own/q8");
    machine.ollama(OLLAMA, "hf.co/org/name-GGUF/Q4_K_M");
    let before = content(&machine.root().join(OLLAMA));
    for (text, name) in [
        ("ollama:coder", "coder"),
        ("ollama:coder:latest", "coder"),
        ("ollama:library/coder", "coder"),
        ("ollama:coder:1.5b", "coder-1.5b"),
        ("ollama:me/own:q8", "me-own-q8"),
        ("ollama:hf.co/org/name-GGUF:Q4_K_M", "hf.co-org-name-GGUF-Q4_K_M"),
    ] {
        let dir = machine.stands_for(text, &blob);
        assert_eq!(name_of(&dir).as_deref(), Some(name), "{text}");
        assert!(missing_files(&dir).is_empty());
        let notes = fs::read_to_string(dir.join(GGUF_NOTES)).expect("written");
        assert!(notes.contains("left unread: params, template"), "{notes}");
    }
    assert_eq!(content(&machine.root().join(OLLAMA)), before);
    let service = machine.ollama("service/models", "registry.ollama.ai/library/other/latest");
    machine.stands_for("ollama:other", &service);
}

#[test]
fn what_is_wrong_with_a_model_of_ollama_is_said_with_what_to_do() {
    let machine = Machine::new();
    let roots =
        [OLLAMA, "service/models"].map(|root| machine.root().join(root).display().to_string());
    let words = ["Ollama has no model coder on this machine", &roots[0], &roots[1]];
    machine.refused("ollama:coder", &words);
    machine.refused("ollama:coder", &["run `ollama pull coder:latest`", "OLLAMA_MODELS"]);
    for name in ["", ":", "coder:", "a/b/c/d", "../x", "a//b", "coder:../x", "a b", ".x", "a:b:c"] {
        machine.refused(
            &format!("ollama:{name}"),
            &["expected ollama:NAME", &format!("\"ollama:{name}\"")],
        );
    }
    let blob = machine.ollama(OLLAMA, "registry.ollama.ai/library/coder/1.5b");
    machine.ollama(OLLAMA, "registry.ollama.ai/library/coder/7b");
    let words = [
        "coder has no tag latest",
        "it has 1.5b, 7b; name one as ollama:coder:TAG",
        "ollama pull coder:latest",
    ];
    machine.refused("ollama:coder", &words);
    let manifest = "home/.ollama/models/manifests/registry.ollama.ai/library/coder";
    for text in ["no JSON", "{}", r#"{"layers":[{"digest":"x"}]}"#] {
        let path = machine.write(&format!("{manifest}/latest"), text.as_bytes());
        let words = [
            "cannot use Ollama's manifest",
            "expected a JSON object with layers",
            "run `ollama pull coder:latest`",
        ];
        machine.refused("ollama:coder", &words);
        machine.refused("ollama:coder", &[&path.display().to_string()]);
    }
    let tensor =
        r#"{"mediaType":"application/vnd.ollama.image.tensor","digest":"sha256:1","size":1}"#;
    machine.write(&format!("{manifest}/latest"), format!(r#"{{"layers":[{tensor}]}}"#).as_bytes());
    machine.refused(
        "ollama:coder",
        &["expected one layer of the type", "found 0 beside the layers tensor"],
    );
    let model = tensor.replace("tensor", "model").replace("sha256:1", "sha256:../../x");
    machine.write(&format!("{manifest}/latest"), format!(r#"{{"layers":[{model}]}}"#).as_bytes());
    machine.refused("ollama:coder", &["expected the digest sha256:<64 digits>", "../../x"]);
    fs::write(&blob, "GGUF").expect("written");
    machine.refused(
        "ollama:coder:7b",
        &["has 4 bytes, and its manifest says", "ollama pull coder:7b"],
    );
    machine.manifest(OLLAMA, "registry.ollama.ai/library/coder/7b", 4);
    machine.refused("ollama:coder:7b", &[HEX, "GGUF: byte 4"]);
    fs::remove_file(&blob).expect("there");
    machine.refused(
        "ollama:coder:7b",
        &[&format!("the blob {} is missing", blob.display()), "ollama pull coder:7b"],
    );
}

#[test]
fn a_folder_of_lm_studio_has_one_model_or_the_file_is_named() {
    let machine = Machine::new();
    machine.refused(
        "lmstudio:a/b",
        &["LM Studio has no model a/b", "fetch it in LM Studio", ".lmstudio/models and "],
    );
    for name in ["", "a", "a/", "a/b/c/d", "../b", "a/.."] {
        machine.refused(&format!("lmstudio:{name}"), &["expected lmstudio:PUBLISHER/REPOSITORY"]);
    }
    let first = machine.gguf(&format!("{LM_STUDIO}/a/b/m-Q4_K_M.gguf"));
    machine.write(&format!("{LM_STUDIO}/a/b/mmproj-m.gguf"), b"GGUF");
    let before = content(&machine.root().join(LM_STUDIO));
    let dir = machine.stands_for("lmstudio:a/b", &first);
    assert_eq!(name_of(&dir).as_deref(), Some("m-Q4_K_M"));
    assert_eq!(content(&machine.root().join(LM_STUDIO)), before);
    let second = machine.gguf(&format!("{LM_STUDIO}/a/b/m-Q8_0.gguf"));
    machine.refused(
        "lmstudio:a/b",
        &["lmstudio:a/b has 2 GGUF files: m-Q4_K_M.gguf (0 MB), m-Q8_0.gguf (0 MB)"],
    );
    machine.refused("lmstudio:a/b", &["name one, as lmstudio:a/b/m-Q4_K_M.gguf"]);
    machine.stands_for("lmstudio:a/b/m-Q8_0.gguf", &second);
    machine
        .refused("lmstudio:a/b/m.gguf", &["has no GGUF file m.gguf; it has m-Q4_K_M.gguf (0 MB)"]);
    let old = machine.gguf("home/.cache/lm-studio/models/c/d/m.gguf");
    machine.stands_for("lmstudio:c/d", &old);
    let checkpoint = machine.model(&format!("{LM_STUDIO}/mlx-community/e"));
    assert_eq!(machine.locate("lmstudio:mlx-community/e"), Ok(checkpoint.clone()));
    fs::remove_file(checkpoint.join("model.safetensors")).expect("there");
    machine.refused(
        "lmstudio:mlx-community/e",
        &["expected a GGUF file or a whole checkpoint", "fetch the model in LM Studio again"],
    );
}

#[test]
fn a_split_model_counts_as_one_and_a_missing_part_is_named() {
    let machine = Machine::new();
    let part = |number| format!("{LM_STUDIO}/a/b/m-0000{number}-of-00002.gguf");
    machine.write(&part(1), b"GGUF");
    machine.refused("lmstudio:a/b", &["m-00002-of-00002.gguf is missing"]);
    machine.write(&part(2), b"GGUF");
    machine.refused("lmstudio:a/b", &["m-00001-of-00002.gguf: GGUF: byte 4"]);
    let other = machine.gguf(&format!("{LM_STUDIO}/a/b/n.gguf"));
    machine.refused("lmstudio:a/b", &["2 GGUF files: m-00001-of-00002.gguf (0 MB), n.gguf (0 MB)"]);
    machine.stands_for("lmstudio:a/b/n.gguf", &other);
}

/// A repository of the Hugging Face cache with these files, whose blobs lie elsewhere, as on another disk.
fn snapshot(machine: &Machine, files: &[&str]) -> Vec<PathBuf> {
    let repository = machine.root().join("hf/hub/models--org--name");
    let disk = machine.root().join("disk");
    for dir in [&repository.join("snapshots/abc"), &repository.join("refs"), &disk] {
        fs::create_dir_all(dir).expect("made");
    }
    symlink(&disk, repository.join("blobs")).expect("linked");
    fs::write(repository.join("refs/main"), "abc").expect("written");
    let blobs = files.iter().enumerate().map(|(at, file)| {
        let blob = machine.gguf(&format!("disk/{at}"));
        let link = repository.join("snapshots/abc").join(file);
        symlink(format!("../../blobs/{at}"), link).expect("linked");
        blob
    });
    blobs.collect()
}

#[test]
fn a_snapshot_with_one_gguf_file_is_found_by_its_repository() {
    let machine = Machine::new();
    let blobs = snapshot(&machine, &["m-Q8_0.gguf"]);
    let dir = machine.stands_for("org/name", &blobs[0]);
    assert_eq!(machine.locate("org/name:Q8_0"), Ok(dir.clone()));
    assert_eq!(machine.locate("org/name:m-q8_0.gguf"), Ok(dir));
    let kind = CheckpointKind::HubCache { is_current: true };
    assert_eq!(machine.listed(), [("org/name".to_owned(), kind, vec![])]);
}

#[test]
fn one_of_several_gguf_files_is_chosen_by_words_of_its_name() {
    let machine = Machine::new();
    let blobs = snapshot(&machine, &["m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
    machine.refused(
        "org/name",
        &[
            "org/name has 2 GGUF files on this machine: m-Q4_K_M.gguf (0 MB), m-Q8_0.gguf (0 MB)",
            "choose one, as org/name:Q4_K_M",
        ],
    );
    machine.stands_for("org/name:q4_k_m", &blobs[0]);
    machine.stands_for("org/name:m-Q8_0.gguf", &blobs[1]);
    machine.refused(
        "org/name:Q5_0",
        &[
            "org/name has no GGUF file Q5_0 on this machine; it has m-Q4_K_M.gguf",
            "run `paceline pull org/name:Q5_0`",
        ],
    );
    machine.refused("org/name:m", &["m means 2 GGUF files", "write the whole name of one"]);
    machine.refused(
        "org/other:Q8_0",
        &["org/other:Q8_0 was not pulled", "run `paceline pull org/other:Q8_0`"],
    );
    // What was pulled goes first. It may lie in a folder, as in its repository.
    let pulled = "cache/paceline/models/org--name";
    let own = machine.gguf(&format!("{pulled}/c0/Q5_0/m-Q5_0.gguf"));
    symlink("c0", machine.root().join(pulled).join(CURRENT)).expect("linked");
    machine.stands_for("org/name:Q5_0", &own);
    machine.stands_for("org/name", &own);
    machine.stands_for("org/name:Q8_0", &blobs[1]);
    let own = machine.gguf(&format!("{pulled}/c0/m-Q8_0.gguf"));
    machine.stands_for("org/name:Q8_0", &own);
    machine.refused(
        "org/name",
        &["2 GGUF files on this machine: Q5_0/m-Q5_0.gguf (0 MB), m-Q8_0.gguf"],
    );
    // A checkpoint in safetensors beside them is what the name alone means.
    let dir = machine.model(&format!("{pulled}/c0"));
    assert_eq!(machine.locate("org/name"), Ok(dir));
    machine.stands_for("org/name:Q8_0", &own);
}

#[test]
fn the_list_says_whose_a_model_is_and_every_listed_name_is_accepted() {
    let machine = Machine::new();
    snapshot(&machine, &["m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
    machine.ollama(OLLAMA, "registry.ollama.ai/library/coder/1.5b");
    machine.ollama("service/models", "registry.ollama.ai/library/coder/1.5b");
    machine.write(&format!("{OLLAMA}/manifests/registry.ollama.ai/library/broken/latest"), b"{");
    machine.gguf(&format!("{LM_STUDIO}/a/b/m.gguf"));
    machine.gguf(&format!("{LM_STUDIO}/a/c/m.gguf"));
    machine.gguf(&format!("{LM_STUDIO}/a/c/n.gguf"));
    machine.write(&format!("{LM_STUDIO}/a/d/README.md"), b"");
    let cache = CheckpointKind::HubCache { is_current: true };
    let (ollama, lm_studio) = (CheckpointKind::Ollama, CheckpointKind::LmStudio);
    let expected = [
        ("org/name:m-Q4_K_M.gguf", cache),
        ("org/name:m-Q8_0.gguf", cache),
        ("ollama:coder:1.5b", ollama),
        ("lmstudio:a/b", lm_studio),
        ("lmstudio:a/c/m.gguf", lm_studio),
        ("lmstudio:a/c/n.gguf", lm_studio),
    ];
    let expected = expected.map(|(name, kind)| (name.to_owned(), kind, Vec::<String>::new()));
    assert_eq!(machine.listed(), expected);
    let bytes = SampleGguf::of("qwen3").bytes().len() as u64;
    for one in machine.places.list().iter().filter(|one| one.kind != CheckpointKind::Embedded) {
        assert!(machine.locate(&one.name).is_ok(), "{}", one.name);
        assert_eq!(one.bytes, bytes, "{}", one.name);
        let summary = one.summary();
        assert_eq!(summary.family.as_deref(), Some("qwen3"), "{}", one.name);
        assert_eq!(summary.quantization.as_deref(), Some("GGUF Q8_0"));
    }
    fs::remove_file(machine.root().join(OLLAMA).join(format!("blobs/sha256-{HEX}")))
        .expect("there");
    let missing = machine.listed().into_iter().find(|one| one.1 == ollama).expect("listed").2;
    assert_eq!(missing, [format!("sha256-{HEX}")]);
}
