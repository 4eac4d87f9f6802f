//! The text files of the served model as a zip archive, by which a router makes the same prompts.
//!
//! The archive is made when it is first asked for, off the threads that serve connections, and kept
//! as long as a router reads it. Files are stored as they are, so the same files make the same
//! archive.

use std::io::{self, Cursor, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use paceline_checkpoint::digest::hex;
use paceline_checkpoint::files::{self, TEXT_FILES};
use paceline_proto::smg::grpc::common::GetTokenizerChunk;
use paceline_protocols::inference::error::{InferenceError, Result};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Endings of further files: templates and vocabularies.
const ENDINGS: [&str; 3] = ["jinja", "tiktoken", "model"];
/// Most files. smg takes 50.
const MAX_FILES: usize = 50;
/// Most bytes of all files. smg takes an archive of 200 MiB.
const MAX_BYTES: u64 = 190 << 20;
/// Bytes of a piece. A reader that stops holds one copy, and tonic sends a buffer of this length.
const PIECE_BYTES: usize = 32 << 10;

/// A zip archive of the text files of one model, whole in memory.
#[derive(Debug)]
pub(super) struct Archive {
    bytes: Bytes,
    /// SHA-256 of the bytes, in hexadecimal digits.
    sha256: String,
}

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
enum ArchiveRefusal {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("expected at most {MAX_FILES} text files and {MAX_BYTES} bytes in {}, found more", .0.display())]
    TooLarge(PathBuf),
    #[error("cannot write the archive")]
    Write(#[from] zip::result::ZipError),
    #[error("cannot write the archive")]
    Copy(#[from] io::Error),
}

/// The archives of models. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Archives {
    /// Directory of the last archive, and the archive while a router reads it. The lock is held
    /// while it is made, so that it is made once for many routers.
    last: Arc<Mutex<(PathBuf, Weak<Archive>)>>,
}

impl Archives {
    /// The archive of the model in this directory.
    ///
    /// # Errors
    /// A file cannot be read, or the files are too large.
    pub(super) async fn of(&self, directory: &Path) -> Result<Arc<Archive>> {
        let mut last = self.last.lock().await;
        if last.0 == directory
            && let Some(archive) = last.1.upgrade()
        {
            return Ok(archive);
        }
        let read = directory.to_owned();
        let made = tokio::task::spawn_blocking(move || Archive::read(&read)).await;
        let archive = match made {
            Ok(Ok(archive)) => Arc::new(archive),
            Ok(Err(error)) => {
                let chain = paceline_vocabulary::chain(&error);
                return Err(InferenceError::bug(format_args!("text files of the model: {chain}")));
            }
            Err(_) => return Err(InferenceError::bug("a panic while the archive was made")),
        };
        *last = (directory.to_owned(), Arc::downgrade(&archive));
        Ok(archive)
    }
}

impl Archive {
    fn read(directory: &Path) -> Result<Self, ArchiveRefusal> {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let mut left = MAX_BYTES;
        for path in files(directory)? {
            let unreadable = |cause| ArchiveRefusal::Read { path: path.clone(), cause };
            let file = files::open(&path).map_err(unreadable)?;
            let mut content = Vec::new();
            // A file may grow while it is read.
            file.take(left + 1).read_to_end(&mut content).map_err(unreadable)?;
            let bytes = content.len() as u64;
            let too_large = || ArchiveRefusal::TooLarge(directory.to_owned());
            left = left.checked_sub(bytes).ok_or_else(too_large)?;
            archive.start_file(path.file_name().unwrap_or_default().to_string_lossy(), options)?;
            archive.write_all(&content)?;
        }
        let bytes = Bytes::from(archive.finish()?.into_inner());
        let sha256 = hex(&Sha256::digest(&bytes));
        Ok(Self { bytes, sha256 })
    }

    /// The archive in pieces. The last one has the digest.
    pub(super) fn pieces(self: Arc<Self>) -> impl Iterator<Item = GetTokenizerChunk> {
        let count = self.bytes.len().div_ceil(PIECE_BYTES);
        (0..count).map(move |at| {
            let begin = at * PIECE_BYTES;
            let end = (begin + PIECE_BYTES).min(self.bytes.len());
            let sha256 = if at + 1 == count { self.sha256.clone() } else { String::new() };
            GetTokenizerChunk { data: self.bytes.slice(begin..end), sha256 }
        })
    }
}

/// The text files of a model, by their names. Links are followed: a hub's cache is made of them.
fn files(directory: &Path) -> Result<Vec<PathBuf>, ArchiveRefusal> {
    let unreadable = |cause| ArchiveRefusal::Read { path: directory.to_owned(), cause };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if (TEXT_FILES.contains(&name) || ENDINGS.contains(&ending)) && path.is_file() {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(ArchiveRefusal::TooLarge(directory.to_owned()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use zip::ZipArchive;

    use super::*;

    fn unpacked(pieces: &[GetTokenizerChunk]) -> Vec<(String, Vec<u8>)> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.data.to_vec()).collect();
        let (last, others) = pieces.split_last().expect("one at least");
        assert_eq!(last.sha256, hex(&Sha256::digest(&bytes)));
        assert!(others.iter().all(|piece| piece.sha256.is_empty()));
        let mut archive = ZipArchive::new(Cursor::new(bytes)).expect("an archive");
        (0..archive.len())
            .map(|at| {
                let mut file = archive.by_index(at).expect("a file");
                let mut content = Vec::new();
                file.read_to_end(&mut content).expect("whole");
                (file.name().expect("UTF-8").into_owned(), content)
            })
            .collect()
    }

    #[tokio::test]
    async fn the_archive_has_the_text_files_of_the_model_and_no_others() {
        let model = tempfile::tempdir().expect("a directory");
        let write = |name: &str, content: &[u8]| {
            std::fs::write(model.path().join(name), content).expect("written");
        };
        let long = vec![b'x'; PIECE_BYTES + 1];
        write("tokenizer.json", &long);
        write("config.json", b"{}");
        write("chat_template.jinja", b"{{ messages }}");
        write("model.safetensors", b"weights");
        write("notes.txt", b"secret");
        std::fs::create_dir(model.path().join("vocab.json")).expect("a directory");
        let archives = Archives::default();
        let archive = archives.of(model.path()).await.expect("made");
        let pieces: Vec<_> = Arc::clone(&archive).pieces().collect();
        assert_eq!(pieces.len(), 2);
        let expected = [
            ("chat_template.jinja".to_owned(), b"{{ messages }}".to_vec()),
            ("config.json".to_owned(), b"{}".to_vec()),
            ("tokenizer.json".to_owned(), long),
        ];
        assert_eq!(unpacked(&pieces), expected);
        let again = archives.of(model.path()).await.expect("kept");
        assert!(Arc::ptr_eq(&archive, &again), "it is made once while it is read");
        drop((archive, again));
        write("config.json", b"{ }");
        let changed = archives.of(model.path()).await.expect("made again");
        let pieces: Vec<_> = changed.pieces().collect();
        assert_eq!(unpacked(&pieces)[1].1, b"{ }");
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_or_has_too_many_files_is_an_error() {
        let archives = Archives::default();
        archives.of(Path::new("/nowhere")).await.expect_err("not there");
        let model = tempfile::tempdir().expect("a directory");
        for at in 0..=MAX_FILES {
            std::fs::write(model.path().join(format!("{at}.jinja")), b"").expect("written");
        }
        archives.of(model.path()).await.expect_err("too many");
    }
}
