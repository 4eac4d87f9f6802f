//! A drafter that a test plays, over a real link: what it says to the target, frame by frame.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_link::{
    End, Frame, Handover, LinkError, SEGMENT_BYTES, Side, handover, handshake, make_pair,
};
use paceline_proto::internal::v1::{
    Draft, Feed, Proposal, ProposalKind, Reach, SessionReach, TensorType, Want, Welcome,
};

use super::{BOUND, STAMP, Worker};

/// Numbers of a hidden row of [`super::tiny`].
pub const HIDDEN: u32 = 64;
/// Ids of its vocabulary.
pub const VOCAB: u32 = 288;
/// Block of the drafters that are played for it.
pub const BLOCK: u32 = 8;

/// How such a drafter introduces itself.
pub fn welcome(generation: u64, proposal: ProposalKind) -> Welcome {
    Welcome {
        version: handshake::VERSION,
        generation,
        kind: "scripted".into(),
        proposal: proposal.into(),
        hidden_size: HIDDEN,
        tap_layers: vec![0, 2],
        block_size: BLOCK,
        mask_id: 3,
        r#type: TensorType::F32.into(),
        ..Welcome::default()
    }
}

/// What a scripted drafter does with a Feed: everything it wants. `false` ends it.
pub type Script = Box<dyn FnMut(&mut End, &Feed) -> Result<bool, LinkError> + Send>;

/// Hands a link to the worker and plays its drafter on a thread until the script, or the link,
/// ends.
pub fn attach(
    worker: &Worker,
    generation: u64,
    welcome: Option<Welcome>,
    mut script: Script,
) -> std::thread::JoinHandle<()> {
    let pair = make_pair(SEGMENT_BYTES).expect("a pair");
    let path = worker.dir.path().join("target.link.sock");
    let (target, segment) = (pair.target.as_fd(), pair.segment.as_fd());
    handover::send(
        &path,
        STAMP,
        generation,
        target,
        segment,
        SEGMENT_BYTES,
        Duration::from_secs(10),
    )
    .expect("handed over");
    let ours = Handover {
        stamp: STAMP,
        generation,
        socket: pair.drafter,
        segment: pair.segment,
        segment_bytes: SEGMENT_BYTES,
    };
    drop(pair.target);
    let play = move || {
        let mut end = End::open(ours, Side::Drafter).expect("a link");
        let (mut greeted, mut hidden) = (false, 0);
        loop {
            match end.receive(BOUND) {
                Ok(Some(Frame::Hello(hello))) => {
                    hidden = hello.hidden_size;
                    match &welcome {
                        // A newer link may have taken its place.
                        Some(welcome) if end.send(Frame::Welcome(welcome.clone())).is_err() => {
                            return;
                        }
                        Some(_) => {}
                        // It leaves in the middle of the handshake.
                        None => return,
                    }
                    greeted = true;
                }
                Ok(Some(Frame::MaskRow(row))) => {
                    let row = end.take(&row.tensor.expect("there")).expect("fine");
                    assert_eq!(row.len(), hidden as usize * 4);
                }
                Ok(Some(Frame::Feed(feed))) => {
                    assert!(greeted);
                    for tensor in [&feed.taps, &feed.bonus].into_iter().flatten() {
                        assert_eq!(end.take(tensor).expect("fine").len() as u64, tensor.length);
                    }
                    match script(&mut end, &feed) {
                        Ok(true) => {}
                        Ok(false) | Err(_) => return,
                    }
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("drafter".into()).spawn(play).expect("a thread")
}

/// Says how far a feed has been read, as an honest drafter does.
pub fn reach(feed: &Feed) -> Reach {
    let sessions = feed
        .contexts
        .iter()
        .map(|c| SessionReach { session: c.session, position: c.position + c.rows });
    Reach { sessions: sessions.collect(), missed: vec![] }
}

/// Answers wants with ids.
pub fn propose_ids(
    end: &mut End,
    feed: &Feed,
    ids: impl Fn(&Want) -> Vec<u32>,
) -> Result<bool, LinkError> {
    if feed.round == 0 {
        end.send(Frame::Reach(reach(feed)))?;
        return Ok(true);
    }
    let drafts = feed.wants.iter().map(|want| {
        let ids = ids(want);
        Draft { session: want.session, position: want.position, rows: ids.len() as u32, ids }
    });
    let drafts = drafts.filter(|draft| draft.rows > 0).collect();
    end.send(Frame::Proposal(Proposal { round: feed.round, drafts, hidden: None }))?;
    Ok(true)
}

/// Answers wants with random hidden rows, each of so many numbers.
pub fn propose_rows(
    end: &mut End,
    feed: &Feed,
    hidden: u32,
    seed: &mut u64,
) -> Result<bool, LinkError> {
    if feed.round == 0 {
        end.send(Frame::Reach(reach(feed)))?;
        return Ok(true);
    }
    let drafts: Vec<Draft> = feed.wants.iter().map(|want| draft(want, want.block - 1)).collect();
    let rows: u32 = drafts.iter().map(|draft| draft.rows).sum();
    let hidden = end.put(rows, hidden, TensorType::F32, &noise(rows * hidden, seed))?;
    end.send(Frame::Proposal(Proposal { round: feed.round, drafts, hidden }))?;
    Ok(true)
}

pub fn draft(want: &Want, rows: u32) -> Draft {
    Draft { session: want.session, position: want.position, rows, ids: vec![] }
}

pub fn roll(seed: &mut u64) -> u64 {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
}

pub fn noise(count: u32, seed: &mut u64) -> Vec<u8> {
    (0..count).flat_map(|_| ((roll(seed) % 2000) as f32 / 1000.0 - 1.0).to_ne_bytes()).collect()
}

/// Streams a drafter that knows them would propose: prompt and answer.
pub type Known = Arc<Mutex<Vec<Vec<u32>>>>;

/// Proposes what follows in the stream that has the bonus token at the want's position; where
/// several do, the first.
pub fn oracle(known: Known) -> Script {
    Box::new(move |end, feed| {
        propose_ids(end, feed, |want| {
            let at = want.position as usize;
            let streams = known.lock().expect("not poisoned");
            let right = streams.iter().find(|stream| stream.get(at) == Some(&want.bonus_id));
            right
                .map(|stream| {
                    stream[at + 1..].iter().copied().take(want.block as usize - 1).collect()
                })
                .unwrap_or_default()
        })
    })
}
