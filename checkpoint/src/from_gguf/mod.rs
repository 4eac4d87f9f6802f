//! A GGUF file as a checkpoint on Hugging Face: its JSON files, its tensors by their names there, and
//! sentences about what the file does not say. The stored blocks stay as they are.
//!
//! ```text
//! architecture · notes     which models are served; what is assumed
//! weights · rope · config  names and forms of tensors; scaling of rotations; config.json
//! vocabulary · pieces · pre_tokenizer · tokenizer
//!                          tokens; merges by scores; cuts by name; the files of the tokenizer
//! derived                  the directory that stands for a file, which all other parts of Paceline read
//! ```

mod architecture;
mod config;
mod derived;
mod notes;
mod pieces;
mod pre_tokenizer;
mod rope;
mod tokenizer;
mod vocabulary;
mod weights;

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::error::FormatError;
use crate::gguf::Gguf;
use architecture::Architecture;
use notes::Notes;
use tokenizer::TokenizerFiles;

pub(crate) use derived::{file_of_name, model_name};
pub use derived::{first_file, prepare};
pub(crate) use weights::ROPE_FACTORS;
pub use weights::{GgufWeight, RowOrder, StoredForm, weights};

/// The JSON files that a GGUF file becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct TextFiles {
    /// config.json.
    pub config: Value,
    /// tokenizer.json.
    pub tokenizer: Value,
    /// tokenizer_config.json, with the chat template if the file has one.
    pub tokenizer_config: Value,
    /// generation_config.json, with all ids that end an answer.
    pub generation_config: Value,
    /// A sentence for each value that the file does not have and that is assumed.
    pub notes: Vec<String>,
}

impl TextFiles {
    /// Makes the files. A config.json `beside` the GGUF file has the values that this does not have.
    ///
    /// # Errors
    /// The architecture or the tokenizer is not served, or the metadata is not whole.
    pub fn of(gguf: &Gguf<'_>, beside: Option<&Value>) -> Result<Self, FormatError> {
        let architecture = Architecture::of(&gguf.metadata)?;
        let (layers, width) =
            (config::layers(&architecture)?, architecture.count("embedding_length")?);
        let mut notes = Notes::of(beside, layers, width);
        let mut config = config::config(gguf, &architecture, &mut notes)?;
        let TokenizerFiles { tokenizer, settings, generation, tokens } =
            TokenizerFiles::of(&gguf.metadata, &mut notes)?;
        let (rows, columns) = weights::embedding(gguf)?;
        if (tokens as u64) > rows || columns != width {
            let expected = format!("at least {tokens} rows of {width} numbers in the embedding");
            let found = format!("{rows} of {columns}");
            return Err(FormatError::new("tensors", expected, found));
        }
        if let Value::Object(ids) = &generation {
            let of_model = |(key, _): &(&String, &Value)| key.ends_with("_token_id");
            config.extend(ids.iter().filter(of_model).map(|(key, id)| (key.clone(), id.clone())));
        }
        let texts = Self {
            config: Value::Object(config),
            tokenizer,
            tokenizer_config: without_nulls(settings),
            generation_config: without_nulls(generation),
            notes: notes.sentences,
        };
        // A file whose tensors cannot be served is refused before anything is made of it.
        weights::weights(gguf).map(|_| texts)
    }
}

fn without_nulls(object: Value) -> Value {
    let Value::Object(mut keys) = object else { return object };
    keys.retain(|_, value| !value.is_null());
    Value::Object(keys)
}
