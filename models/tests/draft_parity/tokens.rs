//! The drafters that return token ids, DFlash 2 and DSpark, against a reference loop on tiny
//! trained pairs. Values and provenance: `golden/`, remade by its draft_tokens.py.

use std::path::Path;

use mlx_rs::ops::indexing::TryIndexOp;
use paceline_models::sample::SamplingRule;
use paceline_models::sample::noise::NoiseKey;
use paceline_models::{
    Array, BlockRequest, DraftPart, Quantize, SequenceId, TokenDraft, load_draft,
};
use safetensors::tensor::{SafeTensors, TensorView};
use serde::Deserialize;

use crate::pair::{Pair, golden, ids, read};
use crate::{packed, prompt, random, some_rows, with_config};

pub const NAMES: [&str; 4] =
    ["dflash2-tiny", "dspark-deepseek", "dspark-speculators", "dspark-gemma4"];

#[derive(Deserialize)]
struct Reference {
    undecided: f32,
    rows: i32,
    rules: std::collections::BTreeMap<String, Rule>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Rule {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: u64,
    sample: u32,
}

#[derive(Deserialize)]
struct Case {
    rule: String,
    prompt: Vec<u32>,
    ids: Vec<u32>,
    cycles: Vec<Cycle>,
}

#[derive(Deserialize)]
struct Cycle {
    drafted: Vec<u32>,
    accepted: usize,
    chosen: Vec<u32>,
    draft_margins: Vec<f32>,
    end_margins: Vec<f32>,
    target_margins: Vec<f32>,
}

impl Rule {
    pub fn block(&self, rows: i32, bonus_id: u32) -> BlockRequest {
        let Self { temperature, top_k, top_p, min_p, seed, sample } = *self;
        let sampling = SamplingRule { temperature, top_k, top_p, min_p, ..SamplingRule::GREEDY };
        let noise = NoiseKey { seed, sample };
        BlockRequest { rows, bonus_id, sampling, noise, least_survival: 0.0 }
    }
}

/// Compares a draft up to the first choice that the reference was undecided of: what comes after it
/// depends on it. Returns how many choices were not compared.
fn compare(found: &[u32], cycle: &Cycle, undecided: f32, what: &str) -> usize {
    let open = |margins: &[f32]| margins.iter().position(|margin| *margin < undecided);
    let choice = open(&cycle.draft_margins).unwrap_or(cycle.drafted.len());
    let end = open(&cycle.end_margins).unwrap_or(cycle.drafted.len() + 1);
    let decided = choice.min(end);
    if decided < cycle.drafted.len() || end <= cycle.drafted.len() {
        let decided = decided.min(found.len());
        assert_eq!(found[..decided], cycle.drafted[..decided], "{what}");
    } else {
        assert_eq!(found, cycle.drafted, "{what}");
    }
    cycle.drafted.len() - choice.min(cycle.drafted.len())
}

/// Our drafts beside the reference's, whose choices the runs go on with.
pub fn follow_reference(name: &str, rule_name: &str) {
    let expected: Reference = read(&golden(&format!("{name}.json")));
    let rule = &expected.rules[rule_name];
    let mut pair = Pair::golden(name);
    assert_eq!(pair.drafter.info().block, expected.rows);
    let (mut compared, mut left_out) = (0, 0);
    let cases = expected.cases.iter().filter(|case| case.rule == rule_name);
    for (session, case) in (0..).zip(cases) {
        pair.open(session);
        let (first, mut states) = pair.prefill(session, &case.prompt);
        let greedy = rule.temperature == 0.0;
        assert!(!greedy || first == case.ids[0], "{name}");
        let (mut bonus, mut position) = (case.ids[0], 0);
        for (at, cycle) in case.cycles.iter().enumerate() {
            let what = format!("{name}, {rule_name}, prompt of {}, cycle {at}", case.prompt.len());
            let part = DraftPart {
                sequence: SequenceId(session),
                position,
                context: states.dim(0),
                next_id: None,
                block: Some(rule.block(expected.rows, bonus)),
            };
            let drafted = pair.draft_ids(part, &states);
            position += states.dim(0);
            assert_eq!(pair.draft_kv.length(SequenceId(session)), Some(position), "{what}");
            let undecided = pair.undecided(expected.undecided);
            left_out += compare(&drafted, cycle, undecided, &what);
            compared += cycle.drafted.len();
            let rows = [&[bonus], &cycle.drafted[..]].concat();
            let (chosen, all) = pair.verified_rows(session, &rows, cycle.drafted.len());
            let decided = cycle.target_margins.iter().all(|margin| *margin >= undecided);
            if greedy && decided {
                assert_eq!(ids(&chosen[..=cycle.accepted]), cycle.chosen, "{what}");
            }
            let committed = cycle.accepted as i32 + 1;
            states = all.try_index((..committed, ..)).expect("rows");
            let length = pair.target_kv.length(SequenceId(session)).expect("open") + committed;
            pair.target_kv.commit(SequenceId(session), length).expect("commits");
            bonus = *cycle.chosen.last().expect("one at least");
        }
    }
    eprintln!("{name}, {rule_name}: {compared} drafts, {left_out} of them undecided");
    assert!(compared > 100 && left_out * 20 < compared, "{name}: nearly all drafts are compared");
}

#[test]
fn greedy_drafts_of_ids_follow_the_reference() {
    NAMES.iter().for_each(|name| follow_reference(name, "greedy"));
}

#[test]
fn sampled_drafts_of_ids_follow_the_reference_by_the_target_s_noise() {
    NAMES.iter().for_each(|name| follow_reference(name, "sampled"));
}

fn warm(seed: u64) -> Rule {
    Rule { temperature: 0.8, top_k: 20, top_p: 0.9, min_p: 0.01, seed, sample: 1 }
}

pub fn cold() -> Rule {
    Rule { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, sample: 0 }
}

#[test]
fn sessions_that_draft_ids_together_draft_as_alone() {
    NAMES.iter().for_each(|name| draft_together_as_alone(name));
}

/// Drafts of ragged steps of several sessions are those of each session alone.
pub fn draft_together_as_alone(name: &str) {
    let (mut together, mut alone, states) = Pair::golden_twice(name);
    // (session, context, block): ragged, greedy and sampled ones, with one that only reads and
    // one that reads nothing new.
    let steps: [&[(u64, i32, i32)]; 4] = [
        &[(0, 40, 6), (1, 12, 6), (2, 33, 0), (3, 1, 4)],
        &[(0, 3, 6), (1, 8, 2), (2, 1, 5), (3, 0, 3)],
        &[(0, 30, 0), (1, 4, 0)],
        &[(0, 2, 4), (2, 2, 6)],
    ];
    let mut read_in = [0; 4];
    for step in steps {
        let (mut parts, mut rows, mut solo) = (vec![], vec![], vec![]);
        for (session, context, block) in step {
            let from = read_in[*session as usize];
            read_in[*session as usize] += context;
            let new =
                (*context > 0).then(|| some_rows(&states[*session as usize], from..from + context));
            let rule = if session % 2 == 0 { cold() } else { warm(*session) };
            parts.push(DraftPart {
                sequence: SequenceId(*session),
                position: from,
                context: *context,
                next_id: None,
                block: (*block > 0).then(|| rule.block(*block, 20 + *session as u32)),
            });
            solo.extend(alone.draft_tokens(&parts[parts.len() - 1..], new.as_slice()));
            rows.extend(new);
        }
        assert_eq!(together.draft_tokens(&parts, &rows), solo, "{name}");
    }
}

#[test]
fn quantized_weights_and_checkpoints_draft_ids() {
    let target = golden("qwen3-tiny");
    let packed_target = packed::quantized_copy(&target, 8);
    for kind in ["dflash2", "dspark"] {
        let floats = random::drafter(kind);
        let packed = packed::quantized_copy(floats.path(), 8);
        let draft_for = |target: &Path, dir: &Path, quantize: Quantize| {
            let mut pair = Pair::load(target, dir, quantize);
            pair.open(0);
            let states = pair.prefill(0, &prompt(30, 1)).1;
            let part = DraftPart {
                sequence: SequenceId(0),
                position: 0,
                context: 30,
                next_id: None,
                block: Some(cold().block(8, 20)),
            };
            let mut drafts = pair.draft_tokens(&[part], std::slice::from_ref(&states));
            drafts.swap_remove(0)
        };
        let draft = |dir: &Path, quantize: Quantize| draft_for(&target, dir, quantize);
        let plain = draft(floats.path(), Quantize::None);
        assert_eq!(plain.ids.len(), 7, "{kind}");
        for (what, TokenDraft { ids, .. }) in [
            ("q8", draft(floats.path(), Quantize::Q8)),
            ("q4", draft(floats.path(), Quantize::Q4)),
            ("a checkpoint of 8 bits", draft(packed.path(), Quantize::None)),
            ("a head of 8 bits", draft_for(packed_target.path(), floats.path(), Quantize::None)),
        ] {
            assert!(ids.len() == 7 && ids.iter().all(|id| *id < 288), "{kind}, {what}: {ids:?}");
            let same = ids.iter().zip(&plain.ids).take_while(|(a, b)| a == b).count();
            eprintln!("{kind}, {what}: the first {same} of 7 drafts are those of floats");
            assert!(what == "q4" || same > 0, "{kind}, {what}: {ids:?}, {:?}", plain.ids);
        }
    }
}

/// A copy of the golden target whose head and embedding lie elsewhere.
fn target_with(
    head: &str,
    embedding: &str,
    config: impl Fn(&mut serde_json::Value),
) -> tempfile::TempDir {
    let dir = with_config("dflash-target", config);
    let bytes = std::fs::read(golden("dflash-target").join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let table = tensors.tensor("model.embed_tokens.weight").expect("it is tied");
    let nothing = vec![0u8; table.data().len()];
    let other = TensorView::new(table.dtype(), table.shape().to_vec(), &nothing).expect("as many");
    let all = [(head.to_owned(), table), (embedding.to_owned(), other)];
    let file = safetensors::serialize(all, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}

/// Drafts of the golden drafter `name` after a prompt, with the head of the target in `target`.
pub fn drafts_with_head_of(name: &str, target: &Path) -> Vec<u32> {
    let mut pair = Pair::golden(name);
    pair.open(0);
    let states = pair.prefill(0, &prompt(30, 1)).1;
    let part = DraftPart {
        sequence: SequenceId(0),
        position: 0,
        context: 30,
        next_id: None,
        block: Some(cold().block(8, 20)),
    };
    let loaded = load_draft(&golden(name), "auto", Some(target), Quantize::None, &mut |_, _| {});
    pair.drafter = loaded.expect("loads");
    pair.draft_tokens(&[part], std::slice::from_ref(&states)).swap_remove(0).ids
}

#[test]
fn the_head_is_found_in_every_layout() {
    let draft = |target: &Path| drafts_with_head_of("dflash2-tiny", target);
    let expected = draft(&golden("dflash-target"));
    for (head, embedding) in [
        ("lm_head.weight", "model.embed_tokens.weight"),
        ("lm_head.weight", "model.language_model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
    ] {
        let untied = target_with(head, embedding, |config| {
            config["tie_word_embeddings"] = false.into();
        });
        assert_eq!(draft(untied.path()), expected, "{head}, {embedding}");
        // A head in the file would count (`newest_saves`).
        let tied = target_with(embedding, "other.weight", |_| {});
        assert_eq!(draft(tied.path()), expected, "{embedding}");
    }
}

#[test]
fn not_a_number_in_one_session_stays_in_it() {
    NAMES.iter().for_each(|name| keep_a_fault_in_its_session(name));
}

/// Hidden states that are no numbers do not change the drafts of another session.
pub fn keep_a_fault_in_its_session(name: &str) {
    let mut pair = Pair::golden(name);
    (0..2).for_each(|session| pair.open(session));
    let states = pair.prefill(0, &prompt(20, 1)).1;
    let part = |session: u64| DraftPart {
        sequence: SequenceId(session),
        position: 0,
        context: 20,
        next_id: None,
        block: Some(cold().block(6, 20)),
    };
    let nothing = Array::from_slice(&vec![f32::NAN; states.size()], states.shape());
    let both = pair.draft_tokens(&[part(0), part(1)], &[nothing, states.clone()]);
    assert!(both[0].ids.iter().all(|id| *id < 56), "{name}: {both:?}");
    pair.open(2);
    let alone = pair.draft_tokens(&[part(2)], std::slice::from_ref(&states));
    assert_eq!(both[1], alone[0], "{name}");
}
