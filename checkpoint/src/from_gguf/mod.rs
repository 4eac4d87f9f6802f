//! A GGUF file as a checkpoint on Hugging Face: its JSON files, its tensors by their names there, and
//! sentences about what the file does not say. The stored blocks stay as they are.
//!
//! ```text
//! architecture · notes     which models are served; what is assumed
//! weights · rope · config  names and forms of tensors; scaling of rotations; config.json
//! vocabulary · pieces · pre_tokenizer · tokenizer
//!                          tokens; merges by scores; cuts by name; the files of the tokenizer
//! choice                   the models among files, and which of them a name chooses
//! derived                  the directory that stands for a file, which all other parts of Paceline read
//! ```

mod architecture;
mod choice;
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

use std::path::PathBuf;

use serde_json::Value;

use crate::error::FormatError;
use crate::gguf::{Gguf, Metadata};
use architecture::Architecture;
use notes::Notes;
use tokenizer::TokenizerFiles;

pub use choice::GgufModel;
pub(crate) use choice::model_name;
pub(crate) use derived::{file_of_name, prepare_source, summary};
pub use derived::{first_file, prepare};
pub(crate) use weights::ROPE_FACTORS;
pub use weights::{GgufWeight, RowOrder, StoredForm, weights};

/// A GGUF file, the first one of a split model, and what is known of it beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GgufSource {
    /// Name of the model; `None`: the file's without its ending.
    pub(crate) name: Option<String>,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Sentences that belong to the notes.
    pub(crate) notes: Vec<String>,
}

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

/// The config.json of a model that is still on a hub, by what is before the data of its first file of
/// `bytes` bytes. The scaling of rotations may be missing, which no size depends on.
///
/// # Errors
/// The head is not whole, or the file is refused. Of a split one the metadata alone is checked.
pub fn config_of_head(
    head: &[u8],
    bytes: u64,
    beside: Option<&Value>,
) -> Result<Value, FormatError> {
    let mut gguf = Gguf::read_head(head, bytes)?;
    // The numbers of this tensor are among the data.
    gguf.tensors.retain(|tensor| tensor.name != ROPE_FACTORS);
    let parts = gguf.metadata.optional("split.count", Metadata::count)?;
    if parts.is_none_or(|parts| parts <= 1) {
        return TextFiles::of(&gguf, beside).map(|texts| texts.config);
    }
    let architecture = Architecture::of(&gguf.metadata)?;
    let (layers, width) = (config::layers(&architecture)?, architecture.count("embedding_length")?);
    config::config(&gguf, &architecture, &mut Notes::of(beside, layers, width)).map(Value::Object)
}

fn without_nulls(object: Value) -> Value {
    let Value::Object(mut keys) = object else { return object };
    keys.retain(|_, value| !value.is_null());
    Value::Object(keys)
}
