//! What a GGUF file does not say: its value comes from a config.json beside it, else it is assumed, and
//! a sentence says so.

use serde_json::{Map, Value};

/// A config.json beside the file, and the sentences so far.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    beside: Option<&'a Value>,
    pub(super) sentences: Vec<String>,
}

impl<'a> Notes<'a> {
    /// With this config.json, if it is of a model of this many layers of this width.
    pub(super) fn of(beside: Option<&'a Value>, layers: u64, width: u64) -> Self {
        let mut notes = Self { beside, sentences: vec![] };
        for (key, expected) in [("num_hidden_layers", layers), ("hidden_size", width)] {
            let found = notes.given(key).filter(|found| found.as_u64() != Some(expected));
            if let Some(found) = found {
                notes.sentences.push(format!(
                    "the config.json beside the file is of another model and is left unread: its \
                     {key} is {found}, the file's is {expected}"
                ));
                notes.beside = None;
            }
        }
        notes
    }

    /// What the config.json beside the file has under a key.
    pub(super) fn given(&self, key: &str) -> Option<&'a Value> {
        let config = self.beside?;
        let of_text = config.get("text_config").and_then(|text| text.get(key));
        of_text.or_else(|| config.get(key)).filter(|value| !value.is_null())
    }

    /// Whether there is a config.json of the model beside the file.
    pub(super) fn has_config(&self) -> bool {
        self.beside.is_some()
    }

    /// Sets a key that the file does not have.
    pub(super) fn settle(&mut self, config: &mut Map<String, Value>, key: &str, assumed: Value) {
        let value = self.given(key).cloned().unwrap_or_else(|| {
            self.sentences.push(format!(
                "the file does not say {key}: {assumed} is assumed; a config.json of the original \
                 model beside it would be read"
            ));
            assumed
        });
        config.insert(key.to_owned(), value);
    }
}
