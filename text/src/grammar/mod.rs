//! Constraints of an answer while it is generated: the client's schema or grammar, and tool calls
//! tools, in the format of the model's family.
//!
//! With thinking off, or after a thought that the prompt has whole, an answer has no thought.
//!
//! The algorithm: a frame is a grammar in Lark syntax. It writes the family's own text around an
//! answer: thoughts, tags and the characters of tool calls. The frame refers to parts, which are
//! the client's schemas and grammars. The target compiles both (`worker-target/src/grammar`).
//!
//! Must not know: protocols, token ids of an answer.

mod check;
mod frame;
mod gemma;
mod lark;
mod schema;
mod structural_tag;
mod tagged;
#[cfg(test)]
mod tests;
mod thought;
mod tool_calls;

use paceline_vocabulary::generation::{Grammar, GrammarPart, TextForm};
use serde_json::{Map, Value};

use crate::error::FieldError;
use crate::prompt::conversation::{Conversation, Tool, ToolCallRule};
use crate::prompt::format::{AnswerTags, PromptThought};

pub use check::check_form;

/// The form of a text that is one of these.
pub fn one_of(texts: &[String]) -> TextForm {
    let texts: Vec<String> = texts.iter().map(|text| lark::quoted(text)).collect();
    TextForm::Lark(format!("start: {}\n", texts.join(" | ")))
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CallableTool {
    name: String,
    /// The schema of its arguments.
    parameters: Map<String, Value>,
    /// Whether the arguments of every tool call must follow the schema.
    strict: bool,
    /// Field of the schema.
    field: String,
}

/// Constraints of an answer, before the format of the model's family is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerForm {
    text: Option<TextForm>,
    calls: ToolCallRule,
    tools: Vec<CallableTool>,
}

/// The form of a model's answers.
#[derive(Clone, Copy, Debug)]
pub struct ModelAnswers<'a> {
    /// The tags of its family.
    pub tags: &'a AnswerTags,
    /// Whether a thought comes first.
    pub thought: ThoughtRule,
    /// Whether the answer has one tool call at most.
    pub one_call: bool,
}

/// Whether an answer begins with a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtRule {
    /// As the model decides.
    Free,
    /// The prompt ends in one, which the answer goes on with.
    Open,
    /// It has none.
    None,
}

impl ThoughtRule {
    /// The rule for an answer after a prompt that ends so, to a request that may switch thinking
    /// off. A thought that the template opened has to end in any case.
    pub fn of(at_end: PromptThought, is_off: bool) -> Self {
        match at_end {
            PromptThought::Open => Self::Open,
            PromptThought::Closed => Self::None,
            PromptThought::None if is_off => Self::None,
            PromptThought::None => Self::Free,
        }
    }
}

impl AnswerForm {
    /// Constraints of the answer to a plain text.
    pub fn of_text(text: Option<TextForm>) -> Self {
        Self { text, ..Self::default() }
    }

    /// Constraints of the answer to a conversation.
    pub fn of_conversation(text: Option<TextForm>, conversation: &Conversation) -> Self {
        let tool = |(at, tool): (usize, &Tool)| CallableTool {
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
            strict: tool.strict,
            field: format!("tools[{at}].parameters"),
        };
        let tools = conversation.tools.iter().enumerate().map(tool).collect();
        Self { text, calls: conversation.calls.clone(), tools }
    }

    /// Whether the answer is free: nothing is asked of its text, and no tool call is forced
    /// or strict.
    pub fn is_free(&self) -> bool {
        let is_strict = self.tools.iter().any(|tool| tool.strict);
        self.text.is_none() && self.calls == ToolCallRule::Auto && !is_strict
    }

    /// The grammar of answers of a model; `None` if answers are free. `model` is `None` for a
    /// prompt without a conversation, whose answer has no markup.
    ///
    /// # Errors
    /// The family's format cannot be held to what is asked, or the model has no id that ends an
    /// answer.
    pub fn grammar(
        self,
        model: Option<ModelAnswers<'_>>,
        end_ids: &[u32],
    ) -> Result<Option<Grammar>, FieldError> {
        if self.is_free() {
            return Ok(None);
        }
        if end_ids.is_empty() {
            let expected = "none, because this model has no token that ends an answer";
            return Err(FieldError::new("grammar", expected, "one"));
        }
        let mut parts = Parts::default();
        let frame = frame::write(self, model, &mut parts)?;
        check::check_all(&parts.0)?;
        Ok(Some(Grammar { frame, parts: parts.0, end_ids: end_ids.to_vec() }))
    }
}

/// The parts of a frame in the making.
#[derive(Debug, Default)]
struct Parts(Vec<GrammarPart>);

impl Parts {
    /// Adds a part. Returns the characters by which the frame refers to it.
    fn add(&mut self, field: &str, lenient: bool, content: TextForm) -> String {
        self.0.push(GrammarPart { field: field.to_owned(), lenient, content });
        format!("@part_{}", self.0.len() - 1)
    }
}
