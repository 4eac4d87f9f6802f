//! Configuration and tokenizer, made of the metadata of a GGUF file and of `templates.json`: the files
//! as transformers and mlx-lm read them. The tokenizer is a byte-level BPE that splits digits. GGUF
//! names no sampling, so the answers are greedy.

use serde_json::{Value, json};

use super::weights::HEADS;
use crate::error::{FormatError, shown};
use crate::gguf::{Metadata, error};

/// The files by their names. A text that begins with a dollar sign stands for a value of the metadata.
const TEMPLATES: &str = include_str!("templates.json");
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
/// GGUF's type of a special token.
const CONTROL: u64 = 3;

/// The files by their names.
pub(super) fn files(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    for (key, expected) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")] {
        let found = metadata.text(key)?;
        if found != expected {
            return Err(error(key, shown(expected), shown(found)));
        }
    }
    let templates = serde_json::from_str(TEMPLATES);
    filled(templates.map_err(|error| FormatError::new("templates", "JSON", error))?, metadata)
}

/// A template with the values of the metadata.
fn filled(template: Value, metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    match template {
        Value::Object(fields) => {
            fields.into_iter().map(|(name, field)| Ok((name, filled(field, metadata)?))).collect()
        }
        Value::Array(items) => items.into_iter().map(|item| filled(item, metadata)).collect(),
        Value::String(text) => match text.strip_prefix('$') {
            Some(form) => value(form, metadata),
            None => Ok(text.into()),
        },
        other => Ok(other),
    }
}

/// The value for a form in a template: how it is read, and most often a key.
fn value(form: &str, metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    let (form, key) = form.split_once(' ').unwrap_or((form, TOKENS));
    Ok(match form {
        "count" => metadata.count(key)?.into(),
        "float" => metadata.float(key)?.into(),
        "text" => metadata.text(key)?.into(),
        "texts" => metadata.texts(key)?.into(),
        "token" => {
            let (id, tokens) = (metadata.count(key)?, metadata.texts(TOKENS)?);
            let token = usize::try_from(id).ok().and_then(|id| tokens.get(id).copied());
            let expected = || format!("one of {} tokens", tokens.len());
            token.ok_or_else(|| error(key, expected(), id))?.into()
        }
        "head_width" => {
            let width = metadata.count("llama.embedding_length")?;
            let width = width.checked_div(metadata.count(HEADS)?);
            width.ok_or_else(|| error(HEADS, "at least 1", "0"))?.into()
        }
        "special_tokens" => special_tokens(metadata)?,
        "vocabulary" => metadata.texts(key)?.into_iter().zip(0_u64..).collect(),
        other => return Err(FormatError::new("templates", "a form of a value", other)),
    })
}

fn special_tokens(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    let (tokens, types) = (metadata.texts(TOKENS)?, metadata.counts(TOKEN_TYPES)?);
    if types.len() != tokens.len() {
        let expected = format!("a type for each of {} tokens", tokens.len());
        return Err(error(TOKEN_TYPES, expected, types.len()));
    }
    let special = tokens.iter().zip(types).enumerate().filter(|(_, (_, kind))| *kind == CONTROL);
    let special = special.map(|(id, (text, _))| {
        json!({
            "id": id,
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        })
    });
    Ok(special.collect())
}
