//! The header of a safetensors file: an 8-byte length, then JSON that names tensors, their types,
//! shapes and places.

use std::collections::HashSet;
use std::fmt;

use safetensors::tensor::Metadata;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Largest header read. The library's own bound is 100 MB, of which a hostile file makes 0.7 GB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Faults of a header.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It is longer than any that is read.
    #[error("expected a header of at most {MAX_HEADER_BYTES} bytes, found a length of {bytes}")]
    TooLong {
        /// The length that the file states.
        bytes: u64,
    },
    /// It is longer than the file.
    #[error("its length, {bytes} bytes, leads beyond the file's end ({file_bytes} bytes)")]
    BeyondFile {
        /// The length that the file states.
        bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// It is no JSON object of tensors that cover the data without overlaps and holes.
    #[error("expected a JSON object of tensors without overlaps and holes")]
    Json(#[from] serde_json::Error),
    /// It names a tensor twice.
    #[error("tensor {0} is in the header twice")]
    Twice(String),
    /// The file is truncated or has a tail.
    #[error(
        "expected {expected} bytes of data after the header, found {found}: the file is truncated or has a tail"
    )]
    DataLength {
        /// Bytes of all tensors.
        expected: u64,
        /// Bytes after the header.
        found: u64,
    },
}

/// Bytes of the header of a file with `file_bytes` bytes; `size` are the file's first.
///
/// # Errors
/// It is too long, or longer than the file.
pub fn length(size: [u8; 8], file_bytes: u64) -> Result<usize, HeaderError> {
    let bytes = u64::from_le_bytes(size);
    if bytes > MAX_HEADER_BYTES {
        return Err(HeaderError::TooLong { bytes });
    }
    if bytes + 8 > file_bytes {
        return Err(HeaderError::BeyondFile { bytes, file_bytes });
    }
    Ok(bytes as usize)
}

/// The tensors that a header names. They cover the `data_bytes` after it without overlaps and
/// holes, and each has as many bytes as its shape needs.
///
/// # Errors
/// It is no such header.
pub fn parse(head: &[u8], data_bytes: u64) -> Result<Metadata, HeaderError> {
    let names: RepeatedName = serde_json::from_slice(head)?;
    if let Some(twice) = names.0 {
        return Err(HeaderError::Twice(twice));
    }
    // Refuses overlaps, holes, and tensors whose bytes do not fit their shape.
    let metadata: Metadata = serde_json::from_slice(head)?;
    let expected = metadata.data_len() as u64;
    if expected != data_bytes {
        return Err(HeaderError::DataLength { expected, found: data_bytes });
    }
    Ok(metadata)
}

/// The first name that is in a JSON object twice. The library would silently take the last of its
/// values.
struct RepeatedName(Option<String>);

impl<'de> Deserialize<'de> for RepeatedName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;
        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = RepeatedName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RepeatedName, A::Error> {
                let (mut seen, mut twice) = (HashSet::new(), None);
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    if !seen.insert(key.clone()) {
                        twice.get_or_insert(key);
                    }
                }
                Ok(RepeatedName(twice))
            }
        }
        deserializer.deserialize_map(NamesVisitor)
    }
}
