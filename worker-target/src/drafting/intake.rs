//! What the drafter sends: taken at step borders, a bounded amount at each, and checked against
//! what the target sent.

use paceline_models::{ModelError, Target, transfer};
use paceline_proto::internal::v1::ProposalKind;

use super::line::{Fault, Heard};
use super::{Border, Drafting, News};
use crate::core::{ReportedPosition, SequenceKey};

/// Progress reports in a row that may tell nothing new. An honest drafter reports each step once; a
/// report is stale only if its sequence ended, or started again, while the report was under way.
/// That is a handful of steps.
const IDLE_REPORTS: usize = 256;

impl Drafting {
    /// Takes what the drafter sent since the last border, as far as one border's limit allows.
    ///
    /// # Errors
    /// The target's own: MLX failed.
    pub(crate) fn hear(
        &mut self,
        border: &Border,
        model: &dyn Target,
    ) -> Result<Vec<News>, ModelError> {
        let now = border.now;
        let mut news = vec![];
        if let Some(line) = &mut self.line {
            line.end.limit_intake();
        }
        if let Some(greeting) = &mut self.greeting {
            match greeting.answered(now) {
                Ok(None) => {}
                Ok(Some(welcome)) => {
                    let mask_row = match welcome.proposal() {
                        ProposalKind::Hidden => {
                            transfer::to_bytes(&model.embed(&[welcome.mask_id])?)?
                        }
                        ProposalKind::Tokens | ProposalKind::Unspecified => vec![],
                    };
                    let greeting = self.greeting.take().expect("looked at above");
                    match greeting.into_line(welcome, &mask_row) {
                        Ok(line) => self.switch(line, &mut news),
                        Err(fault) => self.tell(fault),
                    }
                }
                Err(fault) => {
                    self.greeting = None;
                    self.tell(fault);
                }
            }
        }
        while let Some(line) = &mut self.line {
            match line.hear() {
                Ok(None) => break,
                Ok(Some(heard)) => {
                    if let Err(fault) = self.note(heard, border, &mut news) {
                        self.drop_line(fault, &mut news);
                    }
                }
                Err(fault) => self.drop_line(fault, &mut news),
            }
        }
        Ok(news)
    }

    pub(super) fn note(
        &mut self,
        heard: Heard,
        border: &Border,
        news: &mut Vec<News>,
    ) -> Result<(), Fault> {
        match heard {
            Heard::Reach { sessions, missed } => {
                let mut is_idle = true;
                for id in missed {
                    let Some(session) = self.sessions.get_mut(&SequenceKey(id)) else { continue };
                    if session.recall.take().is_none() {
                        return Err(Fault::Ejected(format!(
                            "session {id} was not to begin with anything it has kept"
                        )));
                    }
                    is_idle = false;
                    // It is shown what there is to show, from the beginning of the window.
                    session.reach.start_again();
                    if session.asked.take().is_some() {
                        news.push(News::NoDraft(SequenceKey(id)));
                    }
                }
                for reach in sessions {
                    // Of a sequence that ended meanwhile there is nothing to note.
                    let Some(session) = self.sessions.get_mut(&SequenceKey(reach.session)) else {
                        continue;
                    };
                    match session.reach.report(reach.position as usize) {
                        ReportedPosition::Advanced => is_idle = false,
                        ReportedPosition::Stale => {}
                        ReportedPosition::Impossible => {
                            let what = format!(
                                "session {} was never sent position {}",
                                reach.session, reach.position
                            );
                            return Err(Fault::Ejected(what));
                        }
                    }
                }
                self.count_report(is_idle)?;
            }
            Heard::Drafts { asked, served, left_out } => {
                // Only an open round can be answered, so the number of answers is bounded.
                self.count_report(false)?;
                let (mut in_time, count) = (false, served.len());
                for (id, position, proposed) in served {
                    let key = SequenceKey(id);
                    let Some(session) = self.sessions.get_mut(&key) else { continue };
                    session.reach.report(position as usize);
                    // What is late is for a position that the sequence has left.
                    if session.awaits(position) {
                        session.asked = None;
                        in_time = true;
                        news.push(News::Drafted(key, proposed.len()));
                        session.proposed = Some(proposed);
                    }
                }
                for (id, position) in left_out {
                    let key = SequenceKey(id);
                    // A want that is late was left out because the sequence has gone on.
                    if let Some(session) =
                        self.sessions.get_mut(&key).filter(|session| session.awaits(position))
                    {
                        // Whatever it misses: it gets everything anew.
                        session.asked = None;
                        session.reach.start_again();
                        news.push(News::NoDraft(key));
                    }
                }
                if in_time {
                    let took = self.took(asked, count, border.at_ns);
                    match took.tower {
                        true => self.pace.answered(),
                        false => self.pace.in_time(took.us / 1000),
                    }
                    news.push(News::Took(took));
                }
            }
        }
        Ok(())
    }

    /// Counts a report towards [`IDLE_REPORTS`]; one that tells something new starts the count
    /// again.
    fn count_report(&mut self, is_idle: bool) -> Result<(), Fault> {
        let Some(line) = &mut self.line else { return Ok(()) };
        line.idle_reports = if is_idle { line.idle_reports + 1 } else { 0 };
        if line.idle_reports > IDLE_REPORTS {
            let what = format!(
                "expected reports of progress, found {} in a row without any",
                line.idle_reports
            );
            return Err(Fault::Ejected(what));
        }
        Ok(())
    }
}
