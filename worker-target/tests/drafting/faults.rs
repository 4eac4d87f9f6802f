//! Drafters that break a rule: each is ejected, with a reason, and no token changes.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use paceline_link::{End, Frame, LinkError, Message, SEGMENT_BYTES, frame, wire};
use paceline_proto::internal::v1::{self as proto, LinkPhase};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{
    Drafts, Feed, Proposal, ProposalKind, ReadProgress, SessionProgress,
};

use super::Stage;
use super::stage::drafter::{
    HIDDEN, VOCAB, attach, noise, propose_ids, propose_rows, roll, shape, welcome,
};

/// Breaks a rule with its first proposal; the drafter is honest before.
type Crime = fn(&mut End, &Feed, &mut u64) -> Result<(), LinkError>;

fn crimes() -> Vec<(&'static str, ProposalKind, Crime)> {
    [crimes_of_tensors(), crimes_of_drafts(), crimes_of_ids(), crimes_of_frames()].concat()
}

/// Answers with hidden rows in which something was changed.
fn rows(
    end: &mut End,
    feed: &Feed,
    change: impl Fn(&mut proto::HiddenDrafts),
) -> Result<(), LinkError> {
    let shapes = feed.requests.iter().map(|request| proto::DraftShape {
        session: request.session,
        position: request.position,
        rows: request.block - 1,
    });
    let shapes: Vec<proto::DraftShape> = shapes.collect();
    let count: u32 = shapes.iter().map(|shape| shape.rows).sum();
    let rows = end.put(count, HIDDEN, TensorType::F32, &noise(count * HIDDEN, &mut 5))?;
    let mut drafts = proto::HiddenDrafts { shapes, rows: rows.map(wire::from_tensor) };
    change(&mut drafts);
    answer(end, feed.round, proto::proposal::Drafts::Hidden(drafts))
}

/// Answers with hidden rows whose place or shape was changed.
fn tensor(
    end: &mut End,
    feed: &Feed,
    change: impl Fn(&mut proto::TensorRef),
) -> Result<(), LinkError> {
    rows(end, feed, |drafts| change(drafts.rows.as_mut().expect("there")))
}

/// Answers the first request with ids.
fn tokens(
    end: &mut End,
    feed: &Feed,
    change: impl Fn(&mut proto::DraftTokens),
) -> Result<(), LinkError> {
    let (session, position) = (feed.requests[0].session, feed.requests[0].position);
    let mut draft = proto::DraftTokens { session, position, ids: vec![1, 2], ..Default::default() };
    change(&mut draft);
    let drafts = proto::TokenDrafts { drafts: vec![draft] };
    answer(end, feed.round, proto::proposal::Drafts::Tokens(drafts))
}

fn answer(end: &mut End, round: u64, drafts: proto::proposal::Drafts) -> Result<(), LinkError> {
    end.send(Message::Proposal(proto::Proposal { round, drafts: Some(drafts) }))
}

fn crimes_of_tensors() -> Vec<(&'static str, ProposalKind, Crime)> {
    use ProposalKind::Hidden;
    vec![
        ("an offset in the target's own half", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = 0)
        }),
        ("an offset after the segment", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = SEGMENT_BYTES)
        }),
        ("an offset that overflows", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = u64::MAX - 63)
        }),
        ("an offset between the lines", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset += 4)
        }),
        ("a length that is not its shape's", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.length += 4)
        }),
        ("too many columns", Hidden, |end, feed, _| {
            tensor(end, feed, |t| (t.columns, t.rows) = (HIDDEN * t.rows, 1))
        }),
        ("another type", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.r#type = proto::TensorType::F16.into())
        }),
        ("an unknown type", Hidden, |end, feed, _| tensor(end, feed, |t| t.r#type = 99)),
        ("a tensor's number twice", Hidden, |end, feed, _| tensor(end, feed, |t| t.number += 1)),
        ("a row of NaN", Hidden, |end, feed, _| {
            let mut bytes = noise(HIDDEN, &mut 5);
            bytes[40..44].copy_from_slice(&f32::NAN.to_ne_bytes());
            let rows = end.put(1, HIDDEN, TensorType::F32, &bytes)?;
            let drafts = Drafts::Hidden { shapes: vec![shape(&feed.requests[0], 1)], rows };
            end.send(Frame::Proposal(Proposal { round: feed.round, drafts }))
        }),
    ]
}

fn crimes_of_drafts() -> Vec<(&'static str, ProposalKind, Crime)> {
    use ProposalKind::Hidden;
    vec![
        ("rows without a draft", Hidden, |end, feed, _| rows(end, feed, |d| d.shapes.clear())),
        ("drafts without rows", Hidden, |end, feed, _| rows(end, feed, |d| d.rows = None)),
        ("a session twice", Hidden, |end, feed, _| rows(end, feed, |d| d.shapes.push(d.shapes[0]))),
        ("a session without a request", Hidden, |end, feed, _| {
            rows(end, feed, |d| d.shapes[0].session += 99)
        }),
        ("another position", Hidden, |end, feed, _| rows(end, feed, |d| d.shapes[0].position += 1)),
        ("more rows than were requested", Hidden, |end, feed, _| {
            rows(end, feed, |d| d.shapes[0].rows = 63)
        }),
        ("a round without requests", Hidden, |end, feed, _| {
            let drafts = Drafts::none(Hidden);
            end.send(Frame::Proposal(Proposal { round: feed.round + 1000, drafts }))
        }),
        ("a round twice", Hidden, |end, feed, _| {
            rows(end, feed, |_| {}).and_then(|()| rows(end, feed, |_| {}))
        }),
        ("a proposal without drafts", Hidden, |end, feed, _| {
            end.send(Message::Proposal(proto::Proposal { round: feed.round, drafts: None }))
        }),
    ]
}

fn crimes_of_ids() -> Vec<(&'static str, ProposalKind, Crime)> {
    use ProposalKind::{Hidden, Tokens};
    vec![
        ("ids in place of rows", Hidden, |end, feed, _| tokens(end, feed, |_| {})),
        ("rows in place of ids", Tokens, |end, feed, _| rows(end, feed, |_| {})),
        ("ids beyond the vocabulary", Tokens, |end, feed, _| {
            propose_ids(end, feed, |_| vec![VOCAB]).map(|_| ())
        }),
        ("more ids than were requested", Tokens, |end, feed, _| {
            tokens(end, feed, |draft| draft.ids = vec![1; 63])
        }),
        ("probabilities of some ids", Tokens, |end, feed, _| {
            tokens(end, feed, |draft| draft.logprobs = vec![-1.0])
        }),
        ("a probability above 1", Tokens, |end, feed, _| {
            tokens(end, feed, |draft| draft.logprobs = vec![-1.0, 0.5])
        }),
        ("a probability that is no number", Tokens, |end, feed, _| {
            tokens(end, feed, |draft| draft.logprobs = vec![f32::NAN, -1.0])
        }),
    ]
}

fn crimes_of_frames() -> Vec<(&'static str, ProposalKind, Crime)> {
    use ProposalKind::Hidden;
    vec![
        ("a position that was not sent", Hidden, |end, feed, _| {
            end.send(read(feed.requests[0].session, 100_000))
        }),
        ("a session missed that was to begin with nothing retained", Hidden, |end, feed, _| {
            let missed = vec![feed.requests[0].session];
            end.send(Frame::Progress(ReadProgress { sessions: vec![], missed }))
        }),
        ("empty reports without end", Hidden, |end, _, _| {
            flood(end, Frame::Progress(ReadProgress::default()))
        }),
        ("one position reported without end", Hidden, |end, feed, _| {
            flood(end, read(feed.requests[0].session, feed.requests[0].position))
        }),
        ("sessions that are not there reported without end", Hidden, |end, _, _| {
            flood(end, read(u64::MAX, 1))
        }),
        ("a second Welcome", Hidden, |end, _, _| end.send(Frame::Welcome(welcome(1, Hidden)))),
        ("the target's own frame", Hidden, |end, _, _| end.send(Frame::Feed(Feed::default()))),
        ("an acknowledgement of a tensor that was not sent", Hidden, |end, _, _| {
            end.send(Frame::Ack(1 << 40))
        }),
        ("random bytes", Hidden, |end, _, seed| {
            let bytes: Vec<u8> = (0..4096).map(|_| roll(seed) as u8).collect();
            nix::unistd::write(end.poll_fd(), &bytes)
                .map(|_| ())
                .map_err(|error| LinkError::Io(error.into()))
        }),
        ("a frame of a gigabyte", Hidden, |end, _, _| {
            nix::unistd::write(end.poll_fd(), &(1u32 << 30).to_le_bytes())
                .map(|_| ())
                .map_err(|error| LinkError::Io(error.into()))
        }),
    ]
}

/// A report that a session was read up to `position`.
fn read(session: u64, position: u32) -> Frame {
    let sessions = vec![SessionProgress { session, position, drafts_from: 0 }];
    Frame::Progress(ReadProgress { sessions, missed: vec![] })
}

/// Sends one legal report again and again until the target closes the link.
fn flood(end: &End, report: Frame) -> Result<(), LinkError> {
    let mut once = vec![];
    frame::encode(report.into(), &mut once).expect("a report is short");
    let reports = once.repeat(1024);
    let mut sent = 0;
    loop {
        match nix::unistd::write(end.poll_fd(), &reports[sent..]) {
            Ok(count) => sent = (sent + count) % reports.len(),
            Err(Errno::EAGAIN) => {
                let mut writable = [PollFd::new(end.poll_fd(), PollFlags::POLLOUT)];
                poll(&mut writable, PollTimeout::NONE)
                    .map_err(|error| LinkError::Io(error.into()))?;
            }
            Err(_) => return Ok(()),
        }
    }
}

#[test]
fn a_drafter_that_breaks_a_rule_is_ejected_at_once_and_costs_no_token() {
    let mut stage = Stage::new();
    let before = descriptors(stage.pid());
    for (at, (what, kind, crime)) in crimes().into_iter().enumerate() {
        let generation = at as u64 + 1;
        let (mut rounds, mut seed) = (0, 11 + generation);
        let script = move |end: &mut End, feed: &Feed| {
            rounds += u32::from(feed.round > 0);
            if feed.round > 0 && rounds == 3 {
                crime(end, feed, &mut seed)?;
                return Ok(true);
            }
            match kind {
                ProposalKind::Hidden => propose_rows(end, feed, HIDDEN, &mut seed),
                ProposalKind::Tokens => propose_ids(end, feed, |_| vec![1]),
            }
        };
        let drafter =
            attach(&stage.worker, generation, Some(welcome(generation, kind)), Box::new(script));
        stage.until(generation, LinkPhase::Up);
        stage.same_as_plain(what);
        let reason = stage.until(generation, LinkPhase::Ejected);
        assert!(!reason.is_empty(), "{what}");
        drafter.join().expect("the link was closed on it");
    }
    // After all of them an honest drafter is served.
    attach(
        &stage.worker,
        99,
        Some(welcome(99, ProposalKind::Tokens)),
        Box::new(|end, feed| propose_ids(end, feed, |_| vec![1])),
    );
    stage.until(99, LinkPhase::Up);
    assert!(stage.same_as_plain("a good one").iter().all(|speculation| speculation.cycles > 0));
    // The last link has a socket and a segment.
    let after = descriptors(stage.pid());
    assert!(after <= before + 2, "{before} descriptors before, {after} after");
}

fn descriptors(pid: u32) -> usize {
    let list = || std::fs::read_dir(format!("/proc/{pid}/fd")).map(|list| list.count()).ok();
    // Other systems have no list of descriptors.
    list().unwrap_or(0)
}
