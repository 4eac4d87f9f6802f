//! Which requests wait for the compiler, and what is kept for requests that do not run yet.

use futures::FutureExt as _;
use serde_json::json;

use super::super::line::{MAX_WAITING, Seat};
use super::super::tests::compile::schema;
use super::*;

/// Grammars of the demo target.
fn grammars() -> Grammars {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/target/tokenizer.json");
    Grammars::new(tokenizer.into(), 4_096, Arc::new(Progress::default()))
}

/// Grammars that differ.
fn grammar(number: usize) -> GrammarSource {
    let source = schema(&json!({"type": "string", "maxLength": number}));
    GrammarSource { end_ids: vec![2], ..source }
}

/// Takes the compiler away, as a compilation that does not end.
async fn held_compiler(grammars: &Grammars) -> Seat {
    grammars.shared.line.seat(0).await.expect("it is free")
}

#[tokio::test]
async fn a_request_with_a_compiled_grammar_does_not_wait_for_the_compiler() {
    let grammars = grammars();
    grammars.state(grammar(1)).await.expect("compiled");
    let _compiler = held_compiler(&grammars).await;
    let mut other = Box::pin(grammars.state(grammar(2)));
    assert!((&mut other).now_or_never().is_none(), "it waits");
    grammars.state(grammar(1)).now_or_never().expect("at once").expect("compiled");
    assert!((&mut other).now_or_never().is_none(), "it still waits");
}

#[tokio::test]
async fn the_vocabulary_is_read_before_the_first_grammar() {
    let grammars = grammars();
    assert_eq!(grammars.shared.loading(), Duration::from_secs(30));
    grammars.read_vocabulary().expect("a thread").join().expect("no panic");
    assert_eq!(grammars.shared.loading(), Duration::ZERO, "nothing is left to read");
    grammars.state(grammar(1)).await.expect("compiled");
}

#[tokio::test]
async fn a_prepared_grammar_is_kept_until_it_is_dropped_and_no_longer() {
    let grammars = grammars();
    let prepared = grammars.prepare(grammar(1), 0).await.expect("compiled");
    let _compiler = held_compiler(&grammars).await;
    // Others were used more recently.
    grammars.shared.kept.lock().expect("not poisoned").grammars.clear();
    grammars.state(grammar(1)).now_or_never().expect("at once").expect("compiled");
    drop(prepared);
    assert!(grammars.state(grammar(1)).now_or_never().is_none(), "it was dropped");
}

#[tokio::test]
async fn prepared_grammars_are_bounded_in_bytes_and_the_same_one_counts_once() {
    let compiled = |bytes| {
        let source = grammar(1);
        let vocabulary = Vocabulary::of_words((0..=u8::MAX).map(|byte| vec![byte]).collect());
        let factory = compile::factory(&vocabulary).expect("a compiler");
        let parser = compile::compile(&factory, &source);
        let parser = parser.unwrap_or_else(|error| panic!("{}", error.error));
        Arc::new(Compiled { parser: Mutex::new(parser), bytes })
    };
    let half = compiled(MAX_PREPARED_BYTES / 2);
    let other = compiled(MAX_PREPARED_BYTES / 2);
    let small = compiled(1);
    let grammars = grammars();
    let mut kept = grammars.shared.kept.lock().expect("not poisoned");
    let key = |number| [number; 32];
    assert!(kept.prepare(key(1), &half) && kept.prepare(key(1), &half));
    assert!(kept.prepare(key(2), &other));
    assert!(!kept.prepare(key(3), &small), "no more");
    drop(other);
    assert!(kept.prepare(key(3), &small), "room again");
}

#[tokio::test]
async fn a_request_beyond_those_that_may_wait_for_the_compiler_is_refused() {
    let grammars = grammars();
    let _compiler = held_compiler(&grammars).await;
    let mut waiting: Vec<_> =
        (0..MAX_WAITING).map(|at| Box::pin(grammars.prepare(grammar(at), 7))).collect();
    assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
    let refused = grammars.prepare(grammar(99), 7).await.expect_err("refused");
    assert_eq!(Reason::of(&refused), Some(Reason::QueueFull));
    // Another key has a place, and its turn comes second.
    let mut other = Box::pin(grammars.prepare(grammar(99), 8));
    assert!((&mut other).now_or_never().is_none());
    assert_eq!(grammars.shared.line.len(), MAX_WAITING);
    waiting.clear();
    assert_eq!(grammars.shared.line.len(), 1, "requests that have gone do not wait");
}
