//! Requests and answers of texts.

use std::sync::Arc;

use paceline_text::samples::infill;
use paceline_text::stream::{AnswerEnd, AnswerEvent, AnswerPart, Usage};
use paceline_vocabulary::generation::{FinishReason, TokenLogprobs, TopLogprob};
use serde_json::{Value, json};

use super::decode::completion;
use super::request::CompletionRequest;
use super::write::{Answers, CompletionWriter};
use crate::answer::Head;
use crate::inference::bounds::SampleCount;
use crate::inference::error::InferenceError;
use crate::inference::input::PromptInput;
use crate::openai::params::Asked;
use crate::protocol::{AnswerWriter as _, Decoded, TokenTexts};

fn decoded(fields: Value) -> Result<Decoded<Asked>, InferenceError> {
    decoded_by(&["x"], fields)
}

/// A request for a model with these added tokens, from id 0 on.
fn decoded_by(added: &[&str], fields: Value) -> Result<Decoded<Asked>, InferenceError> {
    let body = serde_json::from_value::<CompletionRequest>(fields).expect("the message's form");
    completion(body, || infill(added))
}

#[track_caller]
fn refused(fields: Value, field: &str) {
    let error = decoded(fields).expect_err("not served");
    assert_eq!(error.field.as_deref(), Some(field), "{error}");
}

#[test]
fn prompts_are_taken_in_all_their_forms() {
    let prompts = |prompt: Value| -> Vec<PromptInput> {
        let Decoded { input, more, .. } = decoded(json!({ "prompt": prompt })).expect("served");
        [vec![input], more].concat().into_iter().map(|input| input.prompt).collect()
    };
    let (text, ids) = (|text: &str| PromptInput::Text(text.into()), PromptInput::Ids);
    assert_eq!(prompts(json!("a")), [text("a")]);
    assert_eq!(prompts(json!(["a"])), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
    assert_eq!(prompts(json!([5, 6])), [ids(vec![5, 6])]);
    assert_eq!(prompts(json!([[5, 6], [7]])), [ids(vec![5, 6]), ids(vec![7])]);
    // The middle refuses it by name.
    assert_eq!(prompts(json!([])), [ids(vec![])]);
    refused(json!({"prompt": vec!["a"; 129]}), "prompt");
}

#[test]
fn fields_that_are_not_served_are_accepted_at_their_defaults_alone() {
    let defaults = json!({"prompt": "a", "echo": false, "suffix": null, "best_of": 1, "user": "u"});
    decoded(defaults).expect("served");
    decoded(json!({"prompt": "a", "echo": null, "best_of": null})).expect("served");
    refused(json!({"prompt": "a", "echo": true}), "echo");
    refused(json!({"prompt": "a", "suffix": "b"}), "suffix");
    for other in [0, 2] {
        let body = json!({"prompt": "a", "best_of": other});
        assert!(serde_json::from_value::<CompletionRequest>(body).is_err());
    }
    refused(json!({"prompt": "a", "messages": []}), "messages");
    let variables = json!({"prompt": "a", "paceline": {"template_arguments": {}}});
    refused(variables, "paceline.template_arguments");
}

#[test]
fn fields_of_other_services_are_served_or_change_nothing() {
    let with = |fields: Value| {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
        body
    };
    let plain = decoded(with(json!({}))).expect("served");
    for fields in [
        json!({"cache_prompt": true}),
        json!({"cache_prompt": false}),
        json!({"num_ctx": 8192}),
        json!({"skip_special_tokens": true}),
        json!({"repeat_penalty": null, "cache_prompt": null, "num_ctx": null, "unknown": null}),
    ] {
        assert_eq!(decoded(with(fields.clone())), Ok(plain.clone()), "{fields}");
    }
    let penalty = |fields| {
        let input = decoded(with(fields)).expect("served").input;
        input.params.sampling.repetition_penalty
    };
    assert_eq!(penalty(json!({"repeat_penalty": 1.5})), Some(1.5));
    assert_eq!(penalty(json!({"repeat_penalty": 1.5, "repetition_penalty": 1.5})), Some(1.5));
    refused(with(json!({"repeat_penalty": 1.5, "repetition_penalty": 1.25})), "repeat_penalty");
    let shown = |skipped: Value| {
        let fields = json!({"skip_special_tokens": skipped});
        decoded(with(fields)).expect("served").input.params.show_special
    };
    assert_eq!([json!(true), json!(null), json!(false)].map(shown), [false, false, true]);
}

#[test]
fn figures_of_each_chunk_are_refused_and_may_be_declined() {
    let with = |options: Value| json!({"prompt": "a", "stream": true, "stream_options": options});
    let served = decoded(with(json!({"include_usage": true, "continuous_usage_stats": false})));
    assert!(served.expect("served").writer.include_usage);
    let field = "stream_options.continuous_usage_stats";
    refused(with(json!({"include_usage": true, "continuous_usage_stats": true})), field);
}

#[test]
fn a_suffix_is_served_by_a_model_with_markers_for_the_middle() {
    let markers = ["x", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let with = |prompt: Value| json!({"prompt": prompt, "suffix": "b", "stop_token_ids": [9]});
    for prompt in [json!("a"), json!(["a"])] {
        let input = decoded_by(&markers, with(prompt)).expect("served").input;
        let text = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>";
        assert_eq!(input.prompt, PromptInput::Text(text.into()));
        assert_eq!(input.params.stop_token_ids, [9, 1, 2, 3]);
    }
    for other in [json!([5]), json!([[5]]), json!(["a", "c"])] {
        let error = decoded_by(&markers, with(other)).expect_err("not one text");
        assert_eq!(error.field.as_deref(), Some("prompt"), "{error}");
    }
    let error = decoded(with(json!("a"))).expect_err("no markers");
    assert_eq!(error.field.as_deref(), Some("suffix"));
    assert!(error.message.contains("found \"b\""), "{error}");
    for none in [json!(""), json!(null)] {
        let input = decoded_by(&markers, json!({"prompt": "a", "suffix": none})).expect("served");
        assert_eq!(input.input.prompt, PromptInput::Text("a".into()));
    }
}

#[test]
fn an_answer_has_sixteen_tokens_unless_the_request_says_otherwise() {
    let most = |fields| decoded(fields).expect("served").input.params.max_tokens;
    assert_eq!(most(json!({"prompt": "a"})), Some(16));
    assert_eq!(most(json!({"prompt": "a", "max_tokens": 3})), Some(3));
    assert_eq!(most(json!({"prompt": "a", "min_tokens": 30})), Some(30));
    assert_eq!(most(json!({"prompt": "a", "max_tokens": -1})), None);
}

fn writer(samples: u32, include_usage: bool, logprobs: bool) -> CompletionWriter {
    let head = Head { request_id: "r1".into(), created: 7, model: "m".into() };
    let texts = logprobs.then(|| TokenTexts::new(Arc::new(paceline_text::samples::language())));
    let all = SampleCount::checked(samples).expect("few");
    let answers = Answers { of_prompt: all, all };
    CompletionWriter::new(head, answers, Asked { include_usage }, texts)
}

fn text(sample_index: u32, text: &str) -> AnswerEvent {
    let parts = vec![AnswerPart::Text(text.into())];
    AnswerEvent { sample_index, parts, ..Default::default() }
}

fn end(sample_index: u32) -> AnswerEvent {
    let usage =
        Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 3, ..Default::default() };
    let reason = Some(FinishReason::Length);
    let last = AnswerEnd { finish_reason: reason, usage, ..Default::default() };
    AnswerEvent { last: Some(last), sample_index, ..Default::default() }
}

fn streamed(mut writer: CompletionWriter, events: Vec<AnswerEvent>) -> Vec<Value> {
    let mut chunks: Vec<_> = events.into_iter().filter_map(|event| writer.chunk(event)).collect();
    chunks.extend(writer.last_chunk());
    chunks.iter().map(|chunk| serde_json::to_value(chunk).expect("JSON")).collect()
}

#[test]
fn text_comes_in_chunks_and_whole() {
    let events = vec![text(0, "a"), AnswerEvent::default(), text(0, "b"), end(0)];
    let chunks = streamed(writer(1, true, false), events.clone());
    let texts: Vec<_> =
        chunks.iter().filter_map(|one| one["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, ["a", "b", ""]);
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[3]["usage"]["total_tokens"], 7);
    assert_eq!((&chunks[0]["usage"], &chunks[0]["id"]), (&Value::Null, &json!("cmpl-r1")));

    let answer = writer(1, false, false).whole(events).json();
    let choice = json!({"index": 0, "text": "ab", "logprobs": null, "finish_reason": "length"});
    assert_eq!(answer["choices"], json!([choice]));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

#[test]
fn several_answers_keep_their_log_probabilities_apart() {
    let with = |sample, id: u32, logprob| AnswerEvent {
        token_ids: vec![id],
        logprobs: vec![TokenLogprobs { logprob, top: vec![TopLogprob { token_id: id, logprob }] }],
        ..text(sample, "x")
    };
    let events = vec![with(0, 300, -1.0), with(1, 301, -2.0), with(0, 302, -3.0), end(0), end(1)];
    let answer = writer(2, false, true).whole(events).json();
    let of = |at: usize| &answer["choices"][at]["logprobs"];
    assert_eq!(of(0)["token_logprobs"], json!([-1.0, -3.0]));
    assert_eq!(of(1)["token_logprobs"], json!([-2.0]));
    assert_eq!(of(1)["text_offset"], json!([0]));
    let token = of(0)["tokens"][1].as_str().expect("a text");
    assert_eq!(of(0)["top_logprobs"][1][token], -3.0);
}
