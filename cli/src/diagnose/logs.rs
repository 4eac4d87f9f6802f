//! The newest part of a log, without the lines that have texts of requests.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// The newest `most` bytes of a file, from a whole line on. Bytes that are no UTF-8 are replaced.
/// `None`: there is no such file.
///
/// # Errors
/// It cannot be read, or is no file.
pub fn newest(path: &Path, most: u64) -> io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        let what = "expected a file, found something else";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let skipped = meta.len().saturating_sub(most);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(match (skipped, text.split_once('\n')) {
        (0, _) => text.into_owned(),
        // A line without its beginning may be text of a request.
        (_, Some((_, whole))) => format!("(older lines are left out)\n{whole}"),
        (_, None) => "(older lines are left out)\n".to_owned(),
    }))
}

/// `text` without the lines that contain `mark`. Each gap of such lines has a line that says so.
pub fn without_marked(text: &str, mark: &str) -> String {
    const GAP: &str = "(texts of requests are left out)\n";
    let mut kept = String::new();
    for line in text.split_inclusive('\n') {
        match line.contains(mark) {
            false => kept.push_str(line),
            true if kept.ends_with(GAP) => {}
            true => kept.push_str(GAP),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_lines_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.log");
        let read = |most| newest(&path, most).expect("readable");
        assert_eq!(read(10), None);
        std::fs::write(&path, b"first\nsecond\n\xffthird\n").expect("written");
        assert_eq!(read(100).as_deref(), Some("first\nsecond\n\u{fffd}third\n"));
        assert_eq!(read(10).as_deref(), Some("(older lines are left out)\n\u{fffd}third\n"));
        assert_eq!(read(3).as_deref(), Some("(older lines are left out)\n"));
        assert!(newest(dir.path(), 10).is_err());
    }

    #[test]
    fn marked_lines_leave_a_gap() {
        let found = without_marked("a\nMARK x\nMARK y\nb\nMARK z", "MARK");
        let gap = "(texts of requests are left out)\n";
        assert_eq!(found, format!("a\n{gap}b\n{gap}"));
        assert_eq!(without_marked("a\n", "MARK"), "a\n");
    }
}
