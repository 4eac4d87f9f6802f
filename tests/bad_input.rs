//! Broken input: each with its own status and a message that names the field or the file (I5).

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{self, ContentPart, GenerateRequest, Message};
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::model::{self, Weights};
use paceline_tests::{Stack, chat, continue_ids, continue_text};
use serde_json::json;
use tonic::Code;
use tonic_types::StatusExt as _;

/// A request, its reason, and words that its message or field must have.
type Case = (&'static str, Ask, Reason, &'static [&'static str]);

fn with(mut ask: Ask, set: impl FnOnce(&mut v1::Sampling)) -> Ask {
    set(ask.sampling());
    ask
}

fn image() -> ContentPart {
    ContentPart {
        part: Some(Part::Image(v1::Image { data: bytes::Bytes::from_static(b"\x89PNG\r\n") })),
    }
}

// More than 60 lines: a table, one case a row.
fn cases() -> Vec<Case> {
    use Reason::{InvalidArgument, NoVision, PromptTooLong, UnknownModel};
    let hi = || chat("hi").max_tokens(2);
    let mut wrong_route = GenerateRequest { route: 99, ..Default::default() };
    wrong_route.prompt = Some(v1::generate_request::Prompt::Text("x".into()));
    vec![
        ("empty text", continue_text(""), InvalidArgument, &["text"]),
        ("no ids", continue_ids(&[]), InvalidArgument, &["token_ids"]),
        (
            "no prompt at all",
            Ask::Continue(GenerateRequest::default()),
            InvalidArgument,
            &["prompt"],
        ),
        (
            "id beyond the vocabulary",
            continue_ids(&[1, 4096]),
            InvalidArgument,
            &["token_ids", "4096"],
        ),
        ("no messages", conversation(vec![]), InvalidArgument, &["messages"]),
        (
            "unknown role",
            conversation(vec![message("wizard", "hi")]),
            InvalidArgument,
            &["messages[0].role", "wizard"],
        ),
        ("no role", conversation(vec![message("", "hi")]), InvalidArgument, &["messages[0].role"]),
        (
            "no content",
            conversation(vec![Message {
                role: "user".into(),
                content: vec![],
                ..Default::default()
            }]),
            InvalidArgument,
            &["messages[0].content"],
        ),
        (
            "unknown part",
            conversation(vec![Message {
                role: "user".into(),
                content: vec![ContentPart::default()],
                ..Default::default()
            }]),
            InvalidArgument,
            &["messages[0].content[0]"],
        ),
        (
            "an image",
            conversation(vec![
                message("system", "s"),
                Message { role: "user".into(), content: vec![image()], ..Default::default() },
            ]),
            NoVision,
            &["messages[1].content[0]"],
        ),
        ("prompt over the context", continue_ids(&[5; 5000]), PromptTooLong, &["5000", "4096"]),
        // The longest token of the demo model has 15 bytes.
        (
            "text over the context by its bytes",
            continue_text(&"a".repeat(75_000)),
            PromptTooLong,
            &["at least 5000", "4096"],
        ),
        (
            "max_tokens that do not fit",
            continue_ids(&[5; 4000]).max_tokens(200),
            InvalidArgument,
            &["max_tokens", "4096", "4000"],
        ),
        ("max_tokens 0", hi().max_tokens(0), InvalidArgument, &["max_tokens"]),
        (
            "temperature NaN",
            with(hi(), |s| s.temperature = Some(f32::NAN)),
            InvalidArgument,
            &["temperature"],
        ),
        (
            "temperature infinite",
            with(hi(), |s| s.temperature = Some(f32::INFINITY)),
            InvalidArgument,
            &["temperature"],
        ),
        (
            "temperature negative",
            with(hi(), |s| s.temperature = Some(-0.5)),
            InvalidArgument,
            &["temperature", "-0.5"],
        ),
        (
            "temperature too high",
            with(hi(), |s| s.temperature = Some(101.0)),
            InvalidArgument,
            &["temperature", "101"],
        ),
        ("top_p NaN", with(hi(), |s| s.top_p = Some(f32::NAN)), InvalidArgument, &["top_p"]),
        ("top_p 0", with(hi(), |s| s.top_p = Some(0.0)), InvalidArgument, &["top_p"]),
        ("top_p negative", with(hi(), |s| s.top_p = Some(-0.1)), InvalidArgument, &["top_p"]),
        ("top_p over 1", with(hi(), |s| s.top_p = Some(1.5)), InvalidArgument, &["top_p", "1.5"]),
        ("min_p NaN", with(hi(), |s| s.min_p = Some(f32::NAN)), InvalidArgument, &["min_p"]),
        ("min_p negative", with(hi(), |s| s.min_p = Some(-0.1)), InvalidArgument, &["min_p"]),
        ("top_a over 1", with(hi(), |s| s.top_a = Some(2.0)), InvalidArgument, &["top_a"]),
        ("min_p over 1", with(hi(), |s| s.min_p = Some(2.0)), InvalidArgument, &["min_p"]),
        (
            "repetition_penalty 0",
            with(hi(), |s| s.repetition_penalty = Some(0.0)),
            InvalidArgument,
            &["repetition_penalty"],
        ),
        (
            "repetition_penalty that makes logits infinite",
            with(hi(), |s| (s.temperature, s.repetition_penalty) = (Some(1.0), Some(1e-39))),
            InvalidArgument,
            &["sampling.repetition_penalty", "from 0.01 to 10"],
        ),
        (
            "repetition_penalty over 10",
            with(hi(), |s| s.repetition_penalty = Some(11.0)),
            InvalidArgument,
            &["repetition_penalty"],
        ),
        (
            "unknown model",
            hi().model("gpt-oss-120b"),
            UnknownModel,
            &["gpt-oss-120b", "demo-target"],
        ),
        ("unknown lane", Ask::Continue(wrong_route), InvalidArgument, &["route", "99"]),
        (
            "message over the limit",
            continue_text(&"x".repeat(2 << 20)),
            Reason::MessageTooLarge,
            &["1048576"],
        ),
    ]
}

#[test]
fn requests() {
    let stack = Stack::ready("limits.max_message_bytes = 1048576\n");
    let mut wrong = Vec::new();
    for (what, ask, reason, words) in cases() {
        let status = match stack.ask(ask) {
            Ok(answer) => {
                wrong.push(format!("{what}: answered with {} tokens", answer.ids.len()));
                continue;
            }
            Err(status) => status,
        };
        if Reason::of(&status) != Some(reason) || status.code() != reason.code() {
            wrong.push(format!(
                "{what}: expected {reason:?}, found {:?} {status:?}",
                Reason::of(&status)
            ));
            continue;
        }
        let violations = status
            .get_details_bad_request()
            .map(|details| details.field_violations)
            .unwrap_or_default();
        let fields: Vec<_> = violations.into_iter().map(|violation| violation.field).collect();
        let preconditions = status
            .get_details_precondition_failure()
            .map(|details| details.violations)
            .unwrap_or_default();
        let subjects: Vec<_> =
            preconditions.into_iter().map(|violation| violation.subject).collect();
        let said = format!("{} {} {}", status.message(), fields.join(" "), subjects.join(" "));
        wrong.extend(
            words
                .iter()
                .filter(|word| !said.contains(**word))
                .map(|word| format!("{what}: no {word:?} in {said:?}")),
        );
        if status.get_details_retry_info().is_some() {
            wrong.push(format!("{what}: asks to be sent again"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // None of it did any harm.
    assert!(!stack.ask(chat("List three fruits.").max_tokens(4)).expect("served").ids.is_empty());
    stack.wait_memory_back();
    stack.stop();
}

/// A field this version does not know, at the top and inside, is refused by its number.
#[test]
fn unknown_fields() {
    /// A request of a newer contract.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Newer {
        #[prost(string, tag = "2")]
        text: String,
        #[prost(uint32, tag = "77")]
        beams: u32,
    }
    let stack = Stack::ready("");
    let mut client = tonic::client::Grpc::new(stack.channel());
    let status = stack.block_on(async {
        client.ready().await.expect("reachable");
        let codec = tonic_prost::ProstCodec::<Newer, v1::GenerateResponse>::default();
        let path = http::uri::PathAndQuery::from_static("/paceline.v1.Inference/Generate");
        let request = tonic::Request::new(Newer { text: "x".into(), beams: 4 });
        client.server_streaming(request, path, codec).await.expect_err("refused")
    });
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::InvalidArgument, Some(Reason::InvalidArgument)),
        "{status:?}"
    );
    assert!(
        status.message().contains("77") && status.message().contains("paceline.v1.GenerateRequest"),
        "{status:?}"
    );
    stack.stop();
}

#[test]
fn the_command_line_shows_the_services_refusal() {
    let stack = Stack::ready("");
    let run = |words: &[&str], input: &str| {
        let output = stack.paceline(words, input);
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), out.into_owned(), err.into_owned())
    };
    let image = json!([{ "role": "user", "content": [
        { "type": "text", "text": "what is this?" }, { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }
    ] }]);
    let (code, out, err) = run(&["generate", "--json", "--messages", "-"], &image.to_string());
    assert_eq!(code, Some(1), "{err}");
    let object: serde_json::Value = serde_json::from_str(&out).expect("an object");
    assert_eq!(
        (&object["error"]["code"], &object["error"]["reason"]),
        (&json!("FAILED_PRECONDITION"), &json!("NO_VISION"))
    );
    let file = stack.path("p.png");
    std::fs::write(&file, b"\x89PNG\r\n").expect("writable");
    let (code, _, err) =
        run(&["generate", "--prompt", "what is this?", "--image", &file.display().to_string()], "");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("NO_VISION"), "{err}");
    let (code, _, err) = run(&["generate", "--prompt", "x", "--temperature", "nan"], "");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("INVALID_ARGUMENT") && err.contains("temperature"), "{err}");
    let (code, _, err) =
        run(&["generate", "--messages", "-"], r#"[{"role":"user","content":[{"type":"video"}]}]"#);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("video"), "{err}");
    stack.stop();
}

/// Starts a service on a broken model; status must name each of `words`, requests must say
/// UNAVAILABLE.
fn broken(stack: &mut Stack, words: &[&str]) {
    stack.serve();
    let status = stack.wait_status("the failure's reason", |status| {
        let reason = status["target"]["reason"].as_str().unwrap_or_default();
        matches!(status["target"]["state"].as_str(), Some("failed" | "backing_off"))
            && words.iter().all(|word| reason.contains(word))
    });
    assert_eq!(status["gateway"]["state"], "ready", "{status}");
    assert!(!stack.healthy());
    let refused = stack.ask(chat("hi").max_tokens(2)).expect_err("there is no model");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(Reason::of(&refused).is_some(), "{refused:?}");
}

/// A stack whose model `make` puts together in a directory of the stack.
fn stack_with(make: impl FnOnce(&std::path::Path) -> std::path::PathBuf) -> Stack {
    let stack = Stack::new("");
    let model = make(&stack.path(""));
    stack.set(&format!("target.model = {model:?}\n"));
    stack
}

const DOWN: &str = "model.layers.3.mlp.down_proj.weight";

#[test]
fn model_with_a_missing_shard() {
    let shard = "model-00002-of-00002.safetensors";
    let mut stack = stack_with(|dir| model::sharded(dir, "m", DOWN, shard));
    broken(&mut stack, &[shard]);
    stack.stop();
}

#[test]
fn model_with_a_shard_outside_its_directory() {
    let mut stack = stack_with(|dir| {
        std::fs::write(dir.join("outside.safetensors"), Weights::demo().bytes()).expect("writable");
        model::sharded(dir, "m", DOWN, "../outside.safetensors")
    });
    broken(&mut stack, &["../outside.safetensors"]);
    stack.stop();
}

#[test]
fn model_with_a_wrong_shape() {
    let mut weights = Weights::demo();
    weights.header[DOWN]["shape"] = json!([768, 256]);
    let mut stack = stack_with(|dir| model::single(dir, "m", &weights.bytes()));
    broken(&mut stack, &[DOWN, "768"]);
    stack.stop();
}

#[test]
fn model_with_a_missing_and_an_unknown_tensor() {
    let mut weights = Weights::demo();
    let header = weights.header.as_object_mut().expect("an object");
    let entry = header.remove(DOWN).expect("there");
    header.insert("model.layers.3.mlp.sideways_proj.weight".into(), entry);
    let mut stack = stack_with(|dir| model::single(dir, "m", &weights.bytes()));
    broken(&mut stack, &[DOWN]);
    stack.stop();
}

#[test]
fn model_that_is_cut_off() {
    let bytes = Weights::demo().bytes();
    let mut stack = stack_with(|dir| model::single(dir, "m", &bytes[..bytes.len() - 1000]));
    broken(&mut stack, &["model.safetensors"]);
    stack.stop();
}

#[test]
fn model_whose_header_ends_behind_the_file() {
    let mut stack = stack_with(|dir| {
        model::single(dir, "m", &[&4000u64.to_le_bytes()[..], br#"{"a":"#].concat())
    });
    broken(&mut stack, &["model.safetensors", "4000"]);
    stack.stop();
}

#[test]
fn model_with_a_header_over_16_mib() {
    let mut bytes = Weights::demo().bytes();
    bytes[..8].copy_from_slice(&((16u64 << 20) + 8).to_le_bytes());
    let mut stack = stack_with(|dir| model::single(dir, "m", &bytes));
    broken(&mut stack, &["model.safetensors", "16"]);
    stack.stop();
}

#[test]
fn model_with_a_tensor_twice() {
    let mut stack = stack_with(|dir| model::single(dir, "m", &model::duplicate(DOWN)));
    broken(&mut stack, &[DOWN]);
    stack.stop();
}

#[test]
fn a_model_that_was_not_pulled_and_may_not_be_fetched() {
    let mut stack = Stack::new("target.model = \"no-such/model\"\n");
    stack.env("HF_HUB_OFFLINE", "1");
    stack.serve();
    assert_eq!(stack.serve_ended(), Some(69), "{}", stack.serve_log());
    let said = stack.serve_log();
    assert!(said.contains("paceline pull no-such/model"), "{said}");
    stack.sweep();
}

#[test]
fn configurations() {
    for (settings, words) in [
        ("limits.qeue = 3\n", &["limits.qeue", "limits.queue"][..]),
        ("limits.queue = \"many\"\n", &["limits.queue"][..]),
        ("target.model = \"/nowhere/model\"\n", &["target.model", "/nowhere/model"][..]),
        ("kv.hidden_window = 70000\n", &["kv.hidden_window", "65536"][..]),
    ] {
        let mut stack = Stack::new(settings);
        stack.serve();
        assert_eq!(stack.serve_ended(), Some(64), "{settings}: {}", stack.serve_log());
        let said = stack.serve_log();
        assert!(words.iter().all(|word| said.contains(word)), "{settings}: {said}");
        stack.sweep();
    }
}

#[test]
fn settings_without_effect_and_a_missing_drafter_are_warned_about() {
    let stack = Stack::ready("drafter.model = \"somewhere\"\nclasses.alice = \"code\"\n");
    let said = stack.serve_log();
    assert!(said.contains("classes has no effect"), "{said}");
    // A drafter that is not there costs nothing but its help.
    let status = stack
        .wait_status("the drafter to have failed", |status| status["drafter"]["state"] == "failed");
    let reason = status["drafter"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("somewhere"), "{reason}");
    assert_eq!(status["link"]["state"], "absent");
    stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    stack.stop();
}

#[test]
fn drafts_above_the_trained_length_are_warned_about_by_serve_and_in_the_supervisors_log() {
    let drafter = paceline_tests::repository().join("demo/drafter");
    let settings =
        |most: u32| format!("drafter.model = {drafter:?}\nrouting.max_context = {most}\n");
    let words = "routing.max_context = 4097 is above 4096, the tokens of context with which";
    let said = |stack: &Stack| {
        let log = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("there");
        [stack.serve_log(), log].map(|log| log.matches(words).count())
    };
    let stack = Stack::ready(&settings(4_097));
    assert_eq!(said(&stack), [1, 1], "{}", stack.serve_log());
    stack.stop();
    let stack = Stack::ready(&settings(4_096));
    assert_eq!(said(&stack), [0, 0], "{}", stack.serve_log());
    assert!(!stack.serve_log().contains("is above"), "{}", stack.serve_log());
    stack.stop();
}
