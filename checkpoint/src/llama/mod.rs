//! The checkpoint in MLX's layout that a GGUF file of the architecture `llama` becomes, without loss.
//! Vectors are F32, the embedding, which is also the head, is Q8_0, and all other matrices are Q4_1.
//! Both block types are affine with a scale and an offset for 32 values each, so each weight stays the
//! same number. Other types and other tokenizers than SmolLM2's are refused.

mod texts;
mod weights;

#[cfg(test)]
mod tests;

use std::io;

use serde_json::Value;

use crate::error::{FormatError, shown};
use crate::gguf::{self, Gguf};
use weights::{Module, header};

/// Version of what is written for a GGUF file. To be raised when the files of the same GGUF file change.
pub const LAYOUT: u32 = 1;
/// Name of the file with the weights.
pub const WEIGHTS: &str = "model.safetensors";
/// Names of the other files.
pub const TEXTS: [&str; 4] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"];

/// A checkpoint that can be written.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    /// Contents of the files of [`TEXTS`] by their names.
    texts: Value,
    modules: Vec<Module<'a>>,
}

impl<'a> Checkpoint<'a> {
    /// Checks that a GGUF file can be converted.
    ///
    /// # Errors
    /// The file has another architecture, another tokenizer or other types, or a tensor or a key of the
    /// metadata is missing.
    pub fn of(gguf: &'a Gguf<'a>) -> Result<Self, FormatError> {
        const ARCHITECTURE: &str = "general.architecture";
        let metadata = &gguf.metadata;
        let architecture = metadata.text(ARCHITECTURE)?;
        if architecture != "llama" {
            return Err(gguf::error(ARCHITECTURE, "\"llama\"", shown(architecture)));
        }
        Ok(Self { texts: texts::files(metadata)?, modules: weights::modules(gguf)? })
    }

    /// Names and contents of the files of [`TEXTS`].
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        TEXTS.into_iter().map(|name| (name, format!("{:#}\n", self.texts[name])))
    }

    /// Writes the file of [`WEIGHTS`]: the header's length, the header, the data in its order.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_weights(&self, to: &mut impl io::Write) -> io::Result<()> {
        let header = header(&self.modules);
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(header.as_bytes())?;
        self.modules.iter().try_for_each(|module| module.write(to))
    }
}
