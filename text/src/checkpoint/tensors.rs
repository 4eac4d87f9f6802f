//! Names of a model's tensors, from the index of its shards or from the headers of its files of
//! weights. No weight is read.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use paceline_checkpoint::files::{self, INDEX, WeightFiles};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::files::json;
use super::{LoadError, header};

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether the model in `dir` has a tensor with such a name. A model without weights, or without some
/// of them, has none: the target reports what is missing.
///
/// # Errors
/// The index or a header is unreadable or not as expected.
pub(super) fn any(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<bool, LoadError> {
    let index = json::<Index>(&dir.join(INDEX))?;
    let shards = index.as_ref().map(|index| index.weight_map.values().cloned().collect());
    let Ok(files) = WeightFiles::of_directory(dir, shards) else { return Ok(false) };
    if let Some(Index { weight_map }) = index.filter(|_| files.indexed) {
        return Ok(weight_map.keys().any(|name| is_wanted(name)));
    }
    for file in &files.names {
        if of_file(&dir.join(file))?.keys().any(|name| is_wanted(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The tensors of a file by their names.
fn of_file(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let unreadable = |cause: io::Error| match cause.kind() {
        ErrorKind::InvalidData => LoadError::content(path, cause.to_string()),
        _ => LoadError::Read { path: path.to_path_buf(), cause },
    };
    let mut file = files::open(path).map_err(unreadable)?;
    header::tensors(&mut file).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use paceline_checkpoint::files::WEIGHTS;

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
        assert_eq!(found(&[(INDEX, index), ("a", &[])]), Ok(true));
        assert_eq!(found(&[(INDEX, br#"{"weight_map": {}}"#), (WEIGHTS, &tower)]), Ok(false));
        // An old index of shards that are not there does not count beside the whole file.
        assert_eq!(found(&[(INDEX, index), (WEIGHTS, &text)]), Ok(false));
        let shards = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
        assert_eq!(found(&[(shards[0], &text), (shards[1], &tower)]), Ok(true));
    }

    #[test]
    fn a_broken_index_or_header_is_refused_by_its_file() {
        let long = (header::MAX_HEADER_BYTES + 1).to_le_bytes();
        for (name, bytes, words) in [
            (INDEX, b"{}".to_vec(), "not as expected"),
            (WEIGHTS, vec![1, 2, 3], "cannot read"),
            (WEIGHTS, weights("["), "expected a header that is a JSON object"),
            (WEIGHTS, weights("{}")[..9].to_vec(), "expected a header that is a JSON object"),
            (WEIGHTS, long.to_vec(), "at most 16777216 bytes, found 16777217"),
        ] {
            let error = found(&[(name, &bytes)]).expect_err(words);
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
    }
}
