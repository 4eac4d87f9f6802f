//! Tokens of a tokenizer.json: how many ids there are, which are special, and whether two
//! tokenizers have the same ones.

use std::fmt;
use std::path::{Path, PathBuf};

use paceline_checkpoint::files::{self, GENERATION_CONFIG, MAX_TOKENIZER_BYTES, TOKENIZER};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use sha2::{Digest as _, Sha256};

use super::{CheckpointError, ConfigJson, LoadError};

/// Bytes of a digest that are shown and compared. Two vocabularies that differ by accident have
/// different ones, and a refusal that names two stays readable.
const DIGEST_BYTES: usize = 8;

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<ListedToken>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocabulary,
}

#[derive(Deserialize)]
struct ListedToken {
    id: u32,
    #[serde(default)]
    content: String,
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

/// Ids with their texts, in the order of the file.
struct Vocabulary(Vec<(u32, String)>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary: an object of ids, or a list of tokens")
    }

    /// Of BPE, WordPiece and WordLevel: text → id.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = vec![];
        while let Some((text, id)) = map.next_entry()? {
            tokens.push((id, text));
        }
        Ok(Vocabulary(tokens))
    }

    /// Of Unigram: a token's id is its place.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = vec![];
        while let Some((text, IgnoredAny)) = list.next_element()? {
            tokens.push((tokens.len() as u32, text));
        }
        Ok(Vocabulary(tokens))
    }
}

/// The number of ids of the tokenizer in `dir`, which is its largest id and one; `None` without a
/// tokenizer.json.
///
/// # Errors
/// The file cannot be read, or has no vocabulary with ids.
pub fn count_token_ids(dir: &Path) -> Result<Option<u64>, LoadError> {
    Ok(tokens(dir)?.and_then(|tokens| Some(u64::from(tokens.last()?.0) + 1)))
}

/// The number of tokens of the tokenizer in `dir` and a digest of their ids and texts, in words;
/// empty without a tokenizer.json. Equal if each id is the same text, however the file is written.
///
/// # Errors
/// As [`count_token_ids`].
pub fn token_digest(dir: &Path) -> Result<String, LoadError> {
    let Some(tokens) = tokens(dir)? else { return Ok(String::new()) };
    let mut hasher = Sha256::new();
    for (id, text) in &tokens {
        hasher.update(id.to_le_bytes());
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let digest = hasher.finalize();
    let digest: String =
        digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{} with digest {digest}", tokens.len()))
}

/// Ids and texts of the tokenizer in `dir`, added tokens among them, by id and each once; `None`
/// without a tokenizer.json. Never empty.
fn tokens(dir: &Path) -> Result<Option<Vec<(u32, String)>>, LoadError> {
    let Some(Tokenizer { model, added_tokens }) = tokenizer(dir)? else { return Ok(None) };
    let mut tokens = model.vocab.0;
    tokens.extend(added_tokens.into_iter().map(|token| (token.id, token.content)));
    tokens.sort_unstable();
    tokens.dedup();
    if tokens.is_empty() {
        let path = dir.join(TOKENIZER);
        return Err(LoadError::from(CheckpointError::Broken {
            path,
            what: "expected token ids, found none".into(),
        }));
    }
    Ok(Some(tokens))
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
    let path = dir.join(GENERATION_CONFIG);
    let expected = "an object whose eos_token_id is an id or several";
    let generation: Generation = file(path, expected)?.unwrap_or_default();
    let both = [generation.eos_token_id, config.optional("eos_token_id")?];
    Ok(both.into_iter().flatten().flat_map(Ids::list).collect())
}

fn tokenizer(dir: &Path) -> Result<Option<Tokenizer>, LoadError> {
    file(dir.join(TOKENIZER), "a tokenizer with model.vocab")
}

/// The JSON of a file that may be absent.
fn file<T: DeserializeOwned>(
    path: PathBuf,
    expected: &'static str,
) -> Result<Option<T>, LoadError> {
    let text = match files::read(&path, MAX_TOKENIZER_BYTES) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::from(CheckpointError::Read { path, cause })),
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|cause| LoadError::from(CheckpointError::Json { path, expected, cause }))
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
    fn tokenizers_with_the_same_ids_have_one_digest_however_they_are_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let digest = |json: &str| {
            std::fs::write(dir.path().join("tokenizer.json"), json).expect("written");
            token_digest(dir.path()).expect("read")
        };
        let added = r#"[{"id": 2, "content": "<s>", "special": true}]"#;
        let file = |added: &str, vocab: &str| {
            format!(r#"{{"added_tokens": {added}, "model": {{"vocab": {vocab}}}}}"#)
        };
        let first = digest(&file(added, r#"{"a": 0, "é": 1}"#));
        assert!(first.starts_with("3 with digest ") && first.len() == 30, "{first}");
        let same = [
            // Another order, another spelling, and the added token also in the vocabulary.
            file(added, r#"{ "\u00e9" : 1,"<s>":2,  "a": 0 }"#),
            file(added, r#"[["a", -1], ["é", -2.5]]"#),
            file(r#"[{"id": 2, "content": "<s>", "lstrip": true}]"#, r#"{"a": 0, "é": 1}"#),
        ];
        for json in same {
            assert_eq!(digest(&json), first, "{json}");
        }
        let swapped = digest(&file(added, r#"{"a": 1, "é": 0}"#));
        assert!(swapped.starts_with("3 with digest ") && swapped != first, "{swapped}");
        // Texts that only together are the same bytes.
        let [one, other] = [r#"{"ab": 0, "c": 1}"#, r#"{"a": 0, "bc": 1}"#];
        assert_ne!(digest(&file("[]", one)), digest(&file("[]", other)));
        assert!(digest(&file("[]", r#"{"a": 0, "é": 1}"#)).starts_with("2 with digest "));
        std::fs::remove_file(dir.path().join("tokenizer.json")).expect("there");
        assert_eq!(token_digest(dir.path()).expect("none"), "");
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
