//! Bugs planted around the core, to show that the simulations catch them. [`FaultySupervisor`]
//! loses or alters events on their way in and actions on their way out; the core itself is the one
//! that is shipped.

use std::ops::Deref;

use paceline_vocabulary::{Epoch, Exit, KeyId, Lane, Millis, Permit, RouteReason, Term};

use crate::denial::Denial;
use crate::drafter::DrafterPlan;
use crate::routing::DrafterState;
use crate::{Action, Event, Settings, Supervisor, Ticket, WorkerId, worker};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// After one loss of the drafter, requests are routed as if it were lost for ever.
    StickyFallback,
    /// A request that waits when the target ends never gets its status.
    LostStatus,
    /// An event of an earlier epoch of a worker is taken for an event of the present one.
    OldEpoch,
    /// A permit that did not reach the target is taken for one that did.
    LostPermit,
    /// Waiting requests are admitted in the order of their arrival, whatever their keys run.
    UnfairTurn,
    /// A refusal of the model's files is taken for another failure of a start.
    MissedRefusal,
}

/// A core with at most one bug planted around it.
#[derive(Debug)]
pub(crate) struct FaultySupervisor {
    core: Supervisor,
    bug: Option<Bug>,
    /// The drafter was lost at some time.
    fell_back: bool,
}

impl Deref for FaultySupervisor {
    type Target = Supervisor;

    fn deref(&self) -> &Supervisor {
        &self.core
    }
}

impl FaultySupervisor {
    /// A core; `None` plants nothing.
    pub(crate) fn new(settings: Settings, plan: DrafterPlan, term: Term, bug: Option<Bug>) -> Self {
        let core = Supervisor::new(settings, plan, term);
        Self { core, bug, fell_back: false }
    }

    /// The planted bug.
    pub(crate) fn bug(&self) -> Option<Bug> {
        self.bug
    }

    /// As [`Supervisor::on_event`], with the bug.
    pub(crate) fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let submitted = match &event {
            Event::Submitted { ticket, .. } => Some(*ticket),
            _ => None,
        };
        let event = self.alter_event(event);
        let actions = self.core.on_event(event, now);
        self.fell_back |= self.core.drafters().state() == DrafterState::Suspect;
        actions.into_iter().filter_map(|action| self.alter_action(action, submitted)).collect()
    }

    fn alter_event(&self, event: Event) -> Event {
        let refused = worker::WorkerExit::Code(Exit::ModelRefused as i32);
        let is_refusal = matches!(
            &event,
            Event::Worker(_, worker::Event::Exited { exit, .. }) if *exit == refused
        );
        match (self.bug, event) {
            (Some(Bug::OldEpoch), Event::Worker(id, event)) => {
                let worker = match id {
                    WorkerId::Target => self.core.target(),
                    WorkerId::Drafter(slot) => self.core.drafters().slot(slot),
                };
                let present = worker.life().map(|life| life.epoch);
                Event::Worker(id, present.map_or(event.clone(), |epoch| of_epoch(event, epoch)))
            }
            (Some(Bug::LostPermit), Event::Repermitted { epoch, .. }) => {
                Event::Repermitted { epoch, missed: Vec::new() }
            }
            // The keys are not told apart.
            (Some(Bug::UnfairTurn), Event::Submitted { ticket, mut summary }) => {
                summary.key = KeyId::NONE;
                Event::Submitted { ticket, summary }
            }
            (
                Some(Bug::MissedRefusal),
                Event::Worker(id, worker::Event::Exited { epoch, log, .. }),
            ) if is_refusal => {
                let exit = worker::WorkerExit::Code(Exit::Bug as i32);
                Event::Worker(id, worker::Event::Exited { epoch, exit, log })
            }
            (_, event) => event,
        }
    }

    /// `submitted`: the request that arrived with this event.
    fn alter_action(&mut self, action: Action, submitted: Option<Ticket>) -> Option<Action> {
        match (self.bug, action) {
            (Some(Bug::LostStatus), Action::Deny { ticket, denial: Denial::Outage { .. } })
                if submitted != Some(ticket) =>
            {
                None
            }
            (Some(Bug::StickyFallback), Action::Admit { ticket, epoch, permit, queued_ms })
                if self.fell_back =>
            {
                let permit = fallback(permit);
                Some(Action::Admit { ticket, epoch, permit, queued_ms })
            }
            (Some(Bug::StickyFallback), Action::Repermit { epoch, changes }) if self.fell_back => {
                let changes =
                    changes.into_iter().map(|(ticket, permit)| (ticket, fallback(permit)));
                Some(Action::Repermit { epoch, changes: changes.collect() })
            }
            (_, action) => Some(action),
        }
    }
}

fn fallback(permit: Permit) -> Permit {
    match permit.lane {
        Lane::Plain => permit,
        Lane::Speculative => Permit {
            lane: Lane::Plain,
            max_draft: 0,
            reason: RouteReason::DrafterSuspect,
            ..permit
        },
    }
}

fn of_epoch(mut event: worker::Event, present: Epoch) -> worker::Event {
    use worker::Event;
    match &mut event {
        Event::Heartbeat(heartbeat) => heartbeat.epoch = present,
        Event::Described { epoch, .. }
        | Event::DescribeFailed { epoch }
        | Event::Foreign { epoch, .. }
        | Event::StopAnswered { epoch, .. }
        | Event::Frozen { epoch }
        | Event::Condemned { epoch, .. }
        | Event::Exited { epoch, .. } => *epoch = present,
        _ => {}
    }
    event
}
