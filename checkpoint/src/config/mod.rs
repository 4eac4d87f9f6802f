//! config.json: where a family's keys are, with explicit nulls read as absent.

mod context;
mod layer_heads;
mod summary;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::CheckpointError;
use crate::files::{self, CONFIG, MAX_TEXT_BYTES};

pub use context::ContextLength;
pub use layer_heads::HeadSizes;
pub use summary::ModelSummary;

/// A model's config.json, its `text_config` laid over the top level.
#[derive(Clone, Debug)]
pub struct ConfigJson {
    path: PathBuf,
    /// Text before a key's name in errors: the part that the key is of.
    of: String,
    values: Map<String, Value>,
}

/// Keys whose value at the top level counts for the whole model. In `text_config` they hold a
/// default of the class that wrote it. Transformers also ties a head by the top level's value.
const OF_THE_WHOLE: [&str; 2] = ["model_type", "tie_word_embeddings"];

/// Keys, and the names that transformers 5.23 writes them under. A newer name counts if the older one
/// is absent.
const NEWER_NAMES: [(&str, &str); 1] = [("num_experts", "num_local_experts")];

impl ConfigJson {
    /// Reads `config.json` of a model directory.
    ///
    /// # Errors
    /// The file is missing or no JSON object.
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(CONFIG);
        let text = files::read(&path, MAX_TEXT_BYTES)
            .map_err(|cause| CheckpointError::read(&path, cause))?;
        Self::parse(&path, &text)
    }

    /// The top level of `config.json` alone, without `text_config` over it.
    ///
    /// # Errors
    /// As [`ConfigJson::read`].
    pub fn top_level(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(CONFIG);
        let text = files::read(&path, MAX_TEXT_BYTES)
            .map_err(|cause| CheckpointError::read(&path, cause))?;
        let values = object(&path, &text)?;
        Ok(Self { path, of: String::new(), values })
    }

    /// The `config.json` with this text. `path` stands for it in messages.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, CheckpointError> {
        let path = path.to_path_buf();
        let broken = |what: String| CheckpointError::Broken { path: path.clone(), what };
        let mut values = object(&path, text)?;
        match values.remove("text_config") {
            None => {}
            Some(Value::Object(mut text)) => {
                let at_top =
                    |key: &String| OF_THE_WHOLE.contains(&key.as_str()) && values.contains_key(key);
                text.retain(|key, value| !(value.is_null() || at_top(key)));
                values.extend(text);
            }
            Some(other) => {
                return Err(broken(format!("text_config: expected an object, found {other}")));
            }
        }
        Ok(Self { path, of: String::new(), values })
    }

    /// The file `base` with `changes` laid over it, one level deep; null takes a key away.
    #[cfg(any(test, feature = "samples"))]
    pub fn changed(mut base: Value, changes: &Value) -> Self {
        for (key, value) in changes.as_object().expect("an object") {
            match (&mut base[key], value) {
                (Value::Object(inner), Value::Object(changes)) => inner.extend(changes.clone()),
                (place, value) => *place = value.clone(),
            }
        }
        Self::parse(Path::new(CONFIG), base.to_string().as_bytes()).expect("an object")
    }

    /// The same without `key`.
    pub fn without(mut self, key: &str) -> Self {
        self.values.remove(key);
        self
    }

    /// The object under `key`, a configuration of its own.
    ///
    /// # Errors
    /// It is there with another type.
    pub fn part(&self, key: &str) -> Result<Option<Self>, CheckpointError> {
        let Some(mut values) = self.optional::<Map<String, Value>>(key)? else { return Ok(None) };
        values.retain(|_, value| !value.is_null());
        Ok(Some(Self { path: self.path.clone(), of: format!("{}{key}.", self.of), values }))
    }

    /// An error about `key`.
    pub fn wrong(&self, key: &str, what: String) -> CheckpointError {
        CheckpointError::Config { key: format!("{}{}", self.of, self.name_of(key)), what }
    }

    /// The name that the file has for `key`.
    fn name_of<'a>(&self, key: &'a str) -> &'a str {
        let is_there = |name: &str| self.values.contains_key(name);
        let newer = NEWER_NAMES.iter().find(|(older, newer)| *older == key && is_there(newer));
        newer.filter(|_| !is_there(key)).map_or(key, |(_, newer)| *newer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A value that may be absent.
    ///
    /// # Errors
    /// It is there with another type.
    pub fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, CheckpointError> {
        let key = self.name_of(key);
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let read = serde_json::from_value(value.clone());
        let key = || format!("{}{key}", self.of);
        read.map(Some).map_err(|cause| CheckpointError::ConfigType { key: key(), cause })
    }

    /// A value that must be there.
    ///
    /// # Errors
    /// It is missing or has another type.
    pub fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T, CheckpointError> {
        self.optional(key)?.ok_or_else(|| self.wrong(key, "expected a value, found none".into()))
    }

    /// A size: at least 1, at most 2^24.
    ///
    /// # Errors
    /// It is missing or out of range.
    pub fn size(&self, key: &str) -> Result<i32, CheckpointError> {
        self.check_size(key, self.required(key)?)
    }

    /// A size, with the value it has if absent.
    ///
    /// # Errors
    /// It is out of range.
    pub fn size_or(&self, key: &str, default: i32) -> Result<i32, CheckpointError> {
        self.check_size(key, self.optional(key)?.unwrap_or(i64::from(default)))
    }

    /// Refuses a size above `most`, which config.json has under `key`.
    ///
    /// # Errors
    /// It is above.
    pub fn check_most(&self, key: &str, size: i32, most: i32) -> Result<(), CheckpointError> {
        if size <= most {
            return Ok(());
        }
        Err(self.wrong(key, format!("expected at most {most}, found {size}")))
    }

    /// Refuses another word than `expected`, which counts if there is none.
    ///
    /// # Errors
    /// It is another one, or no text.
    pub fn check_word(&self, key: &str, expected: &str) -> Result<(), CheckpointError> {
        match self.optional::<String>(key)? {
            Some(found) if found != expected => {
                Err(self.wrong(key, format!("expected {expected}, found {found}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that heads have no more numbers than any model's, so that products of sizes are
    /// numbers of 32 bits. `key` names their number.
    ///
    /// # Errors
    /// They have more.
    pub fn check_heads(
        &self,
        key: &str,
        n_heads: i32,
        head_dim: i32,
    ) -> Result<(), CheckpointError> {
        const MOST: i32 = 1 << 20;
        const MOST_OF_ONE: i32 = 1 << 12;
        if head_dim <= MOST_OF_ONE && n_heads <= MOST / head_dim.max(1) {
            return Ok(());
        }
        let what = format!(
            "expected heads of at most {MOST_OF_ONE} numbers, {MOST} in all; found {n_heads} of \
             {head_dim}"
        );
        Err(self.wrong(key, what))
    }

    /// `value` as a size, named `key` in errors.
    pub(super) fn check_size(&self, key: &str, value: i64) -> Result<i32, CheckpointError> {
        let wrong = || self.wrong(key, format!("expected 1 to 16777216, found {value}"));
        if (1..=1 << 24).contains(&value) { Ok(value as i32) } else { Err(wrong()) }
    }
}

/// The object in a text, without its nulls.
fn object(path: &Path, text: &[u8]) -> Result<Map<String, Value>, CheckpointError> {
    let mut values: Map<String, Value> = serde_json::from_slice(text).map_err(|cause| {
        CheckpointError::Json { path: path.to_path_buf(), expected: "a JSON object", cause }
    })?;
    values.retain(|_, value| !value.is_null());
    Ok(values)
}
