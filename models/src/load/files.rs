//! The files of a checkpoint: one `model.safetensors`, or the shards its index names. Headers are
//! read and checked before any weight is; the format is safetensors' own (8-byte length, JSON
//! header, data without holes).
//!
//! Files are mapped: a tensor's bytes go from the system's cache straight into its array. A file
//! must have all the bytes of its header's tensors before it is mapped. A file that is cut while it
//! is being loaded ends the process (SIGBUS); a program that replaces checkpoints writes a new file
//! and renames it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Advice, Mmap};
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
#[derive(Debug)]
pub struct TensorFiles {
    files: Vec<(PathBuf, Arc<Mmap>)>,
    pub(super) entries: BTreeMap<String, TensorEntry>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names; other
    /// files are left alone.
    ///
    /// # Errors
    /// A missing or broken file, a shard outside the directory, a tensor named twice or not where
    /// the index says.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let index_path = dir.join("model.safetensors.index.json");
        let mut checkpoint = Self { files: vec![], entries: BTreeMap::new() };
        if !index_path.is_file() {
            checkpoint.add(dir, "model.safetensors")?;
            return Ok(checkpoint);
        }
        let broken = |what: String| LoadError::Broken { path: index_path.clone(), what };
        let text = std::fs::read(&index_path)
            .map_err(|cause| LoadError::Read { path: index_path.clone(), cause })?;
        let index: Index = serde_json::from_slice(&text).map_err(|cause| LoadError::Json {
            path: index_path.clone(),
            expected: "a JSON object with weight_map (name → file)",
            cause,
        })?;
        let shards: std::collections::BTreeSet<&String> = index.weight_map.values().collect();
        for shard in shards {
            checkpoint.add(dir, shard)?;
        }
        for (name, shard) in &index.weight_map {
            let found = checkpoint
                .entries
                .get(name)
                .ok_or_else(|| LoadError::Missing { name: name.clone() })?;
            let path = &checkpoint.files[found.file].0;
            if path.file_name().is_none_or(|file| file.to_string_lossy() != *shard)
                && *path != dir.join(shard)
            {
                return Err(broken(format!(
                    "expected tensor {name} in {shard}, found it in {}",
                    path.display()
                )));
            }
        }
        if let Some(name) =
            checkpoint.entries.keys().find(|name| !index.weight_map.contains_key(*name))
        {
            return Err(broken(format!(
                "a shard holds tensor {name}, which weight_map does not name"
            )));
        }
        Ok(checkpoint)
    }

    /// Reads the header of a shard and enters its tensors.
    fn add(&mut self, dir: &Path, name: &str) -> Result<(), LoadError> {
        let path = dir.join(name);
        let read = |cause| LoadError::Read { path: path.clone(), cause };
        let broken = |what: String| LoadError::Broken { path: path.clone(), what };
        let header_error = |cause| LoadError::Header { path: path.clone(), cause };
        let mut file = File::open(inside(dir, name)?).map_err(read)?;
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
    let blobs = home
        .parent()
        .filter(|up| up.ends_with("snapshots"))
        .and_then(Path::parent)
        .map(|model| model.join("blobs"));
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
                .contains("tensor b is missing")
        );
        let both = [
            index(r#"{"a":"x.safetensors","b":"y.safetensors"}"#),
            ("x.safetensors", header(ONE, 8)),
            ("y.safetensors", header(ONE, 8)),
        ];
        assert!(refusal(&both).contains("tensor a is also in"));
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
