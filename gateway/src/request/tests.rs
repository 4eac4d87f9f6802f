//! One line per broken request: what it is, and the code, reason and field it gets.

use paceline_process::config::{Auto, LimitsConfig};
use paceline_proto::internal::v1::SamplingRule;
use paceline_proto::status::ReasonStatus as _;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use tonic::Code;
use tonic_types::StatusExt;

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

fn generate(prompt: Option<Prompt>) -> v1::GenerateRequest {
    v1::GenerateRequest { prompt, ..Default::default() }
}

fn ids(ids: Vec<u32>) -> v1::GenerateRequest {
    generate(Some(Prompt::TokenIds(v1::TokenIds { ids })))
}

fn sampled(sampling: v1::Sampling) -> v1::GenerateRequest {
    v1::GenerateRequest { sampling: Some(sampling), ..ids(vec![5]) }
}

fn limited(prompt: usize, max_tokens: u32) -> v1::GenerateRequest {
    let limits =
        v1::Limits { max_tokens: Some(max_tokens), ignore_eos: false, ..Default::default() };
    v1::GenerateRequest { limits: Some(limits), ..ids(vec![5; prompt]) }
}

fn chat(turns: Vec<(&str, Vec<Option<Part>>)>) -> v1::ChatRequest {
    let content =
        |parts: Vec<Option<Part>>| parts.into_iter().map(|part| v1::ContentPart { part }).collect();
    let messages = turns
        .into_iter()
        .map(|(role, parts)| v1::Message {
            role: role.into(),
            content: content(parts),
            ..Default::default()
        })
        .collect();
    v1::ChatRequest { messages, ..Default::default() }
}

fn text(text: &str) -> Option<Part> {
    Some(Part::Text(text.into()))
}

fn image() -> Option<Part> {
    Some(Part::Image(v1::Image { data: vec![1, 2, 3].into() }))
}

/// What the gateway does between reading a message and submitting it, with `text` standing for
/// three tokens.
fn submit(asked: Result<Asked, Status>, limits: &LimitsConfig) -> Result<Generation, Status> {
    let asked = asked?;
    check_model(&asked.wishes.model, &model())?;
    let field = asked.prompt_field();
    let prompt_ids = match asked.source {
        Source::Ids(ids) => ids,
        _ => vec![5, 6, 7],
    };
    let language = crate::demo::language();
    let who = Identity {
        request_id: "r".into(),
        deadline_ns: 9,
        traffic_class: "code".into(),
        cache_scope: "s".into(),
    };
    fit(
        &asked.wishes,
        field,
        prompt_ids,
        Setting { model: &model(), language: &language, limits },
        who,
    )
}

#[track_caller]
fn refused(asked: Result<Asked, Status>, code: Code, reason: Reason, field: &str, words: &[&str]) {
    let limits = LimitsConfig {
        max_prompt_tokens: Auto::Is(80),
        max_new_tokens: Auto::Is(60),
        ..Default::default()
    };
    let status = submit(asked, &limits).expect_err("a broken request");
    assert_eq!((status.code(), Reason::of(&status)), (code, Some(reason)), "{status:?}");
    let named = match code {
        Code::InvalidArgument => {
            status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone())
        }
        Code::FailedPrecondition => {
            status.get_details_precondition_failure().map(|bad| bad.violations[0].subject.clone())
        }
        _ => status.get_details_resource_info().map(|info| info.resource_name),
    };
    assert_eq!(named.as_deref(), Some(field));
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {}", status.message());
    }
}

#[test]
fn broken_prompts() {
    let check = |request, field, words: &[&str]| {
        refused(
            Asked::generate(request),
            Code::InvalidArgument,
            Reason::InvalidArgument,
            field,
            words,
        );
    };
    check(generate(None), "prompt", &["neither"]);
    check(generate(Some(Prompt::Text(String::new()))), "text", &["expected a prompt", "empty"]);
    check(ids(vec![]), "token_ids.ids", &["at least one", "none"]);
    check(ids(vec![5, 4096]), "token_ids.ids[1]", &["below 4096", "4096"]);
    check(ids(vec![u32::MAX]), "token_ids.ids[0]", &["4294967295"]);
    let too_long = |request, field, words: &[&str]| {
        refused(
            Asked::generate(request),
            Code::InvalidArgument,
            Reason::PromptTooLong,
            field,
            words,
        );
    };
    too_long(ids(vec![5; 100]), "token_ids.ids", &["fewer than 100", "found 100"]);
    too_long(
        ids(vec![5; 81]),
        "token_ids.ids",
        &["at most 80", "limits.max_prompt_tokens", "found 81"],
    );
    check(limited(60, 41), "limits.max_tokens", &["at most 40", "60 tokens", "100", "found 41"]);
    let unknown = v1::GenerateRequest { model: "gpt".into(), ..ids(vec![5]) };
    refused(
        Asked::generate(unknown),
        Code::NotFound,
        Reason::UnknownModel,
        "model",
        &["\"demo\"", "\"gpt\""],
    );
}

#[test]
fn broken_settings() {
    let check = |request, field, words: &[&str]| {
        refused(
            Asked::generate(request),
            Code::InvalidArgument,
            Reason::InvalidArgument,
            field,
            words,
        );
    };
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 100.5] {
        let expected = ["a number from 0 to 100", &value.to_string()];
        check(
            sampled(v1::Sampling { temperature: Some(value), ..Default::default() }),
            "sampling.temperature",
            &expected,
        );
    }
    for value in [f32::NAN, 0.0, -0.5, 1.01] {
        check(
            sampled(v1::Sampling { top_p: Some(value), ..Default::default() }),
            "sampling.top_p",
            &["above 0, at most 1"],
        );
    }
    for value in [f32::NAN, -0.01, 1.5] {
        check(
            sampled(v1::Sampling { min_p: Some(value), ..Default::default() }),
            "sampling.min_p",
            &["from 0 to 1"],
        );
    }
    for value in [f32::NAN, 0.0, 1e-39, 0.009, -1.0, 10.5, f32::INFINITY] {
        let penalized =
            sampled(v1::Sampling { repetition_penalty: Some(value), ..Default::default() });
        check(
            penalized,
            "sampling.repetition_penalty",
            &["from 0.01 to 10", &format!("found {value}")],
        );
    }
    check(limited(1, 0), "limits.max_tokens", &["at least 1", "found 0"]);
    check(limited(1, 61), "limits.max_tokens", &["at most 60", "limits.max_new_tokens", "61"]);
    let stops = v1::Limits { stop_token_ids: vec![2, 4096], ..Default::default() };
    check(
        v1::GenerateRequest { limits: Some(stops), ..ids(vec![5]) },
        "limits.stop_token_ids[1]",
        &["below 4096"],
    );
    let least = v1::Limits { min_tokens: 61, ..Default::default() };
    check(
        v1::GenerateRequest { limits: Some(least), ..ids(vec![5]) },
        "limits.min_tokens",
        &["at most 60", "61"],
    );
    check(
        v1::GenerateRequest { logprobs: Some(21), ..ids(vec![5]) },
        "logprobs",
        &["0 to 20", "21"],
    );
    let biased = v1::Sampling {
        logit_bias: vec![v1::LogitBias { token_id: 4096, bias: 1.0 }],
        ..Default::default()
    };
    check(sampled(biased), "sampling.logit_bias[0].token_id", &["below 4096"]);
    check(v1::GenerateRequest { route: 9, ..ids(vec![5]) }, "route", &["9"]);
    check(v1::GenerateRequest { route: -1, ..ids(vec![5]) }, "route", &["-1"]);
}

#[test]
fn broken_conversations() {
    let check = |request, field, words: &[&str]| {
        refused(Asked::chat(request), Code::InvalidArgument, Reason::InvalidArgument, field, words);
    };
    check(chat(vec![]), "messages", &["at least one message"]);
    check(
        chat(vec![("user", vec![text("a")]), ("Tool", vec![text("b")])]),
        "messages[1].role",
        &["\"Tool\"", "assistant"],
    );
    check(chat(vec![("", vec![text("a")])]), "messages[0].role", &["\"\""]);
    check(chat(vec![("user", vec![])]), "messages[0].content", &["at least one part"]);
    check(
        chat(vec![("user", vec![text("a"), None])]),
        "messages[0].content[1]",
        &["no known type"],
    );
}

#[test]
fn pictures_are_taken_from_any_turn_with_their_fields() {
    let url = || Some(Part::ImageUrl(v1::ImageUrl { url: "data:,".into() }));
    let asked = Asked::chat(chat(vec![
        ("user", vec![text("a"), image()]),
        ("system", vec![url(), text("b")]),
    ]))
    .expect("fine");
    let mut source = asked.source;
    let found = source.take_images();
    let fields: Vec<&str> = found.iter().map(|picture| picture.field.as_str()).collect();
    assert_eq!(
        fields,
        ["messages[1].content[0]", "messages[0].content[1]"],
        "as they are shown: the system's first"
    );
    assert!(source.take_images().is_empty());
}

#[test]
fn pictures_must_fit_before_their_pixels_are_looked_at() {
    let (language, model) = (crate::demo::language(), model());
    let check = |tokens, limits: &LimitsConfig| {
        check_pictures(tokens, Setting { model: &model, language: &language, limits })
    };
    let (all, few) = (
        LimitsConfig::default(),
        LimitsConfig { max_prompt_tokens: Auto::Is(80), ..Default::default() },
    );
    assert!(check(99, &all).is_ok() && check(80, &few).is_ok());
    for (tokens, limits, most) in
        [(100, &all, "at most 99"), (81, &few, "at most 80"), (u64::MAX, &all, "at most 99")]
    {
        let status = check(tokens, limits).expect_err("no room");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::InvalidArgument, Some(Reason::PromptTooLong))
        );
        assert!(
            status.message().contains(most) && status.message().contains(&tokens.to_string()),
            "{status:?}"
        );
    }
}

#[test]
fn a_text_refused_by_its_bytes_is_told_limit_and_found() {
    let (language, model) = (crate::demo::language(), model());
    let (all, few) = (
        LimitsConfig::default(),
        LimitsConfig { max_prompt_tokens: Auto::Is(80), ..Default::default() },
    );
    for (limits, most, expected) in
        [(&all, 99, "fewer than 100 tokens"), (&few, 80, "at most 80 tokens")]
    {
        let to = Setting { model: &model, language: &language, limits };
        assert_eq!(most_prompt_tokens(to), most);
        let status = too_long("messages", 1_234, to);
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::InvalidArgument, Some(Reason::PromptTooLong))
        );
        let message = status.message();
        assert!(message.starts_with("messages: ") && message.contains(expected), "{message}");
        assert!(message.contains("found at least 1234"), "{message}");
        assert_eq!(Reason::fact(&status, "prompt_tokens_at_least").as_deref(), Some("1234"));
        assert_eq!(Reason::fact(&status, "context_length").as_deref(), Some("100"));
    }
}

#[test]
fn a_good_request_becomes_a_generation() {
    let limits = LimitsConfig::default();
    let plain = submit(Asked::generate(ids(vec![5, 6])), &limits).expect("fine");
    assert_eq!(
        (plain.prompt_ids.as_slice(), plain.max_tokens, plain.stop_token_ids.as_slice()),
        (&[5, 6][..], 98, &[2][..])
    );
    assert_eq!(
        (plain.deadline_ns, plain.tokenizer_vocab, plain.traffic_class.as_str()),
        (9, 4096, "code")
    );
    assert_eq!(plain.sampling, Some(SamplingRule::GREEDY));
    let class = |class: &str| {
        let who = Identity {
            request_id: "r".into(),
            deadline_ns: 9,
            traffic_class: class.into(),
            cache_scope: "s".into(),
        };
        who.with_pictures().traffic_class
    };
    assert_eq!(
        (class("default").as_str(), class("code").as_str()),
        ("image", "code"),
        "the operator's label stays"
    );
    assert_ne!(
        plain.seed,
        submit(Asked::generate(ids(vec![5, 6])), &limits).expect("fine").seed,
        "seeds are drawn"
    );

    let logit_bias = vec![v1::LogitBias { token_id: 4095, bias: 1.5 }];
    let sampling = v1::Sampling {
        temperature: Some(0.5),
        seed: Some(7),
        top_k: Some(9),
        presence_penalty: Some(0.5),
        frequency_penalty: Some(-0.5),
        logit_bias: logit_bias.clone(),
        ..Default::default()
    };
    let limits_wish = v1::Limits {
        max_tokens: Some(3),
        ignore_eos: true,
        min_tokens: 2,
        stop_token_ids: vec![9],
        ..Default::default()
    };
    let request = v1::ChatRequest {
        model: "/models/demo".into(),
        sampling: Some(sampling),
        limits: Some(limits_wish),
        route: v1::RouteWish::Plain as i32,
        report_margins: true,
        logprobs: Some(3),
        ..chat(vec![("system", vec![text("s")]), ("user", vec![text("")])])
    };
    let wished = submit(Asked::chat(request), &limits).expect("fine");
    let (presence_penalty, frequency_penalty) = (0.5, -0.5);
    let rule = SamplingRule {
        temperature: 0.5,
        top_k: 9,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        ..SamplingRule::GREEDY
    };
    assert_eq!((wished.sampling, wished.seed, wished.max_tokens), (Some(rule), 7, 3));
    assert_eq!((wished.stop_token_ids, wished.min_tokens, wished.logprobs), (vec![9], 2, Some(3)));
    assert_eq!((wished.ignored_token_ids, plain.ignored_token_ids), (vec![2], vec![]));
    assert_eq!((wished.route, wished.report_margins), (v1::RouteWish::Plain as i32, true));

    let short = LimitsConfig { max_new_tokens: Auto::Is(10), ..Default::default() };
    assert_eq!(submit(Asked::generate(ids(vec![5])), &short).expect("fine").max_tokens, 10);
}
