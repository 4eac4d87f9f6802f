//! The header of a safetensors file: names, shapes and places of its tensors. No weight is read.

use std::io::{self, Read};

use serde_json::{Map, Value};

/// Longest header that is read, in bytes. The target has the same bound.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;

/// The tensors of a safetensors file by their names, with `__metadata__` if the file has it: a
/// length of 8 bytes, then a JSON object. Source: the format's description in
/// huggingface/safetensors.
///
/// # Errors
/// The file is unreadable or ends within the length; `InvalidData` if its header is too long or no
/// JSON object.
pub fn tensors(file: &mut impl Read) -> io::Result<Map<String, Value>> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(unexpected(format!(
            "of at most {MAX_HEADER_BYTES} bytes, found {length} bytes"
        )));
    }
    let mut text = vec![];
    file.take(length).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|cause| {
        unexpected(format!("that is a JSON object, found something else: {cause}"))
    })
}

fn unexpected(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("expected a header {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_without_the_weights_after_it() {
        let text = r#"{"__metadata__": {}, "norm.weight": {"dtype": "F32"}}"#;
        let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), b"weights"].concat();
        let tensors = tensors(&mut &*file).expect("a header");
        assert!(tensors.keys().eq(["__metadata__", "norm.weight"]), "{tensors:?}");
    }

    #[test]
    fn a_bad_header_is_an_error_that_names_what_was_expected() {
        let short = tensors(&mut &b"short"[..]).expect_err("no length");
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        for (file, words) in [
            ([0xFF; 64].to_vec(), "at most 16777216 bytes"),
            ([&3_u64.to_le_bytes()[..], b"{\"a"].concat(), "a JSON object"),
            ([&2_u64.to_le_bytes()[..], b"[]"].concat(), "a JSON object"),
            ([&2_u64.to_le_bytes()[..], b"{"].concat(), "a JSON object"),
        ] {
            let error = tensors(&mut &*file).expect_err(words);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
