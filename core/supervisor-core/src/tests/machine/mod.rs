//! The core on a simulated machine with virtual time:
//! - Processes load, work, hang, freeze and die.
//! - The wire delays, loses and doubles messages.
//! - Requests arrive alone and in bursts.
//! - Operators give orders.
//! - The clock jumps.
//!
//! A run is a function of its seed and its schedule ([`schedule`]). A schedule that fails is shrunk
//! and written to a file. The file can be run again:
//!
//! `PACELINE_SIMULATION=FILE cargo test -p paceline-supervisor-core --lib tests::machine::tests::replay --
//! --ignored --nocapture`
//!
//! In `simulation` anything happens at any time that the contract does not forbid. In this world
//! causes have effects, so the tests can assert more. After each event ([`judge`]):
//! - Each request has one outcome (I4).
//! - Everything is bounded (I6).
//! - The core assumes no epoch but the present one (I7).
//! - The ledger is the sum of what runs (I11).
//! - No event of a drafter reaches the target or a request (I3).
//! - Drafts are allowed only over a link that the target reported as up (I12).
//! - Drafts are allowed again as soon as no measurement is against them (I12).
//! - The target gets each permit and policy in the end, whatever messages were lost.
//! - A worker is ended as hung only if it was silent or stuck.
//! - A target whose files were refused is tried again only with other files, or by an order.
//!
//! After each schedule the faults end. Then every wanted process runs again by itself.

mod heartbeats;
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

use crate::tests::testing::*;
use heartbeats::serves_images;
use judge::Received;
use process::{Faults, ModelFiles, Process, kind};
use schedule::{Input, Size, draw, shrink};

/// Bytes of KV in all.
const BUDGET: u64 = 1_000;
/// Longest virtual time from the end of all faults until everything runs.
const RECOVERY_MS: u64 = 40 * 60_000;

/// Something that happens on the machine.
#[derive(Clone, Debug)]
enum Happening {
    /// A line of the schedule.
    Input(usize),
    /// A message reaches the supervisor.
    Message(Event),
    /// A process shows itself, and will again.
    HeartbeatTimer(WorkerId, Epoch),
    /// A process shows itself because something changed.
    HeartbeatNow(WorkerId, Epoch),
    /// A process ends.
    Dies(WorkerId, Epoch, WorkerExit),
    Thaws(WorkerId, Epoch),
    /// A request has its last token.
    Finishes(Ticket),
    /// A request's client goes.
    HangsUp(Ticket),
    /// The descriptors of a link are on their way.
    Handed(u64, WorkerSlot, LinkEnds),
    /// The handshake of a link is over.
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
    /// The client went while the request waited. Until that is reported the core still counts it.
    Left,
    Running {
        epoch: Epoch,
        cost_bytes: u64,
        /// It was let in then.
        since: u64,
    },
    /// Delivered its outcome. Until its end is reported to the core it holds what it held.
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
    /// Permit of the request as the target has it, once the request is there.
    permit: Option<Permit>,
}

/// Permits and policies on their way to the target.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
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
struct TargetLinks {
    newest: Option<(u64, WorkerSlot, LinkEnds)>,
    phase: LinkPhase,
    serving: Option<(u64, WorkerSlot, LinkEnds)>,
}

impl TargetLinks {
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
    /// The supervisor's term.
    term: u64,
    absent: bool,
    /// It has not found everything yet that the one before it left.
    adopting: bool,
    /// `Attach` streams of gateways so far.
    gateways: u64,
    capacity: Capacity,
    inputs: Vec<Input>,
    /// Inputs that are still to come.
    to_come: usize,
    /// Happenings that are to come, by time and order.
    agenda: BTreeMap<(u64, u64), Happening>,
    numbered: u64,
    /// The supervisor is not run until then.
    unresponsive_until: u64,
    /// It was starved, and does not know yet for how long.
    starved_ms: u64,
    processes: BTreeMap<WorkerId, Process>,
    epochs: [u64; 2],
    faults: Faults,
    files: ModelFiles,
    links: TargetLinks,
    delivered: Delivered,
    received: Received,
    requests: BTreeMap<Ticket, Request>,
    submitted: u64,
    outcomes: u64,
    /// Orders without an answer, each with the name of its outcome.
    orders: BTreeMap<OrderId, &'static str>,
    last_order: u64,
    exited: bool,
    seen: BTreeMap<String, u64>,
    log: VecDeque<String>,
    failure: Option<String>,
}

/// Outcome of a run: counts by name, or the failure.
type Outcome = Result<BTreeMap<String, u64>, String>;

impl Machine {
    fn new(seed: u64, inputs: Vec<Input>, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed ^ 0x5EED);
        let mut settings = Settings::default();
        (settings.admission.queue_places, settings.admission.streams_per_key) = (8, 3);
        let starts =
            [DrafterStart::Eager, DrafterStart::Eager, DrafterStart::Eager, DrafterStart::Lazy];
        let models: &[&str] = match random.below(12) {
            0 => &[],
            1..=3 => &["/d", "/e"],
            4 => &["/g", "/d", "/e"],
            _ => &["/d"],
        };
        let idle_stop_ms = [0, 0, 20_000][random.below(3) as usize];
        let plan = DrafterPlan {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
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
            adopting: false,
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
            unresponsive_until: 0,
            starved_ms: 0,
            processes: BTreeMap::new(),
            epochs: [0; 2],
            faults: Faults::default(),
            files: ModelFiles::default(),
            links: TargetLinks::ABSENT,
            delivered: Delivered::default(),
            received: Received::default(),
            requests: BTreeMap::new(),
            submitted: 0,
            outcomes: 0,
            orders: BTreeMap::new(),
            last_order: 0,
            exited: false,
            seen: BTreeMap::new(),
            log: VecDeque::new(),
            failure: None,
        }
    }

    /// Runs the schedule, then a time of peace, then the end.
    fn run(mut self) -> Outcome {
        self.deliver(Event::Begun);
        self.send_gateway_report(GatewayState::Ready);
        while self.failure.is_none() && self.to_come > 0 && self.turn() {}
        self.recover();
        self.shut_down();
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
            .map(|due| due.0.max(self.unresponsive_until))
            .filter(|_| !self.absent);
        let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
        match (next, due) {
            (None, None) => return false,
            (next, Some(due)) if next.is_none_or(|next| due <= next) => {
                self.now = self.now.max(due);
                self.deliver(Event::TimePassed);
            }
            _ => {
                let Some(((at, number), happening)) = self.agenda.pop_first() else { return false };
                if matches!(happening, Happening::Message(_)) && at < self.unresponsive_until {
                    // It waits in the mailbox, in its order.
                    self.agenda.insert((self.unresponsive_until, number), happening);
                } else {
                    self.now = self.now.max(at);
                    self.happen(happening);
                }
            }
        }
        true
    }

    fn recover(&mut self) {
        self.faults = Faults::default();
        // What operators have ordered stays until they undo it.
        self.command(5, 0);
        self.set_policy(0);
        self.post(0, Happening::Message(Event::MemoryRead { available_bytes: Some(1 << 30) }));
        for worker in WORKERS {
            if let Some(process) = self.processes.get_mut(&worker) {
                process.frozen = false;
            }
        }
        let begun = self.now;
        while self.failure.is_none() && !self.is_well() && self.turn() {
            if self.now - begun >= RECOVERY_MS {
                let state = (
                    self.core.target().phase(),
                    self.core.drafters().state(),
                    &self.orders,
                    self.core.drafters().reason(Millis(self.now)),
                );
                let what = format!("it does not recover by itself: {state:?}");
                self.require(false, &what);
            }
        }
        while self.failure.is_none() && !self.requests.is_empty() && self.turn() {
            self.require(self.now - begun < 2 * RECOVERY_MS, "a request has no end");
        }
        self.require(self.orders.is_empty(), "an order has no answer");
        let before = self.count("admit");
        let ticket = Ticket(self.submitted);
        self.submit([100, 50, 0, 0, 0]);
        let sent = self.now;
        while self.failure.is_none()
            && !self.requests.contains_key(&ticket)
            && self.now - sent < 1_000
            && self.turn()
        {}
        self.require(self.count("admit") > before, "in peace a request waits");
    }

    fn shut_down(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.deliver(Event::StopAsked);
        let begun = self.now;
        while self.failure.is_none() && !self.exited && self.turn() {
            self.require(self.now - begun < 600_000, "it does not end (I6)");
        }
        while self.failure.is_none() && !self.requests.is_empty() && self.turn() {}
        self.require(self.outcomes == self.submitted, "each request has one outcome (I4)");
        self.require(self.core.admission().reserved_bytes() == 0, "all bytes came back (I11)");
        self.require(self.processes.is_empty(), "a process is left");
        self.require(self.orders.is_empty(), "an order has no answer");
    }

    fn count(&self, first: &str) -> u64 {
        self.seen
            .iter()
            .filter(|(name, _)| name.split(' ').next() == Some(first))
            .map(|(_, times)| times)
            .sum()
    }

    fn require(&mut self, holds: bool, what: &str) {
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
    fn send(&mut self, event: Event, twice: bool) {
        let delay = if self.random.below(40) == 0 {
            self.random.below(1_500)
        } else {
            self.random.below(4)
        };
        if twice && self.random.below(30) == 0 {
            let again = delay + self.random.below(5_000);
            self.post(again, Happening::Message(event.clone()));
        }
        self.post(delay, Happening::Message(event));
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
            Happening::Message(event) if self.absent => self.lose(&event),
            Happening::Message(event) => self.deliver(event),
            Happening::Returns => self.take_over(),
            Happening::Lease(worker, epoch) => {
                if self.absent && self.alive(worker, epoch) {
                    self.die(worker, WorkerExit::Code(0));
                }
            }
            Happening::HeartbeatTimer(worker, epoch) if self.alive(worker, epoch) => {
                self.send_heartbeat(worker);
                self.post(250, Happening::HeartbeatTimer(worker, epoch));
            }
            Happening::HeartbeatNow(worker, epoch) if self.alive(worker, epoch) => {
                self.send_heartbeat(worker)
            }
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
                self.end_request(ticket);
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
            Happening::HeartbeatTimer(..)
            | Happening::HeartbeatNow(..)
            | Happening::Dies(..)
            | Happening::Thaws(..) => {}
        }
    }

    /// One event, those by which the shell answers its actions, and what is to hold then.
    fn deliver(&mut self, event: Event) {
        // The shell notices lost time and reports it before anything else.
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
                Event::Worker(WorkerId::Target, worker::Event::FilesSeen { .. }) => {
                    self.files.told = true;
                }
                // It may be tried once more.
                Event::Worker(WorkerId::Target, worker::Event::Exited { .. })
                    if !self.files.told =>
                {
                    self.files.refused = None;
                }
                _ => {}
            }
            self.received.note(&event, self.now);
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
                self.judge_drafter_isolation(&before, &actions);
            }
            for action in actions {
                // After its end no action is carried out.
                if !self.absent {
                    events.extend(self.perform(action));
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

    fn send_gateway_report(&mut self, state: GatewayState) {
        let attachment = self.gateways;
        let report = gateway_report(attachment, state);
        self.post(0, Happening::Message(Event::Reported { attachment, report }));
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
