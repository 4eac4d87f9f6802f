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
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Text(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::Text(text.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::Reasoning(text.to_owned())),
        }
    }

    pub(crate) fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::ToolCallArguments(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::ToolCallArguments(text.to_owned())),
        }
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
        match part {
            AnswerPart::Text(text) => self.text(&text),
            AnswerPart::Reasoning(text) => self.reasoning(&text),
            AnswerPart::ToolCallArguments(text) => self.arguments(&text),
            other => self.0.push(other),
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
