//! The prefix cache of a target whose layers keep the last positions alone: a sequence continues
//! where its windows were kept, with the same bits.

use super::stage::with_long_context;
use super::states::{ask, at_once, detailed};
use super::{PAGE, Stage};
use paceline_proto::internal::v1::Generation;

/// A prompt of this vocabulary, the same for the same seed.
fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|at| 4 + (at * at + at / 5 + seed * 13) % 190).collect()
}

async fn stage(dir: &tempfile::TempDir, prefix_cache: bool) -> Stage {
    let is_on = prefix_cache.to_string();
    Stage::of(dir.path(), &[("PACELINE_KV__PREFIX_CACHE", &is_on)]).await
}

#[tokio::test]
async fn kept_windows_give_the_same_bits() {
    let dir = with_long_context("gemma4-tiny");
    let (mut without, mut with) = (stage(&dir, false).await, stage(&dir, true).await);
    let whole = prompt(1_500, 1);
    // Windows have 24 positions, and slots keep 576 of them.
    for length in [20, 100, 575, 577, 700, 1_500] {
        let prompt = &whole[..length];
        let request = detailed(&mut without, prompt, 20);
        let (expected, none) = ask(&without.worker, request).await;
        assert_eq!(none, 0);
        for again in [false, true] {
            let request = detailed(&mut with, prompt, 20);
            let (found, cached) = ask(&with.worker, request).await;
            assert_eq!(found, expected, "{length} ids, again: {again}");
            if again {
                assert_eq!(cached as usize, (length - 1) / PAGE * PAGE, "{length} ids");
            }
        }
        let kv = with.kv().await;
        assert_eq!((kv.held_bytes, kv.tap_bytes), (0, 0), "{kv:?}");
    }
    assert_eq!(without.kv().await.prefix_bytes, 0);
    // Pages of the two full layers, each of one head, and windows after 64, 512, 576, 640 and
    // 1,472.
    let page = 64 * 2 * 2 * 16 * 4;
    let window = 23 * 3 * 2 * 2 * 8 * 4;
    assert_eq!(with.kv().await.prefix_bytes, 23 * page + 5 * window);
    // Another last turn, which begins in the middle, and a later turn.
    let other = [&whole[..1_000], &prompt(300, 2)].concat();
    for (at, last_turn) in [(0, None), (960, Some(1_000))] {
        let request = detailed(&mut without, &other, 20);
        let (expected, _) = ask(&without.worker, request).await;
        let request = Generation { last_turn, ..detailed(&mut with, &other, 20) };
        let (found, cached) = ask(&with.worker, request).await;
        assert_eq!(found, expected, "last turn at {last_turn:?}");
        assert!(cached as usize >= at.min(640), "{cached}");
    }
}

#[tokio::test]
async fn a_model_of_windows_alone_keeps_them_without_rows() {
    let dir = with_long_context("mistral-tiny");
    let (mut without, mut with) = (stage(&dir, false).await, stage(&dir, true).await);
    let prompt: Vec<u32> = prompt(900, 1).into_iter().map(|id| id % 180).collect();
    let request = detailed(&mut without, &prompt, 40);
    let (expected, _) = ask(&without.worker, request).await;
    for cached in [0, 896] {
        let request = detailed(&mut with, &prompt, 40);
        assert_eq!(ask(&with.worker, request).await, (expected.clone(), cached));
    }
}

#[tokio::test]
async fn streams_side_by_side_in_a_small_budget_have_the_bits_of_streams_alone() {
    let dir = with_long_context("gemma4-tiny");
    let prompts: Vec<Vec<u32>> = [300, 580, 620, 900]
        .into_iter()
        .zip(3..)
        .map(|(length, seed)| prompt(length, seed))
        .collect();
    let mut alone = stage(&dir, false).await;
    let mut expected = vec![];
    for prompt in &prompts {
        let request = detailed(&mut alone, prompt, 200);
        expected.push(ask(&alone.worker, request).await.0);
    }
    // Room for two of them at most: the others wait, or make room and are read again.
    let longest = 576 * 3 * 2 * 2 * 8 * 4 + 2_048 * 2 * 2 * 16 * 4;
    let budget = (2 * longest + longest / 2).to_string();
    let environment =
        [("PACELINE_KV__PREFIX_CACHE", "false"), ("PACELINE_KV__BUDGET_BYTES", &budget)];
    let mut stage = Stage::of(dir.path(), &environment).await;
    let requests = prompts.iter().map(|prompt| detailed(&mut stage, prompt, 200)).collect();
    let (found, _) = at_once(&stage.worker, requests).await;
    assert_eq!(found, expected);
}
