//! Every way to send an image: another image gives another answer, or a refusal with its reason.

use std::path::Path;

use paceline_proto::status::Reason;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ContentPart, GetModelRequest, Message};
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::images::{
    address, data_url, file, image, noise, path, png, seeing, text, turn,
};
use paceline_tests::{Answer, Stack, chat};
use serde_json::{Value, json};
use tonic::Code;

use super::{all_is_over, count, refused};

const QUESTION: &str = "What is it?";
const TOKENS: u32 = 24;

fn see(parts: Vec<ContentPart>) -> Ask {
    conversation(vec![turn(parts)]).exactly(TOKENS).with_logprobs(0)
}

/// Parts of an answer that distinguish it: ids, and the log-probabilities of equal ids.
fn said(answer: &Answer) -> (Vec<u32>, Vec<u32>) {
    (answer.ids.clone(), answer.logprobs.iter().map(|one| one.logprob.to_bits()).collect())
}

/// The command line's object for an answer.
fn generate(stack: &Stack, words: &[&str], input: &str) -> Value {
    let count = TOKENS.to_string();
    let how = ["generate", "--json", "--ignore-eos", "--logprobs", "0", "--max-tokens", &count];
    let greedy: &[&str] =
        if words.contains(&"--temperature") { &[] } else { &["--temperature", "0"] };
    let output = stack.paceline(&[&how, greedy, words].concat(), input);
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {words:?}: {output:?}"));
    assert!(output.status.success(), "{words:?}: {object}");
    object
}

/// The words with which the command line refuses.
fn complaint(stack: &Stack, words: &[&str], input: &str) -> String {
    let output = stack.paceline(&[&["generate"], words].concat(), input);
    assert!(!output.status.success() && output.stdout.is_empty(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A conversation as clients write it, with this part in it.
fn messages(part: &Value) -> String {
    json!([{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]).to_string()
}

/// The forms of an image in a file of messages.
fn written(file: &[u8]) -> Vec<Value> {
    let url = data_url(file);
    vec![
        json!({"type": "image_url", "image_url": {"url": url}}),
        json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}}),
        json!({"type": "input_image", "image_url": url}),
        json!({"type": "image", "image": url}),
        json!({"type": "image", "url": url}),
    ]
}

#[test]
fn different_images_give_different_answers_however_they_are_sent() {
    let stack = seeing("");
    let names = ["exact.png", "up.png", "odd.png"];
    let mut answers: Vec<Answer> = vec![];
    for name in names {
        let bytes = file(name);
        let expected = stack.ask(see(vec![image(bytes.clone()), text(QUESTION)])).expect("served");
        let by_address =
            stack.ask(see(vec![address(data_url(&bytes)), text(QUESTION)])).expect("served");
        assert_eq!(said(&by_address), said(&expected), "{name} as image_url");
        let path = path(name).display().to_string();
        let mut ways = vec![
            ("--image --message", generate(&stack, &["--image", &path, "--message", QUESTION], "")),
            ("--image --prompt", generate(&stack, &["--image", &path, "--prompt", QUESTION], "")),
            ("--image --messages", {
                let bare = json!([{"role": "user", "content": QUESTION}]).to_string();
                generate(&stack, &["--image", &path, "--messages", "-"], &bare)
            }),
        ];
        ways.extend(
            written(&bytes).iter().map(|part| {
                ("--messages", generate(&stack, &["--messages", "-"], &messages(part)))
            }),
        );
        for (way, object) in ways {
            let ids: Vec<u32> = serde_json::from_value(object["token_ids"].clone()).expect("ids");
            let logprobs = object["logprobs"]
                .as_array()
                .expect("some")
                .iter()
                .map(|one| one["logprob"].as_f64().expect("a number"));
            let logprobs: Vec<u32> = logprobs.map(|one| (one as f32).to_bits()).collect();
            assert_eq!((ids, logprobs), said(&expected), "{name} by {way}");
            assert_eq!(
                object["usage"]["prompt_tokens"],
                expected.usage().prompt_tokens,
                "{name} by {way}"
            );
        }
        let how = ["chat", "--temperature", "0", "--ignore-eos", "--max-tokens", "24"];
        let talk = stack.paceline(&how, &format!("/image {path}\n{QUESTION}\n/quit\n"));
        let shown = String::from_utf8_lossy(&talk.stdout).into_owned();
        assert!(
            talk.status.success() && shown.contains(&expected.text),
            "{name}: {:?} is not in {talk:?}",
            expected.text
        );
        answers.push(expected);
    }
    for (at, answer) in answers.iter().enumerate() {
        assert!(answers[..at].iter().all(|other| other.ids != answer.ids), "{} is seen", names[at]);
    }
    let none = stack.ask(see(vec![text(QUESTION)])).expect("served");
    assert!(
        answers.iter().all(|answer| answer.ids != none.ids),
        "without one the answer is another"
    );
    all_is_over(&stack);
    stack.stop();
}

#[test]
// More than 60 lines: a table, one case a row.
fn every_image_format_is_decoded_and_counted() {
    let stack = seeing("");
    let mut answers = vec![];
    for name in [
        "baseline.jpg",
        "progressive.jpg",
        "gray.jpg",
        "lossless.webp",
        "lossy.webp",
        "still.gif",
        "alpha.png",
        "tall.png",
    ] {
        let ask = see(vec![text("a"), image(file(name)), text(QUESTION)]);
        let counted = count(&stack, &ask).expect("counted");
        let answer = stack.ask(ask.with_margins()).expect("served");
        assert_eq!(
            (answer.usage().prompt_tokens, answer.ids.len()),
            (counted.prompt_tokens, TOKENS as usize),
            "{name}"
        );
        assert_eq!(counted.token_ids.len(), counted.prompt_tokens as usize, "{name}");
        answers.push((name, said(&answer)));
    }
    // Two that differ in one pixel by one, and the same two in either order.
    let mut pixels = vec![90; 64 * 64 * 3];
    let gray = png(64, 64, &pixels, &[]);
    pixels[2_000] += 1;
    let other = png(64, 64, &pixels, &[]);
    for (what, first, second) in
        [("gray", &gray, &gray), ("first", &other, &gray), ("second", &gray, &other)]
    {
        let ask =
            see(vec![image(first.clone()), text("or"), image(second.clone()), text(QUESTION)]);
        let counted = count(&stack, &ask).expect("counted");
        let answer = stack.ask(ask).expect("served");
        // 64 rows each.
        assert_eq!(counted.token_ids.iter().filter(|id| **id == 261).count(), 128);
        assert_eq!(answer.usage().prompt_tokens, counted.prompt_tokens);
        answers.push((what, said(&answer)));
    }
    for (at, (name, answer)) in answers.iter().enumerate() {
        assert!(answers[..at].iter().all(|(_, other)| other != answer), "{name} is seen");
    }
    // Later turns hang on the image too; of what was read before, the same image's rows are
    // found and no other's.
    let (one, two) = (noise(96, 64, 1), noise(96, 64, 2));
    let first = |file: &[u8]| turn(vec![image(file.to_vec()), text(QUESTION)]);
    let asked = |turns: Vec<Message>| {
        let answer =
            stack.ask(conversation(turns).exactly(TOKENS).with_logprobs(0)).expect("served");
        (said(&answer), answer.usage().cached_tokens)
    };
    let talk = |file: &[u8]| {
        asked(vec![first(file), message("assistant", "A thing."), message("user", "And?")])
    };
    let (answer, found) = asked(vec![first(&one)]);
    assert_eq!(found, 0, "nobody saw it before");
    let (again, found) = asked(vec![first(&one)]);
    assert!(again == answer && found >= 64, "{found} rows are found again");
    let ((of_one, found_one), (of_two, found_two)) = (talk(&one), talk(&two));
    assert!(of_one != of_two && found_one >= 64 && found_two == 0, "{found_one} and {found_two}");
    // Each of several answers is about it, the first as if it were the only one.
    let draw = |samples: &str, name: &str| {
        let name = path(name).display().to_string();
        generate(
            &stack,
            &[
                "--image",
                &name,
                "--message",
                QUESTION,
                "--seed",
                "3",
                "--temperature",
                "0.9",
                "--samples",
                samples,
            ],
            "",
        )
    };
    let (alone, three, other) = (draw("1", "up.png"), draw("3", "up.png"), draw("3", "odd.png"));
    let ids = |object: &Value, at: usize| object["samples"][at]["token_ids"].clone();
    assert_eq!(
        (alone["token_ids"].clone(), three["samples"].as_array().map(Vec::len)),
        (ids(&three, 0), Some(3))
    );
    assert!(
        (0..3).all(|at| ids(&three, at) != ids(&other, at)
            && (at == 0 || ids(&three, at) != ids(&three, 0)))
    );
    let model = stack
        .block_on(InferenceClient::new(stack.channel()).get_model(GetModelRequest::default()))
        .expect("served");
    assert!(model.into_inner().vision);
    all_is_over(&stack);
    stack.stop();
}

#[test]
// More than 60 lines: a table, one case a row.
fn an_unusable_image_is_refused_and_never_left_out() {
    let stack = seeing("");
    let (broken, cut) = (b"GIF89a and nothing".to_vec(), file("exact.png")[..3_000].to_vec());
    let parts = [
        ("http", address("http://127.0.0.1:1/a.png"), "fetches nothing"),
        ("https", address("https://example.com/a.png"), "fetches nothing"),
        ("file", address("file:///etc/passwd"), "fetches nothing"),
        ("no base64", address("data:image/png;base64,@@"), "base64"),
        ("broken", image(broken.clone()), "GIF"),
        ("cut", image(cut.clone()), "ends before the image"),
        ("cut in an address", address(data_url(&cut)), "ends before the image"),
        ("text", image(&b"a cat, believe me"[..]), "PNG"),
        ("empty", image(vec![]), "empty"),
        ("far too thin", image(png(1, 8_000, &vec![7; 24_000], &[])), "200"),
    ];
    for (what, part, word) in parts {
        for parts in [
            vec![part.clone(), text(QUESTION)],
            vec![image(file("up.png")), text(QUESTION), part.clone()],
        ] {
            let at =
                if parts.len() == 2 { "messages[0].content[0]" } else { "messages[0].content[2]" };
            let ask = see(parts);
            let status = stack.ask(ask.clone()).expect_err(what);
            refused(&status, Code::InvalidArgument, Reason::BadImage, &[at, word], what);
            let status = count(&stack, &ask).expect_err(what);
            refused(&status, Code::InvalidArgument, Reason::BadImage, &[at, word], what);
        }
    }
    let nine = (0..9).map(|at| image(noise(16, 16, at))).collect();
    refused(
        &stack.ask(see(nine)).expect_err("nine"),
        Code::InvalidArgument,
        Reason::BadImage,
        &["at most 8 images"],
        "nine",
    );
    // 1,024 rows each: more than the context has, seen before any is unpacked.
    let large: Vec<_> = (0..2).map(|at| image(noise(256, 256, at))).collect();
    refused(
        &stack.ask(see(large)).expect_err("long"),
        Code::InvalidArgument,
        Reason::PromptTooLong,
        &["2048"],
        "two large ones",
    );
    // The word that stands for an image makes none, and its id is refused.
    for ask in [chat("<|image_pad|>"), chat("a <|vision_start|><|image_pad|><|vision_end|>")] {
        stack.ask(ask).expect("ordinary text");
    }
    let status = stack.ask(paceline_tests::continue_ids(&[65, 261])).expect_err("no image");
    refused(&status, Code::InvalidArgument, Reason::InvalidArgument, &["image"], "an image's id");
    // The command line gives the same answer.
    let broken_file = stack.path("broken.gif");
    std::fs::write(&broken_file, &broken).expect("writable");
    let (broken, nowhere) = (broken_file.display().to_string(), "/nowhere/a.png");
    let good = path("up.png").display().to_string();
    let http =
        messages(&json!({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}));
    for (words, input, word) in [
        (&["--image", &broken, "--message", "a"][..], "", "GIF"),
        (&["--image", &good, "--image", &broken, "--message", "a"], "", "GIF"),
        (&["--image", nowhere, "--message", "a"], "", nowhere),
        (&["--image", &good, "--token-ids", "1,2"], "", "--token-ids"),
        (
            &["--image", &good, "--messages", "-"],
            r#"[{"role": "system", "content": "a"}]"#,
            "role user",
        ),
        (&["--messages", "-"], &http, "fetches nothing"),
        (
            &["--messages", "-"],
            &messages(&json!({"type": "input_image", "file_id": "a"})),
            "file_id",
        ),
        (
            &["--messages", "-"],
            &messages(&json!({"type": "input_audio", "input_audio": {"data": "a"}})),
            "input_audio",
        ),
    ] {
        let complaint = complaint(&stack, words, input);
        assert!(complaint.contains(word), "{words:?}: {word:?} is not in {complaint}");
    }
    let talk = stack
        .paceline(&["chat", "--max-tokens", "4"], &format!("/image {broken}\n{QUESTION}\n/quit\n"));
    assert!(
        !talk.status.success() && String::from_utf8_lossy(&talk.stderr).contains("GIF"),
        "{talk:?}"
    );
    assert_eq!(
        stack.ask(see(vec![text(QUESTION)])).expect("it serves on").ids.len(),
        TOKENS as usize
    );
    all_is_over(&stack);
    stack.stop();
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn a_model_without_vision_refuses_images() {
    let stack = Stack::ready("");
    let good = file("up.png");
    for (what, part) in [
        ("image", image(good.clone())),
        ("image_url", address(data_url(&good))),
        ("an address", address("https://example.com/a.png")),
        ("no image", image(&b"nothing"[..])),
    ] {
        let ask = see(vec![part.clone(), text(QUESTION)]);
        let status = stack.ask(ask.clone()).expect_err(what);
        refused(
            &status,
            Code::FailedPrecondition,
            Reason::NoVision,
            &["messages[0].content[0]", "no vision tower"],
            what,
        );
        let status = count(&stack, &ask).expect_err(what);
        refused(&status, Code::FailedPrecondition, Reason::NoVision, &["no vision tower"], what);
        // A client that was refused, or that came from another model, resends the image for ever:
        // its conversation goes on, and the model reads that an image was there.
        let later = |part: ContentPart| {
            let turns = [message("assistant", "A thing."), message("user", "And?")];
            conversation([vec![turn(vec![part])], turns.to_vec()].concat())
        };
        let told = text("[An image was here. It is not shown.]");
        let (seen, told) = (count(&stack, &later(part)), count(&stack, &later(told)));
        assert_eq!(seen.expect(what).token_ids, told.expect(what).token_ids, "{what}");
    }
    let image = path("up.png").display().to_string();
    let words = ["generate", "--json", "--image", &image, "--message", QUESTION];
    let output = stack.paceline(&words, "");
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(!output.status.success() && object["error"]["reason"] == "NO_VISION", "{object}");
    for part in written(&good) {
        let complaint = complaint(&stack, &["--messages", "-"], &messages(&part));
        assert!(complaint.contains("no vision tower"), "{part}: {complaint}");
    }
    let talk =
        stack.paceline(&["chat", "--max-tokens", "4"], &format!("/image {image}\nWhat?\n/quit\n"));
    assert!(
        !talk.status.success() && String::from_utf8_lossy(&talk.stderr).contains("no vision tower"),
        "{talk:?}"
    );
    let model = stack
        .block_on(InferenceClient::new(stack.channel()).get_model(GetModelRequest::default()))
        .expect("served");
    assert!(!model.into_inner().vision);
    assert!(
        !Path::new(&stack.run_dir().join("images")).exists()
            || paceline_tests::images::waiting(&stack).is_empty()
    );
    assert!(
        !stack.ask(chat("List three fruits.").max_tokens(8)).expect("text goes on").ids.is_empty()
    );
    stack.stop();
}
