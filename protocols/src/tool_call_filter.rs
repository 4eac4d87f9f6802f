//! Answers to requests that allow one tool call (`parallel_tool_calls: false`,
//! `disable_parallel_tool_use: true`): the first complete call of a sample is kept, later ones are
//! left out. The model may have written them, so their tokens count.

use paceline_text::stream::{AnswerEvent, AnswerPart};

use super::pieces::WholeAnswer;
use super::protocol::{AllowedToolCalls, AnswerWriter};
use super::sse::{KeepAlive, SseEvent, StreamForm};
use crate::inference::bounds::SampleCount;
use crate::inference::error::InferenceError;

/// Writes answers with at most the allowed number of tool calls.
#[derive(Debug)]
pub struct ToolCallFilter<W> {
    writer: W,
    allowed: AllowedToolCalls,
    /// The state of each sample, by its index.
    samples: Vec<SampleCalls>,
}

/// The tool calls of one sample so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SampleCalls {
    /// No complete tool call. One may have begun.
    #[default]
    None,
    /// A complete tool call, and none that began after it.
    Complete,
    /// A tool call that began after a complete one, and is left out.
    LeftOut,
}

impl<W> ToolCallFilter<W> {
    /// For an answer of `samples` samples.
    pub fn new(writer: W, allowed: AllowedToolCalls, samples: SampleCount) -> Self {
        Self { writer, allowed, samples: samples.each(|_| SampleCalls::None) }
    }

    /// The event without the tool calls that are too many.
    fn filtered(&mut self, mut event: AnswerEvent) -> AnswerEvent {
        if self.allowed == AllowedToolCalls::All {
            return event;
        }
        if let Some(calls) = self.samples.get_mut(event.sample_index as usize) {
            event.parts.retain(|part| calls.keeps(part));
        }
        event
    }
}

impl SampleCalls {
    /// Whether the next part of the sample is kept.
    fn keeps(&mut self, part: &AnswerPart) -> bool {
        match (*self, part) {
            (SampleCalls::None, AnswerPart::ToolCallEnd) => *self = SampleCalls::Complete,
            (SampleCalls::Complete, AnswerPart::ToolCallStart(_)) => *self = SampleCalls::LeftOut,
            (SampleCalls::LeftOut, AnswerPart::ToolCallEnd | AnswerPart::ToolCallCut) => {
                *self = SampleCalls::Complete;
                return false;
            }
            // The tool call was malformed, and its characters follow as text.
            (SampleCalls::LeftOut, AnswerPart::MalformedToolCall(_)) => {
                *self = SampleCalls::Complete
            }
            _ => {}
        }
        *self != SampleCalls::LeftOut
    }
}

impl<W: AnswerWriter> AnswerWriter for ToolCallFilter<W> {
    const FORM: StreamForm = W::FORM;

    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
        let event = self.filtered(event);
        self.writer.event(event)
    }

    fn end(&mut self) -> Vec<SseEvent> {
        self.writer.end()
    }

    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
        self.writer.error(error)
    }

    fn keep_alive(&self) -> KeepAlive {
        self.writer.keep_alive()
    }

    fn whole(mut self, events: Vec<AnswerEvent>) -> WholeAnswer {
        let events = events.into_iter().map(|event| self.filtered(event)).collect();
        self.writer.whole(events)
    }
}

#[cfg(test)]
mod tests {
    use paceline_text::stream::{ToolCallFault, ToolCallStart};

    use super::*;

    fn start(id: &str) -> AnswerPart {
        AnswerPart::ToolCallStart(ToolCallStart { index: 0, id: id.into(), name: "f".into() })
    }

    fn kept(allowed: AllowedToolCalls, samples: &[(u32, Vec<AnswerPart>)]) -> Vec<AnswerPart> {
        let mut filter = ToolCallFilter::new((), allowed, SampleCount::checked(2).expect("few"));
        let events = samples.iter().map(|(sample_index, parts)| AnswerEvent {
            sample_index: *sample_index,
            parts: parts.clone(),
            ..Default::default()
        });
        events.flat_map(|event| filter.filtered(event).parts).collect()
    }

    #[test]
    fn one_complete_tool_call_is_kept_and_later_ones_are_left_out() {
        let arguments = || AnswerPart::ToolCallArguments("{}".into());
        let text = || AnswerPart::Text("t".into());
        let calls = [
            (0, vec![text(), start("a"), arguments()]),
            (0, vec![AnswerPart::ToolCallEnd, text(), start("b")]),
            (0, vec![arguments(), AnswerPart::ToolCallEnd, text()]),
        ];
        let one = kept(AllowedToolCalls::One, &calls);
        let expected = [text(), start("a"), arguments(), AnswerPart::ToolCallEnd, text(), text()];
        assert_eq!(one, expected);
        let all: Vec<_> = calls.iter().flat_map(|(_, parts)| parts.clone()).collect();
        assert_eq!(kept(AllowedToolCalls::All, &calls), all);
    }

    #[test]
    fn a_malformed_tool_call_does_not_use_up_the_one_allowed() {
        let fault = || AnswerPart::MalformedToolCall(ToolCallFault { warning: "w".into() });
        let text = || AnswerPart::Text("<tool_call>".into());
        let broken_first = vec![start("a"), fault(), text(), start("b"), AnswerPart::ToolCallEnd];
        assert_eq!(kept(AllowedToolCalls::One, &[(0, broken_first.clone())]), broken_first);
        let broken_second = vec![start("a"), AnswerPart::ToolCallEnd, start("b"), fault(), text()];
        let expected = [start("a"), AnswerPart::ToolCallEnd, fault(), text()];
        assert_eq!(kept(AllowedToolCalls::One, &[(0, broken_second)]), expected);
    }

    #[test]
    fn a_cut_tool_call_is_kept_alone_and_left_out_after_another_one() {
        let cut = vec![start("a"), AnswerPart::ToolCallCut];
        assert_eq!(kept(AllowedToolCalls::One, &[(0, cut.clone())]), cut);
        let second = vec![start("a"), AnswerPart::ToolCallEnd, start("b"), AnswerPart::ToolCallCut];
        assert_eq!(
            kept(AllowedToolCalls::One, &[(0, second)]),
            [start("a"), AnswerPart::ToolCallEnd]
        );
    }

    #[test]
    fn each_sample_has_a_tool_call_of_its_own() {
        let call = |id| vec![start(id), AnswerPart::ToolCallEnd];
        let found = kept(AllowedToolCalls::One, &[(1, call("a")), (0, call("b")), (1, call("c"))]);
        assert_eq!(found, [call("a"), call("b")].concat());
    }
}
