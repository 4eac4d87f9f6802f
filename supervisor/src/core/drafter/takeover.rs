//! A drafter that an earlier supervisor left: it goes on, whatever the configuration says of
//! starting one, for somebody had started it. Until it has shown who it is, what was planned
//! without it is kept.

use super::{Drafters, Wanted};
use crate::core::seat::Seat;
use crate::core::worker::{EndWhy, Phase};

/// One that was found and has not shown who it is.
#[derive(Clone, Debug)]
pub(super) struct TakeOver {
    seat: Seat,
    wanted: Wanted,
    model: String,
}

impl Drafters {
    /// A process was found in this place before anything was started.
    pub(super) fn found(&mut self, seat: Seat) {
        let worker = |seat: Seat| &self.seats[seat.idx()];
        let Phase::Starting { .. } = worker(seat).phase() else { return };
        match &self.takeover {
            // Two of them: a swap was under way, and its order went with whoever had taken it. The
            // older one served.
            Some(other) if worker(other.seat).last_epoch() < worker(seat).last_epoch() => {}
            Some(_) => self.current = seat,
            None => {
                let model = self.model.clone();
                self.takeover = Some(TakeOver { seat, wanted: self.wanted, model });
                self.current = seat;
                self.wanted = Wanted::Somebody;
            }
        }
        if let Some(takeover) = &mut self.takeover {
            takeover.seat = self.current;
        }
        // Without its name it cannot be started again.
        self.seats[self.current.idx()].live_once(true);
    }

    /// Whether the one that was found has shown who it is.
    pub(super) fn judge_takeover(&mut self) {
        let Some(takeover) = self.takeover.take() else { return };
        let worker = &mut self.seats[takeover.seat.idx()];
        match worker.phase() {
            Phase::Ready { .. } | Phase::Suspect { .. } => {
                worker.live_once(false);
                self.model = worker.model().to_owned();
            }
            Phase::Starting { .. } | Phase::Loading { .. } => self.takeover = Some(takeover),
            Phase::Stopped | Phase::Ending { why: EndWhy::Foreign | EndWhy::Hung(_), .. } => {
                (self.wanted, self.model) = (takeover.wanted, takeover.model);
            }
            // It was sent to rest before it said what it is: nobody could start it again.
            _ if self.model.is_empty() => self.wanted = takeover.wanted,
            // An operator, or the service's end, was faster: what they want holds.
            _ => {}
        }
    }
}
