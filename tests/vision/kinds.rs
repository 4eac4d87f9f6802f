//! Drafters that read token ids, beside images: a small text model, an EAGLE-3 head, and a head of
//! kind `mtp`. Answers about images are those of the plain lane, whatever the drafter proposes (I1).

use std::path::{Path, PathBuf};

use paceline_proto::v1::{Lane, Message, RouteReason, RouteWish};
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::image_drafters::{eagle3_of_demo, mtp_of_hybrid, text_of_demo};
use paceline_tests::images::{hybrid_model, image, noise, text, turn};
use paceline_tests::prompts::reference;
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, repository, wait};

use super::{Compared, all_is_over};

/// Questions about images: one of the demo's pictures, an image after the question, two images in
/// two turns, and two side by side. Greedy and sampled in turn.
fn asks(count: u64, longest: u32) -> Vec<Ask> {
    let demo = repository().join("demo/vision/images");
    let known = |number: u64| {
        let name = ["shapes.png", "digit.png", "large.png"][(number / 4 % 3) as usize];
        image(std::fs::read(demo.join(name)).expect("in the repository"))
    };
    let seen = |number: u64| image(noise(96 + 32 * (number % 3) as u32, 96, number));
    let one = |at: u64| -> Vec<Message> {
        match at % 4 {
            0 => vec![turn(vec![known(at), text("Describe the picture.")])],
            1 => vec![turn(vec![text("How many shapes are there?"), seen(at)])],
            2 => vec![
                turn(vec![seen(at), text("Which digit is in the picture?")]),
                message("assistant", "The digit is 7."),
                turn(vec![seen(at + 100), text("Describe the picture.")]),
            ],
            _ => vec![turn(vec![seen(at), text("and"), seen(at + 100), text("What is there?")])],
        }
    };
    let sampled = |at: u64| {
        let ask = conversation(one(at)).exactly(longest);
        if at % 2 == 1 { ask.sampled(0.8, 0.95, at) } else { ask }
    };
    (0..count).map(sampled).collect()
}

fn all(stack: &Stack, asks: impl Iterator<Item = Ask>) -> Vec<Answer> {
    let running: Vec<Pending> = asks.map(|ask| stack.start(ask)).collect();
    running.into_iter().map(|pending| pending.finish().expect("served")).collect()
}

/// Asks in the plain lane and with drafts, one at a time and together. Returns accepted and drafted
/// tokens.
fn check(target: &Path, drafter: &Path, kind: &str, asks: &[Ask]) -> (u64, u64) {
    let stack = Stack::drafting(&format!(
        "target.model = {:?}\ndrafter.model = {:?}\n",
        target.display().to_string(),
        drafter.display().to_string()
    ));
    let plain = all(&stack, asks.iter().cloned().map(reference));
    let (mut compared, mut accepted, mut drafted) = (Compared::default(), 0, 0);
    let fast = |ask: &Ask| ask.clone().route(RouteWish::Speculative);
    for (at, ask) in asks.iter().enumerate() {
        // On a busy machine all drafts of a short stream may be late. Such a stream runs once more.
        wait("a stream with drafts", || {
            let answer = stack.ask(fast(ask)).expect("served");
            compared.same(&plain[at], &answer, &format!("{kind}, request {at}"));
            let speculation = answer.speculation();
            accepted += speculation.accepted;
            drafted += speculation.drafted;
            assert_ne!(answer.route().1, RouteReason::Modality, "{kind}: images are drafted for");
            (answer.route().0 == Lane::Speculative && speculation.cycles > 0).then_some(())
        });
    }
    // All at one moment, from the prefix cache.
    for (at, answer) in all(&stack, asks.iter().map(fast)).iter().enumerate() {
        compared.same(&plain[at], answer, &format!("{kind}, request {at}, together"));
    }
    all_is_over(&stack);
    stack.stop();
    (accepted, drafted)
}

/// Writes a drafter's checkpoint into a directory.
type MakeDrafter = fn(&Path);

fn check_kinds(count: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let demo = repository().join("demo/vision/target");
    let kinds: [(&str, PathBuf, MakeDrafter); 3] = [
        ("model", demo.clone(), text_of_demo),
        ("eagle3", demo, eagle3_of_demo),
        ("mtp", hybrid_model(), mtp_of_hybrid),
    ];
    for (kind, target, make) in kinds {
        let drafter = dir.path().join(kind);
        make(&drafter);
        let (accepted, drafted) = check(&target, &drafter, kind, &asks(count, 40));
        assert!(drafted > 0, "{kind}");
        // It was trained, and the others were not. Noise is no picture that it knows.
        assert!(kind != "model" || accepted * 20 > drafted, "{kind}: {accepted} of {drafted}");
    }
}

#[test]
fn answers_about_images_with_drafts_of_each_kind_equal_plain_answers() {
    check_kinds(4);
}

#[test]
#[ignore = "soak: two minutes; run by `make soak`"]
fn twenty_answers_about_images_with_drafts_of_each_kind_equal_plain_answers() {
    check_kinds(20);
}
