//! Rules that must hold after each event, judged by the machine's own state and by the messages
//! that the supervisor received.

use std::collections::BTreeMap;

use super::{BUDGET, Fate, Machine, WORKERS, serves_images};
use crate::tests::testing::*;

/// Heartbeats older than this leave a doubt.
const FRESH_MS: u64 = 1_500;
/// Longest time until the target has a permit or policy, from the last loss on the way: the timeout
/// of that request, the longest pause after it, and late messages.
const DELIVERY_MS: u64 = 10_000;
/// Requests up to which speculation is allowed before it is measured.
const FEW: usize = 4;

/// State of a process by its last heartbeat.
#[derive(Clone, Copy, Debug)]
struct LastHeartbeat {
    at: u64,
    epoch: Epoch,
    /// It has loaded and does not end.
    works: bool,
    steps: u64,
    /// It last got somewhere then, or had nothing to do.
    moved_at: u64,
}

/// Messages that the supervisor received.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The last heartbeat of each.
    heartbeats: BTreeMap<WorkerId, LastHeartbeat>,
    /// By the last heartbeat of the target drafts can come over this link.
    up: Option<u64>,
    /// Share of the KV budget held, by the same.
    pressure: f64,
    /// Speculation was measured not to pay, by the same.
    not_worth: bool,
}

impl Received {
    pub(super) fn note(&mut self, event: &Event, now: u64) {
        let Event::Worker(worker, event) = event else { return };
        match event {
            worker::Event::Heartbeat(heartbeat) => {
                let works = matches!(
                    heartbeat.phase,
                    WorkerPhase::Idle | WorkerPhase::Decode | WorkerPhase::Prefill
                );
                let before = self.heartbeats.get(worker).copied();
                if before.is_some_and(|before| before.epoch > heartbeat.epoch) {
                    return;
                }
                let stuck = before.filter(|before| {
                    before.steps == heartbeat.steps && heartbeat.phase != WorkerPhase::Idle
                });
                let moved_at = stuck.map_or(now, |before| before.moved_at);
                self.heartbeats.insert(
                    *worker,
                    LastHeartbeat {
                        at: now,
                        epoch: heartbeat.epoch,
                        works,
                        steps: heartbeat.steps,
                        moved_at,
                    },
                );
                if *worker == WorkerId::Target {
                    let kv = heartbeat.kv.unwrap_or_default();
                    self.pressure = if kv.budget_bytes == 0 {
                        0.0
                    } else {
                        kv.held_bytes as f64 / kv.budget_bytes as f64
                    };
                    let figures = heartbeat.figures.as_ref();
                    self.not_worth = figures.is_some_and(|figures| {
                        figures.by_sequences.iter().any(|bucket| bucket.gain <= 1.0)
                    });
                    let link = heartbeat.link.clone().unwrap_or(LinkReport::ABSENT);
                    let newest = matches!(link.phase, LinkPhase::Up | LinkPhase::Suspect)
                        .then_some(link.generation);
                    self.up = newest.or(Some(link.serving)).filter(|generation| *generation > 0);
                }
            }
            worker::Event::Exited { epoch, .. }
                if self.heartbeats.get(worker).is_some_and(|shown| shown.epoch <= *epoch) =>
            {
                self.heartbeats.remove(worker);
                self.up = self.up.filter(|_| *worker != WorkerId::Target);
            }
            _ => {}
        }
    }

    fn works(&self, worker: WorkerId, now: u64) -> bool {
        let fresh = |at: u64| now - at < FRESH_MS;
        self.heartbeats
            .get(&worker)
            .is_some_and(|shown| shown.works && fresh(shown.at) && fresh(shown.moved_at))
    }
}

impl Machine {
    pub(super) fn judge(&mut self, answering: bool) {
        let admission = self.core.admission();
        let (queued, active, reserved) =
            (admission.queued(), admission.active(), admission.reserved_bytes());
        let late = self.core.next_deadline().is_some_and(|due| due.0 <= self.now);
        self.require(!late, "a deadline is left over");
        self.require(queued <= self.settings.admission.queue_places, "the queue is bounded (I6)");
        self.require(active <= self.capacity.max_sequences, "sequences are bounded (I6)");
        let held: u64 = self
            .requests
            .values()
            .map(|request| match request.fate {
                Fate::Running { cost_bytes, .. } | Fate::Over { cost_bytes } => cost_bytes,
                Fate::Waiting | Fate::Left => 0,
            })
            .sum();
        let waiting = self
            .requests
            .values()
            .filter(|request| matches!(request.fate, Fate::Waiting | Fate::Left))
            .count();
        self.require(reserved == held, "the ledger is the sum of what runs (I11)");
        self.require(reserved <= BUDGET, "the budget holds (I11)");
        self.require(queued == waiting, "who waits is in the queue (I4)");
        for worker in WORKERS {
            let believed = self.life(worker).map(|life| life.epoch);
            let there = self.processes.get(&worker).map(|process| process.epoch);
            self.require(
                believed.is_none() || there.is_none() || believed == there,
                "it believes in another life (I7)",
            );
            // The next event reports a process that was just started.
            self.require(
                answering || self.adopting || there.is_none() || believed.is_some(),
                "a process is forgotten (I7)",
            );
        }
        self.judge_delivery();
    }

    /// The target comes to have the permits and the policy that the supervisor thinks it has (I12).
    pub(super) fn judge_delivery(&mut self) {
        let target = self.processes.get(&WorkerId::Target);
        let reached = target.filter(|process| {
            !process.frozen && !process.hung && !process.killed && !process.leaving
        });
        let ready = matches!(self.core.target().phase(), Phase::Ready { .. });
        let calm =
            ready && self.faults.unreached_until <= self.now && self.unresponsive_until <= self.now;
        let Some(epoch) = reached.map(|process| process.epoch).filter(|_| calm) else {
            self.delivered.behind_since = None;
            return;
        };
        let policy = self.delivered.policy == Some((self.term, self.core.routing().policy().epoch));
        let differs = |(ticket, request): (&Ticket, &super::Request)| {
            let runs = matches!(request.fate, Fate::Running { epoch: of, .. } if of == epoch);
            runs && request.permit.is_some()
                && request.permit != self.core.admission().permit(*ticket)
        };
        let permits = !self.requests.iter().any(differs);
        if policy && permits {
            self.delivered.behind_since = None;
            return;
        }
        let since = *self.delivered.behind_since.get_or_insert(self.now);
        let what = if permits {
            "the target has an old policy (I12)"
        } else {
            "a request keeps an old permit (I12)"
        };
        self.require(self.now - since <= DELIVERY_MS, what);
    }

    /// Whether the supervisor knows of a process there.
    pub(super) fn believes(&self, worker: WorkerId) -> bool {
        self.life(worker).is_some()
    }

    fn life(&self, worker: WorkerId) -> Option<&worker::Life> {
        match worker {
            WorkerId::Target => self.core.target().life(),
            WorkerId::Drafter(slot) => self.core.drafters().slot(slot).life(),
        }
    }

    /// Nothing that comes of a drafter reaches the target or a request (I3).
    pub(super) fn judge_drafter_isolation(&mut self, before: &(Phase, Notice), actions: &[Action]) {
        let same = *before == (self.core.target().phase(), self.core.notice());
        self.require(same, "a drafter reaches the target (I3)");
        // That one ends may make room for a request that waits.
        let fate = |action: &Action| {
            matches!(action, Action::Deny { .. } | Action::Abort { .. } | Action::LogService { .. })
        };
        let ends = self.core.is_stopping();
        self.require(ends || !actions.iter().any(fate), "a drafter reaches a request (I3)");
    }

    pub(super) fn judge_link(&mut self, slot: WorkerSlot, ends: LinkEnds) {
        let life = |epoch: Option<&worker::Life>| epoch.map(|life| life.epoch);
        let (target, drafter) =
            (life(self.life(WorkerId::Target)), life(self.life(WorkerId::Drafter(slot))));
        self.require(
            (target, drafter) == (Some(ends.target), Some(ends.drafter)),
            "a link between other lives (I7)",
        );
        let ready = |phase| matches!(phase, Phase::Ready { .. });
        let both =
            ready(self.core.target().phase()) && ready(self.core.drafters().slot(slot).phase());
        self.require(both, "a link with one that is not ready");
    }

    /// No key is admitted above its share while another waits that is below it.
    pub(super) fn judge_turn(&mut self, ticket: Ticket) {
        let Some(key) = self.requests.get(&ticket).map(|request| request.summary.key) else {
            return;
        };
        let fairness = FairnessCheck::new(self.requests.iter().map(|(ticket, request)| {
            let standing = match request.fate {
                Fate::Waiting | Fate::Left => Standing::Waiting,
                Fate::Running { .. } => Standing::Running,
                Fate::Over { cost_bytes } if cost_bytes > 0 => Standing::Running,
                Fate::Over { .. } => Standing::Gone,
            };
            (*ticket, request.summary.key, standing)
        }));
        let limit = self.settings.admission.streams_per_key;
        fairness.passed(key, limit).into_iter().for_each(|passed| self.tally(true, passed));
        if let Err(why) = fairness.judge(key, limit) {
            self.require(false, &format!("r{}: {why}", ticket.0));
        }
    }

    /// Drafts are allowed only over a link that the target reported as up.
    pub(super) fn judge_permit(&mut self, permit: Permit) {
        self.require(
            permit.lane == Lane::Plain || self.received.up.is_some(),
            "drafts are allowed and there is no link",
        );
        self.require(
            (permit.lane == Lane::Plain) == (permit.max_draft == 0),
            "a permit contradicts itself",
        );
    }

    /// Where nothing that was measured or ordered speaks against drafts they are allowed, whatever
    /// went before (I12).
    pub(super) fn judge_route(&mut self, ticket: Ticket, permit: Permit) {
        let Some(request) = self.requests.get(&ticket).copied() else { return };
        let policy = *self.core.routing().policy();
        let images = request.summary.images();
        let blind = self.processes.get(&WorkerId::Drafter(self.core.drafters().current_slot()));
        let blind = blind.is_some_and(|process| !serves_images(&process.model));
        self.require(
            permit.reason != RouteReason::Modality || images,
            "a text request is denied drafts for images it has not",
        );
        self.require(
            permit.reason != RouteReason::Modality || permit.lane == Lane::Plain,
            "a permit contradicts itself",
        );
        self.tally(images && permit.lane == Lane::Speculative, "drafts with images");
        let wishes = policy.force == Force::Speculative
            || request.summary.wish != paceline_vocabulary::RouteWish::Plain;
        let slot = WorkerId::Drafter(self.core.drafters().current_slot());
        let link = self.links.serving.filter(|(generation, of, _)| {
            WorkerId::Drafter(*of) == slot
                && self.received.up == Some(*generation)
                && generation >> 32 == self.term
        });
        let calm = wishes
            && !(images && blind)
            && link.is_some()
            && self.orders.is_empty()
            && self
                .processes
                .get(&slot)
                .is_some_and(|process| !process.leaving && !process.killed && !process.hung)
            && self.received.works(WorkerId::Target, self.now)
            && self.received.works(slot, self.now)
            && !self.received.not_worth
            && policy.force != Force::Plain
            && policy.max_concurrent == Auto::Auto
            && self.received.pressure <= policy.kv_pressure
            && self.core.admission().active() <= FEW;
        let allowed = permit.lane == Lane::Speculative;
        self.tally(calm, "calm");
        self.require(
            !calm || allowed,
            &format!("nothing speaks against drafts, and the permit is {permit:?} (I12)"),
        );
    }

    pub(super) fn tally(&mut self, holds: bool, what: &str) {
        if holds {
            *self.seen.entry(what.to_owned()).or_default() += 1;
        }
    }

    /// Everything that is wanted runs.
    pub(super) fn is_well(&self) -> bool {
        let drafters = self.core.drafters();
        let drafts = !drafters.is_wanted()
            || matches!(
                drafters.state(),
                DrafterState::Ready { .. } | DrafterState::Late { .. } | DrafterState::Incompatible
            );
        let works = self
            .processes
            .get(&WorkerId::Target)
            .is_some_and(|process| !process.hung && !process.frozen);
        let ready = matches!(self.core.target().phase(), Phase::Ready { .. })
            && self.now >= self.unresponsive_until;
        works
            && ready
            && !self.absent
            && !self.core.is_stopping()
            && drafts
            && self.orders.is_empty()
    }
}
