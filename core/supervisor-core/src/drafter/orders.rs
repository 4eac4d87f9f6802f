//! How operators' orders are carried out. If an operator stops waiting, the order stands.

use paceline_vocabulary::{Millis, Reason};

use super::candidates::Candidates;
use super::order::{DrafterOrder, OpenOrder, OrderGoal};
use super::{
    Action, DrafterInputs, DrafterPlan, Drafters, NOT_CONFIGURED, Successor, Wanted,
    wanted_at_first,
};
use crate::denial::OrderRefusal;
use crate::ids::{OrderId, WorkerSlot};
use crate::worker::{self, Phase, StopReason};

/// Orders that may wait at once (I6).
const MAX_OPEN_ORDERS: usize = 64;
/// Why a drafter ends that was loaded for an earlier model of the target.
const SWAPPED: &str = "the target is swapped for another model";

impl Drafters {
    /// An operator's order.
    pub fn on_order(
        &mut self,
        order_id: OrderId,
        order: DrafterOrder,
        serving: bool,
        now: Millis,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        let taken = match order {
            _ if self.open_orders.len() >= MAX_OPEN_ORDERS => {
                let message = format!(
                    "{MAX_OPEN_ORDERS} orders are being carried out already; try again in 1 s"
                );
                Err(OrderRefusal::new(Reason::QueueFull, message))
            }
            _ if !serving => Err(OrderRefusal::new(Reason::Draining, "the service is stopping")),
            DrafterOrder::Start { .. } | DrafterOrder::Swap { .. } | DrafterOrder::Renew
                if self.takeover.is_some() =>
            {
                let message =
                    "the drafter of an earlier supervisor is being taken over; try again in 1 s";
                Err(OrderRefusal::new(Reason::DrafterLoading, message))
            }
            DrafterOrder::Start { model } => self.start(model, now, &mut out),
            DrafterOrder::Stop => Ok(self.stop(&mut out)),
            DrafterOrder::Swap { model } => self.swap(model),
            DrafterOrder::Renew => self.renew(now, &mut out),
        };
        match taken {
            Ok(goal) => self.open_orders.push(OpenOrder { order_id, goal }),
            Err(refused) => out.push(Action::Answer { order_id, outcome: Err(refused) }),
        }
        out
    }

    fn start(
        &mut self,
        model: String,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Result<OrderGoal, OrderRefusal> {
        let state = |message: String| Err(OrderRefusal::new(Reason::DrafterState, message));
        if self.successor.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter".to_owned());
        }
        let failing =
            matches!(self.current().phase(), Phase::BackingOff { .. } | Phase::Failed { .. });
        let runs = self.wanted == Wanted::Yes
            && self.incompatibility.is_none()
            && self.suspension.reason().is_none()
            && !failing;
        let is_other = !model.is_empty() && model != self.model;
        if runs && is_other {
            return state(format!(
                "{} runs as the drafter; swap it for {model}, or stop it first",
                self.model
            ));
        }
        if is_other {
            self.candidates.end();
            self.model = model;
        } else if model.is_empty() && !runs && !self.candidates.has_served() {
            // Files may have been mended: the list starts over.
            self.model = self.candidates.start_over().unwrap_or_else(|| self.model.clone());
        }
        if self.model.is_empty() {
            return state("no drafter is configured; name its directory (--model)".to_owned());
        }
        self.wanted = Wanted::Yes;
        self.suspension.start_over();
        self.incompatibility = None;
        let current = self.current;
        match failing {
            // Otherwise it runs, or is started as soon as its place is free.
            true => {
                self.slots[current.idx()].live_once(false);
                self.worker_event(
                    current,
                    worker::Event::StartAsked { model: self.model.clone() },
                    now,
                    out,
                );
            }
            false => self.slots[current.idx()].clear_budget(),
        }
        Ok(OrderGoal::Up)
    }

    fn renew(&mut self, now: Millis, out: &mut Vec<Action>) -> Result<OrderGoal, OrderRefusal> {
        let state = |message: &str| Err(OrderRefusal::new(Reason::DrafterState, message));
        if self.successor.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter");
        }
        if self.wanted != Wanted::Yes {
            return state("no drafter runs that could be restarted; start one");
        }
        let failing =
            matches!(self.current().phase(), Phase::BackingOff { .. } | Phase::Failed { .. });
        if failing || self.incompatibility.is_some() || self.suspension.reason().is_some() {
            return self.start(String::new(), now, out);
        }
        // It is started again when it is gone, as one that is wanted and not there; that clears its
        // budget.
        let (slot, epoch) = (self.current, self.current().last_epoch());
        self.worker_event(
            slot,
            worker::Event::EndAsked { cause: "an operator restarts it" },
            now,
            out,
        );
        Ok(OrderGoal::Renewed(epoch))
    }

    /// Graceful, the next one is up before this one goes; but one that does not stay up is in
    /// nobody's use.
    pub fn restart_order(&self, at_once: bool) -> DrafterOrder {
        let up = matches!(self.current().phase(), Phase::Ready { .. } | Phase::Suspect { .. })
            && self.incompatibility.is_none();
        if at_once || !up {
            DrafterOrder::Renew
        } else {
            DrafterOrder::Swap { model: String::new() }
        }
    }

    fn stop(&mut self, out: &mut Vec<Action>) -> OrderGoal {
        let stopped =
            || OrderRefusal::new(Reason::DrafterState, "the drafter was stopped by another order");
        self.fail_swap(stopped(), out);
        self.fail(
            |goal| matches!(goal, OrderGoal::Up | OrderGoal::Replaced(_) | OrderGoal::Renewed(_)),
            &stopped(),
            out,
        );
        if !self.model.is_empty() {
            self.wanted = Wanted::No("an operator stopped it");
        }
        self.incompatibility = None;
        OrderGoal::Gone
    }

    fn swap(&mut self, model: String) -> Result<OrderGoal, OrderRefusal> {
        let state = |message: &str| Err(OrderRefusal::new(Reason::DrafterState, message));
        if self.successor.is_some() {
            return state("a swap is under way; wait for it, or stop the drafter");
        }
        if self.wanted != Wanted::Yes || self.suspension.reason().is_some() {
            return state("no drafter runs that could be swapped; start one");
        }
        let model = if model.is_empty() { self.model.clone() } else { model };
        self.successor = Some(Successor { slot: self.current.other(), model, started: false });
        Ok(OrderGoal::Swapped)
    }

    /// Other drafters are configured, or are to be started at another time. One that runs goes on: if
    /// it is one of the list, it is that one's turn. Without one, the first of the list takes its
    /// place, unless an operator stopped the drafter.
    pub fn on_plan(&mut self, plan: DrafterPlan) {
        self.start = plan.start;
        self.suspension.set_idle_ms(plan.idle_stop_ms);
        if plan.models == self.candidates.models() {
            return;
        }
        self.candidates = Candidates::new(plan.models);
        if self.wanted == Wanted::Yes {
            return self.candidates.adopt(&self.model);
        }
        self.take_first();
    }

    /// The first of the list takes the drafter's place.
    fn take_first(&mut self) {
        let had_none = self.model.is_empty();
        self.model = self.candidates.first();
        self.wanted = match (self.model.is_empty(), had_none) {
            (true, _) => NOT_CONFIGURED,
            (false, true) => wanted_at_first(self.start),
            (false, false) => self.wanted,
        };
    }

    /// The target serves another model, with which `drafter.model` names these drafters. Those that
    /// run are ended, because they were loaded for the earlier model. The first of the list is
    /// started in their place, unless an operator stopped the drafter.
    pub fn use_models(&mut self, models: Vec<String>, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        self.give_up_orders(SWAPPED, &mut out);
        self.candidates = Candidates::new(models);
        self.take_first();
        (self.incompatibility, self.takeover, self.need_bytes) = (None, None, 0);
        self.trouble.clear();
        self.suspension.start_over();
        self.outdated = WorkerSlot::ALL.map(|slot| !self.is_ended(slot));
        self.end_outdated(now, &mut out);
        out
    }

    /// Ends the drafters of an earlier model. One whose start was ordered and not answered is ended
    /// after the answer: another process must not be started beside it.
    pub(super) fn end_outdated(&mut self, now: Millis, out: &mut Vec<Action>) {
        for slot in WorkerSlot::ALL {
            let worker = &self.slots[slot.idx()];
            let unanswered =
                matches!(worker.phase(), Phase::Starting { .. }) && worker.life().is_none();
            if !self.outdated[slot.idx()] || unanswered {
                continue;
            }
            self.outdated[slot.idx()] = false;
            if !self.is_ended(slot) {
                self.worker_event(slot, worker::Event::EndAsked { cause: SWAPPED }, now, out);
            }
        }
    }

    /// The one that is to take over is up.
    pub(super) fn switch(&mut self) {
        let Some(successor) = self.successor.take() else { return };
        let old = self.current;
        self.current = successor.slot;
        // The same drafter with its files read again is still the one of the list.
        if self.model != successor.model {
            self.candidates.end();
        }
        self.model = successor.model;
        self.incompatibility = None;
        self.slots[self.current.idx()].live_once(false);
        for waiting in &mut self.open_orders {
            if waiting.goal == OrderGoal::Swapped {
                waiting.goal = OrderGoal::Replaced(old);
            }
        }
    }

    pub(super) fn fail_swap(&mut self, refused: OrderRefusal, out: &mut Vec<Action>) {
        if self.successor.take().is_some() {
            self.fail(|goal| goal == OrderGoal::Swapped, &refused, out);
        }
    }

    /// The drafter is to rest: what waits for it waits in vain.
    pub(super) fn give_up_orders(&mut self, why: &str, out: &mut Vec<Action>) {
        let refused = OrderRefusal::new(Reason::DrafterState, why);
        self.fail_swap(refused.clone(), out);
        self.fail(|goal| matches!(goal, OrderGoal::Up | OrderGoal::Renewed(_)), &refused, out);
    }

    fn fail(
        &mut self,
        which: impl Fn(OrderGoal) -> bool,
        refused: &OrderRefusal,
        out: &mut Vec<Action>,
    ) {
        for waiting in self.open_orders.extract_if(.., |waiting| which(waiting.goal)) {
            out.push(Action::Answer { order_id: waiting.order_id, outcome: Err(refused.clone()) });
        }
    }

    /// Whether the swap can still come to something.
    pub(super) fn judge_swap(
        &mut self,
        inputs: &DrafterInputs,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let Some(successor) = &self.successor else { return };
        let worker = self.slot(successor.slot);
        let refused = if !inputs.serving {
            OrderRefusal::new(Reason::Draining, "the service is stopping")
        } else if let Some(outage) = &inputs.failed {
            OrderRefusal::new(
                outage.reason,
                format!("{}; a drafter is of no use to it", outage.why),
            )
        } else if successor.started
            && (worker.is_gone()
                || matches!(worker.phase(), Phase::Ending { why: StopReason::Hung(_), .. }))
        {
            OrderRefusal::new(Reason::DrafterFailed, worker.reason(now))
        } else {
            return;
        };
        self.fail_swap(refused, out);
    }

    pub(super) fn answer_orders(
        &mut self,
        inputs: &DrafterInputs,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let mut open_orders = std::mem::take(&mut self.open_orders);
        open_orders.retain(|waiting| {
            let outcome = self.outcome(waiting.goal, inputs, now);
            let open = outcome.is_none();
            let order_id = waiting.order_id;
            out.extend(outcome.map(|outcome| Action::Answer { order_id, outcome }));
            open
        });
        self.open_orders = open_orders;
    }

    /// How an order ended; `None`: it has not.
    fn outcome(
        &self,
        goal: OrderGoal,
        inputs: &DrafterInputs,
        now: Millis,
    ) -> Option<Result<(), OrderRefusal>> {
        let refuse = |reason, message: String| Some(Err(OrderRefusal::new(reason, message)));
        match goal {
            OrderGoal::Gone => self.slots.iter().all(worker::Worker::is_gone).then_some(Ok(())),
            OrderGoal::Replaced(slot) => self.slot(slot).is_gone().then_some(Ok(())),
            OrderGoal::Swapped => None,
            OrderGoal::Renewed(before)
                if inputs.serving && self.current().last_epoch() <= before =>
            {
                None
            }
            OrderGoal::Up | OrderGoal::Renewed(_) if !inputs.serving => {
                refuse(Reason::Draining, "the service is stopping".to_owned())
            }
            OrderGoal::Up | OrderGoal::Renewed(_) => {
                let worker = self.current();
                if let Some(incompatibility) = &self.incompatibility {
                    return refuse(Reason::DrafterIncompatible, incompatibility.reason.clone());
                }
                if let Phase::Failed { .. } = worker.phase() {
                    return refuse(Reason::DrafterFailed, worker.reason(now));
                }
                if let Some(outage) = &inputs.failed {
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
