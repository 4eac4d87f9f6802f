//! A drafter that proposes what a test wants.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use paceline_link::{End, Frame, handshake};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{
    self, DraftRequest, DraftShape, DraftTokens, Feed, Proposal, ProposalKind, ReadProgress,
    SessionProgress, Welcome,
};

/// Hidden size of the demo target.
const HIDDEN: u32 = 256;
pub(super) const FEATURE_LAYERS: [u32; 4] = [1, 3, 5, 6];
/// Rows of its block.
const BLOCK: u32 = 8;
/// How long a test waits for the drafter, or the drafter for a frame. A bound, not a pause.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Proposals of the test drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drafts {
    /// Nothing: there is no drafter.
    None,
    /// The right ids, every third draft with a wrong one in it.
    Ids,
    /// Right ids, but no answer to any request: its drafts are late.
    Silent,
    /// Hidden rows of noise.
    Rows,
    /// Hidden rows of noise, of which the target's head makes NaN.
    RowsWithoutLogits,
    /// Hidden rows of NaN, for which the drafter is ejected.
    NotANumber,
}

impl Drafts {
    /// Whether drafts reach their verification.
    pub(super) fn are_verified(self) -> bool {
        !matches!(self, Drafts::None | Drafts::NotANumber | Drafts::Silent)
    }
}

/// Plays a drafter until the link ends.
pub(super) fn play(mut end: End, drafts: Drafts, known: &[Vec<u32>], greeted: &SyncSender<()>) {
    let (mut round, mut kind) = (0, ProposalKind::Hidden);
    if matches!(drafts, Drafts::Ids | Drafts::Silent) {
        kind = ProposalKind::Tokens;
    }
    loop {
        match end.receive(LONG) {
            Ok(Some(Frame::Hello(hello))) => {
                let embeddings = kind == ProposalKind::Hidden;
                let welcome = Welcome {
                    version: handshake::VERSION,
                    generation: hello.generation,
                    kind: "played".into(),
                    fingerprint: "played".into(),
                    proposal: kind,
                    hidden_size: HIDDEN,
                    vocab_size: None,
                    target_layers: None,
                    feature_layers: FEATURE_LAYERS.to_vec(),
                    block_size: BLOCK,
                    embeddings,
                    token_ids: false,
                    reads_at_once: false,
                    mask_id: embeddings.then_some(3),
                    element: TensorType::F32,
                    token_digest: String::new(),
                    logit_softcap: None,
                    context_length: None,
                };
                end.send(Frame::Welcome(welcome)).expect("sent");
                let _ = greeted.try_send(());
            }
            Ok(Some(Frame::MaskRow(row))) => _ = end.take(&row).expect("fine"),
            Ok(Some(Frame::Feed(feed))) => {
                for tensor in [&feed.hidden, &feed.bonus].into_iter().flatten() {
                    end.take(tensor).expect("fine");
                }
                round += 1;
                if drafts == Drafts::Silent && feed.round > 0 {
                    continue;
                }
                let answer = match feed.round {
                    0 => Ok(Frame::Progress(read_all(&feed))),
                    _ => proposal(&mut end, &feed, drafts, known, round),
                };
                if answer.and_then(|frame| end.send(frame)).is_err() {
                    return;
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => return,
        }
    }
}

/// The report that all contexts of a feed were read.
fn read_all(feed: &Feed) -> ReadProgress {
    let sessions = feed.contexts.iter().map(|c| SessionProgress {
        session: c.session,
        position: c.position + c.rows,
        drafts_from: 0,
    });
    ReadProgress { sessions: sessions.collect(), missed: vec![] }
}

fn proposal(
    end: &mut End,
    feed: &Feed,
    drafts: Drafts,
    known: &[Vec<u32>],
    round: usize,
) -> Result<Frame, paceline_link::LinkError> {
    let drafts = match drafts {
        Drafts::Ids => {
            let ids = feed.requests.iter().map(|request| tokens(request, known, round));
            link::Drafts::Tokens(ids.collect())
        }
        Drafts::Silent | Drafts::None => link::Drafts::none(ProposalKind::Hidden),
        Drafts::Rows | Drafts::RowsWithoutLogits | Drafts::NotANumber => {
            let shapes: Vec<DraftShape> = feed.requests.iter().map(shape).collect();
            let rows: u32 = shapes.iter().map(|shape| shape.rows).sum();
            let number = |at: u32| {
                if drafts == Drafts::NotANumber { f32::NAN } else { (at as f32 * 0.37).sin() }
            };
            let bytes: Vec<u8> =
                (0..rows * HIDDEN).flat_map(|at| number(at).to_ne_bytes()).collect();
            let rows = end.put(rows, HIDDEN, TensorType::F32, &bytes)?;
            link::Drafts::Hidden { shapes, rows }
        }
    };
    Ok(Frame::Proposal(Proposal { round: feed.round, drafts }))
}

fn shape(request: &DraftRequest) -> DraftShape {
    let DraftRequest { session, position, block, .. } = *request;
    DraftShape { session, position, rows: block - 1 }
}

/// The right ids, every third draft with a wrong one in it.
fn tokens(request: &DraftRequest, known: &[Vec<u32>], round: usize) -> DraftTokens {
    let (at, length) = (request.position as usize, request.block as usize - 1);
    let mut ids = vec![7; length];
    if let Some(stream) = known.iter().find(|stream| stream.get(at) == Some(&request.bonus_id)) {
        ids.iter_mut().zip(&stream[at + 1..]).for_each(|(id, right)| *id = *right);
    }
    if round.is_multiple_of(3) {
        ids[length / 2] = 9;
    }
    let DraftRequest { session, position, .. } = *request;
    DraftTokens { session, position, ids, logprobs: vec![], drafts_from: 0 }
}
