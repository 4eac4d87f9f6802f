//! A tool call that runs: its characters go to the reader of its family, and what the reader makes
//! of them goes out at once. The characters are kept, because a malformed call becomes text.

use super::parts::Parts;
use super::tool_call::{BrokenToolCall, PartialToolCall, ToolCallReader};
use super::tools::OfferedTools;
use super::{ConversationReading, ToolCallStart};
use crate::prompt::format::ToolCallFormat;

/// A tool call that runs.
#[derive(Clone, Debug)]
pub(super) struct OpenToolCall {
    before: Before,
    /// All its characters, with those of its tags.
    raw: String,
    reader: ToolCallReader,
    piece: PartialToolCall,
    /// Whether the characters are certainly meant as a tool call. Otherwise they become text
    /// without a warning.
    is_certain: bool,
    has_started: bool,
    /// A closing brace that is not sent. The last one of the arguments is sent with the tool call's
    /// end, so that a client that parses arguments as they come runs no broken call.
    held_brace: bool,
}

/// Line breaks and separators before a tool call, which are not sent yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    /// Those that are sent if the tool call turns out to be none.
    pub(super) text: String,
    /// Those that are sent if text follows the tool call.
    pub(super) gap: String,
}

/// Facts of a sample that the readers of its tool calls need.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolCallContext {
    pub(super) reading: ConversationReading,
    /// Number of tool calls that have begun.
    pub(super) count: u32,
}

impl ToolCallContext {
    /// The tools, if the request has any.
    pub(super) fn tools(&self) -> Option<&OfferedTools> {
        self.reading.tools.as_deref()
    }
}

impl OpenToolCall {
    /// A tool call of this format, after an opening tag with these characters.
    pub(super) fn new(format: ToolCallFormat, opening: &str) -> Self {
        Self {
            before: Before::default(),
            raw: opening.to_owned(),
            reader: ToolCallReader::new(format),
            piece: PartialToolCall::default(),
            is_certain: true,
            has_started: false,
            held_brace: false,
        }
    }

    /// The tool call after these line breaks and separators.
    pub(super) fn after(self, before: Before) -> Self {
        Self { before, ..self }
    }

    /// Line breaks before the tool call, for a text after it.
    pub(super) fn take_gap(&mut self) -> String {
        std::mem::take(&mut self.before.gap)
    }

    /// A tool call without an opening tag, which only the name of a tool makes certain.
    pub(super) fn uncertain(format: ToolCallFormat) -> Self {
        Self::new(format, "").into_uncertain()
    }

    /// The next tool call of a list of JSON objects.
    pub(super) fn next_of_list() -> Self {
        let reader = ToolCallReader::next_of_list();
        Self { reader, ..Self::new(ToolCallFormat::MistralList, "") }
    }

    /// The tool call, which only the name of a tool makes certain although a tag began it.
    pub(super) fn into_uncertain(self) -> Self {
        Self { is_certain: false, ..self }
    }

    /// Whether an object of the same list may follow.
    pub(super) fn is_in_list(&self) -> bool {
        self.reader.is_in_list()
    }

    /// A tool call whose tool is named before it, after a header with these characters.
    pub(super) fn named(format: ToolCallFormat, header: &str, name: String) -> Self {
        let mut call = Self::new(format, header);
        call.piece.name = Some(name);
        call
    }

    pub(super) fn in_text(&self) -> bool {
        self.reader.in_text()
    }

    pub(super) fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// Takes a character.
    ///
    /// # Errors
    /// The characters are no tool call.
    pub(super) fn push(
        &mut self,
        character: char,
        context: &mut ToolCallContext,
        parts: &mut Parts,
    ) -> Result<(), BrokenToolCall> {
        self.raw.push(character);
        let none = OfferedTools::default();
        let tools = context.tools().unwrap_or(&none);
        self.reader.push(character, tools, &mut self.piece)?;
        self.check_name(context)?;
        self.send(context, parts);
        Ok(())
    }

    /// Checks that the name, once it is known, is that of a tool of the request.
    fn check_name(&mut self, context: &ToolCallContext) -> Result<(), BrokenToolCall> {
        let Some(name) = self.piece.name.as_ref().filter(|_| !self.has_started) else {
            return Ok(());
        };
        let must_be_offered = !self.is_certain || context.reading.one_call;
        if must_be_offered && !context.tools().is_some_and(|tools| tools.has(name)) {
            return Err(BrokenToolCall::other("the name of an offered tool", "another name"));
        }
        self.is_certain = true;
        Ok(())
    }

    /// Takes the characters of a tag inside of a text.
    ///
    /// # Errors
    /// The characters are no tool call.
    pub(super) fn push_all(
        &mut self,
        characters: &str,
        context: &mut ToolCallContext,
        parts: &mut Parts,
    ) -> Result<(), BrokenToolCall> {
        characters.chars().try_for_each(|character| self.push(character, context, parts))
    }

    /// Takes the tag around texts. Returns false if it is none there.
    ///
    /// # Errors
    /// The characters are no tool call.
    pub(super) fn quote(
        &mut self,
        characters: &str,
        context: &mut ToolCallContext,
        parts: &mut Parts,
    ) -> Result<bool, BrokenToolCall> {
        if !matches!(self.reader, ToolCallReader::Gemma(_)) {
            return Ok(false);
        }
        self.raw.push_str(characters);
        let taken = self.reader.quote(&mut self.piece)?;
        self.send(context, parts);
        Ok(taken)
    }

    /// Sends what is known: first the name, then arguments.
    fn send(&mut self, context: &mut ToolCallContext, parts: &mut Parts) {
        if !self.has_started {
            let Some(name) = &self.piece.name else { return };
            let index = context.count;
            context.count = context.count.saturating_add(1);
            let id = format!("{}{index}", context.reading.call_ids);
            parts.start(ToolCallStart { index, id, name: name.clone() });
            self.has_started = true;
        }
        let arguments = std::mem::take(&mut self.piece.arguments);
        if arguments.is_empty() {
            return;
        }
        self.release_brace(parts);
        let before = arguments.strip_suffix('}');
        self.held_brace = before.is_some();
        parts.arguments(before.unwrap_or(&arguments));
    }

    fn release_brace(&mut self, parts: &mut Parts) {
        if std::mem::take(&mut self.held_brace) {
            parts.arguments("}");
        }
    }

    /// The tool call's end, if it is complete. Otherwise its characters are text.
    pub(super) fn close(mut self, closing: &str, parts: &mut Parts) -> bool {
        if self.is_done() && self.has_started {
            self.release_brace(parts);
            parts.end();
            return true;
        }
        let problem = BrokenToolCall::other("a complete tool call", "the end before it");
        self.fail(&problem, closing, parts);
        false
    }

    /// The limit of tokens. A tool call whose name is known is sent as far as it came. Characters
    /// before the name are dropped, unless they can only become text.
    pub(super) fn cut(mut self, context: &mut ToolCallContext, parts: &mut Parts) {
        if let Err(problem) = self.check_name(context) {
            return self.fail(&problem, "", parts);
        }
        self.send(context, parts);
        if !self.has_started {
            let none = OfferedTools::default();
            if !self.is_certain
                && !self.reader.may_become_tool_call(context.tools().unwrap_or(&none))
            {
                parts.text(&self.before.text);
                parts.text(&self.raw);
            }
            return;
        }
        self.release_brace(parts);
        if self.is_done() {
            return parts.end();
        }
        self.reader.cut(&mut self.piece);
        parts.arguments(&self.piece.arguments);
        parts.cut();
    }

    /// Gives the characters back as text.
    pub(super) fn fail(self, problem: &BrokenToolCall, closing: &str, parts: &mut Parts) {
        if !self.has_started {
            parts.text(&self.before.text);
        }
        if self.is_certain || self.has_started {
            parts.fault(problem.to_string());
        }
        if self.has_started {
            parts.text(&self.before.text);
        }
        parts.text(&self.raw);
        parts.text(closing);
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::generation::FinishReason;
    use serde_json::Value;

    use super::*;
    use crate::samples::answers::{Model, SampleAnswer, offered, sample_answers};
    use crate::stream::AnswerPart;

    /// Names of the tool calls that begin, and the number of malformed ones.
    fn calls(parts: &[AnswerPart]) -> (Vec<&str>, usize) {
        fn name(part: &AnswerPart) -> Option<&str> {
            match part {
                AnswerPart::ToolCallStart(start) => Some(&start.name),
                _ => None,
            }
        }
        let is_fault = |part: &&AnswerPart| matches!(part, AnswerPart::MalformedToolCall(_));
        (parts.iter().filter_map(name).collect(), parts.iter().filter(is_fault).count())
    }

    #[test]
    fn a_call_of_a_tool_that_is_not_offered_may_be_text() {
        let alone = ConversationReading { one_call: true, ..offered() };
        for SampleAnswer { calls: format, answer, text: _ } in sample_answers() {
            let answer = answer.replacen("read", "fly", 1);
            for tokens in [true, false] {
                let (one, both, faults): (&[&str], &[&str], usize) = match format {
                    // Only at the beginning of an answer can this family's tool call be told from
                    // text.
                    ToolCallFormat::Llama3 => (&[], &[], 0),
                    ToolCallFormat::Harmony => (&["read"], &["fly", "read"], 1),
                    // The rest of a list belongs to the text of its first object that is no call.
                    ToolCallFormat::MistralList => (&[], &["fly", "get-time"], 1),
                    // Without tokens for the tags only the name of an offered tool makes a call.
                    ToolCallFormat::MiniCpm if !tokens => (&["get-time"], &["get-time"], 0),
                    _ => (&["get-time"], &["fly", "get-time"], 1),
                };
                let model = Model::new(format, tokens);
                let ids = model.ids(&answer);
                for size in [1, 1000] {
                    let stop = FinishReason::Stop;
                    let parts = model.parts(&ids, alone.clone(), &[size], stop);
                    assert_eq!(calls(&parts), (one.to_vec(), faults), "{parts:?}");
                    let text = |part: &AnswerPart| match part {
                        AnswerPart::Text(text) => text.contains("fly"),
                        _ => false,
                    };
                    assert!(parts.iter().any(text), "{parts:?}");
                    let parts = model.parts(&ids, offered(), &[size], stop);
                    assert_eq!(calls(&parts), (both.to_vec(), 0), "{parts:?}");
                }
                for end in 1..ids.len() {
                    let cut = model.parts(&ids[..end], alone.clone(), &[1], FinishReason::Length);
                    assert!(!calls(&cut).0.contains(&"fly"), "{cut:?}");
                }
            }
        }
    }

    /// A client that parses arguments as they come runs no tool call before its end is certain.
    #[test]
    fn the_arguments_of_a_tool_call_are_whole_json_only_with_its_end() {
        let mut broken = 0;
        let as_text = r#"<tool_call>{"name": "read", "arguments": "{\"n\": 1} "}</tool_call>"#;
        let answers = sample_answers().into_iter().map(|sample| (sample.calls, sample.answer));
        for (format, answer) in answers.chain([(ToolCallFormat::Hermes, as_text.to_owned())]) {
            let model = Model::new(format, true);
            let ids = model.ids(&answer);
            for end in 1..=ids.len() {
                let mut arguments = String::new();
                for part in model.parts(&ids[..end], offered(), &[1], FinishReason::Stop) {
                    match part {
                        AnswerPart::ToolCallStart(_) | AnswerPart::ToolCallEnd => arguments.clear(),
                        AnswerPart::ToolCallArguments(more) => arguments += &more,
                        AnswerPart::MalformedToolCall(_) => {
                            let parsed = serde_json::from_str::<Value>(&arguments);
                            assert!(parsed.is_err(), "{arguments} of {:?}", &ids[..end]);
                            broken += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
        assert!(broken > 50, "expected many broken tool calls, found {broken}");
    }
}
