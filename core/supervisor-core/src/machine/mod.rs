//! The core on a simulated machine with virtual time: processes that load, work, hang, freeze and
//! die, a wire that delays, loses and doubles messages, requests that come alone and in bursts,
//! operators, a clock that jumps. A run is a function of its seed and its schedule ([`schedule`]);
//! a schedule that fails is shrunk, written down, and can be run again:
//!
//! `PACELINE_SIMULATION=FILE cargo test -p paceline-supervisor-core --lib machine::tests::replay -- --ignored --nocapture`
//!
//! Beside `simulation`, in which anything happens at any time that the contract does not forbid,
//! this world is like the real one: causes have effects, so that more can be asserted. After each
//! event ([`judge`]): one outcome for each request (I4), everything bounded (I6), no belief in
//! another life (I7), the ledger is the sum of what runs (I11), nothing of a drafter reaches the
//! target or a request (I3), drafts are allowed only over a link the target said is up, and are
//! allowed again as soon as nothing measured speaks against them (I12), and the target comes to
//! have each permit and policy whatever was lost on the way; no worker is ended as hung that was
//! never silent or stuck. Behind each schedule comes peace: everything that is wanted runs again,
//! by itself.

mod inputs;
mod judge;
mod process;
mod schedule;
mod shell;
mod succession;
mod target;
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::testing::*;
use judge::Heard;
use process::{Faults, Process, kind};
use schedule::{Input, Size, draw, shrink};

/// Bytes of KV in all.
const BUDGET: u64 = 1_000;
/// Longest virtual time from the end of all faults until everything runs.
const PEACE_MS: u64 = 40 * 60_000;

/// Something that happens on the machine.
#[derive(Clone, Debug)]
enum Happening {
    /// A line of the schedule.
    Input(usize),
    /// A message reaches the supervisor.
    Told(Event),
    /// A process shows itself, and will again.
    Pulse(WorkerId, Epoch),
    /// A process shows itself because something changed.
    Shows(WorkerId, Epoch),
    /// A process ends.
    Dies(WorkerId, Epoch, WorkerExit),
    Thaws(WorkerId, Epoch),
    /// A request has its last token.
    Finishes(Ticket),
    /// A request's client goes.
    HangsUp(Ticket),
    /// The descriptors of a link are on their way.
    Handed(u64, WorkerSlot, LinkEnds),
    /// Its handshake is over.
    Greeted(u64),
    /// A request reaches the target.
    Arrives(Ticket, Permit),
    /// Other permits reach it, from a supervisor of this term.
    Permits(u64, Epoch, Vec<(Ticket, Permit)>),
    /// So does a policy.
    Policy(u64, Epoch, u64),
    /// A supervisor is started again.
    Returns,
    /// The lease of a process without a supervisor is over.
    Lease(WorkerId, Epoch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    /// Its client went while it waited: until that is reported the core goes on with it.
    Left,
    Running {
        epoch: Epoch,
        cost_bytes: u64,
        /// It was let in then.
        since: u64,
    },
    /// Told its outcome. Until its end is reported to the core it holds what it held.
    Over {
        cost_bytes: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Request {
    summary: RequestSummary,
    fate: Fate,
    /// Tokens of the answer it will get.
    answer: u32,
    /// It got it.
    served: bool,
    /// Its permit as the target has it, once the request is there.
    permit: Option<Permit>,
}

/// What the target was told, and how far it is behind.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The newest policy that is on its way.
    newest: u64,
    /// The supervisor's term and policy that arrived last.
    policy: Option<(u64, u64)>,
    /// Since then permits or policy are not what the supervisor thinks, and nothing was lost on the
    /// way.
    behind_since: Option<u64>,
}

/// The links as the target has them.
#[derive(Clone, Debug)]
struct Line {
    newest: Option<(u64, WorkerSlot, LinkEnds)>,
    phase: LinkPhase,
    serving: Option<(u64, WorkerSlot, LinkEnds)>,
}

impl Line {
    const ABSENT: Self = Self { newest: None, phase: LinkPhase::Absent, serving: None };
}

const WORKERS: [WorkerId; 3] =
    [WorkerId::Target, WorkerId::Drafter(WorkerSlot::First), WorkerId::Drafter(WorkerSlot::Second)];

struct Machine {
    seed: u64,
    random: Random,
    now: u64,
    core: FaultySupervisor,
    settings: Settings,
    plan: DrafterPlan,
    /// Number of the supervisor's life; none while there is no supervisor.
    term: u64,
    absent: bool,
    /// It has not found everything yet that the one before it left.
    looks_around: bool,
    /// `Attach` streams of gateways so far.
    gateways: u64,
    capacity: Capacity,
    inputs: Vec<Input>,
    /// Inputs that are still to come.
    to_come: usize,
    /// What is to come, by time and order.
    agenda: BTreeMap<(u64, u64), Happening>,
    numbered: u64,
    /// The supervisor is not run until then.
    deaf_until: u64,
    /// It was starved, and does not know yet for how long.
    starved_ms: u64,
    processes: BTreeMap<WorkerId, Process>,
    epochs: [u64; 2],
    faults: Faults,
    line: Line,
    told: Told,
    heard: Heard,
    requests: BTreeMap<Ticket, Request>,
    submitted: u64,
    outcomes: u64,
    /// What was ordered and is not answered.
    calls: BTreeMap<CallId, &'static str>,
    called: u64,
    exited: bool,
    seen: BTreeMap<String, u64>,
    log: VecDeque<String>,
    failure: Option<String>,
}

/// What a run came to.
type Outcome = Result<BTreeMap<String, u64>, String>;

impl Machine {
    fn new(seed: u64, inputs: Vec<Input>, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed ^ 0x5EED);
        let mut settings = Settings::default();
        (settings.queue_places, settings.streams_per_key) = (8, 3);
        let starts =
            [DrafterStart::Eager, DrafterStart::Eager, DrafterStart::Eager, DrafterStart::Lazy];
        let model = if random.below(12) == 0 { "" } else { "/d" };
        let idle_stop_ms = [0, 0, 20_000][random.below(3) as usize];
        let plan = DrafterPlan {
            model: model.to_owned(),
            start: starts[random.below(4) as usize],
            idle_stop_ms,
        };
        Self {
            seed,
            now: 0,
            core: FaultySupervisor::new(settings, plan.clone(), Term(1), bug),
            settings,
            plan,
            term: 1,
            absent: false,
            looks_around: false,
            gateways: 1,
            random,
            capacity: Capacity {
                classes: kv_classes(&[(256, 100), (512, 200), (1_024, 400)]),
                max_sequences: 6,
                patch_bytes: 1,
            },
            agenda: inputs
                .iter()
                .enumerate()
                .map(|(idx, input)| ((input.at, idx as u64), Happening::Input(idx)))
                .collect(),
            numbered: inputs.len() as u64,
            to_come: inputs.len(),
            inputs,
            deaf_until: 0,
            starved_ms: 0,
            processes: BTreeMap::new(),
            epochs: [0; 2],
            faults: Faults::default(),
            line: Line::ABSENT,
            told: Told::default(),
            heard: Heard::default(),
            requests: BTreeMap::new(),
            submitted: 0,
            outcomes: 0,
            calls: BTreeMap::new(),
            called: 0,
            exited: false,
            seen: BTreeMap::new(),
            log: VecDeque::new(),
            failure: None,
        }
    }

    /// Runs the schedule, then a time of peace, then the end.
    fn run(mut self) -> Outcome {
        self.tell(Event::Begun);
        self.tell_gateway(GatewayState::Ready);
        while self.failure.is_none() && self.to_come > 0 && self.turn() {}
        self.come_to_peace();
        self.come_to_an_end();
        match self.failure {
            None => Ok(self.seen),
            Some(what) => {
                let log: Vec<String> = self.log.into();
                Err(format!("{what}\n{}", log.join("\n")))
            }
        }
    }

    /// The next thing that happens; `false` when nothing ever will.
    fn turn(&mut self) -> bool {
        let due = self
            .core
            .next_deadline()
            .map(|due| due.0.max(self.deaf_until))
            .filter(|_| !self.absent);
        let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
        match (next, due) {
            (None, None) => return false,
            (next, Some(due)) if next.is_none_or(|next| due <= next) => {
                self.now = self.now.max(due);
                self.tell(Event::TimePassed);
            }
            _ => {
                let Some(((at, number), happening)) = self.agenda.pop_first() else { return false };
                if matches!(happening, Happening::Told(_)) && at < self.deaf_until {
                    // It waits in the mailbox, in its order.
                    self.agenda.insert((self.deaf_until, number), happening);
                } else {
                    self.now = self.now.max(at);
                    self.happen(happening);
                }
            }
        }
        true
    }

    fn come_to_peace(&mut self) {
        self.faults = Faults::default();
        // What operators have ordered stays until they undo it.
        self.command(5, 0);
        self.set_policy(0);
        self.post(0, Happening::Told(Event::MemoryRead { available_bytes: Some(1 << 30) }));
        for worker in WORKERS {
            if let Some(process) = self.processes.get_mut(&worker) {
                process.frozen = false;
            }
        }
        let begun = self.now;
        while self.failure.is_none() && !self.is_well() && self.turn() {
            if self.now - begun >= PEACE_MS {
                let state = (
                    self.core.target().phase(),
                    self.core.drafters().state(),
                    &self.calls,
                    self.core.drafters().reason(Millis(self.now)),
                );
                let what = format!("it does not recover by itself: {state:?}");
                self.hold(false, &what);
            }
        }
        while self.failure.is_none() && !self.requests.is_empty() && self.turn() {
            self.hold(self.now - begun < 2 * PEACE_MS, "a request has no end");
        }
        self.hold(self.calls.is_empty(), "an order has no answer");
        let before = self.count("admit");
        let ticket = Ticket(self.submitted);
        self.submit([100, 50, 0, 0, 0]);
        let sent = self.now;
        while self.failure.is_none()
            && !self.requests.contains_key(&ticket)
            && self.now - sent < 1_000
            && self.turn()
        {}
        self.hold(self.count("admit") > before, "in peace a request waits");
    }

    fn come_to_an_end(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.tell(Event::StopAsked);
        let begun = self.now;
        while self.failure.is_none() && !self.exited && self.turn() {
            self.hold(self.now - begun < 600_000, "it does not end (I6)");
        }
        while self.failure.is_none() && !self.requests.is_empty() && self.turn() {}
        self.hold(self.outcomes == self.submitted, "each request has one outcome (I4)");
        self.hold(self.core.admission().reserved_bytes() == 0, "all bytes came back (I11)");
        self.hold(self.processes.is_empty(), "a process is left");
        self.hold(self.calls.is_empty(), "an order has no answer");
    }

    fn count(&self, first: &str) -> u64 {
        self.seen
            .iter()
            .filter(|(name, _)| name.split(' ').next() == Some(first))
            .map(|(_, times)| times)
            .sum()
    }

    fn hold(&mut self, holds: bool, what: &str) {
        if !holds && self.failure.is_none() {
            self.failure =
                Some(format!("seed {}, t={:.3}: {what}", self.seed, self.now as f64 / 1e3));
        }
    }

    fn post(&mut self, delay_ms: u64, happening: Happening) {
        self.numbered += 1;
        self.agenda.insert((self.now + delay_ms, self.numbered), happening);
    }

    /// A message to the supervisor: now and then late, never lost. `twice`: now and then a second
    /// time.
    fn mail(&mut self, event: Event, twice: bool) {
        let delay = if self.random.below(40) == 0 {
            self.random.below(1_500)
        } else {
            self.random.below(4)
        };
        if twice && self.random.below(30) == 0 {
            let again = delay + self.random.below(5_000);
            self.post(again, Happening::Told(event.clone()));
        }
        self.post(delay, Happening::Told(event));
    }

    fn alive(&self, worker: WorkerId, epoch: Epoch) -> bool {
        self.processes.get(&worker).is_some_and(|process| process.epoch == epoch)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Input(idx) => {
                self.to_come -= 1;
                self.take_input(self.inputs[idx]);
            }
            Happening::Told(event) if self.absent => self.lose(&event),
            Happening::Told(event) => self.tell(event),
            Happening::Returns => self.succeed(),
            Happening::Lease(worker, epoch) => {
                if self.absent && self.alive(worker, epoch) {
                    self.die(worker, WorkerExit::Code(0));
                }
            }
            Happening::Pulse(worker, epoch) if self.alive(worker, epoch) => {
                self.show(worker);
                self.post(250, Happening::Pulse(worker, epoch));
            }
            Happening::Shows(worker, epoch) if self.alive(worker, epoch) => self.show(worker),
            Happening::Dies(worker, epoch, exit) if self.alive(worker, epoch) => {
                self.die(worker, exit)
            }
            Happening::Thaws(worker, epoch) if self.alive(worker, epoch) => {
                self.processes.get_mut(&worker).expect("alive").frozen = false;
            }
            Happening::Finishes(ticket) => self.finish(ticket),
            Happening::HangsUp(ticket) => {
                let waits =
                    self.requests.get(&ticket).is_some_and(|request| request.fate == Fate::Waiting);
                self.is_told(ticket);
                if let (true, Some(request)) = (waits, self.requests.get_mut(&ticket)) {
                    request.fate = Fate::Left;
                }
            }
            Happening::Handed(generation, slot, ends) => self.take_link(generation, slot, ends),
            Happening::Greeted(generation) => self.greet(generation),
            Happening::Arrives(ticket, permit) => self.arrive(ticket, permit),
            Happening::Permits(term, epoch, changes) => self.take_permits(term, epoch, changes),
            Happening::Policy(term, epoch, policy) => self.take_policy(term, epoch, policy),
            // Of a process that is gone.
            Happening::Pulse(..)
            | Happening::Shows(..)
            | Happening::Dies(..)
            | Happening::Thaws(..) => {}
        }
    }

    /// One event, those by which the shell answers its actions, and what is to hold then.
    fn tell(&mut self, event: Event) {
        // The shell notices, and says so before anything else.
        let starved = std::mem::take(&mut self.starved_ms);
        // How it was served, then that it is over: the shell's order.
        let served = if let Event::Ended { ticket } = event { self.served(ticket) } else { None };
        let mut events: VecDeque<Event> = served.into_iter().chain([event]).collect();
        if starved >= 900 {
            events.push_front(Event::Starved { ms: starved });
        }
        while let Some(event) = events.pop_front() {
            if self.absent {
                // It left in the middle.
                self.lose(&event);
                continue;
            }
            match event {
                Event::Submitted { ticket, summary } => {
                    let answer = self.draw_answer(&summary);
                    self.requests.insert(
                        ticket,
                        Request {
                            summary,
                            fate: Fate::Waiting,
                            answer,
                            served: false,
                            permit: None,
                        },
                    );
                }
                Event::Ended { ticket } => drop(self.requests.remove(&ticket)),
                _ => {}
            }
            self.heard.note(&event, self.now);
            let line = format!("{event:?}");
            let before = (self.core.target().phase(), self.core.notice());
            let of_a_drafter = matches!(
                event,
                Event::Worker(WorkerId::Drafter(_), _)
                    | Event::Connected { .. }
                    | Event::DrafterOrdered { .. }
            );
            let actions = self.core.on_event(event, Millis(self.now));
            let named: Vec<String> = actions.iter().map(name_of).collect();
            self.note(&line, &named);
            if of_a_drafter {
                self.judge_a_guest(&before, &actions);
            }
            for action in actions {
                // Behind its end nobody carries anything out.
                if !self.absent {
                    events.extend(self.obey(action));
                }
            }
            if !self.absent {
                self.judge(!events.is_empty());
            }
        }
    }

    fn note(&mut self, line: &str, named: &[String]) {
        for name in named {
            // Numbers and values make no kind of their own; that a draft is allowed does.
            let words = name
                .split_whitespace()
                .map(|word| if word.starts_with("speculative=") { "speculative" } else { word });
            let plain = |word: &&str| {
                !word.contains(|c: char| c.is_ascii_digit() || matches!(c, '=' | '/' | ','))
            };
            *self.seen.entry(words.filter(plain).collect::<Vec<_>>().join(" ")).or_default() += 1;
        }
        // Heartbeats that change nothing would push everything else out.
        if !named.is_empty() || !line.contains("Beat(") {
            self.write(format!("{line} => {}", named.join("; ")));
        }
    }

    fn write(&mut self, line: String) {
        if self.log.len() == 60 {
            self.log.pop_front();
        }
        self.log.push_back(format!("t={:.3} {line}", self.now as f64 / 1e3));
    }

    fn tell_gateway(&mut self, state: GatewayState) {
        let attachment = self.gateways;
        let report = gateway_report(attachment, state);
        self.post(0, Happening::Told(Event::Reported { attachment, report }));
    }

    /// A process sends a heartbeat.
    fn show(&mut self, worker: WorkerId) {
        let silent = self.faults.silent_until[kind(worker)] > self.now;
        let busy = worker == WorkerId::Target
            && self.requests.values().any(|request| matches!(request.fate, Fate::Running { .. }));
        let slow = self.faults.slow_until > self.now;
        let pressure = self.faults.pressure;
        let held =
            if pressure.1 > self.now { BUDGET * pressure.0 / 100 } else { self.held_bytes() };
        let (report, gain) = (self.report(), self.faults.gain);
        let (now, dropped, delay) = (self.now, self.random.below(50) == 0, self.random.below(6));
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.frozen || process.killed {
            return;
        }
        // A step of the slowest machine that is not hung takes 8 s.
        if !process.hung && now - process.stepped_at >= if slow { 8_000 } else { 1 } {
            process.steps += 1;
            process.stepped_at = now;
        }
        let phase = process.phase(now, busy, slow);
        let loaded_bytes = now.min(process.loaded_at);
        let mut heartbeat = Heartbeat {
            steps: process.steps,
            loaded_bytes,
            ..Heartbeat::new(process.epoch, phase)
        };
        if phase == WorkerPhase::Loading {
            heartbeat.steps = 0;
        } else if worker == WorkerId::Target {
            heartbeat.kv =
                Some(KvUse { budget_bytes: BUDGET, held_bytes: held, ..Default::default() });
            heartbeat.figures = gain.map(figures);
        }
        if worker == WorkerId::Target {
            heartbeat.link = Some(report);
        }
        let at = (now + delay).max(process.told_at);
        process.told_at = at;
        if !silent && !dropped {
            self.post(
                at - now,
                Happening::Told(Event::Worker(
                    worker,
                    worker::Event::Heartbeat(Box::new(heartbeat)),
                )),
            );
        }
    }

    fn report(&self) -> LinkReport {
        let number = |link: &Option<(u64, WorkerSlot, LinkEnds)>| {
            link.map_or(0, |(generation, _, _)| generation)
        };
        let (generation, serving) = (number(&self.line.newest), number(&self.line.serving));
        LinkReport { generation, phase: self.line.phase, reason: String::new(), serving }
    }

    fn describe(&self, worker: WorkerId) -> Arc<WorkerDescription> {
        Arc::new(match worker {
            WorkerId::Target => WorkerDescription::Target {
                model: ModelInfo::default(),
                capacity: self.capacity.clone(),
            },
            WorkerId::Drafter(_) => {
                let path = self
                    .processes
                    .get(&worker)
                    .map(|process| process.model.clone())
                    .unwrap_or_default();
                let images = serves_images(&path);
                WorkerDescription::Drafter(DrafterInfo {
                    path,
                    block_size: 8,
                    images,
                    ..Default::default()
                })
            }
        })
    }
}

/// Of the drafters there are one does not draft behind pictures.
fn serves_images(model: &str) -> bool {
    model != "/e"
}

/// Speculation is worth the same wherever it was measured.
fn figures(percent: u64) -> SpeculationFigures {
    let bucket =
        |up_to: u32| SpeculationBucket { up_to, steps: 1_000, gain: percent as f64 / 100.0 };
    SpeculationFigures {
        draft: Some(CostModel { observations: 1_000, ..Default::default() }),
        by_sequences: [1, 2, 4, 8, 16, 32].map(bucket).to_vec(),
        by_context: [512, 1_024, 2_048, 4_096].map(bucket).to_vec(),
        ..Default::default()
    }
}

/// How much happens in a schedule of the suite.
fn size(seed: u64) -> Size {
    let calm = seed % 4;
    Size {
        ms: 60_000 + seed % 7 * 20_000,
        request_ms: 700,
        fault_ms: 1_500 << (2 * calm),
        order_ms: 15_000 << calm,
    }
}

fn run(seed: u64, inputs: &[Input], bug: Option<Bug>) -> Outcome {
    let inputs = inputs.to_vec();
    std::panic::catch_unwind(move || Machine::new(seed, inputs, bug).run()).unwrap_or_else(
        |panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("the core panicked: {}", text.unwrap_or_default()))
        },
    )
}

/// Runs a schedule; one that fails is shrunk and written down.
fn check(seed: u64, size: Size) -> BTreeMap<String, u64> {
    let inputs = draw(&mut Random::new(seed), size);
    match run(seed, &inputs, None) {
        Ok(seen) => seen,
        Err(first) => {
            let tries = (4_000_000 / inputs.len().max(1)).min(400);
            let short = shrink(inputs.clone(), tries, |inputs| run(seed, inputs, None).is_err());
            let why = run(seed, &short, None).err().unwrap_or_else(|| first.clone());
            let mut text = format!("# {}\nseed {seed}\n", why.lines().next().unwrap_or_default());
            short.iter().for_each(|input| writeln!(text, "{input}").expect("a string"));
            let path = std::env::temp_dir().join(format!("paceline-simulation-{seed}.txt"));
            let saved = std::fs::write(&path, &text).is_ok();
            let place =
                if saved { format!("saved as {}", path.display()) } else { "not saved".to_owned() };
            panic!(
                "seed {seed} fails ({} of {} inputs are enough, {place}):\n{text}\n{why}",
                short.len(),
                inputs.len()
            );
        }
    }
}

/// A schedule that was written down.
fn read(text: &str) -> (u64, Vec<Input>) {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let seed = lines
        .next()
        .and_then(|line| line.strip_prefix("seed ")?.parse().ok())
        .expect("a line `seed N` first");
    (seed, lines.map(|line| line.parse().unwrap_or_else(|what| panic!("{what}"))).collect())
}
