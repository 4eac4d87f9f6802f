//! How a gateway ends: the decisions, without clock, signal or task (I10).
//!
//! ```text
//! Serving ──restart asked──▶ Awaiting ──successor ready──▶ Draining ──deadline──▶ Cancelling
//!   │ ▲                        │                             ▲  │     or asked again   │
//!   │ └── successor failed ────┘                             │  └──── idle ──▶ Over ◀──┘
//!   └──── stop asked, or a restart without a successor ──────┘        idle, deadline, asked again
//! ```
//!
//! A gateway that drains in order to *stop* refuses new requests. One that drains in order to
//! *restart* leaves: it accepts no further connection, and serves the requests of those it has,
//! because its successor serves the others, or they wait at the sockets for it.

use std::time::Duration;

use paceline_vocabulary::Exit;
use paceline_vocabulary::Millis;

/// Running requests get this long after the first request to stop.
const DRAIN: Duration = Duration::from_secs(30);
/// Time for running requests after the parent process is gone. It is short, because a new parent
/// waits for the addresses of the ports.
const ORPHAN_DRAIN: Duration = Duration::from_secs(4);
/// After this, a request that was cancelled and has not ended (its client does not read) is cut.
const CANCEL: Duration = Duration::from_secs(1);

/// Longest wait for a successor. A start takes a second, and at most a minute; before it an earlier
/// gateway may drain for 45 s. After it this gateway ends without a successor, as its manager may
/// not know how to start one.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(120);

/// How a gateway that is to restart is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// By a successor that is started beside it.
    Beside,
    /// After its end. Another process holds the listening sockets, where connections wait.
    Afterwards,
    /// After its end, together with its listening sockets.
    #[default]
    WithSockets,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal asked to stop.
    StopAsked,
    /// The process that started us is gone.
    ParentGone,
    /// The supervisor ordered a restart; what running requests get, if not the usual time.
    RestartAsked(Option<Duration>),
    /// The successor accepts connections.
    SuccessorReady,
    /// There is no successor: it could not be started, or ended before it accepted.
    SuccessorFailed,
    /// No request is running, and for a gateway that leaves no connection is open.
    Idle,
    /// The deadline came.
    Tick,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have a successor started, and serve meanwhile.
    AskForSuccessor,
    /// Serve on: there is no successor.
    Stay,
    /// Accept no further connection, and close those that are open after their requests.
    Leave,
    /// Take no further request.
    Refuse,
    /// End every running request.
    Cancel,
    /// Close connections and end.
    End(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Awaiting {
        until: Millis,
    },
    /// `asked`: by a person, so the next time means cancel.
    Draining {
        until: Millis,
        exit: Exit,
        asked: bool,
    },
    Cancelling {
        until: Millis,
        exit: Exit,
    },
    Over,
}

/// Where a gateway stands on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    replacement: Replacement,
    phase: Phase,
}

impl Ending {
    /// A gateway that serves.
    pub fn new(replacement: Replacement) -> Self {
        Self { replacement, phase: Phase::Serving }
    }

    /// How a gateway begins to drain that is to restart.
    fn depart(&self) -> Action {
        match self.replacement {
            Replacement::Beside | Replacement::Afterwards => Action::Leave,
            // Connections that waited would break with the socket.
            Replacement::WithSockets => Action::Refuse,
        }
    }

    /// The action for this event, if there is one.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Option<Action> {
        let (phase, action) = match self.phase {
            Phase::Serving | Phase::Awaiting { .. } => self.while_serving(event, now)?,
            Phase::Draining { .. } | Phase::Cancelling { .. } => self.while_ending(event, now)?,
            Phase::Over => return None,
        };
        self.phase = phase;
        Some(action)
    }

    /// The next phase of a gateway that serves.
    fn while_serving(&self, event: Event, now: Millis) -> Option<(Phase, Action)> {
        let draining = |pause: Duration, exit: Exit, asked: bool| {
            let until = now + pause.as_millis() as u64;
            Phase::Draining { until, exit, asked }
        };
        let restarting = |pause: Duration| draining(pause, Exit::RestartMe, false);
        Some(match (self.phase, event) {
            (_, Event::StopAsked) => (draining(DRAIN, Exit::Asked, true), Action::Refuse),
            (_, Event::ParentGone) => (draining(ORPHAN_DRAIN, Exit::Asked, false), Action::Refuse),
            (_, Event::RestartAsked(Some(grace))) => (restarting(grace), self.depart()),
            (Phase::Serving, Event::RestartAsked(None)) => match self.replacement {
                Replacement::Beside => {
                    let until = now + SUCCESSOR_TIMEOUT.as_millis() as u64;
                    (Phase::Awaiting { until }, Action::AskForSuccessor)
                }
                Replacement::Afterwards | Replacement::WithSockets => {
                    (restarting(DRAIN), self.depart())
                }
            },
            (Phase::Awaiting { .. }, Event::SuccessorReady) => (restarting(DRAIN), Action::Leave),
            (Phase::Awaiting { .. }, Event::SuccessorFailed) => (Phase::Serving, Action::Stay),
            (Phase::Awaiting { until }, Event::Tick) if now >= until => {
                (restarting(DRAIN), self.depart())
            }
            // Idle while serving, orders that are being carried out: nothing to do.
            _ => return None,
        })
    }

    /// The next phase of a gateway that drains or cancels.
    fn while_ending(&self, event: Event, now: Millis) -> Option<(Phase, Action)> {
        let after = |pause: Duration| now + pause.as_millis() as u64;
        Some(match (self.phase, event) {
            // Asked again, in more of a hurry.
            (Phase::Draining { until, exit, asked }, Event::RestartAsked(Some(grace)))
                if after(grace) < until =>
            {
                let action = if exit == Exit::RestartMe { self.depart() } else { Action::Refuse };
                (Phase::Draining { until: after(grace), exit, asked }, action)
            }
            // A stop overrides a restart. So does the end of the parent, which would restart us.
            (Phase::Draining { until, asked: false, .. }, Event::StopAsked) => {
                (Phase::Draining { until, exit: Exit::Asked, asked: true }, Action::Refuse)
            }
            (Phase::Draining { until, asked, .. }, Event::ParentGone) => (
                Phase::Draining { until: until.min(after(ORPHAN_DRAIN)), exit: Exit::Asked, asked },
                Action::Refuse,
            ),
            (Phase::Draining { exit, .. }, Event::StopAsked) => {
                (Phase::Cancelling { until: after(CANCEL), exit }, Action::Cancel)
            }
            (Phase::Draining { until, exit, .. }, Event::Tick) if now >= until => {
                (Phase::Cancelling { until: after(CANCEL), exit }, Action::Cancel)
            }
            (Phase::Draining { exit, .. } | Phase::Cancelling { exit, .. }, Event::Idle) => {
                (Phase::Over, Action::End(exit))
            }
            (Phase::Cancelling { exit, .. }, Event::StopAsked) => (Phase::Over, Action::End(exit)),
            (Phase::Cancelling { until, exit }, Event::Tick) if now >= until => {
                (Phase::Over, Action::End(exit))
            }
            _ => return None,
        })
    }

    /// When a [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::Awaiting { until }
            | Phase::Draining { until, .. }
            | Phase::Cancelling { until, .. } => Some(until),
            Phase::Serving | Phase::Over => None,
        }
    }

    /// Whether the end has begun: from then on idleness matters.
    pub fn begun(&self) -> bool {
        !matches!(self.phase, Phase::Serving | Phase::Awaiting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Action::*;
    use Event::*;

    /// Events at seconds, each with what is to be done.
    #[track_caller]
    fn check(schedule: &[(u64, Event, Option<Action>)]) {
        check_with(Replacement::WithSockets, schedule);
    }

    #[track_caller]
    fn check_with(replacement: Replacement, schedule: &[(u64, Event, Option<Action>)]) {
        let mut ending = Ending::new(replacement);
        for (second, event, expected) in schedule {
            assert_eq!(
                ending.on_event(*event, Millis(second * 1000)),
                *expected,
                "{second} s {event:?}"
            );
        }
    }

    #[test]
    fn running_requests_get_their_time() {
        check(&[
            (0, Idle, None),
            (1, StopAsked, Some(Refuse)),
            (5, Tick, None),
            (9, Idle, Some(End(Exit::Asked))),
        ]);
        check(&[
            (1, StopAsked, Some(Refuse)),
            (31, Tick, Some(Cancel)),
            (31, Idle, Some(End(Exit::Asked))),
        ]);
        check(&[
            (1, StopAsked, Some(Refuse)),
            (31, Tick, Some(Cancel)),
            (32, Tick, Some(End(Exit::Asked))),
            (33, StopAsked, None),
        ]);
    }

    #[test]
    fn a_second_stop_cancels_and_a_third_ends() {
        check(&[
            (1, StopAsked, Some(Refuse)),
            (2, StopAsked, Some(Cancel)),
            (2, StopAsked, Some(End(Exit::Asked))),
        ]);
    }

    #[test]
    fn a_restart_drains_and_a_stop_overrules_it() {
        let (usual, soon) = (RestartAsked(None), RestartAsked(Some(Duration::from_secs(2))));
        check(&[(1, usual, Some(Refuse)), (2, usual, None), (3, Idle, Some(End(Exit::RestartMe)))]);
        check(&[
            (1, usual, Some(Refuse)),
            (2, StopAsked, Some(Refuse)),
            (3, Idle, Some(End(Exit::Asked))),
        ]);
        check(&[(1, StopAsked, Some(Refuse)), (2, usual, None), (3, Idle, Some(End(Exit::Asked)))]);
        check(&[
            (1, soon, Some(Refuse)),
            (3, Tick, Some(Cancel)),
            (3, Idle, Some(End(Exit::RestartMe))),
        ]);
        check(&[
            (1, usual, Some(Refuse)),
            (2, soon, Some(Refuse)),
            (4, Tick, Some(Cancel)),
            (5, Tick, Some(End(Exit::RestartMe))),
        ]);
    }

    #[test]
    fn a_gateway_serves_until_its_successor_accepts_then_leaves() {
        let asked = (1, RestartAsked(None), Some(AskForSuccessor));
        let beside = |rest: &[(u64, Event, Option<Action>)]| {
            check_with(Replacement::Beside, &[&[asked], rest].concat());
        };
        // The drain begins with the successor.
        beside(&[
            (1, Idle, None),
            (2, RestartAsked(None), None),
            (5, SuccessorReady, Some(Leave)),
            (34, Tick, None),
            (35, Tick, Some(Cancel)),
            (35, Idle, Some(End(Exit::RestartMe))),
        ]);
        // A successor that fails changes nothing, and the next order asks for another one.
        beside(&[(2, SuccessorFailed, Some(Stay)), (3, Idle, None), asked]);
        // A successor that fails later is the manager's concern.
        beside(&[
            (2, SuccessorReady, Some(Leave)),
            (3, SuccessorFailed, None),
            (4, Idle, Some(End(Exit::RestartMe))),
        ]);
    }

    #[test]
    fn a_gateway_without_a_successor_ends_before_the_next_one_starts() {
        let soon = RestartAsked(Some(Duration::from_secs(2)));
        // The manager does not answer.
        check_with(
            Replacement::Beside,
            &[
                (1, RestartAsked(None), Some(AskForSuccessor)),
                (120, Tick, None),
                (121, Tick, Some(Leave)),
                (122, SuccessorReady, None),
                (123, Idle, Some(End(Exit::RestartMe))),
            ],
        );
        // In a hurry there is no time for one.
        for first in [None, Some((1, RestartAsked(None), Some(AskForSuccessor)))] {
            let rest = [(2, soon, Some(Leave)), (4, Tick, Some(Cancel))];
            let all: Vec<_> = first.into_iter().chain(rest).collect();
            check_with(Replacement::Beside, &all);
        }
        check_with(
            Replacement::Afterwards,
            &[(1, RestartAsked(None), Some(Leave)), (2, Idle, Some(End(Exit::RestartMe)))],
        );
    }

    #[test]
    fn a_stop_overrules_a_restart_that_awaits_its_successor() {
        for (asked, until) in [(StopAsked, 32), (ParentGone, 6)] {
            check_with(
                Replacement::Beside,
                &[
                    (1, RestartAsked(None), Some(AskForSuccessor)),
                    (2, asked, Some(Refuse)),
                    (3, SuccessorReady, None),
                    (until, Tick, Some(Cancel)),
                    (until, Idle, Some(End(Exit::Asked))),
                ],
            );
        }
    }

    #[test]
    fn an_orphan_ends_within_five_seconds() {
        check(&[
            (1, ParentGone, Some(Refuse)),
            (5, Tick, Some(Cancel)),
            (6, Tick, Some(End(Exit::Asked))),
        ]);
        check(&[
            (1, StopAsked, Some(Refuse)),
            (2, ParentGone, Some(Refuse)),
            (6, Tick, Some(Cancel)),
        ]);
    }
}
