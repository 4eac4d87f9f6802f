use paceline_text::stream::{ToolCallFault, Usage};
use paceline_vocabulary::generation::TokenLogprobs;

use std::sync::Arc;

use super::*;

fn head() -> Head {
    Head { request_id: "r1".into(), created: 0, model: "demo".into() }
}

fn event(parts: Vec<AnswerPart>) -> AnswerEvent {
    AnswerEvent { parts, ..Default::default() }
}

fn last(reason: FinishReason) -> AnswerEvent {
    let usage =
        Usage { prompt_tokens: 10, completion_tokens: 7, cached_tokens: 8, ..Default::default() };
    let timing = Timing { queue_ms: 1.0, ttft_ms: 3.5, total_ms: 10.0, ..Default::default() };
    let end = AnswerEnd { finish_reason: Some(reason), usage, timing, ..Default::default() };
    AnswerEvent { last: Some(end), ..Default::default() }
}

fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.into())
}

fn call(id: &str, name: &str, arguments: &str) -> [AnswerPart; 2] {
    let start = ToolCallStart { index: 0, id: id.into(), name: name.into() };
    [AnswerPart::ToolCallStart(start), AnswerPart::ToolCallArguments(arguments.into())]
}

/// A thought, a text, and two whole calls with a text between them.
fn agentic() -> Vec<AnswerEvent> {
    let mut parts = vec![AnswerPart::Reasoning("hm".into()), text("Let ")];
    parts.extend(call("t1", "read", "{\"a\":1}"));
    let mut rest = vec![AnswerPart::ToolCallEnd, text("me.")];
    rest.extend(call("t2", "list", ""));
    rest.push(AnswerPart::ToolCallEnd);
    vec![event(parts), event(rest), last(FinishReason::Stop)]
}

/// The objects of a stream.
fn lines(form: OllamaPath, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut writer = OllamaWriter::new(head(), form, None);
    let mut written: Vec<SseEvent> =
        events.into_iter().flat_map(|event| writer.event(event)).collect();
    written.extend(writer.end());
    written.iter().map(|event| serde_json::from_str(&event.data).expect("JSON")).collect()
}

fn whole(form: OllamaPath, events: Vec<AnswerEvent>) -> Value {
    let pieces = OllamaWriter::new(head(), form, None).whole(events).pieces();
    let bytes: Vec<u8> = pieces.flatten().collect();
    serde_json::from_slice(&bytes).expect("JSON")
}

/// What a client makes of the lines: the texts of all, the calls, and the last line's end.
fn assembled(lines: &[Value], form: OllamaPath) -> Value {
    let mut all = lines.last().expect("an end").clone();
    let place = |line: &Value, field: &str| match form {
        OllamaPath::Chat => line["message"][field].clone(),
        OllamaPath::Generate => line[if field == "content" { "response" } else { field }].clone(),
    };
    let joined = |field: &str| {
        lines
            .iter()
            .filter_map(|line| place(line, field).as_str().map(str::to_owned))
            .collect::<String>()
    };
    let (content, thinking) = (joined("content"), joined("thinking"));
    match form {
        OllamaPath::Chat => {
            all["message"]["content"] = content.into();
            all["message"]["thinking"] = thinking.into();
            let calls = lines.iter().map(|line| &line["message"]["tool_calls"]);
            let calls: Vec<&Value> = calls.filter(|calls| calls.is_array()).collect();
            assert_eq!(calls.len(), 1, "all calls are one line");
            all["message"]["tool_calls"] = calls[0].clone();
        }
        OllamaPath::Generate => {
            all["response"] = content.into();
            all["thinking"] = thinking.into();
        }
    }
    all
}

#[test]
fn a_stream_has_the_parts_of_the_whole_answer() {
    let (streamed, answer) =
        (lines(OllamaPath::Chat, agentic()), whole(OllamaPath::Chat, agentic()));
    assert_eq!(assembled(&streamed, OllamaPath::Chat), answer);
    assert_eq!(answer["message"]["content"], "Let me.");
    assert_eq!(answer["message"]["thinking"], "hm");
    let calls = json!([
        {"id": "t1", "function": {"index": 0, "name": "read", "arguments": {"a": 1}}},
        {"id": "t2", "function": {"index": 1, "name": "list", "arguments": {}}},
    ]);
    assert_eq!(answer["message"]["tool_calls"], calls);
    let ends = streamed.iter().map(|line| line["done"] == true).collect::<Vec<bool>>();
    assert_eq!(ends.iter().position(|end| *end), Some(streamed.len() - 1), "{ends:?}");
    for line in &streamed {
        assert!(line["message"]["content"].is_string() && line["message"]["role"] == "assistant");
        assert_eq!(
            (&line["model"], &line["created_at"]),
            (&json!("demo"), &json!("1970-01-01T00:00:00Z"))
        );
        assert!(line.get("error").is_none());
    }
    let texts = || vec![event(vec![text("a")]), event(vec![text("b")]), last(FinishReason::Length)];
    let streamed = lines(OllamaPath::Generate, texts());
    let mut answer = whole(OllamaPath::Generate, texts());
    assert_eq!((&answer["response"], &answer["done_reason"]), (&json!("ab"), &json!("length")));
    answer["thinking"] = "".into();
    assert_eq!(assembled(&streamed, OllamaPath::Generate), answer);
}

#[test]
fn the_end_counts_tokens_and_nanoseconds() {
    let answer = whole(OllamaPath::Chat, vec![event(vec![text("a")]), last(FinishReason::Stop)]);
    assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("stop")));
    for (field, expected) in [
        ("total_duration", 10_000_000),
        ("load_duration", 0),
        ("prompt_eval_count", 10),
        ("prompt_eval_duration", 2_500_000),
        ("eval_count", 7),
        ("eval_duration", 6_500_000),
    ] {
        assert_eq!(answer[field], expected, "{field}");
    }
}

#[test]
fn a_call_without_its_end_is_no_call() {
    let mut cut = call("t1", "read", "{\"a\":").to_vec();
    cut.push(AnswerPart::ToolCallCut);
    let fault = ToolCallFault { warning: "expected a call".into() };
    let mut malformed = call("t1", "read", "{\"a\":").to_vec();
    malformed.extend([AnswerPart::MalformedToolCall(fault), text("<call>")]);
    for (parts, content, warnings) in [(cut, "", 0), (malformed, "<call>", 1)] {
        let events = || vec![event(parts.clone()), last(FinishReason::Length)];
        let answer = whole(OllamaPath::Chat, events());
        assert!(answer["message"].get("tool_calls").is_none(), "{answer}");
        assert_eq!(answer["message"]["content"], content);
        let found = answer["paceline"]["warnings"].as_array().map_or(0, Vec::len);
        assert_eq!(found, warnings);
        assert!(
            lines(OllamaPath::Chat, events())
                .iter()
                .all(|line| line["message"].get("tool_calls").is_none())
        );
    }
}

#[test]
fn log_probabilities_stand_beside_the_text() {
    let writer = || {
        OllamaWriter::new(
            head(),
            OllamaPath::Chat,
            Some(TokenTexts::new(Arc::new(paceline_text::samples::language()))),
        )
    };
    let at = |logprob| TokenLogprobs { logprob, top: Vec::new() };
    let said = || AnswerEvent {
        token_ids: vec![0, 0],
        logprobs: vec![at(-0.5), at(-1.0)],
        ..event(vec![text("ab")])
    };
    let pieces = writer().whole(vec![said(), last(FinishReason::Stop)]).pieces();
    let answer: Value =
        serde_json::from_slice(&pieces.flatten().collect::<Vec<u8>>()).expect("JSON");
    let mut streaming = writer();
    let line: Value = serde_json::from_str(&streaming.event(said())[0].data).expect("JSON");
    assert_eq!(answer["logprobs"], line["logprobs"]);
    assert_eq!(
        (&line["logprobs"][1]["logprob"], line["message"]["content"].as_str()),
        (&json!(-1.0), Some("ab"))
    );
    // Tokens whose text comes later have a line of their own.
    let silent = AnswerEvent { parts: Vec::new(), ..said() };
    assert_eq!(streaming.event(silent).len(), 1);
}

#[test]
fn a_request_that_asks_nothing_is_answered_as_if_the_model_was_loaded() {
    let answer = loaded(&head(), OllamaPath::Chat, KeepLoaded::Yes);
    assert_eq!(
        (&answer["done_reason"], &answer["message"]["content"]),
        (&json!("load"), &json!(""))
    );
    let answer = loaded(&head(), OllamaPath::Generate, KeepLoaded::No);
    assert_eq!((&answer["done_reason"], &answer["response"]), (&json!("unload"), &json!("")));
}
