//! `events.jsonl` of the runtime directory: an event a line, in a file of [`crate::lines`].

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use paceline_proto::v1::Event;
use serde::{Deserialize, Serialize};

use crate::lines::aside;

/// Name of the file.
pub(super) const NAME: &str = "events.jsonl";
/// Largest size of the file, in bytes.
pub(super) const MAX_BYTES: u64 = 4 << 20;
/// Longest line that is read. This program writes no longer ones.
const MAX_LINE: usize = 64 << 10;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EventLine {
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

impl From<&Event> for EventLine {
    fn from(event: &Event) -> Self {
        let Event { time, term, number, kind, subject, epoch, from, to, cause } = event.clone();
        Self { time, term, number, kind, subject, epoch, from, to, cause }
    }
}

impl From<EventLine> for Event {
    fn from(line: EventLine) -> Self {
        let EventLine { time, term, number, kind, subject, epoch, from, to, cause } = line;
        Self { time, term, number, kind, subject, epoch, from, to, cause }
    }
}

/// The last events in the files, oldest first. Lines that are none (cut short by a crash or a full
/// disk) are passed over.
pub(super) fn read(dir: &Path, last: usize) -> Vec<Event> {
    let mut events = std::collections::VecDeque::new();
    let path = dir.join(NAME);
    for path in [aside(&path), path] {
        let Ok(file) = File::open(path) else { continue };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) if line.len() > MAX_LINE => {}
                Ok(_) => {
                    if let Ok(line) = serde_json::from_slice::<EventLine>(&line) {
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
    use crate::lines::LineFile;

    fn event(number: u64) -> Event {
        Event { number, kind: "phase".into(), cause: "two\nlines".into(), ..Default::default() }
    }

    #[test]
    fn the_last_lines_of_both_files_are_read() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut file = LineFile::new(temp.path().join(NAME), 2_000);
        (1..=100).for_each(|number| file.write(&EventLine::from(&event(number))));
        assert!(aside(&temp.path().join(NAME)).exists());
        let numbers: Vec<u64> = read(temp.path(), 20).iter().map(|event| event.number).collect();
        assert_eq!(numbers, (81..=100).collect::<Vec<_>>());
        assert_eq!(read(temp.path(), 1)[0], event(100));
        assert!(read(temp.path(), 0).is_empty());
    }

    #[test]
    fn a_line_that_is_no_event_is_skipped() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join(NAME);
        assert!(read(temp.path(), 9).is_empty());
        LineFile::new(path.clone(), 2_000).write(&EventLine::from(&event(2)));
        let mut text = std::fs::read(&path).expect("there");
        text.extend(b"{\"time\": 3\n{\"time");
        std::fs::write(&path, text).expect("writable");
        assert_eq!(read(temp.path(), 9), [event(2)]);
        LineFile::new(path, 2_000).write(&EventLine::from(&event(3)));
        assert_eq!(read(temp.path(), 9), [event(2), event(3)]);
    }
}
