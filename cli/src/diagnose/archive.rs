//! The archive: a tar of text files, compressed by gzip.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::parts::Part;

/// Folder of all files in the archive, so that unpacking makes one folder.
const FOLDER: &str = "paceline-diagnose";

/// Why no archive was written.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file is there already.
    #[error("expected no such file, found one; it is not overwritten, name another one")]
    Exists,
    /// The file cannot be written. What there was of it is removed.
    #[error("cannot write the archive")]
    Write(#[source] io::Error),
}

/// Writes the archive with mode 0600, and returns its size in bytes.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn write(path: &Path, unix_seconds: i64, parts: &[Part]) -> Result<u64, ArchiveError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => ArchiveError::Exists,
        _ => ArchiveError::Write(error),
    })?;
    fill(file, unix_seconds, parts).map_err(|error| {
        // A part of an archive helps nobody.
        let _ = fs::remove_file(path);
        ArchiveError::Write(error)
    })
}

fn fill(file: File, unix_seconds: i64, parts: &[Part]) -> io::Result<u64> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let mut header = Header::new_gnu();
        header.set_size(part.text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(unix_seconds).unwrap_or(0));
        archive.append_data(
            &mut header,
            format!("{FOLDER}/{}", part.name),
            part.text.as_bytes(),
        )?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    Ok(file.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn an_archive_has_its_parts_is_private_and_overwrites_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.tar.gz");
        let part = |name: &str, text: &str| Part {
            name: name.into(),
            about: "".into(),
            text: text.into(),
        };
        let parts = [part("status.txt", "ready"), part("logs/target.log", "é\n")];
        let written = write(&path, 1_700_000_000, &parts).expect("written");
        let meta = fs::metadata(&path).expect("there");
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (written, 0o600));
        let unpacked = flate2::read::GzDecoder::new(File::open(&path).expect("there"));
        let mut found = Vec::new();
        for entry in tar::Archive::new(unpacked).entries().expect("a tar") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            assert_eq!(entry.header().mode().expect("a mode"), 0o600);
            found.push((name, text));
        }
        let expected = [
            ("paceline-diagnose/status.txt", "ready"),
            ("paceline-diagnose/logs/target.log", "é\n"),
        ];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        let again = write(&path, 0, &[]).expect_err("there already");
        assert!(matches!(again, ArchiveError::Exists), "{again}");
        assert_eq!(fs::metadata(&path).expect("there").len(), written);
        let nowhere = write(&dir.path().join("no/a"), 0, &[]).expect_err("no directory");
        assert!(matches!(nowhere, ArchiveError::Write(_)), "{nowhere}");
    }
}
