//! Events, counts and descriptions of [`crate::inference`] as messages of inference.proto.

use std::collections::HashMap;

use paceline_proto::v1;
use paceline_text::stream::{AnswerEnd, AnswerEvent, AnswerPart, ToolCallFault, ToolCallStart};
use paceline_vocabulary::generation::FinishReason;

use crate::inference::model::ModelDescription;
use crate::inference::model::TokenCount;

/// Makes the messages of one answer.
#[derive(Debug, Default)]
pub struct AnswerEncoder {
    /// Index of the running tool call, for each sample with one.
    running: HashMap<u32, u32>,
}

impl AnswerEncoder {
    /// An event of the answer to this request.
    pub fn event(&mut self, event: AnswerEvent, request_id: &str) -> v1::GenerateResponse {
        let mut message = v1::GenerateResponse {
            request_id: request_id.to_owned(),
            token_ids: event.token_ids,
            margins: event.margins,
            step_end_ns: event.step_end_ns,
            r#final: event.last.map(end),
            sample_index: event.sample_index,
            logprobs: event.logprobs.into_iter().map(Into::into).collect(),
            ..Default::default()
        };
        for part in event.parts {
            self.add(part, &mut message);
        }
        message
    }

    fn add(&mut self, part: AnswerPart, message: &mut v1::GenerateResponse) {
        let sample = message.sample_index;
        match part {
            AnswerPart::Text(text) => message.text.push_str(&text),
            AnswerPart::Reasoning(text) => message.reasoning.push_str(&text),
            AnswerPart::ToolCallStart(ToolCallStart { index, id, name }) => {
                self.running.insert(sample, index);
                let first = v1::ToolCallPiece { index, id, name, ..Default::default() };
                message.tool_calls.push(first);
            }
            AnswerPart::ToolCallArguments(arguments) => {
                self.piece(message).arguments.push_str(&arguments);
            }
            AnswerPart::ToolCallEnd => {
                self.piece(message).complete = true;
                self.running.remove(&sample);
            }
            AnswerPart::ToolCallCut => {
                self.piece(message).cut = true;
                self.running.remove(&sample);
            }
            AnswerPart::MalformedToolCall(ToolCallFault { warning }) => {
                self.running.remove(&sample);
                message.warnings.push(warning);
            }
            AnswerPart::Warning(warning) => message.warnings.push(warning),
        }
    }

    /// The piece of the running tool call in this message.
    fn piece<'a>(&self, message: &'a mut v1::GenerateResponse) -> &'a mut v1::ToolCallPiece {
        let index = self.running.get(&message.sample_index).copied().unwrap_or_default();
        let pieces = &mut message.tool_calls;
        if pieces.last().is_none_or(|last| last.index != index || last.complete) {
            pieces.push(v1::ToolCallPiece { index, ..Default::default() });
        }
        let last = pieces.len() - 1;
        &mut pieces[last]
    }
}

fn end(end: AnswerEnd) -> v1::Final {
    let AnswerEnd { finish_reason, stop, usage, route, speculation, timing, seed, resumed } = end;
    let finish_reason = match finish_reason {
        None => v1::FinishReason::Unspecified,
        Some(FinishReason::Stop) => v1::FinishReason::Stop,
        Some(FinishReason::Length) => v1::FinishReason::Length,
    };
    v1::Final {
        finish_reason: finish_reason.into(),
        usage: Some(v1::Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }),
        route: Some(route.map(v1::Route::from).unwrap_or_default()),
        speculation: Some(speculation.into()),
        timing: Some(v1::Timing {
            queue_ms: timing.queue_ms,
            ttft_ms: timing.ttft_ms,
            total_ms: timing.total_ms,
            image_decode_ms: timing.image_decode_ms,
            image_resize_ms: timing.image_resize_ms,
            tower_ms: timing.tower_ms,
            prefill_ms: timing.prefill_ms,
        }),
        resumed,
        seed,
        stop,
    }
}

/// The tokens of a prompt, with their ids if the client asks for them.
pub fn count(counted: TokenCount, report_ids: bool) -> v1::CountTokensResponse {
    let TokenCount { ids, context_length } = counted;
    v1::CountTokensResponse {
        prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        context_length,
        token_ids: if report_ids { ids } else { Vec::new() },
    }
}

/// The served model.
pub fn model(model: ModelDescription) -> v1::GetModelResponse {
    v1::GetModelResponse {
        name: model.name,
        architecture: model.architecture,
        vocab_size: model.vocab_size,
        context_length: model.context_length,
        max_prompt_tokens: model.max_prompt_tokens,
        max_new_tokens: model.max_new_tokens,
        chat: model.chat,
        tools: model.tools,
        vision: model.images.is_some(),
        default_sampling: Some(model.default_sampling.into()),
        stop_token_ids: model.stop_token_ids,
        image_limits: model.images.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use paceline_text::samples::answers::{Model, SampleAnswer, offered, sample_answers};

    use super::*;

    #[test]
    fn a_tool_call_that_the_limit_cuts_is_told_from_a_whole_one_and_from_none() {
        for SampleAnswer { calls, answer, text } in sample_answers() {
            let model = Model::new(calls, true);
            let ids = model.ids(&answer);
            for end in 1..=ids.len() {
                let reason = FinishReason::Length;
                let events = model.events(&ids[..end], offered(), &[2], &[], reason);
                let mut encoder = AnswerEncoder::default();
                let (mut said, mut open) = (String::new(), None);
                for message in events.into_iter().map(|event| encoder.event(event, "r")) {
                    said += &message.text;
                    assert!(message.warnings.is_empty(), "{:?}", &ids[..end]);
                    for piece in message.tool_calls {
                        assert!(open.is_none_or(|open| open == piece.index));
                        open = (!piece.complete && !piece.cut).then_some(piece.index);
                    }
                }
                assert_eq!(open, None, "{answer:?} {end}");
                assert!(text.starts_with(&said), "{said:?}");
            }
        }
    }

    #[test]
    fn a_tool_call_that_the_model_breaks_off_has_no_whole_arguments_and_no_end() {
        let mut broken = 0;
        for SampleAnswer { calls, answer, .. } in sample_answers() {
            let model = Model::new(calls, true);
            let ids = model.ids(&answer);
            for end in 1..=ids.len() {
                let events = model.events(&ids[..end], offered(), &[2], &[], FinishReason::Stop);
                let mut encoder = AnswerEncoder::default();
                let mut calls: Vec<(String, bool)> = Vec::new();
                let pieces =
                    events.into_iter().flat_map(|event| encoder.event(event, "r").tool_calls);
                for piece in pieces {
                    calls.resize(calls.len().max(piece.index as usize + 1), Default::default());
                    let (arguments, complete) = &mut calls[piece.index as usize];
                    *arguments += &piece.arguments;
                    *complete |= piece.complete;
                    assert!(!piece.cut);
                }
                for (arguments, complete) in calls {
                    let is_json = serde_json::from_str::<serde_json::Value>(&arguments).is_ok();
                    assert_eq!(is_json, complete, "{arguments} of {:?}", &ids[..end]);
                    broken += usize::from(!complete);
                }
            }
        }
        assert!(broken > 50, "expected many broken tool calls, found {broken}");
    }

    #[test]
    fn parts_become_fields_and_pieces_of_tool_calls() {
        let start = |index: u32| {
            AnswerPart::ToolCallStart(ToolCallStart {
                index,
                id: format!("c{index}"),
                name: "f".into(),
            })
        };
        let arguments = |text: &str| AnswerPart::ToolCallArguments(text.into());
        let mut encoder = AnswerEncoder::default();
        let mut encode = |sample_index, parts| {
            let event = AnswerEvent { sample_index, parts, ..Default::default() };
            encoder.event(event, "r")
        };
        let first = encode(
            1,
            vec![
                AnswerPart::Reasoning("so".into()),
                AnswerPart::Text("See".into()),
                start(0),
                arguments("{"),
            ],
        );
        assert_eq!((first.reasoning.as_str(), first.text.as_str()), ("so", "See"));
        let piece = v1::ToolCallPiece {
            id: "c0".into(),
            name: "f".into(),
            arguments: "{".into(),
            ..Default::default()
        };
        assert_eq!(first.tool_calls, std::slice::from_ref(&piece));
        assert!(encode(0, vec![AnswerPart::Text("a".into())]).tool_calls.is_empty());
        let second =
            encode(1, vec![arguments("}"), AnswerPart::ToolCallEnd, start(1), arguments("[")]);
        let end = v1::ToolCallPiece { arguments: "}".into(), complete: true, ..Default::default() };
        let next = v1::ToolCallPiece { index: 1, id: "c1".into(), arguments: "[".into(), ..piece };
        assert_eq!(second.tool_calls, [end, next]);
        let cut = encode(0, vec![start(0), arguments("{"), AnswerPart::ToolCallCut]);
        let piece = v1::ToolCallPiece {
            id: "c0".into(),
            name: "f".into(),
            arguments: "{".into(),
            cut: true,
            ..Default::default()
        };
        assert_eq!((cut.tool_calls, cut.text.as_str()), (vec![piece], ""));
        let note = encode(0, vec![AnswerPart::Warning("n".into()), AnswerPart::Text("a".into())]);
        assert_eq!((note.warnings, note.text.as_str()), (vec!["n".into()], "a"));
        let fault = AnswerPart::MalformedToolCall(ToolCallFault { warning: "w".into() });
        let last = encode(1, vec![fault, AnswerPart::Text("[".into())]);
        assert_eq!(
            (last.warnings, last.text.as_str(), last.tool_calls),
            (vec!["w".into()], "[", vec![])
        );
    }
}
