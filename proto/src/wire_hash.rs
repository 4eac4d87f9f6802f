//! A digest of the messages between our own processes, computed by `build.rs`: two builds with the
//! same digest understand each other's messages.

use prost_types::FileDescriptorSet;
use protox::prost::Message as _;
use sha2::{Digest as _, Sha256};

/// Bytes of SHA-256 that are kept: enough that two builds never share them by chance.
const KEPT_BYTES: usize = 8;

/// The digest in hexadecimal. Comments and positions in the source files do not count, nor does the
/// order of the files. `files` holds the files of the internal package and all that they import.
pub fn wire_hash(mut files: FileDescriptorSet) -> String {
    files.file.sort_by(|a, b| a.name.cmp(&b.name));
    for file in &mut files.file {
        file.source_code_info = None;
    }
    let digest = Sha256::digest(files.encode_to_vec());
    digest.iter().take(KEPT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a package of these two files.
    fn hash_of(message: &str, imported: &str) -> String {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [("message.proto", message), ("imported.proto", imported)] {
            std::fs::write(dir.path().join(name), text).expect("writable");
        }
        let files = protox::compile(["message.proto"], [dir.path()]).expect("valid");
        wire_hash(files)
    }

    const MESSAGE: &str = "syntax = \"proto3\"; package p; import \"imported.proto\";
        message Order { uint64 epoch = 1; Part part = 2; }
        service Worker { rpc Stop(Order) returns (Order); }";
    const IMPORTED: &str = "syntax = \"proto3\"; package p; message Part { string cause = 1; }";

    #[test]
    fn comments_and_layout_do_not_change_the_hash() {
        let commented = MESSAGE.replace("message Order", "// What to do.\n\n  message Order");
        assert_eq!(hash_of(&commented, IMPORTED), hash_of(MESSAGE, IMPORTED));
        let imported = IMPORTED.replace("string", "/* Why. */ string");
        assert_eq!(hash_of(MESSAGE, &imported), hash_of(MESSAGE, IMPORTED));
    }

    #[test]
    fn every_change_of_a_message_or_service_changes_the_hash() {
        let usual = hash_of(MESSAGE, IMPORTED);
        assert_eq!(usual.len(), 2 * KEPT_BYTES);
        for (old, new) in [
            ("uint64 epoch = 1", "uint32 epoch = 1"),
            ("uint64 epoch = 1", "uint64 epoch = 3"),
            ("uint64 epoch = 1;", "uint64 epoch = 1; bool now = 3;"),
            ("Part part = 2;", ""),
            ("returns (Order)", "returns (stream Order)"),
        ] {
            assert_ne!(hash_of(&MESSAGE.replace(old, new), IMPORTED), usual, "{new}");
        }
        let imported = IMPORTED.replace("cause = 1", "cause = 2");
        assert_ne!(hash_of(MESSAGE, &imported), usual, "of an imported file");
    }
}
