//! The prefix cache for its users: the same prompt again, the next turn of a conversation, a
//! drafter that comes and goes meanwhile, and too little memory. Tokens never change (I1). First
//! tokens come sooner, and drafts are as good as before.

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

use std::path::Path;

use paceline_proto::v1::{Lane, Message, RouteWish, Speculation};
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::prompts::{reference, same_but_near_ties};
use paceline_tests::{Answer, Stack, repository};
use serde_json::{Value, json};

const PAGE: u32 = 64;

/// Embedded prompts of some kinds, as (question, expected answer).
fn examples(kinds: &[&str]) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository().join("demo/prompts.jsonl"))
        .expect("demo/prompts.jsonl");
    let one = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let of_kind = kinds.contains(&line["kind"].as_str().expect("a kind"));
        of_kind.then(|| (text(&line["messages"][0]["content"]), text(&line["expected"])))
    };
    text.lines().filter_map(one).collect()
}

/// A prompt of about 1,500 tokens: a conversation about other things, and a question. Different
/// numbers share nothing but the template's first words.
fn long_prompt(number: usize) -> Ask {
    let examples = examples(&["json", "table"]);
    let mut talk = vec![];
    let mut characters = 0;
    for at in 0.. {
        let (question, answer) = &examples[(number * 17 + at) % examples.len()];
        talk.push(message("user", question));
        // What the demo's tokenizer makes of such text.
        characters += question.len() + answer.len();
        if characters > CHARACTERS {
            break;
        }
        talk.push(message("assistant", answer));
    }
    conversation(talk).max_tokens(96)
}

/// Characters of a prompt of 1,500 tokens.
const CHARACTERS: usize = 3_700;

/// The whole pages of a prompt that need not be read again.
fn pages(answer: &Answer) -> u32 {
    (answer.usage().prompt_tokens - 1) / PAGE * PAGE
}

fn ttft(answer: &Answer) -> f64 {
    answer.end.timing.unwrap_or_default().ttft_ms
}

/// Drafted tokens that were accepted, for each cycle; the bonus token, which comes whatever was
/// drafted, is not among them.
fn accepted_per_cycle(answers: &[Answer]) -> f64 {
    let add = |(accepted, cycles): (u64, u64), one: Speculation| {
        (accepted + one.accepted, cycles + one.cycles)
    };
    let (accepted, cycles) = answers.iter().map(Answer::speculation).fold((0, 0), add);
    accepted as f64 / cycles.max(1) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Asks each prompt with drafts, compares with the answers there should be, and says how much was
/// found of each.
fn ask_all(
    stack: &Stack,
    prompts: &[Ask],
    plain: &[Answer],
    what: &str,
    near_ties: &mut u32,
) -> Vec<Answer> {
    let ask = |(prompt, plain): (&Ask, &Answer)| {
        let answer = stack.ask(prompt.clone().route(RouteWish::Speculative)).expect("served");
        same_but_near_ties(plain, &answer, what, near_ties);
        answer
    };
    prompts.iter().zip(plain).map(ask).collect()
}

/// Figures of prompts that were sent twice.
struct RepeatedPrompts {
    /// Time to the first token of the second answer over that of the first; median.
    ttft_ratio: f64,
    /// Accepted tokens per cycle of the first answers.
    cold: f64,
    /// Accepted tokens per cycle of the second answers.
    again: f64,
}

/// Sends `rounds` prompts, each for the first time and then again.
fn repeated(rounds: usize) -> RepeatedPrompts {
    let without = Stack::ready("kv.prefix_cache = false\n");
    let prompts: Vec<Ask> = (0..rounds).map(long_prompt).collect();
    let plain: Vec<Answer> =
        prompts.iter().map(|ask| without.ask(reference(ask.clone())).expect("served")).collect();
    assert!(plain.iter().all(|answer| answer.usage().cached_tokens == 0));
    let lengths: Vec<u32> = plain.iter().map(|answer| answer.usage().prompt_tokens).collect();
    assert!(lengths.iter().all(|length| (1_300..1_900).contains(length)), "{lengths:?}");
    without.stop();

    let stack = Stack::drafting("");
    let mut near_ties = 0;
    let (mut cold, mut again) = (vec![], vec![]);
    for (prompt, plain) in prompts.iter().zip(&plain) {
        let (prompt, plain) = (std::slice::from_ref(prompt), std::slice::from_ref(plain));
        cold.extend(ask_all(&stack, prompt, plain, "first", &mut near_ties));
        again.extend(ask_all(&stack, prompt, plain, "again", &mut near_ties));
    }
    for (first, second) in cold.iter().zip(&again) {
        // They share the template's words at most, which are no page.
        assert_eq!((first.usage().cached_tokens, second.usage().cached_tokens), (0, pages(first)));
        assert_eq!(second.route().0, Lane::Speculative);
    }
    let ttft_ratio =
        median(cold.iter().zip(&again).map(|(first, second)| ttft(second) / ttft(first)).collect());
    println!(
        "prompts of {lengths:?} tokens: first token after {:.1} ms, again {:.1} ms, ratio {ttft_ratio:.3}; {:.2} accepted a cycle, again {:.2}; {near_ties} near-ties",
        median(cold.iter().map(ttft).collect()),
        median(again.iter().map(ttft).collect()),
        accepted_per_cycle(&cold),
        accepted_per_cycle(&again),
    );
    stack.wait_memory_back();
    let kv = stack.snapshot().expect("it answers").kv.unwrap_or_default();
    assert!(kv.prefix_bytes > 0, "{kv:?}");
    stack.stop();
    let (cold, again) = (accepted_per_cycle(&cold), accepted_per_cycle(&again));
    RepeatedPrompts { ttft_ratio, cold, again }
}

#[test]
fn a_repeated_prompt_is_not_prefilled_again() {
    // With fewer prompts one or two late drafts would decide the figure.
    let RepeatedPrompts { ttft_ratio, cold, again } = repeated(6);
    // The goal is 0.15, on a machine with nothing else to do.
    assert!(
        ttft_ratio < 0.5,
        "the first token of a repeated prompt took {ttft_ratio} of the first one's time"
    );
    assert!(again >= 0.9 * cold, "{again} accepted a cycle after a hit, {cold} without");
}

#[test]
#[ignore = "soak: a figure for a quiet machine; run by `make soak`"]
fn a_repeated_prompt_has_a_seventh_of_the_time_to_first_token() {
    let RepeatedPrompts { ttft_ratio, cold, again } = repeated(15);
    assert!(ttft_ratio <= 0.15, "{ttft_ratio}");
    assert!(again >= 0.9 * cold, "{again} of {cold}");
}

/// Accepted tokens a cycle of an attempt that reaches 0.6 of `cold`. On a busy machine drafts of
/// two short answers may all come too late, so there are six attempts; a drafter that has not read
/// its prompt reaches it in none.
fn as_good_as(cold: f64, mut attempt: impl FnMut() -> f64) -> f64 {
    let mut seen = vec![];
    for _ in 0..6 {
        let accepted = attempt();
        if accepted > 0.6 * cold {
            return accepted;
        }
        seen.push(accepted);
    }
    panic!("{seen:?} accepted a cycle, {cold} when the prompts were new");
}

#[test]
fn prefix_hits_survive_changes_of_the_drafter() {
    let stack = Stack::drafting("supervisor.restarts = 1000\n");
    let prompts: Vec<Ask> = (0..2).map(long_prompt).collect();
    let first: Vec<Answer> = prompts
        .iter()
        .map(|ask| {
            stack.ask(ask.clone().route(RouteWish::Speculative).with_margins()).expect("served")
        })
        .collect();
    let mut near_ties = 0;
    let mut check = |what: &str| {
        let answers = ask_all(&stack, &prompts, &first, what, &mut near_ties);
        for (first, answer) in first.iter().zip(&answers) {
            assert_eq!(answer.usage().cached_tokens, pages(first), "{what}");
        }
        accepted_per_cycle(&answers)
    };
    let cold = accepted_per_cycle(&first);
    let again = as_good_as(cold, || check("again"));
    stack.drafter(&["stop"]);
    let target = stack.pid("target");
    assert_eq!(check("without a drafter"), 0.0);
    let started = as_good_as(cold, || {
        stack.drafter(&["stop"]);
        stack.drafter(&["start"]);
        stack.wait_linked();
        // This drafter has kept nothing: it reads the hidden state window.
        check("with a drafter that was started")
    });
    let swapped = as_good_as(cold, || {
        stack.drafter(&["swap"]);
        stack.wait_linked();
        check("with one that took its place")
    });
    println!(
        "accepted a cycle: {cold:.2} cold, {again:.2} again, {started:.2} and {swapped:.2} from the hidden state window; {near_ties} near-ties"
    );
    // A request that no drafter follows leaves nothing for one; the first that one follows reads
    // what its drafter needs.
    let plain = stack.ask(reference(long_prompt(9))).expect("served");
    let followed = |what: &str| {
        let answer = stack.ask(long_prompt(9).route(RouteWish::Speculative)).expect("served");
        let mut near_ties = 0;
        same_but_near_ties(&plain, &answer, what, &mut near_ties);
        answer.usage().cached_tokens
    };
    assert_eq!(followed("followed for the first time"), pages(&plain) - 512);
    assert_eq!(followed("followed again"), pages(&plain));
    assert_eq!(stack.pid("target"), target);
    stack.stop();
}

#[test]
fn a_second_turn_reuses_the_first_turn_and_its_answer() {
    let stack = Stack::drafting("");
    let (mut beyond, mut turns) = (0, 0);
    for (question, _) in examples(&["json"]).into_iter().take(6) {
        let talk = vec![message("user", &question)];
        let first = stack.ask(conversation(talk.clone()).max_tokens(256)).expect("served");
        let mut next = talk;
        next.extend([
            message("assistant", &first.text),
            message("user", "Call the tools to move 7 chairs to shelf QA-215."),
        ]);
        let second = stack.ask(conversation(next).max_tokens(32)).expect("served");
        let (usage, before) = (second.usage(), first.usage());
        // A turn's text, tokenized again, is nearly always what was generated.
        let (all, prompt) = (before.prompt_tokens + before.completion_tokens, before.prompt_tokens);
        if all / PAGE > prompt / PAGE {
            turns += 1;
            beyond += u32::from(usage.cached_tokens > prompt / PAGE * PAGE);
        }
        assert!(usage.cached_tokens >= prompt / PAGE * PAGE, "{usage:?} after {before:?}");
    }
    println!("{beyond} of {turns} second turns began with generated pages");
    assert!(turns >= 3 && beyond + 1 >= turns, "{beyond} of {turns}");
    stack.stop();
}

#[test]
fn too_little_memory_costs_prefix_hits_but_no_request() {
    // The demo pair's longest sequence takes 32 MiB of KV and 2 MiB of hidden states: room for one
    // of them and something.
    let stack = Stack::drafting("kv.budget_bytes = 40000000\nlimits.queue_wait_s = 100\n");
    let mut near_ties = 0;
    let prompts: Vec<Ask> = (0..3).map(|number| long_prompt(number).max_tokens(32)).collect();
    let first: Vec<Answer> =
        prompts.iter().map(|ask| stack.ask(reference(ask.clone())).expect("served")).collect();
    for round in 0..2 {
        let running: Vec<_> = prompts
            .iter()
            .map(|ask| stack.start(ask.clone().route(RouteWish::Speculative)))
            .collect();
        for (running, first) in running.into_iter().zip(&first) {
            let answer =
                running.finish().unwrap_or_else(|status| panic!("round {round}: {status}"));
            same_but_near_ties(first, &answer, &format!("round {round}"), &mut near_ties);
        }
        let kv = stack.snapshot().expect("it answers").kv.unwrap_or_default();
        assert!(
            kv.held_bytes + kv.prefix_bytes <= kv.budget_bytes && kv.prefix_bytes > 0,
            "{kv:?}"
        );
    }
    // And one that needs nearly all of it.
    let whole = stack.ask(prompts[0].clone().exactly(600)).expect("served");
    assert_eq!(whole.ids.len(), 600);
    stack.stop();
}

/// A tiny target with a recurrent layer and a head that predicts the token after the next, in `dir`,
/// with a tokenizer of one token a word.
fn recurrent_model(dir: &Path) {
    let golden = repository().join("models/tests/golden/mtp-dense");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(file), dir.join(file)).expect("copied");
    }
    let own = ["<end>", "<turn>", "user", "assistant"].map(str::to_owned);
    let words = own.into_iter().chain((4..56).map(|id| format!("t{id}")));
    let vocab: serde_json::Map<String, Value> =
        words.zip(0..).map(|(word, id): (String, u32)| (word, id.into())).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "added_tokens": [special(0, "<end>"), special(1, "<turn>")],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t4"},
    });
    let template = "{% for message in messages %}<turn>{{ message.role }} {{ message.content }}\
                    <end>{% endfor %}<turn>assistant ";
    let config = json!({"chat_template": template, "eos_token": "<end>"});
    for (file, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        std::fs::write(dir.join(file), value.to_string()).expect("written");
    }
}

/// `count` words, other ones for another seed.
fn words(count: u32, seed: u32) -> String {
    let word = |at: u32| format!("t{}", 8 + (at * at / 3 + at * seed + seed) % 48);
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_target_with_recurrent_layers_reuses_earlier_turns_also_after_a_swap_of_its_drafter() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    recurrent_model(dir.path());
    let model = format!("target.model = {:?}\n", dir.path());
    let without = Stack::ready(&format!("{model}drafter.model = \"\"\nkv.prefix_cache = false\n"));
    let stack = Stack::drafting(&format!("{model}drafter.model = \"target\"\n"));
    let ask = |talk: &[Message]| {
        let ask = conversation(talk.to_vec()).exactly(40);
        let plain = without.ask(ask.clone()).expect("served");
        let answer = stack.ask(ask.route(RouteWish::Speculative)).expect("served");
        assert_eq!((&answer.ids, plain.usage().cached_tokens), (&plain.ids, 0));
        answer
    };
    let mut talk = vec![message("user", &words(150, 3))];
    let first = ask(&talk);
    let target = stack.pid("target");
    // A turn has two words of the template before it and one after it.
    assert_eq!((first.usage().prompt_tokens, first.usage().cached_tokens), (155, 0));
    stack.drafter(&["swap"]);
    stack.wait_linked();
    assert_eq!(ask(&talk).usage().cached_tokens, 128);
    talk.extend([message("assistant", &first.text), message("user", &words(100, 5))]);
    let second = ask(&talk);
    assert_eq!(second.usage().cached_tokens, 128, "states before the end of the first prompt");
    // Another last turn begins with the states before that of the second prompt.
    let last_turn = 156 + first.text.split_whitespace().count() as u32;
    talk[2] = message("user", &words(100, 7));
    stack.drafter(&["stop"]);
    assert_eq!(ask(&talk).usage().cached_tokens, last_turn / PAGE * PAGE);
    stack.drafter(&["start"]);
    stack.wait_linked();
    assert_eq!(ask(&talk).usage().cached_tokens, (second.usage().prompt_tokens - 1) / PAGE * PAGE);
    assert_eq!(stack.pid("target"), target);
    stack.wait_memory_back();
    let kv = stack.snapshot().expect("it answers").kv.unwrap_or_default();
    assert!(kv.prefix_bytes > 0, "{kv:?}");
    stack.stop();
    without.stop();
}
