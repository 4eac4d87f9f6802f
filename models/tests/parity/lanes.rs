//! The lanes of every family: a run with drafts gives the tokens of the plain run, alone and beside
//! seven others, whatever the drafts are.

use paceline_models::sample::{Block, DraftedIds, RowRule, verify};
use paceline_models::testing::bounds::{assert_same, is_half};
use paceline_models::{Batch, Dtype, KvStore, Segment, SequenceId, Target, Wants};

use crate::model::{Case, Model, floats, golden, load, read, segment, small_store};

/// Proposals of a scripted drafter.
#[derive(Clone, Copy, Debug)]
enum Script {
    /// Nothing.
    Plain,
    /// The target's own tokens.
    Right,
    /// Never the target's token.
    Wrong,
    /// Blocks of any length that are right up to some row.
    Mixed,
}

const SCRIPTS: [Script; 4] = [Script::Plain, Script::Right, Script::Wrong, Script::Mixed];
/// Most rows of a prompt in a step.
const CHUNK: usize = 20;
/// Drafted tokens of a block at most.
const DRAFTED: usize = 6;

struct Sequence<'a> {
    id: SequenceId,
    case: &'a Case,
    script: Script,
    ids: Vec<u32>,
    cycles: usize,
    accepted: usize,
    /// The logits of every chosen row, in order.
    logits: Vec<Vec<f32>>,
}

impl Sequence<'_> {
    fn done(&self) -> bool {
        self.ids.len() >= self.case.prompt.len() + self.case.greedy.len()
    }

    /// The draft after `self.ids`.
    fn draft(&self, vocab: u32) -> Vec<u32> {
        let at = self.ids.len() - self.case.prompt.len();
        let next = &self.case.greedy[at..];
        let wrong = |id: &u32| (id + 1) % vocab;
        match self.script {
            Script::Plain => vec![],
            Script::Right => next.iter().take(DRAFTED).copied().collect(),
            Script::Wrong => next.iter().take(DRAFTED).map(wrong).collect(),
            Script::Mixed => {
                let turn = self.id.0 as usize + self.cycles;
                let (length, right) = ((turn * 5) % (DRAFTED + 1), (turn * 3) % (DRAFTED + 1));
                let id = |(row, id): (usize, &u32)| if row < right { *id } else { wrong(id) };
                next.iter().take(length).enumerate().map(id).collect()
            }
        }
    }
}

/// The part of one sequence in a step: rows of its prompt, or a bonus token and a draft.
struct Part {
    segment: Segment,
    rows: Vec<u32>,
    /// Drafted ids, if the rows reach the sequence's end.
    drafted: Option<Vec<u32>>,
}

fn part(sequence: &Sequence<'_>, kv: &KvStore, vocab: u32) -> Part {
    let done = kv.length(sequence.id).expect("open") as usize;
    let length = (sequence.ids.len() - done).min(CHUNK);
    let mut rows = sequence.ids[done..done + length].to_vec();
    let at_end = done + length == sequence.ids.len();
    let answering = sequence.ids.len() > sequence.case.prompt.len();
    let drafted = at_end.then(|| if answering { sequence.draft(vocab) } else { vec![] });
    rows.extend(drafted.iter().flatten());
    let count = drafted.as_ref().map_or(0, Vec::len) as i32;
    let segment = Segment { drafted: count, ..segment(sequence.id.0, done, rows.len()) };
    Part { segment, rows, drafted }
}

fn step(model: &dyn Target, kv: &mut KvStore, sequences: &mut [Sequence<'_>]) {
    let vocab = model.info().vocab as u32;
    let mut running: Vec<_> = sequences.iter_mut().filter(|sequence| !sequence.done()).collect();
    running.sort_by_key(|sequence| kv.order(sequence.id));
    let parts: Vec<Part> = running.iter().map(|sequence| part(sequence, kv, vocab)).collect();
    let (mut logit_rows, mut end, mut blocks, mut drafts) = (vec![], 0, vec![], vec![]);
    for part in &parts {
        end += part.segment.length;
        if let Some(drafted) = &part.drafted {
            logit_rows.extend(end - drafted.len() as i32 - 1..end);
            blocks.push(Block { rule: RowRule::greedy(&[], 0), drafted: drafted.len() });
            drafts.extend(drafted);
        }
    }
    let batch = Batch::text(
        parts.iter().flat_map(|part| part.rows.clone()).collect(),
        parts.iter().map(|part| part.segment).collect(),
    );
    let wants = Wants { logit_rows, ..Wants::default() };
    let logits = model.forward(&batch, kv, &wants).expect("a forward").logits;
    let (mut verdicts, mut numbers) = (vec![].into_iter(), vec![]);
    if let Some(logits) = &logits {
        let found = verify(logits, &blocks, &DraftedIds::OnHost(drafts), &[]).expect("choices");
        verdicts = found.into_iter();
        numbers = floats(logits);
    }
    let mut numbers = numbers.chunks(vocab as usize);
    for (sequence, part) in running.into_iter().zip(parts) {
        let Segment { start, length, .. } = part.segment;
        let Some(drafted) = part.drafted else {
            kv.commit(sequence.id, start + length).expect("commits");
            continue;
        };
        let choices = verdicts.next().expect("one for each block").choices;
        let accepted = choices.len() - 1;
        let rejected = (drafted.len() - accepted) as i32;
        kv.commit(sequence.id, start + length - rejected).expect("commits");
        sequence.ids.extend(choices.iter().map(|choice| choice.token));
        let rows: Vec<_> = (0..=drafted.len()).map(|_| numbers.next().expect("a row")).collect();
        sequence.logits.extend(rows[..=accepted].iter().map(|row| row.to_vec()));
        sequence.cycles += 1;
        sequence.accepted += accepted;
    }
}

/// Decodes the cases side by side, each with its script.
fn run<'a>(model: &dyn Target, cases: &[(&'a Case, Script)]) -> Vec<Sequence<'a>> {
    let mut kv = small_store(model);
    let begin = |(at, (case, script)): (usize, &(&'a Case, Script))| Sequence {
        id: SequenceId(at as u64),
        case,
        script: *script,
        ids: case.prompt.clone(),
        cycles: 0,
        accepted: 0,
        logits: vec![],
    };
    let mut sequences: Vec<_> = cases.iter().enumerate().map(begin).collect();
    for sequence in &sequences {
        kv.open(sequence.id).expect("new");
    }
    while sequences.iter().any(|sequence| !sequence.done()) {
        step(model, &mut kv, &mut sequences);
    }
    sequences
}

/// Returns what was checked, in words.
fn check(what: &str, sequence: &Sequence<'_>) -> String {
    let Sequence { case, script, ids, cycles, accepted, .. } = sequence;
    let what = format!("{what}, {script:?}, prompt of {}", case.prompt.len());
    let end = case.prompt.len() + case.greedy.len();
    assert_eq!(ids[case.prompt.len()..end], case.greedy, "{what}");
    // The drafts were what they should be.
    match script {
        Script::Plain | Script::Wrong => assert_eq!((*accepted, *cycles), (0, 32), "{what}"),
        Script::Right => assert_eq!(*cycles, 1 + 31usize.div_ceil(DRAFTED + 1), "{what}"),
        Script::Mixed => assert!(*accepted > 5 && *cycles > 8, "{what}"),
    }
    what
}

/// Where this project's own products compute, a row's numbers are the same to the last bit (I1).
fn check_logits(what: &str, dtype: Dtype, plain: &[Vec<f32>], found: &[Vec<f32>]) {
    for (at, (plain, found)) in plain.iter().zip(found).enumerate() {
        assert_same(&format!("{what}: row {at}"), dtype, plain, found);
    }
}

/// The cases with the ids that the model itself chooses plainly. In float32 they are those of the
/// reference.
fn own_cases(model: &dyn Target, cases: Vec<Case>) -> Vec<Case> {
    let own = |case: Case| {
        let greedy =
            run(model, &[(&case, Script::Plain)]).remove(0).ids.split_off(case.prompt.len());
        Case { greedy, ..case }
    };
    if is_half(model.dtype()) { cases.into_iter().map(own).collect() } else { cases }
}

fn lanes_are_identical(name: &str) {
    let (expected, model): (Model, _) = (read(&format!("{name}.json")), load(&golden(name)));
    let (dtype, cases) = (model.dtype(), own_cases(&*model, expected.cases));
    let mut plain = vec![];
    for case in &cases {
        let alone = SCRIPTS.map(|script| run(&*model, &[(case, script)]).remove(0));
        for sequence in &alone {
            let what = check(&format!("{name}, alone"), sequence);
            check_logits(&what, dtype, &alone[0].logits, &sequence.logits);
        }
        let [first, ..] = alone;
        plain.push(first.logits);
    }
    // Eight side by side, each script beside all others, in two arrangements.
    for shift in 0..2 {
        let beside: Vec<_> =
            (0..8).map(|at| (&cases[at % 4], SCRIPTS[(at / 4 * 2 + at + shift) % 4])).collect();
        for (at, sequence) in run(&*model, &beside).iter().enumerate() {
            let what = check(&format!("{name}, beside seven others"), sequence);
            check_logits(&what, dtype, &plain[at % 4], &sequence.logits);
        }
    }
}

#[test]
fn the_lanes_of_llama_are_identical() {
    lanes_are_identical("llama-tiny");
    lanes_are_identical("llama-tiny-tied");
}

#[test]
fn the_lanes_of_smollm3_are_identical() {
    lanes_are_identical("smollm3-tiny");
}

#[test]
fn the_lanes_of_qwen2_are_identical() {
    lanes_are_identical("qwen2-tiny");
}

#[test]
fn the_lanes_of_qwen3_are_identical() {
    lanes_are_identical("qwen3-tiny");
}

#[test]
fn the_lanes_of_qwen3_moe_are_identical() {
    lanes_are_identical("qwen3-moe-tiny-sparse");
}

#[test]
fn the_lanes_of_qwen3_moe_in_bfloat16_are_identical() {
    lanes_are_identical("qwen3-moe-tiny");
}

#[test]
fn the_lanes_of_qwen3_5_are_identical() {
    lanes_are_identical("qwen3_5-tiny");
}

#[test]
fn the_lanes_of_qwen3_5_with_float_experts_are_identical() {
    lanes_are_identical("qwen3_5_moe-tiny");
}

#[test]
fn the_lanes_of_quantized_qwen3_5_are_identical() {
    lanes_are_identical("qwen3_5-tiny-q4");
    lanes_are_identical("qwen3_5_moe-tiny-q4");
}

#[test]
fn the_lanes_of_gemma_4_are_identical_across_the_edges_of_windows() {
    lanes_are_identical("gemma4-tiny");
    lanes_are_identical("gemma4-tiny-edge");
}

#[test]
fn the_lanes_of_gemma_4_with_float_experts_are_identical_across_the_edges_of_windows() {
    lanes_are_identical("gemma4-tiny-moe");
}

#[test]
fn the_lanes_of_mistral_are_identical_across_the_edges_of_windows() {
    lanes_are_identical("mistral-tiny");
}

#[test]
fn the_lanes_of_quantized_gemma_4_are_identical() {
    for name in ["gemma4-tiny-q4", "gemma4-moe-q4", "gemma4-edge-q4"] {
        lanes_are_identical(name);
    }
}

#[test]
fn the_lanes_of_quantized_families_are_identical() {
    for family in ["llama-tiny", "qwen2-tiny", "qwen3-moe-tiny", "qwen3-tiny"] {
        for bits in ["q4", "q8"] {
            lanes_are_identical(&format!("{family}-{bits}"));
        }
    }
}
