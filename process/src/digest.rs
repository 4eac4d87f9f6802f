//! Digests of files, by which two models prove that they have the same tokens.

use std::io::Read as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// SHA-256 of a file, in hexadecimal; `None` if it cannot be read.
pub fn of_file(path: &Path) -> Option<String> {
    let mut file = std::fs::File::open(path).ok()?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    Some(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_has_the_published_digest_and_a_missing_one_none() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "abc").expect("writable");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::of_file(file.path()).as_deref(), Some(expected));
        assert_eq!(super::of_file(std::path::Path::new("/nowhere")), None);
    }
}
