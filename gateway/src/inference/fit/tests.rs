//! One line for each broken request: the reason and the field that it gets.

use paceline_process::config::{Auto, LimitsConfig};
use paceline_protocols::inference::input::{
    ContentPartInput, ConversationInput, MessageInput, PromptInput, RequestInput,
};
use paceline_protocols::inference::request;
use paceline_text::images::ReservedTokens;
use paceline_text::prompt::Source;
use paceline_vocabulary::RouteWish;
use paceline_vocabulary::sampling::{LogitBias, SamplingRule, SamplingWish};

use super::*;

fn model() -> ModelInfo {
    ModelInfo {
        name: "demo".into(),
        path: "/models/demo".into(),
        context_length: 100,
        vocab_size: 4096,
        ..Default::default()
    }
}

fn ids(ids: Vec<u32>) -> RequestInput {
    RequestInput { prompt: PromptInput::Ids(ids), params: GenerationParams::default() }
}

fn with(params: GenerationParams) -> RequestInput {
    RequestInput { params, ..ids(vec![5]) }
}

fn sampled(sampling: SamplingWish) -> RequestInput {
    with(GenerationParams { sampling, ..Default::default() })
}

fn limited(prompt: usize, max_tokens: u32) -> RequestInput {
    let params = GenerationParams { max_tokens: Some(max_tokens), ..Default::default() };
    RequestInput { params, ..ids(vec![5; prompt]) }
}

fn chat(turns: Vec<(&str, Vec<ContentPartInput>)>) -> RequestInput {
    let messages = turns.into_iter().map(|(role, content)| MessageInput {
        role: role.into(),
        content,
        ..Default::default()
    });
    let messages = messages.collect();
    let conversation = ConversationInput { messages, ..Default::default() };
    RequestInput { prompt: PromptInput::Conversation(conversation), ..ids(vec![]) }
}

fn text(text: &str) -> ContentPartInput {
    ContentPartInput::Text(text.into())
}

fn labels(traffic_class: &str) -> RequestLabels {
    RequestLabels {
        request_id: "r".into(),
        deadline_ns: 9,
        traffic_class: traffic_class.into(),
        cache_scope: "s".into(),
    }
}

/// Runs the checks between decoding a message and submitting the request. Every text stands for
/// three tokens.
fn submit(input: RequestInput, limits: &LimitsConfig) -> Result<Generation, InferenceError> {
    let request = request::check(input, ReservedTokens::new(None))?;
    check_model(&request.params.model, &model())?;
    let field = request.prompt_field();
    let prompt_ids = match request.source {
        Source::Ids(ids) | Source::IdsWithImages { ids, .. } => ids,
        Source::Text(_) | Source::Chat(_) => vec![5, 6, 7],
    };
    let language = std::sync::Arc::new(paceline_text::samples::language());
    let context = ModelContext { model: &model(), language: &language, limits };
    context.fit(&request.params, field, prompt_ids, labels("code"))
}

#[track_caller]
fn refused(input: RequestInput, kind: Reason, field: &str, words: &[&str]) {
    let limits = LimitsConfig {
        max_prompt_tokens: Auto::Is(80),
        max_new_tokens: Auto::Is(60),
        ..Default::default()
    };
    let error = submit(input, &limits).expect_err("a broken request");
    assert_eq!((error.kind, error.field.as_deref()), (kind, Some(field)), "{error:?}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} in {error}");
    }
}

#[test]
fn broken_prompts_are_refused_by_field() {
    let check = |request, field, words: &[&str]| {
        refused(request, Reason::InvalidArgument, field, words);
    };
    let empty = RequestInput { prompt: PromptInput::Text(String::new()), ..ids(vec![]) };
    check(empty, "text", &["expected a prompt", "empty"]);
    check(ids(vec![]), "token_ids.ids", &["at least one", "none"]);
    check(ids(vec![5, 4096]), "token_ids.ids[1]", &["below 4096", "4096"]);
    check(ids(vec![u32::MAX]), "token_ids.ids[0]", &["4294967295"]);
    let too_long = |request, field, words: &[&str]| {
        refused(request, Reason::PromptTooLong, field, words);
    };
    too_long(ids(vec![5; 100]), "token_ids.ids", &["fewer than 100", "found 100"]);
    too_long(
        ids(vec![5; 81]),
        "token_ids.ids",
        &["at most 80", "limits.max_prompt_tokens", "found 81"],
    );
    check(limited(60, 41), "limits.max_tokens", &["at most 40", "60 tokens", "100", "found 41"]);
    let unknown = with(GenerationParams { model: "gpt".into(), ..Default::default() });
    refused(unknown, Reason::UnknownModel, "model", &["\"demo\"", "\"gpt\""]);
}

#[test]
fn broken_settings_are_refused_by_field() {
    let check = |request, field, words: &[&str]| {
        refused(request, Reason::InvalidArgument, field, words);
    };
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 100.5] {
        let expected = ["a number from 0 to 100", &value.to_string()];
        check(
            sampled(SamplingWish { temperature: Some(value), ..Default::default() }),
            "sampling.temperature",
            &expected,
        );
    }
    for value in [f32::NAN, 0.0, -0.5, 1.01] {
        check(
            sampled(SamplingWish { top_p: Some(value), ..Default::default() }),
            "sampling.top_p",
            &["above 0, at most 1"],
        );
    }
    for value in [f32::NAN, -0.01, 1.5] {
        check(
            sampled(SamplingWish { min_p: Some(value), ..Default::default() }),
            "sampling.min_p",
            &["from 0 to 1"],
        );
    }
    for value in [f32::NAN, -0.01, 1.5] {
        check(
            sampled(SamplingWish { top_a: Some(value), ..Default::default() }),
            "sampling.top_a",
            &["from 0 to 1"],
        );
    }
    for value in [f32::NAN, 0.0, 1e-39, 0.009, -1.0, 10.5, f32::INFINITY] {
        let penalized =
            sampled(SamplingWish { repetition_penalty: Some(value), ..Default::default() });
        check(
            penalized,
            "sampling.repetition_penalty",
            &["from 0.01 to 10", &format!("found {value}")],
        );
    }
    check(limited(1, 0), "limits.max_tokens", &["at least 1", "found 0"]);
    check(limited(1, 61), "limits.max_tokens", &["at most 60", "limits.max_new_tokens", "61"]);
    let stops = GenerationParams { stop_token_ids: vec![2, 4096], ..Default::default() };
    check(with(stops), "limits.stop_token_ids[1]", &["below 4096"]);
    let least = GenerationParams { min_tokens: 61, ..Default::default() };
    check(with(least), "limits.min_tokens", &["at most 60", "61"]);
    let logprobs = GenerationParams { logprobs: Some(21), ..Default::default() };
    check(with(logprobs), "logprobs", &["0 to 20", "21"]);
    let logit_bias = vec![LogitBias { token_id: 4096, bias: 1.0 }];
    let biased = GenerationParams { logit_bias, ..Default::default() };
    check(with(biased), "sampling.logit_bias[0].token_id", &["below 4096"]);
}

#[test]
fn broken_conversations_are_refused_by_field() {
    let check = |request, field, words: &[&str]| {
        refused(request, Reason::InvalidArgument, field, words);
    };
    check(chat(vec![]), "messages", &["at least one message"]);
    check(
        chat(vec![("user", vec![text("a")]), ("ToolInput", vec![text("b")])]),
        "messages[1].role",
        &["\"ToolInput\"", "assistant"],
    );
    check(chat(vec![("", vec![text("a")])]), "messages[0].role", &["\"\""]);
    check(chat(vec![("user", vec![])]), "messages[0].content", &["at least one part"]);
}

#[test]
fn images_are_taken_from_any_turn_with_their_fields() {
    let url = || ContentPartInput::ImageUrl { url: "data:,".into(), detail: Default::default() };
    let image = || ContentPartInput::Image(vec![1, 2, 3].into());
    let input = chat(vec![("user", vec![text("a"), image()]), ("system", vec![url(), text("b")])]);
    let mut source = request::check(input, ReservedTokens::new(None)).expect("well formed").source;
    let found = source.take_images();
    let fields: Vec<&str> = found.iter().map(|image| image.field.as_str()).collect();
    assert_eq!(
        fields,
        ["messages[1].content[0]", "messages[0].content[1]"],
        "as templates show them: the system's first"
    );
    assert!(source.take_images().is_empty());
}

#[test]
fn images_must_fit_before_they_are_decoded() {
    let (language, model) = (std::sync::Arc::new(paceline_text::samples::language()), model());
    let check = |tokens, limits: &LimitsConfig| {
        ModelContext { model: &model, language: &language, limits }.check_images(tokens)
    };
    let (all, few) = (
        LimitsConfig::default(),
        LimitsConfig { max_prompt_tokens: Auto::Is(80), ..Default::default() },
    );
    assert!(check(99, &all).is_ok() && check(80, &few).is_ok());
    for (tokens, limits, most) in
        [(100, &all, "at most 99"), (81, &few, "at most 80"), (u64::MAX, &all, "at most 99")]
    {
        let error = check(tokens, limits).expect_err("no room");
        assert_eq!(error.kind, Reason::PromptTooLong);
        assert!(
            error.message.contains(most) && error.message.contains(&tokens.to_string()),
            "{error:?}"
        );
    }
}

#[test]
fn a_text_refused_by_its_bytes_has_the_limit_and_the_number_found() {
    let (language, model) = (std::sync::Arc::new(paceline_text::samples::language()), model());
    let (all, few) = (
        LimitsConfig::default(),
        LimitsConfig { max_prompt_tokens: Auto::Is(80), ..Default::default() },
    );
    for (limits, most, expected) in
        [(&all, 99, "fewer than 100 tokens"), (&few, 80, "at most 80 tokens")]
    {
        let context = ModelContext { model: &model, language: &language, limits };
        assert_eq!(context.max_prompt_tokens(), most);
        let error = context.too_long("messages", 1_234);
        assert_eq!(error.kind, Reason::PromptTooLong);
        let message = &error.message;
        assert!(message.starts_with("messages: ") && message.contains(expected), "{message}");
        assert!(message.contains("found at least 1234"), "{message}");
        assert_eq!(error.facts["prompt_tokens_at_least"], "1234");
        assert_eq!(error.facts["context_length"], "100");
    }
}

#[test]
fn a_request_without_settings_gets_the_models_own() {
    let limits = LimitsConfig::default();
    let plain = submit(ids(vec![5, 6]), &limits).expect("fits");
    assert_eq!(
        (plain.prompt_ids.as_slice(), plain.max_tokens, plain.stop_token_ids.as_slice()),
        (&[5, 6][..], 98, &[2][..])
    );
    assert_eq!(
        (plain.deadline_ns, plain.tokenizer_vocab, plain.traffic_class.as_str()),
        (9, 4096, "code")
    );
    assert_eq!((plain.sampling, plain.route), (SamplingRule::GREEDY, None));
    assert_eq!(plain.ignored_token_ids, [0; 0]);
    let again = submit(ids(vec![5, 6]), &limits).expect("fits");
    assert_ne!(plain.seed, again.seed, "seeds are drawn");
    let short = LimitsConfig { max_new_tokens: Auto::Is(10), ..Default::default() };
    assert_eq!(submit(ids(vec![5]), &short).expect("fits").max_tokens, 10);
}

#[test]
fn max_tokens_without_room_are_lowered_if_the_request_allows_it() {
    let limits = LimitsConfig { max_new_tokens: Auto::Is(60), ..Default::default() };
    let lowered = |prompt, max_tokens| {
        let mut input = limited(prompt, max_tokens);
        input.params.lower_max_tokens = true;
        submit(input, &limits).expect("fits").max_tokens
    };
    assert_eq!([lowered(70, 32_000), lowered(1, 32_000), lowered(1, 59)], [30, 60, 59]);
}

#[test]
fn figures_so_far_are_asked_for_by_stop_strings_and_by_usage() {
    let asked = |report_usage, stop: &[&str]| {
        let stop = stop.iter().map(ToString::to_string).collect();
        let params = GenerationParams { report_usage, stop, ..Default::default() };
        submit(with(params), &LimitsConfig::default()).expect("fits").report_so_far
    };
    assert_eq!([asked(false, &[]), asked(true, &[]), asked(false, &["x"])], [false, true, true]);
}

#[test]
fn a_requests_settings_are_submitted() {
    let logit_bias = vec![LogitBias { token_id: 4095, bias: 1.5 }];
    let params = GenerationParams {
        model: "/models/demo".into(),
        sampling: SamplingWish {
            temperature: Some(0.5),
            top_k: Some(9),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(-0.5),
            ..Default::default()
        },
        seed: Some(7),
        logit_bias: logit_bias.clone(),
        max_tokens: Some(3),
        ignore_eos: true,
        min_tokens: 2,
        stop_token_ids: vec![9],
        route: Some(RouteWish::Plain),
        report_margins: true,
        logprobs: Some(3),
        ..Default::default()
    };
    let turns = vec![("system", vec![text("s")]), ("user", vec![text("")])];
    let input = RequestInput { params, ..chat(turns) };
    let submitted = submit(input, &LimitsConfig::default()).expect("fits");
    let rule = SamplingRule {
        temperature: 0.5,
        top_k: 9,
        presence_penalty: 0.5,
        frequency_penalty: -0.5,
        ..SamplingRule::GREEDY
    };
    assert_eq!((submitted.sampling, submitted.logit_bias), (rule, logit_bias));
    assert_eq!((submitted.seed, submitted.max_tokens), (7, 3));
    assert_eq!((submitted.stop_token_ids, submitted.ignored_token_ids), (vec![9], vec![2]));
    assert_eq!((submitted.min_tokens, submitted.logprobs), (2, Some(3)));
    assert_eq!((submitted.route, submitted.report_margins), (Some(RouteWish::Plain), true));
}

#[test]
fn images_have_a_traffic_class_unless_the_key_has_one() {
    let class = |class: &str| labels(class).with_images().traffic_class;
    assert_eq!((class("default").as_str(), class("code").as_str()), ("image", "code"));
}
