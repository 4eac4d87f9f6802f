//! A target of which a slot keeps the last positions of most layers alone: drafts that are rejected
//! across the edge of a window leave it as the plain lane does.

use std::sync::{Arc, Mutex};

use paceline_link::End;
use paceline_proto::internal::v1::{Generation, LinkPhase, SamplingRule};
use paceline_vocabulary::link::{Feed, ProposalKind};

use crate::Stage;
use crate::stage::drafter::{HIDDEN, Known, attach, partly_right, propose_rows, welcome};
use crate::stage::{GREEDY, generation, with_long_context};

/// Ids of the checkpoint's vocabulary.
const VOCAB: u64 = 200;

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
    // Windows have 24 positions, and slots keep 576 of them.
    let dir = with_long_context("gemma4-tiny");
    let mut stage = Stage::with(dir.path(), requests(count));
    let known: Known = Arc::new(Mutex::new(stage.streams()));
    let drafter = partly_right(known, VOCAB);
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), drafter);
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
