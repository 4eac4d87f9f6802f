//! A Qwen3.5 with a vision tower through the whole service: from the files of images to the last
//! token its answers equal those of transformers. Without the tower's tensors it serves text.

use paceline_proto::status::Reason;
use paceline_proto::v1::GetModelRequest;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_tests::ask::{Ask, conversation};
use paceline_tests::images::{
    hybrid_model, image, noise, png, seeing_with, text, turn, without_tower,
};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat};
use serde_json::Value;
use tonic::Code;

use super::{all_is_over, count, refused};

/// A question about images, and what transformers makes of it.
struct Case {
    ask: Ask,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
}

/// Pixels of a patch's side.
const PATCH: u32 = 4;

fn cases() -> Vec<Case> {
    let golden = std::fs::read(hybrid_model().with_extension("json")).expect("in the repository");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let image = |name: &Value| {
        let mut shots = golden["images"].as_array().expect("a list").iter();
        let shot = shots.find(|shot| shot["name"] == *name).expect("an image of this name");
        let side = |key: &str| shot[key].as_u64().expect("a number") as u32 * PATCH;
        let digits = shot["pixels"].as_str().expect("hex").as_bytes().chunks(2);
        let byte = |two: &[u8]| {
            let two = std::str::from_utf8(two).expect("digits");
            u8::from_str_radix(two, 16).expect("hex")
        };
        let pixels: Vec<u8> = digits.map(byte).collect();
        image(png(side("columns"), side("rows"), &pixels, &[]))
    };
    let case = |case: &Value| {
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("ids");
        let names = case["images"].as_array().expect("names");
        let mut parts: Vec<_> = names.iter().map(image).collect();
        parts.push(text(case["text"].as_str().expect("a text")));
        let greedy = ids("greedy");
        let ask = conversation(vec![turn(parts)]).exactly(greedy.len() as u32);
        Case { ask, prompt: ids("prompt"), greedy }
    };
    golden["served"].as_array().expect("cases").iter().map(case).collect()
}

fn has_vision(stack: &Stack) -> bool {
    let mut client = InferenceClient::new(stack.channel());
    let model = stack.block_on(client.get_model(GetModelRequest::default())).expect("served");
    model.into_inner().vision
}

#[test]
fn a_hybrid_model_answers_about_images_as_the_reference_does() {
    let stack = seeing_with(&hybrid_model(), "");
    assert!(has_vision(&stack));
    let cases = cases();
    assert_eq!(cases.len(), 2);
    for case in &cases {
        assert_eq!(count(&stack, &case.ask).expect("counted").token_ids, case.prompt);
        assert_eq!(stack.ask(case.ask.clone()).expect("served").ids, case.greedy);
    }
    // Beside one another, texts and other images.
    let other = |number: u64| {
        let parts = vec![image(noise(40, 24, number)), text("What is it?")];
        conversation(vec![turn(parts)]).exactly(48)
    };
    let beside: Vec<Ask> =
        (0..4).map(|at| if at < 2 { other(at) } else { chat("a b c").exactly(64) }).collect();
    let beside: Vec<Pending> = beside.into_iter().map(|ask| stack.start(ask)).collect();
    let asked: Vec<Pending> =
        cases.iter().chain(&cases).map(|case| stack.start(case.ask.clone())).collect();
    for (pending, case) in asked.into_iter().zip(cases.iter().chain(&cases)) {
        assert_eq!(pending.finish().expect("served").ids, case.greedy);
    }
    let beside: Vec<Answer> = beside.into_iter().map(|one| one.finish().expect("served")).collect();
    assert_ne!(beside[0].ids, beside[1].ids, "another image gives another answer");
    all_is_over(&stack);
    stack.stop();
}

#[test]
fn a_hybrid_model_without_its_tower_serves_text_and_refuses_images() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let model = dir.path().join("model");
    without_tower(&hybrid_model(), &model);
    let stack = seeing_with(&model, "");
    assert!(!has_vision(&stack));
    let parts = vec![image(noise(16, 16, 1)), text("What is it?")];
    let status = stack.ask(conversation(vec![turn(parts)])).expect_err("it has no tower");
    let words = ["messages[0].content[0]", "no vision tower"];
    refused(&status, Code::FailedPrecondition, Reason::NoVision, &words, "an image");
    assert_eq!(stack.ask(chat("a b c").exactly(8)).expect("text is served").ids.len(), 8);
    all_is_over(&stack);
    stack.stop();
}
