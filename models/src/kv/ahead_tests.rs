//! Graphs that are made before their time, against attention by definition.

use mlx_rs::transforms::eval;

use super::tests::{DIM, HEADS, KV_HEADS, LAYERS, by_definition, rows, step, store};
use super::*;
use crate::batch::{Forward, Purpose, Wants};
use crate::sample::{Block, Drafts, Picks, RowRule};

/// The next row of each sequence.
fn segments(store: &KvStore, sequences: &[u64]) -> Vec<Segment> {
    let segment = |sequence: &u64| {
        let sequence = SequenceId(*sequence);
        let start = store.length(sequence).expect("open");
        Segment { sequence, start, length: 1, purpose: Purpose::Decode, image_spans: vec![] }
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
fn graph(store: &mut KvStore, segments: &[Segment]) -> Result<Graph> {
    let mut logits = None;
    for layer in 0..LAYERS.len() {
        let [q, k, v] = [(0, HEADS), (1, KV_HEADS), (2, KV_HEADS)]
            .map(|(kind, heads)| rows(layer, kind, segments, heads));
        let how = Attend { scale: 0.25, ..Attend::default() };
        logits = Some(store.attend(layer, &q, Some((&k, &v)), how, segments)?);
    }
    let picks = Picks::of(logits.as_ref().expect("there are layers"), &blocks(segments.len()))?;
    Ok(Graph { forward: Forward { logits, taps: None, final_hidden: None }, picks })
}

fn make(store: &mut KvStore, segments: &[Segment]) -> bool {
    store.make_ahead(segments, &wants(segments), |store| graph(store, segments)).expect("made")
}

/// Runs a graph and holds what it gives against the definition.
fn check(graph: &Graph, segments: &[Segment]) {
    let logits = graph.forward.logits.as_ref().expect("made");
    eval([logits]).expect("evaluates");
    let found: &[f32] = logits.try_as_slice().expect("floats");
    let verdicts = graph
        .picks
        .verdicts(&blocks(segments.len()), &Drafts::OnHost(vec![]), &[])
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

/// Where the keys of the first class lie in memory.
fn place(store: &KvStore) -> *const f32 {
    let keys = store.classes[0].arrays().next().expect("there are sequences");
    eval([keys]).expect("evaluates");
    keys.try_as_slice::<f32>().expect("floats").as_ptr()
}

#[test]
fn steps_made_while_the_one_before_runs_give_what_they_give_in_turn() {
    let mut store = store(3);
    step(&mut store, &[(0, 5), (1, 64), (2, 200)]);
    let first = segments(&store, &[0, 1, 2]);
    let mut now = (graph(&mut store, &first).expect("made"), first);
    let memory = place(&store);
    for at in 0..20 {
        let (current, own) = &now;
        current.picks.begin(&[]).expect("begins");
        own.iter().for_each(|segment| {
            store.commit(segment.sequence, segment.start + 1).expect("commits")
        });
        let next = segments(&store, &[0, 1, 2]);
        assert!(make(&mut store, &next), "step {at}");
        check(current, own);
        let taken = store
            .take_ahead(&next, &wants(&next), |picks| picks.serve(&blocks(3)))
            .expect("it was made for this");
        assert!(!store.is_ahead());
        now = (taken, next);
    }
    check(&now.0, &now.1);
    drop(now);
    assert_eq!(
        place(&store),
        memory,
        "rows are written where the others lie, not into copies of all"
    );
}

#[test]
fn a_graph_for_anything_else_is_dropped_and_the_store_is_as_it_was() {
    let mut store = store(3);
    step(&mut store, &[(0, 5), (1, 64)]);
    let (both, one) = (segments(&store, &[0, 1]), segments(&store, &[1]));
    let other = Wants { logit_rows: vec![1], ..Wants::default() };
    for (segments, wants, serves) in
        [(&one, wants(&one), true), (&both, other, true), (&both, wants(&both), false)]
    {
        assert!(make(&mut store, &both));
        assert!(store.take_ahead(segments, &wants, |_| serves).is_none(), "{wants:?}");
        assert!(!store.is_ahead());
    }
    step(&mut store, &[(0, 1), (1, 3)]);
    step(&mut store, &[(0, 70), (1, 1)]);
}

#[test]
fn whatever_changes_the_store_drops_the_graph() {
    type Change = (&'static str, fn(&mut KvStore));
    let changes: [Change; 7] = [
        ("an end", |store| store.free(SequenceId(2))),
        ("a beginning", |store| store.reserve(SequenceId(3), 10).expect("there is room")),
        ("a copy", |store| store.fork(SequenceId(0), SequenceId(9), 5).expect("copies")),
        ("rows from outside", |store| {
            let pieces = store.copy_out(SequenceId(1), 0, 64, 1).expect("there are so many");
            store.copy_in(SequenceId(3), &[&pieces[0]], 64, 64).expect("copies");
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
        assert!(make(&mut store, &both) && store.is_ahead());
        change(&mut store);
        assert!(!store.is_ahead(), "{what}");
        step(&mut store, &[(0, 1), (1, 1)]);
    }
}

#[test]
fn nothing_is_moved_for_a_step_that_may_never_be() {
    let mut store = store(2);
    step(&mut store, &[(0, 255), (1, 5)]);
    let both = segments(&store, &[0, 1]);
    assert!(make(&mut store, &both));
    step(&mut store, &[(0, 1)]);
    let both = segments(&store, &[0, 1]);
    assert!(!make(&mut store, &both), "the first is at the end of its class");
    assert!(!store.is_ahead());
    step(&mut store, &[(0, 1), (1, 1)]);
}
