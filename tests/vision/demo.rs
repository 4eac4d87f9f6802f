//! The demo with a vision tower, through the whole service. From the files to the last token its
//! answers equal those of transformers: alone and together, plainly and with drafts.

use paceline_proto::v1::{Lane, Message, RouteReason, RouteWish};
use paceline_tests::ask::{Ask, conversation};
use paceline_tests::images::{image, text};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, repository};
use serde_json::Value;

use super::{all_is_over, count};

struct Case {
    name: String,
    ask: Ask,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    text: String,
    sees: bool,
    right: bool,
}

fn cases() -> Vec<Case> {
    let dir = repository().join("demo/vision");
    let golden = std::fs::read(dir.join("golden.json")).expect("it is in the repository");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let case = |case: &Value| {
        let mut images = case["images"].as_array().expect("names").iter();
        let mut part = |part: &Value| match part["type"].as_str() {
            Some("image") => {
                let name = images.next().and_then(Value::as_str).expect("as many names as parts");
                image(std::fs::read(dir.join(name)).expect("it is in the repository"))
            }
            _ => text(part["text"].as_str().expect("text")),
        };
        let mut message = |message: &Value| Message {
            role: message["role"].as_str().expect("a role").into(),
            content: match &message["content"] {
                Value::String(said) => vec![text(said)],
                parts => parts.as_array().expect("parts").iter().map(&mut part).collect(),
            },
            ..Default::default()
        };
        let messages: Vec<Message> =
            case["messages"].as_array().expect("messages").iter().map(&mut message).collect();
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("ids");
        Case {
            name: format!("{} {}", case["images"], case["messages"]),
            ask: conversation(messages).max_tokens(128),
            prompt: ids("prompt"),
            greedy: ids("greedy"),
            text: case["text"].as_str().expect("text").into(),
            sees: images.next().is_none()
                && case["images"].as_array().is_some_and(|some| !some.is_empty()),
            right: case["right"].as_bool().expect("known"),
        }
    };
    golden["cases"].as_array().expect("cases").iter().map(case).collect()
}

fn same(case: &Case, answer: &Answer, what: &str) {
    assert_eq!(
        (&answer.ids, answer.text.trim()),
        (&case.greedy, case.text.trim()),
        "{what}: {}",
        case.name
    );
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn the_demo_answers_about_images_as_the_reference_does() {
    let demo = repository().join("demo/vision");
    let stack = Stack::drafting(&format!(
        "target.model = {:?}\ndrafter.model = {:?}\n",
        demo.join("target").display().to_string(),
        demo.join("drafter").display().to_string()
    ));
    let cases = cases();
    let (seeing, right) = (
        cases.iter().filter(|case| case.sees),
        cases.iter().filter(|case| case.sees && case.right),
    );
    assert!(
        seeing.clone().count() >= 10 && right.count() * 10 >= seeing.count() * 8,
        "mostly right, of enough"
    );
    for case in &cases {
        assert_eq!(
            count(&stack, &case.ask).expect("counted").token_ids,
            case.prompt,
            "{}",
            case.name
        );
        let answer = stack.ask(case.ask.clone().route(RouteWish::Plain)).expect("served");
        same(case, &answer, "alone, plainly");
        assert_eq!(
            (answer.route(), answer.usage().prompt_tokens as usize),
            ((Lane::Plain, RouteReason::Forced), case.prompt.len())
        );
    }
    // On a busy machine the drafts of such short answers may come too late: more than once they do
    // not.
    let mut accepted = 0;
    for round in 0..20 {
        let drafted =
            cases.iter().map(|case| stack.start(case.ask.clone().route(RouteWish::Speculative)));
        let answers: Vec<Answer> = drafted
            .collect::<Vec<Pending>>()
            .into_iter()
            .map(|one| one.finish().expect("served"))
            .collect();
        for (case, answer) in cases.iter().zip(&answers) {
            same(case, answer, &format!("all at one moment, drafted, round {round}"));
            accepted += if case.sees { answer.speculation().accepted } else { 0 };
        }
        if accepted > 0 && round > 0 {
            break;
        }
    }
    assert!(accepted > 0, "drafts after images are accepted");
    // At the command line: the same question about another image is another answer.
    let ask = |name: &str| {
        let image = demo.join("images").join(name).display().to_string();
        let output = stack
            .paceline(&["generate", "--image", &image, "--message", "What is in the picture?"], "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_ne!(ask("shapes.png"), ask("digit.png"));
    all_is_over(&stack);
    stack.stop();
}
