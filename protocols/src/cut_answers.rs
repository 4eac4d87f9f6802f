//! Answers that end at any token. If the limit of tokens cuts one, a client of each protocol builds
//! the whole answer from the stream, with the cut tool call alone and nothing of a family's markup.
//! If the model itself ends it, no client gets a broken tool call as one to run.

use paceline_text::samples::answers::{Model, SampleAnswer, offered, sample_answers};
use paceline_text::stream::{AnswerEvent, AnswerPart, collect};
use paceline_vocabulary::generation::FinishReason;
use serde_json::{Value, json};

use super::answer::Head;
use super::anthropic::decode::Asked as MessagesAsked;
use super::anthropic::encode::MessageWriter;
use super::ollama::encode::{OllamaPath, OllamaWriter};
use super::openai::chat::write::ChatWriter;
use super::openai::params::Asked;
use super::protocol::AnswerWriter;
use super::responses::decode::Asked as ResponsesAsked;
use super::responses::encode::ResponseWriter;
use super::sse::SseEvent;
use crate::inference::bounds::SampleCount;

/// Parts of an answer that all protocols have.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    text: String,
    thought: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    /// Whether the last tool call is cut, for protocols that report it.
    is_cut: Option<bool>,
    end: String,
}

fn head() -> Head {
    Head { request_id: "r".into(), created: 7, model: "m".into() }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The data of a stream's events.
fn streamed<W: AnswerWriter>(mut writer: W, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut written: Vec<SseEvent> =
        events.into_iter().flat_map(|event| writer.event(event)).collect();
    written.extend(writer.end());
    written.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect()
}

fn chat_whole(answer: &Value) -> Seen {
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    let call =
        |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    Seen {
        text: text(&message["content"]),
        thought: text(&message["reasoning_content"]),
        calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        is_cut: None,
        end: text(&choice["finish_reason"]),
    }
}

fn chat_streamed(chunks: &[Value]) -> Seen {
    let mut seen = Seen::default();
    for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        let delta = &choice["delta"];
        seen.text += &text(&delta["content"]);
        seen.thought += &text(&delta["reasoning_content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().expect("a number") as usize;
            if seen.calls.len() == at {
                seen.calls.push(Default::default());
            }
            seen.calls[at].0 += &text(&call["function"]["name"]);
            seen.calls[at].1 += &text(&call["function"]["arguments"]);
        }
        seen.end += &text(&choice["finish_reason"]);
    }
    seen
}

fn response_seen(items: &[Value], status: &Value) -> Seen {
    let mut seen = Seen { end: text(status), ..Default::default() };
    for item in items {
        let content: String = item["content"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|part| text(&part["text"]))
            .collect();
        match item["type"].as_str().expect("a type") {
            "message" => seen.text += &content,
            "reasoning" => seen.thought += &content,
            _ => {
                seen.calls.push((text(&item["name"]), text(&item["arguments"])));
                seen.is_cut = Some(item["status"] == "incomplete");
            }
        }
    }
    seen
}

/// The items as they are done, with the pieces that came before.
fn response_streamed(events: &[Value]) -> Seen {
    let done = |event: &&Value| event["type"] == "response.output_item.done";
    let items: Vec<Value> = events.iter().filter(done).map(|event| event["item"].clone()).collect();
    let pieces = |kind: &str| -> String {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .map(|event| text(&event["delta"]))
            .collect()
    };
    let last = events.last().expect("an end");
    let seen = response_seen(&items, &last["response"]["status"]);
    assert_eq!(pieces("response.output_text.delta"), seen.text);
    let arguments: String = seen.calls.iter().map(|call| call.1.as_str()).collect();
    assert_eq!(pieces("response.function_call_arguments.delta"), arguments);
    assert_eq!(last["response"]["output"], Value::from(items));
    seen
}

fn message_whole(answer: &Value) -> Seen {
    let mut seen = Seen { end: text(&answer["stop_reason"]), ..Default::default() };
    for block in answer["content"].as_array().expect("a list") {
        match block["type"].as_str().expect("a type") {
            "text" => seen.text += &text(&block["text"]),
            "thinking" => seen.thought += &text(&block["thinking"]),
            _ => seen.calls.push((text(&block["name"]), block["input"].to_string())),
        }
    }
    seen
}

fn message_streamed(events: &[Value]) -> Seen {
    let mut seen = Seen::default();
    for event in events {
        let (block, delta) = (&event["content_block"], &event["delta"]);
        if block["type"] == "tool_use" {
            seen.calls.push((text(&block["name"]), String::new()));
        }
        seen.text += &text(&delta["text"]);
        seen.thought += &text(&delta["thinking"]);
        if let (Some(more), Some(call)) = (delta["partial_json"].as_str(), seen.calls.last_mut()) {
            call.1 += more;
        }
        seen.end += &text(&delta["stop_reason"]);
    }
    for (_, arguments) in &mut seen.calls {
        let input = serde_json::from_str::<Value>(arguments).ok();
        *arguments = input.unwrap_or_else(|| json!({ "incomplete": arguments })).to_string();
    }
    seen
}

/// Of the objects of Ollama's API, which are one if the answer is whole.
fn ollama_seen(objects: &[Value]) -> Seen {
    let mut seen = Seen::default();
    for object in objects {
        let message = &object["message"];
        seen.text += &text(&message["content"]);
        seen.thought += &text(&message["thinking"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            seen.calls.push((text(&function["name"]), function["arguments"].to_string()));
        }
        seen.end += &text(&object["done_reason"]);
    }
    seen
}

/// Each protocol's whole answer, which is what its client makes of the stream.
fn seen(pieces: &[AnswerEvent]) -> [Seen; 3] {
    let mut events = Vec::new();
    pieces.iter().cloned().for_each(|event| collect(&mut events, event));
    let chat =
        || ChatWriter::new(head(), SampleCount::default(), Asked { include_usage: true }, None);
    let response = || ResponseWriter::new(head(), ResponsesAsked::default(), None);
    // The end of the context is another reason of this protocol.
    let message = || MessageWriter::new("r", "m", MessagesAsked::default());
    let whole = response().whole(events.clone()).json();
    let items = whole["output"].as_array().cloned().unwrap_or_default();
    let whole = [
        chat_whole(&chat().whole(events.clone()).json()),
        response_seen(&items, &whole["status"]),
        message_whole(&message().whole(events).json()),
    ];
    let streamed = [
        chat_streamed(&streamed(chat(), pieces.to_vec())),
        response_streamed(&streamed(response(), pieces.to_vec())),
        message_streamed(&streamed(message(), pieces.to_vec())),
    ];
    assert_eq!(whole, streamed);
    whole
}

/// The answer of Ollama's API, whole and streamed.
fn seen_by_ollama(pieces: &[AnswerEvent]) -> Seen {
    let mut events = Vec::new();
    pieces.iter().cloned().for_each(|event| collect(&mut events, event));
    let writer = || OllamaWriter::new(head(), OllamaPath::Chat, None);
    let whole = ollama_seen(&[writer().whole(events).json()]);
    assert_eq!(whole, ollama_seen(&streamed(writer(), pieces.to_vec())));
    whole
}

/// The tool calls of the whole sample, as Chat has them.
fn calls_of(model: &Model, ids: &[u32]) -> Vec<(String, String)> {
    let events = model.events(ids, offered(), &[1], &[], FinishReason::Stop);
    let [chat, ..] = seen(&events);
    assert_eq!(chat.end, "tool_calls");
    chat.calls
}

fn check(sample: &SampleAnswer, tokens: bool) {
    let SampleAnswer { calls: format, answer, text } = sample;
    let model = Model::new(*format, tokens);
    let ids = model.ids(answer);
    let all = calls_of(&model, &ids);
    assert_eq!(all.len(), 2, "{answer:?}");
    for end in 1..=ids.len() {
        let what =
            format!("{format:?} tokens={tokens} {:?}", model.language.tokens.decode(&ids[..end]));
        let mut by_size = Vec::new();
        for size in [1, 4] {
            let events = model.events(&ids[..end], offered(), &[size], &[], FinishReason::Length);
            by_size.push(seen(&events));
            let (ollama, [chat, response, _]) =
                (seen_by_ollama(&events), &by_size[by_size.len() - 1]);
            assert_eq!((&ollama.text, &ollama.thought), (&chat.text, &chat.thought), "{what}");
            assert_eq!(ollama.end, "length", "{what}");
            // A cut call is not shown.
            let cut = usize::from(response.is_cut == Some(true));
            assert_eq!(ollama.calls.len(), chat.calls.len() - cut, "{what}");
        }
        assert_eq!(by_size[0], by_size[1], "{what}");
        let [chat, response, message] = by_size.swap_remove(0);
        assert_eq!((chat.end.as_str(), response.end.as_str()), ("length", "incomplete"), "{what}");
        assert_eq!(message.end, "max_tokens", "{what}");
        for seen in [&chat, &response, &message] {
            assert!(text.starts_with(&seen.text), "{what}: {seen:?}");
            assert_eq!(seen.thought.trim_end_matches(['s', 'o']), "", "{what}");
            assert_eq!(seen.calls.len(), chat.calls.len(), "{what}");
        }
        assert_eq!(chat.calls, response.calls, "{what}");
        for (at, (name, arguments)) in chat.calls.iter().enumerate() {
            let (whole_name, whole_arguments) = &all[at];
            assert_eq!(name, whole_name, "{what}");
            // The bytes of an incomplete character.
            let arguments = arguments.trim_end_matches('\u{FFFD}');
            assert!(whole_arguments.starts_with(arguments), "{what}: {arguments:?}");
            if at + 1 < chat.calls.len() {
                assert_eq!(arguments, whole_arguments, "{what}");
            }
        }
        if let Some((_, arguments)) = chat.calls.last().filter(|_| response.is_cut == Some(false)) {
            assert_eq!(*arguments, all[chat.calls.len() - 1].1, "{what}");
        }
    }
}

#[test]
fn a_cut_answer_is_the_same_whole_and_streamed_wherever_the_limit_is() {
    for sample in sample_answers() {
        for tokens in [true, false] {
            check(&sample, tokens);
        }
    }
}

/// A tool call as a client runs it: name and arguments.
type Call = (String, Value);

/// A tool call of a client that parses the arguments; `None` if they are no JSON.
fn parsed(name: &Value, arguments: &str) -> Option<Call> {
    Some((text(name), serde_json::from_str(arguments).ok()?))
}

/// The tool calls that a client of each protocol can run, and the word for the end. The first three
/// are of whole answers, the others of streams.
fn runnable(pieces: &[AnswerEvent]) -> [(Vec<Call>, String); 6] {
    let mut events = Vec::new();
    pieces.iter().cloned().for_each(|event| collect(&mut events, event));
    let chat = || ChatWriter::new(head(), SampleCount::default(), Asked::default(), None);
    let response = || ResponseWriter::new(head(), ResponsesAsked::default(), None);
    let message = || MessageWriter::new("r", "m", MessagesAsked::default());
    let named = |calls: Vec<(String, String)>| -> Vec<Call> {
        calls.iter().filter_map(|(name, text)| parsed(&json!(name), text)).collect()
    };
    let items = |items: &Value| -> Vec<Call> {
        let items = items.as_array().into_iter().flatten();
        let calls = items.filter(|item| item["type"] == "function_call");
        let call = |item: &Value| parsed(&item["name"], item["arguments"].as_str()?);
        calls.map(|item| call(item).expect("whole arguments")).collect()
    };
    let whole_chat = chat_whole(&chat().whole(events.clone()).json());
    assert_eq!(named(whole_chat.calls.clone()).len(), whole_chat.calls.len());
    let whole_response = response().whole(events.clone()).json();
    let whole_message = message().whole(events).json();
    let blocks = whole_message["content"].as_array().into_iter().flatten();
    let used = blocks.filter(|block| block["type"] == "tool_use");
    let used = used.map(|block| (text(&block["name"]), block["input"].clone())).collect();

    let chunks = chat_streamed(&streamed(chat(), pieces.to_vec()));
    let responded = streamed(response(), pieces.to_vec());
    let ended = &responded.last().expect("an end")["response"];
    let done = |kind: &str| -> Vec<&Value> {
        responded.iter().filter(|event| event["type"] == kind).collect()
    };
    let done_items: Vec<Value> =
        done("response.output_item.done").iter().map(|event| event["item"].clone()).collect();
    let is_call = |item: &&Value| item["type"] == "function_call";
    let done_calls = done_items.iter().filter(is_call).count();
    assert_eq!(done("response.function_call_arguments.done").len(), done_calls);
    let output = ended["output"].as_array().cloned().unwrap_or_default();
    assert_eq!(output.len(), done("response.output_item.added").len());
    // The items that never came to their end are in the list as such.
    let whole_items: Vec<Value> =
        output.into_iter().filter(|item| item["status"] != "incomplete").collect();
    assert_eq!(whole_items, done_items);
    let messaged = streamed(message(), pieces.to_vec());
    let ends = |index: &Value| {
        messaged
            .iter()
            .any(|event| event["type"] == "content_block_stop" && event["index"] == *index)
    };
    let mut stopped: Vec<(String, String)> = Vec::new();
    for event in messaged.iter().filter(|event| ends(&event["index"])) {
        if event["content_block"]["type"] == "tool_use" {
            stopped.push((text(&event["content_block"]["name"]), String::new()));
        }
        if let (Some(more), Some(call)) =
            (event["delta"]["partial_json"].as_str(), stopped.last_mut())
        {
            call.1 += more;
        }
    }
    let reason = messaged.iter().find_map(|event| event["delta"]["stop_reason"].as_str());
    [
        (named(whole_chat.calls), whole_chat.end),
        (items(&whole_response["output"]), text(&whole_response["status"])),
        (used, text(&whole_message["stop_reason"])),
        (named(chunks.calls), chunks.end),
        (items(&Value::from(done_items)), text(&ended["status"])),
        (named(stopped), reason.unwrap_or_default().to_owned()),
    ]
}

#[test]
fn a_tool_call_that_the_model_breaks_off_is_run_by_no_client() {
    let mut broken = 0;
    for SampleAnswer { calls: format, answer, text: _ } in sample_answers() {
        for tokens in [true, false] {
            let model = Model::new(format, tokens);
            let ids = model.ids(&answer);
            for end in 1..=ids.len() {
                let what = format!("{format:?} {:?}", model.language.tokens.decode(&ids[..end]));
                let pieces = model.events(&ids[..end], offered(), &[1], &[], FinishReason::Stop);
                let parts = || pieces.iter().flat_map(|event| &event.parts);
                let is_end = |part: &&AnswerPart| **part == AnswerPart::ToolCallEnd;
                let is_start = |part: &&AnswerPart| matches!(part, AnswerPart::ToolCallStart(_));
                let ended = parts().filter(is_end).count();
                broken += parts().filter(is_start).count() - ended;
                let all = runnable(&pieces);
                assert!(all.iter().all(|(calls, _)| *calls == all[0].0), "{what}: {all:?}");
                assert_eq!(all[0].0.len(), ended, "{what}: {all:?}");
                let ollama = seen_by_ollama(&pieces).calls;
                let ollama: Vec<Call> =
                    ollama.iter().filter_map(|(name, text)| parsed(&json!(name), text)).collect();
                assert_eq!(ollama, all[0].0, "{what}");
                let ends = all.map(|(_, end)| end);
                let (chat, message) = match ended {
                    0 => ("stop", "end_turn"),
                    _ => ("tool_calls", "tool_use"),
                };
                let expected = [chat, "completed", message, chat, "completed", message];
                assert_eq!(ends, expected, "{what}");
            }
        }
    }
    assert!(broken > 100, "expected many broken tool calls, found {broken}");
}
