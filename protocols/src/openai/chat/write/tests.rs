//! Answers' events against what clients read.

use std::sync::Arc;

use paceline_text::stream::{
    AnswerEnd, AnswerEvent, AnswerPart, ToolCallFault, ToolCallStart, Usage,
};
use paceline_vocabulary::generation::{FinishReason, TokenLogprobs};
use serde_json::{Value, json};

use super::ChatWriter;
use crate::answer::Head;
use crate::inference::bounds::SampleCount;
use crate::openai::params::Asked;
use crate::protocol::{AnswerWriter as _, TokenTexts};

fn writer(samples: u32, include_usage: bool, logprobs: bool) -> ChatWriter {
    let head = Head { request_id: "r1".into(), created: 7, model: "m".into() };
    let texts = logprobs.then(|| TokenTexts::new(Arc::new(paceline_text::samples::language())));
    let samples = SampleCount::checked(samples).expect("few");
    ChatWriter::new(head, samples, Asked { include_usage }, texts)
}

fn event(sample_index: u32, parts: Vec<AnswerPart>) -> AnswerEvent {
    AnswerEvent { sample_index, parts, ..Default::default() }
}

fn end(sample_index: u32, reason: FinishReason) -> AnswerEvent {
    let usage =
        Usage { prompt_tokens: 5, completion_tokens: 2, reasoning_tokens: 1, cached_tokens: 3 };
    let last = AnswerEnd { finish_reason: Some(reason), usage, seed: 9, ..Default::default() };
    AnswerEvent { last: Some(last), ..event(sample_index, vec![]) }
}

fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.into())
}

fn tool_call(index: u32, name: &str) -> AnswerPart {
    AnswerPart::ToolCallStart(ToolCallStart {
        index,
        id: format!("call_{index}"),
        name: name.into(),
    })
}

fn arguments(piece: &str) -> AnswerPart {
    AnswerPart::ToolCallArguments(piece.into())
}

/// The chunks of a stream, as a client reads them.
fn streamed(mut writer: ChatWriter, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut chunks: Vec<_> = events.into_iter().flat_map(|event| writer.chunks(event)).collect();
    chunks.extend(writer.last_chunk());
    chunks.iter().map(|chunk| serde_json::to_value(chunk).expect("JSON")).collect()
}

fn whole(writer: ChatWriter, events: Vec<AnswerEvent>) -> Value {
    writer.whole(events).json()
}

fn deltas(chunks: &[Value]) -> Vec<Value> {
    chunks.iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect()
}

#[test]
fn text_comes_in_chunks_with_one_role_and_one_end() {
    let events = vec![
        event(0, vec![text("Hel")]),
        event(0, vec![]),
        event(0, vec![text("lo")]),
        end(0, FinishReason::Stop),
    ];
    let chunks = streamed(writer(1, false, false), events.clone());
    let wanted = [
        json!({"role": "assistant", "content": ""}),
        json!({"content": "Hel"}),
        json!({"content": "lo"}),
        json!({}),
    ];
    assert_eq!(deltas(&chunks), wanted);
    for chunk in &chunks {
        assert_eq!(chunk["id"], "chatcmpl-r1");
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["created"], &chunk["model"]), (&json!(7), &json!("m")));
        assert!(chunk.get("usage").is_none(), "only where it is asked for");
    }
    let reasons: Vec<_> =
        chunks.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [Value::Null, Value::Null, Value::Null, json!("stop")]);
    assert_eq!(chunks[3]["paceline"]["seed"], 9);
    assert!(chunks[..3].iter().all(|chunk| chunk.get("paceline").is_none()));

    let answer = whole(writer(1, false, false), events);
    let message = json!({"role": "assistant", "content": "Hello", "refusal": null});
    assert_eq!(answer["choices"][0]["message"], message);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1}});
    assert_eq!((&answer["usage"], &answer["object"]), (&usage, &json!("chat.completion")));
}

#[test]
fn usage_comes_in_a_chunk_of_its_own_and_is_null_before() {
    let events = vec![event(0, vec![text("a")]), end(0, FinishReason::Length)];
    let chunks = streamed(writer(1, true, false), events);
    let (last, before) = chunks.split_last().expect("some");
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(7)));
    assert_eq!(last["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    assert_eq!(last["paceline"]["seed"], 9);
    for chunk in before {
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
        assert!(chunk.get("paceline").is_none());
    }
    assert_eq!(before.last().expect("some")["choices"][0]["finish_reason"], "length");
}

#[test]
fn reasoning_and_tool_calls_are_fields_of_their_own() {
    let events = vec![
        event(0, vec![AnswerPart::Reasoning("hm".into())]),
        event(0, vec![text("ok"), tool_call(0, "f"), arguments("{\"a\"")]),
        event(
            0,
            vec![arguments(":1}"), AnswerPart::ToolCallEnd, tool_call(1, "g"), arguments("{}")],
        ),
        event(0, vec![AnswerPart::ToolCallEnd]),
        end(0, FinishReason::Stop),
    ];
    let chunks = streamed(writer(1, false, false), events.clone());
    let begins = |index: u32, name: &str| {
        json!({"tool_calls": [{"index": index, "id": format!("call_{index}"), "type": "function",
            "function": {"name": name, "arguments": ""}}]})
    };
    let more = |index: u32, piece: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]});
    let wanted = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "hm"}),
        json!({"content": "ok"}),
        begins(0, "f"),
        more(0, "{\"a\""),
        more(0, ":1}"),
        begins(1, "g"),
        more(1, "{}"),
        json!({}),
    ];
    assert_eq!(deltas(&chunks), wanted);
    assert_eq!(chunks.last().expect("some")["choices"][0]["finish_reason"], "tool_calls");

    let answer = whole(writer(1, false, false), events);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let written = |index: u32, name: &str, arguments: &str| {
        json!({"id": format!("call_{index}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    let message = json!({"role": "assistant", "content": "ok", "refusal": null, "reasoning_content": "hm",
        "tool_calls": [written(0, "f", "{\"a\":1}"), written(1, "g", "{}")]});
    assert_eq!(choice["message"], message);
}

#[test]
fn an_answer_of_tool_calls_alone_has_no_text() {
    let parts = vec![tool_call(0, "f"), arguments("{}"), AnswerPart::ToolCallEnd];
    let events = vec![event(0, parts), end(0, FinishReason::Stop)];
    let answer = whole(writer(1, false, false), events);
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    let empty = whole(writer(1, false, false), vec![end(0, FinishReason::Stop)]);
    assert_eq!(empty["choices"][0]["message"]["content"], "");
}

#[test]
fn a_malformed_tool_call_is_text_with_a_warning() {
    let fault = || AnswerPart::MalformedToolCall(ToolCallFault { warning: "no JSON".into() });
    let events = vec![
        event(0, vec![tool_call(0, "f"), arguments("{oops"), fault(), text("{oops")]),
        end(0, FinishReason::Stop),
    ];
    let answer = whole(writer(1, false, false), events.clone());
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("{oops"), &json!("stop"))
    );
    assert!(choice["message"].get("tool_calls").is_none(), "its text came instead");
    let warnings = json!([{"index": 0, "message": "no JSON"}]);
    assert_eq!(answer["paceline"]["warnings"], warnings);
    let chunks = streamed(writer(1, false, false), events);
    let last = chunks.last().expect("some");
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["paceline"]["warnings"], warnings);
}

#[test]
fn a_warning_is_beside_the_answer() {
    let warning = AnswerPart::Warning("not read".into());
    let events = vec![event(0, vec![warning, text("a")]), end(0, FinishReason::Stop)];
    let answer = whole(writer(1, false, false), events.clone());
    let warnings = json!([{"index": 0, "message": "not read"}]);
    assert_eq!(answer["choices"][0]["message"]["content"], "a");
    assert_eq!(answer["paceline"]["warnings"], warnings);
    let chunks = streamed(writer(1, false, false), events);
    assert_eq!(chunks.last().expect("some")["paceline"]["warnings"], warnings);
}

#[test]
fn a_tool_call_that_was_cut_is_a_tool_call_with_the_reason_length() {
    let events = vec![
        event(0, vec![text("ok"), tool_call(0, "f"), arguments("{\"a\": ")]),
        event(0, vec![arguments("\"b"), AnswerPart::ToolCallCut]),
        end(0, FinishReason::Length),
    ];
    let answer = whole(writer(1, false, false), events.clone());
    let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
    assert_eq!((&choice["finish_reason"], &message["content"]), (&json!("length"), &json!("ok")));
    let function = &message["tool_calls"][0]["function"];
    assert_eq!(*function, json!({"name": "f", "arguments": "{\"a\": \"b"}));
    assert!(answer["paceline"].get("warnings").is_none());
    let chunks = streamed(writer(1, false, false), events);
    let sent: String = chunks
        .iter()
        .filter_map(|chunk| {
            let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
            call["function"]["arguments"].as_str()
        })
        .collect();
    assert_eq!(sent, "{\"a\": \"b");
    assert_eq!(chunks.last().expect("some")["choices"][0]["finish_reason"], "length");
}

#[test]
fn several_answers_come_interleaved_under_their_index() {
    let events = vec![
        event(1, vec![text("b")]),
        event(0, vec![text("a")]),
        end(1, FinishReason::Length),
        event(0, vec![text("A")]),
        end(0, FinishReason::Stop),
    ];
    let chunks = streamed(writer(2, false, false), events.clone());
    let of = |index: u32| {
        let mine = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let mine = mine.filter(|choice| choice["index"] == index);
        mine.filter_map(|choice| choice["delta"]["content"].as_str()).collect::<String>()
    };
    assert_eq!((of(0).as_str(), of(1).as_str()), ("aA", "b"));
    let extended: Vec<_> = chunks.iter().map(|chunk| chunk.get("paceline").is_some()).collect();
    assert_eq!(extended.iter().filter(|one| **one).count(), 1);
    assert!(extended.last().expect("some"), "after the end of all answers");

    let answer = whole(writer(2, false, false), events);
    let choices = &answer["choices"];
    assert_eq!((&choices[0]["index"], &choices[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(choices[0]["message"]["content"], "aA");
    assert_eq!(choices[1]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[test]
fn log_probabilities_come_with_their_tokens_even_without_text() {
    let logprob = |logprob| TokenLogprobs { logprob, top: vec![] };
    let held_back =
        AnswerEvent { token_ids: vec![300], logprobs: vec![logprob(-1.0)], ..event(0, vec![]) };
    let shown = AnswerEvent {
        token_ids: vec![301, 302],
        logprobs: vec![logprob(-2.0), logprob(-3.0)],
        ..event(0, vec![text("x")])
    };
    let events = vec![held_back, shown, end(0, FinishReason::Stop)];
    let numbers = |content: &Value| -> Vec<f64> {
        let content = content.as_array().into_iter().flatten();
        content.filter_map(|one| one["logprob"].as_f64()).collect()
    };
    let chunks = streamed(writer(1, false, true), events.clone());
    let streamed: Vec<f64> = chunks
        .iter()
        .flat_map(|chunk| numbers(&chunk["choices"][0]["logprobs"]["content"]))
        .collect();
    assert_eq!(streamed, [-1.0, -2.0, -3.0]);
    let answer = whole(writer(1, false, true), events.clone());
    assert_eq!(numbers(&answer["choices"][0]["logprobs"]["content"]), streamed);
    let answer = whole(writer(1, false, false), events);
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
}
