//! A target with recurrent layers: drafted rows that are accepted or rejected leave its states as the
//! plain lane does, and the prefix cache is off.

use std::sync::{Arc, Mutex};

use paceline_link::End;
use paceline_proto::internal::v1::LinkPhase;
use paceline_vocabulary::link::{Feed, ProposalKind};

use crate::Stage;
use crate::stage::drafter::{
    HIDDEN, Known, attach, oracle, propose_ids, propose_rows, roll, welcome,
};
use crate::stage::{cases_of, ids};

/// Its hidden rows are as wide as those of the other tiny target.
const CHECKPOINT: &str = "qwen3_5-tiny-q4";
/// Ids of its vocabulary.
const VOCAB: u64 = 160;

#[test]
fn drafts_change_no_token_of_a_target_with_states() {
    let mut stage = Stage::of(CHECKPOINT);
    let known: Known = Arc::new(Mutex::new(stage.streams()));
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    let perfect = stage.same_as_plain("perfect drafts");
    let accepted: u64 = perfect.iter().map(|speculation| speculation.accepted).sum();
    assert!(accepted > 0, "{perfect:?}");

    // Of each draft a random part is right.
    let known: Known = Arc::new(Mutex::new(stage.streams()));
    let mut seed = 7;
    let mixed = move |end: &mut End, feed: &Feed| {
        let own = roll(&mut seed);
        let streams = known.lock().expect("not poisoned");
        propose_ids(end, feed, |request| {
            let at = request.position as usize;
            let right = streams.iter().find(|stream| stream.get(at) == Some(&request.bonus_id));
            let next = right.map_or(&[][..], |stream| &stream[at + 1..]);
            let turn = own.wrapping_add(u64::from(request.position));
            let id = |at: u64| match next.get(at as usize) {
                Some(id) if at < turn % 5 => *id,
                _ => ((turn + at) % VOCAB) as u32,
            };
            (0..u64::from(request.block) - 1).map(id).collect()
        })
    };
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), Box::new(mixed));
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain_with_drafts("drafts of which a part is right");

    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut seed);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Hidden)), Box::new(rows));
    stage.until(3, LinkPhase::Up);
    stage.same_as_plain_with_drafts("random hidden rows");
}

#[test]
fn a_target_with_states_finds_no_prefix_and_returns_all_memory() {
    let stage = Stage::of(CHECKPOINT);
    for (prompt, greedy) in cases_of(CHECKPOINT) {
        for _ in 0..2 {
            let request = crate::generation("again", &prompt, greedy.len() as u32);
            let batches = stage.runtime.block_on(stage.worker.generate(request)).expect("served");
            assert_eq!(ids(&batches), greedy, "prompt of {}", prompt.len());
            let done = batches.last().and_then(|batch| batch.done).expect("an end");
            assert_eq!(done.cached_tokens, 0);
        }
    }
    let kv = stage.runtime.block_on(stage.worker.figures()).kv.expect("reported");
    assert_eq!((kv.prefix_bytes, kv.held_bytes), (0, 0), "{kv:?}");
}
