//! The core against thousands of seeded random schedules of a world that keeps its side of the contract and nothing else:
//! processes die, freeze, lie still and come back, requests come and go, news arrives late or from an earlier life.
//!
//! After each event: the queue is bounded (I6), the ledger is the sum of what runs (I11), nobody is admitted to a life
//! that is not there (I7), no second process is started. At the end of each request: exactly one outcome (I4).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use paceline_process::{Config, Millis};
use paceline_proto::ids::Epoch;
use paceline_proto::internal::v1::{Heartbeat, KvUse, ModelInfo, WorkerPhase};
use paceline_proto::v1::RouteWish;

use super::admission::{Ask, Capacity, Ticket};
use super::denial::Denial;
use super::scenarios::name_of;
use super::worker::{self, Described, Exit, Phase};
use super::{Action, Event, Settings, Supervisor};

/// xorshift64*: the schedule is a function of the seed alone.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % sides
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Waiting,
    Running {
        epoch: Epoch,
        cost_bytes: u64,
    },
    /// Told its outcome; until its end is reported to the core it holds what a living target still holds for it.
    Over {
        reported: bool,
        cost_bytes: u64,
    },
}

struct World {
    seed: u64,
    dice: Dice,
    now: Millis,
    core: Supervisor,
    settings: Settings,
    capacity: Capacity,
    requests: BTreeMap<Ticket, (Ask, Fate)>,
    process: Option<Epoch>,
    doomed: bool,
    describing: bool,
    steps: u64,
    last_epoch: u64,
    exited: bool,
    outcomes: u64,
    /// How often each kind of action was ordered: a simulation that never gets somewhere proves nothing about it.
    seen: BTreeMap<String, u64>,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut settings = crate::config::settings(&Config::default());
        settings.places = 4;
        settings.queue_wait_ms = 3_000;
        let capacity = Capacity { classes: vec![(256, 100), (512, 200), (1024, 600)], max_sequences: 3 };
        Self {
            seed,
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now: Millis(0),
            core: Supervisor::new(settings),
            settings,
            capacity,
            requests: BTreeMap::new(),
            process: None,
            doomed: false,
            describing: false,
            steps: 0,
            last_epoch: 0,
            exited: false,
            outcomes: 0,
            seen: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn assert(&self, holds: bool, what: &str) {
        assert!(holds, "seed {}: {what}\n{}", self.seed, self.log[self.log.len().saturating_sub(40)..].join("\n"));
    }

    /// One event, and those by which the shell answers its actions.
    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let line = format!("{event:?}");
            let actions = self.core.on_event(event, self.now);
            let named: Vec<String> = actions.iter().map(name_of).collect();
            for name in &named {
                let kind = name.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit() || c == '='));
                *self.seen.entry(kind.collect::<Vec<_>>().join(" ")).or_default() += 1;
            }
            self.log.push(format!("t={} {line} => {}", self.now.0, named.join("; ")));
            for action in actions {
                events.extend(self.obey(action).map(Event::Target));
            }
            let deadline = self.core.next_deadline();
            self.assert(deadline.is_none_or(|due| due > self.now), "a deadline is left over");
            self.check();
        }
    }

    fn obey(&mut self, action: Action) -> Option<worker::Event> {
        match action {
            Action::Target(worker::Action::Spawn) => {
                self.assert(self.process.is_none(), "a second process is started");
                self.describing = false;
                self.doomed = false;
                let what = self.dice.roll(20);
                if what == 0 {
                    return Some(worker::Event::SpawnFailed { cause: "no program".into() });
                }
                self.last_epoch += u64::from(what > 1);
                let epoch = Epoch(self.last_epoch);
                self.process = Some(epoch);
                let spawned = worker::Event::Spawned { epoch, pid: 9 };
                return Some(if what == 1 { worker::Event::Found { epoch, pid: 9 } } else { spawned });
            }
            Action::Target(worker::Action::AskStop { epoch, .. }) => {
                self.assert(self.process == Some(epoch), "another process is ended");
                match self.dice.roll(4) {
                    0 => return Some(worker::Event::Frozen { epoch }),
                    1 => return Some(worker::Event::StopAnswered { epoch, reached: false }),
                    2 => return Some(worker::Event::StopAnswered { epoch, reached: true }),
                    _ => self.doomed = true,
                }
            }
            Action::Target(worker::Action::Terminate { epoch }) => {
                self.assert(self.process == Some(epoch), "another process is ended");
                self.doomed |= self.dice.roll(2) == 0;
            }
            Action::Target(worker::Action::Kill { epoch }) => {
                self.assert(self.process == Some(epoch), "another process is ended");
                self.doomed |= self.dice.roll(4) != 0;
            }
            Action::Target(worker::Action::Describe { .. }) => self.describing = true,
            Action::Target(worker::Action::Clear) => self.assert(self.process.is_none(), "cleared under a living process"),
            Action::Target(worker::Action::Surprise { phase, event }) => self.assert(false, &format!("surprise {phase}/{event}")),
            Action::Target(worker::Action::Abandon { .. }) => self.assert(false, "an Abandon left the core"),
            Action::Target(worker::Action::LogPhase { .. }) | Action::Announce(_) | Action::LogService { .. } => {}
            Action::Admit { ticket, epoch, .. } => {
                self.assert(self.process == Some(epoch), "admitted to a life that is not there");
                self.assert(matches!(self.core.target().phase(), Phase::Ready { .. }), "admitted to one that is not ready");
                let cost_bytes = self.requests.get(&ticket).and_then(|(ask, _)| self.capacity.cost(ask.positions()));
                let cost_bytes = cost_bytes.expect("an admitted request fits");
                self.turn(ticket, Fate::Waiting, Fate::Running { epoch, cost_bytes });
            }
            Action::Deny { ticket, .. } => {
                self.outcomes += 1;
                self.turn(ticket, Fate::Waiting, Fate::Over { reported: false, cost_bytes: 0 });
            }
            Action::Cut { epoch, denial } => {
                let gone = matches!(denial, Denial::Gone { .. });
                for (_, fate) in self.requests.values_mut() {
                    match *fate {
                        Fate::Running { epoch: of, cost_bytes } if of <= epoch => {
                            self.outcomes += 1;
                            *fate = Fate::Over { reported: false, cost_bytes: if gone { 0 } else { cost_bytes } };
                        }
                        Fate::Over { reported, .. } if gone => *fate = Fate::Over { reported, cost_bytes: 0 },
                        _ => {}
                    }
                }
            }
            Action::Overslept { .. } => {}
            Action::Exit => {
                self.assert(!self.exited, "it ends twice");
                self.exited = true;
            }
        }
        None
    }

    fn turn(&mut self, ticket: Ticket, from: Fate, to: Fate) {
        let (ask, fate) = *self.requests.get(&ticket).expect("a known request");
        self.assert(fate == from, &format!("r{} is {fate:?}, not {from:?}", ticket.0));
        self.requests.insert(ticket, (ask, to));
    }

    fn check(&mut self) {
        let admission = self.core.admission();
        self.assert(admission.queued() <= self.settings.places, "the queue is bounded");
        self.assert(admission.active() <= self.capacity.max_sequences, "sequences are bounded");
        let held = self.requests.values().map(|(_, fate)| match fate {
            Fate::Running { cost_bytes, .. } | Fate::Over { cost_bytes, .. } => *cost_bytes,
            Fate::Waiting => 0,
        });
        let waiting = self.requests.values().filter(|(_, fate)| *fate == Fate::Waiting).count();
        self.assert(admission.reserved_bytes() == held.sum::<u64>(), "the ledger is the sum of what runs");
        self.assert(admission.queued() == waiting, "who waits is in the queue");
        self.assert(admission.reserved_bytes() <= 700, "the budget holds");
        let target = self.core.target();
        if let Some(life) = target.life() {
            self.assert(self.process.is_none_or(|epoch| epoch == life.epoch), "it believes in another life");
        }
    }

    /// Relays that were told report their ends.
    fn settle(&mut self) {
        let told: Vec<Ticket> = self.tickets(|fate| matches!(fate, Fate::Over { reported: false, .. }));
        for ticket in told {
            self.report(ticket);
        }
    }

    fn report(&mut self, ticket: Ticket) {
        self.requests.get_mut(&ticket).expect("known").1 = Fate::Over { reported: true, cost_bytes: 0 };
        self.tell(Event::Ended { ticket });
    }

    fn tickets(&self, which: impl Fn(&Fate) -> bool) -> Vec<Ticket> {
        self.requests.iter().filter(|(_, (_, fate))| which(fate)).map(|(ticket, _)| *ticket).collect()
    }

    fn sleep(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= until) {
            // Now and then we are the ones who sleep.
            let late = if self.dice.roll(50) == 0 { self.dice.roll(90_000) } else { 0 };
            self.now = due + late;
            self.tell(Event::TimePassed);
            if self.doomed && self.dice.roll(2) == 0 {
                self.die(Exit::Signal(9));
            }
        }
        self.now = until.max(self.now);
    }

    fn die(&mut self, exit: Exit) {
        if let Some(epoch) = self.process.take() {
            self.tell(Event::Target(worker::Event::Exited { epoch, exit, log: String::new() }));
        }
    }

    fn beat(&mut self, epoch: Epoch) {
        let phases = [WorkerPhase::Loading, WorkerPhase::Idle, WorkerPhase::Idle, WorkerPhase::Decode, WorkerPhase::Prefill];
        let phase = match self.dice.roll(60) {
            0 => WorkerPhase::Stopping,
            1 => WorkerPhase::Failed,
            _ => phases[self.dice.roll(5) as usize],
        };
        self.steps += self.dice.roll(2);
        let kv = Some(KvUse { budget_bytes: 700, ..Default::default() });
        let beat = Heartbeat { epoch: epoch.0, phase: phase.into(), steps: self.steps, kv, ..Default::default() };
        self.tell(Event::Target(worker::Event::Beat(beat)));
    }

    fn step(&mut self) {
        let any_epoch = Epoch(self.dice.roll(self.last_epoch + 2));
        match self.dice.roll(16) {
            0..=2 => {
                let ask = Ask {
                    prompt_tokens: self.dice.roll(700) as u32,
                    max_tokens: 1 + self.dice.roll(400) as u32,
                    deadline: (self.dice.roll(3) == 0).then(|| self.now + self.dice.roll(4_000)),
                    wish: RouteWish::Auto,
                };
                let ticket = Ticket(self.requests.len() as u64);
                self.requests.insert(ticket, (ask, Fate::Waiting));
                self.tell(Event::Submitted { ticket, ask });
            }
            3 | 4 => {
                let live = self.tickets(|fate| !matches!(fate, Fate::Over { .. }));
                if !live.is_empty() {
                    let ticket = live[self.dice.roll(live.len() as u64) as usize];
                    // Done, or its client is gone.
                    self.outcomes += 1;
                    self.report(ticket);
                }
            }
            5..=9 => match self.process {
                Some(epoch) => self.beat(epoch),
                None => self.beat(any_epoch),
            },
            10 => {
                if let (true, Some(epoch)) = (self.describing, self.process) {
                    self.describing = false;
                    let described = Arc::new(Described { model: ModelInfo::default(), capacity: self.capacity.clone() });
                    let failed = self.dice.roll(4) == 0;
                    let described = worker::Event::Described { epoch, described };
                    self.tell(Event::Target(if failed { worker::Event::DescribeFailed { epoch } } else { described }));
                }
            }
            11 => {
                // News of a life that is over, or never was.
                if Some(any_epoch) != self.process {
                    self.tell(Event::Target(worker::Event::Exited {
                        epoch: any_epoch,
                        exit: Exit::Signal(9),
                        log: String::new(),
                    }));
                    self.beat(any_epoch);
                }
            }
            12 => {
                let exit = [Exit::Signal(9), Exit::Code(0), Exit::Code(69), Exit::Unknown][self.dice.roll(4) as usize];
                if self.dice.roll(8) == 0 {
                    self.die(exit);
                }
            }
            13 if self.dice.roll(40) == 0 => {
                let stop = self.dice.roll(2) == 0;
                self.tell(if stop { Event::StopAsked } else { Event::ParentGone });
            }
            _ => {
                let ms = [10, 50, 100, 200, 300, 500, 3_000, 70_000][self.dice.roll(8) as usize];
                self.sleep(ms);
            }
        }
        if self.doomed && self.dice.roll(2) == 0 {
            self.die(Exit::Signal(15));
        }
        if self.dice.roll(3) > 0 {
            self.settle();
        }
    }

    fn run(mut self) -> BTreeMap<String, u64> {
        self.tell(Event::Target(worker::Event::StartAsked));
        for _ in 0..self.dice.roll(400) {
            self.step();
            if self.exited {
                break;
            }
        }
        // The end is bounded, whatever went before and however the process behaves (I6).
        let begun = self.now;
        for _ in 0..3 {
            self.tell(Event::StopAsked);
        }
        while !self.exited {
            self.settle();
            self.assert(self.now.since(begun) < 3_600_000, "it does not end");
            let running = self.tickets(|fate| matches!(fate, Fate::Running { .. }));
            self.assert(running.is_empty(), "cancelled requests are told");
            if self.doomed {
                self.die(Exit::Signal(9));
            }
            self.sleep(1_000);
        }
        self.settle();
        self.assert(self.core.admission().reserved_bytes() == 0, "all bytes came back");
        self.assert(self.tickets(|fate| !matches!(fate, Fate::Over { reported: true, .. })).is_empty(), "each has its outcome");
        self.assert(self.outcomes == self.requests.len() as u64, "each has one outcome");
        self.seen
    }
}

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
        "deny CRASH_LOOP",
        "deny DEADLINE_PASSED",
        "deny DRAINING",
        "deny PROMPT_TOO_LONG",
        "deny QUEUE_FULL",
        "deny QUEUE_WAIT",
        "deny RESTARTING",
        "deny TARGET_LOADING",
        "cut TARGET_GONE",
        "cut DRAINING",
        "kill",
        "overslept",
        "phase ready->suspect",
        "phase suspect->ready",
        "phase suspect->ending",
        "phase failed->starting",
        "phase ending->backing_off",
        "service draining->cutting",
        "service cutting->ending",
        "exit",
    ];
    for kind in expected {
        assert!(seen.get(kind).is_some_and(|times| *times >= 5), "{kind} is hardly reached: {seen:#?}");
    }
}
