//! Two ends of a link in two threads, and ends whose peer is not what it should be.
#![allow(missing_docs, reason = "tests")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use paceline_link::{
    End, Frame, Handover, INTAKE_BYTES, INTAKE_FRAMES, LinkError, SharedSegment, Side, frame,
    make_pair,
};
use paceline_proto::internal::v1::Stamp;
use paceline_vocabulary::link::{Drafts, Feed, Proposal, ReadProgress};
use paceline_vocabulary::tensor::TensorRef;
use paceline_vocabulary::{TensorType, chain};

const BOUND: Duration = Duration::from_secs(30);
const SEGMENT: u64 = 1 << 16;
const HALF: u64 = SEGMENT / 2;

fn handover(socket: OwnedFd, segment: OwnedFd) -> Handover {
    Handover { stamp: Stamp::default(), generation: 1, socket, segment, segment_bytes: SEGMENT }
}

fn ends() -> (End, End) {
    let pair = make_pair(SEGMENT).expect("made");
    let other = pair.segment.try_clone().expect("cloned");
    let target = End::open(handover(pair.target, pair.segment), Side::Target).expect("opens");
    (target, End::open(handover(pair.drafter, other), Side::Drafter).expect("opens"))
}

/// A target's end whose peer is the test, with the segment as the peer has it.
fn target_and_raw() -> (End, UnixStream, SharedSegment) {
    let pair = make_pair(SEGMENT).expect("made");
    let segment =
        SharedSegment::map(std::os::fd::AsFd::as_fd(&pair.segment), SEGMENT).expect("mapped");
    let target = End::open(handover(pair.target, pair.segment), Side::Target).expect("opens");
    (target, pair.drafter.into(), segment)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn nothing_read() -> Frame {
    Frame::Progress(ReadProgress::default())
}

fn protocol<T: std::fmt::Debug>(result: Result<T, LinkError>) -> String {
    match result {
        Err(LinkError::Protocol(error)) => chain(&error),
        other => panic!("expected a protocol fault, found {other:?}"),
    }
}

#[test]
fn tensors_cross_both_ways_and_space_comes_back() {
    // More than 60 lines: one story from start to end.
    let (mut target, drafter) = ends();
    let echo = std::thread::spawn(move || {
        let mut drafter = drafter;
        let mut bytes = 0;
        loop {
            match drafter.receive(BOUND) {
                Ok(Some(Frame::Feed(feed))) => {
                    let sent = feed.hidden.expect("rows");
                    let copy = drafter.take(&sent).expect("fair");
                    bytes += copy.len();
                    // Two slices, written one after another.
                    let (a, b) = copy.split_at(copy.len() / 8 * 4);
                    let tensor = loop {
                        match drafter
                            .put_parts(sent.rows, sent.columns, sent.element, &[a, b])
                            .expect("fits")
                        {
                            Some(tensor) => break tensor,
                            None => assert!(
                                drafter.receive(Duration::from_millis(1)).expect("alive").is_none()
                            ),
                        }
                    };
                    drafter
                        .send(Frame::Proposal(Proposal {
                            round: feed.round,
                            drafts: Drafts::Hidden { shapes: vec![], rows: Some(tensor) },
                        }))
                        .expect("sent");
                }
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => panic!("nothing came"),
                Err(LinkError::Gone) => return bytes,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let mut total = 0;
    for round in 1..=200u64 {
        let (rows, columns) = (1 + (round % 7) as u32, 1 + (round * 13 % 900) as u32);
        let values: Vec<f32> = (0..rows * columns).map(|n| n as f32 + round as f32).collect();
        let tensor = target
            .put(rows, columns, TensorType::F32, &floats(&values))
            .expect("fits")
            .expect("all was acknowledged");
        assert_eq!(tensor.number, round);
        target
            .send(Frame::Feed(Feed { hidden: Some(tensor), round, ..Feed::default() }))
            .expect("sent");
        let Some(Frame::Proposal(proposal)) = target.receive(BOUND).expect("alive") else {
            panic!("no proposal")
        };
        assert_eq!(proposal.round, round);
        let Drafts::Hidden { rows: Some(rows), .. } = proposal.drafts else { panic!("no rows") };
        assert_eq!(target.take(&rows).expect("fair"), floats(&values));
        total += values.len() * 4;
    }
    assert!(target.bytes() > 2 * total as u64);
    drop(target);
    assert_eq!(echo.join().expect("no panic"), total);
}

#[test]
fn a_full_ring_takes_nothing_until_the_peer_acknowledges() {
    let (mut target, mut drafter) = ends();
    let quarter = floats(&vec![1.0; (HALF / 16) as usize]);
    let columns = (HALF / 16) as u32;
    assert_eq!(target.capacity(), HALF);
    for _ in 0..4 {
        let tensor =
            target.put(1, columns, TensorType::F32, &quarter).expect("fits").expect("room");
        target.send(Frame::MaskRow(tensor)).expect("sent");
    }
    assert_eq!(target.room(), 0);
    assert!(target.put(1, columns, TensorType::F32, &quarter).expect("fits some day").is_none());
    for _ in 0..2 {
        let Some(Frame::MaskRow(row)) = drafter.receive(BOUND).expect("alive") else {
            panic!("no row")
        };
        drafter.take(&row).expect("fair");
    }
    assert!(
        target.receive(Duration::from_millis(200)).expect("alive").is_none(),
        "acknowledgements are not returned"
    );
    assert_eq!(target.room(), HALF / 2);
    for (rows, columns, bytes) in [(1, 1, &quarter[..3]), (0, 0, &[]), (1, 2, &quarter[..4])] {
        assert!(matches!(target.put(rows, columns, TensorType::F32, bytes), Err(LinkError::Io(_))));
    }
    let long = vec![0; HALF as usize + 4];
    assert!(matches!(
        target.put(1, (HALF / 4) as u32 + 1, TensorType::F32, &long),
        Err(LinkError::Io(_))
    ));
}

#[test]
fn a_tensor_that_breaks_a_rule_is_a_protocol_fault() {
    let fair = TensorRef {
        number: 1,
        offset: HALF,
        length: 64,
        rows: 4,
        columns: 4,
        element: TensorType::F32,
    };
    for (what, tensor) in [
        ("expected tensor 1", TensorRef { number: 2, ..fair }),
        ("expected tensor 1", TensorRef { number: 0, ..fair }),
        ("sender's half", TensorRef { offset: 0, ..fair }),
        ("sender's half", TensorRef { offset: HALF - 64, ..fair }),
        ("sender's half", TensorRef { offset: SEGMENT, ..fair }),
        ("multiple of 64", TensorRef { offset: HALF + 1, ..fair }),
        ("has 64 bytes", TensorRef { rows: 5, ..fair }),
    ] {
        let (mut target, _raw, _segment) = target_and_raw();
        let found = protocol(target.take(&tensor));
        assert!(found.contains(what), "{found}");
    }
    let (mut target, _raw, mut segment) = target_and_raw();
    target.take(&fair).expect("zeros are fair");
    found_once(&mut target, &fair);
    segment.write(HALF as usize + 64, &f32::NAN.to_le_bytes());
    let found = protocol(target.take(&TensorRef { number: 2, offset: HALF + 64, ..fair }));
    assert!(found.contains("not finite"), "{found}");
}

fn found_once(target: &mut End, tensor: &TensorRef) {
    assert!(protocol(target.take(tensor)).contains("expected tensor 2, found 1"));
}

#[test]
fn garbage_is_a_protocol_fault() {
    let (_, _) = ends();
    let mut acknowledged = vec![];
    frame::encode(Frame::Ack(1).into(), &mut acknowledged).expect("short");
    for (what, bytes) in [
        ("at most", vec![0xff; 64]),
        ("an empty frame", vec![0; 8]),
        ("cannot be read", vec![2, 0, 0, 0, 0x0a, 0x7f]),
        ("was acknowledged", acknowledged),
    ] {
        let (mut target, mut raw, _segment) = target_and_raw();
        raw.write_all(&bytes).expect("sent");
        let found = protocol(target.receive(BOUND));
        assert!(found.contains(what), "{found}");
    }
    let (mut target, mut raw, _segment) = target_and_raw();
    let tensor = target.put(1, 4, TensorType::F16, &[0; 8]).expect("fits").expect("room");
    target.send(Frame::MaskRow(tensor)).expect("sent");
    let mut twice = vec![];
    for _ in 0..2 {
        frame::encode(Frame::Ack(1).into(), &mut twice).expect("short");
    }
    raw.write_all(&twice).expect("sent");
    assert!(protocol(target.receive(BOUND)).contains("tensor 1 was acknowledged"));
}

#[test]
fn frames_of_a_peer_that_vanished_come_before_the_error() {
    let (mut target, mut drafter) = ends();
    drafter.send(nothing_read()).expect("sent");
    drop(drafter);
    assert!(matches!(target.receive(BOUND), Ok(Some(Frame::Progress(_)))));
    assert!(matches!(target.receive(BOUND), Err(LinkError::Gone)));
    assert!(matches!(target.send(nothing_read()), Err(LinkError::Gone)));

    let (mut target, mut raw, _segment) = target_and_raw();
    raw.write_all(&[9, 0, 0]).expect("sent");
    drop(raw);
    assert!(matches!(target.receive(BOUND), Err(LinkError::Gone)), "in the middle of a frame");
}

#[test]
fn a_peer_that_does_not_read_stalls_the_link_and_never_the_caller() {
    let (mut target, mut drafter) = ends();
    let long = || Frame::Refusal("x".repeat(100_000));
    let mut sent = 0;
    let error = loop {
        match target.send(long()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000, "kept without bound");
    };
    assert!(matches!(error, LinkError::Stalled), "{error}");
    // Nothing was lost, and what waits goes out while we receive.
    let reader = std::thread::spawn(move || {
        for _ in 0..sent {
            assert!(matches!(drafter.receive(BOUND), Ok(Some(Frame::Refusal(_)))));
        }
        drafter.send(nothing_read()).expect("sent");
        drafter
    });
    assert!(matches!(target.receive(BOUND), Ok(Some(Frame::Progress(_)))));
    reader.join().expect("no panic");
}

#[test]
fn a_step_border_takes_a_bounded_amount_of_a_flood() {
    let (mut target, mut raw, _segment) = target_and_raw();
    let mut reports = vec![];
    for _ in 0..1024 {
        frame::encode(nothing_read().into(), &mut reports).expect("short");
    }
    let flood = std::thread::spawn(move || while raw.write_all(&reports).is_ok() {});
    for _ in 0..3 {
        target.limit_intake();
        let mut frames = 0;
        while !target.is_intake_spent() {
            frames += usize::from(target.receive(BOUND).expect("alive").is_some());
        }
        assert!(frames <= INTAKE_FRAMES, "{frames} frames at one border");
        assert!(matches!(target.receive(BOUND), Ok(None)), "nothing more before the next border");
    }
    drop(target);
    flood.join().expect("the closed link ends it");
}

#[test]
fn a_frame_longer_than_a_border_takes_arrives_over_several_borders() {
    let (mut target, mut raw, _segment) = target_and_raw();
    let refusal = Frame::Refusal("x".repeat(3 * INTAKE_BYTES));
    let mut bytes = vec![];
    frame::encode(refusal.clone().into(), &mut bytes).expect("short enough");
    let writer = std::thread::spawn(move || raw.write_all(&bytes).map(|()| raw));
    let mut borders = 0;
    let found = loop {
        target.limit_intake();
        borders += 1;
        if let Some(frame) = target.receive(BOUND).expect("alive") {
            break frame;
        }
    };
    assert_eq!((found, borders >= 3), (refusal, true), "{borders} borders");
    writer.join().expect("no panic").expect("written");
}

#[test]
fn a_wait_ends_at_its_bound_and_zero_does_not_wait() {
    let (mut target, _drafter) = ends();
    assert!(target.receive(Duration::ZERO).expect("alive").is_none());
    assert!(target.receive(Duration::from_millis(20)).expect("alive").is_none());
}

#[test]
fn frames_cut_anywhere_arrive_whole() {
    let (mut target, mut raw, _segment) = target_and_raw();
    let mut bytes = vec![];
    for at in 0..50 {
        frame::encode(Frame::Refusal("y".repeat(at * 37)).into(), &mut bytes).expect("short");
    }
    let writer = std::thread::spawn(move || {
        for (at, piece) in bytes.chunks(61).enumerate() {
            raw.write_all(piece).expect("sent");
            if at % 16 == 0 {
                std::thread::yield_now();
            }
        }
        raw
    });
    for at in 0..50 {
        let Some(Frame::Refusal(refusal)) = target.receive(BOUND).expect("alive") else {
            panic!("no frame")
        };
        assert_eq!(refusal.len(), at * 37);
    }
    let mut raw = writer.join().expect("no panic");
    drop(target);
    assert_eq!(raw.read(&mut [0]).expect("closed"), 0);
}
