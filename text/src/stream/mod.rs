//! From batches of token ids to the pieces of an answer: the [`Detokenizer`], the splitters of
//! text, thoughts and tool calls, stop strings ([`StopStrings`]), and the [`Assembler`] that makes
//! an [`AnswerEvent`] of each batch.
//!
//! A splitter is a state machine for a family's format ([`crate::prompt::format`]): `splitter` for
//! formats with tags, with a reader in `tool_call` for what stands between the tags of a call, and
//! `harmony` for messages in channels.
//!
//! At the limit of tokens ([`Ending::Cut`]) nothing of a family's markup is sent: half a tag and a
//! call without its name are dropped, and a call with its name ends with
//! [`AnswerPart::ToolCallCut`].
//!
//! No clock and no socket. Must not know: requests, protocols, the supervisor.

mod assemble;
mod detokenizer;
mod harmony;
mod json;
mod open_tool_call;
pub(crate) mod parts;
mod reading;
mod splitter;
mod stop;
mod tool_call;
mod tools;

use paceline_vocabulary::Route;
use paceline_vocabulary::generation::{FinishReason, Speculation, TokenLogprobs};

pub use assemble::{Assembler, AssemblerSettings, BrokenStream, ElapsedTimes};
pub use detokenizer::{Detokenizer, SpecialTokens};
pub use stop::StopStrings;
pub use tools::{ConversationReading, OfferedTools};

use crate::prompt::format::Tag;
use parts::Parts;

/// Who ended the tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The model: what is incomplete stays incomplete.
    Own,
    /// The limit of tokens: the model would have written more.
    Cut,
}

impl Ending {
    fn of(reason: Option<FinishReason>) -> Self {
        match reason {
            Some(FinishReason::Length) => Self::Cut,
            Some(FinishReason::Stop) | None => Self::Own,
        }
    }
}

/// Splits one answer into text, thoughts and tool calls, which it adds to `parts`.
trait Splitter: std::fmt::Debug + Send + Sync {
    /// Takes the next character.
    fn take_character(&mut self, character: char, parts: &mut Parts);

    /// Takes a tag, whether it came as a token or as its characters.
    fn take_tag(&mut self, tag: Tag, parts: &mut Parts);

    /// Whether the characters of this tag are looked for now.
    fn wants(&self, _tag: Tag) -> bool {
        true
    }

    /// Whether the next character belongs to a thought.
    fn is_thinking(&self) -> bool;

    /// Takes the end of the answer.
    fn finish(&mut self, ending: Ending, parts: &mut Parts);
}

/// A piece of an answer's content. The pieces of one kind that follow one another belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text of the answer.
    Text(String),
    /// Reasoning before the answer.
    Reasoning(String),
    /// A tool call begins.
    ToolCallStart(ToolCallStart),
    /// More of the arguments of the tool call that began last: a piece of a JSON text.
    ToolCallArguments(String),
    /// The tool call that began last is complete, and its arguments together are a JSON object.
    ToolCallEnd,
    /// The limit of tokens cut the tool call that began last. The call has the arguments that came
    /// so far. The answer ends with it.
    ToolCallCut,
    /// The text after this part looked like a tool call and is none. If a call had begun and not
    /// ended, the call is void: the text has all its characters.
    MalformedToolCall(ToolCallFault),
    /// A sentence for the client about the whole answer. It is the first part.
    Warning(String),
}

/// The beginning of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallStart {
    /// Index of the tool call among the calls of its sample, from 0.
    pub index: u32,
    /// Id of the tool call, unique among all calls.
    pub id: String,
    /// Name of the tool.
    pub name: String,
}

/// The reason why a text that looked like a tool call is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallFault {
    /// The expected and the found text, in a sentence for the client.
    pub warning: String,
}

/// Copies of a text while it is written: the text, its JSON as a value, and as bytes.
const TEXT_COPIES: usize = 3;
/// Bytes of a token besides its text: its id and its margin.
const BYTES_OF_TOKEN: usize = 8;
/// Bytes of a log-probability with the text and the bytes of its token, as a JSON value. Measured:
/// an answer of 62,400 tokens with 21 each took 20 KB a token.
const BYTES_OF_LOGPROB: usize = 960;

/// The next piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerEvent {
    /// Index of the sample in the request.
    pub sample_index: u32,
    /// Parts that these tokens complete, in order. Neighbours are of different kinds.
    pub parts: Vec<AnswerPart>,
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// The margin of each token; empty unless the request asked for margins.
    pub margins: Vec<f32>,
    /// The log-probabilities at each token; empty unless the request asked for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// When the step that made the last token ended, by the monotonic clock.
    pub step_end_ns: i64,
    /// Tokens so far, if the request asked for them or has stop strings; not in the last event.
    pub so_far: Option<Usage>,
    /// The end of the sample, in its last event.
    pub last: Option<AnswerEnd>,
}

impl AnswerEvent {
    /// The text among its parts.
    pub fn text(&self) -> String {
        let text = |part: &AnswerPart| match part {
            AnswerPart::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(text).collect()
    }

    /// Bytes that the event takes, roughly, while an answer of such events is written as JSON.
    pub fn written_bytes(&self) -> u64 {
        let characters = |part: &AnswerPart| match part {
            AnswerPart::Text(text)
            | AnswerPart::Reasoning(text)
            | AnswerPart::ToolCallArguments(text) => text.len(),
            AnswerPart::ToolCallStart(start) => start.id.len() + start.name.len(),
            AnswerPart::MalformedToolCall(fault) => fault.warning.len(),
            AnswerPart::Warning(warning) => warning.len(),
            AnswerPart::ToolCallEnd | AnswerPart::ToolCallCut => 0,
        };
        let parts: usize = self.parts.iter().map(characters).sum();
        let numbers: usize = self.logprobs.iter().map(|at| 1 + at.top.len()).sum();
        let bytes = TEXT_COPIES * parts + BYTES_OF_TOKEN * self.token_ids.len();
        (bytes + BYTES_OF_LOGPROB * numbers) as u64
    }

    /// The kind of all its parts but warnings; `None` if there are none.
    fn kind(&self) -> Option<PartKind> {
        let kind = |part: &AnswerPart| match part {
            AnswerPart::Text(_) => PartKind::Text,
            AnswerPart::Reasoning(_) => PartKind::Reasoning,
            _ => PartKind::Call,
        };
        let is_warning = |part: &&AnswerPart| matches!(part, AnswerPart::Warning(_));
        let kinds = self.parts.iter().filter(|part| !is_warning(part)).map(kind);
        kinds.reduce(|all, kind| if all == kind { all } else { PartKind::Several })
    }

    /// Whether the next event of the same sample can be added to this one, so that its tokens do
    /// not come among those of parts of another kind.
    fn goes_on_with(&self, next: &AnswerEvent) -> bool {
        match (self.kind(), next.kind()) {
            (_, None) => true,
            (Some(kind), Some(next)) => kind == next && kind != PartKind::Several,
            (None, Some(_)) => false,
        }
    }

    /// Adds the next event of the same sample.
    fn append(&mut self, next: AnswerEvent) {
        let mut parts = Parts::of(std::mem::take(&mut self.parts));
        next.parts.into_iter().for_each(|part| parts.push(part));
        self.parts = parts.take();
        self.token_ids.extend(next.token_ids);
        self.margins.extend(next.margins);
        self.logprobs.extend(next.logprobs);
        (self.step_end_ns, self.so_far, self.last) = (next.step_end_ns, next.so_far, next.last);
    }
}

/// Kinds of parts. Tokens of an event belong to all of its parts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartKind {
    Text,
    Reasoning,
    Call,
    /// Parts of more than one kind.
    Several,
}

/// Adds an event to those before it, as part of the last of the same sample where that is of the
/// same kind: a long answer takes the memory of its tokens alone.
pub fn collect(events: &mut Vec<AnswerEvent>, next: AnswerEvent) {
    match events.iter_mut().rev().find(|before| before.sample_index == next.sample_index) {
        Some(before) if before.goes_on_with(&next) => before.append(next),
        _ => events.push(next),
    }
}

/// How a sample ended, and how it was served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerEnd {
    /// Why it ended; `None` if the target did not report a reason.
    pub finish_reason: Option<FinishReason>,
    /// The stop string that ended it; empty if none did.
    pub stop: String,
    /// Tokens.
    pub usage: Usage,
    /// The lane and its reason; `None` if the target did not report one.
    pub route: Option<Route>,
    /// Counts of drafts and of their outcomes.
    pub speculation: Speculation,
    /// Times.
    pub timing: Timing,
    /// The seed that makes the same answer again.
    pub seed: u64,
    /// How often the sample was submitted again after a process below the gateway had ended.
    pub resumed: u32,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the sample.
    pub completion_tokens: u32,
    /// Tokens of its thoughts, with their tags.
    pub reasoning_tokens: u32,
    /// Tokens of the prompt that came from the prefix cache.
    pub cached_tokens: u32,
}

/// Times of a sample, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// In the queue.
    pub queue_ms: f64,
    /// From the request's arrival to the first token.
    pub ttft_ms: f64,
    /// From the request's arrival to the end.
    pub total_ms: f64,
    /// Decoding of images.
    pub image_decode_ms: f64,
    /// Resizing and writing of images.
    pub image_resize_ms: f64,
    /// The vision tower.
    pub tower_ms: f64,
    /// The prefill.
    pub prefill_ms: f64,
}

#[cfg(test)]
mod tests;
