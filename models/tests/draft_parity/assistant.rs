//! Assistants of Gemma 4, with a head for all ids and one for those of the best clusters, against a
//! reference loop in which the target's own cache gives keys and values. Values and provenance:
//! `golden/`, remade by its assistant.py.

use std::path::Path;

use paceline_models::{
    Array, BlockRequest, DraftPart, DraftPlan, KvStore, LoadError, Quantize, SequenceId, draft,
    load_draft, plan_draft,
};

use crate::pair::{Pair, golden, prompt};
use crate::tokens::{self, cold};
use crate::{some_rows, with_config};

const NAMES: [&str; 2] = ["assistant-dense", "assistant-edge"];
const TARGETS: [&str; 2] = ["gemma4-draft-target", "gemma4-draft-edge"];

#[test]
fn greedy_drafts_of_assistants_follow_the_reference() {
    NAMES.iter().for_each(|name| tokens::follow_reference(name, "greedy"));
}

#[test]
fn sampled_drafts_of_assistants_follow_the_reference_by_the_target_s_noise() {
    NAMES.iter().for_each(|name| tokens::follow_reference(name, "sampled"));
}

#[test]
fn sessions_of_assistants_together_draft_as_alone() {
    NAMES.iter().for_each(|name| tokens::draft_together_as_alone(name));
}

#[test]
fn a_fault_in_a_session_of_an_assistant_stays_in_it() {
    NAMES.iter().for_each(|name| tokens::keep_a_fault_in_its_session(name));
}

fn part(session: u64, position: i32, context: i32, block: Option<BlockRequest>) -> DraftPart {
    DraftPart { sequence: SequenceId(session), position, context, next_id: None, block }
}

fn read(pair: &mut Pair, session: u64, states: &Array, rows: std::ops::Range<i32>) {
    let part = part(session, rows.start, rows.len() as i32, None);
    assert!(pair.draft_tokens(&[part], &[some_rows(states, rows)]).is_empty());
}

#[test]
fn how_the_context_of_an_assistant_was_cut_does_not_matter() {
    for name in NAMES {
        let mut pair = Pair::golden(name);
        (0..3).for_each(|session| pair.open(session));
        let (bonus, states) = pair.prefill(0, &prompt(70, 3));
        let block = Some(cold().block(8, bonus));
        let at_once = pair.draft_ids(part(0, 0, 70, block), &states);
        assert_eq!(at_once.len(), 7, "{name}");
        for rows in [0..1, 1..30, 30..33] {
            read(&mut pair, 1, &states, rows);
        }
        // A block in between leaves nothing behind.
        pair.draft_ids(part(1, 33, 7, Some(cold().block(5, 11))), &some_rows(&states, 33..40));
        let chunked = pair.draft_ids(part(1, 40, 30, block), &some_rows(&states, 40..70));
        assert_eq!(chunked, at_once, "{name}");
        // All read before, the block later and by itself.
        read(&mut pair, 2, &states, 0..70);
        let later = pair.draft_tokens(&[part(2, 70, 0, block)], &[]);
        assert_eq!(later[0].ids, at_once, "{name}");
    }
}

/// Drafts of a session of 90 rows in pieces of 15, after each piece.
fn drafts_in_pieces(pair: &mut Pair, states: &Array) -> Vec<Vec<u32>> {
    let draft = |from: i32| {
        let block = Some(cold().block(8, 8 + from as u32));
        pair.draft_ids(part(0, from, 15, block), &some_rows(states, from..from + 15))
    };
    (0..90).step_by(15).map(draft).collect()
}

#[test]
fn sessions_of_assistants_keep_the_window_alone_of_the_sliding_layer() {
    for name in NAMES {
        let (mut whole, mut windowed, states) = Pair::golden_twice(name);
        let (layers, dtype) = (windowed.drafter.kv_layers(), windowed.drafter.dtype());
        // A slot keeps 64 positions of the sliding layer.
        windowed.draft_kv = KvStore::with_most_rows(&layers, dtype, 512, 23).expect("made");
        windowed.draft_kv.open(SequenceId(0)).expect("new");
        let expected = drafts_in_pieces(&mut whole, &states[0]);
        assert!(expected.iter().all(|ids| ids.len() == 7), "{name}");
        assert_eq!(drafts_in_pieces(&mut windowed, &states[0]), expected, "{name}");
    }
}

#[test]
fn a_block_without_a_context_row_of_its_session_has_no_draft() {
    let mut pair = Pair::golden(NAMES[0]);
    pair.open(0);
    let drafts = pair.draft_tokens(&[part(0, 5, 0, Some(cold().block(4, 20)))], &[]);
    assert_eq!(drafts, [paceline_models::TokenDraft::default()]);
}

#[test]
fn a_session_of_an_assistant_may_begin_in_the_middle() {
    // The full layer misses the rows before: drafts may differ, and the positions are the target's.
    let mut pair = Pair::golden(NAMES[0]);
    (0..2).for_each(|session| pair.open(session));
    let (bonus, states) = pair.prefill(0, &prompt(60, 2));
    let block = Some(cold().block(8, bonus));
    let recent = pair.draft_ids(part(1, 50, 10, block), &some_rows(&states, 50..60));
    assert_eq!(recent.len(), 7);
    assert_eq!(pair.draft_kv.length(SequenceId(1)), Some(10));
}

fn plan(name: &str, target: Option<&Path>) -> Result<DraftPlan, LoadError> {
    plan_draft(&golden(name), "auto", target, Quantize::None)
}

#[test]
fn the_config_of_the_target_decides_which_layers_an_assistant_reads() {
    for ((name, target), layers) in NAMES.iter().zip(TARGETS).zip([[4, 5, 6], [1, 0, 4]]) {
        let target = golden(target);
        let info = plan(name, Some(&target)).expect("a plan").info;
        assert_eq!((info.kind.as_str(), info.feature_layers), ("assistant", layers.to_vec()));
        let found = draft::feature_layers(&golden(name), "auto", Some(&target));
        assert_eq!(found.expect("read"), layers);
        let loaded =
            load_draft(&golden(name), "auto", Some(&target), Quantize::None, &mut |_, _| {});
        assert_eq!(loaded.expect("loads").info().feature_layers, layers);
    }
}

#[test]
fn an_assistant_without_its_target_or_with_another_one_is_refused_by_name() {
    let says = |target: Option<&Path>| plan(NAMES[0], target).expect_err("refused").to_string();
    assert!(says(None).contains("set target.model"), "{}", says(None));
    let other = says(Some(&golden("dflash-target")));
    assert!(other.contains("expected a Gemma 4 for a drafter of kind assistant"), "{other}");
    let other = says(Some(&golden("gemma4-tiny")));
    assert!(other.contains("hidden_size: expected the target's, 64, found 32"), "{other}");
    // Heads of other sizes are found when it is loaded.
    let wide = with_config("assistant-dense", |config| {
        config["text_config"]["num_attention_heads"] = 1.into();
        config["text_config"]["head_dim"] = 16.into();
    });
    let target = golden(TARGETS[0]);
    let loaded = load_draft(wide.path(), "auto", Some(&target), Quantize::None, &mut |_, _| {});
    let found = loaded.err().map_or("loads".into(), |error| error.to_string());
    assert!(found.contains("expected heads of 8 numbers") || found.contains("shape"), "{found}");
}
