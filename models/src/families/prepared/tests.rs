//! Prepared steps, against attention by definition.

use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::*;
use crate::kv::AttentionParams;
use crate::kv::tests::testing::{
    DIM, HEADS, KV_HEADS, LAYERS, by_definition, keys_address, rows, step, store,
};
use crate::sample::{Block, DraftedIds, RowRule};
use crate::segment::SequenceId;

/// The next row of each sequence.
fn segments(store: &KvStore, sequences: &[u64]) -> Vec<Segment> {
    let segment = |sequence: &u64| {
        let sequence = SequenceId(*sequence);
        let start = store.length(sequence).expect("open");
        Segment { sequence, start, length: 1, drafted: 0 }
    };
    let mut segments: Vec<Segment> = sequences.iter().map(segment).collect();
    segments.sort_by_key(|segment| store.order(segment.sequence));
    segments
}

fn wants(segments: &[Segment]) -> Wants {
    Wants { logit_rows: (0..segments.len() as i32).collect(), ..Wants::default() }
}

fn blocks(count: usize) -> Vec<Block<'static>> {
    vec![Block { rule: RowRule::greedy(&[], 0), drafted: 0 }; count]
}

/// A model of attention alone: its logits are what the last layer gives.
fn graph(store: &mut KvStore, segments: &[Segment]) -> Result<PreparedStep> {
    let mut logits = None;
    for layer in 0..LAYERS.len() {
        let [q, k, v] = [(0, HEADS), (1, KV_HEADS), (2, KV_HEADS)]
            .map(|(kind, heads)| rows(layer, kind, segments, heads));
        let params = AttentionParams { scale: 0.25, ..AttentionParams::default() };
        logits = Some(store.attend(layer, &q, &k, &v, params, segments)?);
    }
    let selection =
        TokenSelection::of(logits.as_ref().expect("there are layers"), &blocks(segments.len()))?;
    Ok(PreparedStep {
        forward: Forward { logits, hidden_states: None, final_hidden: None },
        selection,
        ids: None,
    })
}

fn make(store: &mut KvStore, segments: &[Segment]) -> bool {
    prepare_next(store, segments, &wants(segments), |store| graph(store, segments)).expect("made")
}

/// Runs a step and compares its result with the definition.
fn check(step: &PreparedStep, segments: &[Segment]) {
    let logits = step.forward.logits.as_ref().expect("made");
    eval([logits]).expect("evaluates");
    let found: &[f32] = logits.try_as_slice().expect("floats");
    let verdicts = step
        .selection
        .verdicts(&blocks(segments.len()), &DraftedIds::OnHost(vec![]), &[])
        .expect("choices");
    for ((segment, found), verdict) in
        segments.iter().zip(found.chunks((HEADS * DIM) as usize)).zip(verdicts)
    {
        let expected = by_definition(LAYERS.len() - 1, segment.sequence.0, segment.start);
        assert!(
            expected.iter().zip(found).all(|(a, b)| (a - b).abs() < 1e-4),
            "{segment:?}: {expected:?} {found:?}"
        );
        let best = (0..found.len())
            .max_by(|a, b| found[*a].total_cmp(&found[*b]))
            .expect("there are some");
        assert_eq!(verdict.choices[0].token as usize, best);
    }
}

#[test]
fn steps_prepared_one_ahead_return_what_they_return_in_turn() {
    let mut store = store(3);
    step(&mut store, &[(0, 5), (1, 64), (2, 200)]);
    let first = segments(&store, &[0, 1, 2]);
    let mut now = (graph(&mut store, &first).expect("made"), first);
    let memory = keys_address(&store);
    for at in 0..20 {
        let (current, own) = &now;
        current.selection.begin(&[]).expect("begins");
        own.iter().for_each(|segment| {
            store.commit(segment.sequence, segment.start + 1).expect("commits")
        });
        let next = segments(&store, &[0, 1, 2]);
        assert!(make(&mut store, &next), "step {at}");
        check(current, own);
        let serves = |selection: &TokenSelection| selection.serve(&blocks(3));
        let taken = take_prepared(&mut store, &next, &wants(&next), &[], serves).expect("no cell");
        let taken = taken.expect("it was made for this");
        assert!(!store.has_staged());
        now = (taken, next);
    }
    check(&now.0, &now.1);
    drop(now);
    assert_eq!(
        keys_address(&store),
        memory,
        "rows are written where the others lie, not into copies of all"
    );
}

#[test]
fn a_prepared_step_for_another_forward_is_dropped_and_the_store_is_unchanged() {
    let mut store = store(3);
    step(&mut store, &[(0, 5), (1, 64)]);
    let (both, one) = (segments(&store, &[0, 1]), segments(&store, &[1]));
    let other = Wants { logit_rows: vec![1], ..Wants::default() };
    for (segments, wants, serves) in
        [(&one, wants(&one), true), (&both, other, true), (&both, wants(&both), false)]
    {
        assert!(make(&mut store, &both));
        let taken = take_prepared(&mut store, segments, &wants, &[], |_| serves);
        assert!(taken.expect("no cell").is_none(), "{wants:?}");
        assert!(!store.has_staged());
    }
    step(&mut store, &[(0, 1), (1, 3)]);
    step(&mut store, &[(0, 70), (1, 1)]);
}

#[test]
fn every_change_of_the_store_drops_the_prepared_step() {
    type Change = (&'static str, fn(&mut KvStore));
    let changes: [Change; 7] = [
        ("an end", |store| store.free(SequenceId(2))),
        ("a beginning", |store| store.reserve(SequenceId(3), 10).expect("there is room")),
        ("a copy", |store| store.fork(SequenceId(0), SequenceId(9), 5).expect("copies")),
        ("rows from outside", |store| {
            let pieces = store.copy_out(SequenceId(1), 0, 64, 1).expect("there are that many");
            store.copy_in(SequenceId(3), &[&pieces[0]], None, 64, 64).expect("copies");
        }),
        ("another step", |store| step(store, &[(0, 2)])),
        ("rows that are dropped", |store| store.commit(SequenceId(1), 60).expect("there are more")),
        ("memory that is given back", |store| {
            store.free(SequenceId(2));
            let both = segments(store, &[0, 1]);
            assert!(make(store, &both));
            store.set_limit(1).expect("gives back");
        }),
    ];
    for (what, change) in changes {
        let mut store = store(4);
        step(&mut store, &[(0, 5), (1, 64), (2, 20)]);
        let both = segments(&store, &[0, 1]);
        assert!(make(&mut store, &both) && store.has_staged());
        change(&mut store);
        assert!(!store.has_staged(), "{what}");
        step(&mut store, &[(0, 1), (1, 1)]);
    }
}

#[test]
fn no_sequence_is_moved_to_prepare_a_step() {
    let mut store = store(2);
    step(&mut store, &[(0, 255), (1, 5)]);
    let both = segments(&store, &[0, 1]);
    assert!(make(&mut store, &both));
    step(&mut store, &[(0, 1)]);
    let both = segments(&store, &[0, 1]);
    assert!(!make(&mut store, &both), "the first is at the end of its class");
    assert!(!store.has_staged());
    step(&mut store, &[(0, 1), (1, 1)]);
}

#[test]
fn a_prepared_step_reads_the_ids_of_the_time_when_it_is_taken() {
    let mut store = store(1);
    step(&mut store, &[(0, 5)]);
    let next = segments(&store, &[0]);
    for ids in [[7u32], [9]] {
        let build = |store: &mut KvStore| {
            let cell = IdCell::new(1);
            let mut step = graph(store, &next)?;
            // A model whose logits depend on the id alone.
            let id = cell.ids().as_dtype(Dtype::Float32)?.reshape(&[1, 1])?;
            let places =
                Array::from_slice(&(0..16).map(|at| at as f32).collect::<Vec<_>>(), &[1, 16]);
            let logits = places.subtract(&id)?.abs()?.negative()?;
            step.selection = TokenSelection::of(&logits, &blocks(1))?;
            step.ids = Some(cell);
            Ok(step)
        };
        assert!(prepare_next(&mut store, &next, &wants(&next), build).expect("made"));
        let taken = take_prepared(&mut store, &next, &wants(&next), &ids, |_| true);
        let taken = taken.expect("one row").expect("it was made for this");
        let verdicts = taken.selection.verdicts(&blocks(1), &DraftedIds::OnHost(vec![]), &[]);
        assert_eq!(verdicts.expect("choices")[0].choices[0].token, ids[0]);
    }
}

#[test]
fn ids_of_another_number_of_rows_are_refused() {
    let error = IdCell::new(2).write(&[1]).expect_err("refused").to_string();
    assert!(error.contains("expected 2 ids, found 1"), "{error}");
}
