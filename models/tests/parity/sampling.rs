//! The sampling contract against an independent implementation.

use paceline_models::sample::noise::{NoiseKey, gumbel, philox};
use paceline_models::sample::{Block, DraftedIds, RowRule, SamplingRule, choose, verify};
use paceline_models::{Array, DeviceChoice, device};
use serde::Deserialize;

use crate::model::{greedy_rule, read};

#[derive(Deserialize)]
struct SamplingGolden {
    philox: Vec<PhiloxCase>,
    noise: Vec<NoiseCase>,
    extremes: Vec<ExtremeCase>,
    choices: Vec<ChoiceCase>,
    processed: Vec<ProcessedCase>,
}

#[derive(Deserialize)]
struct PhiloxCase {
    counter: [u32; 4],
    key: [u32; 2],
    out: [u32; 4],
}

#[derive(Deserialize)]
struct NoiseCase {
    seed: u64,
    sample: u32,
    position: u32,
    id: u32,
    word: u32,
    noise: f64,
    tolerance: f64,
}

#[derive(Deserialize)]
struct ExtremeCase {
    word: u32,
    noise: f64,
    tolerance: f64,
}

#[derive(Deserialize)]
struct ChoiceCase {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    #[serde(default)]
    top_a: f32,
    seed: u64,
    sample: u32,
    position: u32,
    token: u32,
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct ProcessedCase {
    #[serde(flatten)]
    choice: ChoiceCase,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    bias: Vec<(u32, f32)>,
    stop_ids: Vec<u32>,
    min_tokens: u32,
    history: Vec<u32>,
    prompt_len: usize,
    logprobs: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

#[test]
fn noise_equals_the_golden_numbers() {
    let golden: SamplingGolden = read("sampling.json");
    for case in &golden.philox {
        assert_eq!(philox(case.counter, case.key), case.out);
    }
    for case in &golden.noise {
        let key = NoiseKey { seed: case.seed, sample: case.sample };
        assert_eq!(key.words(case.position, case.id / 4)[(case.id % 4) as usize], case.word);
        assert!(
            (f64::from(key.noise(case.position, case.id)) - case.noise).abs() <= case.tolerance,
            "id {}",
            case.id
        );
    }
    for case in &golden.extremes {
        assert!(
            (f64::from(gumbel(case.word)) - case.noise).abs() <= case.tolerance,
            "word {}",
            case.word
        );
    }
}

#[test]
fn choices_equal_the_golden_ids() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let golden: SamplingGolden = read("sampling.json");
    for (at, case) in golden.choices.iter().enumerate() {
        let ChoiceCase { temperature, top_k, top_p, min_p, top_a, .. } = *case;
        let sampling =
            SamplingRule { temperature, top_k, top_p, min_p, top_a, ..SamplingRule::GREEDY };
        sampling.check().expect("in range");
        let rule = RowRule {
            sampling,
            noise: NoiseKey { seed: case.seed, sample: case.sample },
            position: case.position,
            ..greedy_rule(0)
        };
        // Beside a greedy row with padding, so that both ways of choosing run in one call.
        let vocab = case.logits.len();
        let logits = Array::from_slice(
            &[case.logits.clone(), case.logits.clone()].concat(),
            &[2, vocab as i32],
        );
        let chosen = choose(&logits, &[greedy_rule(0), rule], &[]).expect("choices");
        assert_eq!(chosen[1].token, case.token, "case {at}");
        let with_margin =
            choose(&logits, &[rule, RowRule { wants_margin: true, ..rule }], &[]).expect("choices");
        assert_eq!(
            (with_margin[0].token, with_margin[1].token),
            (case.token, case.token),
            "case {at}"
        );
        // Ties between equal logits are among the greedy cases on purpose.
        let decided = case.temperature == 0.0 || with_margin[1].margin > 5e-4;
        assert!(
            decided,
            "case {at}: the cases are decided, found margin {}",
            with_margin[1].margin
        );
    }
}

// More than 60 lines: the golden fields in their order.
#[test]
fn processors_and_log_probabilities_equal_the_golden_numbers() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let golden: SamplingGolden = read("sampling.json");
    assert!(golden.processed.len() >= 40);
    for (at, case) in golden.processed.iter().enumerate() {
        let ChoiceCase { temperature, top_k, top_p, min_p, top_a, .. } = case.choice;
        let ProcessedCase { repetition_penalty, presence_penalty, frequency_penalty, .. } = *case;
        let sampling = SamplingRule {
            temperature,
            top_k,
            top_p,
            min_p,
            top_a,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
        };
        sampling.check().expect("in range");
        let rule = RowRule {
            sampling,
            bias: &case.bias,
            stop_ids: &case.stop_ids,
            min_tokens: case.min_tokens,
            noise: NoiseKey { seed: case.choice.seed, sample: case.choice.sample },
            position: case.choice.position,
            logprobs: Some(case.logprobs),
            ..RowRule::greedy(&case.history, case.prompt_len)
        };
        let vocab = case.choice.logits.len();
        let logits = Array::from_slice(
            &[case.choice.logits.clone(), case.choice.logits.clone()].concat(),
            &[2, vocab as i32],
        );
        let beside = Block { rule: RowRule { logprobs: None, ..rule }, drafted: 0 };
        let verdicts = verify(
            &logits,
            &[Block { rule, drafted: 0 }, beside],
            &DraftedIds::OnHost(vec![]),
            &[],
        )
        .expect("choices");
        let tokens: Vec<u32> = verdicts.iter().map(|verdict| verdict.choices[0].token).collect();
        assert_eq!(tokens, [case.choice.token; 2], "case {at}");
        assert!(verdicts[1].logprobs.is_empty(), "case {at}: none were asked for");
        let [found] = verdicts[0].logprobs.as_slice() else {
            panic!("case {at}: one choice, {:?}", verdicts[0].logprobs)
        };
        let near = |a: f32, b: f32| (a - b).abs() < 1e-4;
        assert!(
            near(found.chosen, case.logprob),
            "case {at}: {} for {}",
            found.chosen,
            case.logprob
        );
        assert_eq!(found.top.len(), case.top.len(), "case {at}");
        for ((id, log), (expected_id, expected)) in found.top.iter().zip(&case.top) {
            assert!(
                id == expected_id && near(*log, *expected),
                "case {at}: {:?} for {:?}",
                found.top,
                case.top
            );
        }
    }
}
