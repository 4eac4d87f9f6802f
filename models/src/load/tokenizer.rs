//! Token ids of a tokenizer.json: how many there are, and which are special. The texts are skipped:
//! a vocabulary of 150,000 ids is counted in some tens of milliseconds.

use std::fmt;
use std::path::{Path, PathBuf};

use paceline_vocabulary::model_files::{self, MAX_TOKENIZER_BYTES};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{ConfigJson, LoadError};

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
    #[serde(default)]
    special: bool,
}

/// The part of generation_config.json that is read.
#[derive(Default, Deserialize)]
struct Generation {
    eos_token_id: Option<Ids>,
}

/// One id, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Several(ids) => ids,
        }
    }
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
    let Some(Tokenizer { model, added_tokens }) = tokenizer(dir)? else { return Ok(None) };
    let path = dir.join("tokenizer.json");
    let added = added_tokens.iter().map(|token| u64::from(token.id) + 1).max();
    match model.vocab.0.max(added.unwrap_or(0)) {
        0 => Err(LoadError::Broken { path, what: "expected token ids, found none".into() }),
        count => Ok(Some(count)),
    }
}

/// Ids of the special tokens of the tokenizer in `dir`; none without a tokenizer.json.
///
/// # Errors
/// As [`count_token_ids`].
pub fn special_ids(dir: &Path) -> Result<Vec<u32>, LoadError> {
    let added = tokenizer(dir)?.map(|tokenizer| tokenizer.added_tokens).unwrap_or_default();
    Ok(added.into_iter().filter(|token| token.special).map(|token| token.id).collect())
}

/// Ids that end a text of the model in `dir` with this config.json.
///
/// # Errors
/// generation_config.json is there and cannot be read, or `eos_token_id` is of another form.
pub fn stop_ids(dir: &Path, config: &ConfigJson) -> Result<Vec<u32>, LoadError> {
    let path = dir.join("generation_config.json");
    let expected = "an object whose eos_token_id is an id or several";
    let generation: Generation = file(path, expected)?.unwrap_or_default();
    let both = [generation.eos_token_id, config.optional("eos_token_id")?];
    Ok(both.into_iter().flatten().flat_map(Ids::list).collect())
}

fn tokenizer(dir: &Path) -> Result<Option<Tokenizer>, LoadError> {
    file(dir.join("tokenizer.json"), "a tokenizer with model.vocab")
}

/// The JSON of a file that may be absent.
fn file<T: DeserializeOwned>(
    path: PathBuf,
    expected: &'static str,
) -> Result<Option<T>, LoadError> {
    let text = match model_files::read(&path, MAX_TOKENIZER_BYTES) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::Read { path, cause }),
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|cause| LoadError::Json { path, expected, cause })
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
    fn special_tokens_and_those_that_end_a_text_are_listed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("written");
        };
        write("config.json", r#"{"eos_token_id": 5}"#);
        let config = ConfigJson::read(dir.path()).expect("an object");
        let stops = || stop_ids(dir.path(), &config).expect("read");
        assert_eq!((special_ids(dir.path()).expect("none"), stops()), (vec![], vec![5]));
        write("generation_config.json", r#"{"eos_token_id": [7, 5], "top_k": 20}"#);
        write(
            "tokenizer.json",
            r#"{"added_tokens": [{"id": 9, "special": true}, {"id": 8, "special": false}],
                "model": {"vocab": {"a": 0}}}"#,
        );
        assert_eq!((special_ids(dir.path()).expect("read"), stops()), (vec![9], vec![7, 5, 5]));
        write("generation_config.json", r#"{"eos_token_id": "x"}"#);
        let error = stop_ids(dir.path(), &config).expect_err("refused").to_string();
        assert!(error.contains("eos_token_id is an id or several"), "{error}");
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
