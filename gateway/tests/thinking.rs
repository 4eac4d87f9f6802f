//! How much a model thinks, by each protocol: an amount of thinking reaches the chat template in a
//! word that the template takes, thoughts of earlier turns stay or go, and an answer that begins
//! inside a thought is told apart into thought, text and tool calls. The templates are like those
//! of Qwen3.5, 3.6 and 3.8.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::stage::exchange::{Answer, Exchange, reply};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Text of a prompt for an amount of thinking (`qwen3_8.jinja`).
const BRIEF: &str = "Think briefly.";
const LONG: &str = "Think as long as the question needs";
/// How a prompt ends if the model is to think, and if not.
const OPEN: &str = "<think>\n";
const CLOSED: &str = "<think>\n\n</think>\n\n";

/// A question by a protocol, with these fields as well.
fn question(path: &str, more: &Value) -> Value {
    let turns = json!([{"role": "user", "content": "Why?"}]);
    let mut body = match path {
        RESPONSES => json!({"model": "m", "input": turns}),
        _ => json!({"model": "m", "messages": turns, "max_tokens": 64}),
    };
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().cloned().expect("an object"));
    body
}

/// The fields by which a protocol asks for an amount of thinking.
fn effort(path: &str, word: &str) -> Value {
    match path {
        CHAT => json!({"reasoning_effort": word}),
        RESPONSES => json!({"reasoning": {"effort": word}}),
        _ => json!({
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "output_config": {"effort": word},
        }),
    }
}

/// The prompt of a request that is answered.
async fn prompt(exchange: &mut Exchange, path: &str, body: &Value) -> String {
    let answer = Answer { text: "so</think>\n\nYes.", cached: 0 };
    let served = exchange.answered(path, body, &answer).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{body}: {}", served.reply.body);
    exchange.text(&served.prompt)
}

#[tokio::test]
async fn an_amount_of_thinking_becomes_the_templates_nearest_word_in_every_protocol() {
    let mut exchange = Exchange::with_template("qwen3_8.jinja").await;
    for path in [CHAT, RESPONSES, MESSAGES] {
        for (word, expected) in [
            ("minimal", Some(BRIEF)),
            ("low", Some(BRIEF)),
            ("medium", None),
            ("high", Some(LONG)),
            ("xhigh", Some(LONG)),
            ("max", Some(LONG)),
        ] {
            // The protocol does not have the word.
            if (path, word) == (MESSAGES, "minimal") {
                continue;
            }
            let body = question(path, &effort(path, word));
            let text = prompt(&mut exchange, path, &body).await;
            let found = [BRIEF, LONG].into_iter().find(|words| text.contains(words));
            assert_eq!(found, expected, "{path} {word}: {text}");
            assert!(text.ends_with(OPEN) && !text.contains("</think>"), "{path} {word}: {text}");
        }
        // The template's own amount.
        let text = prompt(&mut exchange, path, &question(path, &json!({}))).await;
        assert!(text.contains(LONG) && text.ends_with(OPEN), "{path}: {text}");
    }
}

#[tokio::test]
async fn thinking_is_switched_off_in_every_protocol() {
    let off = [
        (CHAT, json!({"reasoning_effort": "none"})),
        (CHAT, json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (RESPONSES, json!({"reasoning": {"effort": "none"}})),
        (MESSAGES, json!({"thinking": {"type": "disabled"}})),
        // An amount does not switch it on again.
        (MESSAGES, json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}})),
    ];
    for template in ["qwen3_6.jinja", "qwen3_8.jinja", "qwen3_5.jinja"] {
        let mut exchange = Exchange::with_template(template).await;
        for (path, fields) in &off {
            let text = prompt(&mut exchange, path, &question(path, fields)).await;
            assert!(text.ends_with(CLOSED), "{template} {fields}: {text}");
            assert!(!text.contains(LONG), "{template} {fields}: {text}");
        }
    }
}

/// A form of the answer's text, by each protocol.
fn form(path: &str) -> Value {
    let schema = json!({"type": "integer"});
    match path {
        CHAT => json!({"response_format":
            {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
        RESPONSES => json!({"text":
            {"format": {"type": "json_schema", "name": "n", "schema": schema}}}),
        _ => json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    }
}

#[tokio::test]
async fn a_form_has_a_thought_only_if_thinking_is_on() {
    let off = [
        (CHAT, json!({"reasoning_effort": "none"})),
        (CHAT, json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (CHAT, json!({"paceline": {"template_arguments": {"thinking": false}}})),
        (RESPONSES, json!({"reasoning": {"effort": "none"}})),
        (MESSAGES, json!({"thinking": {"type": "disabled"}})),
    ];
    // The first template closes a thought if thinking is off, the second one writes nothing, and the
    // third one closes a thought unless it is asked to think.
    for (template, word, by_default) in [
        ("qwen3.jinja", "thought", true),
        ("../answers/harmony.jinja", "analysis", true),
        ("qwen3_5.jinja", "thought", false),
    ] {
        let mut exchange = Exchange::with_template(template).await;
        for path in [CHAT, RESPONSES, MESSAGES] {
            let mut body = question(path, &form(path));
            let answer = Answer { text: "1", cached: 0 };
            let served = exchange.answered(path, &body, &answer).await;
            assert_eq!(served.frame.contains(word), by_default, "{template}: {}", served.frame);
            for (_, fields) in off.iter().filter(|(other, _)| *other == path) {
                let fields = fields.as_object().cloned().expect("an object");
                body.as_object_mut().expect("an object").extend(fields);
                let frame = exchange.answered(path, &body, &answer).await.frame;
                assert!(frame.contains("@part_0") && !frame.contains(word), "{template}: {frame}");
                body = question(path, &form(path));
            }
        }
    }
}

#[tokio::test]
async fn a_template_without_amounts_is_asked_to_think() {
    // This one thinks only if it is asked to.
    let mut exchange = Exchange::with_template("qwen3_5.jinja").await;
    for path in [CHAT, RESPONSES, MESSAGES] {
        let text = prompt(&mut exchange, path, &question(path, &json!({}))).await;
        assert!(text.ends_with(CLOSED), "{path}: {text}");
        for word in ["low", "high"] {
            let body = question(path, &effort(path, word));
            let text = prompt(&mut exchange, path, &body).await;
            assert!(text.ends_with(OPEN) && !text.contains("</think>"), "{path} {word}: {text}");
        }
    }
}

#[tokio::test]
async fn a_word_that_is_sent_by_name_is_the_templates_own_matter() {
    let mut exchange = Exchange::with_template("qwen3_8.jinja").await;
    let named = |word: &str| json!({"chat_template_kwargs": {"reasoning_effort": word}});
    let text = prompt(&mut exchange, CHAT, &question(CHAT, &named("low"))).await;
    assert!(text.contains(BRIEF), "{text}");
    // No protocol has this word either.
    let deep = json!({"reasoning_effort": "deep"});
    for fields in [named("high"), deep] {
        let refused = reply(exchange.router.clone(), CHAT, &question(CHAT, &fields)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{fields}: {}", refused.body);
        let error = &refused.json()["error"];
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains("low, medium or xhigh"))
        );
    }
    for (path, fields, field) in [
        (RESPONSES, json!({"reasoning": {"effort": "deep"}}), "reasoning.effort"),
        (MESSAGES, json!({"output_config": {"effort": "minimal"}}), "output_config.effort"),
    ] {
        let refused = reply(exchange.router.clone(), path, &question(path, &fields)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
        assert!(refused.body.contains(field), "{}", refused.body);
    }
}

#[tokio::test]
async fn thoughts_of_earlier_turns_stay_or_go_as_the_template_and_the_request_say() {
    let conversation = |keep: Option<bool>| {
        let mut body = json!({"model": "m", "max_tokens": 64, "messages": [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4.", "reasoning_content": "two and two"},
            {"role": "user", "content": "Why?"},
        ]});
        if let Some(keep) = keep {
            body["chat_template_kwargs"] = json!({"preserve_thinking": keep});
        }
        body
    };
    for (template, kept_by_default) in [("qwen3_6.jinja", false), ("qwen3_8.jinja", true)] {
        let mut exchange = Exchange::with_template(template).await;
        for keep in [None, Some(true), Some(false)] {
            let text = prompt(&mut exchange, CHAT, &conversation(keep)).await;
            let expected = keep.unwrap_or(kept_by_default);
            assert_eq!(text.contains("two and two"), expected, "{template} {keep:?}: {text}");
            assert!(text.contains("4."), "{text}");
        }
    }
}

#[tokio::test]
async fn an_answer_inside_a_thought_is_told_apart_into_thought_text_and_tool_calls() {
    let mut exchange = Exchange::with_template("qwen3_8.jinja").await;
    let text = "files first</think>\n\nLet me see.\n\n<tool_call>\n<function=read_file>\n\
        <parameter=path>\na/b.rs\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n\
        </function>\n</tool_call>";
    let schema = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "lines": {"type": "array"},
    }});
    let function = json!({"name": "read_file", "description": "Reads.", "parameters": schema});
    let arguments = json!({"path": "a/b.rs", "lines": [1, 2]});
    let parsed = |value: &Value| -> Value {
        serde_json::from_str(value.as_str().expect("text")).expect("JSON")
    };
    let answer = Answer { text, cached: 0 };

    let tools = json!({"tools": [{"type": "function", "function": function}]});
    let served = exchange.answered(CHAT, &question(CHAT, &tools), &answer).await;
    let message = &served.reply.json()["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "files first");
    assert_eq!(message["content"], "Let me see.");
    let call = &message["tool_calls"][0]["function"];
    assert_eq!(
        (&call["name"], parsed(&call["arguments"])),
        (&json!("read_file"), arguments.clone())
    );

    let mut flat = function.clone();
    flat["type"] = json!("function");
    let served = exchange
        .answered(RESPONSES, &question(RESPONSES, &json!({"tools": [flat]})), &answer)
        .await;
    let output = served.reply.json()["output"].clone();
    let item = |kind: &str| {
        let items = output.as_array().expect("a list").iter();
        items.clone().find(|item| item["type"] == kind).cloned().expect("an item")
    };
    assert!(item("reasoning").to_string().contains("files first"), "{output}");
    assert_eq!(item("message")["content"][0]["text"], "Let me see.");
    assert_eq!(parsed(&item("function_call")["arguments"]), arguments);

    let tool = json!({"name": "read_file", "description": "Reads.", "input_schema": schema});
    let body = question(MESSAGES, &json!({"tools": [tool]}));
    let served = exchange.answered(MESSAGES, &body, &answer).await;
    let content = served.reply.json()["content"].clone();
    assert_eq!(
        (&content[0]["type"], &content[0]["thinking"]),
        (&json!("thinking"), &json!("files first"))
    );
    assert_eq!(content[1]["text"], "Let me see.");
    assert_eq!((&content[2]["type"], &content[2]["input"]), (&json!("tool_use"), &arguments));
}
