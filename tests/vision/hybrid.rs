//! A Qwen3.5 with a vision tower through the whole service: from the files of images to the last
//! token its answers equal those of transformers. Without the tower's tensors it serves text.

use paceline_proto::status::Reason;
use paceline_proto::v1::GetModelRequest;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_tests::ask::{Ask, conversation};
use paceline_tests::images::{hybrid_model, image, noise, seeing_with, text, turn, without_tower};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat};
use tonic::Code;

use super::golden::cases;
use super::{all_is_over, count, refused};

fn has_vision(stack: &Stack) -> bool {
    let mut client = InferenceClient::new(stack.channel());
    let model = stack.block_on(client.get_model(GetModelRequest::default())).expect("served");
    model.into_inner().vision
}

#[test]
fn a_hybrid_model_answers_about_images_as_the_reference_does() {
    let stack = seeing_with(&hybrid_model(), "");
    assert!(has_vision(&stack));
    let cases = cases(&hybrid_model(), &hybrid_model(), false);
    for case in &cases {
        assert_eq!(count(&stack, &case.ask()).expect("counted").token_ids, case.prompt);
        assert_eq!(stack.ask(case.ask()).expect("served").ids, case.greedy);
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
        cases.iter().chain(&cases).map(|case| stack.start(case.ask())).collect();
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
