//! Mapped files of weights: a tensor's bytes go from the system's cache straight into its array.

use std::sync::Arc;

use memmap2::{Advice, Mmap};
use paceline_checkpoint::tensors::WeightFile;
use paceline_checkpoint::{CheckpointError, TensorEntry, Tensors};

/// The files of a checkpoint's tensors, mapped.
#[derive(Clone, Debug, Default)]
pub(super) struct MappedFiles(Vec<Arc<Mmap>>);

/// Bytes of a mapped file, or bytes that were made of some, for as long as this lives.
#[derive(Clone, Debug)]
pub(super) struct MappedBytes {
    from: ByteSource,
    begin: usize,
    length: usize,
}

#[derive(Clone, Debug)]
enum ByteSource {
    File(Arc<Mmap>),
    Own(Arc<Vec<u8>>),
}

impl MappedFiles {
    /// Maps the files that hold these tensors.
    ///
    /// # Errors
    /// The system cannot map one, or it has another length than when its header was read.
    pub(super) fn of(tensors: &Tensors) -> Result<Self, CheckpointError> {
        tensors.files.iter().map(map).collect::<Result<_, _>>().map(Self)
    }

    /// A tensor's bytes.
    pub(super) fn bytes(&self, entry: &TensorEntry) -> MappedBytes {
        let from = ByteSource::File(self.0[entry.file].clone());
        MappedBytes { from, begin: entry.offset, length: entry.bytes }
    }
}

fn map(file: &WeightFile) -> Result<Arc<Mmap>, CheckpointError> {
    let WeightFile { path, file, length } = file;
    let Some(file) = file else {
        let cause = std::io::ErrorKind::NotFound.into();
        return Err(CheckpointError::Read { path: path.clone(), cause });
    };
    // SAFETY: the bytes are read only. Nobody may change the file meanwhile: a program that replaces
    // checkpoints writes a new file and renames it (`paceline_checkpoint::tensors`).
    let map = unsafe { Mmap::map(&**file) };
    let map = map.map_err(|cause| CheckpointError::Read { path: path.clone(), cause })?;
    if map.len() as u64 != *length {
        let what = format!("expected {length} bytes as before, found {}", map.len());
        return Err(CheckpointError::Broken { path: path.clone(), what });
    }
    Ok(Arc::new(map))
}

impl MappedBytes {
    /// Bytes that are in no file in this form.
    pub(super) fn own(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { from: ByteSource::Own(Arc::new(bytes)), begin: 0, length }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        let all: &[u8] = match &self.from {
            ByteSource::File(map) => map,
            ByteSource::Own(bytes) => bytes,
        };
        &all[self.begin..][..self.length]
    }

    /// Part `at` of `count` equal parts.
    pub(super) fn part(&self, at: usize, count: usize) -> Self {
        let length = self.length / count;
        Self { from: self.from.clone(), begin: self.begin + at * length, length }
    }

    /// Asks the system to read them in one go.
    pub(super) fn prefetch(&self) {
        if let ByteSource::File(map) = &self.from {
            // A hint: without it pages are read one by one.
            let _ = map.advise_range(Advice::WillNeed, self.begin, self.length);
        }
    }
}
