//! How many token ids a tokenizer.json knows. Its texts are skipped: a vocabulary of 150,000 ids is
//! counted in some tens of milliseconds.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::LoadError;

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    vocab: IdCount,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
}

/// The largest id of a vocabulary and one; 0 without ids.
struct IdCount(u64);

impl<'de> Deserialize<'de> for IdCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = IdCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary: an object of ids, or a list of tokens")
    }

    /// Of BPE, WordPiece and WordLevel: text → id.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IdCount, A::Error> {
        let mut count = 0;
        while let Some((IgnoredAny, id)) = map.next_entry::<_, u32>()? {
            count = count.max(u64::from(id) + 1);
        }
        Ok(IdCount(count))
    }

    /// Of Unigram: a token's id is its place.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<IdCount, A::Error> {
        let mut count = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(IdCount(count))
    }
}

/// The number of ids of the tokenizer in `dir`, which is its largest id and one; `None` without a
/// tokenizer.json.
///
/// # Errors
/// The file cannot be read, or has no vocabulary with ids.
pub fn count_token_ids(dir: &Path) -> Result<Option<u64>, LoadError> {
    let path = dir.join("tokenizer.json");
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::Read { path, cause }),
    };
    let read: Result<Tokenizer, _> = serde_json::from_slice(&text);
    let Tokenizer { model, added_tokens } = read.map_err(|cause| LoadError::Json {
        path: path.clone(),
        expected: "a tokenizer with model.vocab",
        cause,
    })?;
    let added = added_tokens.iter().map(|token| u64::from(token.id) + 1).max();
    match model.vocab.0.max(added.unwrap_or(0)) {
        0 => Err(LoadError::Broken { path, what: "expected token ids, found none".into() }),
        count => Ok(Some(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(json: &str) -> Result<Option<u64>, String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("tokenizer.json"), json).expect("written");
        count_token_ids(dir.path()).map_err(|error| paceline_vocabulary::chain(&error))
    }

    #[test]
    fn the_largest_id_counts_wherever_it_stands() {
        let by_text = r#"{"version": "1.0", "added_tokens": [{"id": 7, "content": "<s>"}],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 3}, "merges": [["a", "b"]]}}"#;
        assert_eq!(count(by_text), Ok(Some(8)));
        let in_order = r#"{"model": {"vocab": [["a", -1.5], ["b", -2.0], ["c", -3.0]]}}"#;
        assert_eq!(count(in_order), Ok(Some(3)));
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert!(matches!(count_token_ids(dir.path()), Ok(None)));
    }

    #[test]
    fn a_file_without_ids_is_refused() {
        for (json, says) in [
            ("{", "expected a tokenizer with model.vocab"),
            (r#"{"model": {}}"#, "missing field `vocab`"),
            (r#"{"model": {"vocab": {"a": -1}}}"#, "u32"),
            (r#"{"model": {"vocab": 5}}"#, "a vocabulary: an object of ids"),
            (r#"{"model": {"vocab": {}}, "added_tokens": []}"#, "expected token ids, found none"),
        ] {
            let error = count(json).expect_err(says);
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
