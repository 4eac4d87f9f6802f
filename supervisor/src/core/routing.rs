//! Routing over time: which policy is in force, what the target has measured, when running requests
//! are routed anew, and what the routes came to. The decision itself is [`route`].
//!
//! A request is routed when it is admitted. All running ones are routed anew when the drafter's
//! state or the policy changes; those held back by load, length or memory whenever that may have
//! passed, and then only towards the faster lane: so none stays plain because of who ran beside it
//! an hour ago (I12), and no permit flaps. The other way round, a load that rises, is left to the
//! target, which decides step by step.

use std::collections::BTreeMap;

use paceline_proto::internal::v1::{SpeculationBucket, SpeculationFigures};
use paceline_proto::status::Reason;
use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

use super::admission::{Ask, Ticket};
use super::denial::Refused;
use super::drafter::Call;
use super::permits::Delivery;
use super::route::{Drafter, Measured, PRIOR_CONCURRENT, Permit, Policy, Signals, route};
use super::worker::Phase;
use super::{Action, Supervisor};

/// Pause from the first denial by a prior or a measurement to the first look whether it still holds
/// ...
const FIRST_PROBE_MS: u64 = 10_000;
/// ... doubling to here.
const LONGEST_PROBE_MS: u64 = 640_000;

/// A route as it was decided, for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// What the caller asked for.
    pub wish: RouteWish,
    /// What was known.
    pub signals: Signals,
    /// By what it was decided.
    pub policy: Policy,
    /// What came out.
    pub permit: Permit,
    /// The request was running already.
    pub again: bool,
}

/// How a request that ended well was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its lane.
    pub lane: Lane,
    /// Why.
    pub reason: RouteReason,
    /// Tokens it got, those it was submitted with excluded.
    pub tokens: u64,
    /// How long after it was let in its first token came, milliseconds.
    pub first_ms: Option<u64>,
}

/// When to look again whether speculation pays where it is not known to.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    /// Set by the first denial.
    due: Option<Millis>,
    pause_ms: u64,
}

impl Probe {
    fn is_due(self, now: Millis) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    fn learn(&mut self, permit: &Permit, now: Millis) {
        match permit.reason {
            RouteReason::Probe => {
                self.pause_ms = (self.pause_ms * 2).min(LONGEST_PROBE_MS);
                self.due = Some(now + self.pause_ms);
            }
            // It pays somewhere: what was denied before is looked at with fresh eyes.
            RouteReason::Benefit => *self = Self::default(),
            _ if permit.is_held_back()
                && permit.reason != RouteReason::KvPressure
                && self.due.is_none() =>
            {
                self.pause_ms = FIRST_PROBE_MS;
                self.due = Some(now + FIRST_PROBE_MS);
            }
            _ => {}
        }
    }
}

/// What routing remembers.
#[derive(Debug)]
pub struct Routing {
    policy: Policy,
    /// Keys that an operator has set since our start.
    set: Vec<&'static str>,
    /// The drafter's state, whether it drafts behind pictures, and the policy by which running
    /// requests were last routed.
    routed: (Drafter, bool, u64),
    /// The life of the target that has this policy.
    told: Option<(Epoch, u64)>,
    delivery: Delivery,
    probe: Probe,
    /// Finished requests.
    counts: BTreeMap<(i32, i32), u64>,
}

impl Routing {
    /// The configuration's policy.
    pub fn new(policy: Policy, drafter: Drafter) -> Self {
        Self {
            policy,
            set: Vec::new(),
            routed: (drafter, true, 0),
            told: None,
            delivery: Delivery::default(),
            probe: Probe::default(),
            counts: BTreeMap::new(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether an operator has set this key since our start.
    pub fn is_set(&self, key: &str) -> bool {
        self.set.contains(&key)
    }

    /// When permits that the target missed are told again.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.delivery.next_deadline()
    }

    /// Finished requests by lane and reason.
    pub fn counts(&self) -> impl Iterator<Item = (Lane, RouteReason, u64)> {
        self.counts.iter().map(|((lane, reason), requests)| {
            (
                Lane::try_from(*lane).unwrap_or_default(),
                RouteReason::try_from(*reason).unwrap_or_default(),
                *requests,
            )
        })
    }

    /// A request ended well. Lanes and reasons are of fixed lists, so this stays small.
    pub(super) fn served(&mut self, served: Served) {
        *self.counts.entry((served.lane.into(), served.reason.into())).or_default() += 1;
    }
}

impl Supervisor {
    /// An operator changes the policy.
    pub(super) fn set_policy(&mut self, call: Call, key: &str, value: &str, out: &mut Vec<Action>) {
        let before = self.routing.policy;
        let outcome = match before.with(key, value) {
            Ok(policy) => {
                let places = before.settings().into_iter().zip(policy.settings());
                if let Some(((key, from), (_, to))) =
                    places.into_iter().find(|((known, _), _)| *known == key)
                {
                    if !self.routing.is_set(key) {
                        self.routing.set.push(key);
                    }
                    out.push(Action::LogPolicy {
                        epoch: policy.epoch,
                        key,
                        from,
                        to,
                        cause: "an operator set it",
                    });
                }
                self.routing.policy = policy;
                Ok(())
            }
            Err(error) => Err(Refused::new(Reason::InvalidArgument, error.to_string())),
        };
        out.push(Action::Answer { call, outcome });
    }

    /// Brings running requests and the target in line with what holds now.
    pub(super) fn settle_routing(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Some(epoch) = self.target.life().map(|life| life.epoch) else {
            self.routing.delivery = Delivery::default();
            return;
        };
        let policy = self.routing.policy;
        if matches!(self.target.phase(), Phase::Ready { .. })
            && self.routing.told != Some((epoch, policy.epoch))
        {
            self.routing.told = Some((epoch, policy.epoch));
            out.push(Action::PushPolicy { epoch, policy });
        }
        let basis = (self.drafters.state(), self.drafters.serves_images(), policy.epoch);
        let all = self.routing.routed != basis;
        self.routing.routed = basis;
        if all || self.admission.is_anybody(Permit::is_held_back) {
            self.route_again(epoch, all, now, out);
        }
        if let Some(again) = self.routing.delivery.turn(epoch, now) {
            let changes = self.admission.untold(epoch, again);
            if !changes.is_empty() {
                self.routing.delivery.sent(epoch);
                out.push(Action::Repermit { epoch, changes });
            }
        }
    }

    /// The target's answer to the last order for other permits.
    pub(super) fn repermitted(&mut self, epoch: Epoch, missed: &[Ticket], now: Millis) {
        #[cfg(test)]
        let missed = if super::plant::is(super::plant::Bug::LostPermit) { &[] } else { missed };
        if self.routing.delivery.is_answer(epoch) {
            let still_run = missed.iter().filter(|ticket| self.admission.missed(**ticket)).count();
            self.routing.delivery.answered(still_run > 0, now);
        }
    }

    /// Routes running requests anew: all, or those that are held back.
    fn route_again(&mut self, epoch: Epoch, all: bool, now: Millis, out: &mut Vec<Action>) {
        let policy = self.routing.policy;
        let decide = |(ticket, ask, place): (Ticket, Ask, u32)| {
            let signals = self.signals(&ask, place, false, now);
            let permit = route(ask.wish, &signals, &policy);
            (ticket, Decision { wish: ask.wish, signals, policy, permit, again: true })
        };
        let decisions: Vec<_> = self.admission.running(epoch, all).map(decide).collect();
        for (ticket, decision) in decisions {
            // Held back no longer, or everything is new.
            let counts = all || decision.permit.lane == Lane::Speculative;
            if counts && self.admission.routed(ticket, decision.permit) && self.settings.log_routes
            {
                out.push(Action::LogRoute { ticket, decision: Box::new(decision) });
            }
        }
    }

    /// The route of a request that is being admitted, as the last of those that run.
    pub(super) fn permit(
        &mut self,
        ticket: Ticket,
        ask: &Ask,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Permit {
        let policy = self.routing.policy;
        let signals = self.signals(ask, self.admission.active() as u32, true, now);
        let permit = route(ask.wish, &signals, &policy);
        self.routing.probe.learn(&permit, now);
        if self.settings.log_routes {
            let decision = Decision { wish: ask.wish, signals, policy, permit, again: false };
            out.push(Action::LogRoute { ticket, decision: Box::new(decision) });
        }
        permit
    }

    /// Whether this request would draft if it ran now and the drafter were there.
    pub(super) fn would_draft(&self, ask: &Ask, now: Millis) -> bool {
        let place = self.admission.active() as u32 + 1;
        let signals = Signals {
            drafter: Drafter::Ready { max_draft: 1 },
            ..self.signals(ask, place, true, now)
        };
        route(ask.wish, &signals, &self.routing.policy).lane == Lane::Speculative
    }

    /// What is known of a request at `place` among those that run.
    fn signals(&self, ask: &Ask, place: u32, may_probe: bool, now: Millis) -> Signals {
        let running = place.max(self.admission.active() as u32);
        let figures = self.figures();
        let drafter = self.drafters.state();
        #[cfg(test)]
        let drafter = match super::plant::is(super::plant::Bug::StickyFallback) {
            true if super::plant::fell_back(drafter == Drafter::Suspect) => Drafter::Suspect,
            _ => drafter,
        };
        Signals {
            drafter,
            images: ask.images(),
            drafter_images: self.drafters.serves_images(),
            place,
            running,
            context_tokens: ask.context_tokens,
            kv_pressure: self.kv_pressure(),
            by_sequences: measured(figures, |figures| &figures.by_sequences, running),
            by_context: measured(figures, |figures| &figures.by_context, ask.context_tokens),
            probe: may_probe && self.routing.probe.is_due(now),
        }
    }

    /// What the target has measured, once it has measured drafts: without them every gain is 1 and
    /// says nothing.
    pub fn figures(&self) -> Option<&SpeculationFigures> {
        let figures = self.target.life()?.beat.as_ref()?.figures.as_ref()?;
        figures.draft.is_some_and(|draft| draft.observations > 0).then_some(figures)
    }

    /// What routing remembers.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Whether so many requests at once are more than speculation pays for: as measured, else as
    /// assumed or set.
    pub(super) fn is_crowded(&self) -> bool {
        let running = self.admission.active() as u32;
        let pays = measured(self.figures(), |figures| &figures.by_sequences, running).pays();
        let crowded = match pays {
            Some(pays) => running > 1 && !pays,
            None => running > self.routing.policy.max_concurrent.or(PRIOR_CONCURRENT),
        };
        // From who asked for it by name it is not taken away.
        crowded
            && !self
                .admission
                .is_anybody(|permit| permit.reason == RouteReason::Forced && permit.max_draft > 0)
    }
}

fn measured<'a>(
    figures: Option<&'a SpeculationFigures>,
    buckets: impl Fn(&'a SpeculationFigures) -> &'a Vec<SpeculationBucket>,
    at: u32,
) -> Measured {
    // A figure that is no number is none.
    let holds = |bucket: &&SpeculationBucket| bucket.up_to >= at && bucket.gain.is_finite();
    let bucket = figures.and_then(|figures| buckets(figures).iter().find(holds));
    bucket.map_or(Measured::default(), |bucket| Measured {
        up_to: bucket.up_to,
        steps: bucket.steps,
        gain: bucket.gain,
    })
}
