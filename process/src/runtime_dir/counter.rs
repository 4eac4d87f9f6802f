//! Counters of lives: the supervisor's term, the epochs of workers and gateway. A counter never
//! goes back, because its numbers distinguish messages of earlier lives (I7).
//!
//! Each counter has a spare with the same number, which is written first. Therefore the larger of
//! the two is at least the last number that was used, and one of them may be empty, damaged or
//! removed. If both are damaged the count is refused.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;

use super::{RuntimeDir, RuntimeDirError};

/// Largest number of a counter: link generations have the term in their upper 32 bits.
const MAX_COUNT: u64 = u32::MAX as u64;
/// Bytes that are read of a counter: more than any number has, and few enough for a message.
const MAX_BYTES: u64 = 32;

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
    /// number is on the disk, as far as the drive keeps the order of writes. Only one process may
    /// count at a time: the holder of a lock.
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
        if last >= MAX_COUNT {
            return Err(self.damaged(name, &spare, &contents));
        }
        for (file, content) in [name, &spare].into_iter().zip(&contents) {
            if let Content::Damaged(found) = content {
                tracing::warn!(file, found, last, "a counter was damaged; its other copy is used");
            }
        }
        let next = last + 1;
        for file in [&spare, name] {
            self.replace(file, next.to_string().as_bytes())?;
        }
        self.sync_names()?;
        Ok(next)
    }

    fn content(&self, name: &str) -> Result<Content, RuntimeDirError> {
        let path = self.path().join(name);
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file =
                OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path)?;
            file.take(MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(parse(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::Missing),
            Err(cause) => Err(RuntimeDirError::at(&path, cause)),
        }
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
