//! Feeds to the drafter: at a step border, the hidden states that it has not got yet, and requests
//! for drafts.

use paceline_models::{ModelError, Target, transfer};
use paceline_target_core::{
    DraftPlan, DrafterReadiness, FeedPiece, Image, Scheduler, Sequence, SequenceKey,
};
use paceline_vocabulary::SamplingRule;
use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, Feed, ImageSpan, RestoredPrefix, Welcome,
};
use paceline_vocabulary::tensor::TensorRef;

use paceline_link::{Frame, LinkError};

use super::link::{DrafterLink, LinkEnd, RequestTime};
use super::session::AwaitedDraft;
use super::{Border, DraftEvent, Drafting};
use crate::request::ValidRequest;

/// One message's hidden states fill at most one part in this many of the ring, so that others find
/// room after them.
const FEED_SHARE: u64 = 4;

/// Most token ids in one message. They stay far below the largest frame.
const FEED_IDS: usize = 1 << 14;

/// Inputs of a feed from the engine.
#[derive(Clone, Copy)]
pub(crate) struct FeedInputs<'a> {
    pub(crate) border: Border,
    /// The KV ledger is above the policy's pressure: no sequence gets a draft.
    pub(crate) kv_pressed: bool,
    pub(crate) model: &'a dyn Target,
}

/// Rows of one sequence in a feed.
struct SequencePiece {
    key: SequenceKey,
    piece: FeedPiece,
}

enum FeedFault {
    /// The link is over.
    Link(LinkEnd),
    /// MLX failed.
    Model(ModelError),
}

impl From<LinkError> for FeedFault {
    fn from(error: LinkError) -> Self {
        Self::Link(error.into())
    }
}

impl From<ModelError> for FeedFault {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl Drafting {
    /// At a step border: sends what was committed and requests drafts. The scheduler learns which
    /// sequences may get one.
    ///
    /// # Errors
    /// The target's own: MLX failed.
    pub(crate) fn feed<'a>(
        &mut self,
        scheduler: &mut Scheduler,
        running: impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
        inputs: FeedInputs<'_>,
    ) -> Result<Vec<DraftEvent>, ModelError> {
        let mut events = vec![];
        if let Some(mut link) = self.link.take() {
            let fed = self.feed_link(&mut link, scheduler, running, inputs, &mut events);
            self.link = Some(link);
            match fed {
                Ok(()) => {}
                Err(FeedFault::Link(end)) => self.drop_link(end, &mut events),
                Err(FeedFault::Model(error)) => return Err(error),
            }
        }
        self.sessions.values_mut().for_each(|session| session.window.trim());
        Ok(events)
    }

    fn feed_link<'a>(
        &mut self,
        link: &mut DrafterLink,
        scheduler: &mut Scheduler,
        running: impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
        inputs: FeedInputs<'_>,
        events: &mut Vec<DraftEvent>,
    ) -> Result<(), FeedFault> {
        let plan = self.plan(link, scheduler, inputs);
        let mut pieces = self.pieces(link, scheduler, &plan.feed);
        let hidden = self.put_hidden_states(link, &pieces)?;
        if hidden.is_none() && !link.reads_ids_alone() {
            // The ring has no room. These sessions get their rows later, or start again from their
            // windows.
            pieces.clear();
        }
        for SequencePiece { key, piece } in &pieces {
            let session = self.sessions.get_mut(key).expect("it has a piece");
            session.progress.sent(*piece);
            session.is_known = true;
        }
        let mut requests = self.draft_requests(&plan, scheduler, &running);
        let bonus = self.put_embeddings(link, &requests, inputs.model)?;
        if bonus.is_none() && link.welcome.embeddings {
            requests.clear();
        }
        if pieces.is_empty() && requests.is_empty() && self.closed.is_empty() {
            return Ok(link.end.flush()?);
        }
        let round = self.open_round(link, scheduler, &requests, inputs.border);
        events.extend(requests.iter().map(|request| DraftEvent::Requested {
            key: SequenceKey(request.session),
            tokens: request.block as usize - 1,
        }));
        let feed = Feed {
            closed: std::mem::take(&mut self.closed),
            contexts: pieces
                .iter()
                .map(|piece| context(piece, link, scheduler, &running))
                .collect(),
            hidden,
            requests,
            bonus,
            round,
            retained: std::mem::take(&mut self.retained),
            restored: pieces.iter().filter_map(|piece| self.restored(piece, link)).collect(),
        };
        Ok(link.end.send(Frame::Feed(feed))?)
    }

    fn plan(
        &mut self,
        link: &DrafterLink,
        scheduler: &mut Scheduler,
        inputs: FeedInputs<'_>,
    ) -> DraftPlan {
        // A drafter that is paused for being late, or owes many answers, gets nothing: it has
        // enough to do.
        if !self.deadline.may_ask(inputs.border.now) || link.is_clogged() {
            return DraftPlan::default();
        }
        let longest = link.welcome.block_size as usize - 1;
        let all = if link.reads_ids_alone() { self.open_all(scheduler) } else { vec![] };
        let mut plan = scheduler.plan(inputs.kv_pressed, |key, sequence| {
            self.readiness(key, sequence.committed, &link.welcome)
        });
        if link.welcome.reads_at_once {
            plan.feed = all;
        }
        plan.ask.iter_mut().for_each(|(_, length)| *length = (*length).min(longest));
        plan
    }

    /// Opens the sequences that may draft, for a drafter that reads token ids alone. No hidden states
    /// open them.
    fn open_all(&mut self, scheduler: &Scheduler) -> Vec<SequenceKey> {
        let may_draft = |sequence: &Sequence| sequence.permit.may_draft() && sequence.committed > 0;
        let keys: Vec<SequenceKey> =
            scheduler.iter().filter(|(_, one)| may_draft(one)).map(|(key, _)| key).collect();
        for key in &keys {
            self.session(*key);
        }
        keys
    }

    /// How far a drafter with this Welcome is with a sequence.
    pub(super) fn readiness(
        &self,
        key: SequenceKey,
        committed: usize,
        drafter: &Welcome,
    ) -> Option<DrafterReadiness> {
        let session = self.sessions.get(&key)?;
        let ids_alone = drafter.feature_layers.is_empty();
        let available = session.available(committed, ids_alone);
        let nothing_here = committed < session.drafts_from;
        // A drafter that reads at once is never behind: it has something to propose or not.
        let has_nothing = nothing_here || drafter.reads_at_once && !session.has_proposed;
        let can_draft = !nothing_here
            && session.requested_at != Some(committed)
            && session.progress.could_ask(committed, &available);
        // The shortest block is the bonus token and a draft.
        let beyond_context =
            drafter.context_length.is_some_and(|context| committed + 2 > context as usize);
        let unread_rows =
            if drafter.reads_at_once { 0 } else { session.progress.unread(&available) };
        let longest = Some(drafter.block_size as usize - 1);
        Some(DrafterReadiness { unread_rows, can_draft, has_nothing, longest, beyond_context })
    }

    /// The rows to send, as many as one message may have.
    fn pieces(
        &self,
        link: &DrafterLink,
        scheduler: &Scheduler,
        keys: &[SequenceKey],
    ) -> Vec<SequencePiece> {
        let most = (link.end.capacity() / FEED_SHARE).min(link.end.room());
        let ids_alone = link.reads_ids_alone();
        let rows = most.checked_div(self.row_bytes() as u64).filter(|_| !ids_alone);
        let mut left = rows.map_or(FEED_IDS, |rows| rows as usize);
        if link.welcome.token_ids {
            left = left.min(FEED_IDS);
        }
        let mut pieces = vec![];
        for key in keys {
            let (Some(session), Some(sequence)) = (self.sessions.get(key), scheduler.get(*key))
            else {
                continue;
            };
            let available = session.available(sequence.committed, ids_alone);
            if let Some(piece) = session.progress.next_piece(&available, left) {
                left -= piece.rows;
                pieces.push(SequencePiece { key: *key, piece });
            }
        }
        pieces
    }

    fn put_hidden_states(
        &self,
        link: &mut DrafterLink,
        pieces: &[SequencePiece],
    ) -> Result<Option<TensorRef>, LinkError> {
        if pieces.is_empty() || link.reads_ids_alone() {
            return Ok(None);
        }
        let rows = |one: &SequencePiece| {
            self.sessions[&one.key].window.rows(one.piece.position, one.piece.rows)
        };
        let parts: Vec<&[u8]> = pieces.iter().map(rows).collect();
        let count: usize = pieces.iter().map(|one| one.piece.rows).sum();
        let element = self.hello.element;
        let columns = self.row_bytes() / element.bytes();
        link.end.put_parts(count as u32, columns as u32, element, &parts)
    }

    fn draft_requests<'a>(
        &self,
        plan: &DraftPlan,
        scheduler: &Scheduler,
        running: &impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
    ) -> Vec<DraftRequest> {
        let request = |&(key, drafted): &(SequenceKey, usize)| {
            let session = self.sessions.get(&key).filter(|_| drafted > 0)?;
            let sequence = scheduler.get(key)?;
            let request = running(key).filter(|_| session.progress.may_ask(sequence.committed))?;
            Some(DraftRequest {
                session: key.0,
                position: sequence.committed as u32,
                block: drafted as u32 + 1,
                bonus_id: *sequence.ids.last()?,
                sampling: DraftSampling {
                    rule: SamplingRule::without_penalties(request.sampling),
                    seed: request.noise.seed,
                    sample_index: request.noise.sample,
                },
                least_survival: plan.least_survival,
            })
        };
        plan.ask.iter().filter_map(request).collect()
    }

    /// The embeddings of the bonus tokens, if the drafter takes them and the ring has room. A token
    /// that no graph has chosen and embedded is embedded here, which waits for an evaluation.
    fn put_embeddings(
        &self,
        link: &mut DrafterLink,
        requests: &[DraftRequest],
        model: &dyn Target,
    ) -> Result<Option<TensorRef>, FeedFault> {
        if requests.is_empty() || !link.welcome.embeddings {
            return Ok(None);
        }
        let known = |request: &DraftRequest| {
            let bonus = self.sessions.get(&SequenceKey(request.session))?.bonus.as_ref()?;
            (bonus.id == request.bonus_id).then_some(bonus.row.as_slice())
        };
        let unknown = requests.iter().filter(|request| known(request).is_none());
        let unknown: Vec<u32> = unknown.map(|request| request.bonus_id).collect();
        let embedded = match unknown.is_empty() {
            true => vec![],
            false => transfer::to_bytes(&model.embed(&unknown)?)?,
        };
        let (width, element) = (self.hello.hidden_size, self.hello.element);
        let mut embedded = embedded.chunks(width as usize * element.bytes());
        let row = |request| known(request).or_else(|| embedded.next()).unwrap_or_default();
        let rows: Vec<&[u8]> = requests.iter().map(row).collect();
        Ok(link.end.put_parts(requests.len() as u32, width, element, &rows)?)
    }

    /// Opens a round of these requests, if there are any; its number, else 0.
    fn open_round(
        &mut self,
        link: &mut DrafterLink,
        scheduler: &mut Scheduler,
        requests: &[DraftRequest],
        border: Border,
    ) -> u64 {
        if requests.is_empty() {
            return 0;
        }
        let blocks: usize = requests.iter().map(|request| request.block as usize).sum();
        // The drafter answers in order: all rows that it has not read come before these drafts.
        let unread =
            self.sessions.values().map(|session| session.progress.on_their_way()).sum::<usize>();
        let requested =
            RequestTime { at_ns: border.at_ns, rows: blocks + unread, steps: self.steps };
        let read_ms = scheduler.speculation.read_us(unread) / 1e3;
        let until = self.deadline.deadline(border.now, read_ms);
        for request in requests {
            let key = SequenceKey(request.session);
            let position = request.position as usize;
            let session = self.sessions.get_mut(&key).expect("it is requested");
            session.requested_at = Some(position);
            session.awaited = Some(AwaitedDraft { position, requested, sequences: requests.len() });
            scheduler.asked(key, until);
        }
        link.open_round(requests, requested)
    }

    fn restored(&self, one: &SequencePiece, link: &DrafterLink) -> Option<RestoredPrefix> {
        let session = self.sessions.get(&one.key).filter(|_| one.piece.recall)?;
        let since = if link.reads_ids_alone() { 0 } else { session.window.first() as u32 };
        let key = session.restorable?.0;
        Some(RestoredPrefix { session: one.key.0, key, since })
    }
}

fn context<'a>(
    one: &SequencePiece,
    link: &DrafterLink,
    scheduler: &Scheduler,
    running: &impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
) -> Context {
    let FeedPiece { position, rows, fresh, .. } = one.piece;
    let request = running(one.key).filter(|_| fresh);
    let sequence = scheduler.get(one.key).filter(|_| link.welcome.token_ids);
    let (ids, end) = (sequence.map_or(&[][..], |sequence| &sequence.ids), position + rows);
    let images = sequence.filter(|_| fresh).map_or(&[][..], |sequence| &sequence.images);
    Context {
        session: one.key.0,
        position: position as u32,
        rows: rows as u32,
        fresh,
        request_id: request.map(|request| request.id.clone()),
        trace: request.and_then(|request| request.trace),
        ids: ids.get(position..end).unwrap_or_default().to_vec(),
        next_id: ids.get(end).copied(),
        images: images.iter().map(span).collect(),
    }
}

/// The rows of an image for a drafter. If they are not those of its grid, their positions are counted
/// as those of text are: one line of as many.
fn span(image: &Image) -> ImageSpan {
    let (rows, columns) = match image.grid_rows * image.grid_columns == image.rows {
        true => (image.grid_rows, image.grid_columns),
        false => (1, image.rows),
    };
    ImageSpan { first: image.first as u32, rows: rows as u32, columns: columns as u32 }
}
