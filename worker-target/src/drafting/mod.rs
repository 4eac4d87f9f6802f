//! The target's end of the link: shows a drafter what was committed, asks it for drafts, and takes
//! what comes in time.
//!
//! Everything here is bookkeeping at step borders on the engine's thread; nothing waits, and
//! whatever goes wrong ends the link and nothing else (I3). A new link is greeted beside the one
//! that serves and takes over when it is (a swap).

mod intake;
mod line;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use paceline_link::{End, Frame, Handover, Side};
use paceline_models::{HostHiddenStates, ModelError, Target, transfer};
use paceline_proto::internal::v1::{
    Context, Feed, Hello, Keep, LinkPhase, LinkReport, ProposalKind, Recall, SpeculationTotals,
    TensorType, Want,
};
use paceline_vocabulary::Millis;

use crate::core::{
    DraftDeadline, DraftPlan, DrafterProgress, DrafterReadiness, FeedPiece, HiddenStateWindow,
    PageKey, Scheduler, SequenceKey,
};
use crate::request::ValidRequest;
use line::{Asked, Fault, Greeting, Line};

pub(crate) use line::Proposed;

/// Share of our ring that one message's taps may fill, so that others find room behind them.
const FEED_SHARE: u64 = 4;

/// Pages of an ended sequence that are named to the drafter, the last ones, and sequences for which
/// that is done in one message.
const KEPT_PAGES: usize = 256;
const KEEPS: usize = 64;

/// What the drafter is shown of one sequence, and what it proposed.
#[derive(Debug)]
struct Session {
    window: HiddenStateWindow,
    reach: DrafterProgress,
    /// Name of what the drafter may have kept for it.
    recall: Option<PageKey>,
    /// A draft is waited for.
    asked: Option<Awaited>,
    /// The last position behind which one was asked for. It is asked for once: where none comes a
    /// step is next, whatever the drafter answers.
    tried: Option<usize>,
    proposed: Option<Proposed>,
}

impl Session {
    fn new(window: HiddenStateWindow) -> Self {
        Self {
            window,
            reach: DrafterProgress::default(),
            recall: None,
            asked: None,
            tried: None,
            proposed: None,
        }
    }

    /// Whether a draft behind this position is waited for.
    fn awaits(&self, position: u32) -> bool {
        self.asked.is_some_and(|awaited| awaited.position == position as usize)
    }
}

/// A draft that is waited for.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    position: usize,
    /// The round, and how many sequences were in it.
    round: Asked,
    sequences: usize,
}

/// What came over the link that the scheduler has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// So many tokens were drafted for this sequence.
    Drafted(SequenceKey, usize),
    /// None will be, though they were asked for.
    NoDraft(SequenceKey),
    /// How long it took until drafts were there, or were not waited for any more.
    Took(Took),
}

/// How long drafts took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) sequences: usize,
    /// Of blocks, and of context that was not read when they were asked for.
    pub(crate) rows: usize,
    pub(crate) us: u64,
    /// Steps the target did meanwhile.
    pub(crate) steps: u32,
    /// A picture's was among them: when the drafts were there is not known nearly enough to learn
    /// from.
    pub(crate) tower: bool,
}

/// What holds at a step border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Border {
    pub(crate) now: Millis,
    /// When the last step, or the wait behind it, ended.
    pub(crate) at_ns: i64,
}

/// The target's end of the link.
#[derive(Debug)]
pub(crate) struct Drafting {
    hello: Hello,
    window_rows: usize,
    /// Layers whose outputs a drafter conditions on: of the one that is linked, else of the one in
    /// the configuration.
    tap_layers: Vec<usize>,
    sessions: HashMap<SequenceKey, Session>,
    /// Sessions that ended and that the drafter still knows.
    closed: Vec<u64>,
    /// What the drafter may keep of them.
    keeps: Vec<Keep>,
    line: Option<Line>,
    greeting: Option<Greeting>,
    pace: DraftDeadline,
    /// Steps done, and by the last one that was a picture's.
    steps: u64,
    tower: u64,
    report: LinkReport,
    late: u64,
    /// Bytes over links that are over.
    past_bytes: u64,
}

impl Drafting {
    /// An end without a link. `hello` is what a drafter is told of the target; `tap_layers` is
    /// empty where no drafter is configured.
    pub(crate) fn new(hello: Hello, tap_layers: Vec<usize>, window_rows: usize) -> Self {
        Self {
            hello,
            window_rows,
            tap_layers,
            sessions: HashMap::new(),
            closed: vec![],
            keeps: vec![],
            line: None,
            greeting: None,
            pace: DraftDeadline::default(),
            steps: 0,
            tower: 0,
            report: LinkReport { phase: LinkPhase::Absent.into(), ..LinkReport::default() },
            late: 0,
            past_bytes: 0,
        }
    }

    /// What the supervisor is told.
    pub(crate) fn report(&self) -> LinkReport {
        let mut report = self.report.clone();
        report.serving = self.line.as_ref().map_or(0, |line| line.end.generation());
        if report.phase() == LinkPhase::Up && self.pace.is_suspect() {
            report.set_phase(LinkPhase::Suspect);
            report.reason = "drafts come too late again and again".into();
        }
        report
    }

    /// Figures of the link to `totals`, which has those of speculation.
    pub(crate) fn count(&self, totals: SpeculationTotals) -> SpeculationTotals {
        let now = self.line.as_ref().map_or(0, |line| line.end.bytes());
        SpeculationTotals { late: self.late, link_bytes: self.past_bytes + now, ..totals }
    }

    /// Whether drafts come at all at this moment.
    pub(crate) fn is_linked(&self) -> bool {
        self.line.is_some()
    }

    /// What can be waited on for news.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let line = self.line.iter().map(|line| line.end.poll_fd());
        line.chain(self.greeting.iter().map(|greeting| greeting.end().poll_fd())).collect()
    }

    /// Whether the drafter sent more than one border takes: the next border follows without a wait.
    pub(crate) fn has_unread(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.end.is_intake_spent())
    }

    /// Whether an answer to Hello is waited for.
    pub(crate) fn is_greeting(&self) -> bool {
        self.greeting.is_some()
    }

    /// Layers whose outputs are to be handed in for every row; empty is none.
    pub(crate) fn tap_layers(&self) -> &[usize] {
        &self.tap_layers
    }

    /// Rows of taps that are kept of a sequence; none where there is nothing to tap.
    pub(crate) fn window_rows(&self) -> usize {
        if self.tap_layers.is_empty() { 0 } else { self.window_rows }
    }

    /// Hidden states of a sequence's newest rows, if any are kept.
    pub(crate) fn window(&self, key: SequenceKey) -> Option<&HiddenStateWindow> {
        self.sessions.get(&key).map(|session| &session.window)
    }

    /// Bytes of taps kept at most of a sequence of up to so many positions, beside rows on their
    /// way.
    pub(crate) fn window_bytes(&self, positions: usize) -> u64 {
        (HiddenStateWindow::most_rows(self.window_rows).min(positions) * self.row_bytes()) as u64
    }

    fn row_bytes(&self) -> usize {
        self.tap_layers.len() * self.hello.hidden_size as usize * width(self.hello.r#type())
    }

    /// Takes a link in and says hello over it. The one that serves goes on until the new one is
    /// greeted.
    pub(crate) fn take_over(&mut self, handover: Handover, now: Millis) {
        let generation = handover.generation;
        if generation <= self.report.generation {
            tracing::warn!(
                generation,
                newest = self.report.generation,
                "an older link was handed over and is dropped (I7)"
            );
            return;
        }
        self.report =
            LinkReport { generation, phase: LinkPhase::Greeting.into(), ..LinkReport::default() };
        let greeted = End::open(handover, Side::Target)
            .map_err(Fault::from)
            .and_then(|end| Greeting::start(end, self.hello.clone(), now));
        match greeted {
            Ok(greeting) => self.greeting = Some(greeting),
            Err(fault) => {
                self.greeting = None;
                self.tell(fault);
            }
        }
    }

    /// Drafts come over this link from now on.
    fn switch(&mut self, line: Line, news: &mut Vec<News>) {
        self.leave(news);
        let tap_layers: Vec<usize> =
            line.welcome.tap_layers.iter().map(|layer| *layer as usize).collect();
        tracing::info!(
            generation = line.end.generation(),
            kind = line.welcome.kind,
            block = line.welcome.block_size,
            ?tap_layers,
            "linked"
        );
        if tap_layers != self.tap_layers {
            // What was kept is of other layers.
            self.tap_layers = tap_layers;
            let (rows, row_bytes) = (self.window_rows, self.row_bytes());
            self.sessions
                .values_mut()
                .for_each(|session| session.window = HiddenStateWindow::new(rows, row_bytes));
        }
        self.report.set_phase(LinkPhase::Up);
        self.report.reason.clear();
        self.line = Some(line);
        self.pace.restart();
    }

    fn drop_line(&mut self, fault: Fault, news: &mut Vec<News>) {
        let generation = self.line.as_ref().map_or(0, |line| line.end.generation());
        self.leave(news);
        if generation == self.report.generation {
            self.tell(fault);
        } else {
            tracing::info!(generation, ?fault, "the link before the newest is over");
        }
    }

    /// Lets go of the link there is: nobody waits for its drafts any more. Those that came stay
    /// good.
    fn leave(&mut self, news: &mut Vec<News>) {
        if let Some(line) = self.line.take() {
            self.past_bytes += line.end.bytes();
        }
        self.closed.clear();
        self.keeps.clear();
        for (key, session) in &mut self.sessions {
            session.reach = DrafterProgress::default();
            if session.asked.take().is_some() {
                news.push(News::NoDraft(*key));
            }
        }
    }

    fn tell(&mut self, fault: Fault) {
        let (phase, reason) = match fault {
            Fault::Refused(reason) => (LinkPhase::Refused, reason),
            Fault::Ejected(reason) => (LinkPhase::Ejected, reason),
            Fault::Lost(reason) => (LinkPhase::Lost, reason),
        };
        tracing::warn!(generation = self.report.generation, ?phase, reason, "no link");
        self.report.set_phase(phase);
        self.report.reason = reason;
    }

    /// Rows of a sequence were found in the prefix cache, up to a page of this name and end: the
    /// taps of the last of them, the first at `position`.
    pub(crate) fn found(
        &mut self,
        key: SequenceKey,
        page: (PageKey, usize),
        position: usize,
        taps: &[&[u8]],
    ) {
        let (mut position, row_bytes) = (position, self.row_bytes());
        let session = self.session(key);
        session.recall = Some(page.0);
        session.reach.recall_at(page.1);
        for rows in taps {
            self.session(key).window.push(position, rows);
            position += rows.len().checked_div(row_bytes).unwrap_or(0);
        }
    }

    /// Rows of a sequence were committed, the first at `position`: these of all that were tapped.
    pub(crate) fn committed(
        &mut self,
        key: SequenceKey,
        position: usize,
        taps: &HostHiddenStates<'_>,
        rows: Range<usize>,
    ) {
        self.session(key).window.write(position, |bytes| taps.append(rows, bytes));
    }

    fn session(&mut self, key: SequenceKey) -> &mut Session {
        let (rows, row_bytes) = (self.window_rows, self.row_bytes());
        self.sessions
            .entry(key)
            .or_insert_with(|| Session::new(HiddenStateWindow::new(rows, row_bytes)))
    }

    /// The draft of a sequence, to be verified now.
    pub(crate) fn take(&mut self, key: SequenceKey) -> Option<Proposed> {
        self.sessions.get_mut(&key)?.proposed.take()
    }

    fn took(&self, asked: Asked, sequences: usize, at_ns: i64) -> Took {
        let us = (at_ns - asked.at_ns).max(0) as u64 / 1000;
        let tower = self.tower > asked.steps;
        Took { sequences, rows: asked.rows, us, steps: (self.steps - asked.steps) as u32, tower }
    }

    /// Drafts of these sequences did not come in time: so long they took at least.
    pub(crate) fn late(&mut self, keys: &[SequenceKey], border: &Border) -> Option<News> {
        let late: Vec<Awaited> =
            keys.iter().filter_map(|key| self.sessions.get_mut(key)?.asked.take()).collect();
        let first = *late.iter().min_by_key(|awaited| awaited.round.at_ns)?;
        self.late += late.len() as u64;
        self.pace.late(border.now);
        Some(News::Took(self.took(first.round, first.sequences, border.at_ns)))
    }

    /// A step was done. If it only decoded one row of each of its sequences: how long it took.
    pub(crate) fn stepped(&mut self, plain_ms: Option<f64>) {
        self.steps += 1;
        if let Some(ms) = plain_ms {
            self.pace.plain_step(ms);
        }
    }

    /// A part of a picture went through the vision tower.
    pub(crate) fn saw(&mut self) {
        self.steps += 1;
        self.tower = self.steps;
    }

    /// A sequence is about to be over, and its whole pages have these names: the drafter may keep
    /// what it has read of it.
    pub(crate) fn keep(&mut self, key: SequenceKey, pages: &[PageKey]) {
        let known = self.sessions.get(&key).is_some_and(|session| session.reach.is_open());
        if known && !pages.is_empty() && self.keeps.len() < KEEPS {
            let first = pages.len().saturating_sub(KEPT_PAGES);
            let keys = pages[first..].iter().flat_map(|page| page.0).collect::<Vec<u8>>();
            self.keeps.push(Keep { session: key.0, first_page: first as u32, keys: keys.into() });
        }
    }

    /// A sequence goes on without what is kept of it here. What the drafter says of it may be under
    /// way still, and is no fault: how far it was shown is remembered.
    pub(crate) fn give_up(&mut self, key: SequenceKey) {
        let (rows, row_bytes) = (self.window_rows, self.row_bytes());
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.reach.is_open() {
            self.closed.push(key.0);
        }
        session.reach.start_again();
        (session.window, session.asked, session.tried, session.proposed) =
            (HiddenStateWindow::new(rows, row_bytes), None, None, None);
    }

    /// A sequence is over.
    pub(crate) fn close(&mut self, key: SequenceKey) {
        if let Some(session) = self.sessions.remove(&key)
            && session.reach.is_open()
        {
            self.closed.push(key.0);
        }
    }

    /// At a step border: sends what was committed and asks for drafts, nobody's if the KV ledger is
    /// above the policy's pressure (`pressed`). Sequences that may have one are told to the
    /// scheduler.
    ///
    /// # Errors
    /// The target's own: MLX failed.
    pub(crate) fn feed<'a>(
        &mut self,
        scheduler: &mut Scheduler,
        checked: impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
        (border, pressed): (&Border, bool),
        model: &dyn Target,
    ) -> Result<Vec<News>, ModelError> {
        let mut news = vec![];
        if let Some(mut line) = self.line.take() {
            let fed = self.feed_over(&mut line, scheduler, checked, (border, pressed), model)?;
            self.line = Some(line);
            if let Err(fault) = fed {
                self.drop_line(fault, &mut news);
            }
        }
        self.sessions.values_mut().for_each(|session| session.window.trim());
        Ok(news)
    }

    fn feed_over<'a>(
        &mut self,
        line: &mut Line,
        scheduler: &mut Scheduler,
        checked: impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
        (border, pressed): (&Border, bool),
        model: &dyn Target,
    ) -> Result<Result<(), Fault>, ModelError> {
        // A drafter that is paused for being late, or owes much, is left alone: it has enough to
        // do.
        let plan = if self.pace.may_ask(border.now) && !line.is_clogged() {
            let longest = line.welcome.block_size as usize - 1;
            let most = line.welcome.context_length as usize;
            let mut plan = scheduler
                .plan(pressed, |key, sequence| self.reading(key, sequence.committed, most));
            plan.ask.iter_mut().for_each(|(_, length)| *length = (*length).min(longest));
            plan
        } else {
            DraftPlan::default()
        };
        let row_bytes = self.row_bytes() as u64;
        let most = (line.end.capacity() / FEED_SHARE)
            .min(line.end.room())
            .checked_div(row_bytes)
            .unwrap_or(0) as usize;
        let (mut pieces, mut rows) = (Vec::<(SequenceKey, FeedPiece)>::new(), 0);
        for key in plan.feed {
            let Some(session) = self.sessions.get(&key) else { continue };
            if let Some(piece) = session.reach.next_piece(&session.window, most - rows) {
                rows += piece.rows;
                pieces.push((key, piece));
            }
        }
        let parts: Vec<&[u8]> = pieces
            .iter()
            .map(|(key, piece)| self.sessions[key].window.rows(piece.position, piece.rows))
            .collect();
        let taps = match parts.is_empty() {
            true => None,
            false => match line.end.put_parts(
                rows as u32,
                (row_bytes as usize / width(line.kind)) as u32,
                line.kind,
                &parts,
            ) {
                Ok(taps) => taps,
                Err(error) => return Ok(Err(error.into())),
            },
        };
        if taps.is_none() {
            // No room: these sessions are behind, and catch up or start again from their windows.
            pieces.clear();
        }
        for (key, piece) in &pieces {
            self.sessions.get_mut(key).expect("looked up above").reach.sent(*piece);
        }
        let mut wants = self.wants(&plan.ask, scheduler, &checked);
        let bonus = match (line.welcome.proposal(), wants.is_empty()) {
            (ProposalKind::Hidden, false) => {
                let ids: Vec<u32> = wants.iter().map(|want| want.bonus_id).collect();
                let rows = transfer::to_bytes(&model.embed(&ids)?)?;
                match line.end.put(wants.len() as u32, self.hello.hidden_size, line.kind, &rows) {
                    Ok(bonus) => bonus,
                    Err(error) => return Ok(Err(error.into())),
                }
            }
            _ => None,
        };
        if bonus.is_none() && line.welcome.proposal() == ProposalKind::Hidden {
            wants.clear();
        }
        if pieces.is_empty() && wants.is_empty() && self.closed.is_empty() {
            return Ok(line.end.flush().map_err(Fault::from));
        }
        let blocks: usize = wants.iter().map(|want| want.block as usize).sum();
        // It answers in order: what it has not read of any sequence comes before these drafts.
        let unread =
            self.sessions.values().map(|session| session.reach.on_their_way()).sum::<usize>();
        let asked = Asked { at_ns: border.at_ns, rows: blocks + unread, steps: self.steps };
        let round = if wants.is_empty() { 0 } else { line.open_round(&wants, asked) };
        let until = self.pace.deadline(border.now, scheduler.speculation.read_us(unread) / 1e3);
        for want in &wants {
            let key = SequenceKey(want.session);
            let session = self.sessions.get_mut(&key).expect("asked for one");
            let position = want.position as usize;
            (session.asked, session.tried) =
                (Some(Awaited { position, round: asked, sequences: wants.len() }), Some(position));
            scheduler.asked(key, until);
        }
        let context = |(key, piece): &(SequenceKey, FeedPiece)| Context {
            session: key.0,
            position: piece.position as u32,
            rows: piece.rows as u32,
            fresh: piece.fresh,
        };
        let contexts = pieces.iter().map(context).collect();
        let recall = |(key, piece): &(SequenceKey, FeedPiece)| {
            let session = self.sessions.get(key).filter(|_| piece.recall)?;
            Some(Recall {
                session: key.0,
                key: session.recall?.0.to_vec().into(),
                since: session.window.first() as u32,
            })
        };
        let recalls = pieces.iter().filter_map(recall).collect();
        let (closed, keeps) = (std::mem::take(&mut self.closed), std::mem::take(&mut self.keeps));
        let feed = Feed { closed, contexts, taps, wants, bonus, round, keeps, recalls };
        Ok(line.end.send(Frame::Feed(feed)).map_err(Fault::from))
    }

    /// How far a drafter that reads `context` positions, if it says how many, is with a sequence.
    fn reading(
        &self,
        key: SequenceKey,
        committed: usize,
        context: usize,
    ) -> Option<DrafterReadiness> {
        let session = self.sessions.get(&key)?;
        let can =
            session.tried != Some(committed) && session.reach.could_ask(committed, &session.window);
        // The shortest block is the bonus token and a draft.
        let beyond = context > 0 && committed + 2 > context;
        Some(DrafterReadiness { unread: session.reach.unread(&session.window), can, beyond })
    }

    fn wants<'a>(
        &self,
        ask: &[(SequenceKey, usize)],
        scheduler: &Scheduler,
        checked: &impl Fn(SequenceKey) -> Option<&'a ValidRequest>,
    ) -> Vec<Want> {
        let want = |&(key, drafted): &(SequenceKey, usize)| {
            let session = self.sessions.get(&key).filter(|_| drafted > 0)?;
            let sequence = scheduler.get(key)?;
            let checked = checked(key).filter(|_| session.reach.may_ask(sequence.committed))?;
            Some(Want {
                session: key.0,
                position: sequence.committed as u32,
                block: drafted as u32 + 1,
                bonus_id: *sequence.ids.last()?,
                temperature: checked.sampling.temperature,
                seed: checked.noise.seed,
                sample_index: checked.noise.sample,
            })
        };
        ask.iter().filter_map(want).collect()
    }
}

fn width(kind: TensorType) -> usize {
    match kind {
        TensorType::F32 | TensorType::Unspecified => 4,
        TensorType::F16 | TensorType::Bf16 => 2,
    }
}

#[cfg(test)]
mod tests {
    use line::Heard;
    use paceline_proto::internal::v1::SessionReach;

    use super::*;

    const KEY: SequenceKey = SequenceKey(7);
    const ROW_BYTES: usize = 4;

    /// The drafter was sent 20 rows of a sequence, and asked for a draft behind them.
    fn shown(round: Asked) -> Drafting {
        let hello = Hello { hidden_size: 1, r#type: TensorType::F32.into(), ..Hello::default() };
        let mut drafting = Drafting::new(hello, vec![0], 16);
        let session = drafting.session(KEY);
        session.window.push(0, &[0; 20 * ROW_BYTES]);
        let piece = session.reach.next_piece(&session.window, 99).expect("rows");
        session.reach.sent(piece);
        session.asked = Some(Awaited { position: 20, round, sequences: 3 });
        drafting
    }

    fn says(drafting: &mut Drafting, position: u32) -> Result<(), Fault> {
        let sessions = vec![SessionReach { session: KEY.0, position }];
        let border = Border { now: Millis(0), at_ns: 0 };
        drafting.note(Heard::Reach { sessions, missed: vec![] }, &border, &mut vec![])
    }

    const ROUND: Asked = Asked { at_ns: 1_000_000, rows: 24, steps: 0 };

    #[test]
    fn news_of_a_sequence_that_gave_its_taps_up_is_no_fault_of_the_drafters() {
        let mut drafting = shown(ROUND);
        drafting.give_up(KEY);
        assert_eq!(
            (drafting.closed.as_slice(), drafting.window(KEY).expect("there").bytes()),
            (&[KEY.0][..], 0)
        );
        // It has taps again, from farther on: the drafter, which hears of neither yet, says what it
        // had read.
        drafting.session(KEY).window.push(30, &[0; 2 * ROW_BYTES]);
        assert!(says(&mut drafting, 20).is_ok());
        assert_eq!(
            drafting.reading(KEY, 32, 0).expect("there").unread,
            2,
            "nothing of the session there is now"
        );
        assert!(says(&mut drafting, 21).is_err(), "that was never sent");
    }

    #[test]
    fn a_late_draft_took_as_long_as_it_was_waited_for() {
        let mut drafting = shown(ROUND);
        let late = drafting.late(&[KEY], &Border { now: Millis(21), at_ns: 21_000_000 });
        assert_eq!(
            late,
            Some(News::Took(Took { sequences: 3, rows: 24, us: 20_000, steps: 0, tower: false }))
        );
        assert_eq!(drafting.late(&[KEY], &Border { now: Millis(22), at_ns: 22_000_000 }), None);
    }

    #[test]
    fn behind_the_drafters_context_there_is_nothing_to_ask_it_for() {
        let drafting = shown(ROUND);
        let beyond =
            |committed, context| drafting.reading(KEY, committed, context).expect("there").beyond;
        assert_eq!([beyond(98, 100), beyond(99, 100), beyond(5_000, 0)], [false, true, false]);
    }
}
