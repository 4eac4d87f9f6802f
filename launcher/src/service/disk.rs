//! Files of a service on the disk: found, written whole, removed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use paceline_client::Failure;

use super::plan::{Found, MARK};

/// Most bytes of a file that `install` may have written.
const MOST_BYTES: u64 = 256 * 1024;

/// What lies at a place.
///
/// # Errors
/// It cannot be read.
pub fn found(path: &Path) -> Result<Found, Failure> {
    let cannot = |error| Failure::refused_here(format!("cannot read {}: {error}", path.display()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Absent),
        Err(error) => Err(cannot(error)),
        // A link may be a masked unit; what it leads to is another's.
        Ok(meta) if !meta.is_file() || meta.len() > MOST_BYTES => Ok(Found::Foreign),
        Ok(_) => {
            let text = String::from_utf8(fs::read(path).map_err(cannot)?);
            Ok(match text {
                Ok(text) if text.contains(MARK) => Found::Ours(text),
                _ => Found::Foreign,
            })
        }
    }
}

/// Writes a file whole, beside its place and then by a rename.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = (|| {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        // A manager refuses units that others may write.
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(|error| {
        let _ = fs::remove_file(&beside);
        Failure::refused_here(format!("cannot write {}: {error}", path.display()))
    })
}

/// Removes a file if it is there.
///
/// # Errors
/// It is there and stays.
pub fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::refused_here(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Removes these directories, from the innermost outwards, as far as they are empty.
pub fn remove_empty(dirs: &[&Path]) {
    for dir in dirs {
        // One that holds anything of others stays.
        let _ = fs::remove_dir(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_with_the_mark_is_ours() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("below/a.service");
        assert_eq!(found(&path), Ok(Found::Absent));
        let text = format!("# {MARK}\n[Service]\n");
        write(&path, &text).expect("written");
        assert_eq!(found(&path), Ok(Found::Ours(text)));
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert_eq!(found(&link), Ok(Found::Foreign));
        write(&path, "[Service]\n").expect("written");
        assert_eq!(found(&path), Ok(Found::Foreign));
        assert_eq!(fs::read_dir(path.parent().expect("below")).expect("there").count(), 1);
        remove(&path).expect("removed");
        remove(&path).expect("not there");
        assert!(found(temp.path()) == Ok(Found::Foreign), "a directory");
    }
}
