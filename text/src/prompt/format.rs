//! How a model writes thoughts and tool calls in its answers: the format of its family, and the
//! tags of this format as the model's tokenizer has them.
//!
//! The chat template decides: it writes earlier answers in the format that the model was trained
//! on. What the stream's parser reads and what the template writes are the same markup.

use super::markup::Added;
use super::tokens::Tokens;

/// Longest tool name in bytes, as in the fields of a request.
const MAX_NAME_BYTES: usize = 128;

/// The format in which a family writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// The model writes no tool calls.
    #[default]
    None,
    /// `{"name": …, "arguments": {…}}` between `<tool_call>` and `</tool_call>`.
    Hermes,
    /// `<function=…>` with a `<parameter=…>` for each argument, between the same tags.
    QwenXml,
    /// `{"name": …, "parameters": {…}}`, which is the whole answer.
    Llama3,
    /// `call:name{key:value}` with `<|"|>` around texts.
    Gemma4,
    /// Messages in channels, with the tool as the recipient of a message.
    Harmony,
    /// A list of `{"name": …, "arguments": {…}}` after `[TOOL_CALLS]`.
    MistralList,
    /// `name[ARGS]{…}` after `[TOOL_CALLS]` for each call, with `[CALL_ID]` and an id or without.
    MistralArgs,
    /// `<function name="…">` with a `<param name="…">` for each argument, and `</function>`.
    MiniCpm,
    /// The name, then `<arg_key>` and `<arg_value>` for each argument, between `<tool_call>` and
    /// `</tool_call>`.
    Glm,
}

/// How a model's answers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Whether thoughts have tags. In Harmony they have a channel.
    pub thoughts: bool,
    /// How tool calls are written.
    pub calls: ToolCallFormat,
}

impl AnswerFormat {
    /// The format that a chat template writes.
    pub(super) fn of_template(source: &str) -> Self {
        let has = |words: &[&str]| words.iter().all(|word| source.contains(word));
        let calls = match () {
            () if has(&["<|channel|>", "<|message|>"]) => ToolCallFormat::Harmony,
            () if has(&["<|tool_call>", "call:"]) => ToolCallFormat::Gemma4,
            () if has(&["<tool_call>", "<function="]) => ToolCallFormat::QwenXml,
            () if has(&["[TOOL_CALLS]", "[ARGS]"]) => ToolCallFormat::MistralArgs,
            () if has(&["[TOOL_CALLS]"]) => ToolCallFormat::MistralList,
            () if has(&["<function name=", "<param name="]) => ToolCallFormat::MiniCpm,
            // A family with one more tag after the name is not read.
            () if has(&["<tool_call>", "<arg_key>", "<arg_value>"]) && !has(&["<tool_sep>"]) => {
                ToolCallFormat::Glm
            }
            // Families with other content between the same tags are not read.
            () if has(&["<tool_call>", "arguments"]) && !source.contains("<arg_key>") => {
                ToolCallFormat::Hermes
            }
            () if has(&["<|start_header_id|>", "\"parameters\": "]) => ToolCallFormat::Llama3,
            () => ToolCallFormat::None,
        };
        let thoughts = match calls {
            ToolCallFormat::Harmony => false,
            ToolCallFormat::Gemma4 => true,
            _ => source.contains("</think>"),
        };
        Self { thoughts, calls }
    }

    /// This format with tool calls as the operator names them.
    #[must_use]
    pub fn with_calls(self, calls: ToolCallFormat) -> Self {
        let thoughts = match calls {
            ToolCallFormat::Harmony => false,
            ToolCallFormat::Gemma4 => true,
            _ => self.thoughts && self.calls != ToolCallFormat::Gemma4,
        };
        Self { thoughts, calls }
    }
}

/// A tag of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A thought begins.
    ThoughtOpen,
    /// A thought ends.
    ThoughtClose,
    /// A tool call begins.
    ToolCallOpen,
    /// A tool call ends.
    ToolCallClose,
    /// A text in a tool call begins or ends.
    Quote,
    /// A tool call begins without its opening tag.
    Function,
    /// The name of an argument begins.
    Key,
    /// The name of an argument ends.
    KeyClose,
    /// The value of an argument begins.
    Value,
    /// The value of an argument ends.
    ValueClose,
    /// The id of a tool call follows.
    CallId,
    /// The arguments of a tool call follow.
    Arguments,
    /// A message begins.
    Start,
    /// The name of a channel follows.
    Channel,
    /// A message's content follows.
    Message,
    /// The type of a message's content follows.
    Constrain,
    /// A message ends.
    End,
    /// A message that is a tool call ends.
    Call,
    /// The last message ends.
    Return,
}

impl Tag {
    /// Whether the tag stands inside a tool call, whose reader takes its characters.
    pub(crate) fn is_inside_call(self) -> bool {
        use Tag::{Arguments, CallId, Key, KeyClose, Value, ValueClose};
        matches!(self, Key | KeyClose | Value | ValueClose | CallId | Arguments)
    }
}

/// The characters of a format's tags.
fn characters(format: AnswerFormat) -> Vec<(Tag, &'static str)> {
    let mut tags = match format.calls {
        ToolCallFormat::None => vec![],
        ToolCallFormat::Hermes => {
            vec![(Tag::ToolCallOpen, "<tool_call>"), (Tag::ToolCallClose, "</tool_call>")]
        }
        ToolCallFormat::QwenXml => vec![
            (Tag::ToolCallOpen, "<tool_call>"),
            (Tag::ToolCallClose, "</tool_call>"),
            (Tag::Function, "<function="),
        ],
        ToolCallFormat::Llama3 => vec![(Tag::ToolCallOpen, "<|python_tag|>")],
        ToolCallFormat::Gemma4 => vec![
            (Tag::ToolCallOpen, "<|tool_call>"),
            (Tag::ToolCallClose, "<tool_call|>"),
            (Tag::Quote, "<|\"|>"),
        ],
        ToolCallFormat::Harmony => vec![
            (Tag::Start, "<|start|>"),
            (Tag::Channel, "<|channel|>"),
            (Tag::Message, "<|message|>"),
            (Tag::Constrain, "<|constrain|>"),
            (Tag::End, "<|end|>"),
            (Tag::Call, "<|call|>"),
            (Tag::Return, "<|return|>"),
        ],
        ToolCallFormat::MistralList | ToolCallFormat::MistralArgs => vec![
            (Tag::ToolCallOpen, "[TOOL_CALLS]"),
            (Tag::CallId, "[CALL_ID]"),
            (Tag::Arguments, "[ARGS]"),
        ],
        ToolCallFormat::MiniCpm => vec![
            (Tag::ToolCallOpen, "<function"),
            (Tag::ToolCallClose, "</function>"),
            (Tag::Key, "<param"),
            (Tag::ValueClose, "</param>"),
        ],
        ToolCallFormat::Glm => vec![
            (Tag::ToolCallOpen, "<tool_call>"),
            (Tag::ToolCallClose, "</tool_call>"),
            (Tag::Key, "<arg_key>"),
            (Tag::KeyClose, "</arg_key>"),
            (Tag::Value, "<arg_value>"),
            (Tag::ValueClose, "</arg_value>"),
        ],
    };
    if format.thoughts {
        let (open, close) = match format.calls {
            ToolCallFormat::Gemma4 => ("<|channel>", "<channel|>"),
            _ => ("<think>", "</think>"),
        };
        tags.extend([(Tag::ThoughtOpen, open), (Tag::ThoughtClose, close)]);
    }
    tags
}

/// A tag as a tokenizer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownTag {
    tag: Tag,
    characters: &'static str,
    /// The id of its added token. Without one the characters are the tag.
    token: Option<u32>,
    /// Whether the text of an answer leaves its token out.
    skipped: bool,
}

/// The tags of a model's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerTags {
    format: AnswerFormat,
    tags: Vec<KnownTag>,
}

impl AnswerTags {
    /// The tags of a format in this tokenizer.
    pub fn new(format: AnswerFormat, tokens: &Tokens) -> Self {
        Self::of_added(format, &tokens.added())
    }

    /// The tags of a format, if the tokenizer has these added tokens.
    pub fn of_added(format: AnswerFormat, added: &[Added]) -> Self {
        let known = |(tag, characters): (Tag, &'static str)| {
            let token = added.iter().find(|token| token.text == characters);
            KnownTag {
                tag,
                characters,
                token: token.map(|token| token.id),
                skipped: token.is_some_and(|token| token.special),
            }
        };
        Self { format, tags: characters(format).into_iter().map(known).collect() }
    }

    /// The format.
    pub fn format(&self) -> AnswerFormat {
        self.format
    }

    /// Whether answers are messages in channels.
    pub fn has_channels(&self) -> bool {
        self.format.calls == ToolCallFormat::Harmony
    }

    /// The tag that a token is.
    pub fn of_token(&self, id: u32) -> Option<Tag> {
        self.tags.iter().find(|known| known.token == Some(id)).map(|known| known.tag)
    }

    /// The token that a tag is; `None` if the tokenizer has its characters alone.
    pub fn token(&self, tag: Tag) -> Option<u32> {
        self.tags.iter().find(|known| known.tag == tag)?.token
    }

    /// The characters of a tag.
    pub fn characters(&self, tag: Tag) -> &'static str {
        self.tags.iter().find(|known| known.tag == tag).map_or("", |known| known.characters)
    }

    /// Whether the text of an answer leaves this tag's token out.
    pub fn is_skipped(&self, tag: Tag) -> bool {
        self.tags.iter().any(|known| known.tag == tag && known.skipped)
    }

    /// The tags that the tokenizer has as characters alone.
    pub fn spelled(&self) -> impl Iterator<Item = (Tag, &'static str)> + '_ {
        self.tags
            .iter()
            .filter(|known| known.token.is_none())
            .map(|known| (known.tag, known.characters))
    }

    /// State of the thought that a template wrote at the end of a prompt.
    pub fn thought_at_end(&self, prompt_ids: &[u32], tokens: &Tokens) -> PromptThought {
        let tag = |tag: Tag| self.tags.iter().find(|known| known.tag == tag);
        let tags = tag(Tag::ThoughtOpen).zip(tag(Tag::ThoughtClose));
        let Some((open, close)) = tags else { return PromptThought::None };
        // Tokens of white space, and of the name that one family writes after its tag.
        let tail = &prompt_ids[prompt_ids.len().saturating_sub(TAIL_TOKENS)..];
        let last = tail.iter().rposition(|id| self.of_token(*id).is_some());
        let after = |at: usize| tokens.decode(&tail[at..]).unwrap_or_default();
        let is_last = |known: &KnownTag, names: &[&str]| match known.token {
            Some(id) => {
                last.is_some_and(|at| tail[at] == id && names.contains(&after(at + 1).trim()))
            }
            None => after(0).trim_end().ends_with(known.characters),
        };
        match () {
            () if is_last(open, &["", THOUGHT]) => PromptThought::Open,
            () if is_last(close, &[""]) => PromptThought::Closed,
            () => PromptThought::None,
        }
    }
}

/// State of a thought at the end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptThought {
    /// Nothing: the answer begins with one if the model wants to think.
    None,
    /// The beginning of a thought.
    Open,
    /// All of it: the answer has none.
    Closed,
}

/// Tokens at the end of a prompt that may open a thought.
const TAIL_TOKENS: usize = 16;
/// The name that Gemma 4 writes after the opening tag of a thought.
pub(crate) const THOUGHT: &str = "thought";

/// Whether this can be the name of a tool in a request.
pub fn is_tool_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_decides_the_format() {
        let check = |source: &str, thoughts: bool, calls: ToolCallFormat| {
            assert_eq!(
                AnswerFormat::of_template(source),
                AnswerFormat { thoughts, calls },
                "{source}"
            );
        };
        check("{{ messages }}", false, ToolCallFormat::None);
        check("<think></think>", true, ToolCallFormat::None);
        check("<tool_call>{\"name\": , \"arguments\": }</think>", true, ToolCallFormat::Hermes);
        check("<tool_call><function=name><parameter=key>", false, ToolCallFormat::QwenXml);
        let glm = "<tool_call>f<arg_key>a</arg_key><arg_value> arguments";
        check(glm, false, ToolCallFormat::Glm);
        check(&format!("{glm}<tool_sep>"), false, ToolCallFormat::None);
        check("[TOOL_CALLS] [{\"name\": ", false, ToolCallFormat::MistralList);
        check("[TOOL_CALLS]f[CALL_ID]i[ARGS]{}", false, ToolCallFormat::MistralArgs);
        let minicpm = "<function name=\"f\"><param name=\"a\">b</param></function></think>";
        check(minicpm, true, ToolCallFormat::MiniCpm);
        check("<|start_header_id|>{\"name\": , \"parameters\": {", false, ToolCallFormat::Llama3);
        check("<|tool_call>call:f{}<tool_call|>", true, ToolCallFormat::Gemma4);
        check("<|start|>assistant<|channel|>final<|message|>", false, ToolCallFormat::Harmony);
    }

    #[test]
    fn an_open_thought_at_the_prompts_end_is_found() {
        let tokens = crate::samples::language().tokens;
        let format = AnswerFormat { thoughts: true, calls: ToolCallFormat::None };
        let tags = AnswerTags::new(format, &tokens);
        let opens = |prompt: &str| {
            let ids = tokens.encode(prompt, false).expect("encodes");
            tags.thought_at_end(&ids, &tokens) == PromptThought::Open
        };
        assert!(opens("<|im_start|>assistant\n<think>\n") && opens("<think>"));
        assert!(!opens("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert!(!opens("<think>\nso") && !opens(""));
        let at_end = |prompt: &str| {
            tags.thought_at_end(&tokens.encode(prompt, false).expect("encodes"), &tokens)
        };
        assert_eq!(at_end("<|im_start|>assistant\n<think>\n\n</think>\n\n"), PromptThought::Closed);
        assert_eq!(at_end("<think>\nso</think>\nso"), PromptThought::None);
        // A tokenizer that has the tags as tokens: here those of turns stand for them.
        let named = |id: u32, text: &str| Added { id, text: text.into(), special: false };
        let tags = AnswerTags::of_added(format, &[named(1, "<think>"), named(2, "</think>")]);
        let newline = tokens.encode("\n", false).expect("encodes");
        let opens = |ids: &[u32]| tags.thought_at_end(ids, &tokens) == PromptThought::Open;
        assert!(opens(&[1]) && opens(&[&[2, 1][..], &newline].concat()));
        assert!(!opens(&[1, 2]) && !opens(&[&[1][..], &newline, &[2]].concat()) && !opens(&[300]));
        let at_end = |ids: &[u32]| tags.thought_at_end(ids, &tokens);
        assert_eq!(at_end(&[&[1, 2][..], &newline].concat()), PromptThought::Closed);
        assert_eq!(
            (at_end(&[1, 2, 300]), at_end(&[1, 300])),
            (PromptThought::None, PromptThought::None)
        );
    }
}
