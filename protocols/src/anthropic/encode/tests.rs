//! Answers of the Messages protocol, whole and as events.

use paceline_text::stream::ToolCallFault;
use serde_json::json;

use super::*;
use crate::anthropic::answer::MessagesAnswer;

fn writer(asked: Asked) -> MessageWriter {
    MessageWriter::new("r1", "demo", asked)
}

fn usage_of(completion_tokens: u32) -> Usage {
    Usage { prompt_tokens: 10, completion_tokens, cached_tokens: 8, ..Default::default() }
}

fn event(parts: Vec<AnswerPart>) -> AnswerEvent {
    let so_far = Some(usage_of(1));
    AnswerEvent { parts, so_far, ..Default::default() }
}

fn last(reason: FinishReason, stop: &str, completion_tokens: u32) -> AnswerEvent {
    let usage = usage_of(completion_tokens);
    let end =
        AnswerEnd { finish_reason: Some(reason), stop: stop.into(), usage, ..Default::default() };
    AnswerEvent { last: Some(end), ..Default::default() }
}

fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.into())
}

fn thought(text: &str) -> AnswerPart {
    AnswerPart::Reasoning(text.into())
}

fn tool_call(id: &str, name: &str) -> AnswerPart {
    AnswerPart::ToolCallStart(ToolCallStart { index: 0, id: id.into(), name: name.into() })
}

fn arguments(text: &str) -> AnswerPart {
    AnswerPart::ToolCallArguments(text.into())
}

fn agentic() -> Vec<AnswerEvent> {
    vec![
        event(vec![thought("h")]),
        event(vec![thought("m"), text("Let ")]),
        event(vec![text("me."), tool_call("t1", "read"), arguments("{\"a\":")]),
        event(vec![
            arguments("1}"),
            AnswerPart::ToolCallEnd,
            tool_call("t2", "list"),
            AnswerPart::ToolCallEnd,
        ]),
        last(FinishReason::Stop, "", 7),
    ]
}

/// The data of all events; their names are their types.
fn streamed(asked: Asked, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut writer = writer(asked);
    let mut written: Vec<SseEvent> =
        events.into_iter().flat_map(|event| writer.event(event)).collect();
    written.extend(writer.end());
    let data = |event: SseEvent| {
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        assert_eq!(event.event, data["type"].as_str());
        data
    };
    written.into_iter().map(data).collect()
}

/// The message that a client makes of the events.
fn assembled(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut arguments = String::new();
    for event in &events[1..] {
        let at = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                let content = message["content"].as_array_mut().expect("a list");
                assert_eq!(content.len(), at, "blocks come in order");
                content.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][at], &event["delta"]);
                for field in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[field].as_str() {
                        block[field] =
                            (block[field].as_str().expect("text").to_owned() + more).into();
                    }
                }
                if let Some(more) = delta["partial_json"].as_str() {
                    arguments += more;
                    if let Ok(input) = serde_json::from_str(&arguments) {
                        block["input"] = input;
                    }
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
                message["paceline"] = event["paceline"].clone();
            }
            "content_block_stop" | "message_stop" => {}
            other => panic!("unknown event {other}"),
        }
    }
    message
}

#[test]
fn the_first_event_has_the_usage_with_cached_tokens_apart() {
    let events = streamed(Asked::default(), agentic());
    let message = &events[0]["message"];
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!((&message["id"], &message["model"]), (&json!("msg_r1"), &json!("demo")));
    let usage = &message["usage"];
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(2), &json!(8)));
    assert_eq!(message["content"], json!([]));
    assert!(message["stop_reason"].is_null());
}

#[test]
fn events_and_the_whole_answer_make_the_same_message() {
    let whole = writer(Asked::default()).whole(agentic()).json();
    assert_eq!(assembled(&streamed(Asked::default(), agentic())), whole);
    assert_eq!(
        whole["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
            {"type": "text", "text": "Let me."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"a": 1}},
            {"type": "tool_use", "id": "t2", "name": "list", "input": {}},
        ])
    );
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["usage"]["output_tokens"], 7);
}

#[test]
fn every_block_is_closed_before_the_next_one_and_before_the_end() {
    let events = streamed(Asked::default(), agentic());
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .filter(|kind| *kind != "content_block_delta")
        .collect();
    let block = ["content_block_start", "content_block_stop"];
    let blocks = block.iter().cycle().take(8).copied();
    let expected: Vec<_> = std::iter::once("message_start")
        .chain(blocks)
        .chain(["message_delta", "message_stop"])
        .collect();
    assert_eq!(kinds, expected);
}

#[test]
fn the_end_has_the_protocols_reason() {
    let reason = |max_tokens, parts: Vec<AnswerPart>, last| {
        let asked = Asked { max_tokens, ..Default::default() };
        let message = writer(asked).whole(vec![event(parts), last]).json();
        (message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    let said = || vec![text("a")];
    let null = Value::Null;
    assert_eq!(
        reason(9, said(), last(FinishReason::Stop, "", 3)),
        (json!("end_turn"), null.clone())
    );
    assert_eq!(
        reason(9, said(), last(FinishReason::Stop, "x", 3)),
        (json!("stop_sequence"), json!("x"))
    );
    assert_eq!(reason(3, said(), last(FinishReason::Length, "", 3)).0, "max_tokens");
    let room = reason(9, said(), last(FinishReason::Length, "", 3));
    assert_eq!(room.0, "model_context_window_exceeded");
    let cut = reason(3, vec![tool_call("t", "f")], last(FinishReason::Length, "", 3));
    assert_eq!(cut.0, "max_tokens", "a tool call that was cut is not to be run");
}

#[test]
fn a_malformed_tool_call_is_text_with_a_warning() {
    let fault = ToolCallFault { warning: "no JSON".into() };
    let events = || {
        vec![
            event(vec![
                text("a"),
                AnswerPart::MalformedToolCall(fault.clone()),
                text("<tool_call>{"),
            ]),
            last(FinishReason::Stop, "", 3),
        ]
    };
    let whole = writer(Asked::default()).whole(events()).json();
    assert_eq!(whole["content"][1]["text"], "<tool_call>{");
    assert_eq!(whole["stop_reason"], "end_turn");
    assert_eq!(whole["paceline"]["warnings"][0]["message"], "no JSON");
    assert_eq!(assembled(&streamed(Asked::default(), events())), whole);
}

#[test]
fn a_tool_call_that_the_model_breaks_off_is_text_and_its_block_never_stops() {
    let events = || {
        let fault = AnswerPart::MalformedToolCall(ToolCallFault { warning: "no JSON".into() });
        let parts = vec![text("a"), tool_call("t", "f"), arguments("{\"b\": "), fault, text("<")];
        vec![event(parts), last(FinishReason::Stop, "", 3)]
    };
    let whole = writer(Asked::default()).whole(events()).json();
    let block = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(whole["content"], json!([block("a"), block("<")]));
    assert_eq!(whole["paceline"]["warnings"][0]["message"], "no JSON");
    let streamed = streamed(Asked::default(), events());
    let is_stop = |event: &&Value| event["type"] == "content_block_stop";
    let stopped: Vec<_> = streamed.iter().filter(is_stop).map(|event| &event["index"]).collect();
    assert_eq!(stopped, [0, 2]);
    let message = assembled(&streamed);
    assert_eq!(
        (&message["stop_reason"], &whole["stop_reason"]),
        (&json!("end_turn"), &json!("end_turn"))
    );
    assert_eq!(message["content"][2], block("<"));
}

#[test]
fn a_warning_is_beside_the_answer() {
    let events = || {
        let parts = vec![AnswerPart::Warning("not read".into()), text("a")];
        vec![event(parts), last(FinishReason::Stop, "", 3)]
    };
    let whole = writer(Asked::default()).whole(events()).json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": "a"}]));
    assert_eq!(whole["paceline"]["warnings"][0]["message"], "not read");
    assert_eq!(assembled(&streamed(Asked::default(), events())), whole);
}

#[test]
fn a_tool_call_that_was_cut_is_the_last_block_and_no_text() {
    let cut = |pieces: &[&str]| {
        let mut parts = vec![text("a"), tool_call("t", "f")];
        parts.extend(pieces.iter().map(|piece| arguments(piece)));
        parts.push(AnswerPart::ToolCallCut);
        vec![event(parts), last(FinishReason::Length, "", 3)]
    };
    let asked = || Asked { max_tokens: 3, ..Default::default() };
    for (pieces, input) in [
        (&["{\"a\": ", "\"b"][..], json!({"incomplete": "{\"a\": \"b"})),
        (&[], json!({"incomplete": ""})),
        // The arguments are whole, and the rest of the tool call is not.
        (&["{\"a\": 1}"], json!({"a": 1})),
    ] {
        let whole = writer(asked()).whole(cut(pieces)).json();
        let block = json!({"type": "tool_use", "id": "t", "name": "f", "input": input});
        assert_eq!(whole["content"], json!([{"type": "text", "text": "a"}, block]));
        assert_eq!(whole["stop_reason"], "max_tokens");
        let events = streamed(asked(), cut(pieces));
        let sent: String =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert_eq!(sent, pieces.concat());
        let message = assembled(&events);
        assert_eq!(message["content"].as_array().map(Vec::len), Some(2));
        assert_eq!(message["stop_reason"], "max_tokens");
    }
}

#[test]
fn thoughts_without_their_text_stay_blocks() {
    let asked = Asked { hide_thinking: true, ..Default::default() };
    let whole = writer(asked).whole(agentic()).json();
    let expected = json!({"type": "thinking", "thinking": "", "signature": SIGNATURE});
    assert_eq!(whole["content"][0], expected);
    assert_eq!(assembled(&streamed(asked, agentic())), whole);
}

#[test]
fn an_error_in_the_middle_is_an_event_of_its_own() {
    let mut writer = writer(Asked::default());
    writer.event(event(vec![text("a")]));
    let error = InferenceError::new(paceline_vocabulary::Reason::TargetGone, "gone");
    let [event] = &writer.error(&error)[..] else { panic!("one event") };
    let data: Value = serde_json::from_str(&event.data).expect("JSON");
    assert_eq!((event.event, &data["type"]), (Some("error"), &json!("error")));
    assert_eq!(data["error"]["type"], "overloaded_error");
    assert_eq!(data["error"]["reason"], "TARGET_GONE");
}

#[test]
fn a_ping_keeps_a_silent_stream_alive() {
    let ping = SseEvent::named("ping", r#"{"type":"ping"}"#);
    assert_eq!(writer(Asked::default()).keep_alive(), KeepAlive::Event(ping));
}

#[test]
fn an_answer_has_the_documented_form() {
    let whole = writer(Asked::default()).whole(agentic()).json();
    let read = serde_json::from_value::<MessagesAnswer>(whole.clone());
    let read = read.unwrap_or_else(|error| panic!("{error}: {whole:#}"));
    assert_eq!(read.content.len(), 4);
}
