//! `events.jsonl` of the runtime directory: one JSON object a line, 0600. A file that has grown is set aside as
//! `events.jsonl.1`, in place of the one set aside before.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use paceline_proto::v1::Event;
use serde::{Deserialize, Serialize};

const NAME: &str = "events.jsonl";
const ASIDE: &str = "events.jsonl.1";
/// A file of this size is set aside.
const MAX_BYTES: u64 = 4 << 20;
/// Lines longer than this are none of ours.
const MAX_LINE: usize = 64 << 10;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    time: String,
    term: u64,
    number: u64,
    kind: String,
    subject: String,
    epoch: u64,
    from: String,
    to: String,
    cause: String,
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        let Event { time, term, number, kind, subject, epoch, from, to, cause } = event.clone();
        Self { time, term, number, kind, subject, epoch, from, to, cause }
    }
}

impl From<Line> for Event {
    fn from(line: Line) -> Self {
        let Line { time, term, number, kind, subject, epoch, from, to, cause } = line;
        Self { time, term, number, kind, subject, epoch, from, to, cause }
    }
}

/// Where events are appended.
#[derive(Debug)]
pub(super) struct EventFile {
    dir: PathBuf,
    max_bytes: u64,
    file: Option<File>,
    /// The disk said no; said once, until it takes something again.
    refused: bool,
}

impl EventFile {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, max_bytes: MAX_BYTES, file: None, refused: false }
    }

    /// Appends an event; one that cannot be written is missing in the file, and nowhere else.
    pub(super) fn write(&mut self, event: &Event) {
        match self.append(event) {
            Ok(()) => self.refused = false,
            Err(error) => {
                // Opened anew next time: it may have been removed under us.
                self.file = None;
                if !std::mem::replace(&mut self.refused, true) {
                    let path = self.dir.join(NAME);
                    tracing::warn!(path = %path.display(), %error, "events cannot be written; they go on without the file");
                }
            }
        }
    }

    fn append(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line::from(event)).map_err(io::Error::other)?;
        line.push(b'\n');
        let path = self.dir.join(NAME);
        if self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|meta| meta.len()))? >= self.max_bytes {
            std::fs::rename(&path, self.dir.join(ASIDE))?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
                let (length, mut end) = (file.metadata()?.len(), [b'\n']);
                if length > 0 {
                    file.read_exact_at(&mut end, length - 1)?;
                }
                // A line that was cut short, by a crash or a full disk, takes no other with it.
                if end != [b'\n'] {
                    line.insert(0, b'\n');
                }
                self.file.insert(file)
            }
        };
        // In one call, so that whoever reads meanwhile sees whole lines.
        file.write_all(&line)
    }
}

/// The last events in the files, oldest first. Lines that are none (cut short by a crash or a full disk) are passed over.
pub(super) fn read(dir: &Path, last: usize) -> Vec<Event> {
    let mut events = std::collections::VecDeque::new();
    for name in [ASIDE, NAME] {
        let Ok(file) = File::open(dir.join(name)) else { continue };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) if line.len() > MAX_LINE => {}
                Ok(_) => {
                    if let Ok(line) = serde_json::from_slice::<Line>(&line) {
                        events.push_back(Event::from(line));
                        if events.len() > last {
                            events.pop_front();
                        }
                    }
                }
            }
        }
    }
    events.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event { number, kind: "phase".into(), cause: "two\nlines".into(), ..Default::default() }
    }

    #[test]
    fn the_file_is_bounded_and_its_last_lines_are_read() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut file = EventFile { max_bytes: 2_000, ..EventFile::new(temp.path().into()) };
        (1..=100).for_each(|number| file.write(&event(number)));
        for name in [NAME, ASIDE] {
            let bytes = std::fs::metadata(temp.path().join(name)).expect("there").len();
            assert!(bytes > 0 && bytes < 2_300, "{name}: {bytes}");
        }
        let numbers: Vec<u64> = read(temp.path(), 20).iter().map(|event| event.number).collect();
        assert_eq!(numbers, (81..=100).collect::<Vec<_>>());
        assert_eq!(read(temp.path(), 1)[0], event(100));
        assert!(read(temp.path(), 0).is_empty());
    }

    #[test]
    fn what_is_no_event_is_passed_over_and_a_disk_that_refuses_is_tried_again() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = temp.path().join("later");
        let mut file = EventFile::new(dir.clone());
        file.write(&event(1));
        assert!(file.refused && read(&dir, 9).is_empty());
        std::fs::create_dir(&dir).expect("made");
        file.write(&event(2));
        assert!(!file.refused);
        let mut text = std::fs::read(dir.join(NAME)).expect("there");
        text.extend(b"{\"time\": 3\n{\"time");
        std::fs::write(dir.join(NAME), text).expect("writable");
        assert_eq!(read(&dir, 9), [event(2)]);
        EventFile::new(dir.clone()).write(&event(3));
        assert_eq!(read(&dir, 9), [event(2), event(3)]);
    }
}
