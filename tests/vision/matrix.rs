//! Every family of vision models, three ways: by the command line, one request at a time, and three
//! at once with images of different sizes. Each answer equals that of the family's reference. Where the
//! golden file has no answer to messages, it is that of one request, and the answer to a prompt of ids
//! about an image is held against the reference.

use std::path::{Path, PathBuf};

use paceline_proto::vllm::grpc::engine as vllm;
use paceline_tests::images::{data_url, seeing_with, text, turn};
use paceline_tests::stack::Pending;
use paceline_tests::{Stack, chat, repository};
use serde_json::{Value, json};
use vllm::generate_request::Input;
use vllm::generate_response::Response as Message;
use vllm::vllm_engine_client::VllmEngineClient;

use super::golden::{Case, cases, direct};
use super::{all_is_over, count};

/// Golden checkpoints, one a family, that are whole folders of models.
const FAMILIES: [&str; 8] = [
    "qwen2-vl-tiny",
    "qwen2_5-vl-tiny",
    "qwen3-vl-moe-tiny",
    "qwen3_5-vl-tiny",
    "glm-ocr-tiny",
    "glm4v-tiny",
    "paddleocr_vl-tiny",
    "hunyuan_vl-tiny",
];

/// Golden checkpoints that are whole folders of models, and whose golden files have no answers to
/// messages.
const UNANSWERED: [&str; 1] = ["qwen3-vl-tiny"];

/// Golden checkpoints without a tokenizer.
const GEMMA: [&str; 2] = ["gemma4-vl-tiny", "gemma4-unified-tiny"];

fn goldens() -> PathBuf {
    repository().join("models/tests/golden")
}

/// Ids that the command line answers to a question with these files.
fn by_command_line(stack: &Stack, case: &Case) -> [Vec<u32>; 2] {
    let paths: Vec<String> = (0..case.images.len())
        .map(|at| stack.path(&format!("image-{at}.png")).display().to_string())
        .collect();
    for (path, file) in paths.iter().zip(&case.images) {
        std::fs::write(path, file).expect("the directory is the test's own");
    }
    let images = paths.iter().flat_map(|path| ["--image", path]);
    let tokens = case.tokens().to_string();
    let how = ["generate", "--json", "--ignore-eos", "--temperature", "0", "--max-tokens", &tokens];
    let ids = |words: &[&str], input: &str| {
        let output = stack.paceline(&[&how[..], words].concat(), input);
        let object: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        serde_json::from_value(object["token_ids"].clone()).expect("ids")
    };
    let words: Vec<&str> = images.chain(["--message", &case.question]).collect();
    let parts = case
        .images
        .iter()
        .map(|file| json!({"type": "image_url", "image_url": {"url": data_url(file)}}));
    let parts: Vec<Value> = parts.chain([json!({"type": "text", "text": case.question})]).collect();
    let messages = json!([{"role": "user", "content": parts}]).to_string();
    [ids(&words, ""), ids(&["--messages", "-"], &messages)]
}

/// Makes a whole folder of a golden Gemma in `to`: a token for each printable character, and a
/// template that writes images and texts as they come.
fn whole_gemma(golden: &Path, to: &Path) {
    std::fs::create_dir(to).expect("the directory is the test's own");
    for entry in std::fs::read_dir(golden).expect("in the repository") {
        let entry = entry.expect("readable");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
    // Ids 2 to 96 are the characters from the space on. The marks of images are 120 to 122.
    let token = |id: u32| match id {
        2..=96 => char::from_u32(id + 30).expect("printable").to_string(),
        _ => format!("<{id}>"),
    };
    let vocab: serde_json::Map<String, Value> = (0..128).map(|id| (token(id), id.into())).collect();
    let special = [0, 1, 120, 121, 122].map(|id| {
        json!({
            "id": id, "content": token(id), "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let tokenizer = json!({
        "added_tokens": special,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let template = "{% for message in messages %}{% if message.content is string %}{{ message.content }}\
        {% else %}{% for part in message.content %}{% if 'text' in part %}{{ part.text }}\
        {% else %}<121>{% endif %}{% endfor %}{% endif %}{% endfor %}";
    let config = json!({"chat_template": template, "eos_token": "<1>"});
    for (file, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        std::fs::write(to.join(file), value.to_string()).expect("written");
    }
}

/// Asks the prompt of ids of the golden file, as a router does, and compares with the reference.
fn check_ids(stack: &Stack, golden: &Path, dir: &Path) {
    let case = direct(golden, dir);
    let media = vllm::MediaRef { url: data_url(&case.image), ..Default::default() };
    let sampling = vllm::SamplingParams {
        temperature: Some(0.0),
        max_tokens: Some(case.greedy.len() as u32),
        ignore_eos: true,
        ..Default::default()
    };
    let request = vllm::GenerateRequest {
        request_id: "direct".into(),
        input: Some(Input::Tokenized(vllm::TokenizedInput {
            input_ids: case.ids,
            ..Default::default()
        })),
        media_refs: Some(vllm::MediaRefs { items: vec![media] }),
        sampling_params: Some(sampling),
        ..Default::default()
    };
    let message = stack.block_on(async {
        let answer = VllmEngineClient::new(stack.channel()).generate(request).await?;
        answer.into_inner().message().await
    });
    let message = message.expect("served").expect("a message");
    let Some(Message::Complete(end)) = message.response else { panic!("no end: {message:?}") };
    let name = golden.display();
    assert_eq!(end.prompt_tokens as usize, case.prompt_tokens, "{name}: a prompt of ids");
    assert_eq!(end.output_ids, case.greedy, "{name}: a prompt of ids");
}

/// Checks the model in `dir` by the golden file of `golden`.
fn check(golden: &Path, dir: &Path) {
    let name = dir.display();
    let stack = seeing_with(dir, "");
    let (mut asked, others) = (cases(golden, dir, false), cases(golden, dir, true));
    // Another image of the same size: answered before the first one, so without anything kept of it.
    let other = stack.ask(others[0].ask()).expect("served").ids;
    if asked[0].greedy.is_empty() {
        check_ids(&stack, golden, dir);
    }
    for case in asked.iter_mut().filter(|case| case.greedy.is_empty()) {
        case.prompt = count(&stack, &case.ask()).expect("counted").token_ids;
        case.greedy = stack.ask(case.ask()).expect("served").ids;
    }
    for case in &asked {
        let counted = count(&stack, &case.ask()).expect("counted");
        assert_eq!(counted.token_ids, case.prompt, "{name}: {} images", case.images.len());
        let one = stack.ask(case.ask()).expect("served");
        assert_eq!(one.ids, case.greedy, "{name}: one request, {} images", case.images.len());
        for ids in by_command_line(&stack, case) {
            assert_eq!(ids, case.greedy, "{name}: command line, {} images", case.images.len());
        }
    }
    assert_ne!(other, asked[0].greedy, "{name}: another image of the same size");
    // Again, when pages of both are kept.
    assert_eq!(stack.ask(others[0].ask()).expect("served").ids, other, "{name}: repeated");
    assert_eq!(stack.ask(asked[0].ask()).expect("served").ids, asked[0].greedy, "{name}: repeated");
    // The images of a request in the other order are another question.
    let mut swapped = asked[1].images.clone();
    swapped.reverse();
    let swapped = stack.ask(asked[1].about(&swapped)).expect("served").ids;
    assert_ne!(swapped, asked[1].greedy, "{name}: images in the other order");
    let words = chat(&asked[0].question).exactly(asked[0].tokens());
    let alone = stack.ask(words.clone()).expect("served").ids;
    let together: Vec<Pending> =
        [words, asked[0].ask(), asked[1].ask()].into_iter().map(|ask| stack.start(ask)).collect();
    let together = together.into_iter().map(|one| one.finish().expect("served").ids);
    let expected = [&alone, &asked[0].greedy, &asked[1].greedy];
    for (at, (found, expected)) in together.zip(expected).enumerate() {
        assert_eq!(found, *expected, "{name}: three at once, {at} images");
    }
    // Without an image the prompt has no place for one.
    let bare = turn(vec![text(&asked[0].question)]);
    let bare = paceline_tests::ask::conversation(vec![bare]).exactly(4);
    assert!(count(&stack, &bare).expect("counted").prompt_tokens < asked[0].prompt.len() as u32);
    all_is_over(&stack);
    stack.stop();
}

#[test]
fn a_family_with_windows_in_its_tower_answers_three_ways_as_the_reference_does() {
    let dir = goldens().join("qwen2_5-vl-tiny");
    check(&dir, &dir);
}

#[test]
#[ignore = "more: a service for each family"]
fn every_family_answers_three_ways_as_the_reference_does() {
    for name in FAMILIES.iter().chain(&UNANSWERED) {
        let dir = goldens().join(name);
        check(&dir, &dir);
    }
    let own = tempfile::tempdir().expect("a temporary directory");
    for name in GEMMA {
        let (golden, dir) = (goldens().join(name), own.path().join(name));
        whole_gemma(&golden, &dir);
        check(&golden, &dir);
    }
}

#[test]
fn every_whole_golden_model_with_a_tower_is_in_the_matrix() {
    for entry in std::fs::read_dir(goldens()).expect("in the repository") {
        let path = entry.expect("readable").path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|end| end == "json") {
            let golden = std::fs::read_to_string(&path).expect("readable");
            let is_whole = path.with_extension("").join("tokenizer.json").exists();
            let is_served = is_whole && golden.contains("\n\"served\": [");
            assert_eq!(is_served, FAMILIES.contains(&name), "{name}");
        }
    }
}
