//! The header of a safetensors file: an 8-byte length, then JSON that names tensors, their types,
//! shapes and places. Pure: a fuzz target includes this file.

use std::collections::HashSet;
use std::fmt;

use safetensors::tensor::Metadata;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Largest header read. The library's own bound is 100 MB, of which a hostile file makes 0.7 GB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Bytes of the header of a file with so many bytes; `size` are the file's first.
///
/// # Errors
/// It is too long, or longer than the file.
pub fn length(size: [u8; 8], file_bytes: u64) -> Result<usize, String> {
    let bytes = u64::from_le_bytes(size);
    if bytes > MAX_HEADER_BYTES {
        return Err(format!(
            "expected a header of at most {MAX_HEADER_BYTES} bytes, found a length of {bytes}"
        ));
    }
    if bytes + 8 > file_bytes {
        return Err(format!(
            "the header's length, {bytes} bytes, leads beyond the file's end ({file_bytes} bytes)"
        ));
    }
    Ok(bytes as usize)
}

/// The tensors that a header names. They cover the `data_bytes` behind it without overlaps and
/// holes, and each has as many bytes as its shape needs.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse(head: &[u8], data_bytes: u64) -> Result<Metadata, String> {
    let names: Names = serde_json::from_slice(head).map_err(|error| format!("header: {error}"))?;
    if let Some(twice) = names.0 {
        return Err(format!("tensor {twice} is in the header twice"));
    }
    // Refuses overlaps, holes, and tensors whose bytes do not fit their shape.
    let metadata: Metadata =
        serde_json::from_slice(head).map_err(|error| format!("header: {error}"))?;
    let expected = metadata.data_len() as u64;
    if expected != data_bytes {
        return Err(format!(
            "expected {expected} bytes of data behind the header, found {data_bytes}: the file is truncated or has a tail"
        ));
    }
    Ok(metadata)
}

/// Reads a JSON object's keys and keeps the first that stands there twice: the library keeps the
/// last in silence.
struct Names(Option<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Names;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let (mut seen, mut twice) = (HashSet::new(), None);
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    if !seen.insert(key.clone()) {
                        twice.get_or_insert(key);
                    }
                }
                Ok(Names(twice))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}
