//! Every sampler through all processes, with the real pair. Forced speculation gives the tokens and
//! the log-probabilities of plain decoding (I1). Each sampler has its effect, and a wrong value is
//! refused with its name (I5).

use std::collections::HashSet;

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{self, FinishReason, LogitBias, RouteWish};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Stack, chat};
use tonic_types::StatusExt as _;

/// Tokens of an answer.
const TOKENS: u32 = 40;
/// How far log-probabilities may be apart in two lanes (natural logarithm).
const NEAR: f32 = 1e-3;
/// Some id of the demo vocabulary that no answer here would begin with.
const FORCED: u32 = 777;

fn with(mut ask: Ask, set: impl FnOnce(&mut v1::Sampling, &mut v1::Limits)) -> Ask {
    let (mut sampling, mut limits) = (ask.sampling().clone(), ask.limits().clone());
    set(&mut sampling, &mut limits);
    (*ask.sampling(), *ask.limits()) = (sampling, limits);
    ask
}

fn bias(ids: impl IntoIterator<Item = u32>, by: f32) -> Vec<LogitBias> {
    let mut seen = HashSet::new();
    ids.into_iter()
        .filter(|id| seen.insert(*id))
        .map(|token_id| LogitBias { token_id, bias: by })
        .collect()
}

type Way = (&'static str, fn(&mut v1::Sampling, &mut v1::Limits, &[u32]));

fn warm(sampling: &mut v1::Sampling, temperature: f32) {
    (sampling.temperature, sampling.seed) = (Some(temperature), Some(41));
}

/// Each sampler alone and together, by a prompt's greedy ids.
fn ways() -> Vec<Way> {
    vec![
        ("greedy", |_, _, _| {}),
        ("temperature", |s, _, _| warm(s, 0.8)),
        ("top_k", |s, _, _| {
            warm(s, 1.2);
            s.top_k = Some(3);
        }),
        ("top_p", |s, _, _| {
            warm(s, 1.5);
            s.top_p = Some(0.8);
        }),
        ("min_p", |s, _, _| {
            warm(s, 1.3);
            s.min_p = Some(0.05);
        }),
        ("top_a", |s, _, _| {
            warm(s, 1.3);
            s.top_a = Some(0.2);
        }),
        ("repetition", |s, _, _| s.repetition_penalty = Some(1.3)),
        ("presence", |s, _, _| s.presence_penalty = Some(2.0)),
        ("frequency", |s, _, _| s.frequency_penalty = Some(1.5)),
        ("encouraged", |s, _, _| {
            warm(s, 0.7);
            (s.presence_penalty, s.frequency_penalty) = (Some(-0.5), Some(-0.1));
        }),
        ("forbidden", |s, _, greedy| s.logit_bias = bias(greedy.iter().take(6).copied(), -100.0)),
        ("forced", |s, l, _| {
            s.logit_bias = bias([FORCED], 100.0);
            l.ignore_eos = true;
        }),
        ("min_tokens", |_, l, greedy| {
            (l.min_tokens, l.stop_token_ids) = (12, greedy[..5].to_vec())
        }),
        ("all", |s, l, greedy| {
            warm(s, 0.9);
            (s.top_k, s.top_p, s.min_p) = (Some(50), Some(0.95), Some(0.01));
            s.top_a = Some(0.02);
            (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) =
                (Some(1.1), Some(0.3), Some(0.2));
            s.logit_bias = bias(greedy.iter().take(4).copied(), 1.5);
            (l.min_tokens, l.stop_token_ids) = (8, greedy[..3].to_vec());
        }),
    ]
}

/// Log-probabilities of both up to where they part; the largest distance.
fn close(plain: &Answer, other: &Answer, what: &str) -> f32 {
    assert_eq!(
        (plain.logprobs.len(), other.logprobs.len()),
        (plain.ids.len(), other.ids.len()),
        "{what}: one for each token"
    );
    let same = plain.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count();
    let all = |one: &v1::TokenLogprobs| -> Vec<f32> {
        std::iter::once(one.logprob).chain(one.top.iter().map(|top| top.logprob)).collect()
    };
    let pairs = plain.logprobs.iter().zip(&other.logprobs).take(same);
    let worst = pairs.fold(0.0f32, |worst, (a, b)| {
        let (a, b) = (all(a), all(b));
        assert_eq!((a.len(), b.len()), (4, 4), "{what}: the chosen one and three more");
        a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(worst, f32::max)
    });
    assert!(worst <= NEAR, "{what}: log-probabilities differ by {worst}");
    worst
}

/// Whether the answer shows the effect of the way `name`.
fn met(name: &str, plain: &Answer, greedy: &[u32]) -> bool {
    let ids = &plain.ids;
    let chosen = |fits: &dyn Fn(u32, &v1::TokenLogprobs) -> bool| {
        ids.iter().zip(&plain.logprobs).all(|(id, one)| fits(*id, one))
    };
    match name {
        "top_k" => chosen(&|id, one| one.top.iter().any(|top| top.token_id == id)),
        "top_p" => chosen(&|_, one| {
            let before =
                one.top.iter().filter(|top| top.logprob > one.logprob).map(|top| top.logprob.exp());
            before.sum::<f32>() < 0.8 + 1e-4
        }),
        "min_p" => chosen(&|_, one| one.logprob >= one.top[0].logprob + 0.05f32.ln() - 1e-4),
        "top_a" => chosen(&|_, one| one.logprob >= 0.2f32.ln() + 2.0 * one.top[0].logprob - 1e-4),
        "greedy" => ids == greedy,
        "forbidden" => !ids.iter().any(|id| greedy[..6].contains(id)),
        "forced" => ids.len() == TOKENS as usize && ids.iter().all(|id| *id == FORCED),
        "min_tokens" => {
            ids.len() >= 12 && !ids[..12].iter().any(|id| *id == 2 || greedy[..5].contains(id))
        }
        "all" => ids.len() >= 8 && !ids[..8].iter().any(|id| *id == 2 || greedy[..3].contains(id)),
        _ => true,
    }
}

#[test]
// More than 60 lines: a table, one case a row.
fn lanes_agree_on_tokens_and_log_probabilities_with_every_sampler() {
    let stack = Stack::drafting("");
    let prompts: Vec<Prompt> = some_of_each(1)
        .into_iter()
        .map(|prompt| Prompt { ask: prompt.ask.max_tokens(TOKENS), ..prompt })
        .collect();
    let greedy: Vec<Answer> = prompts
        .iter()
        .map(|prompt| stack.ask(reference(prompt.ask.clone().with_logprobs(3))).expect("served"))
        .collect();
    let (mut near_ties, mut worst, mut changed) = (0, 0.0f32, HashSet::new());
    for (at, (name, set)) in ways().into_iter().enumerate() {
        // Two prompts for each, so that all kinds are asked.
        let of = |nth: usize| (at + 3 * nth) % prompts.len();
        let asks: Vec<Ask> = (0..2)
            .map(|nth| {
                with(prompts[of(nth)].ask.clone(), |s, l| set(s, l, &greedy[of(nth)].ids))
                    .with_logprobs(3)
            })
            .collect();
        let plain: Vec<_> = asks.iter().map(|ask| stack.start(reference(ask.clone()))).collect();
        let plain: Vec<Answer> =
            plain.into_iter().map(|pending| pending.finish().expect("served")).collect();
        let fast = |ask: &Ask| ask.clone().route(RouteWish::Speculative);
        let alone: Vec<Answer> =
            asks.iter().map(|ask| stack.ask(fast(ask)).expect("served")).collect();
        let together: Vec<_> = asks.iter().chain(&asks).map(|ask| stack.start(fast(ask))).collect();
        let together: Vec<Answer> =
            together.into_iter().map(|pending| pending.finish().expect("served")).collect();
        for (nth, plain) in plain.iter().enumerate() {
            assert!(
                met(name, plain, &greedy[of(nth)].ids),
                "{name}: {:?}, greedy {:?}",
                plain.ids,
                greedy[of(nth)].ids
            );
            if plain.ids != greedy[of(nth)].ids || plain.logprobs != greedy[of(nth)].logprobs {
                changed.insert(name);
            }
            for (how, other) in
                [("alone", &alone[nth]), ("beside", &together[nth]), ("beside", &together[nth + 2])]
            {
                let what = format!("{name}, {} {how}", prompts[of(nth)].kind);
                same_but_near_ties(plain, other, &what, &mut near_ties);
                worst = worst.max(close(plain, other, &what));
            }
        }
        let (cycles, drafted, accepted) = alone
            .iter()
            .map(Answer::speculation)
            .fold((0, 0, 0), |(c, d, a), one| (c + one.cycles, d + one.drafted, a + one.accepted));
        println!("{name}: {accepted} of {drafted} accepted in {cycles} cycles");
        assert!(cycles > 0, "{name}: nothing was drafted");
        // Drafts go by the same rule as the target's choice.
        assert!(name != "forced" || accepted == drafted, "{accepted} of {drafted}");
    }
    println!("{near_ties} near-ties; log-probabilities differ by at most {worst}");
    assert!(near_ties <= 1, "{near_ties} near-ties");
    assert_eq!(
        changed.len(),
        ways().len() - 1,
        "each changes a distribution but greedy itself: {changed:?}"
    );
    stack.stop();
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn limits_end_an_answer_exactly() {
    let stack = Stack::drafting("");
    let prompts = some_of_each(2);
    let both = |ask: &Ask| {
        let [plain, fast] = [RouteWish::Plain, RouteWish::Speculative]
            .map(|wish| stack.ask(ask.clone().route(wish)).expect("served"));
        assert_eq!(plain.ids, fast.ids);
        assert_eq!(plain.end.finish_reason(), fast.end.finish_reason());
        plain
    };
    // An answer that ends by itself.
    let (ask, whole) = prompts
        .iter()
        .map(|prompt| (prompt.ask.clone(), stack.ask(prompt.ask.clone()).expect("served")))
        .find(|(_, answer)| {
            answer.end.finish_reason() == FinishReason::Stop && answer.ids.len() > 10
        })
        .expect("one of twelve answers ends by itself");
    let length = whole.ids.len();
    assert_eq!(whole.ids.last(), Some(&2), "the end-of-sequence token is part of it");

    let longer = both(&with(ask.clone(), |_, limits| limits.min_tokens = length as u32 + 5));
    assert_eq!(longer.ids[..length - 1], whole.ids[..length - 1]);
    assert!(
        longer.ids.len() > length + 5 && !longer.ids[..length + 5].contains(&2),
        "{:?}",
        longer.ids
    );
    // Reached already: nothing changes.
    assert_eq!(
        both(&with(ask.clone(), |_, limits| limits.min_tokens = length as u32 - 1)).ids,
        whole.ids
    );

    let stop = whole.ids[7];
    let first = whole.ids.iter().position(|id| *id == stop).expect("it is there");
    for ignore_eos in [false, true] {
        let cut = both(&with(ask.clone(), |_, limits| {
            (limits.stop_token_ids, limits.ignore_eos) = (vec![stop], ignore_eos)
        }));
        assert_eq!(
            (cut.ids.as_slice(), cut.end.finish_reason()),
            (&whole.ids[..=first], FinishReason::Stop)
        );
    }
    // One that never comes.
    assert_eq!(
        both(&with(ask.clone(), |_, limits| limits.stop_token_ids = vec![FORCED])).ids,
        whole.ids
    );

    // On the command line, too.
    let words = [
        "generate",
        "--message",
        "List three fruits.",
        "--json",
        "--logprobs",
        "2",
        "--temperature",
        "0",
        "--max-tokens",
        "4",
    ];
    let output = stack
        .paceline(&[&words[..], &["--logit-bias", "777=100", "--min-tokens", "4"]].concat(), "");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["token_ids"], serde_json::json!([777, 777, 777, 777]));
    for one in object["logprobs"].as_array().expect("one for each token") {
        assert_eq!(one["top"].as_array().map(Vec::len), Some(2), "{one}");
        assert_eq!(one["top"][0]["token_id"], 777, "{one}");
        assert!(one["logprob"].as_f64().is_some_and(|log| log > -1e-3), "{one}");
    }
    stack.stop();
}

#[test]
fn a_wrong_value_is_refused_by_its_name() {
    let stack = Stack::ready("");
    let hi = || chat("hi").max_tokens(4);
    let biased = |list: Vec<LogitBias>| with(hi(), |s, _| s.logit_bias = list);
    let one = |token_id, bias| LogitBias { token_id, bias };
    let cases: Vec<(&str, Ask)> = vec![
        ("sampling.presence_penalty", with(hi(), |s, _| s.presence_penalty = Some(2.5))),
        ("sampling.presence_penalty", with(hi(), |s, _| s.presence_penalty = Some(f32::NAN))),
        ("sampling.frequency_penalty", with(hi(), |s, _| s.frequency_penalty = Some(-2.5))),
        (
            "sampling.frequency_penalty",
            with(hi(), |s, _| s.frequency_penalty = Some(f32::INFINITY)),
        ),
        ("sampling.logit_bias[0].bias", biased(vec![one(5, 101.0)])),
        ("sampling.logit_bias[1].bias", biased(vec![one(5, 1.0), one(6, f32::NAN)])),
        ("sampling.logit_bias[1].token_id", biased(vec![one(5, 1.0), one(5, 2.0)])),
        ("sampling.logit_bias[0].token_id", biased(vec![one(1 << 30, 1.0)])),
        ("sampling.logit_bias", biased((0..1025).map(|id| one(id, 1.0)).collect())),
        ("limits.min_tokens", with(hi(), |_, l| l.min_tokens = 5)),
        ("limits.stop_token_ids[1]", with(hi(), |_, l| l.stop_token_ids = vec![5, 1 << 30])),
        ("limits.stop_token_ids", with(hi(), |_, l| l.stop_token_ids = (0..65).collect())),
        ("logprobs", hi().with_logprobs(21)),
    ];
    for (field, ask) in cases {
        let status = stack.ask(ask.clone()).expect_err(field);
        assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument), "{field}: {status:?}");
        let named =
            status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone());
        assert_eq!(named.as_deref(), Some(field));
        assert!(
            status.message().contains("expected") && status.message().contains("found"),
            "{}",
            status.message()
        );
    }
    // None of it did any harm.
    assert_eq!(stack.ask(hi()).expect("served").ids.len(), 4);
    stack.stop();
}
