//! Answers of the Responses protocol, whole and as events.

use paceline_text::stream::{ToolCallFault, Usage, collect};
use paceline_vocabulary::generation::{TokenLogprobs, TopLogprob};
use serde_json::json;

use super::*;
use crate::responses::answer::{ResponsesAnswer, ResponsesOutputPart};
use crate::responses::tools::Tools;

fn writer(asked: Asked) -> ResponseWriter {
    let head = Head { request_id: "r1".into(), created: 7, model: "demo".into() };
    ResponseWriter::new(head, asked, None)
}

fn asked(encrypted_reasoning: bool) -> Asked {
    let mut tools = Tools::default();
    let list = json!([
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "read"}]},
    ]);
    tools.add("tools", serde_json::from_value(list).expect("known kinds")).expect("served");
    Asked { tools, encrypted_reasoning, ..Default::default() }
}

fn event(parts: Vec<AnswerPart>) -> AnswerEvent {
    AnswerEvent { parts, token_ids: vec![1, 2], ..Default::default() }
}

fn last(reason: FinishReason) -> AnswerEvent {
    let usage =
        Usage { prompt_tokens: 10, completion_tokens: 7, reasoning_tokens: 2, cached_tokens: 8 };
    let end = AnswerEnd { finish_reason: Some(reason), usage, ..Default::default() };
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

fn agentic(reason: FinishReason) -> Vec<AnswerEvent> {
    vec![
        event(vec![thought("h")]),
        event(vec![thought("m"), text("Let ")]),
        event(vec![text("me."), tool_call("c1", "mcp__docs__read"), arguments("{\"a\":")]),
        event(vec![arguments("1}"), AnswerPart::ToolCallEnd]),
        event(vec![tool_call("c2", "apply_patch"), arguments("{\"input\": \"***")]),
        event(vec![arguments(" \\n\"}"), AnswerPart::ToolCallEnd]),
        last(reason),
    ]
}

/// The data of all events; their names are their types, and their numbers have no gaps.
fn streamed(asked: Asked, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut writer = writer(asked);
    let mut written: Vec<SseEvent> =
        events.into_iter().flat_map(|event| writer.event(event)).collect();
    written.extend(writer.end());
    let data = |(at, event): (usize, SseEvent)| {
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        assert_eq!(event.event, data["type"].as_str());
        assert_eq!(data["sequence_number"], at);
        data
    };
    written.into_iter().enumerate().map(data).collect()
}

#[test]
fn events_and_the_whole_answer_make_the_same_response() {
    let mut collected = Vec::new();
    agentic(FinishReason::Stop).into_iter().for_each(|event| collect(&mut collected, event));
    let whole = writer(asked(false)).whole(collected).json();
    let events = streamed(asked(false), agentic(FinishReason::Stop));
    let last = events.last().expect("an end");
    assert_eq!((&last["type"], &last["response"]), (&json!("response.completed"), &whole));
    let done: Vec<Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| event["item"].clone())
        .collect();
    assert_eq!(whole["output"], Value::from(done));
    assert_eq!((&whole["id"], &whole["created_at"]), (&json!("resp_r1"), &json!(7)));
    let usage = &whole["usage"];
    assert_eq!((&usage["input_tokens"], &usage["total_tokens"]), (&json!(10), &json!(17)));
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 8);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 2);
}

#[test]
fn items_have_the_clients_names_of_tools_and_the_text_of_custom_ones() {
    let whole = writer(asked(true)).whole(agentic(FinishReason::Stop)).json();
    let item = |at: usize| &whole["output"][at];
    assert_eq!(item(0)["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    assert_eq!(item(0)["encrypted_content"], encrypted("hm"));
    assert_eq!(item(1)["content"][0]["text"], "Let me.");
    let function = item(2);
    assert_eq!(function["type"], "function_call");
    assert_eq!((&function["namespace"], &function["name"]), (&json!("mcp__docs"), &json!("read")));
    assert_eq!((&function["call_id"], &function["arguments"]), (&json!("c1"), &json!("{\"a\":1}")));
    let custom = item(3);
    assert_eq!(custom["type"], "custom_tool_call");
    assert_eq!((&custom["name"], &custom["input"]), (&json!("apply_patch"), &json!("*** \n")));
    assert!(custom.get("namespace").is_none());
}

/// Codex CLI drops pieces of an item that was not announced.
#[test]
fn every_piece_belongs_to_an_item_that_was_announced_and_is_not_done() {
    let mut open: Option<(String, u64)> = None;
    let mut count = 0;
    for event in streamed(asked(false), agentic(FinishReason::Stop)) {
        let place = event["output_index"].as_u64();
        match event["type"].as_str().expect("a type") {
            "response.output_item.added" => {
                assert_eq!((&open, place), (&None, Some(count)));
                open = Some((event["item"]["id"].as_str().expect("an id").to_owned(), count));
            }
            "response.output_item.done" => {
                let (id, at) = open.take().expect("announced");
                assert_eq!((event["item"]["id"].as_str(), place), (Some(id.as_str()), Some(at)));
                count += 1;
            }
            "response.created" | "response.in_progress" | "response.completed" => {
                assert_eq!(open, None);
            }
            _ => {
                let (id, at) = open.as_ref().expect("announced");
                assert_eq!((event["item_id"].as_str(), place), (Some(id.as_str()), Some(*at)));
            }
        }
    }
    assert_eq!(count, 4);
}

#[test]
fn pieces_together_are_the_items_text() {
    let events = streamed(asked(false), agentic(FinishReason::Stop));
    let pieces = |kind: &str| {
        let mut text = String::new();
        for event in events.iter().filter(|event| event["type"] == kind) {
            text += event["delta"].as_str().expect("a piece");
        }
        text
    };
    assert_eq!(pieces("response.reasoning_text.delta"), "hm");
    assert_eq!(pieces("response.output_text.delta"), "Let me.");
    assert_eq!(pieces("response.function_call_arguments.delta"), "{\"a\":1}");
    let custom = "response.custom_tool_call_input.delta";
    assert_eq!(pieces(custom), "*** \n");
    assert_eq!(events.iter().filter(|event| event["type"] == custom).count(), 2);
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let events = streamed(asked(false), agentic(FinishReason::Length));
    let last = events.last().expect("an end");
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["status"], "incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
}

/// A function with arguments, a function without any, a custom tool, and one whose text has not come.
#[test]
fn a_tool_call_that_was_cut_is_an_incomplete_item_and_its_arguments_are_never_done() {
    for (name, pieces, field, value) in [
        ("mcp__docs__read", &["{\"a\": ", "\"b"][..], "arguments", "{\"a\": \"b"),
        ("mcp__docs__read", &[], "arguments", ""),
        ("apply_patch", &["{\"input\": ", "\"*** B\\nx"], "input", "*** B\nx"),
        ("apply_patch", &["{\"inp"], "input", ""),
        ("apply_patch", &["{\"patch\": \"a"], "input", ""),
    ] {
        let cut = || {
            let mut parts = vec![text("Let me."), tool_call("c1", name)];
            parts.extend(pieces.iter().map(|piece| arguments(piece)));
            parts.push(AnswerPart::ToolCallCut);
            vec![event(parts), last(FinishReason::Length)]
        };
        let whole = writer(asked(false)).whole(cut()).json();
        assert_eq!(whole["status"], "incomplete");
        let item = &whole["output"][1];
        assert_eq!((&item["status"], &item[field]), (&json!("incomplete"), &json!(value)));
        assert_eq!(whole["output"].as_array().map(Vec::len), Some(2), "nothing after it");
        assert_eq!(whole["output"][0]["status"], "completed", "the text before it is whole");
        let events = streamed(asked(false), cut());
        let last = events.last().expect("an end");
        assert_eq!((&last["type"], &last["response"]), (&json!("response.incomplete"), &whole));
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!(of("response.function_call_arguments.done"), 0);
        assert_eq!(of("response.custom_tool_call_input.done"), 0);
        assert_eq!(of("response.output_item.done"), 2);
        let sent: String =
            events.iter().filter_map(|event| event["delta"].as_str()).skip(1).collect();
        assert_eq!(sent, value);
    }
}

#[test]
fn a_tool_call_that_the_model_breaks_off_is_text_and_in_a_stream_an_item_that_is_never_done() {
    for (name, field, piece, value) in [
        ("mcp__docs__read", "arguments", "{\"a\": 1", "{\"a\": 1"),
        ("apply_patch", "input", "{\"input\": \"*** B", "*** B"),
    ] {
        let broken = || {
            let fault = AnswerPart::MalformedToolCall(ToolCallFault { warning: "no JSON".into() });
            let parts = vec![text("a"), tool_call("c1", name), arguments(piece), fault, text("<")];
            vec![event(parts), last(FinishReason::Stop)]
        };
        let whole = writer(asked(false)).whole(broken()).json();
        let items = whole["output"].as_array().expect("a list");
        assert!(items.len() == 2 && items.iter().all(|item| item["type"] == "message"), "{whole}");
        assert_eq!(
            (&items[1]["content"][0]["text"], &whole["status"]),
            (&json!("<"), &json!("completed"))
        );
        assert_eq!(whole["paceline"]["warnings"][0]["message"], "no JSON");
        let events = streamed(asked(false), broken());
        let output = &events.last().expect("an end")["response"]["output"];
        assert_eq!(output.as_array().map(Vec::len), Some(3), "{output}");
        assert_eq!(
            (&output[1][field], &output[1]["status"]),
            (&json!(value), &json!("incomplete"))
        );
        let is_done =
            |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.ends_with(".done"));
        let done: Vec<_> =
            events.iter().filter(is_done).map(|event| &event["output_index"]).collect();
        assert_eq!(done, [0, 0, 0, 2, 2, 2]);
    }
}

#[test]
fn what_the_limit_cuts_is_an_incomplete_item() {
    for part in [text("a"), thought("a")] {
        let whole =
            writer(asked(false)).whole(vec![event(vec![part]), last(FinishReason::Length)]).json();
        assert_eq!(whole["output"][0]["status"], "incomplete");
    }
    // The tool calls came whole.
    let whole = writer(asked(false)).whole(agentic(FinishReason::Length)).json();
    assert_eq!(whole["output"][3]["status"], "completed");
}

#[test]
fn a_malformed_tool_call_is_text_with_a_warning() {
    let fault = AnswerPart::MalformedToolCall(ToolCallFault { warning: "no JSON".into() });
    let events =
        vec![event(vec![text("a"), fault, text("<tool_call>{")]), last(FinishReason::Stop)];
    let whole = writer(asked(false)).whole(events).json();
    assert_eq!(whole["output"][1]["content"][0]["text"], "<tool_call>{");
    assert_eq!(whole["paceline"]["warnings"][0]["message"], "no JSON");
}

#[test]
fn a_warning_is_beside_the_answer() {
    let warning = AnswerPart::Warning("not read".into());
    let events = vec![event(vec![warning, text("a")]), last(FinishReason::Stop)];
    let whole = writer(asked(false)).whole(events).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "a");
    assert_eq!(whole["paceline"]["warnings"][0]["message"], "not read");
}

#[test]
fn an_error_in_the_middle_fails_the_response_by_a_code() {
    let code = |kind| {
        let mut writer = writer(asked(false));
        writer.event(event(vec![text("a")]));
        let events = writer.error(&InferenceError::new(kind, "m"));
        let [event] = &events[..] else { panic!("one event") };
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        assert_eq!(
            (event.event, &data["response"]["status"]),
            (Some("response.failed"), &json!("failed"))
        );
        assert_eq!(data["response"]["error"]["message"], "m");
        data["response"]["error"]["code"].as_str().expect("a code").to_owned()
    };
    assert_eq!(code(Reason::PromptTooLong), "context_length_exceeded");
    assert_eq!(code(Reason::TargetGone), "server_is_overloaded");
    assert_eq!(code(Reason::QueueFull), "rate_limit_exceeded");
    assert_eq!(code(Reason::Bug), "server_error");
}

#[test]
fn an_answer_has_the_documented_form() {
    for (hidden, reason) in [(true, FinishReason::Stop), (false, FinishReason::Length)] {
        let asked = Asked { repeated: repeated(), ..asked(hidden) };
        let whole = writer(asked).whole(agentic(reason)).json();
        let read = serde_json::from_value::<ResponsesAnswer>(whole.clone());
        let read = read.unwrap_or_else(|error| panic!("{error}: {whole:#}"));
        assert_eq!(read.output.len(), 4);
    }
}

/// The fields that an answer repeats of its request.
fn repeated() -> Map<String, Value> {
    let body = json!({"input": "a", "max_output_tokens": 7, "reasoning": {"effort": "low"}});
    crate::responses::decode::decode(serde_json::from_value(body).expect("a request"))
        .expect("served")
        .writer
        .repeated
}

/// Thoughts and tool calls have none, and those of text that is held back come with the rest of it.
#[test]
fn a_message_has_the_log_probabilities_of_its_tokens() {
    let at = |ids: [u32; 2], parts: Vec<AnswerPart>| {
        let one = |id: u32| {
            let logprob = -(id as f32);
            TokenLogprobs { logprob, top: vec![TopLogprob { token_id: id + 1, logprob }] }
        };
        let logprobs = ids.map(one).to_vec();
        AnswerEvent { parts, token_ids: ids.to_vec(), logprobs, ..Default::default() }
    };
    let events = || {
        vec![
            at([40, 41], vec![thought("h")]),
            at([42, 43], vec![]),
            at([44, 45], vec![text("Let ")]),
            at([46, 47], vec![]),
            at([48, 49], vec![text("me.")]),
            at([50, 51], vec![tool_call("c1", "mcp__docs__read"), arguments("{}")]),
            at([52, 53], vec![AnswerPart::ToolCallEnd]),
            last(FinishReason::Stop),
        ]
    };
    let writer = || {
        let head = Head { request_id: "r1".into(), created: 7, model: "demo".into() };
        let texts = TokenTexts::new(std::sync::Arc::new(paceline_text::samples::language()));
        ResponseWriter::new(head, asked(false), Some(texts))
    };
    let mut collected = Vec::new();
    events().into_iter().for_each(|event| collect(&mut collected, event));
    let whole = writer().whole(collected).json();
    let logprobs = &whole["output"][1]["content"][0]["logprobs"];
    let of = |logprobs: &Value| -> Vec<f64> {
        let all = logprobs.as_array().expect("a list");
        all.iter().map(|at| at["logprob"].as_f64().expect("a number")).collect()
    };
    assert_eq!(of(logprobs), [-44.0, -45.0, -46.0, -47.0, -48.0, -49.0]);
    assert_eq!(logprobs[0]["top_logprobs"][0]["logprob"], -44.0);
    let part = whole["output"][1]["content"][0].clone();
    serde_json::from_value::<ResponsesOutputPart>(part).expect("the documented form");

    let mut writer = writer();
    let mut streamed = Vec::new();
    for event in events().into_iter().flat_map(|event| writer.event(event)) {
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        if data["type"] == "response.output_text.delta" {
            streamed.extend(of(&data["logprobs"]));
        }
    }
    assert_eq!(streamed, of(logprobs));
}
