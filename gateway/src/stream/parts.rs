//! Pieces of an answer in order. Neighbours of one kind become one piece.

use super::{AnswerPart, CallFault, CallStart};

/// Collects the pieces that a token completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(Vec<AnswerPart>);

impl Parts {
    /// These pieces, of which neighbours are of different kinds.
    pub(super) fn of(parts: Vec<AnswerPart>) -> Self {
        Self(parts)
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Text(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::CallArguments(last)) => last.push_str(text),
            _ => self.0.push(AnswerPart::CallArguments(text.to_owned())),
        }
    }

    pub(super) fn start(&mut self, start: CallStart) {
        self.0.push(AnswerPart::CallStart(start));
    }

    pub(super) fn end(&mut self) {
        self.0.push(AnswerPart::CallEnd);
    }

    pub(super) fn cut(&mut self) {
        self.0.push(AnswerPart::CallCut);
    }

    pub(super) fn fault(&mut self, warning: String) {
        self.0.push(AnswerPart::MalformedCall(CallFault { warning }));
    }

    /// A piece of any kind.
    pub(super) fn push(&mut self, part: AnswerPart) {
        match part {
            AnswerPart::Text(text) => self.text(&text),
            AnswerPart::Reasoning(text) => self.reasoning(&text),
            AnswerPart::CallArguments(text) => self.arguments(&text),
            other => self.0.push(other),
        }
    }

    pub(super) fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.0)
    }
}
