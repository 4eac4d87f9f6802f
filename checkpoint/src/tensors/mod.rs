//! The tensors of a model directory: one `model.safetensors`, or shards, which an index may name, or the
//! files of a model in the format GGUF. Headers are read and checked before any weight is; the format of
//! the others is safetensors' own (8-byte length, JSON header, data without holes).
//!
//! A file must have all the bytes of its header's tensors. Who cuts it later ends the process that has
//! it mapped (SIGBUS): a program that replaces checkpoints writes a new file and renames it.

mod embedding_model;
mod gguf;
mod unserved;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::Dtype;

use crate::files::{self, INDEX, MissingWeights, WeightFiles};
use crate::from_gguf::StoredForm;
use crate::gguf::BlockType;
use crate::index::ShardIndex;
use crate::numbers::is_float;
use crate::{CheckpointError, header};

pub use unserved::Unserved;

/// Where a tensor's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Number of its file among [`Tensors::files`].
    pub file: usize,
    /// Its first byte in the file.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Its lengths, the outermost axis first.
    pub shape: Vec<usize>,
    /// How a GGUF file stores it; `None` in safetensors. If its blocks are quantized, `dtype` is bytes,
    /// and the shape counts numbers.
    pub gguf: Option<StoredForm>,
}

impl TensorEntry {
    /// Numbers of its shape. Those of a quantized weight are words.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, length| product.saturating_mul(*length as u64))
    }

    /// Type of its blocks, if a GGUF file stores it in quantized ones.
    pub fn blocks(&self) -> Option<BlockType> {
        self.gguf.map(|form| form.kind).filter(|kind| kind.is_quantized())
    }
}

/// A file with weights.
#[derive(Clone, Debug)]
pub struct WeightFile {
    /// Its path, for messages.
    pub path: PathBuf,
    /// The file, open; `None`: it is not here, and only its header is known.
    pub file: Option<Arc<File>>,
    /// Its length in bytes when its header was read.
    pub length: u64,
}

/// Elements that are read at a time.
pub(crate) const PIECE: usize = 1 << 16;

/// Signs of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignCount {
    /// Numbers with a minus.
    pub negative: usize,
    /// All numbers.
    pub all: usize,
}

/// All tensors of a model directory. No weight is read unless a function says so.
#[derive(Clone, Debug)]
pub struct Tensors {
    /// The files that hold them.
    pub files: Vec<WeightFile>,
    /// The tensors by name, without those that were forgotten.
    pub entries: BTreeMap<String, TensorEntry>,
    /// What an operator should know of the files, one sentence each.
    pub notes: Vec<String>,
}

impl Tensors {
    /// Opens the files of [`WeightFiles::choose`]; other files are left alone.
    ///
    /// # Errors
    /// A missing or broken file, a shard outside the directory, a tensor named twice or not where
    /// the index says.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let index = ShardIndex::read(dir)?;
        let shards = index.as_ref().map(ShardIndex::shards);
        let chosen =
            WeightFiles::of_directory(dir, shards).map_err(|missing| absent(dir, &missing))?;
        if chosen.are_gguf() {
            return Self::open_gguf(dir, chosen.names.len());
        }
        let notes = chosen.note.into_iter().collect();
        let mut tensors = Self { files: vec![], entries: BTreeMap::new(), notes };
        for name in &chosen.names {
            tensors.add(dir, name)?;
        }
        if let Some(index) = index.filter(|_| chosen.indexed) {
            tensors.check_index(dir, &index)?;
        }
        Ok(tensors)
    }

    /// Whether the tensors are where the index says. A tensor that no shard has is noted: a model that
    /// needs it misses it by name.
    fn check_index(&mut self, dir: &Path, index: &ShardIndex) -> Result<(), CheckpointError> {
        let broken = |what: String| CheckpointError::Broken { path: dir.join(INDEX), what };
        let mut absent = vec![];
        for (name, shard) in &index.weight_map {
            let Some(found) = self.entries.get(name) else {
                absent.push(name);
                continue;
            };
            let path = &self.files[found.file].path;
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

    /// The tensors of files that are not here, of which only the headers are known: name of each file,
    /// its header, and its length. No tensor can be read.
    ///
    /// # Errors
    /// A broken header, or a tensor named twice.
    pub fn of_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8], u64)>,
    ) -> Result<Self, CheckpointError> {
        let mut tensors = Self { files: vec![], entries: BTreeMap::new(), notes: vec![] };
        for (name, header, length) in headers {
            tensors.enter(WeightFile { path: name.into(), file: None, length }, header)?;
        }
        Ok(tensors)
    }

    /// Reads the header of a shard and enters its tensors.
    fn add(&mut self, dir: &Path, name: &str) -> Result<(), CheckpointError> {
        let path = dir.join(name);
        let read = |cause| CheckpointError::read(&path, cause);
        let mut file = files::open(&inside(dir, name)?).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size).map_err(|_| CheckpointError::Broken {
            path: path.clone(),
            what: format!("expected a safetensors file, found only {length} bytes"),
        })?;
        let header_bytes = header::length(size, length);
        let header_bytes =
            header_bytes.map_err(|cause| CheckpointError::Header { path: path.clone(), cause })?;
        let mut head = vec![0; header_bytes];
        file.read_exact(&mut head).map_err(read)?;
        self.enter(WeightFile { path, file: Some(Arc::new(file)), length }, &head)
    }

    /// Enters the tensors of a file with this header, without the length before it.
    fn enter(&mut self, file: WeightFile, head: &[u8]) -> Result<(), CheckpointError> {
        let path = file.path.clone();
        let data_begin = 8 + head.len() as u64;
        let metadata = header::parse(head, file.length.saturating_sub(data_begin))
            .map_err(|cause| CheckpointError::Header { path: path.clone(), cause })?;
        let number = self.files.len();
        self.files.push(file);
        for (name, info) in metadata.tensors() {
            let entry = TensorEntry {
                file: number,
                offset: data_begin as usize + info.data_offsets.0,
                bytes: info.data_offsets.1 - info.data_offsets.0,
                dtype: info.dtype,
                shape: info.shape.clone(),
                gguf: None,
            };
            if let Some(other) = self.entries.insert(name.clone(), entry) {
                let first = self.files[other.file].path.display();
                let what = format!("tensor {name} is also in {first}");
                return Err(CheckpointError::Broken { path, what });
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
        sum_of(self.entries.values())
    }

    /// Bytes of the numbers of quantized weights, without their scales. The blocks of GGUF files have
    /// scales in them, which count.
    pub fn quantized_bytes(&self) -> u64 {
        let is_quantized =
            |entry: &&TensorEntry| entry.dtype == Dtype::U32 || entry.blocks().is_some();
        sum_of(self.entries.values().filter(is_quantized))
    }

    /// Whether the weights can be read.
    pub fn are_here(&self) -> bool {
        self.files.iter().all(|file| file.file.is_some())
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Names and shapes of all tensors.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// Reads bytes of a tensor, from its byte `at` on, as many as `out` has.
    pub(crate) fn read_at(
        &self,
        entry: &TensorEntry,
        at: usize,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let WeightFile { path, file, .. } = &self.files[entry.file];
        let read = match file {
            Some(file) => file.read_exact_at(out, (entry.offset + at) as u64),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        read.map_err(|cause| CheckpointError::read(path, cause))
    }

    /// How many numbers of tensor `name` have a minus, and how many there are; `None` without
    /// floats of this name. Reads the tensor.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn signs(&self, name: &str) -> Result<Option<SignCount>, CheckpointError> {
        let entry = self.entries.get(name).filter(|entry| is_float(entry.dtype));
        let Some(entry) = entry else { return Ok(None) };
        let width = entry.dtype.bitsize() / 8;
        let is_negative = |bytes: &&[u8]| bytes.last().is_some_and(|last| last & 0x80 != 0);
        let (mut signs, mut piece) = (SignCount { negative: 0, all: 0 }, vec![0; PIECE * width]);
        for begin in (0..entry.bytes).step_by(PIECE * width) {
            let piece = &mut piece[..(PIECE * width).min(entry.bytes - begin)];
            self.read_at(entry, begin, piece)?;
            // The sign is in the last byte of each number.
            let numbers = piece.chunks_exact(width);
            signs.all += numbers.len();
            signs.negative += numbers.filter(is_negative).count();
        }
        Ok(Some(signs))
    }

    /// Forgets all tensors but those with a name that `is_kept` accepts.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| is_kept(name));
    }

    /// Forgets all tensors but those of these modules.
    pub fn keep_modules(&mut self, modules: &[&str]) {
        self.keep(|name| match name.rsplit_once('.') {
            Some((module, "weight" | "scales" | "biases")) => modules.contains(&module),
            _ => false,
        });
    }

    /// Leaves layers that have `module` unread: all tensors under the name before it.
    pub fn skip_layers_with(&mut self, module: &str) {
        let mark = format!(".{module}.weight");
        let layers: Vec<String> = self
            .entries
            .keys()
            .filter_map(|name| name.strip_suffix(&mark).map(str::to_owned))
            .collect();
        for layer in layers {
            let first = format!("{layer}.");
            self.entries.retain(|name, _| !name.starts_with(&first));
            tracing::info!(layer, "a layer that predicts a further token is skipped");
        }
    }

    /// Leaves the tensors of parts that are not served unread, and names them in one log line.
    pub fn skip(&mut self, unserved: &Unserved) {
        let (mut count, mut bytes) = (0, 0u64);
        let mut parts = BTreeSet::new();
        self.entries.retain(|name, entry| match unserved.part_of(name) {
            None => true,
            Some(part) => {
                count += 1;
                bytes += entry.bytes as u64;
                parts.insert(part);
                false
            }
        });
        if count > 0 {
            let parts: Vec<_> = parts.into_iter().collect();
            tracing::info!(
                count,
                bytes,
                parts = parts.join(", "),
                "tensors of parts that are not served are skipped"
            );
        }
    }
}

/// Bytes of these tensors. A hub may claim any length of a file.
fn sum_of<'a>(entries: impl Iterator<Item = &'a TensorEntry>) -> u64 {
    entries.map(|entry| entry.bytes as u64).fold(0, u64::saturating_add)
}

/// Whether the model in `dir` has a tensor with such a name, by its index if that counts, else by the
/// headers of its files. A model without weights, or without some of them, has none: the target reports
/// what is missing.
///
/// # Errors
/// The index or a header cannot be read, or is broken.
pub fn any_name(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<bool, CheckpointError> {
    let index = ShardIndex::read(dir)?;
    let shards = index.as_ref().map(ShardIndex::shards);
    let Ok(files) = WeightFiles::of_directory(dir, shards) else { return Ok(false) };
    if let Some(ShardIndex { weight_map }) = index.filter(|_| files.indexed) {
        return Ok(weight_map.keys().any(|name| is_wanted(name)));
    }
    Ok(Tensors::open(dir)?.entries.keys().any(|name| is_wanted(name)))
}

/// The error of files of weights that are not there.
fn absent(dir: &Path, missing: &MissingWeights) -> CheckpointError {
    let first = missing.names.first().map_or(files::WEIGHTS, String::as_str);
    match &missing.named_by {
        // Opening it gives the system's reason, which may be that it is no regular file.
        None => match files::open(&dir.join(first)) {
            Err(cause) => CheckpointError::read(&dir.join(first), cause),
            Ok(_) => CheckpointError::Missing { name: first.to_owned() },
        },
        Some(file) => CheckpointError::Broken {
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
fn inside(dir: &Path, name: &str) -> Result<PathBuf, CheckpointError> {
    let path = dir.join(name);
    let broken = |what: String| CheckpointError::Broken { path: path.clone(), what };
    let canonical =
        |path: &Path| path.canonicalize().map_err(|cause| CheckpointError::read(path, cause));
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
mod tests;
