//! The tensors of a directory that stands for a model in the format GGUF.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use safetensors::tensor::Dtype;

use super::{TensorEntry, Tensors, WeightFile};
use crate::CheckpointError;
use crate::files::{self, GGUF_NOTES, MAX_TEXT_BYTES, gguf_name};
use crate::from_gguf::{self, GgufWeight, ROPE_FACTORS};
use crate::gguf::{BlockType, GgufFiles, broken};

impl Tensors {
    /// Opens the `parts` GGUF files of a directory. Links are followed: they lead to the files that the
    /// user named.
    pub(super) fn open_gguf(dir: &Path, parts: usize) -> Result<Self, CheckpointError> {
        let first = dir.join(gguf_name(1, parts));
        let files = GgufFiles::open(&first)?;
        let weights = from_gguf::weights(&files.read(ROPE_FACTORS)?);
        let weights = weights.map_err(|error| broken(&first, &error))?;
        let entries: BTreeMap<String, TensorEntry> = weights.into_iter().map(entry).collect();
        let files = files.files.into_iter();
        let files = files.map(|file| WeightFile {
            path: file.path,
            file: Some(file.file),
            length: file.length,
        });
        Ok(Self { files: files.collect(), entries, notes: notes(dir)? })
    }
}

fn entry(weight: GgufWeight) -> (String, TensorEntry) {
    let GgufWeight { name, shape, form, part, begin, bytes } = weight;
    let dtype = match form.kind {
        BlockType::F32 => Dtype::F32,
        BlockType::F16 => Dtype::F16,
        BlockType::Bf16 => Dtype::BF16,
        _ => Dtype::U8,
    };
    (name, TensorEntry { file: part, offset: begin, bytes, dtype, shape, gguf: Some(form) })
}

/// The sentences about what the GGUF file does not say.
fn notes(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let path = dir.join(GGUF_NOTES);
    let text = match files::read(&path, MAX_TEXT_BYTES) {
        Ok(text) => text,
        // A user wrote a config.json beside a file of this name.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(cause) => return Err(CheckpointError::read(&path, cause)),
    };
    serde_json::from_slice(&text).map_err(|cause| CheckpointError::Json {
        path,
        expected: "a list of texts",
        cause,
    })
}
