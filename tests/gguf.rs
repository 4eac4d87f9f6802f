//! GGUF files as targets: the embedded model as such a file, and real ones in `make test-more`.

use paceline_tests::references::reference_cases;
use paceline_tests::skip::real_gguf;
use paceline_tests::{Stack, gguf, repository};
use serde_json::{Value, json};

/// Questions that the embedded model knows.
const QUESTIONS: [&str; 2] =
    ["Name three rivers.", "Call the tools to move 7 chairs to shelf QA-215."];

/// The texts of a few greedy answers, and how many drafts were accepted.
fn answers(stack: &Stack) -> (Vec<String>, u64) {
    let (mut texts, mut accepted) = (vec![], 0);
    for question in QUESTIONS {
        let body = json!({ "model": "x", "temperature": 0, "max_tokens": 48,
            "messages": [{ "role": "user", "content": question }] });
        let answer = stack.http_json("/v1/chat/completions", &body).expect("answered");
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        let message = &answer["choices"][0]["message"];
        texts.push(format!("{} {}", message["content"], message["tool_calls"][0]["function"]));
        accepted += answer["paceline"]["speculation"]["accepted"].as_u64().expect("a count");
    }
    (texts, accepted)
}

#[test]
fn a_file_is_served_with_the_answers_of_its_checkpoint_and_drafts_or_is_drafted_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = gguf::demo(dir.path(), false);
    let stack = Stack::drafting("");
    let expected = answers(&stack);
    stack.stop();
    assert!(expected.1 > 0, "the drafter helps: {expected:?}");
    let drafter = repository().join("demo/drafter");
    let pair = format!("target.model = {file:?}\ndrafter.model = {drafter:?}\n");
    let stack = Stack::ready(&pair);
    stack.wait_linked();
    let found = answers(&stack);
    stack.stop();
    assert_eq!(found.0, expected.0);
    assert!(found.1 > 0, "a drafter in safetensors drafts for a target in GGUF: {found:?}");
    let stack =
        Stack::ready(&format!("target.model = \"demo-target\"\ndrafter.model = {file:?}\n"));
    stack.wait_linked();
    let found = answers(&stack);
    stack.stop();
    assert_eq!(found.0, expected.0);
    assert!(found.1 > 0, "a drafter in GGUF drafts for a target in safetensors: {found:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(left.len(), 1, "nothing is written beside the file");
}

#[test]
fn packed_blocks_are_served_and_both_lanes_have_the_same_tokens() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = gguf::demo(dir.path(), true);
    let of = |drafter: &str| {
        let stack =
            Stack::ready(&format!("target.model = {file:?}\ndrafter.model = {drafter:?}\n"));
        if !drafter.is_empty() {
            stack.wait_linked();
        }
        let found = answers(&stack);
        stack.stop();
        found
    };
    let (plain, drafted) = (of(""), of("lookup"));
    assert_eq!(plain.0, drafted.0);
    assert!(plain.0.iter().all(|text| text.len() > 10), "{plain:?}");
}

/// The reference of both expands the weights of the same file to float32.
#[test]
#[ignore = "more: two published files of the package registry, a minute"]
fn ten_prompts_to_each_of_two_published_files_have_the_tokens_of_transformers() {
    let name = "ten_prompts_to_each_of_two_published_files_have_the_tokens_of_transformers";
    for (file, references, tokens) in [
        ("smollm2.gguf", "demo/smollm2/golden.json", 48),
        ("gemma-3-270m-q4_k_m.gguf", "tests/golden/gemma3.json", 32),
    ] {
        let Some(model) = real_gguf(name, file) else { return };
        let settings = format!("target.model = {model:?}\ntarget.products = \"float\"\n");
        let stack = Stack::ready(&settings);
        let mut cases = reference_cases(&repository().join(references), tokens);
        cases.truncate(10);
        assert_eq!(cases.len(), 10, "{references}");
        let running: Vec<_> = cases.iter().map(|case| stack.start(case.ask.clone())).collect();
        let answers = running.into_iter().map(|pending| pending.finish().expect("served"));
        let near_ties = cases.iter().zip(answers).filter(|(case, answer)| case.check(answer));
        println!("{file}: {} answers part from the reference at a near-tie", near_ties.count());
        stack.stop();
    }
}
