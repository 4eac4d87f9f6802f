//! A drafter that a test plays over a real link, frame by frame.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_link::{
    End, Frame, Handover, LinkError, SEGMENT_BYTES, Side, handover, handshake, make_pair,
};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{
    DraftRequest, DraftShape, DraftTokens, Drafts, Feed, Proposal, ProposalKind, ReadProgress,
    SessionProgress, Welcome,
};

use super::{BOUND, STAMP, Worker};

/// Numbers of a hidden row of [`super::tiny`].
pub const HIDDEN: u32 = 64;
/// Ids of its vocabulary.
pub const VOCAB: u32 = 288;
/// Block of the drafters that are played for it.
pub const BLOCK: u32 = 8;

/// How such a drafter describes itself. One that proposes hidden rows takes embeddings.
pub fn welcome(generation: u64, proposal: ProposalKind) -> Welcome {
    let embeddings = proposal == ProposalKind::Hidden;
    Welcome {
        version: handshake::VERSION,
        generation,
        kind: "scripted".into(),
        fingerprint: "scripted".into(),
        proposal,
        hidden_size: HIDDEN,
        vocab_size: None,
        target_layers: None,
        feature_layers: vec![0, 2],
        block_size: BLOCK,
        embeddings,
        token_ids: false,
        reads_at_once: false,
        mask_id: embeddings.then_some(3),
        element: TensorType::F32,
        token_digest: String::new(),
        logit_softcap: None,
        context_length: None,
    }
}

/// Script of a drafter for a Feed: anything. `false` ends it.
pub type Script = Box<dyn FnMut(&mut End, &Feed) -> Result<bool, LinkError> + Send>;

/// Reads the hidden states that come with a Feed.
pub type Watch = Box<dyn FnMut(&Feed, &[u8]) + Send>;

/// Hands a link to the worker and plays its drafter on a thread until the script, or the link,
/// ends.
pub fn attach(
    worker: &Worker,
    generation: u64,
    welcome: Option<Welcome>,
    script: Script,
) -> std::thread::JoinHandle<()> {
    attach_watched(worker, generation, welcome, script, Box::new(|_, _| ()))
}

/// As [`attach`], with a look at the hidden states.
pub fn attach_watched(
    worker: &Worker,
    generation: u64,
    welcome: Option<Welcome>,
    script: Script,
    watch: Watch,
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
    let play = move || play(ours, welcome, script, watch);
    std::thread::Builder::new().name("drafter".into()).spawn(play).expect("a thread")
}

/// Plays a drafter until the script, or the link, ends. Without a Welcome it leaves in the middle
/// of the handshake.
fn play(handover: Handover, welcome: Option<Welcome>, mut script: Script, mut watch: Watch) {
    let mut end = End::open(handover, Side::Drafter).expect("a link");
    let (mut greeted, mut row_bytes) = (false, 0);
    loop {
        match end.receive(BOUND) {
            Ok(Some(Frame::Hello(hello))) => {
                row_bytes = hello.hidden_size as usize * hello.element.bytes();
                let Some(welcome) = &welcome else { return };
                // A newer link may have taken its place.
                if end.send(Frame::Welcome(welcome.clone())).is_err() {
                    return;
                }
                greeted = true;
            }
            Ok(Some(Frame::MaskRow(row))) => {
                let row = end.take(&row).expect("fine");
                assert_eq!(row.len(), row_bytes);
            }
            Ok(Some(Frame::Feed(feed))) => {
                assert!(greeted);
                for (at, tensor) in [&feed.hidden, &feed.bonus].into_iter().enumerate() {
                    let Some(tensor) = tensor else { continue };
                    let bytes = end.take(tensor).expect("fine");
                    assert_eq!(bytes.len() as u64, tensor.length);
                    if at == 0 {
                        watch(&feed, &bytes);
                    }
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
}

/// The report that all contexts of a feed were read, as an honest drafter sends it.
pub fn read_all(feed: &Feed) -> ReadProgress {
    let sessions = feed.contexts.iter().map(|c| SessionProgress {
        session: c.session,
        position: c.position + c.rows,
        drafts_from: 0,
    });
    ReadProgress { sessions: sessions.collect(), missed: vec![] }
}

/// Answers requests with ids.
pub fn propose_ids(
    end: &mut End,
    feed: &Feed,
    ids: impl Fn(&DraftRequest) -> Vec<u32>,
) -> Result<bool, LinkError> {
    propose_tokens(end, feed, |request| DraftTokens {
        session: request.session,
        position: request.position,
        ids: ids(request),
        logprobs: vec![],
        drafts_from: 0,
    })
}

/// Answers requests with drafts of ids; a draft without ids leaves its session out.
pub fn propose_tokens(
    end: &mut End,
    feed: &Feed,
    draft: impl Fn(&DraftRequest) -> DraftTokens,
) -> Result<bool, LinkError> {
    if feed.round == 0 {
        end.send(Frame::Progress(read_all(feed)))?;
        return Ok(true);
    }
    let drafts = feed.requests.iter().map(draft).filter(|draft| !draft.ids.is_empty());
    let drafts = Drafts::Tokens(drafts.collect());
    end.send(Frame::Proposal(Proposal { round: feed.round, drafts }))?;
    Ok(true)
}

/// Answers requests with random hidden rows of `hidden` numbers each.
pub fn propose_rows(
    end: &mut End,
    feed: &Feed,
    hidden: u32,
    seed: &mut u64,
) -> Result<bool, LinkError> {
    if feed.round == 0 {
        end.send(Frame::Progress(read_all(feed)))?;
        return Ok(true);
    }
    let shapes = feed.requests.iter().map(|request| shape(request, request.block - 1));
    let shapes: Vec<DraftShape> = shapes.collect();
    let rows: u32 = shapes.iter().map(|shape| shape.rows).sum();
    let rows = end.put(rows, hidden, TensorType::F32, &noise(rows * hidden, seed))?;
    let drafts = Drafts::Hidden { shapes, rows };
    end.send(Frame::Proposal(Proposal { round: feed.round, drafts }))?;
    Ok(true)
}

/// Place and length of a draft that answers a request.
pub fn shape(request: &DraftRequest, rows: u32) -> DraftShape {
    DraftShape { session: request.session, position: request.position, rows }
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

/// Streams that a drafter knows: prompt and answer.
pub type Known = Arc<Mutex<Vec<Vec<u32>>>>;

/// As [`oracle`], but of each draft only a random part is right, and the rest are ids below
/// `vocab`.
pub fn partly_right(known: Known, vocab: u64) -> Script {
    let mut seed = 7;
    Box::new(move |end, feed| {
        let own = roll(&mut seed);
        let streams = known.lock().expect("not poisoned");
        propose_ids(end, feed, |request| {
            let at = request.position as usize;
            let right = streams.iter().find(|stream| stream.get(at) == Some(&request.bonus_id));
            let next = right.map_or(&[][..], |stream| &stream[at + 1..]);
            let turn = own.wrapping_add(u64::from(request.position));
            let id = |at: u64| match next.get(at as usize) {
                Some(id) if at < turn % 5 => *id,
                _ => ((turn + at) % vocab) as u32,
            };
            (0..u64::from(request.block) - 1).map(id).collect()
        })
    })
}

/// Proposes the tokens that follow in the first stream that has the bonus token at the request's
/// position.
pub fn oracle(known: Known) -> Script {
    Box::new(move |end, feed| {
        propose_ids(end, feed, |request| {
            let at = request.position as usize;
            let streams = known.lock().expect("not poisoned");
            let right = streams.iter().find(|stream| stream.get(at) == Some(&request.bonus_id));
            right
                .map(|stream| {
                    stream[at + 1..].iter().copied().take(request.block as usize - 1).collect()
                })
                .unwrap_or_default()
        })
    })
}
