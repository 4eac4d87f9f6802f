//! How a gateway ends: the decisions, without clock, signal or task (I10).
//!
//! `Serving` -stop/restart asked-> `Draining` -deadline, or asked again-> `Cancelling` -deadline,
//! or asked again-> over; both are over at once when the last request has ended.

use std::time::Duration;

use paceline_process::Exit;
use paceline_vocabulary::Millis;

/// Running requests get this long after the first request to stop.
const DRAIN: Duration = Duration::from_secs(30);
/// Time for running requests after the parent process is gone. It is short, because only a new
/// parent can start the next gateway, and that gateway waits for this one to end.
const ORPHAN_DRAIN: Duration = Duration::from_secs(4);
/// After this, a request that was cancelled and has not ended (its client does not read) is cut.
const CANCEL: Duration = Duration::from_secs(1);

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal asked to stop.
    StopAsked,
    /// The process that started us is gone.
    ParentGone,
    /// The supervisor ordered a restart; what running requests get, if not the usual time.
    RestartAsked(Option<Duration>),
    /// No request is running.
    Idle,
    /// The deadline came.
    Tick,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take nothing new.
    Refuse,
    /// End every running request.
    Cancel,
    /// Close connections and end.
    End(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
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
pub struct Ending(Phase);

impl Default for Ending {
    fn default() -> Self {
        Self(Phase::Serving)
    }
}

impl Ending {
    /// The action for this event, if there is one.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Option<Action> {
        let after = |pause: Duration| now + pause.as_millis() as u64;
        let (phase, action) = match (self.0, event) {
            (Phase::Serving, Event::StopAsked) => (
                Phase::Draining { until: after(DRAIN), exit: Exit::Asked, asked: true },
                Action::Refuse,
            ),
            (Phase::Serving, Event::ParentGone) => (
                Phase::Draining { until: after(ORPHAN_DRAIN), exit: Exit::Asked, asked: false },
                Action::Refuse,
            ),
            (Phase::Serving, Event::RestartAsked(grace)) => {
                let until = after(grace.unwrap_or(DRAIN));
                (Phase::Draining { until, exit: Exit::RestartMe, asked: false }, Action::Refuse)
            }
            // Asked again, in more of a hurry.
            (Phase::Draining { until, exit, asked }, Event::RestartAsked(Some(grace)))
                if after(grace) < until =>
            {
                (Phase::Draining { until: after(grace), exit, asked }, Action::Refuse)
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
            // Idle while serving, orders while ending: nothing to do.
            _ => return None,
        };
        self.0 = phase;
        Some(action)
    }

    /// When a [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.0 {
            Phase::Draining { until, .. } | Phase::Cancelling { until, .. } => Some(until),
            Phase::Serving | Phase::Over => None,
        }
    }

    /// Whether the end has begun: from then on idleness matters.
    pub fn begun(&self) -> bool {
        self.0 != Phase::Serving
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
        let mut ending = Ending::default();
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
