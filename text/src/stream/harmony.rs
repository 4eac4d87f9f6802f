//! Splits an answer in the Harmony format (gpt-oss): messages with a header, in channels.
//!
//! A header has the channel and the recipient: `<|channel|>analysis`, or
//! `<|channel|>commentary to=functions.name <|constrain|>json`. Analysis is reasoning. A message to
//! a function is a tool call. All others are text: the answer, and words before a call.

use std::sync::Arc;

use super::open_tool_call::{OpenToolCall, ToolCallContext};
use super::parts::Parts;
use super::tool_call::BrokenToolCall;
use super::{Ending, Splitter};
use crate::prompt::format::{AnswerTags, Tag, ToolCallFormat, is_tool_name};

/// Bytes of a header, at most: more is text without a header.
const MAX_HEADER_BYTES: usize = 256;
/// Recipients with this in front are tools of the request.
const FUNCTIONS: &str = "functions.";
/// In front of a message's recipient.
const RECIPIENT: &str = "to=";
/// The role of the author, which the prompt writes before the first header.
const ASSISTANT: &str = "assistant";
const CHANNELS: [&str; 4] = ["", "analysis", "commentary", "final"];
const CONTENT_TYPES: [&str; 3] = ["json", "code", "text"];

#[derive(Debug)]
enum State {
    /// In a header, with its characters so far. The prompt ends in the first one.
    Header(String),
    Text,
    Reasoning,
    Call(Box<OpenToolCall>),
    /// After a message.
    Between,
}

/// Splits one answer.
#[derive(Debug)]
pub(super) struct HarmonySplitter {
    tags: Arc<AnswerTags>,
    context: ToolCallContext,
    state: State,
}

/// The channel and the recipient in a header.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header<'a> {
    channel: &'a str,
    recipient: Option<&'a str>,
}

impl<'a> Header<'a> {
    /// The parts of a header; `None` if it has anything else. The recipient stands after the role
    /// or after the channel.
    fn parse(header: &'a str) -> Option<Self> {
        let mut found = Self::default();
        let (header, kind) = header.split_once("<|constrain|>").unwrap_or((header, ""));
        let (role, rest) = header.split_once("<|channel|>").unwrap_or((header, ""));
        let mut rest = rest.split_whitespace().peekable();
        if let Some(channel) = rest.next_if(|word| !word.starts_with(RECIPIENT)) {
            found.channel = channel;
        }
        let role = role.split_whitespace().skip_while(|word| *word == ASSISTANT);
        for word in role.chain(rest) {
            match word.strip_prefix(RECIPIENT) {
                Some(recipient) if found.recipient.is_none() => found.recipient = Some(recipient),
                None if CONTENT_TYPES.contains(&word) => {}
                _ => return None,
            }
        }
        let is_known = CHANNELS.contains(&found.channel)
            && (kind.trim().is_empty() || CONTENT_TYPES.contains(&kind.trim()));
        is_known.then_some(found)
    }
}

impl HarmonySplitter {
    /// Before the first token of an answer.
    pub(super) fn new(tags: Arc<AnswerTags>, context: ToolCallContext) -> Self {
        Self { tags, context, state: State::Header(String::new()) }
    }
}

impl Splitter for HarmonySplitter {
    fn is_thinking(&self) -> bool {
        matches!(self.state, State::Reasoning)
    }

    fn finish(&mut self, ending: Ending, parts: &mut Parts) {
        match ending {
            Ending::Own => self.end_message(parts),
            Ending::Cut => self.cut_message(parts),
        }
    }

    fn take_character(&mut self, character: char, parts: &mut Parts) {
        let mut bytes = [0; 4];
        let characters = &*character.encode_utf8(&mut bytes);
        match &mut self.state {
            State::Header(header) => {
                header.push(character);
                // Text without a header is shown as it is.
                if character == '\n' || header.len() > MAX_HEADER_BYTES {
                    self.end_message(parts);
                    self.state = State::Text;
                }
            }
            State::Between => {
                self.state = State::Text;
                parts.text(characters);
            }
            State::Text => parts.text(characters),
            State::Reasoning => parts.reasoning(characters),
            State::Call(call) => {
                if let Err(problem) = call.push(character, &mut self.context, parts) {
                    self.fail_call(&problem, parts);
                }
            }
        }
    }

    fn take_tag(&mut self, tag: Tag, parts: &mut Parts) {
        let characters = self.tags.characters(tag);
        match (&mut self.state, tag) {
            (_, Tag::Start) => {
                self.end_message(parts);
                self.state = State::Header(String::new());
            }
            (_, Tag::End | Tag::Call | Tag::Return) => {
                self.end_message(parts);
                self.state = State::Between;
            }
            (State::Header(header), Tag::Channel | Tag::Constrain) => header.push_str(characters),
            (State::Header(header), Tag::Message) => {
                let header = std::mem::take(header);
                self.begin_message(&header, characters, parts);
            }
            // The header of a message without its beginning.
            (_, Tag::Channel) => {
                self.end_message(parts);
                self.state = State::Header(characters.to_owned());
            }
            (_, _) => {
                characters.chars().for_each(|character| self.take_character(character, parts))
            }
        }
    }
}

impl HarmonySplitter {
    fn begin_message(&mut self, header: &str, message: &str, parts: &mut Parts) {
        let whole = format!("{header}{message}");
        let Some(Header { channel, recipient }) = Header::parse(header) else {
            parts.text(&whole);
            self.state = State::Text;
            return;
        };
        let name = recipient.and_then(|recipient| recipient.strip_prefix(FUNCTIONS));
        self.state = match (recipient, name.filter(|name| is_tool_name(name))) {
            (None, _) if channel == "analysis" => State::Reasoning,
            (None, _) => State::Text,
            (Some(_), Some(name)) if self.context.tools().is_some() => {
                let call = OpenToolCall::named(ToolCallFormat::Harmony, &whole, name.to_owned());
                State::Call(Box::new(call))
            }
            (Some(_), _) => {
                if self.context.tools().is_some() {
                    let problem =
                        BrokenToolCall::other("a recipient functions.NAME", "another one");
                    parts.fault(problem.to_string());
                }
                parts.text(&whole);
                State::Text
            }
        };
    }

    /// The end of the message or header that runs.
    fn end_message(&mut self, parts: &mut Parts) {
        match std::mem::replace(&mut self.state, State::Between) {
            // A header that no content follows: its characters are all there is.
            State::Header(header) if header.trim() != "assistant" => parts.text(&header),
            State::Call(call) => {
                call.close("", parts);
            }
            _ => {}
        }
    }

    /// The limit of tokens in the message or header that runs.
    fn cut_message(&mut self, parts: &mut Parts) {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Header(header) if !is_beginning(&header) => parts.text(&header),
            State::Call(call) => call.cut(&mut self.context, parts),
            _ => {}
        }
    }

    fn fail_call(&mut self, problem: &BrokenToolCall, parts: &mut Parts) {
        if let State::Call(call) = std::mem::replace(&mut self.state, State::Text) {
            call.fail(problem, "", parts);
        }
    }
}

/// Whether these characters begin a header: they have a tag of one, or words of one alone.
fn is_beginning(header: &str) -> bool {
    let is_word = |word: &str| {
        ASSISTANT.starts_with(word) || RECIPIENT.starts_with(word) || word.starts_with(RECIPIENT)
    };
    header.contains("<|") || header.split_whitespace().all(is_word)
}
