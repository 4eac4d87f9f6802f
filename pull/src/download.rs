//! One file: fetched into `NAME.part`, from where an earlier try stopped, and renamed when its
//! digest is right.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{Answer, Client};
use crate::digest::Hasher;
use crate::error::PullError;
use crate::hub::RemoteFile;
use crate::progress::Progress;
use crate::store::{length, open_own, settle};
use crate::url::Url;

/// Tries in a row that bring no byte, after which a file counts as unreachable.
const TRIES: u32 = 3;
/// Pause after the first of them; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 17;

/// A file on its way.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    pub(crate) progress: &'a Progress,
    pub(crate) file: &'a RemoteFile,
    pub(crate) url: Url,
}

/// Where the bytes of a file are.
struct PartialFile {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    have: u64,
}

/// Where a file that is fetched into `dir` lies until it is whole.
fn part_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part"))
}

/// Bytes of the file that are in `dir` already, whole or begun.
pub(crate) fn fetched(dir: &Path, file: &RemoteFile) -> u64 {
    let whole = length(&dir.join(&file.name)).filter(|length| *length == file.size);
    let begun = || length(&part_path(dir, &file.name)).filter(|have| *have <= file.size);
    whole.or_else(begun).unwrap_or(0)
}

impl Download<'_> {
    /// Fetches the file into `dir`, unless it is there.
    ///
    /// # Errors
    /// The hub refuses or cannot be reached, the bytes are wrong, or they cannot be written.
    pub(crate) fn run(&self, dir: &Path) -> Result<(), PullError> {
        let (name, size) = (&self.file.name, self.file.size);
        let whole = dir.join(name);
        if length(&whole) == Some(size) {
            return Ok(());
        }
        let mut part = self.resume(part_path(dir, name))?;
        self.fill(&mut part)?;
        let PartialFile { path, file, hasher, .. } = part;
        if let Err(mismatch) = hasher.check(&self.file.digest) {
            fs::remove_file(&path).map_err(|cause| PullError::at(&path, cause))?;
            return Err(PullError::Unusable(format!(
                "{name}: {mismatch}; the file was removed, run the command again"
            )));
        }
        settle(&file, &path, &whole).map_err(|cause| PullError::at(&path, cause))
    }

    /// Opens the part and hashes what an earlier try left in it.
    fn resume(&self, path: PathBuf) -> Result<PartialFile, PullError> {
        let io = |cause| PullError::at(&path, cause);
        let mut file = open_own(&path).map_err(io)?;
        let mut hasher = Hasher::new(&self.file.digest, self.file.size);
        let mut have = file.metadata().map_err(io)?.len();
        if have > self.file.size {
            file.set_len(0).map_err(io)?;
            have = 0;
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut hashed = 0;
        while hashed < have {
            match file.read(&mut buffer).map_err(io)? {
                0 => break,
                count => {
                    hasher.update(&buffer[..count]);
                    hashed += count as u64;
                }
            }
        }
        Ok(PartialFile { path, file, hasher, have: hashed })
    }

    /// Fetches what is missing. A connection that breaks is made again, and the file goes on where
    /// it broke.
    fn fill(&self, part: &mut PartialFile) -> Result<(), PullError> {
        let (mut tries, mut pause, mut most) = (0, FIRST_PAUSE, part.have);
        while part.have < self.file.size {
            let outcome = self.fetch(part);
            // A server that begins anew each time makes no progress.
            let is_further = part.have > most;
            most = most.max(part.have);
            let error = match outcome {
                Ok(()) if part.have == self.file.size => return Ok(()),
                Ok(()) => PullError::Truncated {
                    what: self.file.name.clone(),
                    expected: self.file.size,
                    found: most,
                },
                Err(error) if is_passing(&error) => error,
                Err(error) => return Err(error),
            };
            if is_further {
                (tries, pause) = (0, FIRST_PAUSE);
            } else {
                tries += 1;
            }
            if tries >= TRIES {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        Ok(())
    }

    /// One request for the rest of the file.
    fn fetch(&self, part: &mut PartialFile) -> Result<(), PullError> {
        let (name, size) = (&self.file.name, self.file.size);
        let answer = self.client.get(self.url.clone(), part.have, name)?;
        if part.have > 0 && !answer.begins_at(part.have, size) {
            // The server sends the whole file, or another part of it.
            self.progress.take_back(part.have);
            self.restart(part)?;
            if answer.status != 200 {
                return Ok(());
            }
        }
        self.copy(answer, part)
    }

    fn restart(&self, part: &mut PartialFile) -> Result<(), PullError> {
        let mut restart = || -> io::Result<()> {
            part.file.set_len(0)?;
            part.file.seek(SeekFrom::Start(0)).map(drop)
        };
        restart().map_err(|cause| PullError::at(&part.path, cause))?;
        part.hasher = Hasher::new(&self.file.digest, self.file.size);
        part.have = 0;
        Ok(())
    }

    fn copy(&self, answer: Answer, part: &mut PartialFile) -> Result<(), PullError> {
        let Answer { body, url, .. } = answer;
        let mut reader = body.into_reader();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => {
                    let (what, host) = (self.file.name.clone(), url.origin.authority);
                    return Err(PullError::Network { what, host, cause: cause.into() });
                }
            };
            if part.have + count as u64 > self.file.size {
                let _ = fs::remove_file(&part.path);
                let RemoteFile { name, size, .. } = self.file;
                return Err(PullError::Unusable(format!(
                    "{name}: expected {size} bytes, found more; the server contradicts itself, so nothing is kept"
                )));
            }
            part.file
                .write_all(&buffer[..count])
                .map_err(|cause| PullError::at(&part.path, cause))?;
            part.hasher.update(&buffer[..count]);
            part.have += count as u64;
            self.progress.add(count as u64);
        }
    }
}

/// Whether the same request may succeed a moment later.
fn is_passing(error: &PullError) -> bool {
    match error {
        PullError::Network { .. } => true,
        PullError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
        _ => false,
    }
}
