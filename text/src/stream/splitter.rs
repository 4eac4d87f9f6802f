//! Splits an answer with tags into text, thoughts and tool calls.
//!
//! The algorithm: a state machine of three states takes characters and tags. A tag that the
//! tokenizer has as an added token comes as a token, and its characters alone are text. Of other
//! tags the characters are held back while they may become one.
//!
//! Line breaks beside thoughts and calls belong to the format, because templates write them anew:
//! those after a thought, those before the first call and after the last one, and all between
//! calls. One exception: if text stands on both sides of calls, the line breaks before the first
//! call and after the last one are text. They are sent with the text after the calls.

use std::sync::Arc;

use super::open_tool_call::{Before, OpenToolCall, ToolCallContext};
use super::parts::Parts;
use super::tool_call::BrokenToolCall;
use super::{Ending, Splitter};
use crate::prompt::format::{AnswerTags, THOUGHT, Tag, ToolCallFormat};

/// Kind of the part before a text, if only line breaks and separators stand between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum After {
    /// Text, or nothing at all.
    #[default]
    Text,
    Thought,
    Call,
}

/// Text outside of thoughts and tool calls.
#[derive(Debug, Default)]
struct TextState {
    /// Line breaks, and what else stands between tool calls, that are not sent: only a call may
    /// follow.
    held: String,
    after: After,
    /// Whether the text after it is that of a tool call that turned out to be none.
    is_failed_call: bool,
    /// Whether a list of tool calls is open, so that an object begins the next call.
    is_in_list: bool,
}

/// A thought.
#[derive(Debug, Default)]
struct ThoughtState {
    /// Line breaks that are not sent: the thought may end after them.
    held: usize,
    /// Characters that may be the name of the thought's channel.
    name: String,
    /// Whether the name, if there is one, is over.
    is_named: bool,
    has_text: bool,
}

#[derive(Debug)]
enum State {
    Text(TextState),
    Thought(ThoughtState),
    Call(Box<OpenToolCall>),
}

/// Splits one answer.
#[derive(Debug)]
pub(super) struct TagSplitter {
    tags: Arc<AnswerTags>,
    context: ToolCallContext,
    state: State,
    /// Whether the answer has text already.
    has_text: bool,
    /// Line breaks between the last text and the tool calls after it. They are text before a text.
    gap: String,
}

impl TagSplitter {
    /// Before the first token of an answer.
    pub(super) fn new(tags: Arc<AnswerTags>, context: ToolCallContext) -> Self {
        let state = match context.reading.thought_is_open && tags.format().thoughts {
            true => State::Thought(ThoughtState::default()),
            false => State::Text(TextState::default()),
        };
        Self { tags, context, state, has_text: false, gap: String::new() }
    }

    fn format(&self) -> ToolCallFormat {
        self.tags.format().calls
    }

    /// Whether the reader of a tool call finds its end, and no closing tag ends it.
    fn calls_end_by_themselves(&self) -> bool {
        use ToolCallFormat::{Glm, Llama3, MiniCpm, MistralArgs, MistralList};
        matches!(self.format(), Llama3 | MistralList | MistralArgs | MiniCpm | Glm)
    }

    fn reads_calls(&self) -> bool {
        self.context.tools().is_some() && self.format() != ToolCallFormat::None
    }

    fn at_line_start(&self, state: &TextState) -> bool {
        !self.has_text || state.after != After::Text || !state.held.is_empty()
    }

    fn take_character_of_text(&mut self, character: char, parts: &mut Parts) {
        let reads_calls = self.reads_calls();
        let llama = self.format() == ToolCallFormat::Llama3 && reads_calls;
        let State::Text(state) = &mut self.state else { return };
        if state.is_in_list {
            match character {
                '{' => {
                    let call = OpenToolCall::next_of_list().after(self.before_call());
                    self.state = State::Call(Box::new(call));
                    return self.take_character_of_call(character, parts);
                }
                ']' => {
                    *state = TextState { after: After::Call, ..Default::default() };
                    return;
                }
                ',' => return state.held.push(character),
                _ if character.is_whitespace() => return state.held.push(character),
                _ => state.is_in_list = false,
            }
        }
        let separates = character == '\n' || (llama && (character == ';' || character == ' '));
        let first = !self.has_text || (state.after != After::Text && self.context.count > 0);
        if llama && character == '{' && first {
            let before = self.before_call();
            let call = OpenToolCall::uncertain(ToolCallFormat::Llama3).after(before);
            self.state = State::Call(Box::new(call));
            return self.take_character_of_call(character, parts);
        }
        if separates && (state.after != After::Text || reads_calls) {
            state.held.push(character);
            return;
        }
        let held = std::mem::take(&mut state.held);
        parts.text(&std::mem::take(&mut self.gap));
        // Separators of tool calls are text if no call follows.
        parts.text(match std::mem::take(&mut state.after) {
            After::Text => held.as_str(),
            After::Call if self.has_text => &held,
            After::Call | After::Thought => held.trim_matches('\n'),
        });
        self.has_text |= !character.is_whitespace();
        parts.text(character.encode_utf8(&mut [0; 4]));
    }

    fn take_character_of_call(&mut self, character: char, parts: &mut Parts) {
        let State::Call(call) = &mut self.state else { return };
        if let Err(problem) = call.push(character, &mut self.context, parts) {
            return self.fail_call(&problem, parts);
        }
        if self.calls_end_by_themselves()
            && let State::Call(call) = &self.state
            && call.is_done()
        {
            self.end_call("", parts);
        }
    }

    /// Begins the tool call of a tag.
    fn open_call(&mut self, tag: Tag, parts: &mut Parts) {
        let characters = self.tags.characters(tag);
        let opening = if tag == Tag::Function { "" } else { characters };
        let mut call = OpenToolCall::new(self.format(), opening).after(self.before_call());
        // The characters of this family's tag begin other texts, too.
        if self.format() == ToolCallFormat::MiniCpm && self.tags.token(tag).is_none() {
            call = call.into_uncertain();
        }
        self.state = State::Call(Box::new(call));
        if tag == Tag::Function {
            characters.chars().for_each(|character| self.take_character(character, parts));
        }
    }

    /// Takes what is held before a tool call.
    fn before_call(&mut self) -> Before {
        let State::Text(state) = &mut self.state else { return Before::default() };
        let held = std::mem::take(&mut state.held);
        let gap = std::mem::take(&mut self.gap);
        match state.after {
            After::Text if self.has_text => Before { text: held.clone(), gap: held },
            After::Text => Before { text: held, gap },
            // What stands between two tool calls is the format's.
            After::Thought | After::Call => Before { text: gap.clone() + &held, gap },
        }
    }

    /// Sends line breaks that are held before something that is no tool call.
    fn release_held(&mut self, parts: &mut Parts) {
        if let State::Text(state) = &mut self.state
            && state.after == After::Text
        {
            parts.text(&std::mem::take(&mut state.held));
        }
    }

    fn end_call(&mut self, closing: &str, parts: &mut Parts) {
        let is_in_list = matches!(&self.state, State::Call(call) if call.is_in_list());
        let after = TextState { after: After::Call, is_in_list, ..Default::default() };
        let after = State::Text(after);
        if let State::Call(call) = std::mem::replace(&mut self.state, after) {
            self.close_call(*call, closing, parts);
        }
    }

    fn close_call(&mut self, mut call: OpenToolCall, closing: &str, parts: &mut Parts) {
        self.gap = call.take_gap();
        if !call.close(closing, parts) {
            // It was sent with the characters of the tool call.
            self.gap.clear();
            self.has_text = true;
            self.state = State::Text(TextState::default());
        }
    }

    /// Ends a malformed tool call. All up to its closing tag is text as well.
    fn fail_call(&mut self, problem: &BrokenToolCall, parts: &mut Parts) {
        let text = State::Text(TextState { is_failed_call: true, ..Default::default() });
        if let State::Call(call) = std::mem::replace(&mut self.state, text) {
            call.fail(problem, "", parts);
            self.has_text = true;
        }
    }
}

impl Splitter for TagSplitter {
    fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thought(_))
    }

    fn finish(&mut self, ending: Ending, parts: &mut Parts) {
        let state = std::mem::replace(&mut self.state, State::Text(TextState::default()));
        match (state, ending) {
            // Line breaks at the end of a text belong to it, those after a tool call do not.
            (State::Text(TextState { is_in_list: true, .. }), _) => {}
            (State::Text(TextState { held, after: After::Text, .. }), _) => parts.text(&held),
            (State::Text(TextState { held, .. }), Ending::Own) => parts.text(held.trim()),
            // The next tool call would have followed a separator.
            (State::Text(_), Ending::Cut) => {}
            (State::Thought(state), Ending::Own) => state.end(parts),
            // Half the name of a channel.
            (State::Thought(_), Ending::Cut) => {}
            (State::Call(call), Ending::Own) => self.close_call(*call, "", parts),
            (State::Call(call), Ending::Cut) => call.cut(&mut self.context, parts),
        }
    }

    fn wants(&self, tag: Tag) -> bool {
        match (&self.state, tag) {
            (State::Text(_), Tag::ThoughtOpen) => !self.has_text,
            (State::Text(_), Tag::ToolCallOpen) => self.reads_calls(),
            (State::Text(state), Tag::ToolCallClose) => state.is_failed_call,
            (State::Text(state), Tag::Function) => self.reads_calls() && self.at_line_start(state),
            (State::Thought(_), Tag::ThoughtClose) => true,
            (State::Call(_), Tag::Quote) => true,
            (State::Call(call), Tag::ToolCallOpen | Tag::ToolCallClose) => !call.in_text(),
            _ => false,
        }
    }

    fn take_character(&mut self, character: char, parts: &mut Parts) {
        let has_name = self.format() == ToolCallFormat::Gemma4;
        match &mut self.state {
            State::Thought(state) => state.push(character, has_name, parts),
            State::Text(_) => self.take_character_of_text(character, parts),
            State::Call(_) => self.take_character_of_call(character, parts),
        }
    }

    fn take_tag(&mut self, tag: Tag, parts: &mut Parts) {
        let tags = Arc::clone(&self.tags);
        let characters = tags.characters(tag);
        let by_characters =
            tag.is_inside_call() || (tag == Tag::ToolCallClose && self.calls_end_by_themselves());
        match (&mut self.state, tag) {
            (State::Call(_), _) if by_characters => {
                characters.chars().for_each(|character| self.take_character(character, parts));
            }
            (State::Call(call), tag) => {
                let taken = match tag {
                    Tag::Quote => call.quote(characters, &mut self.context, parts),
                    _ if call.in_text() => {
                        call.push_all(characters, &mut self.context, parts).map(|()| true)
                    }
                    _ => Ok(false),
                };
                match taken {
                    Ok(true) => {}
                    Ok(false) if tag == Tag::ToolCallClose => self.end_call(characters, parts),
                    Ok(false) => {
                        self.end_call("", parts);
                        self.take_tag(tag, parts);
                    }
                    Err(problem) => self.fail_call(&problem, parts),
                }
            }
            (State::Thought(state), Tag::ThoughtClose) => {
                std::mem::take(state).end(parts);
                let after = After::Thought;
                self.state = State::Text(TextState { after, ..Default::default() });
            }
            (State::Thought(_), _) => {
                characters.chars().for_each(|character| self.take_character(character, parts));
            }
            (State::Text(_), Tag::ThoughtOpen) => {
                // Line breaks before the first thought are the format's.
                if self.has_text {
                    self.release_held(parts);
                }
                self.state = State::Thought(ThoughtState::default());
            }
            (State::Text(_), Tag::ToolCallOpen | Tag::Function)
                if self.context.tools().is_some() =>
            {
                self.open_call(tag, parts);
            }
            (State::Text(state), tag) => {
                // A tag in a place where it means nothing. Its token is left out of the text if
                // the tokenizer says so, unless it ends what has become text.
                let is_failed_call = std::mem::take(&mut state.is_failed_call);
                state.is_failed_call = is_failed_call && tag != Tag::ToolCallClose;
                if is_failed_call || !tags.is_skipped(tag) {
                    characters.chars().for_each(|character| self.take_character(character, parts));
                }
            }
        }
    }
}

impl ThoughtState {
    fn push(&mut self, character: char, has_name: bool, parts: &mut Parts) {
        if !has_name || self.is_named {
            return self.say(character, parts);
        }
        // The first line is the name of the channel.
        self.name.push(character);
        if THOUGHT.starts_with(&self.name) {
            return;
        }
        self.is_named = true;
        let name = std::mem::take(&mut self.name);
        let rest = name.strip_prefix(THOUGHT).filter(|rest| rest.starts_with('\n'));
        rest.unwrap_or(&name).chars().for_each(|character| self.say(character, parts));
    }

    fn say(&mut self, character: char, parts: &mut Parts) {
        if character == '\n' {
            self.held += 1;
            return;
        }
        let held = std::mem::take(&mut self.held);
        if std::mem::replace(&mut self.has_text, true) {
            parts.reasoning(&"\n".repeat(held));
        }
        parts.reasoning(character.encode_utf8(&mut [0; 4]));
    }

    /// The end of the thought.
    fn end(self, parts: &mut Parts) {
        if self.name != THOUGHT {
            parts.reasoning(&self.name);
        }
    }
}
