//! Files of weights that are opened, and those that are refused.

use super::*;

fn header(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.extend(std::iter::repeat_n(0u8, data));
    bytes
}

fn refusal(files: &[(&str, Vec<u8>)]) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("made");
    std::fs::write(dir.path().join("outside.safetensors"), header("{}", 0)).expect("written");
    for (name, bytes) in files {
        std::fs::write(model.join(name), bytes).expect("written");
    }
    words(&Tensors::open(&model).expect_err("refused"))
}

/// An error with its causes.
fn words(error: &CheckpointError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |one| one.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn a_whole_file_opens() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("model.safetensors"), header(ONE, 8)).expect("written");
    assert_eq!(Tensors::open(dir.path()).expect("opens").total_bytes(), 8);
}

#[test]
fn only_files_that_the_index_names_are_opened() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    };
    write("model.safetensors.index.json", br#"{"weight_map":{"a":"x.safetensors"}}"#);
    write("x.safetensors", &header(ONE, 8));
    for other in ["model.safetensors", "consolidated.safetensors", "model-mtp.safetensors"] {
        write(other, b"no safetensors file");
    }
    assert_eq!(Tensors::open(dir.path()).expect("opens").total_bytes(), 8);
}

#[test]
fn broken_files_are_named_with_what_is_wrong() {
    let single = |bytes| refusal(&[("model.safetensors", bytes)]);
    assert!(refusal(&[]).contains("model.safetensors"));
    assert!(single(vec![1, 2, 3]).contains("found only 3 bytes"));
    assert!(single(header(ONE, 7)).contains("expected 8 bytes of data after the header, found 7"));
    assert!(single(header(ONE, 9)).contains("has a tail"));
    assert!(single(1000u64.to_le_bytes().to_vec()).contains("leads beyond the file's end"));
    assert!(single((17u64 << 20).to_le_bytes().to_vec()).contains("at most 16777216 bytes"));
    let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    assert!(single(header(twice, 8)).contains("tensor a is in the header twice"));
    let overlap = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let error = single(header(overlap, 12));
    assert!(error.contains("tensor `b`"), "{error}");
    let wrong = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
    assert!(single(header(wrong, 8)).contains("header is broken"));
    assert!(single(header("[]", 0)).contains("header is broken"));
}

#[test]
fn shards_are_checked_against_their_index() {
    let index = |map: &str| {
        ("model.safetensors.index.json", format!(r#"{{"weight_map":{map}}}"#).into_bytes())
    };
    assert!(refusal(&[index(r#"{"a":"x.safetensors"}"#)]).contains("x.safetensors"));
    assert!(refusal(&[index(r#"{"a":"../outside.safetensors"}"#)]).contains("leads out of it"));
    assert!(
        refusal(&[index(r#"{"b":"x.safetensors"}"#), ("x.safetensors", header(ONE, 8))])
            .contains("weight_map does not name")
    );
    let both = [
        index(r#"{"a":"x.safetensors","b":"y.safetensors"}"#),
        ("x.safetensors", header(ONE, 8)),
        ("y.safetensors", header(ONE, 8)),
    ];
    assert!(refusal(&both).contains("tensor a is also in"));
}

/// A directory with these files.
fn directory(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    dir
}

const OTHER: &str = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_whole_file_counts_beside_an_index_of_shards_that_are_not_there() {
    let old = br#"{"weight_map":{"b":"model-00001-of-00002.safetensors"}}"#.to_vec();
    let dir = directory(&[(INDEX, old.clone()), ("model.safetensors", header(ONE, 8))]);
    let files = Tensors::open(dir.path()).expect("opens");
    assert!(files.has("a") && files.notes[0].contains(INDEX), "{:?}", files.notes);
    let error = refusal(&[(INDEX, old)]);
    for words in [INDEX, "model-00001-of-00002.safetensors"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_tensor_that_an_index_names_and_no_shard_has_is_noted() {
    let index = br#"{"weight_map":{"a":"x.safetensors","c":"x.safetensors"}}"#.to_vec();
    let dir = directory(&[(INDEX, index), ("x.safetensors", header(ONE, 8))]);
    let files = Tensors::open(dir.path()).expect("opens");
    assert!(files.has("a") && !files.has("c"));
    assert!(files.notes[0].contains("names 1 tensor"), "{:?}", files.notes);
    assert!(files.notes[0].contains(" c "), "{:?}", files.notes);
}

#[test]
fn shards_without_an_index_are_all_read() {
    let shard = |at: u32| format!("model-0000{at}-of-00002.safetensors");
    let (first, second) = (shard(1), shard(2));
    let dir = directory(&[
        (&first, header(ONE, 8)),
        (&second, header(OTHER, 8)),
        ("consolidated.safetensors", b"no part of it".to_vec()),
    ]);
    let files = Tensors::open(dir.path()).expect("opens");
    assert!(files.has("a") && files.has("b"));
    let error = refusal(&[(&first, header(ONE, 8))]);
    assert!(error.contains(&second), "{error}");
}

#[test]
fn blobs_of_a_hub_s_cache_may_lie_on_another_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (model, disk) = (dir.path().join("models--a--b"), dir.path().join("disk"));
    let snapshot = model.join("snapshots/c0");
    std::fs::create_dir_all(&snapshot).expect("made");
    std::fs::create_dir(&disk).expect("made");
    std::fs::write(disk.join("digest"), header(ONE, 8)).expect("written");
    let link = |to: &str, at: &Path| std::os::unix::fs::symlink(to, at).expect("linked");
    link("../disk", &model.join("blobs"));
    link("../../blobs/digest", &snapshot.join("model.safetensors"));
    assert!(Tensors::open(&snapshot).expect("opens").has("a"));
}

#[test]
fn a_fifo_in_place_of_a_file_is_refused_at_once() {
    for name in ["config.json", "model.safetensors"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
        nix::unistd::mkfifo(&dir.path().join(name), mode).expect("made");
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let path = dir.path().to_path_buf();
        std::thread::spawn(move || {
            let error = match name {
                "config.json" => crate::ConfigJson::read(&path).err(),
                _ => Tensors::open(&path).err(),
            };
            sender.send(error.map(|error| words(&error)))
        });
        let error = receiver.recv_timeout(std::time::Duration::from_secs(30));
        let error = error.expect("an answer").expect("refused");
        assert!(error.contains(name) && error.contains("found a FIFO"), "{error}");
    }
}

#[test]
fn a_link_out_of_the_directory_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("made");
    std::fs::write(dir.path().join("outside.safetensors"), header(ONE, 8)).expect("written");
    std::os::unix::fs::symlink("../outside.safetensors", model.join("model.safetensors"))
        .expect("linked");
    assert!(Tensors::open(&model).expect_err("refused").to_string().contains("found a link to"));
}

fn has_tower(files: &[(&str, Vec<u8>)]) -> Result<bool, String> {
    let dir = directory(files);
    any_name(dir.path(), |name| name.starts_with("model.visual.")).map_err(|error| words(&error))
}

#[test]
fn names_come_from_the_index_or_from_the_headers() {
    let [tower, text] = ["model.visual.norm.weight", "model.norm.weight"]
        .map(|name| header(&ONE.replace("\"a\"", &format!("\"{name}\"")), 8));
    let whole = "model.safetensors";
    assert_eq!(has_tower(&[(whole, tower.clone())]), Ok(true));
    assert_eq!(has_tower(&[(whole, text.clone())]), Ok(false));
    assert_eq!(has_tower(&[]), Ok(false));
    let index = br#"{"metadata": {}, "weight_map": {"model.visual.norm.weight": "a"}}"#.to_vec();
    assert_eq!(has_tower(&[(INDEX, index.clone()), ("a", vec![])]), Ok(true));
    // An old index of shards that are not there does not count beside the whole file.
    assert_eq!(has_tower(&[(INDEX, index), (whole, text.clone())]), Ok(false));
    let shards = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
    assert_eq!(has_tower(&[(shards[0], text), (shards[1], tower)]), Ok(true));
}

#[test]
fn a_broken_index_or_header_is_refused_by_its_file() {
    let long = (1_u64 << 60).to_le_bytes().to_vec();
    for (name, bytes, expected) in [
        (INDEX, b"{}".to_vec(), "expected a JSON object with weight_map"),
        ("model.safetensors", vec![1, 2, 3], "found only 3 bytes"),
        ("model.safetensors", header("[", 0), "expected a JSON object of tensors"),
        ("model.safetensors", long, "expected a header of at most 16777216 bytes"),
    ] {
        let error = has_tower(&[(name, bytes)]).expect_err(expected);
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

#[test]
fn lengths_that_a_hub_claims_are_added_without_overflow() {
    let bytes = 1_u64 << 60;
    let header = |at: u64| {
        let shape = bytes / 4;
        format!(r#"{{"t{at}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,{bytes}]}}}}"#)
    };
    let headers: Vec<String> = (0..17).map(header).collect();
    let file = |text: &'_ String| 8 + text.len() as u64 + bytes;
    let files = headers.iter().map(|text| ("x.safetensors", text.as_bytes(), file(text)));
    let tensors = Tensors::of_headers(files).expect("headers");
    assert_eq!((tensors.total_bytes(), tensors.quantized_bytes()), (u64::MAX, 0));
    assert!(!tensors.are_here());
}
