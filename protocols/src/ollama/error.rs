//! Errors as Ollama writes them: a text alone.

use serde_json::{Value, json};

use crate::dialect::{Dialect, ErrorView};

/// Ollama's API.
#[derive(Clone, Copy, Debug)]
pub struct Ollama;

impl Dialect for Ollama {
    fn error(view: &ErrorView<'_>) -> Value {
        json!({ "error": view.error.message })
    }
}
