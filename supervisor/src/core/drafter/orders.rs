//! What operators order, and when an order is carried out. A call that is given up leaves its order
//! standing.

use paceline_proto::status::Reason;
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

use super::{Action, Around, Drafters, Incoming, Wanted};
use crate::core::denial::Refused;
use crate::core::seat::Seat;
use crate::core::worker::{self, EndWhy, Phase};

/// Calls that may wait at once (I6).
const CALLS: usize = 64;

/// An operator's call, numbered by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call(pub u64);

/// What is ordered. Directories are absolute; an empty one is that of the current drafter, or of
/// the last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are as said above")]
pub enum Order {
    /// One is to run.
    Start { model: String },
    /// None is to run.
    Stop,
    /// Another is to take over.
    Swap { model: String },
    /// The one that runs is ended and started again.
    Renew,
}

impl Order {
    /// In words, for the events.
    pub fn words(&self) -> String {
        let with = |verb: &str, model: &str| {
            if model.is_empty() { verb.to_owned() } else { format!("{verb} {model}") }
        };
        match self {
            Order::Start { model } => with("start", model),
            Order::Stop => "stop".to_owned(),
            Order::Swap { model } => with("swap", model),
            Order::Renew => "restart".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Up,
    Gone,
    Swapped,
    Replaced(Seat),
    /// Up, in a later life than this.
    Renewed(Epoch),
}

/// A call whose order is not carried out yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    call: Call,
    goal: Goal,
}

impl Drafters {
    /// An operator's order.
    pub fn on_order(
        &mut self,
        call: Call,
        order: Order,
        serving: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let taken = match order {
            _ if self.calls.len() >= CALLS => {
                let message =
                    format!("{CALLS} orders are being carried out already; try again in 1 s");
                Err(Refused::new(Reason::QueueFull, message))
            }
            _ if !serving => Err(Refused::new(Reason::Draining, "the service is stopping")),
            Order::Start { .. } | Order::Swap { .. } | Order::Renew if self.takeover.is_some() => {
                let message =
                    "the drafter of an earlier supervisor is being taken over; try again in 1 s";
                Err(Refused::new(Reason::DrafterLoading, message))
            }
            Order::Start { model } => self.start(model, now, out),
            Order::Stop => Ok(self.stop(out)),
            Order::Swap { model } => self.swap(model),
            Order::Renew => self.renew(now, out),
        };
        match taken {
            Ok(goal) => self.calls.push(Waiting { call, goal }),
            Err(refused) => out.push(Action::Answer { call, outcome: Err(refused) }),
        }
    }

    fn start(
        &mut self,
        model: String,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Result<Goal, Refused> {
        let state = |message: String| Err(Refused::new(Reason::DrafterState, message));
        if self.incoming.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter".to_owned());
        }
        let model = if model.is_empty() { self.model.clone() } else { model };
        if model.is_empty() {
            return state("no drafter is configured; name its directory (--model)".to_owned());
        }
        let falls =
            matches!(self.current().phase(), Phase::BackingOff { .. } | Phase::Failed { .. });
        let runs = self.wanted == Wanted::Somebody
            && self.misfit.is_none()
            && self.lifetime.rest().is_none()
            && !falls;
        if runs && model != self.model {
            return state(format!(
                "{} runs as the drafter; swap it for {model}, or stop it first",
                self.model
            ));
        }
        self.model = model;
        self.wanted = Wanted::Somebody;
        self.lifetime.begin_anew();
        self.misfit = None;
        let current = self.current;
        match falls {
            // Otherwise it runs, or is started as soon as its place is free.
            true => {
                self.seats[current.idx()].live_once(false);
                self.on_worker(
                    current,
                    worker::Event::StartAsked { model: self.model.clone() },
                    now,
                    out,
                );
            }
            false => self.seats[current.idx()].clear_budget(),
        }
        Ok(Goal::Up)
    }

    fn renew(&mut self, now: Millis, out: &mut Vec<Action>) -> Result<Goal, Refused> {
        let state = |message: &str| Err(Refused::new(Reason::DrafterState, message));
        if self.incoming.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter");
        }
        if self.wanted != Wanted::Somebody {
            return state("no drafter runs that could be restarted; start one");
        }
        let falls =
            matches!(self.current().phase(), Phase::BackingOff { .. } | Phase::Failed { .. });
        if falls || self.misfit.is_some() || self.lifetime.rest().is_some() {
            return self.start(String::new(), now, out);
        }
        // It is started again when it is gone, as one that is wanted and not there; that clears its
        // budget.
        let (seat, epoch) = (self.current, self.current().last_epoch());
        self.on_worker(
            seat,
            worker::Event::EndAsked { cause: "an operator restarts it" },
            now,
            out,
        );
        Ok(Goal::Renewed(epoch))
    }

    /// Graceful, the next one is up before this one goes; but one that does not stay up is in
    /// nobody's use.
    pub(in crate::core) fn restart_order(&self, at_once: bool) -> Order {
        let up = matches!(self.current().phase(), Phase::Ready { .. } | Phase::Suspect { .. })
            && self.misfit.is_none();
        if at_once || !up { Order::Renew } else { Order::Swap { model: String::new() } }
    }

    fn stop(&mut self, out: &mut Vec<Action>) -> Goal {
        let stopped =
            || Refused::new(Reason::DrafterState, "the drafter was stopped by another order");
        self.fail_swap(stopped(), out);
        self.fail(
            |goal| matches!(goal, Goal::Up | Goal::Replaced(_) | Goal::Renewed(_)),
            &stopped(),
            out,
        );
        if !self.model.is_empty() {
            self.wanted = Wanted::Nobody("an operator stopped it");
        }
        self.misfit = None;
        Goal::Gone
    }

    fn swap(&mut self, model: String) -> Result<Goal, Refused> {
        let state = |message: &str| Err(Refused::new(Reason::DrafterState, message));
        if self.incoming.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter");
        }
        if self.wanted != Wanted::Somebody || self.lifetime.rest().is_some() {
            return state("no drafter runs that could be swapped; start one");
        }
        let model = if model.is_empty() { self.model.clone() } else { model };
        self.incoming = Some(Incoming { seat: self.current.other(), model, started: false });
        Ok(Goal::Swapped)
    }

    /// The one that is to take over is up.
    pub(super) fn switch(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        let old = self.current;
        self.current = incoming.seat;
        self.model = incoming.model;
        self.misfit = None;
        self.seats[self.current.idx()].live_once(false);
        for waiting in &mut self.calls {
            if waiting.goal == Goal::Swapped {
                waiting.goal = Goal::Replaced(old);
            }
        }
    }

    pub(super) fn fail_swap(&mut self, refused: Refused, out: &mut Vec<Action>) {
        if self.incoming.take().is_some() {
            self.fail(|goal| goal == Goal::Swapped, &refused, out);
        }
    }

    /// The drafter is to rest: what waits for it waits in vain.
    pub(super) fn give_up_calls(&mut self, why: &str, out: &mut Vec<Action>) {
        let refused = Refused::new(Reason::DrafterState, why);
        self.fail_swap(refused.clone(), out);
        self.fail(|goal| matches!(goal, Goal::Up | Goal::Renewed(_)), &refused, out);
    }

    fn fail(&mut self, which: impl Fn(Goal) -> bool, refused: &Refused, out: &mut Vec<Action>) {
        for waiting in self.calls.extract_if(.., |waiting| which(waiting.goal)) {
            out.push(Action::Answer { call: waiting.call, outcome: Err(refused.clone()) });
        }
    }

    /// Whether the swap can still come to something.
    pub(super) fn judge_swap(&mut self, around: &Around, now: Millis, out: &mut Vec<Action>) {
        let Some(incoming) = &self.incoming else { return };
        let worker = self.seat(incoming.seat);
        let refused = if !around.serving {
            Refused::new(Reason::Draining, "the service is stopping")
        } else if let Some(outage) = &around.failed {
            Refused::new(outage.reason, format!("{}; a drafter is of no use to it", outage.why))
        } else if incoming.started
            && (worker.is_gone()
                || matches!(worker.phase(), Phase::Ending { why: EndWhy::Hung(_), .. }))
        {
            Refused::new(Reason::DrafterFailed, worker.reason(now))
        } else {
            return;
        };
        self.fail_swap(refused, out);
    }

    pub(super) fn answer_calls(&mut self, around: &Around, now: Millis, out: &mut Vec<Action>) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.retain(|waiting| {
            let outcome = self.outcome(waiting.goal, around, now);
            let open = outcome.is_none();
            out.extend(outcome.map(|outcome| Action::Answer { call: waiting.call, outcome }));
            open
        });
        self.calls = calls;
    }

    /// How an order ended; `None`: it has not.
    fn outcome(&self, goal: Goal, around: &Around, now: Millis) -> Option<Result<(), Refused>> {
        let refuse = |reason, message: String| Some(Err(Refused::new(reason, message)));
        match goal {
            Goal::Gone => self.seats.iter().all(worker::Worker::is_gone).then_some(Ok(())),
            Goal::Replaced(seat) => self.seat(seat).is_gone().then_some(Ok(())),
            Goal::Swapped => None,
            Goal::Renewed(before) if around.serving && self.current().last_epoch() <= before => {
                None
            }
            Goal::Up | Goal::Renewed(_) if !around.serving => {
                refuse(Reason::Draining, "the service is stopping".to_owned())
            }
            Goal::Up | Goal::Renewed(_) => {
                let worker = self.current();
                if let Some(misfit) = &self.misfit {
                    return refuse(Reason::DrafterIncompatible, misfit.reason.clone());
                }
                if let Phase::Failed { .. } = worker.phase() {
                    return refuse(Reason::DrafterFailed, worker.reason(now));
                }
                if let Some(outage) = &around.failed {
                    return refuse(
                        outage.reason,
                        format!("{}; the drafter waits for it", outage.why),
                    );
                }
                let up = self.links[self.current.idx()].is_up()
                    && matches!(worker.phase(), Phase::Ready { .. });
                up.then_some(Ok(()))
            }
        }
    }
}
