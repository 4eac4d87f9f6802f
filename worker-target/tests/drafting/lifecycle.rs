//! Drafters that go away, answer late, or leave sequences out.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use paceline_link::{End, Frame, SEGMENT_BYTES, handover, make_pair};
use paceline_proto::internal::v1::LinkPhase;
use paceline_vocabulary::link::{Feed, ProposalKind};

use super::Stage;
use super::stage::drafter::{attach, propose_ids, read_all, welcome};
use super::stage::{BOUND, STAMP};

#[test]
fn a_drafter_that_goes_is_lost_and_a_silent_one_is_suspect() {
    let mut stage = Stage::new();
    attach(&stage.worker, 1, None, Box::new(|_, _| Ok(true)));
    stage.until(1, LinkPhase::Lost);
    // It dies with drafts under way.
    let mut rounds = 0;
    let dies = move |end: &mut End, feed: &Feed| {
        rounds += u32::from(feed.round > 0);
        if rounds == 4 { Ok(false) } else { propose_ids(end, feed, |_| vec![5]) }
    };
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), Box::new(dies));
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain("it dies");
    stage.until(2, LinkPhase::Lost);
    // It never answers a request.
    let silent =
        |end: &mut End, feed: &Feed| end.send(Frame::Progress(read_all(feed))).map(|()| true);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Tokens)), Box::new(silent));
    stage.until(3, LinkPhase::Up);
    let silent = stage.same_as_plain("it is silent");
    assert!(silent.iter().all(|speculation| speculation.cycles == 0));
    assert!(stage.until(3, LinkPhase::Suspect).contains("late"));
    // It answers every round after the next one was requested: always late, and each answer is for
    // a position that the sequence has left.
    let mut owed: Option<Feed> = None;
    let late = move |end: &mut End, feed: &Feed| {
        if feed.round == 0 {
            end.send(Frame::Progress(read_all(feed)))?;
        } else if let Some(old) = owed.replace(feed.clone()) {
            propose_ids(end, &old, |_| vec![7, 8, 9])?;
        }
        Ok(true)
    };
    attach(&stage.worker, 4, Some(welcome(4, ProposalKind::Tokens)), Box::new(late));
    stage.until(4, LinkPhase::Up);
    stage.same_as_plain("it is late");
    // It leaves every second session out.
    let partial = |end: &mut End, feed: &Feed| {
        propose_ids(end, feed, |request| {
            if (request.session + u64::from(request.position)) % 2 == 0 { vec![1] } else { vec![] }
        })
    };
    attach(&stage.worker, 5, Some(welcome(5, ProposalKind::Tokens)), Box::new(partial));
    stage.until(5, LinkPhase::Up);
    stage.same_as_plain("it leaves some out");
    // An older link, or one of an earlier supervisor, is no link.
    let pair = make_pair(SEGMENT_BYTES).expect("a pair");
    let path = stage.worker.dir.path().join("target.link.sock");
    let stale = paceline_proto::internal::v1::Stamp { term: 1, ..STAMP };
    for (stamp, generation) in [(STAMP, 4), (stale, 60)] {
        let (end, segment) = (pair.target.as_fd(), pair.segment.as_fd());
        handover::send(&path, stamp, generation, end, segment, SEGMENT_BYTES, BOUND)
            .expect("handed over");
    }
    assert!(stage.same_as_plain("stale links").iter().any(|speculation| speculation.cycles > 0));
}

/// A drafter that serves no sequence delays none: after each of its answers comes a step.
#[test]
fn a_sequence_without_a_draft_takes_a_step_before_the_next_request() {
    let mut stage = Stage::new();
    let asked = Arc::new(Mutex::new(vec![]));
    let all = asked.clone();
    let serves_none = move |end: &mut End, feed: &Feed| {
        all.lock()
            .expect("not poisoned")
            .extend(feed.requests.iter().map(|request| (request.session, request.position)));
        propose_ids(end, feed, |_| vec![])
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(serves_none));
    stage.until(1, LinkPhase::Up);
    assert!(
        stage.same_as_plain("it serves none").iter().all(|speculation| speculation.cycles == 0)
    );
    let asked = asked.lock().expect("not poisoned");
    let places: HashSet<_> = asked.iter().collect();
    assert!(asked.len() >= stage.requests.len(), "{} requests", asked.len());
    assert_eq!(places.len(), asked.len(), "requests, and different places of requests");
}
