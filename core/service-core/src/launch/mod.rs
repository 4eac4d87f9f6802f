//! Decides when gateway and supervisor are started, restarted and stopped. It never acts: it has no
//! clock and no process.
//!
//! ```text
//! Running ──StopAsked, or a child ended for good──▶ Stopping: the gateway drains, then the
//!   │                                               supervisor ends its workers, then Finish
//!   ├─ a child died: restart at once, then after pauses; with its budget spent it counts as
//!   │  failed and is tried again later, while the other one goes on
//!   ├─ a child gives no sign of life: kill it, which makes it one that died
//!   └─ the gateway wants a successor: see below
//! ```
//!
//! A gateway that is to restart asks for a successor, and serves until that one is ready:
//!
//! ```text
//!  alone ──wanted──▶ the successor starts ──ready──▶ the predecessor drains ──ended──▶ alone
//!    ▲                 │ it ended, or is late          │ late: it is killed
//!    └─ the gateway ───┘                               │ wanted again: the next successor starts
//!       goes on                                        └ after the end of this predecessor
//! ```

use paceline_supervisor_core::worker::{Restart, RestartBudget, RestartPauses};
use paceline_vocabulary::Exit;
use paceline_vocabulary::Millis;

use crate::member::{BOTH, Member};
use crate::watchdog::Watchdog;

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    /// It exited.
    Code(i32),
    /// A signal killed it.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

impl std::fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChildEnd::Code(code) => write!(f, "ended with exit code {code}"),
            ChildEnd::Signal(signal) => write!(f, "was ended by signal {signal}"),
            ChildEnd::NotStarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

/// Events of the supervised processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The service begins.
    Begun,
    /// A child ended.
    Exited(Member, ChildEnd),
    /// A child gave a sign of life.
    Beat(Member),
    /// A child can be used.
    Ready(Member),
    /// A gateway asks for a successor beside it.
    SuccessorWanted(Member),
    /// SIGTERM or Ctrl-C.
    StopAsked,
    /// A deadline of [`Service::next_deadline`] passed.
    Tick,
}

/// Actions for the shell to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start it; how often it was restarted without being asked.
    Start(Member, u32),
    /// SIGTERM.
    Term(Member),
    /// SIGUSR1 to a child that had its SIGTERM. A second SIGTERM might arrive before the child
    /// handles the first, and the system merges both.
    Hurry(Member),
    /// SIGKILL.
    Kill(Member),
    /// The second gateway is the gateway from now on, and the gateway is the second one. The latter
    /// is informed, and drains.
    HandOver,
    /// The second gateway takes the place of the gateway, which has ended.
    Promote,
    /// Inform the gateway that it has no successor.
    Decline,
    /// SIGKILL to the workers, whose supervisor is killed.
    KillWorkers,
    /// Show this note to the person.
    Report(Notice),
    /// End `serve` with this exit code.
    Finish(Exit),
}

/// A note for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A child ended and is started again after this many milliseconds.
    Restarting(Member, ChildEnd, u64),
    /// A child ended and the service ends with it.
    Fatal(Member, ChildEnd),
    /// A child's restart budget is spent: it is down, and tried again after this many milliseconds.
    Failed(Member, ChildEnd, u64),
    /// A new gateway accepts connections, and the earlier one drains.
    HandedOver,
    /// The successor of the gateway ended before it could be used.
    NoSuccessor(ChildEnd),
    /// A child gave no sign of life for too long and is killed.
    Frozen(Member),
    /// The service stops.
    Stopping,
    /// Running requests are cancelled.
    Hurrying,
    /// Everything is killed.
    Killing,
    /// A child did not end in time and is killed.
    Late(Member),
}

/// The gateway lets requests end for 30 s; after this it is stuck.
const GATEWAY_STOP_MS: u64 = 45_000;
/// Time for a successor to be ready, as for the first sign of life of any child.
const SUCCESSOR_START_MS: u64 = 60_000;
/// Pauses before restarts. Shorter than a worker's: gateway and supervisor load no weights.
const RESTART_PAUSES: RestartPauses = RestartPauses { first_ms: 250, longest_ms: 10_000 };
/// A child that ends sooner than this after its start could spin: it spends the budget even if it
/// asks to be restarted.
const SETTLED_MS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Waiting { until: Millis },
    Ended,
}

#[derive(Debug)]
struct ChildState {
    phase: Phase,
    started: Millis,
    /// Restarts without an order, in the service's life.
    restarts: u32,
    budget: RestartBudget,
    termed: bool,
}

/// The gateway beside the one that counts.
#[derive(Clone, Copy, Debug)]
struct SecondGateway {
    stage: SecondStage,
    /// When it counts as stuck; `None` after it was killed for that.
    until: Option<Millis>,
    termed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondStage {
    /// It has started and is not ready yet.
    Successor { started: Millis },
    /// It was replaced, and serves its last requests.
    Predecessor,
}

#[derive(Debug)]
struct Stopping {
    exit: Exit,
    asked: u32,
    /// When the child that is being waited for counts as stuck.
    deadline: Option<(Member, Millis)>,
}

/// The bounds of one service, in milliseconds where the name says so.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How often each child may be started within `period_ms`: the restart with this number is the
    /// one too many.
    pub restarts: u32,
    /// Time over which restarts are counted. A child that ran as long has a full budget again.
    pub period_ms: u64,
    /// Longest pause before a failed supervisor is tried again. It is inside the lease of the
    /// workers, which the next supervisor takes over.
    pub supervisor_retry_ms: u64,
    /// The supervisor, which waits for its workers, is stuck if it takes longer to stop.
    pub supervisor_stop_ms: u64,
    /// A child without a sign of life for this time is frozen.
    pub frozen_ms: u64,
}

/// Gateway and supervisor, from the first start to the last exit.
#[derive(Debug)]
pub struct Service {
    bounds: Bounds,
    children: [ChildState; 2],
    second: Option<SecondGateway>,
    /// The gateway wants a successor, which starts when the second gateway is gone.
    wants_successor: bool,
    watchdog: Watchdog,
    stopping: Option<Stopping>,
}

impl Service {
    /// A service of which nothing runs yet.
    pub fn new(bounds: Bounds) -> Self {
        let Bounds { restarts, period_ms, frozen_ms, .. } = bounds;
        let child = || ChildState {
            phase: Phase::Ended,
            started: Millis(0),
            restarts: 0,
            // The restart with number `budget` is the one too many; asked starts do not count.
            budget: RestartBudget::new(restarts.saturating_sub(1), period_ms, RESTART_PAUSES),
            termed: false,
        };
        let children = [child(), child()];
        Self {
            bounds,
            children,
            second: None,
            wants_successor: false,
            watchdog: Watchdog::new(frozen_ms),
            stopping: None,
        }
    }

    /// Handles an event and returns what to do.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut actions = Vec::new();
        self.watchdog.ran(now);
        match event {
            Event::Begun => {
                BOTH.into_iter().for_each(|member| self.start(member, now, &mut actions))
            }
            Event::Exited(Member::SecondGateway, end) => self.second_ended(end, now, &mut actions),
            Event::Exited(member, end) => {
                self.child(member).phase = Phase::Ended;
                self.watchdog.forget(member);
                match self.stopping {
                    Some(_) => self.go_on_stopping(now, &mut actions),
                    None => self.lost(member, end, now, &mut actions),
                }
            }
            // The second gateway has a bound of its own.
            Event::Beat(Member::SecondGateway) => {}
            Event::Beat(member) => self.watchdog.beat(member, now),
            Event::Ready(member) => self.ready(member, now, &mut actions),
            Event::SuccessorWanted(_) => self.successor_wanted(now, &mut actions),
            Event::StopAsked => self.asked(now, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    /// When a [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.next_step().into_iter().chain(self.watchdog.next_tick()).min()
    }

    /// When a child is started again, or counts as stuck.
    fn next_step(&self) -> Option<Millis> {
        let waiting = self.children.iter().filter_map(|child| match child.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        });
        waiting
            .chain(self.second.and_then(|second| second.until))
            .chain(self.stopping.iter().filter_map(|stopping| stopping.deadline.map(|(_, at)| at)))
            .min()
    }

    fn child(&mut self, member: Member) -> &mut ChildState {
        &mut self.children[member.place()]
    }

    fn running(&self, member: Member) -> bool {
        self.children[member.place()].phase == Phase::Running
    }

    fn start(&mut self, member: Member, now: Millis, actions: &mut Vec<Action>) {
        let child = self.child(member);
        (child.phase, child.started, child.termed) = (Phase::Running, now, false);
        actions.push(Action::Start(member, child.restarts));
        self.watchdog.started(member, now);
    }

    /// A child ended although this service was not asked to stop.
    fn lost(&mut self, member: Member, end: ChildEnd, now: Millis, actions: &mut Vec<Action>) {
        let fatal = [Exit::Config, Exit::Unavailable, Exit::MemoryStranded]
            .into_iter()
            .find(|exit| end == ChildEnd::Code(*exit as i32));
        if let Some(exit) = fatal {
            actions.push(Action::Report(Notice::Fatal(member, end)));
            return self.stop(exit, now, actions);
        }
        if end == ChildEnd::Code(Exit::Asked as i32) {
            // An operator or the system asked it to stop. Serving without it makes no sense, and
            // starting it again is not what was asked.
            actions.push(Action::Report(Notice::Fatal(member, end)));
            return self.stop(Exit::Asked, now, actions);
        }
        let planned = end == ChildEnd::Code(Exit::RestartMe as i32);
        if member == Member::Gateway {
            self.wants_successor = false;
            if let Some(SecondGateway { stage: SecondStage::Successor { started }, .. }) =
                self.second
            {
                self.child(member).restarts += u32::from(!planned);
                actions.push(Action::Promote);
                actions.push(Action::Report(Notice::Restarting(member, end, 0)));
                return self.take_place(started, now);
            }
        }
        if planned && now.since(self.child(member).started) >= SETTLED_MS {
            self.child(member).budget.clear();
            actions.push(Action::Report(Notice::Restarting(member, end, 0)));
            return self.start(member, now, actions);
        }
        self.child(member).restarts += u32::from(!planned);
        let (pause, notice) = match self.spend(member, now) {
            Restart::At(at) => {
                let pause = at.since(now);
                (pause, Notice::Restarting(member, end, pause))
            }
            Restart::Exhausted { retry } => {
                let longest = match member {
                    Member::Supervisor => self.bounds.supervisor_retry_ms,
                    Member::Gateway | Member::SecondGateway => u64::MAX,
                };
                let pause = retry.since(now).min(longest);
                (pause, Notice::Failed(member, end, pause))
            }
        };
        actions.push(Action::Report(notice));
        match pause {
            0 => self.start(member, now, actions),
            _ => self.child(member).phase = Phase::Waiting { until: now + pause },
        }
    }

    /// The successor, which started then, is the gateway from now on.
    fn take_place(&mut self, started: Millis, now: Millis) {
        self.second = None;
        let gateway = self.child(Member::Gateway);
        (gateway.phase, gateway.started, gateway.termed) = (Phase::Running, started, false);
        gateway.budget.clear();
        self.watchdog.started(Member::Gateway, now);
    }

    /// A gateway asks for a successor.
    fn successor_wanted(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.stopping.is_some() || !self.running(Member::Gateway) {
            return;
        }
        if self.second.is_some() {
            self.wants_successor = true;
            return;
        }
        self.wants_successor = false;
        self.second = Some(SecondGateway {
            stage: SecondStage::Successor { started: now },
            until: Some(now + SUCCESSOR_START_MS),
            termed: false,
        });
        let restarts = self.child(Member::Gateway).restarts;
        actions.push(Action::Start(Member::SecondGateway, restarts));
    }

    /// A child is ready: if that is the successor, the gateway is its predecessor from now on.
    fn ready(&mut self, member: Member, now: Millis, actions: &mut Vec<Action>) {
        if member != Member::SecondGateway {
            return self.watchdog.beat(member, now);
        }
        let Some(SecondGateway { stage: SecondStage::Successor { started }, .. }) = self.second
        else {
            return;
        };
        if self.stopping.is_some() || !self.running(Member::Gateway) {
            return;
        }
        self.take_place(started, now);
        self.second = Some(SecondGateway {
            stage: SecondStage::Predecessor,
            until: Some(now + GATEWAY_STOP_MS),
            termed: false,
        });
        actions.extend([Action::HandOver, Action::Report(Notice::HandedOver)]);
    }

    /// The second gateway ended.
    fn second_ended(&mut self, end: ChildEnd, now: Millis, actions: &mut Vec<Action>) {
        let second = self.second.take();
        if self.stopping.is_some() {
            return self.go_on_stopping(now, actions);
        }
        match second.map(|second| second.stage) {
            Some(SecondStage::Successor { .. }) => {
                self.wants_successor = false;
                actions.extend([Action::Decline, Action::Report(Notice::NoSuccessor(end))]);
            }
            Some(SecondStage::Predecessor) if self.wants_successor => {
                self.successor_wanted(now, actions);
            }
            Some(SecondStage::Predecessor) | None => {}
        }
    }

    /// Takes the next restart from the budget.
    fn spend(&mut self, member: Member, now: Millis) -> Restart {
        let period_ms = self.bounds.period_ms;
        let child = self.child(member);
        let lasted = now.since(child.started);
        if lasted >= period_ms {
            child.budget.clear();
        }
        let restart = child.budget.spend(lasted >= SETTLED_MS, now);
        if let Restart::At(_) = restart {
            child.budget.started(true, now);
        }
        restart
    }

    fn stop(&mut self, exit: Exit, now: Millis, actions: &mut Vec<Action>) {
        for child in &mut self.children {
            if matches!(child.phase, Phase::Waiting { .. }) {
                child.phase = Phase::Ended;
            }
        }
        // From here on each child has a time within which it must end.
        BOTH.into_iter().for_each(|member| self.watchdog.forget(member));
        self.wants_successor = false;
        if let Some(SecondGateway { until: Some(until), .. }) = &mut self.second {
            *until = (*until).min(now + GATEWAY_STOP_MS);
        }
        self.stopping = Some(Stopping { exit, asked: 0, deadline: None });
        self.go_on_stopping(now, actions);
    }

    /// The gateways first, so that their requests can end; then the supervisor, which ends its
    /// workers.
    fn go_on_stopping(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if let Some(second) = &mut self.second
            && !std::mem::replace(&mut second.termed, true)
        {
            actions.push(Action::Term(Member::SecondGateway));
        }
        let next = [
            (Member::Gateway, GATEWAY_STOP_MS),
            (Member::Supervisor, self.bounds.supervisor_stop_ms),
        ];
        // The second gateway has a time of its own.
        let is_alone = self.second.is_none();
        let waiting = next
            .into_iter()
            .find(|(member, _)| self.running(*member) && (*member == Member::Gateway || is_alone));
        if let Some((member, _)) = waiting
            && !self.child(member).termed
        {
            self.child(member).termed = true;
            actions.push(Action::Term(member));
        }
        let Some(stopping) = &mut self.stopping else { return };
        match waiting {
            Some((member, patience))
                if stopping.deadline.is_none_or(|(other, _)| other != member) =>
            {
                stopping.deadline = Some((member, now + patience));
            }
            Some(_) => {}
            None if !is_alone => stopping.deadline = None,
            None => {
                stopping.deadline = None;
                actions.push(Action::Finish(stopping.exit));
            }
        }
    }

    fn asked(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.stopping.is_none() {
            actions.push(Action::Report(Notice::Stopping));
            self.stop(Exit::Asked, now, actions);
        }
        let Some(stopping) = &mut self.stopping else { return };
        stopping.asked += 1;
        match stopping.asked {
            1 => {}
            2 => {
                actions.push(Action::Report(Notice::Hurrying));
                for member in self.all_running() {
                    let termed = match (member, &mut self.second) {
                        (Member::SecondGateway, Some(second)) => &mut second.termed,
                        _ => &mut self.child(member).termed,
                    };
                    let again = std::mem::replace(termed, true);
                    actions.push(if again { Action::Hurry(member) } else { Action::Term(member) });
                }
            }
            _ => {
                actions.push(Action::Report(Notice::Killing));
                actions.extend(self.all_running().into_iter().map(Action::Kill));
                actions.push(Action::KillWorkers);
            }
        }
    }

    /// The children that run.
    fn all_running(&self) -> Vec<Member> {
        let second = self.second.map(|_| Member::SecondGateway);
        BOTH.into_iter().filter(|member| self.running(*member)).chain(second).collect()
    }

    fn tick(&mut self, now: Millis, actions: &mut Vec<Action>) {
        for member in BOTH {
            if matches!(self.child(member).phase, Phase::Waiting { until } if until <= now) {
                self.start(member, now, actions);
            }
        }
        for member in self.watchdog.frozen(now) {
            // Its exit is the next event. No SIGTERM: a stopped process would not receive it, and a
            // supervisor that wakes would end its workers, which the next one takes over.
            self.watchdog.forget(member);
            actions.extend([Action::Report(Notice::Frozen(member)), Action::Kill(member)]);
        }
        if let Some(second) = &mut self.second
            && second.until.is_some_and(|until| until <= now)
        {
            // Its exit is the next event.
            second.until = None;
            if second.stage == SecondStage::Predecessor || self.stopping.is_some() {
                actions.push(Action::Report(Notice::Late(Member::SecondGateway)));
            }
            actions.push(Action::Kill(Member::SecondGateway));
        }
        if let Some(stopping) = &mut self.stopping
            && let Some((member, at)) = stopping.deadline
            && at <= now
        {
            // Its exit is the next event. A killed supervisor's workers are ended after both
            // children.
            stopping.deadline = Some((member, Millis(u64::MAX)));
            actions.extend([Action::Report(Notice::Late(member)), Action::Kill(member)]);
        }
    }
}

#[cfg(test)]
mod tests;
