use super::*;

/// A model directory with these files and the demo model's tokenizer.
fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = "tokenizer.json";
    std::fs::copy(crate::samples::dir().join(tokenizer), dir.path().join(tokenizer))
        .expect("copied");
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).expect("writable");
    }
    dir
}

fn read(files: &[(&str, &str)]) -> Result<Checkpoint, LoadError> {
    Checkpoint::read(dir(files).path())
}

#[test]
fn stop_ids_come_from_the_generation_configuration_before_the_model_configuration() {
    let tokenizer =
        ("tokenizer_config.json", r#"{"eos_token": {"content": "<|im_end|>"}, "bos_token": null}"#);
    let config = ("config.json", r#"{"eos_token_id": 7, "text_config": {"eos_token_id": [8, 9]}}"#);
    let generation = ("generation_config.json", r#"{"eos_token_id": [106, 1]}"#);
    let stop_ids = |files: &[_]| read(files).expect("complete").stop_ids;
    // The end-of-sequence token has id 2.
    assert_eq!(stop_ids(&[tokenizer, config, generation]), [1, 2, 106]);
    assert_eq!(stop_ids(&[tokenizer, config]), [2, 8, 9]);
    let top_level = ("config.json", r#"{"eos_token_id": 7}"#);
    assert_eq!(stop_ids(&[tokenizer, top_level]), [2, 7]);
    assert_eq!(stop_ids(&[tokenizer, ("config.json", r#"{"eos_token_id": null}"#)]), [2]);
    let found = read(&[tokenizer, config]).expect("complete");
    assert_eq!((found.eos_token.as_deref(), found.bos_token), (Some("<|im_end|>"), None));
}

#[test]
fn an_end_token_that_the_tokenizer_lacks_is_refused() {
    let files = [("tokenizer_config.json", r#"{"eos_token": "</s>"}"#), ("config.json", "{}")];
    let error = read(&files).expect_err("no such token").to_string();
    assert!(
        error.contains("tokenizer_config.json: eos_token") && error.contains("\"</s>\""),
        "{error}"
    );
}

#[test]
fn the_models_own_sampling_needs_do_sample() {
    let of = |text| {
        let base = [("tokenizer_config.json", "{}"), ("config.json", "{}")];
        read(&[base[0], base[1], ("generation_config.json", text)]).map(|found| found.sampling)
    };
    assert_eq!(of(r#"{"temperature": 0.6, "top_k": 20}"#).expect("fine"), SamplingRule::GREEDY);
    let own = SamplingRule {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.05,
        ..SamplingRule::GREEDY
    };
    let full = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}"#;
    assert_eq!(of(full).expect("fine"), own);
    assert_eq!(
        of(r#"{"do_sample": true, "top_k": -1}"#).expect("fine"),
        SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY }
    );
    let penalized =
        of(r#"{"do_sample": true, "presence_penalty": 1.5, "frequency_penalty": -0.5}"#)
            .expect("fine");
    assert_eq!((penalized.presence_penalty, penalized.frequency_penalty), (1.5, -0.5));
    assert!(of(r#"{"do_sample": true, "presence_penalty": 3}"#).is_err());
    let error = of(r#"{"do_sample": true, "top_p": 0}"#).expect_err("no mass").to_string();
    assert!(error.contains("generation_config.json: top_p: expected"), "{error}");
}

#[test]
fn a_template_file_wins_over_the_default_of_several_templates() {
    let tokenizer = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    let base = [("tokenizer_config.json", tokenizer), ("config.json", "{}")];
    let source =
        |files: &[_]| read(files).expect("complete").template.expect("there is one").source;
    assert_eq!(source(&base), "d");
    assert_eq!(source(&[base[0], base[1], ("chat_template.jinja", "beside")]), "beside");
    let none = [("tokenizer_config.json", "{}"), ("config.json", "{}")];
    assert!(read(&none).expect("complete").template.is_none());
    let processor = ("chat_template.json", r#"{"chat_template": "p"}"#);
    assert_eq!(source(&[none[0], none[1], processor]), "p");
    assert_eq!(source(&[base[0], base[1], processor]), "d", "the tokenizer's own is newer");
    let broken = read(&[none[0], none[1], ("chat_template.json", "[]")]).expect_err("no object");
    assert!(broken.to_string().contains("chat_template.json"));
}

#[test]
fn missing_and_broken_files_are_named() {
    let error = |files: &[_]| read(files).expect_err("refused").to_string();
    assert!(error(&[("tokenizer_config.json", "{}")]).contains("config.json"));
    assert!(error(&[("config.json", "{}")]).contains("tokenizer_config.json"));
    assert!(
        error(&[("config.json", "{"), ("tokenizer_config.json", "{}")])
            .contains("config.json: not as expected")
    );
    let typed =
        error(&[("config.json", r#"{"eos_token_id": "x"}"#), ("tokenizer_config.json", "{}")]);
    assert!(typed.contains("config.json: not as expected"), "{typed}");
}

#[test]
fn a_broken_tokenizer_is_refused_with_its_file_and_cause() {
    let dir = dir(&[("tokenizer_config.json", "{}"), ("config.json", "{}")]);
    let error = || Checkpoint::read(dir.path()).expect_err("refused");
    std::fs::write(dir.path().join("tokenizer.json"), "{}").expect("writable");
    let shown = paceline_vocabulary::chain(&error());
    assert!(shown.contains("tokenizer.json: no tokenizer: "), "{shown}");
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("there");
    let shown = error().to_string();
    assert!(shown.contains("cannot read") && shown.contains("tokenizer.json"), "{shown}");
}
