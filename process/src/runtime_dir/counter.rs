//! Counters of lives: the supervisor's term, the epochs of workers and gateway. A counter never
//! goes back, because its numbers distinguish messages of earlier lives (I7).
//!
//! Each counter has a spare with the same number, which is written first. Therefore the larger of
//! the two is at least the last number that was used, and one of them may be empty, damaged or
//! removed. If both are damaged the count is refused. A process remembers the numbers that it
//! counted, so that a cleaner that removes both files sets no count back.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;

use super::{RuntimeDir, RuntimeDirError};

/// Largest number of a counter: link generations have the term in their upper 32 bits.
const MAX_COUNT: u64 = u32::MAX as u64;
/// Bytes that are read of a counter: more than any number has, and few enough for a message.
const MAX_BYTES: u64 = 32;

/// The last numbers that this process knows, by the counter's path: a handful in each process.
static KNOWN: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// Content of a counter's file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Missing,
    Number(u64),
    /// Anything else, as a quoted text.
    Damaged(String),
}

impl RuntimeDir {
    /// Increments the number in file `name` and returns it. The first is 1. When this returns the
    /// number is on the disk, as far as the drive keeps the order of writes; on a full disk it is in
    /// the name of a file. Only one process may count at a time: the holder of a lock.
    ///
    /// # Errors
    /// The files cannot be written, or neither the counter nor its spare is readable.
    pub fn count_up(&self, name: &str) -> Result<u64, RuntimeDirError> {
        let spare = format!("{name}.spare");
        let contents = [self.content(name)?, self.content(&spare)?];
        let numbers = contents.iter().filter_map(|content| match content {
            Content::Missing | Content::Damaged(_) => None,
            Content::Number(number) => Some(*number),
        });
        let last = match numbers.max() {
            Some(last) => last,
            None if contents == [Content::Missing, Content::Missing] => 0,
            None => return Err(self.damaged(name, &spare, &contents)),
        };
        let last = last.max(self.known(name));
        if last >= MAX_COUNT {
            return Err(self.damaged(name, &spare, &contents));
        }
        for (file, content) in [name, &spare].into_iter().zip(&contents) {
            if let Content::Damaged(found) = content {
                tracing::warn!(file, found, last, "a counter was damaged; its other copy is used");
            }
        }
        let next = last + 1;
        self.write_count(name, next)?;
        self.know(name, next);
        Ok(next)
    }

    fn write_count(&self, name: &str, number: u64) -> Result<(), RuntimeDirError> {
        for file in [&format!("{name}.spare"), name] {
            self.replace(file, number.to_string().as_bytes())?;
        }
        self.sync_names()
    }

    /// The counter has had this number: an earlier process counted it.
    pub fn know(&self, name: &str, number: u64) {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known.entry(self.path().join(name)).or_default();
        *last = number.max(*last);
    }

    fn known(&self, name: &str) -> u64 {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&self.path().join(name)).copied().unwrap_or(0)
    }

    /// Writes the counters of this process again whose files are gone, or behind.
    pub(super) fn restore_counts(&self) -> Result<(), RuntimeDirError> {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let here = known.iter().filter(|(path, _)| path.parent() == Some(self.path()));
        for (path, number) in here {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let contents = [self.content(name)?, self.content(&format!("{name}.spare"))?];
            let is_behind = |content: &Content| match content {
                Content::Missing => true,
                Content::Number(found) => found < number,
                // Evidence for the person who removes it.
                Content::Damaged(_) => false,
            };
            if contents.iter().all(is_behind) {
                self.write_count(name, *number)?;
            }
        }
        Ok(())
    }

    /// What the file has, or the names of the empty files that stand for it.
    fn content(&self, name: &str) -> Result<Content, RuntimeDirError> {
        let path = self.path().join(name);
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file =
                OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path)?;
            file.take(MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let file = match read() {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Content::Missing,
            Err(cause) => return Err(RuntimeDirError::at(&path, cause)),
        };
        let number = |content: Content| match content {
            Content::Number(number) => Some(number),
            Content::Missing | Content::Damaged(_) => None,
        };
        let named = self.named(name).into_iter();
        let named = named.filter_map(|(_, text)| number(parse(text.as_bytes()))).max();
        Ok(match named {
            Some(named) => Content::Number(number(file).map_or(named, |file| file.max(named))),
            None => file,
        })
    }

    fn damaged(&self, name: &str, spare: &str, contents: &[Content; 2]) -> RuntimeDirError {
        let words = contents.each_ref().map(|content| match content {
            Content::Missing => "no file".to_owned(),
            Content::Number(number) => format!("{number} (the largest number is {MAX_COUNT})"),
            Content::Damaged(text) => text.clone(),
        });
        let found = format!("{} (spare: {})", words[0], words[1]);
        RuntimeDirError::Counter {
            path: self.path().join(name),
            spare: self.path().join(spare),
            found,
        }
    }
}

/// A number, with or without a line end, up to [`MAX_COUNT`]. Everything else is damage.
fn parse(bytes: &[u8]) -> Content {
    let text = String::from_utf8_lossy(bytes);
    match text.trim().parse::<u64>() {
        Ok(number) if number <= MAX_COUNT => Content::Number(number),
        _ => Content::Damaged(format!("{text:?}")),
    }
}
