//! Orders of operators about the target, the gateway, the supervisor and the whole service, and
//! when an order is carried out.
//!
//! ```text
//! restart target:  requests are refused ── none runs, or time ──▶ the process is ended ── gone ──▶ it is started ── ready ──▶ answer
//! swap target:     as a restart, and the next process has another model ([`target_swap`])
//! restart gateway: it is ordered to end ── another is attached and ready ──▶ answer
//! drain:           requests are refused ── none runs ──▶ answer; undone by another order
//! restart supervisor: answer; requests are refused ── none runs, or time ──▶ it ends and leaves the workers where they are
//! ```
//! If an operator stops waiting, the order stands.

mod target_swap;

use paceline_vocabulary::state::ProcessState;
use paceline_vocabulary::{Epoch, Millis, ModelMark, Reason};

use crate::denial::OrderRefusal;
use crate::gateway::Gateway;
use crate::ids::OrderId;
use crate::service::ServicePhase;
use crate::worker::{Phase, Worker};
use target_swap::TargetSwap;
pub use target_swap::{TargetChoice, TargetSwapOrder};

/// Orders that may wait at once (I6).
const MAX_OPEN_ORDERS: usize = 64;
/// Time that running requests of a gateway get if it is restarted at once.
const NO_GRACE_MS: u32 = 0;

/// A process of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum ServiceProcess {
    Gateway,
    Target,
    Drafter,
    Supervisor,
}

impl ServiceProcess {
    /// Name of the process in events and messages.
    pub fn name(self) -> &'static str {
        match self {
            ServiceProcess::Gateway => "gateway",
            ServiceProcess::Target => "target",
            ServiceProcess::Drafter => "drafter",
            ServiceProcess::Supervisor => "supervisor",
        }
    }
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorOrder {
    /// A process is to end and be started again.
    Restart {
        /// The process.
        process: ServiceProcess,
        /// Running requests get no time to end.
        at_once: bool,
    },
    /// The target is to serve another model.
    SwapTarget(TargetSwapOrder),
    /// The service takes nothing new.
    Drain,
    /// The service takes requests again.
    Resume,
}

impl OperatorOrder {
    /// The process or service that it concerns, for events.
    pub fn subject(&self) -> &'static str {
        match self {
            OperatorOrder::Restart { process, .. } => process.name(),
            OperatorOrder::SwapTarget(_) => ServiceProcess::Target.name(),
            OperatorOrder::Drain | OperatorOrder::Resume => "service",
        }
    }

    /// The order in words, for events.
    pub fn words(&self) -> String {
        match self {
            OperatorOrder::Restart { at_once: true, .. } => "restart at once".to_owned(),
            OperatorOrder::Restart { at_once: false, .. } => "restart".to_owned(),
            OperatorOrder::SwapTarget(order) => format!("swap for {}", order.choice.model),
            OperatorOrder::Drain => "drain".to_owned(),
            OperatorOrder::Resume => "take requests again".to_owned(),
        }
    }
}

/// Action that operations order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Action {
    /// Answer an operator's order.
    Answer { order_id: OrderId, outcome: Result<(), OrderRefusal> },
    /// Start the target with this model; empty is the configuration's. With `once` it is not
    /// started again by itself.
    StartTarget { model: String, once: bool },
    /// The target that has come up is started again by itself from now on.
    KeepTarget,
    /// Another model is served from now on, with these drafters.
    UseDrafters { models: Vec<String> },
    /// The target serves the model of an operator's order.
    TargetSwapped { model: String },
    /// End the target.
    EndTarget,
    /// Forget the target's earlier failures.
    ClearTargetBudget,
    /// End every running stream. With `for_good` their requests cannot go on: another model is
    /// served next.
    AbortStreams { for_good: bool },
    /// Forget the requests of the target's last epoch: its process is gone.
    ForgetRequests,
    /// Restart the gateway of this `Attach` stream and of earlier ones.
    RestartGateway { attachment: u64, grace_ms: Option<u32> },
    /// Restart the drafter; the drafters answer the order.
    RestartDrafter { order_id: OrderId, at_once: bool },
    /// Restart the supervisor.
    RestartSupervisor { at_once: bool },
    /// Drain the service.
    Hold,
    /// Undo the drain.
    Resume,
}

/// Inputs of operations from the rest of the core.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Where the service stands.
    pub service: ServicePhase,
    /// The target's process.
    pub target: &'a Worker,
    /// The gateway.
    pub gateway: &'a Gateway,
    /// Requests that run.
    pub active: usize,
    /// Requests that wait.
    pub queued: usize,
}

impl Inputs<'_> {
    fn is_up(&self) -> bool {
        self.service.admits() || self.service == ServicePhase::Held
    }

    /// Whether the target is ready and the gateway accepts requests for its model. A drained service
    /// accepts none.
    fn is_served(&self) -> bool {
        let model = self.target.described().and_then(|described| described.model());
        let mark = model.map(|model| ModelMark::of(&model.path));
        matches!(self.target.phase(), Phase::Ready { .. })
            && (!self.service.admits() || mark.is_none_or(|mark| self.gateway.serves(mark)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// The target is ready in a later epoch than this, and the gateway accepts its requests.
    Target { after: Epoch },
    /// A gateway is ready that attached later than this.
    Gateway { after: u64 },
    /// Nothing runs.
    Drained,
}

#[derive(Clone, Copy, Debug)]
struct OpenOrder {
    order_id: OrderId,
    goal: Goal,
}

/// Where a restart of the target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetRestart {
    /// The requests have their time to end.
    Draining { until: Millis },
    /// The process is being ended.
    Ending,
}

/// Orders that are being carried out.
#[derive(Debug)]
pub struct Operations {
    drain_ms: u64,
    restart: Option<TargetRestart>,
    /// The model that the target is started with.
    target: TargetChoice,
    swap: Option<TargetSwap>,
    open_orders: Vec<OpenOrder>,
}

fn stopping() -> OrderRefusal {
    let message = "the service is stopping, or its supervisor is being restarted";
    OrderRefusal::new(Reason::Draining, message)
}

impl Operations {
    /// No order yet. Running requests get `drain_ms` before a restart. `target` is the
    /// configuration's.
    pub fn new(drain_ms: u64, target: TargetChoice) -> Self {
        Self { drain_ms, restart: None, target, swap: None, open_orders: Vec::new() }
    }

    /// When [`Operations::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.restart {
            Some(TargetRestart::Draining { until }) => Some(until),
            _ => None,
        }
    }

    /// Whether an operator's restart is ending the target.
    pub fn restarts_target(&self) -> bool {
        self.restart.is_some()
    }

    /// Whether requests that wait are admitted although the target is about to be restarted.
    pub fn serves_queue(&self) -> bool {
        match self.restart {
            None => true,
            Some(TargetRestart::Draining { .. }) => self.awaits_swap(),
            Some(TargetRestart::Ending) => false,
        }
    }

    /// Takes an operator's order.
    pub fn on_order(
        &mut self,
        order_id: OrderId,
        order: OperatorOrder,
        inputs: &Inputs<'_>,
        now: Millis,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        if let Err(refusal) = self.carry_out(order_id, order, inputs, now, &mut out) {
            out.push(Action::Answer { order_id, outcome: Err(refusal) });
        }
        out
    }

    fn carry_out(
        &mut self,
        order_id: OrderId,
        order: OperatorOrder,
        inputs: &Inputs<'_>,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Result<(), OrderRefusal> {
        if !inputs.is_up() {
            return Err(stopping());
        }
        if self.open_orders.len() >= MAX_OPEN_ORDERS {
            let message =
                format!("{MAX_OPEN_ORDERS} orders are being carried out already; try again in 1 s");
            return Err(OrderRefusal::new(Reason::QueueFull, message));
        }
        match order {
            OperatorOrder::Restart { process, at_once } => match process {
                ServiceProcess::Drafter => out.push(Action::RestartDrafter { order_id, at_once }),
                ServiceProcess::Target => {
                    let goal = Goal::Target { after: inputs.target.last_epoch() };
                    let drain_ms = if at_once { 0 } else { self.drain_ms };
                    self.restart_target(drain_ms, inputs, now, out);
                    self.open_orders.push(OpenOrder { order_id, goal });
                }
                ServiceProcess::Gateway => {
                    let after = restart_gateway(at_once, inputs.gateway, out)?;
                    self.open_orders.push(OpenOrder { order_id, goal: Goal::Gateway { after } });
                }
                ServiceProcess::Supervisor => {
                    self.restart = None;
                    out.push(Action::Answer { order_id, outcome: Ok(()) });
                    out.push(Action::RestartSupervisor { at_once });
                }
            },
            OperatorOrder::SwapTarget(order) => {
                self.swap_target(order_id, order, inputs, now, out)?;
            }
            OperatorOrder::Drain => {
                out.push(Action::Hold);
                self.open_orders.push(OpenOrder { order_id, goal: Goal::Drained });
            }
            OperatorOrder::Resume => {
                out.push(Action::Resume);
                let undone =
                    OrderRefusal::new(Reason::ProcessState, "another order undid the drain");
                for open in self.open_orders.extract_if(.., |open| open.goal == Goal::Drained) {
                    let outcome = Err(undone.clone());
                    out.push(Action::Answer { order_id: open.order_id, outcome });
                }
                out.push(Action::Answer { order_id, outcome: Ok(()) });
            }
        }
        Ok(())
    }

    fn restart_target(
        &mut self,
        drain_ms: u64,
        inputs: &Inputs<'_>,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        match inputs.target.phase() {
            // Between two epochs, or ordered again: what is under way leads to a new epoch.
            Phase::Stopped | Phase::Ending { .. } => out.push(Action::ClearTargetBudget),
            Phase::BackingOff { .. } | Phase::Failed { .. } => self.start_target(inputs, out),
            Phase::Starting { .. }
            | Phase::Loading { .. }
            | Phase::Ready { .. }
            | Phase::Suspect { .. } => {
                let until = match self.restart {
                    // The earlier deadline wins.
                    Some(TargetRestart::Draining { until }) => until.min(now + drain_ms),
                    _ => now + drain_ms,
                };
                self.restart = Some(TargetRestart::Draining { until });
                out.extend(self.on_time(inputs, now));
            }
        }
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, inputs: &Inputs<'_>, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        if let Some(TargetRestart::Draining { until }) = self.restart
            && until <= now
        {
            if inputs.active > 0 {
                out.push(Action::AbortStreams { for_good: self.changes_model() });
            }
            self.end_target(&mut out);
        }
        out
    }

    fn end_target(&mut self, out: &mut Vec<Action>) {
        self.restart = Some(TargetRestart::Ending);
        out.push(Action::EndTarget);
    }

    /// Continues a restart or a swap of the target.
    pub fn settle(&mut self, inputs: &Inputs<'_>, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        if !inputs.is_up() {
            self.restart = None;
        }
        let phase = inputs.target.phase();
        match self.restart {
            None => {}
            Some(TargetRestart::Draining { .. }) => match phase {
                // It ended before we ended it, and waits for its next start: it is started now.
                Phase::BackingOff { .. } | Phase::Failed { .. } => {
                    self.restart = None;
                    self.start_target(inputs, &mut out);
                }
                Phase::Starting { .. } if inputs.target.life().is_none() => self.restart = None,
                Phase::Ending { .. } => self.restart = Some(TargetRestart::Ending),
                // A swap serves the requests first that wait.
                _ if inputs.active == 0 && (inputs.queued == 0 || !self.awaits_swap()) => {
                    self.end_target(&mut out)
                }
                _ => {}
            },
            Some(TargetRestart::Ending) => match phase {
                Phase::Stopped if inputs.target.is_gone() => {
                    self.restart = None;
                    // Aborted requests may not have reported their ends; with the process gone they
                    // hold nothing.
                    out.push(Action::ForgetRequests);
                    self.start_target(inputs, &mut out);
                }
                Phase::Stopped | Phase::Ending { .. } => {}
                // It hung while it ended and was started again for that.
                _ => self.restart = None,
            },
        }
        // Otherwise the phase is another one once they are carried out.
        if out.is_empty() {
            self.settle_swap(inputs, now, &mut out);
        }
        out
    }

    /// Answers the orders that are carried out, or cannot be.
    pub fn answer_orders(&mut self, inputs: &Inputs<'_>, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        self.open_orders.retain(|open| {
            let outcome = outcome(open.goal, inputs, now);
            let is_open = outcome.is_none();
            out.extend(outcome.map(|outcome| Action::Answer { order_id: open.order_id, outcome }));
            is_open
        });
        out
    }

    /// When a request should come back that a restart of the target refuses; `None` without such a
    /// restart.
    pub fn retry_ms(&self, inputs: &Inputs<'_>, now: Millis) -> Option<u64> {
        let come_up = inputs.target.retry_ms(now);
        self.restart.map(|restart| match restart {
            TargetRestart::Draining { until } if inputs.active > 0 => {
                until.since(now).clamp(1_000, 4_000).max(come_up)
            }
            TargetRestart::Draining { .. } | TargetRestart::Ending => come_up.max(1_000),
        })
    }
}

/// Orders the gateway to end; returns the number of its `Attach` stream.
fn restart_gateway(
    at_once: bool,
    gateway: &Gateway,
    out: &mut Vec<Action>,
) -> Result<u64, OrderRefusal> {
    if gateway.attached().is_none() {
        let message = "no gateway is attached that could be restarted; whoever starts it may be starting it now";
        return Err(OrderRefusal::new(Reason::ProcessState, message));
    }
    let attachment = gateway.newest();
    let grace_ms = at_once.then_some(NO_GRACE_MS);
    out.push(Action::RestartGateway { attachment, grace_ms });
    Ok(attachment)
}

fn outcome(goal: Goal, inputs: &Inputs<'_>, now: Millis) -> Option<Result<(), OrderRefusal>> {
    if !inputs.is_up() {
        return Some(Err(stopping()));
    }
    match goal {
        Goal::Target { after } => match inputs.target.phase() {
            _ if inputs.is_served() && inputs.target.last_epoch() > after => Some(Ok(())),
            Phase::Failed { .. } => {
                Some(Err(OrderRefusal::new(Reason::CrashLoop, inputs.target.reason(now))))
            }
            _ => None,
        },
        Goal::Gateway { after } => (inputs.gateway.newest() > after
            && inputs.gateway.state() == ProcessState::Ready)
            .then_some(Ok(())),
        Goal::Drained => {
            // An interrupted request is in none of the other figures until it is submitted again.
            let streams = inputs.gateway.report().map_or(0, |report| report.streams);
            let none_runs = inputs.active == 0 && inputs.queued == 0;
            let is_drained = inputs.service == ServicePhase::Held && none_runs;
            (is_drained && (streams == 0 || inputs.gateway.attached().is_none())).then_some(Ok(()))
        }
    }
}
