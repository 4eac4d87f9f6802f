//! The drafters: whether one is to run, in which slot, and when another takes over. A drafter may
//! fall at any instant: nothing here can reach the target's state or a request (I3).
//!
//! Orders change what is wanted. [`Drafters::settle`] compares it with what is there and orders the
//! next step. A swap:
//!
//! ```text
//!  order ──▶ other slot: spawn, load, describe ──▶ link handed over ──▶ UP: it is the current one; the old one is stopped
//!                    └───── ends, is refused, cannot be linked ──▶ it is ended, the old one goes on, the order fails
//! ```
//!
//! Which drafter is wanted: the present one of the configured list ([`candidates`]), or the one
//! that an operator named.

mod candidates;
mod link;
mod order;
mod orders;
mod status;
mod suspension;
mod takeover;

use paceline_settings::DrafterStart;
use paceline_vocabulary::report::LinkReport;
use paceline_vocabulary::{Epoch, Millis, Reason, Term};

use crate::denial::{OrderRefusal, Outage};
use crate::ids::{OrderId, WorkerSlot};
use crate::worker::{self, Phase, StopReason, Worker, WorkerKind, WorkerSettings};
use candidates::Candidates;
pub use candidates::RefusedDrafter;
pub use link::LinkEnds;
use link::{Link, LinkEvent};
pub use order::DrafterOrder;
use order::OpenOrder;
pub use suspension::DrafterLoad;
use suspension::{SuspendReason, Suspension};

/// Times that the link of a successor may fail before the swap fails.
const MAX_SWAP_LOSSES: u32 = 3;

/// What is wanted before the first order.
fn wanted_at_first(start: DrafterStart) -> Wanted {
    match start {
        DrafterStart::Eager => Wanted::Yes,
        DrafterStart::Lazy => Wanted::AtFirstUse,
        DrafterStart::Manual => Wanted::No("an operator starts it (drafter.start)"),
    }
}

/// The configured drafters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrafterPlan {
    /// Their directories, in the order in which they are tried; empty if none is configured.
    pub models: Vec<String>,
    /// `drafter.start`
    pub start: DrafterStart,
    /// `drafter.idle_stop_s`; 0 is never.
    pub idle_stop_ms: u64,
}

/// A target that has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// Epoch of the target.
    pub epoch: Epoch,
    /// Whether requests reach the target.
    pub ready: bool,
}

/// Inputs of the drafters from the rest of the core.
#[derive(Clone, Debug)]
pub struct DrafterInputs {
    /// The target, if it has loaded.
    pub target: Option<TargetState>,
    /// Why the target does not come up.
    pub failed: Option<Outage>,
    /// The service was not asked to stop.
    pub serving: bool,
    /// The requests that would use a drafter, and whether there is memory for it.
    pub load: DrafterLoad,
}

/// Action that the drafters order.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "as in `crate::Action`")]
pub enum Action {
    /// To the drafter in this slot.
    Worker(WorkerSlot, worker::Action),
    /// Hand over both ends of a new link.
    Connect { generation: u64, slot: WorkerSlot, ends: LinkEnds },
    /// Log that a link's stage changed.
    LogLink { slot: WorkerSlot, generation: u64, to: &'static str, cause: String },
    /// Log that a drafter of the list was refused, and the one that is tried in its place.
    LogRefusal { refused: RefusedDrafter, next: String },
    /// Answer an operator's order.
    Answer { order_id: OrderId, outcome: Result<(), OrderRefusal> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// No drafter is to run; why.
    No(&'static str),
    /// One is to run from the first request that would use it.
    AtFirstUse,
    /// One is to run.
    Yes,
}

const NOT_CONFIGURED: Wanted = Wanted::No("no drafter is configured");

/// Why the target refused the current drafter.
#[derive(Clone, Debug)]
struct Incompatibility {
    target: Epoch,
    reason: String,
}

/// A drafter that is to take over.
#[derive(Clone, Debug)]
struct Successor {
    slot: WorkerSlot,
    model: String,
    started: bool,
}

/// A drafter of an earlier supervisor that was found and has not described itself yet.
#[derive(Clone, Debug)]
struct Takeover {
    slot: WorkerSlot,
    /// Wish that held before the drafter was found.
    wanted: Wanted,
    model: String,
}

/// Both drafter slots, their links, and what is wanted.
#[derive(Debug)]
pub struct Drafters {
    slots: [Worker; 2],
    links: [Link; 2],
    current: WorkerSlot,
    /// Directory of the current one, or of the one that would be; empty is none.
    model: String,
    candidates: Candidates,
    start: DrafterStart,
    wanted: Wanted,
    suspension: Suspension,
    /// Bytes of the newest drafter that has loaded.
    need_bytes: u64,
    incompatibility: Option<Incompatibility>,
    successor: Option<Successor>,
    /// Drafters that are started for an earlier model of the target, and ended once they can be.
    outdated: [bool; 2],
    /// Why the current link was last lost; empty once it is up.
    trouble: String,
    open_orders: Vec<OpenOrder>,
    /// Number of the newest link.
    generation: u64,
    takeover: Option<Takeover>,
}

impl Drafters {
    /// Nothing runs yet. Links are numbered after those of every earlier term.
    pub fn new(settings: WorkerSettings, plan: DrafterPlan, term: Term) -> Self {
        let worker = || Worker::new(WorkerKind::Drafter, settings);
        let wanted = match plan.models.is_empty() {
            true => NOT_CONFIGURED,
            false => wanted_at_first(plan.start),
        };
        let candidates = Candidates::new(plan.models);
        Self {
            slots: [worker(), worker()],
            links: Default::default(),
            current: WorkerSlot::First,
            model: candidates.first(),
            candidates,
            start: plan.start,
            wanted,
            suspension: Suspension::new(plan.idle_stop_ms),
            need_bytes: 0,
            incompatibility: None,
            successor: None,
            outdated: [false; 2],
            trouble: String::new(),
            open_orders: Vec::new(),
            generation: term.0 << 32,
            takeover: None,
        }
    }

    /// An event of the drafter in `slot`.
    pub fn on_worker(
        &mut self,
        slot: WorkerSlot,
        event: worker::Event,
        now: Millis,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        let found =
            matches!(event, worker::Event::Found { .. }) && self.slots[slot.idx()].is_gone();
        self.worker_event(slot, event, now, &mut out);
        if found {
            self.found(slot);
        }
        out
    }

    fn worker_event(
        &mut self,
        slot: WorkerSlot,
        event: worker::Event,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let actions = self.slots[slot.idx()].on_event(event, now);
        pass_on(slot, actions, out);
    }

    /// The target's heartbeat came with this report of its links.
    pub fn on_report(&mut self, report: &LinkReport, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        // The successor first: when its link is up, the other link is not lost but replaced.
        for slot in self.in_use() {
            // The switch to the successor may have ended the use of this slot.
            if self.in_use().any(|used| used == slot) {
                let event = self.links[slot.idx()].reported(report, now);
                self.on_link(slot, event, now, &mut out);
            }
        }
        out
    }

    /// Both workers have their ends of link `generation`, or why not.
    pub fn on_connected(
        &mut self,
        generation: u64,
        failure: Option<String>,
        now: Millis,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        for slot in WorkerSlot::ALL {
            let event = self.links[slot.idx()].connected(generation, failure.clone(), now);
            self.on_link(slot, event, now, &mut out);
        }
        out
    }

    /// A request came that would use a drafter.
    pub fn on_draftable_request(&mut self) {
        self.suspension.on_draftable_request();
        if self.wanted == Wanted::AtFirstUse {
            self.wanted = Wanted::Yes;
        }
    }

    /// Slots whose drafter is to run: the successor's, then the current one.
    fn in_use(&self) -> impl Iterator<Item = WorkerSlot> + use<> {
        let works = self.wanted == Wanted::Yes
            && self.incompatibility.is_none()
            && self.suspension.reason().is_none();
        let current = works.then_some(self.current);
        self.successor.as_ref().map(|successor| successor.slot).into_iter().chain(current)
    }

    fn on_link(
        &mut self,
        slot: WorkerSlot,
        event: Option<LinkEvent>,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let Some(event) = event else { return };
        let link = &self.links[slot.idx()];
        let generation = link.generation();
        out.push(Action::LogLink {
            slot,
            generation,
            to: link.name(),
            cause: event.cause().to_owned(),
        });
        let takes_over = self.successor.as_ref().is_some_and(|successor| successor.slot == slot);
        match event {
            LinkEvent::Up { .. } => {
                self.trouble.clear();
                if takes_over {
                    self.switch();
                }
                self.candidates.serves();
            }
            LinkEvent::Refused(reason) if takes_over => {
                self.fail_swap(OrderRefusal::new(Reason::DrafterIncompatible, reason), out)
            }
            LinkEvent::Refused(reason) => {
                let target = link.ends().map_or(Epoch(0), |ends| ends.target);
                if !self.pass_over(&reason, now, out) {
                    self.incompatibility = Some(Incompatibility { target, reason });
                }
            }
            LinkEvent::Ejected(reason) => self.condemn(slot, reason, takes_over, now, out),
            LinkEvent::Lost(cause) if takes_over && link.losses() >= MAX_SWAP_LOSSES => {
                self.fail_swap(
                    OrderRefusal::new(
                        Reason::DrafterFailed,
                        format!("it cannot be linked to the target: {cause}"),
                    ),
                    out,
                );
            }
            LinkEvent::Lost(cause) => self.trouble = cause,
            LinkEvent::Late(_) | LinkEvent::InTime => {}
        }
    }

    /// The current drafter is refused: it is ended, and the next one of the list is started in its
    /// place. Returns whether there is a next one.
    fn pass_over(&mut self, reason: &str, now: Millis, out: &mut Vec<Action>) -> bool {
        let Some(next) = self.candidates.pass_over(reason) else { return false };
        let model = std::mem::replace(&mut self.model, next.clone());
        let refused = RefusedDrafter { model, reason: reason.to_owned() };
        out.push(Action::LogRefusal { refused, next });
        let cause = "it was refused, and the next one of drafter.model is tried";
        self.worker_event(self.current, worker::Event::EndAsked { cause }, now, out);
        true
    }

    /// Why the current drafter counts as one that cannot be loaded: it did not come up within its
    /// restart budget and has not served before. An exit after which no start may follow, and a
    /// program that cannot be started, say nothing about this drafter.
    fn load_failure(&self) -> Option<&str> {
        let (Phase::Failed { retry: Some(_) }, Some(end)) =
            (self.current().phase(), self.current().last_end())
        else {
            return None;
        };
        (end.epoch.is_some() && !self.candidates.has_served()).then_some(end.cause.as_str())
    }

    /// The drafter in `slot` broke the link's protocol: it is ended.
    fn condemn(
        &mut self,
        slot: WorkerSlot,
        reason: String,
        takes_over: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        if let Some(epoch) = self.slots[slot.idx()].life().map(|life| life.epoch) {
            let event = worker::Event::Condemned { epoch, cause: reason.clone() };
            self.worker_event(slot, event, now, out);
        }
        if takes_over {
            let message = format!("it broke the link's protocol: {reason}");
            self.fail_swap(OrderRefusal::new(Reason::DrafterFailed, message), out);
        }
    }

    /// Compares what is there with what is wanted and orders the next steps.
    pub fn settle(&mut self, inputs: &DrafterInputs, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        // Another epoch of the target may serve another model.
        if let (Some(target), Some(incompatibility)) = (inputs.target, &self.incompatibility)
            && target.ready
            && incompatibility.target != target.epoch
        {
            self.incompatibility = None;
            if let Some(first) = self.candidates.start_over() {
                self.model = first;
            }
        }
        self.judge_takeover();
        self.judge_swap(inputs, now, &mut out);
        let failure = self.load_failure().filter(|_| inputs.serving && self.wanted == Wanted::Yes);
        if let Some(reason) = failure.map(str::to_owned) {
            self.pass_over(&reason, now, &mut out);
        }
        self.judge_suspension(inputs, now, &mut out);
        self.end_outdated(now, &mut out);
        self.end_unused(now, &mut out);
        if inputs.serving {
            // An order that waits for the end of a drafter is answered before the next one starts.
            self.answer_orders(inputs, now, &mut out);
            self.start_missing(now, &mut out);
        }
        self.link_up(inputs, now, &mut out);
        self.answer_orders(inputs, now, &mut out);
        out
    }

    /// Whether the wanted drafter is suspended.
    fn judge_suspension(&mut self, inputs: &DrafterInputs, now: Millis, out: &mut Vec<Action>) {
        if self.wanted != Wanted::Yes {
            return self.suspension.start_over();
        }
        if !inputs.serving {
            return self.suspension.stop_clocks();
        }
        let worker = self.current();
        let up = matches!(worker.phase(), Phase::Ready { .. } | Phase::Suspect { .. });
        if let (true, Some(life)) = (up, worker.life()) {
            let memory = life
                .heartbeat
                .as_ref()
                .and_then(|heartbeat| heartbeat.memory)
                .map_or(0, |memory| memory.active_bytes);
            let weights = life.described.as_ref().map_or(0, |described| described.weight_bytes());
            self.need_bytes = memory.max(weights);
        }
        let before = self.suspension.reason();
        // Before it is linked no request can use it.
        let linked = up && self.links[self.current.idx()].is_up();
        self.suspension.update(&inputs.load, linked, now);
        if let (None, Some(reason)) = (before, self.suspension.reason()) {
            self.give_up_orders(reason.why(), out);
        }
    }

    /// The process in this slot has ended, or is being ended because nobody wants it.
    fn is_ended(&self, slot: WorkerSlot) -> bool {
        matches!(
            self.slots[slot.idx()].phase(),
            Phase::Stopped | Phase::Ending { why: StopReason::Asked(_), .. }
        )
    }

    fn end_unused(&mut self, now: Millis, out: &mut Vec<Action>) {
        for slot in WorkerSlot::ALL {
            if self.is_ended(slot) || self.in_use().any(|used| used == slot) {
                continue;
            }
            let cause = match self.wanted {
                Wanted::No(why) => why,
                _ if self.suspension.reason().is_some() => {
                    self.suspension.reason().map_or("", SuspendReason::why)
                }
                _ if slot == self.current => "the target refuses it",
                _ => "another has its place",
            };
            self.worker_event(slot, worker::Event::EndAsked { cause }, now, out);
        }
    }

    fn start_missing(&mut self, now: Millis, out: &mut Vec<Action>) {
        for slot in self.in_use() {
            if !self.slots[slot.idx()].is_gone() {
                continue;
            }
            let model = match &mut self.successor {
                Some(successor) if successor.slot == slot => {
                    successor.started = true;
                    successor.model.clone()
                }
                _ => self.model.clone(),
            };
            // A successor gets one epoch: its unexpected end is the end of the swap.
            self.slots[slot.idx()].live_once(slot != self.current);
            self.worker_event(slot, worker::Event::StartAsked { model }, now, out);
        }
    }

    fn link_up(&mut self, inputs: &DrafterInputs, now: Millis, out: &mut Vec<Action>) {
        let used: Vec<WorkerSlot> = self.in_use().collect();
        for slot in WorkerSlot::ALL {
            let worker = &self.slots[slot.idx()];
            let there = used.contains(&slot)
                && matches!(worker.phase(), Phase::Ready { .. } | Phase::Suspect { .. });
            let ends = match (inputs.target, worker.life()) {
                (Some(target), Some(life)) if there => {
                    Some(LinkEnds { target: target.epoch, drafter: life.epoch })
                }
                _ => None,
            };
            self.links[slot.idx()].between(ends);
        }
        // One link at a time: the target greets only the newest. A service that stops makes none.
        if !inputs.serving
            || !inputs.target.is_some_and(|target| target.ready)
            || self.links.iter().any(Link::is_being_made)
        {
            return;
        }
        for slot in used {
            let ready = matches!(self.slots[slot.idx()].phase(), Phase::Ready { .. });
            if let (true, Some(ends)) = (ready, self.links[slot.idx()].due()) {
                self.generation += 1;
                self.links[slot.idx()].hand(self.generation, now);
                return out.push(Action::Connect { generation: self.generation, slot, ends });
            }
        }
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        for slot in WorkerSlot::ALL {
            let actions = self.slots[slot.idx()].on_time(now);
            pass_on(slot, actions, &mut out);
            let event = self.links[slot.idx()].on_time(now);
            self.on_link(slot, event, now, &mut out);
        }
        out
    }

    /// When [`Drafters::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let workers = self.slots.iter().filter_map(Worker::next_deadline);
        workers
            .chain(self.links.iter().filter_map(Link::next_deadline))
            .chain(self.suspension.next_deadline())
            .min()
    }

    /// The supervisor was not running: missing heartbeats until `now` prove nothing.
    pub fn discount_lost_time(&mut self, now: Millis) {
        self.slots.iter_mut().for_each(|worker| worker.discount_lost_time(now));
        self.links.iter_mut().for_each(|link| link.discount_lost_time(now));
        self.suspension.discount_lost_time(now);
    }

    /// An event for both slots.
    pub fn on_both(&mut self, event: &worker::Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        for slot in WorkerSlot::ALL {
            self.worker_event(slot, event.clone(), now, &mut out);
        }
        out
    }

    /// Sends SIGKILL to those that are being ended.
    pub fn kill_ending(&mut self, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        for slot in WorkerSlot::ALL {
            if let Phase::Ending { .. } = self.slots[slot.idx()].phase() {
                self.worker_event(slot, worker::Event::KillAsked, now, &mut out);
            }
        }
        out
    }

    /// Whether no drafter is left, or none that can be ended.
    pub fn are_stopped(&self) -> bool {
        self.slots.iter().all(Worker::is_stopped)
    }

    /// Bytes the drafter needs, as far as is known.
    pub fn need_bytes(&self) -> u64 {
        self.need_bytes
    }

    /// The drafter in `slot`.
    pub fn slot(&self, slot: WorkerSlot) -> &Worker {
        &self.slots[slot.idx()]
    }

    /// Slot of the drafter that serves, or would.
    #[cfg(test)]
    pub(crate) fn current_slot(&self) -> WorkerSlot {
        self.current
    }

    /// The drafter that serves, or would.
    pub fn current(&self) -> &Worker {
        &self.slots[self.current.idx()]
    }
}

fn pass_on(slot: WorkerSlot, actions: Vec<worker::Action>, out: &mut Vec<Action>) {
    // No request is served by a drafter alone, so its end changes no request (I3).
    let rest =
        actions.into_iter().filter(|action| !matches!(action, worker::Action::Abandon { .. }));
    out.extend(rest.map(|action| Action::Worker(slot, action)));
}
