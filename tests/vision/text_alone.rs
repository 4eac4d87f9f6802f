//! What the service says of the images that it serves, and a checkpoint with a vision tower that is
//! served as text alone (`target.vision = false`).

use paceline_proto::status::Reason;
use paceline_proto::v1::GetModelRequest;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_tests::ask::conversation;
use paceline_tests::images::{hybrid_model, image, noise, seeing_with, text, turn};
use paceline_tests::{Stack, chat, wait};
use serde_json::{Value, json};
use tonic::Code;

use super::{all_is_over, refused};

/// Limits by the settings' defaults, and by the checkpoint's preprocessor_config.json.
fn expected_limits() -> Value {
    let path = hybrid_model().join("preprocessor_config.json");
    let settings = std::fs::read(path).expect("in the repository");
    let settings: Value = serde_json::from_slice(&settings).expect("JSON");
    let pixels = settings["size"]["longest_edge"].as_u64().expect("a number");
    // Patches of 4 pixels, merged two by two.
    json!({
        "max_images": 8, "max_pixels": 40_000_000, "read_pixels": pixels,
        "max_tokens": pixels / 64,
    })
}

/// The status of the model, once a gateway has reported its limits or there are none.
fn model_status(stack: &Stack) -> Value {
    wait("the gateway's report", || {
        let status = stack.status()?;
        let model = status["model"].clone();
        let is_whole = model["vision"] == false || model["image_limits"].is_object();
        is_whole.then_some(model)
    })
}

fn inspected(stack: &Stack) -> (Value, String) {
    let model = hybrid_model().display().to_string();
    let run = |words: &[&str]| {
        let output = stack.paceline(words, "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let object = run(&["inspect", &model, "--json"]);
    (serde_json::from_str(&object).expect("JSON"), run(&["inspect", &model]))
}

#[test]
fn status_inspect_and_the_model_have_the_limits_of_images() {
    let stack = seeing_with(&hybrid_model(), "");
    let status = model_status(&stack);
    let limits = expected_limits();
    assert_eq!((&status["vision"], &status["image_limits"]), (&json!(true), &limits));
    let mut client = InferenceClient::new(stack.channel());
    let model = stack.block_on(client.get_model(GetModelRequest::default())).expect("served");
    let found = model.into_inner().image_limits.expect("images are served");
    assert_eq!(json!(found.read_pixels), limits["read_pixels"]);
    let (object, lines) = inspected(&stack);
    assert_eq!((&object["model"]["vision"], &object["images"]), (&json!(true), &limits));
    assert!(lines.contains("\nimages      at most 8 a request of 40000000 pixels each"), "{lines}");
    let shown = String::from_utf8(stack.paceline(&["status"], "").stdout).expect("text");
    assert!(shown.contains("\nimages: at most 8 a request of 40000000 pixels each"), "{shown}");
    stack.stop();
}

#[test]
fn a_checkpoint_with_a_tower_is_served_as_text_alone_if_the_operator_says_so() {
    let seeing = seeing_with(&hybrid_model(), "");
    let expected = seeing.ask(chat("a b c").exactly(24)).expect("served").ids;
    let whole = seeing.status().expect("it answers")["target"]["weight_bytes"].as_u64();
    seeing.stop();
    let stack = seeing_with(&hybrid_model(), "target.vision = false\n");
    assert_eq!(stack.ask(chat("a b c").exactly(24)).expect("served").ids, expected);
    let parts = vec![image(noise(16, 16, 1)), text("What is it?")];
    let status = stack.ask(conversation(vec![turn(parts)])).expect_err("text alone");
    let words = ["messages[0].content[0]", "target.vision = false"];
    refused(&status, Code::FailedPrecondition, Reason::NoVision, &words, "an image");
    let model = model_status(&stack);
    assert_eq!((&model["vision"], &model["image_limits"]), (&json!(false), &Value::Null));
    let shown = String::from_utf8(stack.paceline(&["status"], "").stdout).expect("text");
    assert!(shown.contains("\nimages: none"), "{shown}");
    let (object, lines) = inspected(&stack);
    assert_eq!((&object["model"]["vision"], &object["images"]), (&json!(false), &Value::Null));
    assert!(lines.contains("\nimages      none, text alone"), "{lines}");
    let weights = stack.status().expect("it answers")["target"]["weight_bytes"].as_u64();
    assert!(weights < whole, "the tower is not in memory: {weights:?} of {whole:?}");
    all_is_over(&stack);
    stack.stop();
}
