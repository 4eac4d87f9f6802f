//! Pieces of an answer in order. Neighbours of one kind become one piece.

use super::{AnswerPart, ToolCallFault, ToolCallStart};

/// Collects the pieces that a token completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts(Vec<AnswerPart>);

impl Parts {
    /// These pieces, of which neighbours are of different kinds.
    pub(crate) fn of(parts: Vec<AnswerPart>) -> Self {
        Self(parts)
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.push(AnswerPart::Text(text.to_owned()));
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        self.push(AnswerPart::Reasoning(text.to_owned()));
    }

    pub(crate) fn arguments(&mut self, text: &str) {
        self.push(AnswerPart::ToolCallArguments(text.to_owned()));
    }

    pub(crate) fn start(&mut self, start: ToolCallStart) {
        self.0.push(AnswerPart::ToolCallStart(start));
    }

    pub(crate) fn end(&mut self) {
        self.0.push(AnswerPart::ToolCallEnd);
    }

    pub(crate) fn cut(&mut self) {
        self.0.push(AnswerPart::ToolCallCut);
    }

    pub(crate) fn fault(&mut self, warning: String) {
        self.0.push(AnswerPart::MalformedToolCall(ToolCallFault { warning }));
    }

    /// A piece of any kind.
    pub(crate) fn push(&mut self, part: AnswerPart) {
        use AnswerPart::{Reasoning, Text, ToolCallArguments};
        match (self.0.last_mut(), &part) {
            (_, Text(more) | Reasoning(more) | ToolCallArguments(more)) if more.is_empty() => {}
            (Some(Text(last)), Text(more))
            | (Some(Reasoning(last)), Reasoning(more))
            | (Some(ToolCallArguments(last)), ToolCallArguments(more)) => last.push_str(more),
            _ => self.0.push(part),
        }
    }

    pub(crate) fn all(&self) -> &[AnswerPart] {
        &self.0
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        self.0.truncate(count);
    }

    pub(crate) fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.0)
    }
}
