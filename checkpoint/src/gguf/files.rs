//! The files of a model in the format GGUF: one, or the parts of a split one, which are named
//! `NAME-00001-of-00003.gguf` and so on. Only their heads are read: what is before the data.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Gguf, Metadata};
use crate::CheckpointError;
use crate::error::FormatError;
use crate::files;

/// End of the names of GGUF files.
const ENDING: &str = ".gguf";
/// Most parts of a model: the largest published ones have some 100.
pub(crate) const MAX_PARTS: usize = 1_000;
/// Bytes of a file that are read at first. Eight times as many follow while its head is longer. The
/// vocabularies of the largest models take some 16 MiB.
const FIRST_BYTES: u64 = 1 << 20;
/// Most bytes of a head.
const MAX_HEAD_BYTES: u64 = 64 << 20;
/// Most bytes of a tensor that is read with a head.
const MAX_TENSOR_BYTES: u64 = 1 << 20;

/// A file of a model, of which the head is read.
#[derive(Debug)]
pub struct GgufFile {
    /// Path of the file, for messages.
    pub path: PathBuf,
    /// The file, open.
    pub file: Arc<File>,
    /// Length of the file in bytes when its head was read.
    pub length: u64,
    head: Vec<u8>,
}

/// The files of a model, in the order of their numbers.
#[derive(Debug)]
pub struct GgufFiles {
    /// The files. The first one has the metadata.
    pub files: Vec<GgufFile>,
}

/// The name of a part: `NAME-00001-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartName<'a> {
    /// What the names of all parts begin with.
    pub(crate) name: &'a str,
    /// Number of the part, from 1 on.
    pub(crate) number: usize,
    /// Number of all parts.
    pub(crate) count: usize,
}

impl<'a> PartName<'a> {
    /// Reads the name of a file; `None` if it is no part's.
    pub(crate) fn of(file: &'a str) -> Option<Self> {
        let (start, count) = stem(file)?.rsplit_once("-of-")?;
        let (name, number) = start.rsplit_once('-')?;
        let digits = |text: &str| {
            let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
            (all_digits && text.len() == 5).then(|| text.parse().ok()).flatten()
        };
        Some(Self { name, number: digits(number)?, count: digits(count)? })
    }

    /// Name of the part with this number.
    pub(crate) fn with_number(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}{ENDING}", self.name, self.count)
    }
}

/// The name of a GGUF file without its ending; `None` for another file.
pub(crate) fn stem(file: &str) -> Option<&str> {
    let (stem, ending) = file.split_at_checked(file.len().checked_sub(ENDING.len())?)?;
    ending.eq_ignore_ascii_case(ENDING).then_some(stem)
}

/// Paths of all files of the model whose first one is `first`.
///
/// # Errors
/// It is another part than the first one, or a part is missing.
pub fn part_paths(first: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let broken = |what| CheckpointError::Broken { path: first.to_path_buf(), what };
    let file = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(part) = PartName::of(file) else { return Ok(vec![first.to_path_buf()]) };
    let PartName { number, count, .. } = part;
    if number != 1 || !(1..=MAX_PARTS).contains(&count) {
        return Err(broken(format!(
            "expected the first of at most {MAX_PARTS} parts, found part {number} of {count}; name \
             {}, and the others are found beside it",
            part.with_number(1)
        )));
    }
    let names: Vec<String> = (1..=count).map(|number| part.with_number(number)).collect();
    if let Some(missing) = names.iter().find(|name| !first.with_file_name(name).is_file()) {
        return Err(broken(format!(
            "expected all {count} parts of the model beside it, {missing} is missing; fetch it, \
             and keep the names of the parts"
        )));
    }
    Ok(names.iter().map(|name| first.with_file_name(name)).collect())
}

impl GgufFile {
    fn open(path: PathBuf) -> Result<Self, CheckpointError> {
        let cannot_read = |cause| CheckpointError::read(&path, cause);
        let file = files::open(&path).map_err(cannot_read)?;
        let length = file.metadata().map_err(cannot_read)?.len();
        let (mut head, mut bytes) = (vec![], FIRST_BYTES);
        loop {
            let more = bytes.min(length).saturating_sub(head.len() as u64);
            head.reserve_exact(more as usize);
            (&file).take(more).read_to_end(&mut head).map_err(cannot_read)?;
            match Gguf::read_head(&head, length) {
                Ok(_) => break,
                // The descriptions may end in what is not read yet.
                Err(_) if bytes < length.min(MAX_HEAD_BYTES) => bytes *= 8,
                Err(error) => return Err(broken(&path, &error)),
            }
        }
        Ok(Self { file: Arc::new(file), length, head, path })
    }
}

impl GgufFiles {
    /// Opens the model whose first file is `first`, and reads the heads of its files.
    ///
    /// # Errors
    /// As [`part_paths`]; a file cannot be read, or is no GGUF file.
    pub fn open(first: &Path) -> Result<Self, CheckpointError> {
        let paths = part_paths(first)?;
        Ok(Self { files: paths.into_iter().map(GgufFile::open).collect::<Result<_, _>>()? })
    }

    /// The metadata of the first file and the tensors of all. The bytes of the tensor `wanted`, which
    /// is a small one, are read.
    ///
    /// # Errors
    /// The parts are not those of one model, a tensor is in two of them, or `wanted` cannot be read.
    pub fn read(&self, wanted: &str) -> Result<Gguf<'_>, CheckpointError> {
        let mut whole: Option<Gguf<'_>> = None;
        for (number, file) in self.files.iter().enumerate() {
            let of_file = |error| broken(&file.path, &error);
            let mut gguf = Gguf::read_head(&file.head, file.length).map_err(of_file)?;
            check_part(&gguf.metadata, number, self.files.len()).map_err(of_file)?;
            gguf.tensors.iter_mut().for_each(|tensor| tensor.part = number);
            match &mut whole {
                None => whole = Some(gguf),
                Some(whole) => whole.tensors.append(&mut gguf.tensors),
            }
        }
        let [first, ..] = self.files.as_slice() else {
            return Err(CheckpointError::Missing { name: "*.gguf".to_owned() });
        };
        let mut whole = whole.ok_or(CheckpointError::Missing { name: "*.gguf".to_owned() })?;
        check_tensors(&whole).map_err(|error| broken(&first.path, &error))?;
        let tensor = whole.tensors.iter_mut().find(|tensor| tensor.name == wanted);
        if let Some(tensor) = tensor.filter(|tensor| tensor.bytes <= MAX_TENSOR_BYTES) {
            let GgufFile { path, file, .. } = &self.files[tensor.part];
            let mut data = vec![0; tensor.bytes as usize];
            let read = file.read_exact_at(&mut data, tensor.begin);
            read.map_err(|cause| CheckpointError::read(path, cause))?;
            tensor.data = data.into();
        }
        Ok(whole)
    }
}

/// Checks that a file is the part with this number, from 0 on, of `count`.
fn check_part(metadata: &Metadata<'_>, number: usize, count: usize) -> Result<(), FormatError> {
    let stated = |key: &str| metadata.optional(key, Metadata::count);
    // A file that was never split may have these keys with 0.
    let of_count = stated("split.count")?.unwrap_or(0).max(1);
    if of_count != count as u64 {
        let expected = match count {
            1 => format!(
                "the name NAME-00001-of-{of_count:05}.gguf of the first of {of_count} parts, with \
                 the others beside it"
            ),
            _ => format!("one of {count} parts, as its name says"),
        };
        return Err(FormatError::new("split.count", expected, of_count));
    }
    match stated("split.no")? {
        Some(found) if count > 1 && found != number as u64 => {
            Err(FormatError::new("split.no", format!("{number}, as its name says"), found))
        }
        _ => Ok(()),
    }
}

/// Checks that all tensors of a model are there once.
fn check_tensors(gguf: &Gguf<'_>) -> Result<(), FormatError> {
    let found = gguf.tensors.len() as u64;
    let all = gguf.metadata.optional("split.tensors.count", Metadata::count)?;
    if let Some(all) = all.filter(|all| *all != 0 && *all != found) {
        return Err(FormatError::new("tensors of all parts", all, found));
    }
    let mut names = BTreeSet::new();
    match gguf.tensors.iter().find(|tensor| !names.insert(tensor.name)) {
        Some(twice) => Err(twice.error("one tensor of this name", "two in different parts")),
        None => Ok(()),
    }
}

/// The error of a file that is no model in this format.
pub(crate) fn broken(path: &Path, error: &FormatError) -> CheckpointError {
    CheckpointError::Broken { path: path.to_path_buf(), what: format!("GGUF: {error}") }
}
