//! An operator's swap of the target: another model without an end of the service.
//!
//! ```text
//! Draining ── requests have ended, or their time has ──▶ Loading ── ready ──▶ done
//!                                                           │ its process ends before that
//!                                                           ▼
//!                                          Returning: the earlier model is loaded again, the order fails
//! ```
//! Requests that wait at the order are served by the earlier model, because their tokens are made
//! for it.

use paceline_vocabulary::{Epoch, Millis, Reason};

use super::{Action, Goal, Inputs, OpenOrder, Operations, stopping};
use crate::denial::OrderRefusal;
use crate::ids::OrderId;
use crate::worker::Phase;

/// A model, and the drafters that `drafter.model` names with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetChoice {
    /// Directory of the model; empty is the configuration's.
    pub model: String,
    /// The drafters in the order in which they are tried.
    pub drafters: Vec<String>,
}

/// An operator's order to serve another model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSwapOrder {
    /// The model to serve, with its drafters.
    pub choice: TargetChoice,
    /// Time that running requests get to end; `None` is the usual time.
    pub drain_ms: Option<u64>,
    /// It is the checkpoint that is served already: interrupted requests go on.
    pub same: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The earlier target is to end.
    Draining,
    /// The target of a later epoch than this loads.
    Loading { after: Epoch },
    /// It did not come up, and the earlier model is loaded by a later epoch than this.
    Returning { after: Epoch },
}

/// A swap that is being carried out.
#[derive(Debug)]
pub(super) struct TargetSwap {
    order_id: OrderId,
    stage: Stage,
    /// While it drains the model to come, afterwards the earlier one.
    other: TargetChoice,
    same: bool,
    /// Why the model did not come up.
    failure: String,
}

impl Operations {
    /// Takes an operator's order to serve another model.
    ///
    /// # Errors
    /// Another swap is under way.
    pub(super) fn swap_target(
        &mut self,
        order_id: OrderId,
        order: TargetSwapOrder,
        inputs: &Inputs<'_>,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Result<(), OrderRefusal> {
        if self.swap.is_some() {
            let message = "the target is being swapped already; wait for it and try again";
            return Err(OrderRefusal::new(Reason::ProcessState, message));
        }
        let TargetSwapOrder { choice, drain_ms, same } = order;
        let stage = Stage::Draining;
        let failure = String::new();
        self.swap = Some(TargetSwap { order_id, stage, other: choice, same, failure });
        self.restart_target(drain_ms.unwrap_or(self.drain_ms), inputs, now, out);
        Ok(())
    }

    /// `drafter.model` names these drafters from now on, with whichever model is served.
    pub fn use_drafters(&mut self, models: &[String]) {
        self.target.drafters = models.to_vec();
        if let Some(swap) = &mut self.swap {
            swap.other.drafters = models.to_vec();
        }
    }

    /// Whether a swap waits for the end of the earlier target.
    pub(super) fn awaits_swap(&self) -> bool {
        self.swap.as_ref().is_some_and(|swap| swap.stage == Stage::Draining)
    }

    /// Whether the target that is started next serves another model.
    pub(super) fn changes_model(&self) -> bool {
        self.awaits_swap() && self.swap.as_ref().is_some_and(|swap| !swap.same)
    }

    /// Whether the target may be started with this model: it is served, or a swap concerns it.
    pub fn may_load(&self, model: &str) -> bool {
        let other = self.swap.as_ref().map(|swap| swap.other.model.as_str());
        self.target.model == model || other == Some(model)
    }

    /// Starts the target with the model that is to be served.
    pub(super) fn start_target(&mut self, inputs: &Inputs<'_>, out: &mut Vec<Action>) {
        let after = inputs.target.last_epoch();
        if self.awaits_swap() {
            self.exchange(Stage::Loading { after }, out);
        }
        let once =
            self.swap.as_ref().is_some_and(|swap| matches!(swap.stage, Stage::Loading { .. }));
        out.push(Action::StartTarget { model: self.target.model.clone(), once });
    }

    /// The other model of the swap is the one to be served from now on.
    fn exchange(&mut self, stage: Stage, out: &mut Vec<Action>) {
        let Some(swap) = &mut self.swap else { return };
        std::mem::swap(&mut self.target, &mut swap.other);
        swap.stage = stage;
        if !swap.same {
            out.push(Action::UseDrafters { models: self.target.drafters.clone() });
        }
    }

    /// Continues a swap.
    pub(super) fn settle_swap(&mut self, inputs: &Inputs<'_>, now: Millis, out: &mut Vec<Action>) {
        let Some(swap) = &self.swap else { return };
        if !inputs.is_up() {
            return self.end_swap(Err(stopping()), out);
        }
        let is_later = |after: Epoch| inputs.target.last_epoch() > after;
        match (swap.stage, inputs.target.phase()) {
            // A target that hung was started again with the earlier model, in place of its end.
            (
                Stage::Draining,
                Phase::Starting { .. } | Phase::Loading { .. } | Phase::Ready { .. },
            ) if self.restart.is_none() && inputs.target.life().is_some() => {
                self.restart_target(0, inputs, now, out);
            }
            (Stage::Draining, Phase::BackingOff { .. } | Phase::Failed { .. })
                if self.restart.is_none() =>
            {
                self.start_target(inputs, out);
            }
            (Stage::Loading { after }, Phase::Ready { .. }) if is_later(after) => {
                out.push(Action::KeepTarget);
                out.push(Action::TargetSwapped { model: self.target.model.clone() });
                // The gateway reads the text files of the model before it accepts requests.
                let goal = Goal::Target { after };
                let order_id = self.swap.take().map(|swap| swap.order_id);
                self.open_orders.extend(order_id.map(|order_id| OpenOrder { order_id, goal }));
            }
            (Stage::Loading { .. }, Phase::Stopped)
                if inputs.target.is_gone() && self.restart.is_none() =>
            {
                self.load_earlier(inputs, now, out);
            }
            (Stage::Returning { after }, Phase::Ready { .. }) if is_later(after) => {
                self.end_failed(String::new(), out);
            }
            (Stage::Returning { .. }, Phase::Failed { .. }) => {
                let why = format!(", which does not come up either: {}", inputs.target.reason(now));
                self.end_failed(why, out);
            }
            _ => {}
        }
    }

    /// The model did not come up: the earlier one is loaded again.
    fn load_earlier(&mut self, inputs: &Inputs<'_>, now: Millis, out: &mut Vec<Action>) {
        let why = inputs.target.reason(now);
        if let Some(swap) = &mut self.swap {
            swap.failure = why;
        }
        self.exchange(Stage::Returning { after: inputs.target.last_epoch() }, out);
        self.start_target(inputs, out);
    }

    /// The swap ends without success; `addition` says what else is wrong.
    fn end_failed(&mut self, addition: String, out: &mut Vec<Action>) {
        let Some(TargetSwap { other, failure, .. }) = &self.swap else { return };
        let message = format!(
            "{} was not loaded, and the earlier model is served again{addition}: {failure}",
            other.model
        );
        self.end_swap(Err(OrderRefusal::new(Reason::ProcessState, message)), out);
    }

    fn end_swap(&mut self, outcome: Result<(), OrderRefusal>, out: &mut Vec<Action>) {
        if let Some(TargetSwap { order_id, .. }) = self.swap.take() {
            out.push(Action::Answer { order_id, outcome });
        }
    }
}
