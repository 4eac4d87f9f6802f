//! The shape of an answer: what a request asks of its text, thoughts and tool calls, and what that
//! comes to after one prompt of one model.
//!
//! Must not know: protocols, how tokens are chosen.

use std::sync::Arc;

use paceline_vocabulary::generation::{Grammar, TextForm, ThoughtBudget};

use crate::error::FieldError;
use crate::grammar::{AnswerForm, ModelAnswers, ThoughtRule};
use crate::prompt::conversation::Conversation;
use crate::prompt::format::PromptThought;
use crate::prompt::{Language, Source};
use crate::stream::{ConversationReading, OfferedTools};

/// What a request asks of the shape of its answer, besides what its conversation says of tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerShape {
    /// Constraint of the answer's text.
    pub text: Option<TextForm>,
    /// Constraint of the answer in the channels of the model's family, for a prompt of ids. It comes
    /// in place of `text`.
    pub channels: Option<AnswerForm>,
    /// Whether a thought that a prompt of ids has opened ends before `text` holds. In answers to
    /// conversations it always does.
    pub after_thought: bool,
    /// Most tokens of the thought before the answer to a conversation; 0: any number. Absent: as the
    /// operator sets it.
    pub thinking_budget: Option<u32>,
    /// Whether the answer ends after its first complete call of an offered tool. A call of a tool
    /// that is not offered is text then, so that it does not take the place of a call that the client
    /// can run.
    pub one_call: bool,
}

/// The shape of the answer to a request whose prompt is not made yet.
#[derive(Clone, Debug)]
pub struct AskedAnswer {
    form: AnswerForm,
    /// None if the prompt is no conversation: then the answer is text alone.
    reading: Option<ConversationReading>,
    in_channels: bool,
    after_thought: bool,
    switches_thinking_off: bool,
    thinking_budget: Option<u32>,
}

/// How the answer after one prompt is generated and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapedAnswer {
    /// How it is read, if it answers a conversation.
    pub reading: Option<ConversationReading>,
    /// Holds it to what is asked; `None` if it is free.
    pub grammar: Option<Grammar>,
    /// Bound of its thought.
    pub thought: Option<ThoughtBudget>,
}

impl AnswerShape {
    /// Asks for nothing but this of the text.
    pub fn of_text(text: Option<TextForm>) -> Self {
        Self { text, ..Self::default() }
    }

    /// With what the prompt's source says of tools and thoughts.
    pub fn asked(&self, source: &Source) -> AskedAnswer {
        let text = self.text.clone();
        let conversation = match source {
            Source::Chat(conversation) => Some(conversation),
            _ => None,
        };
        let form = match (conversation, &self.channels) {
            (Some(conversation), _) => AnswerForm::of_conversation(text, conversation),
            (None, Some(channels)) => channels.clone(),
            (None, None) => AnswerForm::of_text(text),
        };
        AskedAnswer {
            form,
            reading: conversation.map(|conversation| self.reading(conversation)),
            in_channels: self.channels.is_some(),
            after_thought: self.after_thought,
            switches_thinking_off: conversation.is_some_and(Conversation::switches_thinking_off),
            thinking_budget: self.thinking_budget,
        }
    }

    fn reading(&self, conversation: &Conversation) -> ConversationReading {
        let tools = &conversation.tools;
        let tools = (!tools.is_empty()).then(|| Arc::new(OfferedTools::new(tools)));
        ConversationReading { tools, one_call: self.one_call, ..ConversationReading::default() }
    }
}

impl AskedAnswer {
    /// Whether nothing is asked of the answer's text and tool calls.
    pub fn is_free(&self) -> bool {
        self.form.is_free()
    }

    /// Checks that answers of the model can have this shape.
    ///
    /// # Errors
    /// It is a shape of channels, and the model does not answer in channels.
    pub fn check(&self, language: &Language) -> Result<(), FieldError> {
        if self.in_channels && !language.answer_tags.has_channels() {
            let expected = "another constraint, because this model does not answer in channels";
            return Err(FieldError::new("sampling_params.structural_tag", expected, "one"));
        }
        Ok(())
    }

    /// The answer after this prompt, whose images have one placeholder each. `vocabulary` is the
    /// model's number of ids, `default_budget` bounds thoughts of requests that set no bound (0: not
    /// at all).
    ///
    /// # Errors
    /// The family's format cannot be held to what is asked, or the model has no id that ends an
    /// answer.
    pub fn after(
        self,
        prompt_ids: &[u32],
        language: &Language,
        vocabulary: u32,
        default_budget: u32,
    ) -> Result<ShapedAnswer, FieldError> {
        let Self { form, mut reading, .. } = self;
        let (tags, tokens) = (&*language.answer_tags, &language.tokens);
        let at_end = tags.thought_at_end(prompt_ids, tokens);
        if let Some(reading) = &mut reading {
            reading.thought_is_open = at_end == PromptThought::Open;
        }
        let thought = ThoughtRule::of(at_end, self.switches_thinking_off);
        let one_call = reading.as_ref().is_some_and(|reading| reading.one_call);
        let answers = ModelAnswers { tags, thought, one_call };
        let most = self.thinking_budget.unwrap_or(default_budget);
        let budget = match reading.is_some() && most > 0 {
            true => answers.thought_budget(most, tokens),
            false => None,
        };
        let ends_thought = self.after_thought && thought == ThoughtRule::Open;
        let has_markup = reading.is_some() || ends_thought || self.in_channels;
        let end_ids = language.stop_ids.iter().copied().filter(|id| *id < vocabulary);
        let end_ids: Vec<u32> = end_ids.collect();
        let grammar = form.grammar(has_markup.then_some(answers), &end_ids)?;
        let thought = budget.filter(|budget| budget.is_of(vocabulary));
        Ok(ShapedAnswer { reading, grammar, thought })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::format::{AnswerFormat, AnswerTags, ToolCallFormat};
    use crate::prompt::markup::Added;
    use crate::samples;

    const OPEN: u32 = 256;
    const CLOSE: u32 = 257;
    const VOCABULARY: u32 = 4096;

    /// The demo model, as if its answers had thoughts.
    fn language(calls: ToolCallFormat) -> Language {
        let tag = |(id, text): (u32, &str)| Added { id, text: text.to_owned(), special: true };
        let added = [(OPEN, "<think>"), (CLOSE, "</think>")].map(tag);
        let tags = AnswerTags::of_added(AnswerFormat { thoughts: true, calls }, &added);
        Language { answer_tags: Arc::new(tags), ..samples::language() }
    }

    fn json() -> AnswerShape {
        AnswerShape::of_text(Some(TextForm::JsonObject))
    }

    fn after(shape: &AnswerShape, source: &Source, prompt: &[u32], budget: u32) -> ShapedAnswer {
        let language = language(ToolCallFormat::Hermes);
        let asked = shape.asked(source);
        asked.check(&language).expect("of this family");
        asked.after(prompt, &language, VOCABULARY, budget).expect("a shape")
    }

    /// The frame, and whether the answer is read as one to a conversation.
    fn frame(shape: &AnswerShape, source: &Source, prompt: &[u32]) -> (String, bool) {
        let ShapedAnswer { reading, grammar, .. } = after(shape, source, prompt, 0);
        (grammar.expect("it is not free").frame, reading.is_some())
    }

    #[test]
    fn the_answer_to_ids_is_text_unless_it_ends_their_thought_first() {
        let ids = Source::Ids(vec![5]);
        let plain = ("start: @part_0\n".to_owned(), false);
        let first = AnswerShape { after_thought: true, ..json() };
        assert_eq!(frame(&json(), &ids, &[5, OPEN]), plain);
        assert_eq!(frame(&first, &ids, &[5]), plain, "there is no thought to end");
        let (ended, is_conversation) = frame(&first, &ids, &[5, OPEN]);
        assert!(ended.contains("@part_0") && ended != plain.0 && !is_conversation, "{ended}");
        let chat = Source::Chat(Conversation::default());
        assert_eq!(frame(&json(), &chat, &[5, OPEN]), (ended, true), "a conversation always does");
        assert_eq!(after(&AnswerShape::default(), &ids, &[5], 9).grammar, None);
    }

    #[test]
    fn thoughts_of_conversations_alone_are_bounded_by_the_request_before_the_operator() {
        let chat = Source::Chat(Conversation::default());
        let most = |budget: Option<u32>, source: &Source, default: u32| {
            let shape = AnswerShape { thinking_budget: budget, ..AnswerShape::default() };
            after(&shape, source, &[5], default).thought.map(|thought| thought.max_tokens)
        };
        assert_eq!([most(None, &chat, 0), most(None, &chat, 7)], [None, Some(7)]);
        assert_eq!([most(Some(3), &chat, 7), most(Some(0), &chat, 7)], [Some(3), None]);
        assert_eq!(most(Some(3), &Source::Ids(vec![5]), 7), None);
        let (off, language) = (AnswerShape::default(), language(ToolCallFormat::Hermes));
        let small = off.asked(&chat).after(&[5], &language, CLOSE, 7).expect("a shape");
        assert_eq!(small.thought, None, "the model has no row for its end");
    }

    #[test]
    fn a_conversation_is_read_from_where_its_prompt_ends() {
        let chat = Source::Chat(Conversation::default());
        let one = AnswerShape { one_call: true, ..AnswerShape::default() };
        for (prompt, is_open) in [(&[5, OPEN][..], true), (&[OPEN, CLOSE], false), (&[5], false)] {
            let reading = after(&one, &chat, prompt, 0).reading.expect("a conversation");
            let expected = ConversationReading {
                thought_is_open: is_open,
                one_call: true,
                ..Default::default()
            };
            assert_eq!(reading, expected);
        }
    }

    #[test]
    fn channels_are_of_families_that_answer_in_them() {
        let tag = r#"{"format": {"type": "triggered_tags", "tags": [{
            "begin": "<|channel|>final<|message|>",
            "content": {"type": "json_schema", "json_schema": {"type": "object"}}}]}}"#;
        let channels = AnswerForm::of_structural_tag("tag", tag).expect("a tag");
        let shape = AnswerShape { channels: Some(channels), ..AnswerShape::default() };
        let asked = shape.asked(&Source::Ids(vec![5]));
        let error = asked.check(&language(ToolCallFormat::Hermes)).expect_err("refused");
        assert_eq!(error.field, "sampling_params.structural_tag");
        asked.check(&language(ToolCallFormat::Harmony)).expect("it answers in channels");
        // A conversation says itself what is asked.
        assert!(shape.asked(&Source::Chat(Conversation::default())).is_free());
    }
}
