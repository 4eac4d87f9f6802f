//! The target's end of the link: sends a drafter the hidden states that were committed, requests
//! drafts, and takes the drafts that come in time.
//!
//! ```text
//!  connect ──▶ Handshake ──▶ DrafterLink ──▶ over: refused, ejected or lost (LinkEnd)
//!              (`link`)        │  ▲
//!                       `feed` ▼  │ `intake`, `proposal`
//!                            drafter
//! ```
//! All of this happens at step borders on the engine's thread. Nothing waits, and a fault ends the
//! link and nothing else (I3). The handshake of a new link runs beside the link that serves. When
//! it is over, the new link takes the old one's place.

mod draft;
mod feed;
mod intake;
mod link;
mod proposal;
mod session;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use paceline_link::{End, Handover, Side};
use paceline_models::HostHiddenStates;
use paceline_target_core::{
    DraftDeadline, DrafterProgress, HiddenStateWindow, PageKey, SequenceKey,
};
use paceline_vocabulary::Millis;
use paceline_vocabulary::link::{Hello, RetainedPages, SessionId};
use paceline_vocabulary::report::LinkReport;
use paceline_vocabulary::state::LinkPhase;

use link::{DrafterLink, Handshake, LinkEnd, RequestTime};
use session::{AwaitedDraft, DraftSession, EmbeddedBonus};

pub(crate) use draft::Proposed;
pub(crate) use feed::FeedInputs;

/// Most pages of one ended sequence that are named to the drafter: its last ones.
const RETAINED_PAGES: usize = paceline_vocabulary::link::MAX_PAGE_KEYS;
/// Most ended sequences whose pages are named in one message.
const RETAINED_SEQUENCES: usize = 64;

/// Something that the scheduler has to know of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftEvent {
    /// A draft of this many tokens came for a sequence.
    Arrived {
        /// The sequence.
        key: SequenceKey,
        /// Drafted tokens.
        tokens: usize,
    },
    /// A draft of at most this many tokens was requested for a sequence.
    Requested {
        /// The sequence.
        key: SequenceKey,
        /// Tokens at most.
        tokens: usize,
    },
    /// A sequence gets no draft, although one was requested.
    NoDraft(SequenceKey),
    /// The drafter spent its time on a draft for a sequence, and proposes no token.
    EmptyDraft(SequenceKey),
    /// Time until drafts came, or until they were given up as late.
    Took(DraftTime),
}

/// How long a round of drafts took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftTime {
    /// Sequences with a draft.
    pub(crate) sequences: usize,
    /// Rows of the blocks, and of context that was not read when they were requested.
    pub(crate) rows: usize,
    pub(crate) us: u64,
    /// Steps that the target did meanwhile.
    pub(crate) steps: u32,
    /// The vision tower worked meanwhile. The time is then too inexact to learn from.
    pub(crate) tower: bool,
}

/// A page boundary up to which a sequence was found in the prefix cache, and the hidden states that
/// the cache has before it.
#[derive(Debug)]
pub(crate) struct CachedHiddenStates<'a> {
    /// Name of the last page.
    pub(crate) page: PageKey,
    /// Where that page ends.
    pub(crate) end: usize,
    /// Position of the first row of `rows`.
    pub(crate) position: usize,
    /// Hidden states, page by page.
    pub(crate) rows: Vec<&'a [u8]>,
}

/// Figures of all links since the worker's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkTotals {
    /// Drafts that missed their deadline.
    pub(crate) late: u64,
    /// Bytes, both ways.
    pub(crate) bytes: u64,
}

/// Times of a step border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Border {
    pub(crate) now: Millis,
    /// When the last step, or the wait after it, ended.
    pub(crate) at_ns: i64,
}

/// The target's end of the link.
#[derive(Debug)]
pub(crate) struct Drafting {
    hello: Hello,
    window_rows: usize,
    /// Layers whose hidden states a drafter conditions on: those of the linked drafter, else those
    /// of the configured one.
    feature_layers: Vec<usize>,
    sessions: HashMap<SequenceKey, DraftSession>,
    /// Sessions that ended and that the drafter still has.
    closed: Vec<SessionId>,
    /// Names of their pages.
    retained: Vec<RetainedPages>,
    link: Option<DrafterLink>,
    handshake: Option<Handshake>,
    deadline: DraftDeadline,
    /// Steps done, those of the vision tower included.
    steps: u64,
    /// Number of the last step that was the vision tower's.
    tower_step: u64,
    report: LinkReport,
    late: u64,
    /// Bytes over links that are over.
    past_bytes: u64,
}

impl Drafting {
    /// An end without a link. `hello` describes the target to a drafter; `feature_layers` is empty
    /// if no drafter is configured.
    pub(crate) fn new(hello: Hello, feature_layers: Vec<usize>, window_rows: usize) -> Self {
        Self {
            hello,
            window_rows,
            feature_layers,
            sessions: HashMap::new(),
            closed: vec![],
            retained: vec![],
            link: None,
            handshake: None,
            deadline: DraftDeadline::default(),
            steps: 0,
            tower_step: 0,
            report: LinkReport {
                generation: 0,
                phase: LinkPhase::Absent,
                reason: String::new(),
                serving: 0,
            },
            late: 0,
            past_bytes: 0,
        }
    }

    /// Whether drafts came too late several times in a row, so that few are requested.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_suspect()
    }

    /// The link's state for the supervisor.
    pub(crate) fn report(&self) -> LinkReport {
        let mut report = self.report.clone();
        report.serving = self.serving_generation();
        if report.phase == LinkPhase::Up && self.is_late() {
            report.phase = LinkPhase::Suspect;
            report.reason = "drafts come too late again and again".into();
        }
        report
    }

    /// Figures of all links.
    pub(crate) fn totals(&self) -> LinkTotals {
        let bytes = self.link.as_ref().map_or(0, |link| link.end.bytes());
        LinkTotals { late: self.late, bytes: self.past_bytes + bytes }
    }

    /// End of the cool-down of a drafter whose drafts were late; `None` once they come in time.
    pub(crate) fn cooldown_until(&self) -> Option<Millis> {
        self.deadline.cooldown_until()
    }

    /// Fingerprint of the linked drafter: drafts with an equal one take the same time.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.link.as_ref().map(|link| link.welcome.fingerprint.as_str())
    }

    /// Generation of the link that serves; 0 without one.
    pub(crate) fn serving_generation(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.end.generation())
    }

    /// Whether drafts may come at this moment.
    pub(crate) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Descriptors that become readable when a message comes.
    pub(crate) fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let link = self.link.iter().map(|link| link.end.poll_fd());
        link.chain(self.handshake.iter().map(|handshake| handshake.end().poll_fd())).collect()
    }

    /// Whether the drafter sent more than one border takes: the next border follows without a wait.
    pub(crate) fn has_unread(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.end.is_intake_spent())
    }

    /// Whether an answer to Hello is awaited.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.handshake.is_some()
    }

    /// Layers whose hidden states every step returns for the drafter; empty if there is none.
    pub(crate) fn feature_layers(&self) -> &[usize] {
        &self.feature_layers
    }

    /// Rows of hidden states that are kept of a sequence; 0 without feature layers.
    pub(crate) fn window_rows(&self) -> usize {
        if self.feature_layers.is_empty() { 0 } else { self.window_rows }
    }

    /// Hidden states of a sequence's newest rows, if any are kept.
    pub(crate) fn window(&self, key: SequenceKey) -> Option<&HiddenStateWindow> {
        self.sessions.get(&key).map(|session| &session.window)
    }

    /// Most bytes of hidden states that are kept of a sequence of up to `positions` positions,
    /// without rows on their way.
    pub(crate) fn window_bytes(&self, positions: usize) -> u64 {
        let rows = HiddenStateWindow::most_rows(self.window_rows).min(positions);
        (rows * self.row_bytes()) as u64
    }

    fn row_bytes(&self) -> usize {
        let width = self.hello.hidden_size as usize * self.hello.element.bytes();
        self.feature_layers.len() * width
    }

    fn new_window(&self) -> HiddenStateWindow {
        HiddenStateWindow::new(self.window_rows, self.row_bytes())
    }

    /// Takes a link in and sends Hello over it. The link that serves goes on until the new one's
    /// handshake is over.
    pub(crate) fn connect(&mut self, handover: Handover, now: Millis) {
        let generation = handover.generation;
        if generation <= self.report.generation {
            let newest = self.report.generation;
            tracing::warn!(generation, newest, "an older link was handed over and is dropped (I7)");
            return;
        }
        self.report = LinkReport {
            generation,
            phase: LinkPhase::Greeting,
            reason: String::new(),
            serving: 0,
        };
        let started = End::open(handover, Side::Target)
            .map_err(LinkEnd::from)
            .and_then(|end| Handshake::start(end, self.hello.clone(), now));
        match started {
            Ok(handshake) => self.handshake = Some(handshake),
            Err(end) => {
                self.handshake = None;
                self.report_end(end);
            }
        }
    }

    /// Drafts come over this link from now on.
    fn switch(&mut self, link: DrafterLink, events: &mut Vec<DraftEvent>) {
        self.leave(events);
        let feature_layers: Vec<usize> =
            link.welcome.feature_layers.iter().map(|layer| *layer as usize).collect();
        let (kind, block) = (&link.welcome.kind, link.welcome.block_size);
        let generation = link.end.generation();
        tracing::info!(generation, kind, block, ?feature_layers, "linked");
        if feature_layers != self.feature_layers {
            // The hidden states that are kept are of other layers.
            self.feature_layers = feature_layers;
            let window = self.new_window();
            self.sessions.values_mut().for_each(|session| session.window = window.clone());
        }
        self.report.phase = LinkPhase::Up;
        self.report.reason.clear();
        self.link = Some(link);
        self.deadline.restart();
    }

    fn drop_link(&mut self, end: LinkEnd, events: &mut Vec<DraftEvent>) {
        let generation = self.serving_generation();
        self.leave(events);
        if generation == self.report.generation {
            self.report_end(end);
        } else {
            tracing::info!(generation, ?end, "the link before the newest is over");
        }
    }

    /// Closes the link that serves, if there is one. Drafts that were requested over it are given
    /// up; drafts that came stay valid.
    fn leave(&mut self, events: &mut Vec<DraftEvent>) {
        if let Some(link) = self.link.take() {
            self.past_bytes += link.end.bytes();
        }
        self.closed.clear();
        self.retained.clear();
        for (key, session) in &mut self.sessions {
            session.progress = DrafterProgress::default();
            session.is_known = false;
            session.drafts_from = 0;
            session.has_proposed = false;
            if session.awaited.take().is_some() {
                events.push(DraftEvent::NoDraft(*key));
            }
        }
    }

    fn report_end(&mut self, end: LinkEnd) {
        let LinkEnd { phase, reason } = end;
        tracing::warn!(generation = self.report.generation, ?phase, reason, "no link");
        self.report.phase = phase;
        self.report.reason = reason;
    }

    /// A sequence was found in the prefix cache: the drafter may have retained it too.
    pub(crate) fn restore(&mut self, key: SequenceKey, cached: CachedHiddenStates<'_>) {
        let row_bytes = self.row_bytes();
        let session = self.session(key);
        session.restorable = Some(cached.page);
        session.progress.recall_at(cached.end);
        let mut position = cached.position;
        for rows in cached.rows {
            session.window.push(position, rows);
            position += rows.len().checked_div(row_bytes).unwrap_or(0);
        }
    }

    /// Rows of a sequence were committed, the first at `position`. `rows` are theirs of all hidden
    /// states of the step.
    pub(crate) fn committed(
        &mut self,
        key: SequenceKey,
        position: usize,
        hidden_states: &HostHiddenStates<'_>,
        rows: Range<usize>,
    ) {
        self.session(key).window.write(position, |bytes| hidden_states.append(rows, bytes));
    }

    /// Whether the linked drafter takes the embeddings of bonus tokens.
    pub(crate) fn takes_embeddings(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.welcome.embeddings)
    }

    /// The embedding of `id`, the bonus token of a sequence, from the graph that chose it.
    pub(crate) fn embedded(&mut self, key: SequenceKey, id: u32, row: &[u8]) {
        let bonus = self.session(key).bonus.get_or_insert_with(EmbeddedBonus::default);
        bonus.id = id;
        // In the memory of the row before.
        bonus.row.clear();
        bonus.row.extend_from_slice(row);
    }

    fn session(&mut self, key: SequenceKey) -> &mut DraftSession {
        let window = self.new_window();
        self.sessions.entry(key).or_insert_with(|| DraftSession::new(window))
    }

    /// The draft of a sequence, if it consists of ids.
    pub(crate) fn proposed_ids(&self, key: SequenceKey) -> Option<&[u32]> {
        match self.sessions.get(&key)?.proposed.as_ref()? {
            Proposed::Ids(ids) => Some(ids),
            Proposed::Hidden { .. } => None,
        }
    }

    /// Drops the ids of a draft after the first `most`. Without ids the draft is dropped.
    pub(crate) fn cut(&mut self, key: SequenceKey, most: usize) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(Proposed::Ids(ids)) = &mut session.proposed {
            ids.truncate(most);
            if ids.is_empty() {
                session.proposed = None;
            }
        }
    }

    /// The draft of a sequence, to be verified now.
    pub(crate) fn take(&mut self, key: SequenceKey) -> Option<Proposed> {
        self.sessions.get_mut(&key)?.proposed.take()
    }

    fn draft_time(&self, requested: RequestTime, sequences: usize, at_ns: i64) -> DraftTime {
        DraftTime {
            sequences,
            rows: requested.rows,
            us: (at_ns - requested.at_ns).max(0) as u64 / 1000,
            steps: (self.steps - requested.steps) as u32,
            tower: self.tower_step > requested.steps,
        }
    }

    /// Drafts of these sequences missed their deadline: they took at least the time until now.
    pub(crate) fn late(&mut self, keys: &[SequenceKey], border: &Border) -> Option<DraftEvent> {
        let late: Vec<AwaitedDraft> =
            keys.iter().filter_map(|key| self.sessions.get_mut(key)?.awaited.take()).collect();
        let first = *late.iter().min_by_key(|awaited| awaited.requested.at_ns)?;
        self.late += late.len() as u64;
        self.deadline.late(border.now);
        let time = self.draft_time(first.requested, first.sequences, border.at_ns);
        Some(DraftEvent::Took(time))
    }

    /// A step was done. `plain_ms` is its time if each of its sequences decoded one row.
    pub(crate) fn stepped(&mut self, plain_ms: Option<f64>) {
        self.steps += 1;
        if let Some(ms) = plain_ms {
            self.deadline.plain_step(ms);
        }
    }

    /// The vision tower did a part of an image.
    pub(crate) fn tower_stepped(&mut self) {
        self.steps += 1;
        self.tower_step = self.steps;
    }

    /// A sequence is about to end, and its whole pages have these names: the drafter may retain its
    /// context under them.
    pub(crate) fn retain(&mut self, key: SequenceKey, pages: &[PageKey]) {
        let retains = self.link.as_ref().is_some_and(|link| !link.welcome.reads_at_once);
        let is_open = self.sessions.get(&key).is_some_and(|session| session.progress.is_open());
        if retains && is_open && !pages.is_empty() && self.retained.len() < RETAINED_SEQUENCES {
            let first = pages.len().saturating_sub(RETAINED_PAGES);
            let keys = pages[first..].iter().map(|page| page.0).collect();
            let first_page = first as u32;
            self.retained.push(RetainedPages { session: key.0, first_page, keys });
        }
    }

    /// Drops the hidden states of a sequence that goes on without them. Reports of the drafter
    /// about it may be under way, and are no fault: the farthest position that was sent is
    /// remembered.
    pub(crate) fn drop_hidden_states(&mut self, key: SequenceKey) {
        let window = self.new_window();
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.is_known {
            self.closed.push(key.0);
        }
        session.is_known = false;
        session.start_again();
        session.window = window;
        session.awaited = None;
        session.requested_at = None;
        session.proposed = None;
    }

    /// A sequence ended.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        if let Some(session) = self.sessions.remove(&key)
            && session.is_known
        {
            self.closed.push(key.0);
        }
    }
}
