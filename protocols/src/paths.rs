//! The names that a protocol has for the fields of [`crate::inference::input`], for errors.

use crate::inference::error::InferenceError;
use crate::inference::input::ToolInput;
use crate::shorten::shorten;

/// Characters of a field's path and of a message in an error.
const MAX_CHARS: usize = 1000;

/// A field of the inference's input and the name that a protocol has for it. The name also stands
/// for the beginning of longer paths: `("sampling", "")` makes `top_p` of `sampling.top_p`. A `[]` in both
/// stands for any index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldName {
    /// The path in the inference's input.
    pub inner: &'static str,
    /// The path in the protocol's body.
    pub outer: &'static str,
}

/// The error with a bounded field and message: both may quote the client's own words.
pub fn bounded(mut error: InferenceError) -> InferenceError {
    for text in error.field.iter_mut().chain([&mut error.message]) {
        shorten(text, MAX_CHARS);
    }
    error
}

/// Where a message of the input stands in the body of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessagePath {
    /// The path of the message.
    pub path: String,
    /// Fields of the message that have another path than `path` and their own name.
    fields: Vec<FieldPath>,
}

/// Where a field of a message stands in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldPath {
    /// Path of the field in the message of the input.
    inner: String,
    /// Path of the field in the body.
    outer: String,
}

impl MessagePath {
    /// A message at this path.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), fields: Vec::new() }
    }

    /// Records the place of a field. A longer path of the same beginning must come first.
    pub fn record(&mut self, inner: impl Into<String>, outer: impl Into<String>) {
        let (inner, outer) = (inner.into(), outer.into());
        let is_usual = outer
            .strip_prefix(self.path.as_str())
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|rest| rest == inner);
        if !is_usual {
            self.fields.push(FieldPath { inner, outer });
        }
    }

    /// The path in the body of a field of the message. `rest` begins with a dot, or is empty.
    fn outer(&self, rest: &str) -> String {
        for FieldPath { inner, outer } in &self.fields {
            let after = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(inner.as_str()));
            if let Some(after) = after
                && (after.is_empty() || after.starts_with(['.', '[']))
            {
                return format!("{outer}{after}");
            }
        }
        format!("{}{rest}", self.path)
    }
}

/// The names that a request has for the fields of its input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPaths {
    /// The protocol's table.
    pub fields: &'static [FieldName],
    /// Where each message of the input stands in the body; empty if they stand there as in the input.
    pub messages: Vec<MessagePath>,
    /// The path of each offered tool in the body; empty if their indices are those of the body.
    pub tools: Vec<String>,
}

impl FieldPaths {
    /// The paths of a protocol with this table. Messages and tools have the same indices in the body.
    pub fn new(fields: &'static [FieldName]) -> Self {
        Self { fields, ..Self::default() }
    }

    /// The paths of a request that offers these tools.
    #[must_use]
    pub fn of_tools(self, offered: &[ToolInput]) -> Self {
        Self { tools: offered.iter().map(|tool| tool.path.clone()).collect(), ..self }
    }

    /// The error with the protocol's name of its field.
    pub fn translate(&self, mut error: InferenceError) -> InferenceError {
        let Some(inner) = error.field.take() else { return bounded(error) };
        let outer = self.outer(&inner);
        if let Some(rest) = error.message.strip_prefix(&inner) {
            error.message = format!("{outer}{rest}");
        }
        error.field = Some(outer);
        bounded(error)
    }

    /// The protocol's path.
    fn outer(&self, inner: &str) -> String {
        if let Some((at, rest)) = indexed("messages", inner)
            && let Some(message) = self.messages.get(at)
        {
            return message.outer(rest);
        }
        let outer = self.named(inner);
        let tool = indexed("tools", &outer);
        match tool.and_then(|(at, rest)| Some((self.tools.get(at)?, rest))) {
            Some((path, rest)) if !path.is_empty() => format!("{path}{rest}"),
            _ => outer,
        }
    }

    /// The path with the protocol's names.
    fn named(&self, inner: &str) -> String {
        for FieldName { inner: prefix, outer } in self.fields {
            let Some((indices, rest)) = after(prefix, inner) else { continue };
            let outer = with_indices(outer, &indices);
            match rest.chars().next() {
                None | Some('[') => return format!("{outer}{rest}"),
                Some('.') if outer.is_empty() => return rest[1..].to_owned(),
                Some('.') => return format!("{outer}{rest}"),
                Some(_) => {}
            }
        }
        inner.to_owned()
    }
}

/// The rest of a path that begins as `prefix` says, and the indices in the places of its `[]`.
fn after<'a>(prefix: &str, path: &'a str) -> Option<(Vec<&'a str>, &'a str)> {
    let mut pieces = prefix.split("[]");
    let (mut indices, mut rest) = (Vec::new(), path.strip_prefix(pieces.next()?)?);
    for piece in pieces {
        let (index, more) = rest.strip_prefix('[')?.split_once(']')?;
        indices.push(index);
        rest = more.strip_prefix(piece)?;
    }
    Some((indices, rest))
}

/// A name with these indices in the places of its `[]`.
fn with_indices(name: &str, indices: &[&str]) -> String {
    let mut indices = indices.iter();
    let mut pieces = name.split("[]");
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let index = indices.next().copied().unwrap_or_default();
        made.push_str(&format!("[{index}]{piece}"));
    }
    made
}

/// The index in a path such as `messages[3].content`, whose list has this name, and the rest of the
/// path.
fn indexed<'a>(list: &str, path: &'a str) -> Option<(usize, &'a str)> {
    let (index, rest) = path.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::Reason;

    use super::*;

    #[test]
    fn fields_get_the_protocols_names_in_the_field_and_in_the_message() {
        const FIELDS: &[FieldName] = &[
            FieldName { inner: "limits.max_tokens", outer: "max_output_tokens" },
            FieldName { inner: "sampling", outer: "" },
            FieldName { inner: "messages", outer: "input" },
            FieldName { inner: "tools[].calls[].name", outer: "tools[].x[].function.name" },
        ];
        let mut tool_call = MessagePath::new("input[0]");
        tool_call.record("tool_calls[0].arguments", "input[0].arguments");
        tool_call.record("tool_calls[0]", "input[0]");
        tool_call.record("content[3]", "input[0].content[3]");
        assert_eq!(tool_call.fields.len(), 2, "a usual path takes no memory");
        let messages = vec![MessagePath::new("instructions"), tool_call];
        let paths = FieldPaths { messages, ..FieldPaths::new(FIELDS) };
        for (inner, outer) in [
            ("limits.max_tokens", "max_output_tokens"),
            ("limits.max_tokens_more", "limits.max_tokens_more"),
            ("sampling.top_p", "top_p"),
            ("sampling.logit_bias[3].token_id", "logit_bias[3].token_id"),
            ("messages", "input"),
            ("messages[0].content", "instructions.content"),
            ("messages[1].content[2]", "input[0].content[2]"),
            ("messages[1].tool_calls[0].arguments", "input[0].arguments"),
            ("messages[1].tool_calls[0].name", "input[0].name"),
            ("messages[1].tool_calls[01].name", "input[0].tool_calls[01].name"),
            ("messages[7]", "input[7]"),
            ("tools[3].calls[14].name", "tools[3].x[14].function.name"),
            ("tools[3].calls[14].names", "tools[3].calls[14].names"),
            ("seed", "seed"),
        ] {
            let error = paths.translate(InferenceError::invalid(inner, "a", "b"));
            assert_eq!(error.field.as_deref(), Some(outer));
            assert_eq!(error.message, format!("{outer}: expected a, found b"));
        }
        let error = InferenceError::new(Reason::QueueFull, "128 wait");
        assert_eq!(paths.translate(error.clone()), error);
        let long = paths.translate(InferenceError::invalid(&"é".repeat(1 << 20), "a", "b"));
        let chars = |text: &str| text.chars().count();
        let field = long.field.as_deref().map(chars);
        assert_eq!((field, chars(&long.message)), (Some(MAX_CHARS + 3), MAX_CHARS + 3));
    }
}
