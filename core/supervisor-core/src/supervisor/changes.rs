//! Changes of the policy and of other settings by an operator, while the service runs.

use super::Supervisor;
use crate::action::Action;
use crate::ids::OrderId;
use crate::routing::{self, PolicyChange};
use crate::tuning::Tuning;

impl Supervisor {
    pub(super) fn set_policy(
        &mut self,
        order_id: OrderId,
        change: PolicyChange,
        out: &mut Vec<Action>,
    ) {
        let routing::PolicyChanged { epoch, key, from, to } = self.routing.set_policy(change);
        out.push(Action::LogPolicy { epoch, key, from, to, cause: "an operator set it" });
        out.push(Action::Answer { order_id, outcome: Ok(()) });
    }

    pub(super) fn tune(&mut self, order_id: OrderId, tuning: Tuning, out: &mut Vec<Action>) {
        out.push(Action::LogOrder { subject: "settings", to: tuning.words() });
        match tuning {
            Tuning::Admission(bounds) => {
                self.settings.admission = bounds;
                self.admission.set_bounds(bounds);
            }
            Tuning::Drafters(plan) => {
                self.operations.use_drafters(&plan.models);
                self.drafters.on_plan(plan);
            }
            Tuning::Notice { ms } => self.service.set_notice(ms),
        }
        out.push(Action::Answer { order_id, outcome: Ok(()) });
    }
}
