//! A file of JSON lines, of bounded size (I6). A file at the bound is renamed to `NAME.1`, in place
//! of the earlier file of that name. A full disk costs lines and one warning, nothing else. The
//! event file and the route log are such files.
//!
//! The actor's task makes the lines and puts them into a bounded queue. A thread of the file's own
//! writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_process::runtime_dir::file_error;
use serde::Serialize;

/// Lines on their way to the disk.
const UNWRITTEN: usize = 1_024;
/// Longest wait for the disk when the writer is dropped.
const FAREWELL: Duration = Duration::from_secs(2);

/// Takes lines for a file. When it is dropped, it waits a bounded time until its queue is written.
#[derive(Debug)]
pub struct LineWriter<T> {
    lines: Option<SyncSender<T>>,
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
    path: PathBuf,
    /// The queue was full at the last line. The warning is logged once, until the disk keeps up
    /// again.
    behind: bool,
}

impl<T: Serialize + Send + 'static> LineWriter<T> {
    /// A writer to `path`, whose files have at most `max_bytes`. If the system gives no thread,
    /// nothing is written, and a warning is logged.
    pub fn start(name: &str, path: PathBuf, max_bytes: u64) -> Self {
        let (lines, incoming) = sync_channel::<T>(UNWRITTEN);
        let (done_tx, done) = sync_channel(1);
        let mut file = LineFile::new(path.clone(), max_bytes);
        let write = move || {
            for line in incoming {
                file.write(&line);
            }
            // The receiver is gone only if the process ends by other means.
            let _ = done_tx.try_send(());
        };
        let thread = match std::thread::Builder::new().name(name.to_owned()).spawn(write) {
            Ok(thread) => Some((thread, done)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no thread for this file; nothing is written to it");
                None
            }
        };
        Self { lines: thread.is_some().then_some(lines), thread, path, behind: false }
    }

    /// Puts a line into the queue. Never waits: if lines come faster than the disk takes them, some
    /// are missing.
    pub fn write(&mut self, line: T) {
        let taken = self.lines.as_ref().map(|lines| lines.try_send(line));
        let behind = matches!(taken, Some(Err(TrySendError::Full(_))));
        if behind && !self.behind {
            tracing::warn!(path = %self.path.display(), "the disk does not keep up with this file; some lines are missing in it");
        }
        self.behind = behind;
    }
}

impl<T> Drop for LineWriter<T> {
    fn drop(&mut self) {
        self.lines = None;
        if let Some((thread, done)) = self.thread.take()
            && done.recv_timeout(FAREWELL).is_ok()
        {
            // The thread has reported its end.
            let _ = thread.join();
        }
    }
}

/// Path to which a file at its bound is renamed.
pub(crate) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// The file itself.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    max_bytes: u64,
    file: Option<File>,
    /// Lines that the disk did not take since it last took one. The first is warned of; the log may
    /// be on the same disk, so their number is logged when it takes lines again.
    lost: u64,
}

impl LineFile {
    pub(crate) fn new(path: PathBuf, max_bytes: u64) -> Self {
        Self { path, max_bytes, file: None, lost: 0 }
    }

    /// Appends a line; one that cannot be written is missing in the file, and nowhere else.
    pub(crate) fn write(&mut self, line: &impl Serialize) {
        match self.append(line) {
            Ok(()) => {
                let lost = std::mem::take(&mut self.lost);
                if lost > 0 {
                    tracing::info!(path = %self.path.display(), lost, "written again; lines are missing before this one");
                }
            }
            Err(error) => {
                // Opened anew next time: it may have been removed under us.
                self.file = None;
                self.lost += 1;
                if self.lost == 1 {
                    tracing::warn!(path = %self.path.display(), %error, "cannot be written; everything goes on without it");
                }
            }
        }
    }

    fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        let bytes =
            self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|meta| meta.len()))?;
        if bytes > 0 && bytes + line.len() as u64 > self.max_bytes {
            let aside = aside(&self.path);
            std::fs::rename(&self.path, &aside).map_err(|cause| file_error(&aside, cause))?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .read(true)
                    .mode(0o600)
                    .open(&self.path)
                    .map_err(|cause| file_error(&self.path, cause))?;
                let meta = file.metadata()?;
                let mut end = [b'\n'];
                if meta.is_file() && meta.len() > 0 {
                    file.read_exact_at(&mut end, meta.len() - 1)?;
                }
                // A line that was cut short, by a crash or a full disk, takes no other with it.
                if end != [b'\n'] {
                    line.insert(0, b'\n');
                }
                self.file.insert(file)
            }
        };
        // In one call, so that a reader meanwhile gets whole lines.
        file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_of_bounded_size_are_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lines.jsonl");
        let mut file = LineFile::new(path.clone(), 1_000);
        (0..200).for_each(|n| file.write(&format!("line {n}")));
        let sizes =
            [path.clone(), aside(&path)].map(|path| std::fs::metadata(path).expect("there").len());
        assert!(sizes.iter().all(|bytes| (1..=1_000).contains(bytes)), "{sizes:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 2);
        assert!(std::fs::read_to_string(&path).expect("text").ends_with("\"line 199\"\n"));
        // Another life goes on in the same file, after a line that was cut short.
        std::fs::write(&path, "\"lin").expect("writable");
        LineFile::new(path.clone(), 1_000).write(&"x");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "\"lin\n\"x\"\n");
    }

    #[test]
    fn a_full_disk_costs_only_lines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("missing/lines.jsonl");
        let mut file = LineFile::new(path.clone(), 1_000);
        file.write(&"a");
        assert!(file.lost == 1 && !path.exists());
        // Mended, it is written again.
        std::fs::create_dir(dir.path().join("missing")).expect("made");
        file.write(&"b");
        assert_eq!(file.lost, 0);
        let mut writer = LineWriter::start("lines", path.clone(), 1_000);
        writer.write("c");
        drop(writer);
        assert_eq!(std::fs::read_to_string(&path).expect("written"), "\"b\"\n\"c\"\n");
        let mut full = LineFile::new("/dev/full".into(), 1_000);
        (0..3).for_each(|n| full.write(&n));
        assert_eq!(full.lost, 3);
    }
}
