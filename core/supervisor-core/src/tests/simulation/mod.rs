//! The core against thousands of seeded random schedules. The simulated world does what the contract
//! allows, at any time:
//! - Processes die, freeze and return.
//! - Requests come and go.
//! - Operators start, stop and swap drafters.
//! - Memory of killed processes stays wired, for a while or for ever.
//! - Links go up, are refused, lost and ejected.
//! - Events arrive late or from an earlier epoch.
//! - Supervisors are killed or restarted, and others adopt their workers.
//!
//! Asserted at each admission:
//! - Within a key the oldest request comes first.
//! - No key runs more than its limit.
//! - No key is admitted above its share while a key below its share waits.
//!
//! Asserted after each event:
//! - No request waits longer than the queue's time limit, and the queue is bounded (I6).
//! - The ledger is the sum of what runs (I11).
//! - No request is admitted to an epoch that has no process (I7).
//! - No second process is started in a slot.
//! - No event of a drafter changes the target's phase or a request's fate (I3).
//! - Drafts are allowed only over a link that the target reported as up.
//! - Refused drafters are passed over in the order of the list, each once.
//! - A request is refused as the suspect of two ends of the target only if the target ended twice
//!   under its content, sent by its key, before a token.
//!
//! Asserted at the end of each request and order: exactly one outcome (I4).
//!
//! Asserted at the end of the schedule: no process is left.

mod links;
mod perform;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tests::testing::*;
use links::Links;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Waiting,
    Running {
        epoch: Epoch,
        cost_bytes: u64,
    },
    /// Delivered its outcome; until its end is reported to the core it holds what a living target
    /// still holds for it.
    Over {
        reported: bool,
        cost_bytes: u64,
    },
}

const WORKERS: [WorkerId; 3] =
    [WorkerId::Target, WorkerId::Drafter(WorkerSlot::First), WorkerId::Drafter(WorkerSlot::Second)];

/// A worker's process as the world has it.
#[derive(Clone, Debug, Default)]
struct Process {
    epoch: Option<Epoch>,
    doomed: bool,
    describing: bool,
    kills: u32,
    steps: u64,
    /// Of a drafter.
    model: String,
    /// An earlier supervisor started it, and this one has not found it yet.
    left: bool,
    earlier: bool,
}

struct World {
    seed: u64,
    random: Random,
    /// Processes show themselves often and fall seldom, so that more comes to pass.
    calm: bool,
    now: Millis,
    core: Supervisor,
    settings: Settings,
    plan: DrafterPlan,
    /// The supervisor's.
    term: u64,
    /// It was asked to end and be started again.
    leaving: bool,
    /// Number of the gateway's newest stream.
    attachment: u64,
    capacity: Capacity,
    requests: BTreeMap<Ticket, (RequestSummary, Fate)>,
    /// When each of them came, by its number.
    submitted: Vec<Millis>,
    processes: BTreeMap<WorkerId, Process>,
    links: Links,
    /// Each order's kind, whether it was answered, and the target's last epoch before it.
    orders: BTreeMap<OrderId, (&'static str, bool, u64)>,
    /// Requests that have tokens since their admission.
    progressed: BTreeSet<Ticket>,
    /// Number of ends of the target under a request without a token, by key and content.
    ends_without_token: BTreeMap<(KeyId, u64), u64>,
    /// The routes of those that run.
    permits: BTreeMap<Ticket, Permit>,
    /// The requests that this event admitted. A request that waited for its key's turn may run
    /// beside later ones; the next event routes it by what then runs.
    admitted: Vec<Ticket>,
    /// Those that the last order for other permits did not reach.
    missed: Vec<Ticket>,
    /// The target's last heartbeat had no figures.
    unmeasured: bool,
    last_target: u64,
    last_drafter: u64,
    /// Until when the memory of a killed process stays wired.
    wired_until: BTreeMap<WorkerId, Millis>,
    exited: bool,
    outcomes: u64,
    /// How often each kind of action was ordered: a simulation that never gets somewhere proves
    /// nothing about it.
    seen: BTreeMap<String, u64>,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut settings = Settings {
            admission: AdmissionBounds {
                queue_places: 4,
                queue_wait_ms: 3_000,
                streams_per_key: 2,
            },
            notice_ms: seed % 2 * 1_000,
            ..Settings::default()
        };
        if random.below(2) == 0 {
            settings.policy.max_concurrent = Auto::Is(1);
        }
        let starts =
            [DrafterStart::Eager, DrafterStart::Eager, DrafterStart::Lazy, DrafterStart::Manual];
        let models: &[&str] = match random.below(8) {
            0 => &[],
            1 | 2 => &["/d", "/e"],
            3 => &["/g", "/d", "/e"],
            _ => &["/d"],
        };
        let plan = DrafterPlan {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            start: starts[random.below(4) as usize],
            ..Default::default()
        };
        let plan = DrafterPlan { idle_stop_ms: [0, 0, 2_000][random.below(3) as usize], ..plan };
        settings.log_routes = true;
        settings.worker.kill_strands_memory = seed % 8 == 5;
        let capacity = Capacity {
            classes: kv_classes(&[(256, 100), (512, 200), (1024, 600)]),
            max_sequences: 3,
            patch_bytes: 1,
        };
        Self {
            seed,
            calm: random.below(2) == 0,
            random,
            now: Millis(0),
            core: Supervisor::new(settings, plan.clone(), Term(seed)),
            settings,
            plan,
            term: seed,
            leaving: false,
            attachment: 1,
            capacity,
            requests: BTreeMap::new(),
            submitted: Vec::new(),
            processes: WORKERS.into_iter().map(|worker| (worker, Process::default())).collect(),
            links: Links::new(seed << 32),
            progressed: BTreeSet::new(),
            ends_without_token: BTreeMap::new(),
            permits: BTreeMap::new(),
            admitted: Vec::new(),
            missed: Vec::new(),
            unmeasured: true,
            orders: BTreeMap::new(),
            last_target: 0,
            last_drafter: 0,
            wired_until: BTreeMap::new(),
            exited: false,
            outcomes: 0,
            seen: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn assert(&self, holds: bool, what: &str) {
        assert!(
            holds,
            "seed {}: {what}\n{}",
            self.seed,
            self.log[self.log.len().saturating_sub(40)..].join("\n")
        );
    }

    fn at(&mut self, worker: WorkerId) -> &mut Process {
        self.processes.get_mut(&worker).expect("all are there")
    }

    fn epoch(&self, worker: WorkerId) -> Option<Epoch> {
        self.processes[&worker].epoch
    }

    /// One event, and those by which the shell answers its actions.
    fn deliver(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let line = format!("{event:?}");
            self.admitted.clear();
            let of_a_drafter = matches!(
                event,
                Event::Worker(WorkerId::Drafter(_), _)
                    | Event::Connected { .. }
                    | Event::DrafterOrdered { .. }
            );
            // Its end gives memory back, which may be what a request waits for.
            let makes_room =
                matches!(event, Event::Worker(WorkerId::Drafter(_), worker::Event::Exited { .. }));
            if let Event::Worker(worker, worker::Event::Exited { exit, .. }) = &event {
                self.leave_wired(*worker, *exit);
            }
            let before = (self.core.target().phase(), self.core.notice());
            let actions = self.core.on_event(event, self.now);
            let named: Vec<String> = actions.iter().map(name_of).collect();
            for name in &named {
                // Numbers and values make no kind of their own; that a draft is allowed does.
                let kind = name.split_whitespace().map(|word| {
                    if word.starts_with("speculative=") { "speculative" } else { word }
                });
                let plain = |word: &&str| {
                    !word.contains(|c: char| c.is_ascii_digit() || matches!(c, '=' | '/' | ','))
                };
                *self.seen.entry(kind.filter(plain).collect::<Vec<_>>().join(" ")).or_default() +=
                    1;
            }
            self.log.push(format!("t={} {line} => {}", self.now.0, named.join("; ")));
            if of_a_drafter {
                self.assert(
                    before == (self.core.target().phase(), self.core.notice()),
                    "a drafter reaches the target (I3)",
                );
                let fates = |action: &Action| match action {
                    Action::Admit { .. } => !makes_room,
                    Action::Deny { .. } | Action::Abort { .. } | Action::LogService { .. } => true,
                    _ => false,
                };
                let ends = self.core.is_stopping();
                self.assert(ends || !actions.iter().any(fates), "a drafter reaches a request (I3)");
            }
            for action in actions {
                events.extend(self.perform(action));
            }
            let deadline = self.core.next_deadline();
            self.assert(deadline.is_none_or(|due| due > self.now), "a deadline is left over");
            self.check(!events.is_empty());
            self.check_list();
        }
    }

    fn check(&mut self, answering: bool) {
        let admission = self.core.admission();
        self.assert(
            admission.queued() <= self.settings.admission.queue_places,
            "the queue is bounded",
        );
        self.assert(admission.active() <= self.capacity.max_sequences, "sequences are bounded");
        let held = self.requests.values().map(|(_, fate)| match fate {
            Fate::Running { cost_bytes, .. } | Fate::Over { cost_bytes, .. } => *cost_bytes,
            Fate::Waiting => 0,
        });
        let waiting = self.requests.values().filter(|(_, fate)| *fate == Fate::Waiting).count();
        self.assert(
            admission.reserved_bytes() == held.sum::<u64>(),
            "the ledger is the sum of what runs",
        );
        self.assert(admission.queued() == waiting, "who waits is in the queue");
        let overdue = self.requests.iter().filter(|(_, (_, fate))| *fate == Fate::Waiting).find(
            |(ticket, _)| {
                let since = self.submitted.get(ticket.0 as usize).copied().unwrap_or(self.now);
                self.now.since(since) >= self.settings.admission.queue_wait_ms
            },
        );
        self.assert(overdue.is_none(), "a request waits longer than it may");
        self.assert(admission.reserved_bytes() <= 700, "the budget holds");
        // The longest running request is not held back by requests that ran beside it before (I12).
        // A request that has its outcome and holds memory is routed until its end is reported.
        let live = |(_, fate): &(RequestSummary, Fate)| match fate {
            Fate::Running { .. } => true,
            Fate::Over { reported, cost_bytes } => !reported && *cost_bytes > 0,
            Fate::Waiting => false,
        };
        self.permits.retain(|ticket, _| self.requests.get(ticket).is_some_and(live));
        if let Some((ticket, permit)) = self.permits.first_key_value() {
            let crowd = permit.lane == Lane::Plain && permit.reason == RouteReason::Concurrency;
            let elsewise = self.unmeasured
                && self.core.kv_pressure() <= self.core.routing().policy().kv_pressure;
            let delivered = !self.missed.contains(ticket) && !self.admitted.contains(ticket);
            self.assert(
                answering || !delivered || !elsewise || !crowd,
                &format!("r{} is alone and held back by load (I12)", ticket.0),
            );
        }
        for worker in WORKERS {
            let life = match worker {
                WorkerId::Target => self.core.target().life(),
                WorkerId::Drafter(slot) => self.core.drafters().slot(slot).life(),
            };
            let (believed, there) = (life.map(|life| life.epoch), self.epoch(worker));
            if self.processes[&worker].left {
                continue;
            }
            self.assert(
                believed.is_none() || there.is_none() || believed == there,
                "it believes in another life",
            );
            // The next event reports a process that was just started.
            self.assert(
                answering || there.is_none() || believed.is_some(),
                "a process is forgotten",
            );
        }
    }

    /// Refused drafters are passed over in the order of the list, each once.
    fn check_list(&self) {
        let drafters = self.core.drafters();
        let mut rest = self.plan.models.iter();
        let refused = drafters.refused();
        let passed = refused.iter().filter(|refused| refused.model != drafters.model());
        let in_order =
            passed.map(|refused| &refused.model).all(|model| rest.any(|listed| listed == model));
        self.assert(in_order, "a drafter is passed over that is not the next of the list");
    }

    /// Relays of requests with an outcome report their ends.
    fn settle(&mut self) {
        let delivered: Vec<Ticket> =
            self.tickets(|fate| matches!(fate, Fate::Over { reported: false, .. }));
        for ticket in delivered {
            self.report(ticket);
        }
    }

    fn report(&mut self, ticket: Ticket) {
        self.requests.get_mut(&ticket).expect("known").1 =
            Fate::Over { reported: true, cost_bytes: 0 };
        self.deliver(Event::Ended { ticket });
    }

    fn tickets(&self, which: impl Fn(&Fate) -> bool) -> Vec<Ticket> {
        self.requests
            .iter()
            .filter(|(_, (_, fate))| which(fate))
            .map(|(ticket, _)| *ticket)
            .collect()
    }

    fn sleep(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= until) {
            // Now and then we are the ones who sleep.
            let late = if self.random.below(50) == 0 { self.random.below(90_000) } else { 0 };
            self.now = due + late;
            self.deliver(Event::TimePassed);
            self.reap();
        }
        self.now = until.max(self.now);
    }

    /// Doomed processes die at some time.
    fn reap(&mut self) {
        for worker in WORKERS {
            if self.processes[&worker].doomed && self.random.below(2) == 0 {
                self.die(worker, WorkerExit::Signal(9));
            }
        }
    }

    fn die(&mut self, worker: WorkerId, exit: WorkerExit) {
        if let Some(epoch) = self.at(worker).epoch.take() {
            self.at(worker).doomed = false;
            self.links.died(worker, epoch);
            self.deliver(Event::Worker(
                worker,
                worker::Event::Exited { epoch, exit, log: String::new() },
            ));
        }
    }

    fn heartbeat(&mut self, worker: WorkerId, epoch: Epoch) {
        let phases = [
            WorkerPhase::Loading,
            WorkerPhase::Idle,
            WorkerPhase::Idle,
            WorkerPhase::Decode,
            WorkerPhase::Prefill,
        ];
        let phase = match self.random.below(if self.calm { 600 } else { 60 }) {
            0 => WorkerPhase::Stopping,
            1 => WorkerPhase::Failed,
            _ => phases[self.random.below(5) as usize],
        };
        let more = self.random.below(2);
        self.at(worker).steps += more;
        let steps = self.processes[&worker].steps;
        let kv = Some(KvUse {
            budget_bytes: 700,
            held_bytes: self.random.below(650),
            ..Default::default()
        });
        let mut heartbeat = Heartbeat { steps, kv, ..Heartbeat::new(epoch, phase) };
        if worker == WorkerId::Target && self.epoch(worker) == Some(epoch) {
            heartbeat.link = Some(self.links.report());
            heartbeat.figures = self.figures();
            let free =
                [None, Some(0), Some(300), Some(5_000), Some(5_000)][self.random.below(5) as usize];
            self.deliver(Event::MemoryRead { available_bytes: free });
        }
        self.deliver(Event::Worker(worker, worker::Event::Heartbeat(Box::new(heartbeat))));
    }

    /// Figures that the target reports as measured: at first none, then a gain or none.
    fn figures(&mut self) -> Option<SpeculationFigures> {
        let gain = [0.0, 0.0, 1.0, 1.5][self.random.below(4) as usize];
        self.unmeasured = gain == 0.0;
        let bucket = SpeculationBucket { up_to: 64, steps: 1_000, gain };
        let draft = Some(CostModel { observations: 10, ..Default::default() });
        (!self.unmeasured).then(|| SpeculationFigures {
            draft,
            by_sequences: vec![bucket],
            ..Default::default()
        })
    }

    fn run(mut self) -> BTreeMap<String, u64> {
        // What an earlier supervisor left in the drafters' places.
        for slot in WorkerSlot::ALL {
            if self.random.below(4) == 0 {
                self.last_drafter += 1;
                let (worker, epoch) = (WorkerId::Drafter(slot), Epoch(self.last_drafter));
                *self.at(worker) = Process {
                    epoch: Some(epoch),
                    model: "/f".into(),
                    earlier: true,
                    ..Default::default()
                };
                self.deliver(Event::Worker(worker, worker::Event::Found { epoch, pid: 9 }));
            }
        }
        self.deliver(Event::Begun);
        for _ in 0..self.random.below(500) {
            self.step();
            if self.exited && self.leaving {
                self.settle();
                self.supervisor_again(false);
            }
            if self.exited {
                break;
            }
        }
        // The end is bounded, whatever went before and however the processes behave (I6).
        let begun = self.now;
        for _ in 0..4 {
            self.deliver(Event::StopAsked);
        }
        while !self.exited {
            self.settle();
            self.assert(self.now.since(begun) < 3_600_000, "it does not end");
            let running = self.tickets(|fate| matches!(fate, Fate::Running { .. }));
            self.assert(running.is_empty(), "cancelled requests have their outcome");
            self.reap();
            self.sleep(1_000);
        }
        self.settle();
        self.assert(self.core.admission().reserved_bytes() == 0, "all bytes came back");
        self.assert(
            self.tickets(|fate| !matches!(fate, Fate::Over { reported: true, .. })).is_empty(),
            "each has its outcome",
        );
        self.assert(self.outcomes == self.requests.len() as u64, "each has one outcome");
        self.seen
    }
}

/// Longer than 60 lines by the list of what has to be reached.
#[test]
fn random_schedules_keep_the_invariants() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 1..=4_000 {
        for (kind, times) in World::new(seed).run() {
            *seen.entry(kind).or_default() += times;
        }
    }
    let expected = [
        "admit plain drafter_absent",
        "admit plain drafter_loading",
        "admit plain drafter_suspect",
        "admit plain drafter_incompatible",
        "admit plain concurrency",
        "admit plain not_worth",
        "admit plain kv_pressure",
        "admit speculative benefit",
        "suspect",
        "policy",
        "rests",
        "admit speculative prior",
        "admit speculative forced",
        "admit speculative drafter_late",
        "answer done",
        "answer DRAFTER_FAILED",
        "answer DRAFTER_INCOMPATIBLE",
        "answer DRAFTER_STATE",
        "answer CRASH_LOOP",
        "connect",
        "link up",
        "link pausing",
        "link over",
        "phase failed->stopped",
        "refused next",
        "link suspect",
        "repermit speculative prior",
        "repermit plain drafter_absent",
        "started",
        "stopped",
        "swapped",
        "renewed",
        "target restarted",
        "drafter restarted",
        "gateway restarted",
        "drained",
        "undone",
        "another supervisor",
        "taken over",
        "service draining->over",
        "service cutting->over",
        "abort RESTARTING",
        "deny DRAINING",
        "deny CRASH_LOOP",
        "deny HOST_MEMORY_STRANDED",
        "read_wired",
        "phase backing_off->failed",
        "service serving->ending",
        "deny DEADLINE_PASSED",
        "deny DRAINING",
        "deny PROMPT_TOO_LONG",
        "deny QUEUE_FULL",
        "displaced",
        "passed at its share",
        "passed at its limit",
        "deny QUEUE_WAIT",
        "deny RESTARTING",
        "deny TARGET_LOADING",
        "abort TARGET_GONE",
        "abort DRAINING",
        "kill",
        "overslept",
        "phase ready->suspect",
        "phase suspect->ready",
        "phase suspect->ending",
        "phase failed->starting",
        "look",
        "phase ending->backing_off",
        "service draining->cutting",
        "service cutting->ending",
        "exit",
    ];
    for kind in expected {
        assert!(
            seen.get(kind).is_some_and(|times| *times >= 5),
            "{kind} is hardly reached: {seen:#?}"
        );
    }
}
