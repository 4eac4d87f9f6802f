//! Digests: of files, by which two models prove that they have the same tokens, and of what files
//! are named by.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use crate::files::CONFIG;

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, in hexadecimal; `None` if it cannot be read.
fn of_file(path: &Path) -> Option<String> {
    let mut file = crate::files::open(path).ok()?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    Some(hex(&hasher.finalize()))
}

/// SHA-256 of these bytes, in hexadecimal.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A digest in hexadecimal digits that another checkpoint, another quantization of it, or a changed
/// file does not have: of config.json, of indexes, of the names, sizes and times of weights, and of
/// `settings`, with which it is loaded. Files that cannot be read count as missing.
pub fn of_checkpoint(dir: &Path, settings: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(settings);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        if name == CONFIG.as_bytes() || name.ends_with(b".index.json") {
            hasher.update(name);
            hasher.update(of_file(&file).unwrap_or_default());
        } else if name.ends_with(b".safetensors") {
            hasher.update(name);
            // The file, and not a link to it: links of a hub's cache are made anew.
            if let Ok(about) = std::fs::metadata(&file) {
                hasher.update(about.len().to_le_bytes());
                let since = about.modified().ok();
                let since = since.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
                hasher.update(since.unwrap_or_default().as_nanos().to_le_bytes());
            }
        }
    }
    hex(&hasher.finalize())
}

/// A number that stands for the names, sizes and times of a directory's files; of a file, for its
/// own. No file is read.
pub fn of_names(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.push(path.to_owned());
    let mut hasher = DefaultHasher::new();
    for file in files {
        let about = std::fs::metadata(&file).ok().filter(|about| about.is_file());
        (file, about.map(|about| (about.len(), about.modified().ok()))).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;

    #[test]
    fn a_checkpoint_has_another_digest_once_a_file_or_a_setting_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let now = |settings: &str| super::of_checkpoint(dir.path(), settings);
        fs::write(path("config.json"), "{}").expect("written");
        fs::write(path("a.safetensors"), "weights").expect("written");
        let first = now("q4");
        assert_eq!((first.len(), now("q4") == first, now("q8") == first), (64, true, false));
        fs::write(path("README.md"), "words").expect("written");
        assert_eq!(now("q4"), first, "a file that is not loaded");
        fs::write(path("config.json"), "{ }").expect("written");
        let second = now("q4");
        fs::write(path("a.safetensors"), "weight").expect("written");
        let third = now("q4");
        fs::rename(path("a.safetensors"), path("b.safetensors")).expect("renamed");
        let all = [first, second, third, now("q4")];
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(super::of_checkpoint(&path("nowhere"), "").len(), 64);
    }

    #[test]
    fn the_names_sizes_and_times_of_files_have_a_number() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let now = || super::of_names(dir.path());
        let mut all = vec![super::of_names(&path("nowhere")), now()];
        fs::write(path("a"), "text").expect("written");
        all.push(now());
        assert_eq!(now(), now());
        fs::write(path("a"), "texts").expect("written");
        all.push(now());
        let file = fs::File::options().write(true).open(path("a")).expect("there");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("ours");
        all.push(now());
        fs::rename(path("a"), path("b")).expect("renamed");
        all.extend([now(), super::of_names(&path("b"))]);
        let different: std::collections::BTreeSet<u64> = all.iter().copied().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_file_and_its_bytes_have_the_published_digest_and_a_missing_file_none() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "abc").expect("writable");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::of_file(file.path()).as_deref(), Some(expected));
        assert_eq!(super::of_bytes(b"abc"), expected);
        assert_eq!(super::of_file(std::path::Path::new("/nowhere")), None);
    }
}
