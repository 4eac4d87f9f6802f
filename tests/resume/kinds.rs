//! Requests of all kinds, by all protocols, under which the target or the supervisor is killed:
//! each answer is that of an undisturbed run.

use paceline_tests::prompts::Dice;
use paceline_tests::replay::kinds::{self, NamedRequest};
use paceline_tests::replay::{Compared, Reply, Running};
use paceline_tests::{Stack, images, wait};

use super::{MANY_LIVES, kill, replaced};

/// The embedded target answers it with 187 tokens.
const STORY: &str = "Tell a long story.";
/// Tokens of an answer: it still runs when a process is killed in its first half.
const TOKENS: u32 = 160;
/// Tokens of an answer of the tiny model, whose steps are short.
const MANY_TOKENS: u32 = 600;

/// Kills a process under one stream of each kind, until each kind went on at `points` random points.
/// The first kind is streamed, and is killed in its first half.
fn killed_at(stack: &Stack, process: &str, kinds: &[NamedRequest], points: usize, half: u64) {
    let expected = answers(kinds, begun(stack, kinds));
    let (mut went_on, mut compared, mut dice) =
        (vec![0; kinds.len()], Compared::default(), Dice(3));
    for round in 0.. {
        if went_on.iter().all(|times| *times >= points) {
            break;
        }
        assert!(round < 4 * points, "expected {points} resumptions of each kind: {went_on:?}");
        let running = begun(stack, kinds);
        let place = 1 + dice.roll(half) as u32;
        wait("the place of the kill", || (running[0].progress() >= place).then_some(()));
        let target = stack.pid("target");
        kill(stack, process);
        let found = answers(kinds, running);
        for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let what = format!("{}, {process} killed, round {round}", kinds[at].0);
            compared.same(expected, found, &what);
            went_on[at] += usize::from(found.resumed > 0);
        }
        if process == "target" {
            replaced(stack, target);
        }
        stack.wait_linked();
    }
    println!("{process} killed: {went_on:?}, {compared:?}");
    compared.check();
    stack.wait_memory_back();
    wait("no image's file to be left", || images::waiting(stack).is_empty().then_some(()));
}

fn begun(stack: &Stack, kinds: &[NamedRequest]) -> Vec<Running> {
    kinds.iter().map(|(_, request)| stack.begin_request(request)).collect()
}

/// The whole answers. No other thread waits for one that is read later.
fn answers(kinds: &[NamedRequest], running: Vec<Running>) -> Vec<Reply> {
    let answer = |((kind, _), running): (&NamedRequest, Running)| {
        running.finish().unwrap_or_else(|words| panic!("{kind}: {words}"))
    };
    kinds.iter().zip(running).map(answer).collect()
}

/// Every kind by gRPC, on the embedded pair.
fn by_grpc(points: usize) {
    let stack = kinds::service(MANY_LIVES);
    killed_at(&stack, "target", &kinds::grpc(STORY, TOKENS), points, u64::from(TOKENS) / 2);
    stack.stop();
}

/// Images, and every other kind beside them, on the tiny model with a vision tower.
fn with_images(points: usize) {
    let stack = kinds::seeing_service(MANY_LIVES);
    let mut all = kinds::grpc(STORY, MANY_TOKENS);
    all.extend((0..2).map(|number| kinds::grpc_image(number, MANY_TOKENS)));
    all.extend(kinds::http_images(2, MANY_TOKENS, true));
    killed_at(&stack, "target", &all, points, u64::from(MANY_TOKENS) / 2);
    stack.stop();
}

#[test]
fn every_kind_of_request_is_the_same_after_a_kill() {
    by_grpc(2);
}

#[test]
#[ignore = "soak: each kind is killed at 20 points; run by `make soak`"]
fn every_kind_of_request_is_the_same_after_kills_at_twenty_points() {
    by_grpc(20);
}

#[test]
fn requests_with_images_are_the_same_after_a_kill() {
    with_images(2);
}

#[test]
#[ignore = "soak: each kind is killed at 20 points; run by `make soak`"]
fn requests_with_images_are_the_same_after_kills_at_twenty_points() {
    with_images(20);
}

/// Text by each protocol of HTTP, streamed and whole.
fn texts() -> Vec<NamedRequest> {
    let of = |stream: bool| {
        let all = [
            kinds::chat_completions(STORY, TOKENS, stream),
            kinds::responses(STORY, TOKENS, stream),
            kinds::messages(STORY, TOKENS, stream),
        ];
        all.into_iter().filter_map(|kinds| kinds.into_iter().next())
    };
    of(true).chain(of(false)).collect()
}

/// Every kind by every protocol of HTTP, streamed.
fn all_of_http() -> Vec<NamedRequest> {
    let mut all = kinds::chat_completions(STORY, TOKENS, true);
    all.extend(kinds::responses(STORY, TOKENS, true));
    all.extend(kinds::messages(STORY, TOKENS, true));
    all
}

/// An event may have the text of a whole draft.
const EVENTS: u64 = 20;

#[test]
fn no_protocol_of_http_shows_a_seam() {
    let stack = kinds::service(MANY_LIVES);
    for process in ["target", "supervisor"] {
        killed_at(&stack, process, &texts(), 1, EVENTS);
    }
    stack.stop();
}

#[test]
#[ignore = "more: each kind is killed at two points"]
fn no_kind_of_request_over_http_shows_a_seam() {
    let stack = kinds::service(MANY_LIVES);
    killed_at(&stack, "target", &all_of_http(), 2, EVENTS);
    killed_at(&stack, "supervisor", &all_of_http(), 1, EVENTS);
    stack.stop();
}
