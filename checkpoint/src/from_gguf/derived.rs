//! The directory that stands for a GGUF file: its JSON files, and links to the file's parts. All other
//! parts of Paceline read it as they read any model. Nothing is written beside the GGUF file.
//!
//! ```text
//! <user cache>/paceline/gguf/NAME-KEY/   config.json, tokenizer.json, tokenizer_config.json,
//!                                        generation_config.json, notes.json
//!                  model.gguf          → the file; or model-00001-of-00003.gguf, … of a split one
//! .NAME-KEY.<process>-<number>/          while it is made
//! ```
//!
//! KEY is a digest of what the content follows from: paths, sizes and times of the files, and
//! [`VERSION`].

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::choice::{GgufModel, model_name};
use super::config::most_used;
use super::weights::ROPE_FACTORS;
use super::{GgufSource, TextFiles};
use crate::files::{
    self, CONFIG, GENERATION_CONFIG, GGUF_NOTES, MAX_TEXT_BYTES, TOKENIZER, TOKENIZER_CONFIG,
    gguf_name,
};
use crate::gguf::{GgufFiles, broken, part_paths, stem};
use crate::{CheckpointError, ModelSummary};

/// Version of what is made of a file. To be raised when the files of the same GGUF file change.
const VERSION: u32 = 1;
/// Bytes of the digest in the name of a directory. Two files that differ by accident have different
/// ones.
const KEY_BYTES: usize = 8;
/// Most characters of a file's name in the name of its directory.
const MAX_NAME_CHARS: usize = 96;

/// Numbers directories that are made.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The GGUF file that a path means, the first one of a split model: the path itself, or the only model
/// in a directory without weights in safetensors. `None` if it means none.
pub fn first_file(path: &Path) -> Option<PathBuf> {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str().map(str::to_owned));
    if !path.is_dir() {
        return stem(&name(path)?).map(|_| path.to_path_buf());
    }
    if is_derived(path) {
        return None;
    }
    let entries = fs::read_dir(path).ok()?.flatten();
    let names: Vec<String> = entries.filter_map(|entry| name(&entry.path())).collect();
    if names.iter().any(|name| name.ends_with(".safetensors")) {
        return None;
    }
    let models = GgufModel::among(names.into_iter().map(|name| (name, None)));
    let mut models = models.into_iter();
    models.next().filter(|_| models.next().is_none()).map(|model| path.join(model.name))
}

/// Whether a directory stands for a GGUF file.
pub(crate) fn is_derived(dir: &Path) -> bool {
    dir.join(GGUF_NOTES).is_file()
}

/// The directory below `root` that stands for a GGUF file, the first one of a split model. It is made
/// unless it is there. Of two processes that make it at once, one makes it.
///
/// # Errors
/// A part is missing, the model cannot be served, or the directory cannot be written.
pub fn prepare(gguf: &Path, root: &Path) -> Result<PathBuf, CheckpointError> {
    prepare_source(&GgufSource { name: None, path: gguf.to_path_buf(), notes: vec![] }, root)
}

/// [`prepare`] for a file whose name says nothing of the model.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn prepare_source(source: &GgufSource, root: &Path) -> Result<PathBuf, CheckpointError> {
    let gguf = source.path.as_path();
    let parts = part_paths(gguf)?;
    let parts = parts
        .iter()
        .map(|path| path.canonicalize().map_err(|cause| CheckpointError::read(path, cause)));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let beside = gguf.with_file_name(CONFIG);
    let beside = Some(beside).filter(|path| path.is_file());
    let name = directory_name(source, &parts, beside.as_deref())?;
    let dir = root.join(&name);
    if is_whole(&dir, parts.len()) {
        return Ok(dir);
    }
    let files = GgufFiles::open(gguf)?;
    let read = files.read(ROPE_FACTORS)?;
    let beside = beside.as_deref().map(json).transpose()?;
    let mut texts = TextFiles::of(&read, beside.as_ref()).map_err(|error| broken(gguf, &error))?;
    texts.notes.extend_from_slice(&source.notes);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let made = root.join(format!(".{name}.{}-{number}", std::process::id()));
    let placed = write(&made, texts, &parts).and_then(|()| place(&made, &dir, parts.len()));
    if placed.is_err() {
        // The first error counts.
        let _ = fs::remove_dir_all(&made);
    }
    placed.map(|()| dir)
}

/// The name that a directory of [`prepare`] has by its file: `NAME` of `NAME-KEY`.
pub(crate) fn file_of_name(dir: &str) -> &str {
    dir.rsplit_once('-').map_or(dir, |(name, _)| name)
}

/// Whether all is there. The notes are written last.
fn is_whole(dir: &Path, parts: usize) -> bool {
    is_derived(dir) && (1..=parts).all(|number| dir.join(gguf_name(number, parts)).is_file())
}

/// `NAME-KEY`.
fn directory_name(
    source: &GgufSource,
    parts: &[PathBuf],
    beside: Option<&Path>,
) -> Result<String, CheckpointError> {
    let mut hasher = Sha256::new();
    hasher.update(VERSION.to_le_bytes());
    for path in parts.iter().map(PathBuf::as_path).chain(beside) {
        let meta = fs::metadata(path).map_err(|cause| CheckpointError::read(path, cause))?;
        hasher.update(path.as_os_str().as_bytes());
        for number in [meta.len() as i64, meta.mtime(), meta.mtime_nsec()] {
            hasher.update(number.to_le_bytes());
        }
    }
    source.notes.iter().for_each(|note| hasher.update(note));
    let digest = hasher.finalize();
    let key: String = digest.iter().take(KEY_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let file = source.path.file_name().unwrap_or_default().to_string_lossy();
    let name = source.name.as_deref().unwrap_or_else(|| model_name(&file));
    let is_plain = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.');
    let name = name.trim_start_matches('.').chars().take(MAX_NAME_CHARS);
    let name: String = name.map(|one| if is_plain(one) { one } else { '-' }).collect();
    Ok(format!("{name}-{key}"))
}

/// Architecture and usual type of the tensors of a GGUF file, the first one of a split model. What cannot
/// be read is left out.
pub(crate) fn summary(gguf: &Path) -> ModelSummary {
    let unread = ModelSummary { family: None, quantization: Some("GGUF".to_owned()) };
    let Ok(files) = GgufFiles::open(gguf) else { return unread };
    let Ok(read) = files.read(ROPE_FACTORS) else { return unread };
    let family = read.metadata.text("general.architecture").ok().map(str::to_owned);
    ModelSummary { family, quantization: Some(format!("GGUF {}", most_used(&read))) }
}

/// The JSON in a file.
fn json(path: &Path) -> Result<Value, CheckpointError> {
    let text = files::read(path, MAX_TEXT_BYTES);
    let text = text.map_err(|cause| CheckpointError::read(path, cause))?;
    serde_json::from_slice(&text).map_err(|cause| CheckpointError::Json {
        path: path.to_path_buf(),
        expected: "a JSON object",
        cause,
    })
}

/// Makes the directory `made`.
fn write(made: &Path, texts: TextFiles, parts: &[PathBuf]) -> Result<(), CheckpointError> {
    let cannot = |path: &Path, cause| CheckpointError::Write { path: path.to_path_buf(), cause };
    fs::create_dir_all(made).map_err(|cause| cannot(made, cause))?;
    for (at, part) in parts.iter().enumerate() {
        let link = made.join(gguf_name(at + 1, parts.len()));
        symlink(part, &link).map_err(|cause| cannot(&link, cause))?;
    }
    let TextFiles { config, tokenizer, tokenizer_config, generation_config, notes } = texts;
    for (name, content) in [
        (CONFIG, config),
        (TOKENIZER, tokenizer),
        (TOKENIZER_CONFIG, tokenizer_config),
        (GENERATION_CONFIG, generation_config),
        (GGUF_NOTES, notes.into()),
    ] {
        let path = made.join(name);
        let write = || -> io::Result<()> {
            let mut file = io::BufWriter::new(fs::File::create(&path)?);
            serde_json::to_writer(&mut file, &content)?;
            io::Write::flush(&mut file)
        };
        write().map_err(|cause| cannot(&path, cause))?;
    }
    Ok(())
}

/// Moves a directory that was made to its place, unless another process was faster.
fn place(made: &Path, dir: &Path, parts: usize) -> Result<(), CheckpointError> {
    if fs::rename(made, dir).is_ok() {
        return Ok(());
    }
    if !is_whole(dir, parts) {
        // What is there has lost a file. It may go meanwhile.
        let _ = fs::remove_dir_all(dir);
    }
    match fs::rename(made, dir) {
        Err(cause) if !is_whole(dir, parts) => {
            Err(CheckpointError::Write { path: dir.to_path_buf(), cause })
        }
        Err(_) => {
            // The other one's is as good.
            let _ = fs::remove_dir_all(made);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
