//! A target of which a slot keeps the last positions of most layers alone: drafts that are rejected
//! across the edge of a window leave it as the plain lane does.

use std::sync::{Arc, Mutex};

use paceline_link::End;
use paceline_proto::internal::v1::{Generation, LinkPhase, SamplingRule};
use paceline_vocabulary::link::{Feed, ProposalKind};
use serde_json::Value;

use crate::Stage;
use crate::stage::drafter::{HIDDEN, Known, attach, propose_ids, propose_rows, roll, welcome};
use crate::stage::{GREEDY, generation, golden};

/// Ids of the checkpoint's vocabulary.
const VOCAB: u64 = 200;

/// Gemma 4 with windows of 24 positions, and a context that is longer than the 576 positions that slots
/// keep of them.
fn checkpoint() -> tempfile::TempDir {
    let (from, dir) = (golden("gemma4-tiny"), tempfile::tempdir().expect("a directory"));
    let weights = "model.safetensors";
    std::fs::copy(from.join(weights), dir.path().join(weights)).expect("copied");
    let config = std::fs::read(from.join("config.json")).expect("there");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["max_position_embeddings"] = 4_096.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    dir
}

/// Greedy and sampled requests in turn, whose answers begin before and behind the edge.
fn requests(count: u32) -> Vec<Generation> {
    let warm = SamplingRule { temperature: 0.8, top_p: 0.95, ..GREEDY };
    let request = |at: u32| {
        let length = 500 + at * 97 % 400;
        let prompt: Vec<u32> =
            (0..length).map(|place| 4 + (place * place + place / 5 + at * 13) % 190).collect();
        Generation {
            sampling: Some(if at.is_multiple_of(2) { GREEDY } else { warm.clone() }),
            seed: 1_000 + u64::from(at),
            ..generation(&format!("r{at}"), &prompt, 100)
        }
    };
    (0..count).map(request).collect()
}

fn lanes_are_identical(count: u32) {
    let dir = checkpoint();
    let mut stage = Stage::with(dir.path(), requests(count));
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
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(mixed));
    stage.until(1, LinkPhase::Up);
    stage.same_as_plain_with_drafts("drafts of which a part is right");

    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut seed);
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Hidden)), Box::new(rows));
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain_with_drafts("random hidden rows");
}

#[test]
fn drafts_across_the_edge_of_a_window_change_no_token() {
    lanes_are_identical(5);
}

#[test]
#[ignore = "more: fifty prompts instead of five"]
fn drafts_across_the_edge_of_a_window_change_no_token_of_fifty_prompts() {
    lanes_are_identical(50);
}
