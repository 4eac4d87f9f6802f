//! Every family of vision models, three ways: by the command line, one request at a time, and three
//! at once with images of different sizes. Each answer equals that of the family's reference.

use std::path::{Path, PathBuf};

use paceline_tests::images::{seeing_with, text, turn};
use paceline_tests::stack::Pending;
use paceline_tests::{Stack, chat, repository};
use serde_json::{Value, json};

use super::golden::{Case, cases};
use super::{all_is_over, count};

/// Golden checkpoints, one a family, that are whole folders of models.
const FAMILIES: [&str; 8] = [
    "qwen2-vl-tiny",
    "qwen2_5-vl-tiny",
    "qwen3-vl-moe-tiny",
    "qwen3_5-vl-tiny",
    "paddleocr_vl-tiny",
    "hunyuan_vl-tiny",
    "glm-ocr-tiny",
    "glm4v-tiny",
];

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
    let tokens = case.greedy.len().to_string();
    let how = ["generate", "--json", "--ignore-eos", "--temperature", "0", "--max-tokens", &tokens];
    let ids = |words: &[&str], input: &str| {
        let output = stack.paceline(&[&how[..], words].concat(), input);
        let object: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        serde_json::from_value(object["token_ids"].clone()).expect("ids")
    };
    let words: Vec<&str> = images.chain(["--message", &case.question]).collect();
    let parts = case.images.iter().map(|file| {
        json!({"type": "image_url", "image_url": {"url": paceline_tests::images::data_url(file)}})
    });
    let parts: Vec<Value> = parts.chain([json!({"type": "text", "text": case.question})]).collect();
    let messages = json!([{"role": "user", "content": parts}]).to_string();
    [ids(&words, ""), ids(&["--messages", "-"], &messages)]
}

fn check(dir: &Path) {
    let name = dir.display();
    let stack = seeing_with(dir, "");
    let (asked, others) = (cases(dir, false), cases(dir, true));
    // Another image of the same size: answered before the first one, so without anything kept of it.
    let other = stack.ask(others[0].ask()).expect("served").ids;
    assert_ne!(other, asked[0].greedy, "{name}: another image of the same size");
    for case in &asked {
        let counted = count(&stack, &case.ask()).expect("counted");
        assert_eq!(counted.token_ids, case.prompt, "{name}: {} images", case.images.len());
        let one = stack.ask(case.ask()).expect("served");
        assert_eq!(one.ids, case.greedy, "{name}: one request, {} images", case.images.len());
        for ids in by_command_line(&stack, case) {
            assert_eq!(ids, case.greedy, "{name}: command line, {} images", case.images.len());
        }
    }
    // Again, when pages of both are kept.
    assert_eq!(stack.ask(others[0].ask()).expect("served").ids, other, "{name}: repeated");
    assert_eq!(stack.ask(asked[0].ask()).expect("served").ids, asked[0].greedy, "{name}: repeated");
    // The images of a request in the other order are another question.
    let mut swapped = asked[1].images.clone();
    swapped.reverse();
    let swapped = stack.ask(asked[1].about(&swapped)).expect("served").ids;
    assert_ne!(swapped, asked[1].greedy, "{name}: images in the other order");
    let words = chat(&asked[0].question).exactly(asked[0].greedy.len() as u32);
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
    check(&goldens().join("qwen2_5-vl-tiny"));
}

#[test]
#[ignore = "more: a service for each family"]
fn every_family_answers_three_ways_as_the_reference_does() {
    FAMILIES.iter().for_each(|name| check(&goldens().join(name)));
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
