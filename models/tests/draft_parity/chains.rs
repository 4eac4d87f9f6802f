//! Drafters that choose one token a forward beside their references, and what every one of them must
//! keep to: sessions together are sessions alone, and the cut of the context does not matter.

use std::path::Path;

use mlx_rs::ops::{concatenate, indexing::TryIndexOp};
use mlx_rs::transforms::eval;
use paceline_models::sample::noise::NoiseKey;
use paceline_models::sample::{RowRule, SamplingRule, choose};
use paceline_models::{
    Array, Batch, BlockRequest, DraftBatch, DraftPart, FeatureLayers, ModelError, Proposal,
    Quantize, Segment, SequenceId, TokenDraft, Wants,
};
use serde::Deserialize;

use crate::pair::{Pair, golden, read};
use crate::prompt;

#[derive(Deserialize)]
struct Reference {
    undecided: f32,
    seed: u64,
    sample: u32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    temperature: f32,
    out: Vec<u32>,
    cycles: Vec<Cycle>,
}

#[derive(Deserialize)]
struct Cycle {
    block: i32,
    drafted: Vec<u32>,
    accepted: usize,
    draft_margins: Vec<f32>,
    target_margins: Vec<f32>,
}

/// How a sequence samples.
#[derive(Clone, Copy)]
pub struct Rule {
    pub sampling: SamplingRule,
    pub noise: NoiseKey,
}

impl Rule {
    pub fn greedy() -> Self {
        Self::at(0.0, 0)
    }

    pub fn at(temperature: f32, seed: u64) -> Self {
        let sampling = SamplingRule { temperature, ..SamplingRule::GREEDY };
        Self { sampling, noise: NoiseKey { seed, sample: 0 } }
    }

    pub fn block(self, rows: i32, bonus_id: u32) -> Option<BlockRequest> {
        let Self { sampling, noise } = self;
        Some(BlockRequest { rows, bonus_id, sampling, noise, least_survival: 0.0 })
    }
}

/// Committed tokens of a session: ids, and the target's hidden states if the drafter reads them.
#[derive(Clone)]
pub struct Rows {
    pub ids: Vec<u32>,
    pub states: Option<Array>,
}

impl Rows {
    pub fn cut(&self, rows: std::ops::Range<usize>) -> Self {
        let (first, end) = (rows.start as i32, rows.end as i32);
        let cut = |states: &Array| states.try_index((first..end, ..)).expect("rows");
        Self { ids: self.ids[rows].to_vec(), states: self.states.as_ref().map(cut) }
    }
}

/// The target's logits after each of `ids` at the session's end, and their rows. Nothing is
/// committed; the last `drafted` rows need not be.
fn target_rows(pair: &mut Pair, session: u64, ids: &[u32], drafted: usize) -> (Array, Rows) {
    let (sequence, length) = (SequenceId(session), ids.len() as i32);
    let start = pair.target_kv.length(sequence).expect("open");
    let all: Vec<i32> = (0..length).collect();
    let layers = pair.drafter.info().feature_layers.clone();
    let features = (!layers.is_empty()).then(|| FeatureLayers { layers, rows: all.clone() });
    let wants = Wants { logit_rows: all, hidden_states: features, ..Wants::default() };
    let segment = Segment { sequence, start, length, drafted: drafted as i32 };
    let batch = Batch::text(ids.to_vec(), vec![segment]);
    let forward = pair.target.forward(&batch, &mut pair.target_kv, &wants).expect("a forward");
    let states = forward.hidden_states.map(|states| states.side_by_side().expect("lazy"));
    eval(&states).expect("evaluates");
    (forward.logits.expect("wanted"), Rows { ids: ids.to_vec(), states })
}

/// Reads ids into the target after those of the session: the token after them, and their rows.
pub fn prefill(pair: &mut Pair, session: u64, prompt: &[u32], rule: Rule) -> (u32, Rows) {
    let (logits, rows) = target_rows(pair, session, prompt, 0);
    let length = prompt.len() as i32;
    let end = pair.target_kv.length(SequenceId(session)).expect("open") + length;
    pair.target_kv.commit(SequenceId(session), end).expect("commits");
    let last = logits.try_index((length - 1..length, ..)).expect("a row");
    (choices(&last, end as usize, rule)[0], rows)
}

/// The target's choices from rows of logits, the first for the token at `position`.
fn choices(logits: &Array, position: usize, rule: Rule) -> Vec<u32> {
    let row = |at: i32| RowRule {
        sampling: rule.sampling,
        noise: rule.noise,
        position: position as u32 + at as u32,
        ..RowRule::greedy(&[], 0)
    };
    let rules: Vec<_> = (0..logits.dim(0)).map(row).collect();
    choose(logits, &rules, &[]).expect("chosen").iter().map(|choice| choice.token).collect()
}

/// Drafts from one call of the drafter, for the parts with a block.
pub fn propose(
    pair: &mut Pair,
    parts: &[DraftPart],
    rows: &[Rows],
) -> Result<Vec<TokenDraft>, ModelError> {
    let states: Vec<_> = rows.iter().filter_map(|rows| rows.states.clone()).collect();
    let states = (!states.is_empty()).then(|| concatenate(&states, 0).expect("joined"));
    let batch = DraftBatch {
        parts: parts.to_vec(),
        hidden_states: states,
        ids: rows.iter().flat_map(|rows| rows.ids.clone()).collect(),
        embeddings: None,
        images: vec![],
    };
    match pair.drafter.propose(&batch, &mut pair.draft_kv)? {
        None => Ok(vec![]),
        Some(Proposal::Tokens(drafts)) => Ok(drafts),
        Some(Proposal::Hidden(_)) => panic!("expected ids"),
    }
}

/// A part that reads `context` rows from `position`, with the token after them and maybe a block.
pub fn part(
    session: u64,
    position: usize,
    context: usize,
    next: u32,
    block: Option<BlockRequest>,
) -> DraftPart {
    let (position, context) = (position as i32, context as i32);
    DraftPart { sequence: SequenceId(session), position, context, next_id: Some(next), block }
}

/// One session's draft of `rows` new rows and a block.
pub fn draft(
    pair: &mut Pair,
    session: u64,
    position: usize,
    rows: &Rows,
    block: Option<BlockRequest>,
) -> Vec<u32> {
    let bonus = block.expect("a block is asked for").bonus_id;
    let part = part(session, position, rows.ids.len(), bonus, block);
    propose(pair, &[part], std::slice::from_ref(rows)).expect("a forward").swap_remove(0).ids
}

/// Our loop beside the reference's: (accepted, drafted) of all cycles. A draft after an undecided
/// one is not compared, because it may follow another token.
pub fn follow_reference(name: &str, target: &str) {
    follow_file(name, name, target);
}

/// As [`follow_reference`], with the numbers of another golden file.
pub fn follow_file(file: &str, name: &str, target: &str) {
    let expected: Reference = read(&golden(&format!("{file}.json")));
    let mut pair = Pair::load(&golden(target), &golden(name), Quantize::None);
    let mut undecided = 0;
    for (session, case) in (0..).zip(&expected.cases) {
        let rule = Rule {
            noise: NoiseKey { seed: expected.seed, sample: expected.sample },
            ..Rule::at(case.temperature, 0)
        };
        pair.open(session);
        let (mut bonus, mut rows) = prefill(&mut pair, session, &case.prompt, rule);
        let (mut out, mut position) = (vec![bonus], 0);
        for (at, cycle) in case.cycles.iter().enumerate() {
            let prompt = case.prompt.len();
            let what = format!("{name}, prompt of {prompt} at {}, cycle {at}", case.temperature);
            let block = rule.block(cycle.block, bonus);
            let drafted = draft(&mut pair, session, position, &rows, block);
            position += rows.ids.len();
            let length = pair.draft_kv.length(SequenceId(session));
            assert_eq!(length, Some(position as i32), "{what}");
            let decided = |margins: &[f32]| {
                margins.iter().take_while(|margin| **margin >= expected.undecided).count()
            };
            let compared = decided(&cycle.draft_margins);
            undecided += usize::from(compared < drafted.len());
            assert_eq!(drafted.len(), cycle.drafted.len(), "{what}");
            assert_eq!(drafted[..compared], cycle.drafted[..compared], "{what}");
            let read = [&[bonus], cycle.drafted.as_slice()].concat();
            let drafts = cycle.drafted.len();
            let (logits, new) = target_rows(&mut pair, session, &read, drafts);
            let chosen = choices(&logits, position + 1, rule);
            let accepted =
                cycle.drafted.iter().zip(&chosen).take_while(|(draft, chosen)| draft == chosen);
            let accepted = accepted.count();
            assert_eq!(decided(&cycle.target_margins), cycle.accepted + 1, "{what}");
            assert_eq!(accepted, cycle.accepted, "{what}");
            out.extend(&chosen[..=accepted]);
            (bonus, rows) = (chosen[accepted], new.cut(0..accepted + 1));
            let end = (position + rows.ids.len()) as i32;
            pair.target_kv.commit(SequenceId(session), end).expect("commits");
        }
        assert_eq!(out, case.out, "{name}, prompt of {}", case.prompt.len());
    }
    let cycles = || expected.cases.iter().flat_map(|case| &case.cycles);
    let accepted: usize = cycles().map(|cycle| cycle.accepted).sum();
    let drafted: usize = cycles().map(|cycle| cycle.drafted.len()).sum();
    eprintln!("{name}: {accepted} of {drafted} accepted; cycles with undecided drafts {undecided}");
}

/// `rows`, or the rows of the drafter's longest block if they are fewer.
fn most(pair: &Pair, rows: i32) -> i32 {
    rows.min(pair.drafter.info().block)
}

pub fn load(name: &str, target: &str) -> Pair {
    Pair::load(&golden(target), &golden(name), Quantize::None)
}

/// Ragged batches of greedy and sampled sessions against each session by itself.
pub fn sessions_together_are_sessions_alone(name: &str, target: &str) {
    let (mut together, mut alone) = (load(name, target), load(name, target));
    let mut all = vec![];
    for session in 0..4 {
        together.open(session);
        alone.open(session);
        let prompt = prompt(90, session as u32);
        all.push(prefill(&mut together, session, &prompt, Rule::greedy()).1);
    }
    // (session, context, block): ragged, with one that only reads, one that reads nothing new, and
    // one that was only read before.
    let steps: [&[(u64, usize, i32)]; 4] = [
        &[(0, 40, 6), (1, 12, 5), (2, 33, 0), (3, 1, 4)],
        &[(0, 3, 6), (1, 8, 2), (2, 0, 6), (3, 5, 3)],
        &[(1, 30, 0), (0, 4, 0)],
        &[(3, 2, 6), (1, 0, 3), (0, 0, 6), (2, 1, 6)],
    ];
    let mut read_in = [0; 4];
    for step in steps {
        let (mut parts, mut rows, mut solo) = (vec![], vec![], vec![]);
        for (session, context, block) in step {
            let (from, own) = (read_in[*session as usize], &all[*session as usize]);
            let to = from + context;
            read_in[*session as usize] = to;
            let rule = Rule::at([0.0, 0.8, 0.0, 1.2][*session as usize], 5 + session);
            let bonus = own.ids[to];
            let block = if *block > 0 { rule.block(most(&alone, *block), bonus) } else { None };
            let one = part(*session, from, *context, own.ids[to], block);
            let new = if *context > 0 { vec![own.cut(from..to)] } else { vec![] };
            solo.extend(propose(&mut alone, &[one], &new).expect("a forward"));
            parts.push(one);
            rows.extend(new);
        }
        let found = propose(&mut together, &parts, &rows).expect("a forward");
        assert_eq!(found, solo, "{name}: {step:?}");
        let blocks = parts.iter().filter_map(|part| part.block);
        for (draft, block) in found.iter().zip(blocks) {
            assert_eq!(draft.ids.len() as i32, block.rows - 1, "{name}: {step:?}");
        }
    }
}

/// The whole context with the block, or in pieces with blocks in between and the last one alone.
pub fn how_the_context_was_cut_does_not_matter(name: &str, target: &str) {
    for rule in [Rule::greedy(), Rule::at(0.8, 9)] {
        let mut pair = load(name, target);
        (0..3).for_each(|session| pair.open(session));
        let (bonus, rows) = prefill(&mut pair, 0, &prompt(70, 3), rule);
        let block = rule.block(most(&pair, 6), bonus);
        let at_once = draft(&mut pair, 0, 0, &rows, block);
        for range in [0..1, 1..30, 30..33] {
            let only = part(1, range.start, range.len(), rows.ids[range.end], None);
            assert!(propose(&mut pair, &[only], &[rows.cut(range)]).expect("reads").is_empty());
        }
        let between = rule.block(4, rows.ids[40]);
        draft(&mut pair, 1, 33, &rows.cut(33..40), between);
        assert_eq!(draft(&mut pair, 1, 40, &rows.cut(40..70), block), at_once, "{name}");
        let only = part(2, 0, 70, bonus, None);
        propose(&mut pair, &[only], std::slice::from_ref(&rows)).expect("reads");
        let later = propose(&mut pair, &[part(2, 70, 0, bonus, block)], &[]).expect("a forward");
        assert_eq!(later[0].ids, at_once, "{name}");
        assert_eq!(pair.draft_kv.length(SequenceId(2)), Some(70));
    }
}

/// Only differences of positions matter to the model; noise has the absolute position.
pub fn a_session_may_begin_in_the_middle(name: &str, target: &str) {
    let mut pair = load(name, target);
    (0..3).for_each(|session| pair.open(session));
    let (bonus, rows) = prefill(&mut pair, 0, &prompt(60, 2), Rule::greedy());
    let block = Rule::greedy().block(most(&pair, 6), bonus);
    let near = draft(&mut pair, 0, 0, &rows, block);
    assert_eq!(draft(&mut pair, 1, 150, &rows, block), near, "{name}");
    let recent = draft(&mut pair, 2, 20, &rows.cut(20..60), block);
    assert_eq!(pair.draft_kv.length(SequenceId(2)), Some(40));
    assert_eq!(recent[0], near[0], "{name}: the language's last rule stands in the recent rows");
}

/// How many of the reference's drafts a quantized drafter chooses too, of all.
pub fn quantized_share(drafter: &Path, target: &str, quantize: Quantize) -> f64 {
    let mut exact = Pair::load(&golden(target), drafter, Quantize::None);
    let mut pair = Pair::load(&golden(target), drafter, quantize);
    let (mut same, mut all) = (0, 0);
    for session in 0..8 {
        exact.open(session);
        pair.open(session);
        let prompt = prompt(30 + session as usize, session as u32);
        let (bonus, rows) = prefill(&mut exact, session, &prompt, Rule::greedy());
        let block = Rule::greedy().block(most(&exact, 6), bonus);
        let expected = draft(&mut exact, session, 0, &rows, block);
        let found = draft(&mut pair, session, 0, &rows, block);
        same += expected.iter().zip(&found).filter(|(a, b)| a == b).count();
        all += expected.len();
    }
    same as f64 / all as f64
}
