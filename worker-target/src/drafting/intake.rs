//! Messages of the drafter: taken at step borders, a bounded amount at each, and checked against
//! what the target sent.

use paceline_models::{ModelError, Target, transfer};
use paceline_target_core::{ReportedPosition, SequenceKey};
use paceline_vocabulary::link::{ReadProgress, Welcome};

use super::draft::ServedDraft;
use super::link::{LinkEnd, Received, RequestTime, RequestedDraft};
use super::{Border, DraftEvent, Drafting};

/// Most progress reports in a row that report nothing new. An honest drafter reports each step
/// once; a report is stale only if its sequence ended, or started again, meanwhile. A drafter that
/// stood still for 10 s, after which it counts as hung, owes this many reports to a target whose
/// steps take 0.6 ms. A test with 256 ejected a drafter that was slow and honest.
const IDLE_REPORTS: usize = 1 << 14;

impl Drafting {
    /// Takes the drafter's messages since the last border, as far as one border's limit allows.
    ///
    /// # Errors
    /// The target's own: MLX failed.
    pub(crate) fn receive(
        &mut self,
        border: &Border,
        model: &dyn Target,
    ) -> Result<Vec<DraftEvent>, ModelError> {
        let mut events = vec![];
        if let Some(link) = &mut self.link {
            link.end.limit_intake();
        }
        self.continue_handshake(border, model, &mut events)?;
        while let Some(link) = &mut self.link {
            match link.receive() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if let Err(end) = self.on_message(message, border, &mut events) {
                        self.drop_link(end, &mut events);
                    }
                }
                Err(end) => self.drop_link(end, &mut events),
            }
        }
        Ok(events)
    }

    fn continue_handshake(
        &mut self,
        border: &Border,
        model: &dyn Target,
        events: &mut Vec<DraftEvent>,
    ) -> Result<(), ModelError> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        match handshake.answer(border.now) {
            Ok(None) => {}
            Ok(Some(welcome)) => self.finish_handshake(welcome, model, events)?,
            Err(end) => {
                self.handshake = None;
                self.report_end(end);
            }
        }
        Ok(())
    }

    fn finish_handshake(
        &mut self,
        welcome: Welcome,
        model: &dyn Target,
        events: &mut Vec<DraftEvent>,
    ) -> Result<(), ModelError> {
        let embed = |id| transfer::to_bytes(&model.embed(&[id])?);
        let mask_row = welcome.mask_id.map(embed).transpose()?;
        let Some(handshake) = self.handshake.take() else { return Ok(()) };
        match handshake.finish(welcome, mask_row.as_deref()) {
            Ok(link) => self.switch(link, events),
            Err(end) => self.report_end(end),
        }
        Ok(())
    }

    pub(super) fn on_message(
        &mut self,
        message: Received,
        border: &Border,
        events: &mut Vec<DraftEvent>,
    ) -> Result<(), LinkEnd> {
        match message {
            Received::Progress(progress) => {
                let is_idle = self.on_progress(progress, events)?;
                self.count_report(is_idle)
            }
            Received::Drafts { requested, served, left_out } => {
                // Only an open round can be answered, so the number of answers is bounded.
                self.count_report(false)?;
                self.on_drafts(requested, served, border, events);
                self.on_left_out(&left_out, events);
                Ok(())
            }
        }
    }

    /// Whether the report has nothing new.
    fn on_progress(
        &mut self,
        progress: ReadProgress,
        events: &mut Vec<DraftEvent>,
    ) -> Result<bool, LinkEnd> {
        let mut is_idle = true;
        for id in progress.missed {
            let key = SequenceKey(id);
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            if session.restorable.take().is_none() {
                return Err(LinkEnd::ejected(format!(
                    "session {id} was not to begin with a retained context"
                )));
            }
            is_idle = false;
            // It gets all hidden states there are, from the beginning of the window.
            session.start_again();
            if session.awaited.take().is_some() {
                events.push(DraftEvent::NoDraft(key));
            }
        }
        for read in progress.sessions {
            // A sequence that ended meanwhile has no progress.
            let Some(session) = self.sessions.get_mut(&SequenceKey(read.session)) else {
                continue;
            };
            match session.progress.report(read.position as usize) {
                ReportedPosition::Advanced => {
                    is_idle = false;
                    session.drafts_from = read.drafts_from as usize;
                }
                ReportedPosition::Stale => {}
                ReportedPosition::Impossible => {
                    let (session, position) = (read.session, read.position);
                    return Err(LinkEnd::ejected(format!(
                        "session {session} was never sent position {position}"
                    )));
                }
            }
        }
        Ok(is_idle)
    }

    fn on_drafts(
        &mut self,
        requested: RequestTime,
        served: Vec<ServedDraft>,
        border: &Border,
        events: &mut Vec<DraftEvent>,
    ) {
        let (mut in_time, count) = (false, served.len());
        let reads_at_once = self.link.as_ref().is_some_and(|link| link.welcome.reads_at_once);
        for draft in served {
            let key = SequenceKey(draft.session);
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            session.progress.report(draft.position as usize);
            // A late draft is for a position that the sequence has left.
            if session.awaits(draft.position) {
                session.awaited = None;
                in_time = true;
                session.drafts_from = draft.drafts_from as usize;
                match draft.proposed.len() {
                    // Such an answer costs next to nothing, so nothing is to be learned from it.
                    0 if reads_at_once => events.push(DraftEvent::NoDraft(key)),
                    0 => events.push(DraftEvent::EmptyDraft(key)),
                    tokens => {
                        session.has_proposed = true;
                        events.push(DraftEvent::Arrived { key, tokens });
                        session.proposed = Some(draft.proposed);
                    }
                }
            }
        }
        if in_time {
            let time = self.draft_time(requested, count, border.at_ns);
            if time.tower {
                self.deadline.answered();
            } else {
                self.deadline.in_time(time.us / 1000);
            }
            events.push(DraftEvent::Took(time));
        }
    }

    fn on_left_out(&mut self, left_out: &[RequestedDraft], events: &mut Vec<DraftEvent>) {
        for request in left_out {
            let key = SequenceKey(request.session);
            // A late request was left out because the sequence has gone on.
            let awaits = |session: &&mut super::DraftSession| session.awaits(request.position);
            let Some(session) = self.sessions.get_mut(&key).filter(awaits) else { continue };
            // Whatever the drafter misses of the session: all of it is sent anew.
            session.awaited = None;
            session.start_again();
            events.push(DraftEvent::NoDraft(key));
        }
    }

    /// Counts a report towards [`IDLE_REPORTS`]. A report with something new starts the count again.
    fn count_report(&mut self, is_idle: bool) -> Result<(), LinkEnd> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.idle_reports = if is_idle { link.idle_reports + 1 } else { 0 };
        if link.idle_reports > IDLE_REPORTS {
            let found = link.idle_reports;
            return Err(LinkEnd::ejected(format!(
                "expected reports of progress, found {found} in a row without any"
            )));
        }
        Ok(())
    }
}
