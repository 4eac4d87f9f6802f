use paceline_vocabulary::Reason;
use vllm::generate_request::Input;
use vllm::sampling_params::Constraint;

use super::*;

fn tokenized(ids: &[u32]) -> Option<Input> {
    let original_text = "for a log".to_owned();
    Some(Input::Tokenized(vllm::TokenizedInput { original_text, input_ids: ids.to_vec() }))
}

fn request() -> vllm::GenerateRequest {
    vllm::GenerateRequest { input: tokenized(&[5, 6]), ..Default::default() }
}

fn sampled(sampling_params: vllm::SamplingParams) -> vllm::GenerateRequest {
    vllm::GenerateRequest { sampling_params: Some(sampling_params), ..request() }
}

#[track_caller]
fn refused(message: vllm::GenerateRequest, field: &str, word: &str) {
    let error = generate(message).expect_err("a field that is not served");
    assert_eq!((error.kind, error.field.as_deref()), (Reason::InvalidArgument, Some(field)));
    assert!(error.message.contains(word), "{word:?} in {error}");
}

#[test]
fn every_field_of_a_request_is_decoded() {
    let sampling_params = vllm::SamplingParams {
        temperature: Some(0.5),
        top_p: 0.8,
        top_k: 9,
        min_p: 0.1,
        frequency_penalty: -0.5,
        presence_penalty: 0.5,
        repetition_penalty: 1.1,
        max_tokens: Some(3),
        min_tokens: 2,
        stop: vec!["end".into()],
        stop_token_ids: vec![9],
        skip_special_tokens: true,
        spaces_between_special_tokens: true,
        ignore_eos: true,
        n: 4,
        logprobs: Some(3),
        seed: Some(-2),
        include_stop_str_in_output: true,
        logit_bias: HashMap::from([(7, 1.5), (4, -2.0)]),
        grammar_from_first_token: true,
        constraint: Some(Constraint::Regex("a*".into())),
        ..Default::default()
    };
    let message = vllm::GenerateRequest {
        request_id: "r".into(),
        stream: true,
        data_parallel_rank: Some(0),
        ..sampled(sampling_params)
    };
    let (input, wish) = generate(message).expect("every field is served");
    assert_eq!(input.prompt, PromptInput::Ids(vec![5, 6]));
    let expected = GenerationParams {
        sampling: SamplingWish {
            temperature: Some(0.5),
            top_p: Some(0.8),
            top_k: Some(9),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(-0.5),
            ..Default::default()
        },
        seed: Some(u64::MAX - 1),
        logit_bias: vec![
            LogitBias { token_id: 4, bias: -2.0 },
            LogitBias { token_id: 7, bias: 1.5 },
        ],
        max_tokens: Some(3),
        lower_max_tokens: true,
        min_tokens: 2,
        ignore_eos: true,
        stop_token_ids: vec![9],
        stop: vec!["end".into()],
        report_usage: true,
        logprobs: Some(3),
        samples: SampleCount::checked(4).expect("few"),
        shape: AnswerShape::of_text(Some(TextForm::Regex("a*".into()))),
        ..Default::default()
    };
    assert_eq!(input.params, expected);
    let (name, stop_token_ids) = ("r".to_owned(), vec![9]);
    assert_eq!(wish, AnswerWish { name, in_pieces: true, stop_token_ids, logprobs: Some(3) });
}

#[test]
fn without_parameters_the_models_own_count_and_zeros_are_off() {
    let params = |message| generate(message).expect("served").0.params;
    assert_eq!(params(request()).sampling, SamplingWish::default());
    let zeros = params(sampled(vllm::SamplingParams::default()));
    let off = SamplingWish {
        temperature: None,
        top_p: Some(1.0),
        top_k: Some(0),
        min_p: Some(0.0),
        repetition_penalty: Some(1.0),
        presence_penalty: Some(0.0),
        frequency_penalty: Some(0.0),
        ..Default::default()
    };
    assert_eq!(zeros.sampling, off);
    assert_eq!((zeros.samples, zeros.max_tokens), (SampleCount::ONE, None));
    assert!(zeros.show_special && zeros.shape.after_thought);
    // The engine's word for no seed.
    let seed = Some(-1);
    assert_eq!(params(sampled(vllm::SamplingParams { seed, ..Default::default() })).seed, None);
}

#[test]
fn each_constraint_is_decoded_or_refused() {
    let form = |constraint| {
        let params = vllm::SamplingParams { constraint: Some(constraint), ..Default::default() };
        sampled(params)
    };
    let choices = vec!["a \"b\"".into(), "c".into()];
    for (constraint, expected) in [
        (Constraint::JsonSchema("{}".into()), TextForm::JsonSchema("{}".into())),
        (Constraint::JsonObject(true), TextForm::JsonObject),
        (Constraint::Grammar("start: \"a\"".into()), TextForm::Lark("start: \"a\"".into())),
        (
            Constraint::Choice(vllm::ChoiceConstraint { choices }),
            TextForm::Lark("start: \"a \\\"b\\\"\" | \"c\"\n".into()),
        ),
    ] {
        let (input, _) = generate(form(constraint)).expect("a constraint");
        assert_eq!(input.params.shape.text, Some(expected));
    }
    let gbnf = Constraint::Grammar("root ::= \"a\"".into());
    refused(form(gbnf), "sampling_params.grammar", "GBNF");
    refused(form(Constraint::JsonObject(false)), "sampling_params.json_object", "false");
    let tag = |content: &str| {
        Constraint::StructuralTag(format!(
            r#"{{"format": {{"type": "triggered_tags", "tags": [{{"begin": "<|channel|>final<|message|>", "content": {content}}}]}}}}"#
        ))
    };
    let schema = r#"{"type": "json_schema", "json_schema": {"type": "object"}}"#;
    let (input, _) = generate(form(tag(schema))).expect("a tag");
    assert!(input.params.shape.text.is_none() && input.params.shape.channels.is_some());
    refused(form(tag("{}")), "sampling_params.structural_tag.format.tags[0]", "another tag");
    let none = Constraint::Choice(vllm::ChoiceConstraint::default());
    refused(form(none), "sampling_params.choice", "none");
}

#[test]
fn images_stand_for_placeholders_among_the_ids() {
    let item =
        |modality: Modality| vllm::MediaRef { modality: modality.into(), url: "data:,".into() };
    let with = |input, items| {
        let media_refs = Some(vllm::MediaRefs { items });
        vllm::GenerateRequest { input, media_refs, ..request() }
    };
    let (input, _) =
        generate(with(tokenized(&[7]), vec![item(Modality::Image)])).expect("an image");
    let image = EncodedImage {
        field: "media_refs.items[0]".into(),
        source: ImageSource::Address("data:,".into()),
        detail: Detail::Full,
    };
    assert_eq!(input.prompt, PromptInput::IdsWithImages { ids: vec![7], images: vec![image] });
    let video = with(tokenized(&[7]), vec![item(Modality::Image), item(Modality::Video)]);
    refused(video, "media_refs.items[1].modality", "3");
    let text = with(Some(Input::Text("a".into())), vec![item(Modality::Image)]);
    refused(text, "input", "text");
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    let changed = |change: fn(&mut vllm::GenerateRequest)| {
        let mut message = request();
        change(&mut message);
        message
    };
    refused(changed(|message| message.input = None), "input", "neither");
    refused(changed(|message| message.request_id = "r".repeat(257)), "request_id", "257");
    refused(
        changed(|message| message.mm_inputs = Some(Default::default())),
        "mm_inputs",
        "media_refs",
    );
    refused(
        changed(|message| message.extra_mm_inputs = vec![Default::default()]),
        "mm_inputs",
        "media_refs",
    );
    for message in [
        changed(|message| message.kv_transfer_params = Some(Default::default())),
        changed(|message| message.kv_transfer_params_json = Some("{}".into())),
    ] {
        refused(message, "kv_transfer_params", "one service");
    }
    refused(changed(|message| message.data_parallel_rank = Some(1)), "data_parallel_rank", "1");
    let params = |change: fn(&mut vllm::SamplingParams)| {
        let mut params = vllm::SamplingParams::default();
        change(&mut params);
        sampled(params)
    };
    refused(params(|params| params.prompt_logprobs = Some(1)), "prompt_logprobs", "not served");
    refused(
        params(|params| params.truncate_prompt_tokens = Some(9)),
        "truncate_prompt_tokens",
        "ids",
    );
    refused(params(|params| params.logprobs = Some(-1)), "sampling_params.logprobs", "-1");
    let negative = params(|params| params.logit_bias = HashMap::from([(-4, 1.0)]));
    refused(negative, "sampling_params.logit_bias", "-4");
    refused(params(|params| params.n = 1_000_000), "samples", "1000000");
}
