//! Images over HTTP in every form that clients send, and special tokens in answers.

use paceline_tests::images::{data_url, noise, seeing};
use serde_json::{Value, json};

use super::all_is_over;

#[test]
fn every_form_of_an_image_in_a_chat_request_gives_the_same_answer() {
    let stack = seeing("");
    let ask = |part: Value| {
        let content = json!([part, {"type": "text", "text": "What is it?"}]);
        let body = json!({
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 12, "temperature": 0, "skip_special_tokens": true,
        });
        stack.http_json("/v1/chat/completions", &body).expect("answered")
    };
    let text = |part: Value| {
        let answer = ask(part.clone());
        assert_eq!(answer.status(), 200, "{part}: {}", answer.body);
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        body["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    let url = data_url(&noise(32, 32, 1));
    let expected = text(json!({"type": "image_url", "image_url": {"url": url}}));
    for part in [
        json!({"type": "image_url", "image_url": url}),
        json!({"type": "input_image", "image_url": url, "detail": "high"}),
        json!({"type": "input_image", "image_url": {"url": url}}),
        json!({"type": "image", "image": url}),
        json!({"type": "image", "image": {"url": url}}),
        json!({"type": "image", "image_url": {"url": url}}),
        json!({"type": "image", "url": url}),
    ] {
        assert_eq!(text(part.clone()), expected, "{part}");
    }
    let other = data_url(&noise(32, 32, 2));
    assert_ne!(text(json!({"type": "input_image", "image_url": other})), expected);
    for (part, word) in [
        (json!({"type": "image", "image": "https://example.com/a.png"}), "fetches nothing"),
        (json!({"type": "video_url", "video_url": {"url": "data:,x"}}), "no such field"),
        (json!({"type": "video"}), "the types that are served"),
        (json!({"type": "image"}), "messages[0].content[0].image"),
    ] {
        let answer = ask(part.clone());
        assert!(answer.status() == 400 && answer.body.contains(word), "{part}: {}", answer.body);
    }
    all_is_over(&stack);
    stack.stop();
}

#[test]
fn special_tokens_are_shown_if_asked_and_those_that_end_an_answer_never() {
    let stack = seeing("");
    // <|vision_start|> three times, and the model's own end.
    let answered = |path: &str, token: &str, fields: Value| {
        let mut body = json!({
            "temperature": 0, "max_tokens": 3, "logit_bias": {token: 100.0},
        });
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
        let answer = stack.http_json(path, &body).expect("answered");
        assert_eq!(answer.status(), 200, "{}", answer.body);
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        let choice = &body["choices"][0];
        let text = choice.get("text").unwrap_or(&choice["message"]["content"]);
        text.as_str().unwrap_or_default().to_owned()
    };
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, prompt) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": messages})),
    ] {
        let with = |skipped: Value| {
            let mut fields = prompt.clone();
            fields["skip_special_tokens"] = skipped;
            fields
        };
        let shown = answered(path, "259", with(json!(false)));
        assert_eq!(shown, "<|vision_start|>".repeat(3), "{path}");
        assert_eq!(answered(path, "259", with(json!(true))), "", "{path}");
        assert_eq!(answered(path, "259", with(Value::Null)), "", "{path}");
        assert_eq!(answered(path, "258", with(json!(false))), "", "{path}: it ends the answer");
    }
    all_is_over(&stack);
    stack.stop();
}
