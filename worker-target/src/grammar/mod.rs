//! Grammars that answers are held to: a request's message becomes a compiled grammar, and that
//! becomes the state of one sequence, which gives the allowed ids of each row.
//!
//! - [`vocabulary`]: the bytes of tokens.
//! - [`json`]: a JSON schema made ready for the compiler.
//! - [`schema`] and [`text`]: bounds of what clients send. [`pattern`]: why an expression is refused.
//! - [`closing`]: objects that declare their members have no others; it uses [`references`] and
//!   [`alternatives`].
//! - [`compile`]: the compiler (crate `llguidance`).
//! - [`line`]: the requests that wait for the compiler.
//! - [`store`]: compiled grammars by their digest.
//! - [`state`]: one sequence's place in its grammar.
//! - [`memory`]: bytes of all of them.
//!
//! Must not know: steps, the link, arrays.

mod alternatives;
mod closing;
mod compile;
mod json;
mod line;
mod memory;
mod pattern;
mod references;
mod schema;
mod state;
mod store;
mod text;
mod vocabulary;

use paceline_proto::internal::v1 as internal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_vocabulary::grammar::{MAX_LARK_BYTES, MAX_REGEX_BYTES, MAX_SCHEMA_BYTES};
use tonic::Status;

pub(crate) use state::GrammarState;
pub(crate) use store::Grammars;

/// Parts of one grammar, at most: a schema for each tool, and the answer's own.
const MAX_PARTS: usize = 1_025;
/// Ids that end an answer, at most.
const MAX_END_IDS: usize = 1_024;

/// Why a grammar is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub(crate) struct GrammarError {
    expected: String,
    found: String,
}

impl GrammarError {
    fn new(expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        Self { expected: expected.into(), found: found.to_string() }
    }

    /// The status for the client; `field` is that of its request.
    fn status(&self, field: &str) -> Status {
        Reason::InvalidArgument.field(field, format!("{field}: {self}"))
    }
}

/// A part of an answer, within the bounds of size.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GrammarPart {
    /// Field of the client's request.
    field: String,
    /// Any JSON object serves if the schema cannot be enforced.
    lenient: bool,
    content: PartContent,
}

/// Language that a part of an answer matches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PartContent {
    JsonSchema(String),
    Regex(String),
    Lark(String),
}

/// A grammar as a request has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrammarSource {
    /// Lark with references to the parts.
    frame: String,
    parts: Vec<GrammarPart>,
    /// Ids that end the answer.
    end_ids: Vec<u32>,
}

impl GrammarSource {
    /// The grammar in a message for a model with `vocab` ids.
    ///
    /// # Errors
    /// The first field that is missing or too large, by its name in the client's request.
    pub(crate) fn of_message(message: internal::Grammar, vocab: usize) -> Result<Self, Status> {
        let internal::Grammar { frame, parts, end_ids } = message;
        let refused = |error: GrammarError| error.status("grammar");
        text::check_size(&frame, MAX_SCHEMA_BYTES).map_err(refused)?;
        if parts.len() > MAX_PARTS {
            let expected = format!("at most {MAX_PARTS} parts");
            return Err(refused(GrammarError::new(expected, parts.len())));
        }
        if end_ids.is_empty() || end_ids.len() > MAX_END_IDS {
            let expected = format!("1 to {MAX_END_IDS} ids that end the answer");
            return Err(refused(GrammarError::new(expected, end_ids.len())));
        }
        if let Some(id) = end_ids.iter().find(|id| **id as usize >= vocab) {
            let expected = format!("ids that end the answer below {vocab}");
            return Err(refused(GrammarError::new(expected, id)));
        }
        let parts = parts.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let bytes = parts.iter().map(|part| part.content.text().len()).sum::<usize>();
        // Several schemas cost as much as one of their size.
        if bytes > MAX_SCHEMA_BYTES {
            let expected = format!("at most {MAX_SCHEMA_BYTES} bytes in all parts");
            return Err(refused(GrammarError::new(expected, bytes)));
        }
        Ok(Self { frame, parts, end_ids })
    }
}

fn part(part: internal::GrammarPart) -> Result<GrammarPart, Status> {
    use internal::grammar_part::Content;
    let internal::GrammarPart { field, lenient, content } = part;
    let refused = |error: GrammarError| error.status(&field);
    let content = match content {
        Some(Content::JsonSchema(text)) => PartContent::JsonSchema(text),
        Some(Content::Regex(text)) => PartContent::Regex(text),
        Some(Content::Lark(text)) => PartContent::Lark(text),
        None => {
            let expected = "a JSON schema, a regular expression or a Lark grammar";
            return Err(refused(GrammarError::new(expected, "none")));
        }
    };
    let most = match content {
        PartContent::JsonSchema(_) => MAX_SCHEMA_BYTES,
        PartContent::Lark(_) => MAX_LARK_BYTES,
        PartContent::Regex(_) => MAX_REGEX_BYTES,
    };
    text::check_size(content.text(), most).map_err(refused)?;
    if !matches!(content, PartContent::JsonSchema(_)) {
        text::check_brackets(content.text()).map_err(refused)?;
    }
    Ok(GrammarPart { field, lenient, content })
}

impl PartContent {
    fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
