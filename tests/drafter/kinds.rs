//! Drafters of every kind with weights: tiny pairs that were trained for one target. They take each
//! other's place while streams run.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use paceline_proto::v1::RouteWish;
use paceline_system::clock::monotonic_ns;
use paceline_tests::ask::{Ask, continue_ids};
use paceline_tests::prompts::same_but_near_ties;
use paceline_tests::{Stack, signal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Compared, Drafted, MANY_RESTARTS, compare_with_plain, golden, per_cycle, plain_answers, sum,
};

/// Ids of the target, of which the last one ends a text.
const IDS: u32 = 56;

/// Directories of the drafters, and the kind that each is.
const DRAFTERS: [(&str, &str); 7] = [
    ("dflash-full", "dflash"),
    ("dflash-sliding", "dflash"),
    ("dflash2-tiny", "dflash2"),
    ("dspark-deepseek", "dspark"),
    ("dspark-speculators", "dspark"),
    ("eagle3-qwen3", "eagle3"),
    ("model-qwen3", "model"),
];

/// The target of [`DRAFTERS`].
const TARGET: &str = "dflash-target";
/// A target with states, and with its own drafter in its checkpoint.
const WITH_HEAD: &str = "mtp-dense";
/// Further drafters of [`WITH_HEAD`].
const OF_HYBRID: [(&str, &str); 3] =
    [("dflash-qwen3_5", "dflash"), ("dflash2-qwen3_5", "dflash2"), ("dspark-qwen3_5", "dspark")];
/// A target of Gemma 4, and its drafters.
const GEMMA: &str = "gemma4-draft-target";
const OF_GEMMA: [(&str, &str); 3] =
    [("dflash-gemma4", "dflash"), ("dspark-gemma4", "dspark"), ("assistant-dense", "assistant")];

/// All targets with a tokenizer, and a small model with the same one. The other drafters are used
/// where they are.
struct Pairs {
    dir: TempDir,
}

impl Pairs {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let vocab: serde_json::Map<String, Value> =
            (0..IDS - 1).map(|id| (format!("t{id}"), id.into())).collect();
        let tokenizer = json!({
            "added_tokens": [{
                "id": IDS - 1, "content": "<end>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }],
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let config = json!({
            "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
            "eos_token": "<end>",
        });
        for name in [TARGET, WITH_HEAD, GEMMA, "model-qwen3"] {
            let place = dir.path().join(name);
            std::fs::create_dir(&place).expect("made");
            for file in ["config.json", "model.safetensors"] {
                std::fs::copy(golden(name).join(file), place.join(file)).expect("copied");
            }
            for (file, value) in
                [("tokenizer.json", &tokenizer), ("tokenizer_config.json", &config)]
            {
                std::fs::write(place.join(file), value.to_string()).expect("written");
            }
        }
        Self { dir }
    }

    fn drafter(&self, name: &str) -> PathBuf {
        let own = self.dir.path().join(name);
        if own.is_dir() { own } else { golden(name) }
    }

    fn stack(&self, target: &str, drafter: &Path) -> Stack {
        let target = self.dir.path().join(target);
        Stack::drafting(&format!(
            "target.model = {target:?}\ndrafter.model = {drafter:?}\n{MANY_RESTARTS}"
        ))
    }

    /// The target of all drafters with the first of them.
    fn first(&self) -> Stack {
        self.stack(TARGET, &self.drafter(DRAFTERS[0].0))
    }
}

/// Walks on the ring of symbols that the pairs were trained on, with answers of `tokens` tokens.
fn asks(count: usize, tokens: u32) -> Vec<Ask> {
    let ask = |at: usize| {
        let (rule, step) = [(4, 1), (5, 2), (6, 5)][at % 3];
        let walk = (0..8 + 9 * (at % 7)).map(|n| 8 + ((7 * at + step * n) % 48) as u32);
        let ids: Vec<u32> = std::iter::once(rule).chain(walk).collect();
        let ask = continue_ids(&ids).exactly(tokens);
        if at % 2 == 1 { ask.sampled(0.8, 0.95, at as u64) } else { ask }
    };
    (0..count).map(ask).collect()
}

fn swap(stack: &Stack, drafter: &Path) {
    stack.drafter(&["swap", "--model", &drafter.display().to_string()]);
}

fn check_identity(count: usize) {
    let pairs = Pairs::new();
    let drafters = DRAFTERS.map(|(name, kind)| (pairs.drafter(name), kind));
    check_stack(pairs.first(), count, &drafters);
    // The name means the target's own checkpoint.
    let head = PathBuf::from("target");
    let stack = pairs.stack(WITH_HEAD, &head);
    let own = [(head, "mtp"), (pairs.drafter(WITH_HEAD), "mtp")];
    let others = OF_HYBRID.map(|(name, kind)| (pairs.drafter(name), kind));
    check_stack(stack, count, &[&own[..], &others].concat());
    let drafters = OF_GEMMA.map(|(name, kind)| (pairs.drafter(name), kind));
    check_stack(pairs.stack(GEMMA, &drafters[0].0), count, &drafters);
}

/// Answers with each of these drafters of the stack's target.
fn check_stack(stack: Stack, count: usize, drafters: &[(PathBuf, &str)]) {
    let asks = asks(count, 48);
    let (plain, mut counts) = (plain_answers(&stack, &asks), Compared::default());
    for (drafter, kind) in drafters {
        swap(&stack, drafter);
        let name = drafter.display().to_string();
        let Drafted { alone, together } =
            compare_with_plain(&stack, &asks, &plain, &name, &mut counts);
        let [alone, together] = [sum(&alone), sum(&together)].map(per_cycle);
        println!("{name} ({kind}): {alone:.2} tokens a cycle alone, {together:.2} together");
        assert!(alone > 1.5, "{name}: {alone}");
    }
    counts.check();
    stack.wait_memory_back();
    stack.stop();
}

#[test]
fn streams_with_each_kind_of_drafter_equal_plain_streams() {
    check_identity(6);
}

#[test]
#[ignore = "soak: a minute; run by `make soak`"]
fn fifty_streams_with_each_kind_of_drafter_equal_plain_streams() {
    check_identity(50);
}

/// Each round another drafter takes over while eight requests run. Then it is killed, stopped, or
/// neither.
fn take_turns(rounds: usize) {
    let pairs = Pairs::new();
    let stack = pairs.first();
    // Long enough that a drafter comes before the end.
    let asks = asks(16, 384);
    let plain = plain_answers(&stack, &asks);
    let (target, mut near_ties) = (stack.pid("target"), 0);
    for round in 0..rounds {
        let (name, _) = DRAFTERS[(1 + round) % DRAFTERS.len()];
        let chosen: Vec<usize> = (0..8).map(|n| (round + n) % asks.len()).collect();
        let start = |at: &usize| stack.start(asks[*at].clone().route(RouteWish::Speculative));
        let running: Vec<_> = chosen.iter().map(start).collect();
        swap(&stack, &pairs.drafter(name));
        let more: Vec<_> = chosen.iter().map(start).collect();
        match round % 4 {
            1 => signal(stack.pid("drafter"), Signal::SIGKILL),
            3 => signal(stack.pid("drafter"), Signal::SIGSTOP),
            _ => {}
        }
        for (at, pending) in chosen.iter().chain(&chosen).zip(running.into_iter().chain(more)) {
            let answer = pending.finish().expect("served");
            let what = format!("round {round}, {name}, request {at}");
            same_but_near_ties(&plain[*at], &answer, &what, &mut near_ties);
        }
    }
    println!("{rounds} rounds, {near_ties} near-ties");
    assert_eq!(stack.pid("target"), target);
    stack.wait_memory_back();
    stack.stop();
}

#[test]
fn drafters_of_all_kinds_take_each_others_place_while_streams_run() {
    take_turns(8);
}

#[test]
#[ignore = "soak: a minute; run by `make soak`"]
fn drafters_of_all_kinds_take_each_others_place_forty_times() {
    take_turns(40);
}

/// A drafter that cannot work with the target is refused with the reason, and the target goes on.
/// On an idle machine that takes less than a second, which is printed.
#[test]
fn a_drafter_of_another_target_is_refused_with_the_reason() {
    let pairs = Pairs::new();
    // The demo target has other sizes and other ids.
    let stack = Stack::drafting(MANY_RESTARTS);
    let target = stack.pid("target");
    let nothing = pairs.dir.path().join("nothing");
    std::fs::create_dir(&nothing).expect("made");
    std::fs::write(nothing.join("config.json"), "{}").expect("written");
    let others = DRAFTERS.map(|(name, _)| (pairs.drafter(name), "expected"));
    let heads = [
        (golden("mtp-moe"), "hidden_size: expected"),
        (golden("mtp-moe-target"), "no tensors mtp.*"),
        ("target".into(), "no other family has a head"),
        (nothing, "config.json"),
    ];
    for (drafter, reason) in others.into_iter().chain(heads) {
        let begun = monotonic_ns();
        let words = ["drafter", "swap", "--model", &drafter.display().to_string()];
        let output = stack.paceline(&words, "");
        let found = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{found}");
        assert!(found.contains(reason), "{}: {found}", drafter.display());
        println!("{} ms: {found}", (monotonic_ns() - begun) / 1_000_000);
    }
    let answer = stack.ask(continue_ids(&[5, 6, 7]).max_tokens(4)).expect("served");
    assert!(!answer.ids.is_empty());
    assert_eq!(stack.pid("target"), target);
    stack.stop();
}

/// A conversion of a model writes its tokenizer anew, and its head may have other padding: the ids
/// and their texts count. `inspect` says the same as the handshake.
#[test]
fn a_tokenizer_is_compared_by_its_tokens_and_not_by_its_bytes() {
    let pairs = Pairs::new();
    let stack = pairs.first();
    let small = pairs.drafter("model-qwen3");
    let file = small.join("tokenizer.json");
    let written = std::fs::read_to_string(&file).expect("written");
    let inspected = || {
        let target = pairs.dir.path().join(TARGET).display().to_string();
        let words = ["inspect", &target, "--drafter", &small.display().to_string(), "--json"];
        let output = stack.paceline(&words, "");
        let object: Value = serde_json::from_slice(&output.stdout).expect("an object");
        object["drafter"].clone()
    };

    let value: Value = serde_json::from_str(&written).expect("JSON");
    let other_bytes = serde_json::to_string_pretty(&value).expect("written");
    assert_ne!(other_bytes, written);
    std::fs::write(&file, other_bytes).expect("written");
    assert_eq!(inspected()["fits"], true, "{}", inspected());
    swap(&stack, &small);
    let [ask] = <[Ask; 1]>::try_from(asks(1, 32)).expect("one");
    let answer = stack.ask(ask.route(RouteWish::Speculative)).expect("served");
    assert!(per_cycle(answer.speculation()) > 1.5, "{:?}", answer.speculation());

    let swapped = written.replace("\"t20\"", "\"t\"").replace("\"t21\"", "\"t20\"");
    std::fs::write(&file, swapped.replace("\"t\"", "\"t21\"")).expect("written");
    let words = ["drafter", "swap", "--model", &small.display().to_string()];
    let output = stack.paceline(&words, "");
    let refused = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{refused}");
    let reason = inspected()["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.starts_with("tokens of the tokenizer: expected 56 with digest "), "{reason}");
    assert!(refused.contains(&reason), "{refused}: {reason}");
    stack.stop();
}
