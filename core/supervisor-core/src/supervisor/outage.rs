//! Why the service does not take a request, and when it may.

use paceline_vocabulary::{Millis, Reason};

use super::{Supervisor, operations_inputs};
use crate::action::Notice;
use crate::denial::{Denial, Outage};
use crate::request::RequestSummary;
use crate::service::ServicePhase;

impl Supervisor {
    /// Why an operator's order keeps the service from taking requests.
    fn ordered_outage(&self) -> Option<Outage> {
        let outage = |reason, why: &str| Some(Outage { reason, why: why.to_owned() });
        match self.service.phase() {
            ServicePhase::Held => outage(
                Reason::Draining,
                "an operator has drained the service; try again after `paceline drain --undo`",
            ),
            phase if phase.admits() && self.operations.restarts_target() => {
                outage(Reason::Restarting, "an operator restarts the target")
            }
            ServicePhase::Draining { .. } | ServicePhase::Aborting { .. } | ServicePhase::Over
                if self.service.restarts() =>
            {
                outage(Reason::Restarting, "an operator restarts the supervisor")
            }
            _ => None,
        }
    }

    fn outage(&self) -> Option<Outage> {
        self.ordered_outage().or_else(|| match self.service.phase() {
            phase if phase.admits() => self.target.outage(),
            _ => Some(Outage::stopping()),
        })
    }

    /// Why an interrupted request is not taken now. A drained service takes it, because it arrived
    /// before the drain.
    fn resumed_outage(&self) -> Option<Outage> {
        if self.service.phase() != ServicePhase::Held {
            return self.outage();
        }
        let why = || "an operator restarts the target".to_owned();
        let restarts = self.operations.restarts_target();
        let restarting = restarts.then(|| Outage { reason: Reason::Restarting, why: why() });
        restarting.or_else(|| self.target.outage())
    }

    /// The denial of this request now; `None` if it may be served.
    pub(super) fn denial_of(&self, summary: &RequestSummary, now: Millis) -> Option<Denial> {
        let outage = if summary.resumed { self.resumed_outage() } else { self.outage() };
        Some(self.denial_for(outage?, now))
    }

    /// The denial of a new request that arrives now; `None` if it may be served.
    pub(super) fn denial(&self, now: Millis) -> Option<Denial> {
        Some(self.denial_for(self.outage()?, now))
    }

    fn denial_for(&self, outage: Outage, now: Millis) -> Denial {
        let crash_loop = outage.reason == Reason::CrashLoop;
        let log = if crash_loop { self.target.last_log().to_owned() } else { String::new() };
        Denial::Outage { outage, retry_ms: self.retry_ms(now), log }
    }

    /// Milliseconds until requests may be served again, as far as is known; 0 if they are served.
    pub fn retry_ms(&self, now: Millis) -> u64 {
        if self.ordered_outage().is_some() {
            let retry_ms = self.operations.retry_ms(
                &operations_inputs(&self.service, &self.target, &self.gateway, &self.admission),
                now,
            );
            return retry_ms.unwrap_or(1_000);
        }
        // A service that stops is either started again soon or not at all.
        if self.is_stopping() { 1_000 } else { self.target.retry_ms(now) }
    }

    /// The present notice for the gateway.
    pub fn notice(&self) -> Notice {
        let held = self.service.phase() == ServicePhase::Held;
        Notice {
            outage: self.outage(),
            held,
            resumed_outage: self.resumed_outage().filter(|_| held),
            leaving: matches!(self.service.phase(), ServicePhase::Leaving { .. }),
            described: self.target.described().cloned(),
        }
    }
}
