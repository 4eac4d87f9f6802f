//! Models against transformers, quantized ones against mlx-lm, on tiny random checkpoints, and the sampling contract against an
//! independent implementation. Values and provenance: `golden/`, remade by `make golden`.

use std::path::PathBuf;

use mlx_rs::transforms::eval;
use paceline_models::sample::noise::{NoiseKey, gumbel, philox};
use paceline_models::sample::{Block, DraftedIds, RowRule, SamplingRule, choose, verify};
use paceline_models::{
    Array, Batch, DeviceChoice, FeatureLayers, KvStore, Segment, SequenceId, Target, Wants, device,
    load_target,
};
use serde::Deserialize;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let text = std::fs::read(golden(name)).expect("the golden file is in the repository");
    serde_json::from_slice(&text).expect("it has the fields named here")
}

#[derive(Deserialize)]
struct Model {
    tap_layers: Vec<usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    logits: Vec<f32>,
    taps: Vec<Vec<f32>>,
    final_hidden: Vec<f32>,
    greedy: Vec<u32>,
}

fn segment(sequence: u64, start: usize, length: usize) -> Segment {
    Segment { sequence: SequenceId(sequence), start: start as i32, length: length as i32 }
}

fn floats(array: &Array) -> Vec<f32> {
    eval([array]).expect("evaluates");
    array
        .contiguous()
        .and_then(|array| {
            array.eval()?;
            Ok(array.try_as_slice::<f32>().expect("floats").to_vec())
        })
        .expect("contiguous")
}

fn assert_close(what: &str, expected: &[f32], found: &[f32], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{what}");
    let worst = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: worst difference {worst}, allowed {tolerance}");
}

fn greedy_rule(position: usize) -> RowRule<'static> {
    RowRule { position: position as u32, ..RowRule::greedy(&[], 0) }
}

fn store(model: &dyn Target) -> KvStore {
    KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("made")
}

fn check_model(name: &str) {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let expected: Model = read(&format!("{name}.json"));
    let mut loaded = 0;
    let model = load_target(&golden(name), &mut |read, total| {
        assert!(read >= loaded && read <= total);
        loaded = read
    })
    .expect("loads");
    assert_eq!(loaded, model.info().weight_bytes);
    check_prompts(name, &*model, &expected);
    check_answers(name, &*model, &expected);
}

/// Each prompt in one pass: logits and hidden states.
fn check_prompts(name: &str, model: &dyn Target, expected: &Model) {
    for case in &expected.cases {
        let last = case.prompt.len() as i32 - 1;
        let wants = Wants {
            logit_rows: vec![last],
            hidden_states: Some(FeatureLayers {
                layers: expected.tap_layers.clone(),
                rows: vec![last],
            }),
            final_hidden: vec![last],
        };
        let mut kv = store(model);
        kv.open(SequenceId(0)).expect("new");
        let batch = Batch::text(case.prompt.clone(), vec![segment(0, 0, case.prompt.len())]);
        let forward = model.forward(&batch, &mut kv, &wants).expect("a forward");
        let what = format!("{name}, prompt of {}", case.prompt.len());
        assert_close(
            &format!("{what}: logits"),
            &case.logits,
            &floats(forward.logits.as_ref().expect("wanted")),
            1e-3,
        );
        assert_close(
            &format!("{what}: hidden states"),
            &case.taps.concat(),
            &floats(&forward.hidden_states.as_ref().expect("wanted").side_by_side().expect("lazy")),
            1e-3,
        );
        let hidden = floats(forward.final_hidden.as_ref().expect("wanted"));
        assert_close(&format!("{what}: final hidden"), &case.final_hidden, &hidden, 1e-3);
        let head =
            model.head(&Array::from_slice(&hidden, &[1, model.info().hidden])).expect("a head");
        assert_close(
            &format!("{what}: head of the final hidden"),
            &case.logits,
            &floats(&head),
            1e-3,
        );
    }
}

/// All prompts side by side, read in chunks of 20, then decoded together.
fn check_answers(name: &str, model: &dyn Target, expected: &Model) {
    let mut kv = store(model);
    let mut ids: Vec<Vec<u32>> = expected.cases.iter().map(|case| case.prompt.clone()).collect();
    for sequence in 0..ids.len() {
        kv.open(SequenceId(sequence as u64)).expect("new");
    }
    loop {
        let wanted = |sequence: usize| {
            expected.cases[sequence].prompt.len() + expected.cases[sequence].greedy.len()
        };
        let mut segments: Vec<Segment> = (0..ids.len())
            .filter(|sequence| ids[*sequence].len() < wanted(*sequence))
            .map(|sequence| {
                let done = kv.length(SequenceId(sequence as u64)).expect("open") as usize;
                segment(sequence as u64, done, (ids[sequence].len() - done).min(20))
            })
            .collect();
        if segments.is_empty() {
            break;
        }
        segments.sort_by_key(|segment| kv.order(segment.sequence));
        let (mut rows, mut logit_rows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for segment in &segments {
            let all = &ids[segment.sequence.0 as usize];
            let end = (segment.start + segment.length) as usize;
            rows.extend_from_slice(&all[segment.start as usize..end]);
            if end == all.len() {
                logit_rows.push(rows.len() as i32 - 1);
                ends.push(segment.sequence.0 as usize);
            }
        }
        let wants = Wants { logit_rows, ..Wants::default() };
        let forward = model
            .forward(&Batch::text(rows, segments.clone()), &mut kv, &wants)
            .expect("a forward");
        if let Some(logits) = &forward.logits {
            let rules: Vec<_> =
                ends.iter().map(|sequence| greedy_rule(ids[*sequence].len())).collect();
            for (sequence, choice) in ends.iter().zip(choose(logits, &rules, &[]).expect("choices"))
            {
                ids[*sequence].push(choice.token);
            }
        }
        for segment in &segments {
            kv.commit(segment.sequence, segment.start + segment.length).expect("commits");
        }
    }
    for (case, ids) in expected.cases.iter().zip(&ids) {
        assert_eq!(
            case.greedy,
            ids[case.prompt.len()..],
            "{name}, prompt of {}",
            case.prompt.len()
        );
    }
}

#[test]
fn qwen3_tied_float32_single_file() {
    check_model("qwen3-tiny");
}

#[test]
fn qwen3_untied_bfloat16_sharded() {
    check_model("qwen3-tiny-untied");
}

#[test]
fn qwen3_float16() {
    check_model("qwen3-tiny-f16");
}

#[test]
fn qwen3_of_four_bits_with_overrides_and_a_tied_quantized_embedding() {
    check_model("qwen3-tiny-q4");
}

#[test]
fn qwen3_of_eight_bits_with_a_quantized_head() {
    check_model("qwen3-tiny-q8");
}

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
        let ChoiceCase { temperature, top_k, top_p, min_p, .. } = *case;
        let sampling = SamplingRule { temperature, top_k, top_p, min_p, ..SamplingRule::GREEDY };
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
        let ChoiceCase { temperature, top_k, top_p, min_p, .. } = case.choice;
        let ProcessedCase { repetition_penalty, presence_penalty, frequency_penalty, .. } = *case;
        let sampling = SamplingRule {
            temperature,
            top_k,
            top_p,
            min_p,
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
