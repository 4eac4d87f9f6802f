//! Routing over time: which policy is in force, when running requests are routed again, and how
//! many requests each route served. [`route()`] is the decision itself.
//!
//! A request is routed when it is admitted. All running requests are routed again when the
//! drafter's state or the policy changes. Requests that load, length or memory hold back are routed
//! again whenever that may have passed, and then only towards the faster lane. So no request stays
//! plain because of requests that ran beside it earlier (I12), and no permit flaps. A load that
//! rises is left to the target, which decides step by step.

mod permits;
mod policy;
mod probe;
mod route;

use std::collections::BTreeMap;

use paceline_vocabulary::report::SpeculationBucket;
use paceline_vocabulary::{Epoch, Force, Lane, Millis, Permit, RouteReason, RouteWish};

use crate::admission::{Admission, RunningRequest};
use crate::ids::Ticket;
use crate::request::{RequestSummary, ServedRequest};
use crate::worker::{Phase, Worker};
use permits::PermitDelivery;
pub use policy::{Policy, PolicyChange};
use probe::Probe;
pub use route::{DrafterState, Measured, PRIOR_CONCURRENT, Signals, route};

/// A route as it was decided, for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Wish of the client.
    pub wish: RouteWish,
    /// Signals at the time of the decision.
    pub signals: Signals,
    /// The policy in force.
    pub policy: Policy,
    /// The result.
    pub permit: Permit,
    /// The request was running already.
    pub again: bool,
}

/// Action that routing orders.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in `crate::Action`")]
pub enum Action {
    /// Give running requests of this epoch other permits.
    Repermit { epoch: Epoch, changes: Vec<(Ticket, Permit)> },
    /// Log how a request was routed.
    LogRoute { ticket: Ticket, decision: Box<Decision> },
    /// Give this epoch of the target the policy in force.
    PushPolicy { epoch: Epoch, policy: Policy },
}

/// A change of the policy, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChanged {
    /// Number of the policy now in force.
    pub epoch: u64,
    /// The key.
    pub key: &'static str,
    /// Value of the key before.
    pub from: String,
    /// Value of the key now.
    pub to: String,
}

/// Inputs of routing about the workers.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The target's process.
    pub target: &'a Worker,
    /// The drafter.
    pub drafter: DrafterState,
    /// Whether the drafter drafts for requests with images.
    pub drafter_images: bool,
}

/// Inputs by which running requests were last routed: a change routes all of them again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Basis {
    drafter: DrafterState,
    drafter_images: bool,
    policy_epoch: u64,
}

/// The policy that an epoch of the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PushedPolicy {
    target: Epoch,
    policy_epoch: u64,
}

/// State of routing.
#[derive(Debug)]
pub struct Routing {
    policy: Policy,
    log_routes: bool,
    /// Keys that an operator has set since the supervisor's start.
    set: Vec<&'static str>,
    basis: Basis,
    pushed: Option<PushedPolicy>,
    delivery: PermitDelivery,
    probe: Probe,
    /// Finished requests.
    counts: BTreeMap<(Lane, RouteReason), u64>,
}

impl Routing {
    /// Routing by the configuration's policy. `log_routes`: each route is logged.
    pub fn new(policy: Policy, drafter: DrafterState, log_routes: bool) -> Self {
        Self {
            policy,
            log_routes,
            set: Vec::new(),
            basis: Basis { drafter, drafter_images: true, policy_epoch: 0 },
            pushed: None,
            delivery: PermitDelivery::default(),
            probe: Probe::default(),
            counts: BTreeMap::new(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether an operator has set this key since the supervisor's start.
    pub fn is_set(&self, key: &str) -> bool {
        self.set.contains(&key)
    }

    /// When permits that the target missed are sent again.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.delivery.next_deadline()
    }

    /// Finished requests by lane and reason.
    pub fn counts(&self) -> impl Iterator<Item = (Lane, RouteReason, u64)> {
        self.counts.iter().map(|((lane, reason), requests)| (*lane, *reason, *requests))
    }

    /// A request ended well. Lanes and reasons are of fixed lists, so the counts stay small.
    pub fn on_served(&mut self, served: ServedRequest) {
        *self.counts.entry((served.lane, served.reason)).or_default() += 1;
    }

    /// An operator changes the policy.
    pub fn set_policy(&mut self, change: PolicyChange) -> PolicyChanged {
        let from = self.policy.value_before(change);
        self.policy = self.policy.with(change);
        if !self.is_set(change.key()) {
            self.set.push(change.key());
        }
        let (epoch, key, to) = (self.policy.epoch, change.key(), change.value());
        PolicyChanged { epoch, key, from, to }
    }

    /// Brings running requests and the target in line with the present state.
    pub fn settle(
        &mut self,
        inputs: &Inputs<'_>,
        admission: &mut Admission,
        now: Millis,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        let Some(epoch) = inputs.target.life().map(|life| life.epoch) else {
            self.delivery = PermitDelivery::default();
            return out;
        };
        let policy = self.policy;
        let pushed = PushedPolicy { target: epoch, policy_epoch: policy.epoch };
        let ready = matches!(inputs.target.phase(), Phase::Ready { .. });
        if ready && self.pushed != Some(pushed) {
            self.pushed = Some(pushed);
            out.push(Action::PushPolicy { epoch, policy });
        }
        let Inputs { drafter, drafter_images, .. } = *inputs;
        let basis = Basis { drafter, drafter_images, policy_epoch: policy.epoch };
        let all = self.basis != basis;
        self.basis = basis;
        if all || admission.any_permit(Permit::is_held_back) {
            self.route_again(all, inputs, admission, &mut out);
        }
        if let Some(due) = self.delivery.next_batch(epoch, now) {
            let changes = admission.undelivered(epoch, due);
            if !changes.is_empty() {
                self.delivery.sent(epoch);
                out.push(Action::Repermit { epoch, changes });
            }
        }
        out
    }

    /// The target's answer to the last `Repermit`.
    pub fn on_repermitted(
        &mut self,
        epoch: Epoch,
        missed: &[Ticket],
        admission: &mut Admission,
        now: Millis,
    ) {
        if self.delivery.awaits(epoch) {
            let still_run = missed.iter().filter(|ticket| admission.missed(**ticket)).count();
            self.delivery.answered(still_run > 0, now);
        }
    }

    /// Routes running requests again: all, or those that are held back.
    fn route_again(
        &mut self,
        all: bool,
        inputs: &Inputs<'_>,
        admission: &mut Admission,
        out: &mut Vec<Action>,
    ) {
        let Some(epoch) = inputs.target.life().map(|life| life.epoch) else { return };
        let policy = self.policy;
        let decide = |request: RunningRequest| {
            let RunningRequest { ticket, summary, place } = request;
            let signals = self.signals(&summary, place, admission.active(), inputs);
            let permit = route(summary.wish, &signals, &policy);
            (ticket, Decision { wish: summary.wish, signals, policy, permit, again: true })
        };
        let running: Vec<RunningRequest> = match all {
            true => admission.running(epoch).collect(),
            false => admission.held_back(epoch).collect(),
        };
        let decisions: Vec<_> = running.into_iter().map(decide).collect();
        for (ticket, decision) in decisions {
            // A request that was held back changes only towards the faster lane.
            let counts = all || decision.permit.lane == Lane::Speculative;
            if counts && admission.routed(ticket, decision.permit) && self.log_routes {
                out.push(Action::LogRoute { ticket, decision: Box::new(decision) });
            }
        }
    }

    /// The route of a request that is being admitted, as the last of the running ones.
    pub fn route_first(
        &mut self,
        ticket: Ticket,
        summary: &RequestSummary,
        inputs: &Inputs<'_>,
        admission: &Admission,
        now: Millis,
    ) -> FirstRoute {
        let policy = self.policy;
        let active = admission.active();
        let signals = self.with_probe(self.signals(summary, active as u32, active, inputs), now);
        let permit = route(summary.wish, &signals, &policy);
        self.probe.learn(&permit, now);
        let decision = Decision { wish: summary.wish, signals, policy, permit, again: false };
        let log = Action::LogRoute { ticket, decision: Box::new(decision) };
        FirstRoute { permit, log: self.log_routes.then_some(log) }
    }

    /// Whether this request would draft if it ran now and a drafter were ready.
    pub fn would_draft(
        &self,
        summary: &RequestSummary,
        inputs: &Inputs<'_>,
        admission: &Admission,
        now: Millis,
    ) -> bool {
        let active = admission.active();
        let inputs = Inputs { drafter: DrafterState::Ready { max_draft: 1 }, ..*inputs };
        let signals = self.signals(summary, active as u32 + 1, active, &inputs);
        let signals = self.with_probe(signals, now);
        route(summary.wish, &signals, &self.policy).lane == Lane::Speculative
    }

    /// Signals for a first route: only a first route may probe.
    fn with_probe(&self, signals: Signals, now: Millis) -> Signals {
        Signals { probe: self.probe.is_due(now), ..signals }
    }

    /// Signals of a request at `place` among `active` running ones.
    fn signals(
        &self,
        summary: &RequestSummary,
        place: u32,
        active: usize,
        inputs: &Inputs<'_>,
    ) -> Signals {
        let running = place.max(active as u32);
        let life = inputs.target.life();
        let figures = life.and_then(|life| life.figures());
        Signals {
            drafter: inputs.drafter,
            images: summary.images(),
            drafter_images: inputs.drafter_images,
            place,
            running,
            context_tokens: summary.context_tokens,
            kv_pressure: life.map_or(0.0, |life| life.kv_pressure()),
            by_sequences: measured(figures.map(|figures| &figures.by_sequences[..]), running),
            by_context: measured(
                figures.map(|figures| &figures.by_context[..]),
                summary.context_tokens,
            ),
            probe: false,
        }
    }

    /// Whether more requests run at once than speculation pays for: as measured, else as assumed or
    /// set. A request that asks for the drafter by name keeps it. Requests that all have to be plain
    /// say nothing about the drafter.
    pub fn is_crowded(&self, inputs: &Inputs<'_>, admission: &Admission) -> bool {
        let running = admission.active() as u32;
        let figures = inputs.target.life().and_then(|life| life.figures());
        let pays = measured(figures.map(|figures| &figures.by_sequences[..]), running).pays();
        let crowded = match pays {
            Some(pays) => running > 1 && !pays,
            None => running > self.policy.max_concurrent.or(PRIOR_CONCURRENT),
        };
        let forced = |permit: &Permit| permit.reason == RouteReason::Forced && permit.max_draft > 0;
        let may_draft = self.policy.force != Force::Plain
            && admission.any_request(|summary| summary.wish != RouteWish::Plain);
        crowded && may_draft && !admission.any_permit(forced)
    }
}

/// The first route of a request.
#[derive(Clone, Debug)]
pub struct FirstRoute {
    /// The permit.
    pub permit: Permit,
    /// Action that logs the route, if routes are logged.
    pub log: Option<Action>,
}

/// The figure of the first bucket that covers `at`. A gain that is not finite is no figure.
fn measured(buckets: Option<&[SpeculationBucket]>, at: u32) -> Measured {
    let covers = |bucket: &&SpeculationBucket| bucket.up_to >= at && bucket.gain.is_finite();
    let bucket = buckets.and_then(|buckets| buckets.iter().find(covers));
    bucket.map_or(Measured::default(), |bucket| Measured {
        up_to: bucket.up_to,
        steps: bucket.steps,
        gain: bucket.gain,
    })
}
