//! Answers of the demo model through all processes: the reference's tokens, every form of input,
//! and the command line's output. A stream does not depend on other requests (I1).

use std::io::Write as _;
use std::os::unix::fs::symlink;

use paceline_proto::v1::{self, FinishReason, Lane, RouteReason};
use paceline_tests::ask::{Ask, conversation, messages};
use paceline_tests::model::{Weights, single};
use paceline_tests::prompts::same_but_near_ties;
use paceline_tests::{Stack, chat, continue_ids, continue_text, repository};
use serde_json::{Value, json};

fn golden() -> Vec<Value> {
    let text =
        std::fs::read_to_string(repository().join("demo/golden.json")).expect("demo/golden.json");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    golden["cases"].as_array().expect("cases").clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

#[test]
fn greedy_ids_equal_the_references() {
    let stack = Stack::ready("");
    let cases = golden();
    assert_eq!(cases.len(), 20);
    for case in &cases {
        let line = &case["line"];
        let expected = ids(&case["greedy"]);
        let max_tokens = case["max_tokens"].as_u64().expect("a number") as u32;
        let answer = stack
            .ask(conversation(messages(&case["messages"])).max_tokens(max_tokens).with_margins())
            .expect("an answer");
        assert_eq!(answer.ids, expected, "line {line}");
        assert_eq!(answer.text, case["text"].as_str().expect("text"), "line {line}");
        assert_eq!(
            answer.usage().prompt_tokens as usize,
            ids(&case["prompt"]).len(),
            "line {line}"
        );
        assert_eq!(answer.usage().completion_tokens as usize, expected.len(), "line {line}");
        let stopped = expected.last() == Some(&2);
        let reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
        assert_eq!(answer.end.finish_reason(), reason, "line {line}");
        for (found, expected) in
            answer.margins.iter().zip(case["margins"].as_array().expect("a list"))
        {
            let expected = expected.as_f64().expect("a number");
            assert!(
                (f64::from(*found) - expected).abs() < 2e-3,
                "line {line}: margin {found}, reference {expected}"
            );
        }
    }
    // The other two ways in lead to the same prompt.
    let case = &cases[0];
    let rendered = stack
        .ask(continue_text(case["rendered"].as_str().expect("text")).max_tokens(96))
        .expect("an answer");
    assert_eq!(rendered.ids, ids(&case["greedy"]));
    let by_ids = stack.ask(continue_ids(&ids(&case["prompt"])).max_tokens(96)).expect("an answer");
    assert_eq!(by_ids.ids, ids(&case["greedy"]));
    stack.stop();
}

#[test]
// More than 60 lines: a table, one case a row.
fn the_command_line_in_all_forms() {
    let stack = Stack::drafting("");
    let case = &golden()[0];
    let question = case["messages"][0]["content"].as_str().expect("text");
    let talk = case["messages"].to_string();
    let list = stack.path("list.json");
    let object = stack.path("object.json");
    std::fs::write(&list, &talk).expect("writable");
    let parts = json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": question }] }] });
    std::fs::write(&object, parts.to_string()).expect("writable");
    let joined: Vec<String> = ids(&case["prompt"]).iter().map(u32::to_string).collect();
    let joined = joined.join(",");
    let (list, object) = (list.display().to_string(), object.display().to_string());
    let forms: [(&[&str], &str); 6] = [
        (&["--message", question], ""),
        (&["--messages", &list], ""),
        (&["--messages", &object], ""),
        (&["--messages", "-"], &talk),
        (&["--prompt", case["rendered"].as_str().expect("text")], ""),
        (&["--token-ids", &joined], ""),
    ];
    for (words, input) in forms {
        let mut line = vec!["generate", "--json", "--temperature", "0"];
        line.extend(words);
        let object = json_of(&stack, &line, input);
        assert_eq!(object["token_ids"], case["greedy"], "{words:?}");
        assert_eq!(object["text"], case["text"], "{words:?}");
    }
    shape(&json_of(
        &stack,
        &["generate", "--json", "--message", question, "--max-tokens", "5", "--seed", "3"],
        "",
    ));

    let plain =
        stack.paceline(&["generate", "--message", question, "--temperature", "0", "--verbose"], "");
    assert!(plain.status.success());
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout),
        format!("{}\n", case["text"].as_str().expect("text"))
    );
    assert!(String::from_utf8_lossy(&plain.stderr).contains("43 tokens"), "{plain:?}");

    let wish = |route: &str| {
        json_of(&stack, &["generate", "--json", "--message", question, "--route", route], "")["route"].clone()
    };
    assert_eq!(wish("speculative"), json!({ "lane": "speculative", "reason": "forced" }));
    // Left to the target it drafts where that pays, which on a machine with other work it may not.
    let auto = wish("auto");
    let reasons = ["benefit", "prior", "probe", "not_worth", "drafter_behind", "drafter_late"];
    assert!(reasons.iter().any(|reason| auto["reason"] == *reason), "{auto}");
    assert_eq!(wish("plain"), json!({ "lane": "plain", "reason": "forced" }));

    let line = [
        "generate",
        "--json",
        "--message",
        question,
        "--ignore-eos",
        "--max-tokens",
        "60",
        "--temperature",
        "0",
    ];
    let on = json_of(&stack, &line, "");
    assert_eq!(
        (&on["finish_reason"], &on["usage"]["completion_tokens"]),
        (&json!("length"), &json!(60))
    );
    assert_eq!(ids(&on["token_ids"])[..43], ids(&case["greedy"]));

    let chat = stack.paceline(
        &["chat", "--temperature", "0"],
        &format!("{question}\n/reset\n{question}\n/quit\nnot read\n"),
    );
    assert!(chat.status.success(), "{chat:?}");
    let answer = case["text"].as_str().expect("text");
    assert_eq!(String::from_utf8_lossy(&chat.stdout), format!("{answer}\n{answer}\n"));
    stack.stop();
}

/// The object of a command that must succeed.
fn json_of(stack: &Stack, words: &[&str], input: &str) -> Value {
    let output = stack.paceline(words, input);
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}"))
}

/// The names that `generate --json` promises.
fn shape(object: &Value) {
    let keys = |value: &Value| {
        value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let expected = "text token_ids finish_reason route usage speculation timing tokens_per_s resumed seed request_id";
    assert_eq!(keys(object), expected);
    assert_eq!(keys(&object["route"]), "lane reason");
    assert_eq!(keys(&object["usage"]), "prompt_tokens completion_tokens cached_tokens");
    assert_eq!(object["usage"]["completion_tokens"], 5);
    assert_eq!(object["finish_reason"], "length");
    assert_eq!(keys(&object["speculation"]), "cycles drafted accepted");
    assert_eq!((&object["resumed"], &object["seed"]), (&json!(0), &json!(3)));
    let (ttft, total) =
        (object["timing"]["ttft_ms"].as_f64(), object["timing"]["total_ms"].as_f64());
    assert!(ttft > Some(0.0) && ttft <= total, "{object}");
}

#[test]
fn a_seed_replays_and_another_one_does_not() {
    let stack = Stack::drafting("");
    let ask = |seed| {
        chat("Write a short story about a lighthouse.").max_tokens(48).sampled(1.0, 1.0, seed)
    };
    let first = stack.ask(ask(7)).expect("an answer");
    assert_eq!(first.end.seed, 7);
    assert_eq!(stack.ask(ask(7)).expect("an answer").ids, first.ids);
    assert_ne!(stack.ask(ask(8)).expect("an answer").ids, first.ids);
    // A seed the service drew is reported, and replays what it gave.
    let mut unseeded = ask(0);
    unseeded.sampling().seed = None;
    let drawn = stack.ask(unseeded).expect("an answer");
    assert_eq!(stack.ask(ask(drawn.end.seed)).expect("an answer").ids, drawn.ids);
    // Nothing was known of these two workers: it was tried, and by what came of it decided.
    let (lane, reason) = first.route();
    assert!(
        lane == Lane::Speculative
            && [RouteReason::Benefit, RouteReason::Prior, RouteReason::Probe].contains(&reason),
        "{reason:?}"
    );
    // Temperature 0 is greedy whatever the seed.
    let greedy = |seed| {
        chat("Write a short story about a lighthouse.").max_tokens(48).sampled(0.0, 1.0, seed)
    };
    assert_eq!(
        stack.ask(greedy(1)).expect("an answer").ids,
        stack.ask(greedy(2)).expect("an answer").ids
    );
    stack.stop();
}

#[test]
fn alone_and_beside_seven_others_the_tokens_are_the_same() {
    let stack = Stack::ready("");
    let cases = golden();
    let picked: Vec<_> =
        [0, 1, 4, 8, 11, 14, 17, 19].iter().map(|at| messages(&cases[*at]["messages"])).collect();
    let mut near_ties = 0;
    let mut tokens = 0;
    for sampled in [false, true] {
        let asks: Vec<Ask> = picked
            .iter()
            .zip(100..)
            .map(|(talk, seed)| {
                let ask = conversation(talk.clone()).exactly(80).with_margins();
                if sampled { ask.sampled(0.8, 0.95, seed) } else { ask }
            })
            .collect();
        let alone: Vec<_> =
            asks.iter().map(|ask| stack.ask(ask.clone()).expect("an answer")).collect();
        let running: Vec<_> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
        let beside: Vec<_> =
            running.into_iter().map(|one| one.finish().expect("an answer")).collect();
        for (at, (alone, beside)) in alone.iter().zip(&beside).enumerate() {
            assert_eq!(alone.margins.len(), alone.ids.len(), "one margin per token");
            same_but_near_ties(
                alone,
                beside,
                &format!("request {at}, sampled: {sampled}"),
                &mut near_ties,
            );
            tokens += alone.ids.len();
        }
    }
    // Past the capture of the test runner: the count is a figure worth seeing each time.
    let _ = writeln!(std::io::stderr(), "near-ties: {near_ties} in {tokens} tokens");
    stack.stop();
}

#[test]
fn text_arrives_in_whole_characters_and_decodes_the_ids() {
    let stack = Stack::ready("");
    // A wish for the lane without the drafter is granted with its reason.
    let asked = chat("List three fruits.").max_tokens(30).route(v1::RouteWish::Plain);
    assert_eq!(stack.ask(asked).expect("an answer").route().0, Lane::Plain);
    // At a high temperature pieces of characters follow one another: the text must stay valid and
    // lose nothing.
    for seed in 0..4 {
        let answer = stack
            .ask(chat("Write ünïcödé: 日本語 🚲").exactly(60).sampled(5.0, 1.0, seed))
            .expect("an answer");
        assert_eq!(answer.ids.len(), 60);
        assert!(!answer.text.is_empty());
    }
    stack.stop();
}

#[test]
fn a_pulled_model_is_served_under_its_name_and_in_one_revision() {
    let mut stack = Stack::new("target.model = \"org/name\"\n");
    let home = stack.path("home");
    let cache = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let pulled = home.join(cache).join("paceline/models/org--name");
    std::fs::create_dir_all(&pulled).expect("made");
    let weights = Weights::demo().bytes();
    for revision in ["first", "second"] {
        single(&pulled, revision, &weights);
    }
    let current = pulled.join("current");
    symlink("first", &current).expect("linked");
    stack.env("HOME", &home.display().to_string());
    stack.env("XDG_CACHE_HOME", "");
    stack.serve();
    let is_first = |status: &Value| {
        status["target"]["model"].as_str().is_some_and(|model| model.ends_with("org--name/first"))
    };
    assert!(is_first(&stack.wait_ready()));
    let ask = || chat("List three fruits.").max_tokens(4);
    stack.ask(ask().model("org/name")).expect("served");
    // Another pull changes what the name stands for, and nothing for the service that runs.
    std::fs::remove_file(&current).expect("a link");
    symlink("second", &current).expect("linked");
    let restarted = stack.paceline(&["restart", "target"], "");
    assert!(restarted.status.success(), "{restarted:?}");
    assert!(is_first(&stack.wait_ready()));
    stack.ask(ask().model("org/name")).expect("served");
    stack.stop();
}
