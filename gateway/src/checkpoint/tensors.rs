//! Names of a model's tensors, from the index of its shards or from the header of its one file of
//! weights. No weight is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::LoadError;
use super::files::json;

const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// Longest header that is read. The target has the same bound.
const MAX_HEADER_BYTES: u64 = 16 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, IgnoredAny>,
}

/// Whether the model in `dir` has a tensor with such a name. A model without weights has none: the
/// target reports what is missing.
///
/// # Errors
/// The index or the header is unreadable or not as expected.
pub(super) fn any(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<bool, LoadError> {
    let names = match json::<Index>(&dir.join(INDEX))? {
        Some(Index { weight_map }) => weight_map,
        None => header(&dir.join(WEIGHTS))?.unwrap_or_default(),
    };
    Ok(names.keys().any(|name| is_wanted(name)))
}

/// The header of a safetensors file: a length of 8 bytes, then a JSON object by names; `None`
/// without a file.
fn header(path: &Path) -> Result<Option<BTreeMap<String, IgnoredAny>>, LoadError> {
    let unreadable = |cause| LoadError::Read { path: path.to_path_buf(), cause };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(unreadable(cause)),
    };
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(unreadable)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        let what =
            format!("expected a header of at most {MAX_HEADER_BYTES} bytes, found {length} bytes");
        return Err(LoadError::content(path, what));
    }
    let mut text = vec![];
    file.take(length).read_to_end(&mut text).map_err(unreadable)?;
    let broken = |cause| LoadError::broken(path, "the header is not as expected", cause);
    serde_json::from_slice(&text).map(Some).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_tower(name: &str) -> bool {
        name.starts_with("model.visual.")
    }

    fn found(files: &[(&str, &[u8])]) -> Result<bool, String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).expect("writable");
        }
        any(dir.path(), is_tower).map_err(|error| error.to_string())
    }

    fn weights(header: &str) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"numbers"].concat()
    }

    #[test]
    fn names_come_from_the_index_or_from_the_one_file() {
        let [tower, text] = ["model.visual.norm.weight", "model.norm.weight"]
            .map(|name| weights(&format!(r#"{{"__metadata__": {{}}, "{name}": {{}}}}"#)));
        assert_eq!(found(&[(WEIGHTS, &tower)]), Ok(true));
        assert_eq!(found(&[(WEIGHTS, &text)]), Ok(false));
        assert_eq!(found(&[]), Ok(false));
        let index = br#"{"metadata": {}, "weight_map": {"model.visual.norm.weight": "a"}}"#;
        assert_eq!(found(&[(INDEX, index), (WEIGHTS, &text)]), Ok(true));
        assert_eq!(found(&[(INDEX, br#"{"weight_map": {}}"#), (WEIGHTS, &tower)]), Ok(false));
    }

    #[test]
    fn a_broken_index_or_header_is_refused_by_its_file() {
        let long = (MAX_HEADER_BYTES + 1).to_le_bytes();
        for (name, bytes, words) in [
            (INDEX, b"{}".to_vec(), "not as expected"),
            (WEIGHTS, vec![1, 2, 3], "cannot read"),
            (WEIGHTS, weights("["), "the header is not as expected"),
            (WEIGHTS, weights("{}")[..9].to_vec(), "the header is not as expected"),
            (WEIGHTS, long.to_vec(), "at most 16777216 bytes, found 16777217"),
        ] {
            let error = found(&[(name, &bytes)]).expect_err(words);
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
    }
}
