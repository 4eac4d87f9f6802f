//! A target with recurrent layers: drafted rows that are accepted or rejected leave its states as the
//! plain lane does, also the states that the prefix cache keeps.

use std::sync::{Arc, Mutex};

use paceline_link::End;
use paceline_proto::internal::v1::{Generation, LinkPhase};
use paceline_vocabulary::link::{Feed, ProposalKind, Welcome};

use crate::Stage;
use crate::stage::drafter::{HIDDEN, Known, attach, oracle, partly_right, propose_rows, welcome};
use crate::stage::{finish, golden, ids};

/// A checkpoint whose hidden rows are as wide as those of the other tiny target.
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

    let known: Known = Arc::new(Mutex::new(stage.streams()));
    let drafter = partly_right(known, VOCAB);
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), drafter);
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain_with_drafts("drafts of which a part is right");

    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut seed);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Hidden)), Box::new(rows));
    stage.until(3, LinkPhase::Up);
    stage.same_as_plain_with_drafts("random hidden rows");
}

/// A prompt of this vocabulary, the same for the same seed.
fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|at| 4 + (at * at + at / 5 + seed * 13) % 150).collect()
}

/// Runs a request that may draft, in a cache scope. Returns its tokens, its accepted drafts, and the
/// tokens found.
fn ask(stage: &Stage, scope: &str, prompt: &[u32], tokens: u32) -> (Vec<u32>, u64, u32) {
    let cache_scope = scope.to_owned();
    let request = Generation { cache_scope, ..crate::generation("hit", prompt, tokens) };
    let stream = stage.runtime.block_on(stage.open(stage.named(&request)));
    let batches = stage.runtime.block_on(finish(stream)).expect("served");
    let done = batches.last().and_then(|batch| batch.done).expect("an end");
    (ids(&batches), done.speculation.expect("counted").accepted, done.cached_tokens)
}

#[test]
fn hits_survive_drafters_that_come_and_go() {
    let mut stage = Stage::of(CHECKPOINT);
    let (prompt, tokens) = (prompt(150, 1), 40);
    let (expected, _, cold) = ask(&stage, "", &prompt, tokens);
    assert_eq!((expected.len(), cold), (40, 0));
    let known: Known = Arc::new(Mutex::new(vec![[prompt.clone(), expected.clone()].concat()]));
    let mut check = |generation: u64, layers: &[u32], found: [u32; 2]| {
        let kind = ProposalKind::Tokens;
        let welcome = Welcome { feature_layers: layers.to_vec(), ..welcome(generation, kind) };
        attach(&stage.worker, generation, Some(welcome), oracle(known.clone()));
        stage.until(generation, LinkPhase::Up);
        for expected_found in found {
            let (ids, _, cached) = ask(&stage, "", &prompt, tokens);
            assert_eq!((&ids, cached), (&expected, expected_found), "drafter {generation}");
        }
    };
    // The first request had no drafter, and left no hidden states. The next one reads its prompt
    // again for them.
    check(1, &[0, 2], [0, 128]);
    check(2, &[0, 2], [128, 128]);
    check(3, &[1, 2], [0, 128]);
    let kv = stage.runtime.block_on(stage.worker.figures()).kv.expect("reported");
    assert_eq!((kv.held_bytes, kv.tap_bytes), (0, 0), "{kv:?}");
}

/// The checkpoint with a longer context, in a directory of its own.
fn with_context(positions: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for file in std::fs::read_dir(golden(CHECKPOINT)).expect("in the repository") {
        let file = file.expect("readable").path();
        let name = file.file_name().expect("a name");
        std::fs::copy(&file, dir.path().join(name)).expect("copied");
    }
    let path = dir.path().join("config.json");
    let text = std::fs::read(&path).expect("readable");
    let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let place = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => &mut config,
    };
    place["max_position_embeddings"] = positions.into();
    std::fs::write(&path, config.to_string()).expect("written");
    dir
}

#[test]
fn states_are_kept_in_the_middle_of_a_verified_block() {
    let dir = with_context(4_096);
    let mut stage = Stage::of_dir(dir.path(), CHECKPOINT);
    // Blocks of up to eight rows go over position 2,048.
    let (prompt, tokens) = (prompt(2_041, 2), 60);
    let (expected, ..) = ask(&stage, "", &prompt, tokens);
    let whole = [prompt.clone(), expected.clone()].concat();
    let known: Known = Arc::new(Mutex::new(vec![whole.clone()]));
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    // A draft may be late on a busy machine, not most of them.
    let mostly_drafted = (0..40).any(|round| {
        let scope = &format!("round {round}");
        let (answer, accepted, cold) = ask(&stage, scope, &prompt, tokens);
        assert_eq!((&answer, cold), (&expected, 0), "{scope}");
        let (rest, _, cached) = ask(&stage, scope, &whole[..2_071], 30);
        assert_eq!((rest.as_slice(), cached), (&expected[30..], 2_048), "{scope}");
        accepted >= 30
    });
    assert!(mostly_drafted, "in no run half of the tokens were drafted");
}
