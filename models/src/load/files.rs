//! The files of a checkpoint: one `model.safetensors`, or shards, which an index may name. Headers are
//! read and checked before any weight is; the format is safetensors' own (8-byte length, JSON
//! header, data without holes).
//!
//! Files are mapped: a tensor's bytes go from the system's cache straight into its array. A file
//! must have all the bytes of its header's tensors before it is mapped. A file that is cut while it
//! is being loaded ends the process (SIGBUS); a program that replaces checkpoints writes a new file
//! and renames it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Advice, Mmap};
use paceline_checkpoint::files::{self, INDEX, MAX_TEXT_BYTES, MissingWeights, WeightFiles};
use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::{LoadError, header};

/// Where a tensor's bytes are.
#[derive(Clone, Debug)]
pub(super) struct TensorEntry {
    file: usize,
    offset: usize,
    pub(super) bytes: usize,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

/// Bytes of a mapped file, for as long as this lives.
#[derive(Clone, Debug)]
pub(super) struct MappedBytes {
    map: Arc<Mmap>,
    begin: usize,
    length: usize,
}

impl MappedBytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.map[self.begin..][..self.length]
    }

    /// Part `at` of `count` equal parts.
    pub(super) fn part(&self, at: usize, count: usize) -> Self {
        let length = self.length / count;
        Self { map: self.map.clone(), begin: self.begin + at * length, length }
    }

    /// Asks the system to read them in one go.
    pub(super) fn prefetch(&self) {
        // A hint: without it pages are read one by one.
        let _ = self.map.advise_range(Advice::WillNeed, self.begin, self.length);
    }
}

/// All tensors of a model directory, none of them read yet.
#[derive(Clone, Debug)]
pub struct TensorFiles {
    files: Vec<(PathBuf, Arc<Mmap>)>,
    pub(super) entries: BTreeMap<String, TensorEntry>,
    /// What an operator should know of the files, one sentence each.
    pub(super) notes: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// Bytes of the numbers of quantized weights, without their scales.
    pub(crate) fn quantized_bytes(&self) -> u64 {
        let packed = self.entries.values().filter(|entry| entry.dtype == Dtype::U32);
        packed.map(|entry| entry.bytes as u64).sum()
    }

    /// Opens the files of [`WeightFiles::choose`]; other files are left alone.
    ///
    /// # Errors
    /// A missing or broken file, a shard outside the directory, a tensor named twice or not where
    /// the index says.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let index_path = dir.join(INDEX);
        let index = read_index(&index_path)?;
        let shards = index.as_ref().map(|index| index.weight_map.values().cloned().collect());
        let chosen =
            WeightFiles::of_directory(dir, shards).map_err(|missing| absent(dir, &missing))?;
        let mut checkpoint = Self {
            files: vec![],
            entries: BTreeMap::new(),
            notes: chosen.note.into_iter().collect(),
        };
        for name in &chosen.names {
            checkpoint.add(dir, name)?;
        }
        if let Some(index) = index.filter(|_| chosen.indexed) {
            checkpoint.check_index(dir, &index_path, &index)?;
        }
        Ok(checkpoint)
    }

    /// Whether the tensors are where the index says. A tensor that no shard has is noted: a model that
    /// needs it misses it by name.
    fn check_index(&mut self, dir: &Path, path: &Path, index: &Index) -> Result<(), LoadError> {
        let broken = |what: String| LoadError::Broken { path: path.to_path_buf(), what };
        let mut absent = vec![];
        for (name, shard) in &index.weight_map {
            let Some(found) = self.entries.get(name) else {
                absent.push(name);
                continue;
            };
            let path = &self.files[found.file].0;
            if *path != dir.join(shard) {
                return Err(broken(format!(
                    "expected tensor {name} in {shard}, found it in {}",
                    path.display()
                )));
            }
        }
        if let Some(name) = self.entries.keys().find(|name| !index.weight_map.contains_key(*name)) {
            return Err(broken(format!(
                "a shard holds tensor {name}, which weight_map does not name"
            )));
        }
        if let Some(first) = absent.first() {
            let (count, plural) = (absent.len(), if absent.len() == 1 { "" } else { "s" });
            self.notes.push(format!(
                "{INDEX} names {count} tensor{plural} that no shard has, {first} first"
            ));
        }
        Ok(())
    }

    /// Reads the header of a shard and enters its tensors.
    fn add(&mut self, dir: &Path, name: &str) -> Result<(), LoadError> {
        let path = dir.join(name);
        let read = |cause| LoadError::Read { path: path.clone(), cause };
        let broken = |what: String| LoadError::Broken { path: path.clone(), what };
        let header_error = |cause| LoadError::Header { path: path.clone(), cause };
        let mut file = files::open(&inside(dir, name)?).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size).map_err(|_| {
            broken(format!("expected a safetensors file, found only {length} bytes"))
        })?;
        let header_bytes = header::length(size, length).map_err(header_error)?;
        let mut head = vec![0; header_bytes];
        file.read_exact(&mut head).map_err(read)?;
        let data_begin = 8 + header_bytes as u64;
        let metadata = header::parse(&head, length - data_begin).map_err(header_error)?;
        let file_idx = self.files.len();
        // SAFETY: the bytes are read only. Nobody may change the file meanwhile (see the head of
        // this module).
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        if map.len() as u64 != length {
            return Err(broken(format!("expected {length} bytes as before, found {}", map.len())));
        }
        self.files.push((path.clone(), Arc::new(map)));
        for (name, info) in metadata.tensors() {
            let entry = TensorEntry {
                file: file_idx,
                offset: data_begin as usize + info.data_offsets.0,
                bytes: info.data_offsets.1 - info.data_offsets.0,
                dtype: info.dtype,
                shape: info.shape.clone(),
            };
            if let Some(other) = self.entries.insert(name.clone(), entry) {
                let first = self.files[other.file].0.display();
                return Err(broken(format!("tensor {name} is also in {first}")));
            }
        }
        Ok(())
    }

    /// Logs what an operator should know of the files.
    pub fn log_notes(&self) {
        for note in &self.notes {
            tracing::warn!(note, "checkpoint");
        }
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.bytes as u64).sum()
    }

    /// A tensor's bytes.
    pub(super) fn bytes(&self, entry: &TensorEntry) -> MappedBytes {
        let map = self.files[entry.file].1.clone();
        MappedBytes { map, begin: entry.offset, length: entry.bytes }
    }
}

/// The index of shards; `None` without such a file.
fn read_index(path: &Path) -> Result<Option<Index>, LoadError> {
    let text = match files::read(path, MAX_TEXT_BYTES) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::Read { path: path.to_path_buf(), cause }),
    };
    let expected = "a JSON object with weight_map (name → file)";
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|cause| LoadError::Json { path: path.to_path_buf(), expected, cause })
}

/// The error of files of weights that are not there.
fn absent(dir: &Path, missing: &MissingWeights) -> LoadError {
    let first = missing.names.first().map_or(files::WEIGHTS, String::as_str);
    match &missing.named_by {
        // Opening it gives the system's reason, which may be that it is no regular file.
        None => match files::open(&dir.join(first)) {
            Err(cause) => LoadError::Read { path: dir.join(first), cause },
            Ok(_) => LoadError::Missing { name: first.to_owned() },
        },
        Some(file) => LoadError::Broken {
            path: dir.join(file),
            what: format!(
                "expected {first} beside it, found no such file ({} shards are missing); fetch \
                 the model again",
                missing.names.len()
            ),
        },
    }
}

/// Where a shard really lies. Its name is data: it must not lead out of the model directory, not by
/// "..", not by a link.
fn inside(dir: &Path, name: &str) -> Result<PathBuf, LoadError> {
    let path = dir.join(name);
    let broken = |what: String| LoadError::Broken { path: path.clone(), what };
    let canonical = |path: &Path| {
        path.canonicalize().map_err(|cause| LoadError::Read { path: path.to_path_buf(), cause })
    };
    let home = canonical(dir)?;
    let is_plain = |part| matches!(part, std::path::Component::Normal(_));
    if !Path::new(name).components().all(is_plain) {
        return Err(broken(
            "expected a shard inside the model directory, found a path that leads out of it".into(),
        ));
    }
    let real = canonical(&path)?;
    // The layout of the Hugging Face cache: snapshots/<commit>/file → ../../blobs/<digest>, of the
    // same model.
    // The owner of the cache may have linked `blobs` to another disk.
    let blobs = home
        .parent()
        .filter(|up| up.ends_with("snapshots"))
        .and_then(Path::parent)
        .and_then(|model| model.join("blobs").canonicalize().ok());
    if !real.starts_with(&home) && !blobs.is_some_and(|blobs| real.starts_with(blobs)) {
        return Err(broken(format!(
            "expected a shard inside the model directory, found a link to {}",
            real.display()
        )));
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
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
        paceline_vocabulary::chain(&TensorFiles::open(&model).expect_err("refused"))
    }

    const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    #[test]
    fn a_whole_file_opens() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("model.safetensors"), header(ONE, 8)).expect("written");
        assert_eq!(TensorFiles::open(dir.path()).expect("opens").total_bytes(), 8);
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
        assert_eq!(TensorFiles::open(dir.path()).expect("opens").total_bytes(), 8);
    }

    #[test]
    fn broken_files_are_named_with_what_is_wrong() {
        let single = |bytes| refusal(&[("model.safetensors", bytes)]);
        assert!(refusal(&[]).contains("model.safetensors"));
        assert!(single(vec![1, 2, 3]).contains("found only 3 bytes"));
        assert!(
            single(header(ONE, 7)).contains("expected 8 bytes of data after the header, found 7")
        );
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
        let files = TensorFiles::open(dir.path()).expect("opens");
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
        let files = TensorFiles::open(dir.path()).expect("opens");
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
        let files = TensorFiles::open(dir.path()).expect("opens");
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
        assert!(TensorFiles::open(&snapshot).expect("opens").has("a"));
    }

    #[test]
    fn a_fifo_in_place_of_a_file_is_refused_at_once() {
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
            nix::unistd::mkfifo(&dir.path().join(name), mode).expect("made");
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let path = dir.path().to_path_buf();
            std::thread::spawn(move || {
                let error = match name {
                    "config.json" => super::super::ConfigJson::read(&path).err(),
                    "tokenizer.json" => super::super::count_token_ids(&path).err(),
                    _ => TensorFiles::open(&path).err(),
                };
                sender.send(error.map(|error| paceline_vocabulary::chain(&error)))
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
        assert!(
            TensorFiles::open(&model).expect_err("refused").to_string().contains("found a link to")
        );
    }
}
