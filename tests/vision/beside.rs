//! Images and text in turn and side by side, with a drafter that comes and goes. Streams of text
//! keep their lane, drafter and tokens. Answers to images are those of the plain lane. Nothing is
//! loaded again, and no drafter is stopped.

use nix::sys::signal::Signal;
use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use paceline_tests::ask::{Ask, chat, conversation, message};
use paceline_tests::images::{
    about, image, noise, seeing_and_drafting, seeing_and_drafting_text, text, turn,
};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, is_linked, signal, wait};
use serde_json::Value;

use super::{Compared, all_is_over};

/// The processes that serve, and the time since when they do.
#[derive(Debug, PartialEq)]
struct Lives {
    target: [Value; 4],
    drafter: [Value; 3],
}

fn lives(stack: &Stack) -> Lives {
    let status = stack.status().expect("it answers");
    let of = |process: &str, key: &str| {
        let value = status[process][key].clone();
        assert!(!value.is_null(), "{process}.{key} is in {status}");
        value
    };
    Lives {
        target: ["pid", "epoch", "restarts", "weights_loaded_at"].map(|key| of("target", key)),
        drafter: ["pid", "epoch", "restarts"].map(|key| of("drafter", key)),
    }
}

fn force(stack: &Stack, lane: &str) {
    let output = stack.paceline(&["policy", "set", "routing.force", lane], "");
    assert!(output.status.success(), "{output:?}");
}

/// Eight streams of text, greedy and sampled in turn.
fn texts() -> Vec<Ask> {
    let one = |at: u64| {
        let ask = chat(&"Tell me of the sea, the wind and the boats. ".repeat(1 + at as usize))
            .exactly(120);
        if at.is_multiple_of(2) { ask } else { ask.sampled(0.8, 0.95, at) }
    };
    (0..8).map(one).collect()
}

/// Two questions about images that no request saw before: one, and two of different size with
/// text between.
fn images(number: u64) -> Vec<Ask> {
    let three = vec![
        turn(vec![
            text("First this: "),
            image(noise(128, 64, number + 1)),
            text(" and then "),
            image(noise(24, 80, number + 2)),
        ]),
        message("assistant", "Yes."),
        turn(vec![text("Which was larger?")]),
    ];
    vec![
        about(noise(96, 96, number), "What is it?").exactly(100),
        conversation(three).exactly(100).sampled(0.8, 0.95, number),
    ]
}

fn start(stack: &Stack, asks: &[Ask]) -> Vec<Pending> {
    asks.iter().map(|ask| stack.start(ask.clone())).collect()
}

fn finish(running: Vec<Pending>) -> Vec<Answer> {
    running.into_iter().map(|pending| pending.finish().expect("served")).collect()
}

/// The answers in the plain lane, one after another.
fn alone(stack: &Stack, asks: &[Ask]) -> Vec<Answer> {
    force(stack, "plain");
    let answers =
        asks.iter().map(|ask| stack.ask(ask.clone().with_margins()).expect("served")).collect();
    force(stack, "speculative");
    answers
}

#[test]
fn a_drafter_for_text_alone_is_bypassed_for_requests_with_images() {
    let stack = seeing_and_drafting_text("");
    let drafted = |ask: Ask| ask.exactly(40).route(RouteWish::Speculative);
    let image = stack.ask(drafted(about(noise(64, 64, 1), "What is it?"))).expect("served");
    assert_eq!(
        (image.route(), image.speculation().cycles),
        ((Lane::Plain, RouteReason::Modality), 0)
    );
    let text = stack.ask(drafted(chat("What is it?"))).expect("served");
    assert_ne!(
        text.route().1,
        RouteReason::Modality,
        "a request of text has no image to deny drafts for"
    );
    wait("drafts for text", || {
        let text = stack.ask(drafted(chat("What is it?"))).expect("served");
        (text.speculation().cycles > 0).then_some(())
    });
    stack.stop();
}

/// Number of answers with drafts, of requests that all asked for drafts. On a busy machine the
/// drafts of a short stream may all come too late, which is the only other permitted reason.
fn drafted(answers: &[Answer], what: &str) -> usize {
    let one = |(at, answer): (usize, &Answer)| match answer.route() {
        (Lane::Speculative, RouteReason::Forced) if answer.speculation().cycles > 0 => true,
        (Lane::Plain, RouteReason::DrafterBehind | RouteReason::DrafterLate) => false,
        _ => panic!("{what}, {at}: {:?}", answer.end),
    };
    answers.iter().enumerate().map(one).filter(|drafted| *drafted).count()
}

fn span(answer: &Answer) -> (i64, i64) {
    (answer.step_ends_ns[0], answer.step_ends_ns[answer.step_ends_ns.len() - 1])
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn text_requests_beside_images_keep_lane_drafter_and_tokens() {
    let stack = seeing_and_drafting("");
    let (texts, mut compared) = (texts(), Compared::default());
    let plain = alone(&stack, &texts);
    wait("eight streams that draft, without images", || {
        let answers = finish(start(&stack, &texts));
        (drafted(&answers, "without images") == answers.len()).then_some(())
    });
    let before = lives(&stack);

    // In turn, with images that were sent before in the plain lane only, and with new images.
    for (number, known) in [(100, true), (110, false)] {
        let asks = images(number);
        let known = known.then(|| alone(&stack, &asks));
        let mut shown = vec![];
        for (at, ask) in asks.iter().enumerate() {
            shown.push(stack.ask(ask.clone()).expect("served"));
            wait("a text after an image that drafts", || {
                let answer = stack.ask(texts[at].clone()).expect("served");
                compared.same(&plain[at], &answer, "text after an image");
                (drafted(&[answer], "text after an image") == 1).then_some(())
            });
        }
        for (known, shown) in known.unwrap_or_else(|| alone(&stack, &asks)).iter().zip(&shown) {
            compared.same(known, shown, "an image after text");
        }
    }
    // Eight streams, and at one moment two requests with images.
    let (mut all_drafted, mut images_drafted, mut number) = (0, 0, 200);
    while all_drafted < 2 || images_drafted < 2 {
        let asks = images(number);
        let known = (all_drafted == 1).then(|| alone(&stack, &asks));
        let (running, shown) = (start(&stack, &texts), start(&stack, &asks));
        let (said, shown) = (finish(running), finish(shown));
        let known = known.unwrap_or_else(|| alone(&stack, &asks));
        for (at, (plain, said)) in plain.iter().zip(&said).enumerate() {
            compared.same(plain, said, &format!("text {at} beside images {number}"));
        }
        let mut were_beside = true;
        for (at, (known, shown)) in known.iter().zip(&shown).enumerate() {
            compared.same(known, shown, &format!("image {at} beside text, {number}"));
            let (first, last) = span(shown);
            were_beside &= said.iter().any(|said| span(said).0 < last && first < span(said).1);
        }
        // On a busy machine the texts may end before the images begin. Such a round proves
        // nothing, so another one is run.
        if were_beside {
            all_drafted += usize::from(drafted(&said, "beside images") == said.len());
            images_drafted += drafted(&shown, "images beside text");
        }
        number += 10;
        assert!(number < 490, "{all_drafted} times all drafted, {images_drafted} images");
    }

    // The same image several times at one moment, and others with it.
    let asks: Vec<Ask> = [500, 500, 510, 500].into_iter().flat_map(images).collect();
    let shown = finish(start(&stack, &asks));
    for (known, shown) in alone(&stack, &asks).iter().zip(&shown) {
        compared.same(known, shown, "eight requests with images at one moment");
    }
    wait("eight streams that draft, after all", || {
        let answers = finish(start(&stack, &texts));
        plain
            .iter()
            .zip(&answers)
            .for_each(|(plain, answer)| compared.same(plain, answer, "after all"));
        (drafted(&answers, "after all") == answers.len()).then_some(())
    });
    // The gain of drafts after images is measured apart from that of text.
    let figures = stack.target_stats().now.and_then(|now| now.figures).unwrap_or_default();
    let classes: Vec<&str> = figures.classes.iter().map(|one| one.class.as_str()).collect();
    assert!(["default", "image"].iter().all(|class| classes.contains(class)), "{classes:?}");
    assert_eq!(lives(&stack), before, "no process was started again");
    all_is_over(&stack);
    stack.stop();
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn changes_of_the_drafter_change_no_answer_to_an_image() {
    let stack =
        seeing_and_drafting("supervisor.restarts = 100000\nrouting.force = \"speculative\"\n");
    let before = lives(&stack);
    let mut compared = Compared::default();
    let texts = &texts()[..2];
    let plain = alone(&stack, texts);
    let mut number = 1_000;
    let mut fresh = || {
        number += 10;
        images(number)
    };
    let mut seen: Vec<(&str, Ask, Answer)> = vec![];
    let mut add = |what, asks: Vec<Ask>, answers: Vec<Answer>| {
        seen.extend(asks.into_iter().zip(answers).map(|(ask, answer)| (what, ask, answer)));
    };
    for _ in 0..2 {
        // Requests that run when the swap begins, that come during the swap, and that come after
        // it.
        let (running, early) = (start(&stack, texts), fresh());
        let began = start(&stack, &early);
        let swap = stack.begin(&["drafter", "swap"]);
        let meanwhile = fresh();
        let came = start(&stack, &meanwhile);
        let output = swap.wait_with_output().expect("a child");
        assert!(output.status.success(), "{output:?}");
        add("before a swap", early, finish(began));
        add("during a swap", meanwhile, finish(came));
        plain
            .iter()
            .zip(finish(running))
            .for_each(|(plain, said)| compared.same(plain, &said, "text over a swap"));
        let after = fresh();
        let answers = finish(start(&stack, &after));
        drafted(&answers, "after a swap");
        add("after a swap", after, answers);
    }
    let swapped = lives(&stack);
    assert!(
        swapped.target == before.target && swapped.drafter[0] != before.drafter[0],
        "{before:?} {swapped:?}"
    );

    // Killed in the middle of answers.
    let (drafter, running, asks) = (stack.pid("drafter"), start(&stack, texts), fresh());
    let mut live = stack.open(about(noise(64, 64, 9), "What is it?").exactly(300)).expect("served");
    let shown = start(&stack, &asks);
    live.read(3);
    signal(drafter, Signal::SIGKILL);
    add("over a drafter's end", asks, finish(shown));
    let over = about(noise(64, 64, 9), "What is it?").exactly(300);
    add("over a drafter's end", vec![over], vec![live.finish().expect("served")]);
    plain
        .iter()
        .zip(finish(running))
        .for_each(|(plain, said)| compared.same(plain, &said, "text over a drafter's end"));
    stack.wait_status("the next drafter", |status| {
        let next = status["drafter"]["pid"].as_u64().is_some_and(|pid| pid != u64::from(drafter));
        next && is_linked(status)
    });

    // Without one.
    stack.drafter(&["stop"]);
    let asks = fresh();
    let answers = finish(start(&stack, &asks));
    assert!(
        answers.iter().all(|answer| answer.route() == (Lane::Plain, RouteReason::DrafterAbsent))
    );
    add("without a drafter", asks, answers);
    stack.drafter(&["start"]);
    wait("images that draft with one again", || {
        let asks = fresh();
        let answers = finish(start(&stack, &asks));
        let drafted = drafted(&answers, "with one again");
        add("with one again", asks, answers);
        (drafted > 0).then_some(())
    });

    let asks: Vec<Ask> = seen.iter().map(|(_, ask, _)| ask.clone()).collect();
    for ((what, _, answer), known) in seen.iter().zip(alone(&stack, &asks)) {
        compared.same(&known, answer, what);
    }
    assert_eq!(lives(&stack).target, before.target);
    all_is_over(&stack);
    stack.stop();
}
