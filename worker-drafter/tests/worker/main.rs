//! The real process with the demo drafter; the test plays supervisor and target.
#![allow(missing_docs, reason = "tests")]

mod rig;

use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::Path;

use paceline_link::{Frame, SEGMENT_BYTES, make_pair, send};
use paceline_proto::internal::v1::drafter_client::DrafterClient;
use paceline_proto::internal::v1::{DescribeDrafterRequest, LinkPhase, Stamp, WorkerPhase};
use paceline_vocabulary::link::{
    Context, Drafts, Feed, Hello, Proposal, ProposalKind, ReadProgress, RestoredPrefix,
    RetainedPages,
};
use paceline_vocabulary::tensor::TensorRef;
use rig::{
    BLOCK, BOUND, FEATURES, HIDDEN, Meal, STAMP, Target, Worker, assert_close, demo, hello, rows,
};

#[test]
fn a_drafter_describes_itself_answers_the_handshake_drafts_and_stops() {
    let mut worker = Worker::start(&demo());
    let beat = worker.beat(|beat| beat.phase() == WorkerPhase::Idle);
    assert!(
        beat.loaded_bytes == beat.total_bytes
            && beat.total_bytes > 0
            && beat.weights_loaded_unix_s > 0
    );
    assert_eq!((beat.epoch, beat.link.expect("a report").phase()), (3, LinkPhase::Absent));
    // Each block of the warm-up was reported: one of them alone may take half a minute.
    assert_eq!(beat.steps, 4);
    let mut client = DrafterClient::new(worker.channel.clone());
    let request = DescribeDrafterRequest { stamp: Some(STAMP) };
    let about = worker
        .runtime
        .block_on(async { client.describe(request).await.expect("described").into_inner() });
    let drafter = about.drafter.expect("a drafter");
    assert_eq!(
        (drafter.name.as_str(), drafter.kind.as_str(), drafter.block_size),
        ("drafter", "dflash", BLOCK)
    );
    assert_eq!((about.epoch, about.pid), (3, worker.child.id()));
    let stale = DescribeDrafterRequest { stamp: Some(Stamp { term: 4, epoch: 3 }) };
    worker.runtime.block_on(async { client.describe(stale).await.expect_err("stale") });

    let mut target = worker.link();
    let report = worker.phase(LinkPhase::Up).link.expect("a report");
    assert_eq!((report.generation, report.serving), (1, 1));
    // A context of zeros is read and reported.
    target.feed(Meal::default().context(1, 0, &vec![0.0; 5 * FEATURES as usize], false));
    target.read_up_to(1, 5);
    let drafted = target.draft(Meal::default().request(1, 5, BLOCK));
    assert_eq!(drafted.len() as u32, (BLOCK - 1) * HIDDEN);
    // The next cycle: what was accepted, and a shorter block.
    let drafted =
        target.draft(Meal::default().context(1, 5, &rows(3, FEATURES, 2), false).request(1, 8, 4));
    assert_eq!(drafted.len() as u32, 3 * HIDDEN);
    let beat = worker
        .beat(|beat| beat.sequences == 1 && beat.steps >= 7 && beat.phase() == WorkerPhase::Idle);
    assert!(beat.kv.expect("figures").held_bytes > 0);
    target.feed(Meal::closed(&[1]));
    worker.beat(|beat| beat.sequences == 0);
    drop(target);
    assert_eq!(worker.phase(LinkPhase::Lost).sequences, 0);
    let left = |worker: &Worker| {
        ["json", "link.sock"].map(|end| worker.dir.path().join(format!("drafter-1.{end}")).exists())
    };
    assert_eq!(left(&worker), [true, true]);
    assert_eq!(worker.stop(), Some(0));
    assert_eq!(left(&worker), [false, false]);
}

#[test]
fn drafts_of_sessions_in_one_forward_equal_drafts_alone() {
    let mut worker = Worker::ready();
    let mut target = worker.link();
    // Lengths on both sides of a capacity class, so that sessions move while others stay.
    let lengths = [3u32, 250, 300, 17];
    let context = |session: u64| rows(lengths[session as usize - 1], FEATURES, session);
    let more = |session: u64| rows(1 + session as u32, FEATURES, 50 + session);
    let mut alone = vec![];
    for session in 1..=4 {
        let end = lengths[session as usize - 1];
        let first = target.draft(
            Meal::default()
                .context(session, 0, &context(session), false)
                .request(session, end, BLOCK),
        );
        let next = end + 1 + session as u32;
        let second = target.draft(
            Meal::default().context(session, end, &more(session), false).request(session, next, 5),
        );
        alone.push((first, second));
    }
    target.feed(Meal::closed(&[1, 2, 3, 4]));
    for first_time in [true, false] {
        let mut meal = Meal::default();
        for session in 1..=4 {
            let end = lengths[session as usize - 1];
            meal = match first_time {
                true => {
                    meal.context(session, 0, &context(session), false).request(session, end, BLOCK)
                }
                false => meal.context(session, end, &more(session), false).request(
                    session,
                    end + 1 + session as u32,
                    5,
                ),
            };
        }
        target.feed(meal);
        let answer = target.proposal();
        assert_eq!(answer.drafts.len(), 4);
        for (shape, found) in answer.shapes.iter().zip(&answer.drafts) {
            let (first, second) = &alone[shape.session as usize - 1];
            assert_close(found, if first_time { first } else { second });
        }
    }
}

#[test]
fn a_fresh_start_forgets_the_context_and_drafts_depend_on_positions() {
    let mut worker = Worker::ready();
    let mut target = worker.link();
    let (old, new) = (rows(20, FEATURES, 1), rows(12, FEATURES, 2));
    let meal = |session, fresh| {
        Meal::default().context(session, 500, &new, fresh).request(session, 512, BLOCK)
    };
    target.draft(Meal::default().context(1, 0, &old, false).request(1, 20, BLOCK));
    // Nonsense in between does not matter: one session, and the bonus row is made from its number.
    let again = target.draft(meal(1, true));
    target.feed(Meal::closed(&[1]));
    assert_close(&target.draft(meal(1, false)), &again);
    let elsewhere = Meal::default().context(1, 40, &new, true).request(1, 52, BLOCK);
    let moved = target.draft(elsewhere);
    assert_eq!(moved.len(), again.len());
    // A prompt longer than a piece is reported piece by piece. Drafts are the same whether it came
    // in one feed or in small ones.
    let long = rows(1300, FEATURES, 9);
    target.feed(Meal::default().context(2, 0, &long, false));
    target.read_up_to(2, 512);
    target.read_up_to(2, 1300);
    let in_one = target.draft(Meal::default().request(2, 1300, BLOCK));
    target.feed(Meal::closed(&[2]));
    for at in 0..13 {
        let part = &long
            [at as usize * 100 * FEATURES as usize..(at as usize + 1) * 100 * FEATURES as usize];
        target.feed(Meal::default().context(2, at * 100, part, false));
    }
    target.read_up_to(2, 1300);
    assert_close(&target.draft(Meal::default().request(2, 1300, BLOCK)), &in_one);
    // At the end of the drafter's context blocks get shorter and then there are none; that is no
    // fault.
    let short = target.draft(
        Meal::default().context(3, 4088, &rows(4, FEATURES, 3), false).request(3, 4092, BLOCK),
    );
    assert_eq!(short.len() as u32, 3 * HIDDEN);
    target.feed(
        Meal::default().context(3, 4092, &rows(3, FEATURES, 3), false).request(3, 4095, BLOCK),
    );
    assert!(target.proposal().drafts.is_empty());
}

#[test]
fn a_restored_context_drafts_as_one_that_was_read() {
    let mut worker = Worker::ready();
    let mut target = worker.link();
    let (prompt, rest) = (rows(200, FEATURES, 1), rows(13, FEATURES, 2));
    target.draft(Meal::default().context(1, 0, &prompt, false).request(1, 200, BLOCK));
    let whole = [&prompt[..192 * FEATURES as usize], &rest].concat();
    let expected =
        target.draft(Meal::default().context(2, 0, &whole, false).request(2, 205, BLOCK));
    let mut closed = Meal::closed(&[1, 2]);
    let keys = (1..=3).map(|page| [page; 32]).collect();
    closed.feed.retained.push(RetainedPages { session: 1, first_page: 0, keys });
    target.feed(closed);
    let page = 64 * 2048;
    worker
        .beat(|beat| beat.sequences == 0 && beat.kv.is_some_and(|kv| kv.prefix_bytes == 3 * page));
    let from = |name: u8, session| {
        let mut meal =
            Meal::default().context(session, 192, &rest, true).request(session, 205, BLOCK);
        meal.feed.restored.push(RestoredPrefix { session, key: [name; 32], since: 192 });
        meal
    };
    // Twice, because a session goes on in a copy.
    for _ in 0..2 {
        assert_close(&target.draft(from(3, 2)), &expected);
        target.draft(
            Meal::default().context(2, 205, &rows(4, FEATURES, 3), false).request(2, 209, BLOCK),
        );
    }
    // Nothing is retained under that name: reported, and no draft until a fresh context comes.
    let round = target.feed(from(9, 4));
    assert_eq!(
        target.end.receive(BOUND).expect("alive"),
        Some(Frame::Progress(ReadProgress { sessions: vec![], missed: vec![4] }))
    );
    let answer = target.proposal();
    assert_eq!((answer.round, answer.drafts.len()), (round, 0));
    target.draft(
        Meal::default().context(4, 100, &rows(105, FEATURES, 4), true).request(4, 205, BLOCK),
    );
    // When its link ends, everything of a target is forgotten.
    let mut other = worker.link();
    worker.beat(|beat| {
        beat.sequences == 0 && beat.kv.is_some_and(|kv| (kv.prefix_bytes, kv.held_bytes) == (0, 0))
    });
    other.feed(from(3, 2));
    assert_eq!(
        other.end.receive(BOUND).expect("alive"),
        Some(Frame::Progress(ReadProgress { sessions: vec![], missed: vec![2] }))
    );
}

#[test]
fn a_target_that_does_not_fit_is_refused_with_the_reason() {
    let mut worker = Worker::ready();
    for (change, expected) in [
        (
            (|hello| hello.hidden_size = 128) as fn(&mut Hello),
            "hidden size: expected 128, found 256",
        ),
        (|hello| hello.n_layers = 36, "layers of the target: expected 36, found 8"),
        (|hello| hello.version = 9, "link version: expected 8, found 9"),
        (
            |hello| hello.max_sessions = 1 << 20,
            "sessions of the target: expected at most 1024, found 1048576",
        ),
    ] {
        let mut end = worker.hand(STAMP);
        let mut hello = hello(worker.generation);
        change(&mut hello);
        end.send(Frame::Hello(hello)).expect("sent");
        let Some(Frame::Refusal(reason)) = end.receive(BOUND).expect("alive") else {
            panic!("no refusal")
        };
        assert_eq!(reason, expected);
        assert_eq!(worker.phase(LinkPhase::Refused).link.expect("a report").reason, expected);
    }
    let mut target = worker.link();
    target.draft(Meal::default().context(1, 0, &rows(1, FEATURES, 1), false).request(1, 1, 2));
}

/// The refusal of a pair whose files say that it does not fit comes before a weight is read, and the
/// worker then needs no memory for weights.
#[test]
fn a_drafter_that_does_not_fit_the_configured_target_is_refused_without_a_load() {
    let golden = |name: &str| demo().join("../../models/tests/golden").join(name);
    let target = golden("qwen3-tiny");
    let target: [(&str, &Path); 1] = [("PACELINE_TARGET__MODEL", &target)];
    let mut worker = Worker::start_with(&golden("dflash-full"), &target);
    let beat = worker.beat(|beat| beat.phase() != WorkerPhase::Loading);
    assert_eq!((beat.phase(), beat.loaded_bytes), (WorkerPhase::Idle, 0), "{}", beat.failure);
    let expected = "hidden size: expected 64, found 32";
    // Also a target that it would fit is refused: nothing is there to draft with.
    for (hidden_size, n_layers, vocab_size) in [(64, 3, 288), (32, 3, 56)] {
        let mut end = worker.hand(STAMP);
        let hello = Hello { hidden_size, n_layers, vocab_size, ..hello(worker.generation) };
        end.send(Frame::Hello(hello)).expect("sent");
        let Some(Frame::Refusal(reason)) = end.receive(BOUND).expect("alive") else {
            panic!("no refusal")
        };
        assert_eq!(reason, expected);
    }
    assert_eq!(worker.stop(), Some(0));
}

type Break = fn(&mut Target);

#[test]
fn a_target_that_breaks_a_rule_is_ejected_and_the_next_link_works() {
    let mut worker = Worker::ready();
    let breaks: [(&str, Break); 6] = [
        ("Proposal that is not expected", |target| {
            let drafts = Drafts::none(ProposalKind::Hidden);
            target.end.send(Frame::Proposal(Proposal { round: 1, drafts })).expect("sent")
        }),
        ("expected its context to go on at 1, found 7", |target| {
            target.feed(Meal::default().context(1, 7, &rows(1, FEATURES, 1), false));
        }),
        ("which is not open", |target| {
            target.feed(Meal::default().request(9, 0, 4));
        }),
        ("not finite", |target| {
            target.feed(Meal::default().context(1, 1, &vec![f32::NAN; FEATURES as usize], false));
        }),
        ("expected tensor", |target| {
            let tensor = target.put(&rows(1, FEATURES, 1), 1, FEATURES);
            let hidden = Some(TensorRef { number: tensor.number + 1, ..tensor });
            let (session, position, rows) = (1, 1, 1);
            let context = Context { session, position, rows, ..Context::default() };
            let feed = Feed { contexts: vec![context], hidden, ..Feed::default() };
            target.end.send(Frame::Feed(feed)).expect("sent");
        }),
        ("was acknowledged", |target| {
            target.end.send(Frame::Ack(1000)).expect("sent");
        }),
    ];
    for (expected, break_it) in breaks {
        let mut target = worker.link();
        target.draft(Meal::default().context(1, 0, &rows(1, FEATURES, 1), false).request(1, 1, 3));
        break_it(&mut target);
        target.gone();
        let beat = worker.phase(LinkPhase::Ejected);
        let reason = beat.link.expect("a report").reason;
        assert!(reason.contains(expected), "{reason}");
        assert_eq!((beat.sequences, beat.kv.expect("figures").held_bytes), (0, 0));
    }
    // Bytes that are no frames.
    worker.generation += 1;
    let pair = make_pair(SEGMENT_BYTES).expect("made");
    let path = worker.dir.path().join("drafter-1.link.sock");
    let ends = (pair.drafter.as_fd(), pair.segment.as_fd());
    send(&path, STAMP, worker.generation, ends.0, ends.1, SEGMENT_BYTES, BOUND).expect("taken");
    std::os::unix::net::UnixStream::from(pair.target.try_clone().expect("cloned"))
        .write_all(&[0xff; 100])
        .expect("sent");
    worker.phase(LinkPhase::Ejected);
    let mut target = worker.link();
    target.draft(Meal::default().context(1, 0, &rows(1, FEATURES, 1), false).request(1, 1, 3));
    assert_eq!(worker.stop(), Some(0));
}

#[test]
fn newer_links_replace_older_ones_and_stale_ones_are_dropped() {
    let mut worker = Worker::ready();
    let mut first = worker.link();
    first.feed(Meal::default().context(1, 0, &rows(2, FEATURES, 1), false));
    first.read_up_to(1, 2);
    let mut second = worker.link();
    first.gone();
    second.draft(Meal::default().context(1, 0, &rows(2, FEATURES, 1), false).request(1, 2, 3));
    worker.beat(|beat| {
        beat.sequences == 1 && beat.link.as_ref().is_some_and(|link| link.serving == 2)
    });
    for stamp in [Stamp { term: 4, epoch: 3 }, Stamp { term: 5, epoch: 2 }] {
        let end = worker.hand(stamp);
        Target { end, round: 0 }.gone();
    }
    // A number that was there before.
    worker.generation = 0;
    let end = worker.hand(STAMP);
    Target { end, round: 0 }.gone();
    worker.generation = 2;
    second.draft(Meal::default().context(1, 2, &rows(2, FEATURES, 1), false).request(1, 4, 3));
}

#[test]
fn nothing_is_left_open_over_many_links() {
    let mut worker = Worker::ready();
    let descriptors = |worker: &Worker| {
        let path = format!("/proc/{}/fd", worker.child.id());
        std::fs::read_dir(path).map_or(0, std::iter::Iterator::count)
    };
    let mut counts = vec![];
    for round in 0..20 {
        let mut target = worker.link();
        let meal = Meal::default().context(1, 0, &rows(4, FEATURES, round), false).context(
            2,
            9,
            &rows(300, FEATURES, round),
            false,
        );
        target.feed(meal.request(1, 4, BLOCK));
        // Every other target dies without reading the answer.
        if round % 2 == 0 {
            target.proposal();
        }
        drop(target);
        let beat = worker.beat(|beat| {
            beat.link.as_ref().is_some_and(|link| {
                link.generation == round + 1
                    && link.phase() != LinkPhase::Up
                    && link.phase() != LinkPhase::Greeting
            })
        });
        assert_eq!((beat.sequences, beat.kv.expect("figures").held_bytes), (0, 0));
        counts.push(descriptors(&worker));
    }
    assert!(counts.iter().all(|count| *count <= counts[0]), "{counts:?}");
}

#[test]
fn a_drafter_that_cannot_be_loaded_reports_why_and_exits() {
    let mut worker = Worker::start(Path::new("/nonexistent"));
    let beat = worker.beat(|beat| beat.phase() == WorkerPhase::Failed);
    assert!(beat.failure.contains("/nonexistent"), "{}", beat.failure);
    assert_eq!(worker.wait_end(), Some(65));
}

#[test]
fn a_full_ring_means_no_drafts() {
    let mut worker = Worker::ready();
    worker.segment_bytes = 64 << 10;
    let mut target = worker.link();
    target.feed(Meal::default().context(1, 0, &rows(2, FEATURES, 1), false));
    target.read_up_to(1, 2);
    // A draft is 15 KiB, the drafter's ring has 32: the third finds no room, as nothing was taken
    // out.
    let mut waiting = vec![];
    for round in 1..=3 {
        target.feed(Meal::default().request(1, 2, BLOCK));
        let Some(Frame::Proposal(proposal)) = target.end.receive(BOUND).expect("alive") else {
            panic!("no proposal")
        };
        let Drafts::Hidden { shapes, rows } = proposal.drafts else { panic!("expected rows") };
        assert_eq!((proposal.round, shapes.len()), (round, usize::from(round < 3)));
        waiting.extend(rows);
    }
    for tensor in waiting {
        target.end.take(&tensor).expect("fair");
    }
    target.draft(Meal::default().request(1, 2, BLOCK));
}
