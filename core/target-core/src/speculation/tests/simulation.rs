//! A scheduler with its drafter on an imaginary machine: whole runs in virtual time, seeded.

use paceline_vocabulary::{Millis, Permit};

use super::super::*;
use super::recorded;
use crate::draft_plan::*;
use crate::{Chosen, ClassBytes, Ledger, Request, Scheduler, Step, StepPart, Token};

/// Probability that a drafted token after accepted ones is accepted, by the number of tokens that
/// the sequence has.
pub(super) type Text = fn(u32) -> f64;

/// The probability in prose.
pub(super) const PROSE: f64 = 0.47;
pub(super) const FACTS: f64 = 0.8;
pub(super) const JSON: f64 = 0.92;

#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) step_us: fn(f64, f64) -> f64,
    pub(super) draft_us: fn(f64, f64) -> f64,
    /// A row of context, read by the drafter.
    pub(super) read_us: f64,
    /// How much slower steps and drafts are beside each other.
    pub(super) beside: [f64; 2],
    /// Share of a step that copies hidden states.
    pub(super) hidden: f64,
}

/// As a GPU: a step costs what its weights cost, rows hardly anything.
pub(super) const GPU: Machine = Machine {
    name: "gpu",
    step_us: |rows, _| 12_000.0 + 25.0 * rows,
    draft_us: |rows, _| 2_500.0 + 10.0 * rows,
    read_us: 10.0,
    beside: [1.05, 1.05],
    hidden: 0.0,
};
/// As two cores: one row is cheap, the second dear, and every further one costs.
pub(super) const CPU: Machine = Machine {
    name: "cpu",
    step_us: |rows, sequences| {
        if rows < 1.5 { 3_600.0 } else { 4_000.0 + 290.0 * rows + 100.0 * sequences }
    },
    draft_us: |rows, sequences| 1_600.0 + 36.0 * rows + 180.0 * sequences,
    read_us: 36.0,
    beside: [1.3, 1.3],
    hidden: 0.0,
};

/// As two cores with products that read weights as fast as memory gives them: a plain step is
/// cheap, what MLX does with each row is not.
pub(super) const FEW_ROWS: Machine = Machine {
    name: "few rows",
    step_us: |rows, sequences| 2_200.0 + 250.0 * rows + 50.0 * sequences,
    draft_us: |rows, sequences| 1_400.0 + 32.0 * rows + 160.0 * sequences,
    read_us: 32.0,
    beside: [1.3, 1.3],
    hidden: 0.0,
};

/// Two cores with vector instructions also between the products: all is cheap but the rows of a
/// block.
pub(super) const VECTORS: Machine = Machine {
    name: "vectors",
    step_us: |rows, sequences| 750.0 + 80.0 * rows + 100.0 * sequences,
    draft_us: |rows, sequences| 630.0 + 23.0 * rows + 68.0 * sequences,
    read_us: 23.0,
    beside: [1.3, 1.3],
    hidden: 0.0,
};

/// Two cores with vector instructions throughout: a row in a block costs nearly what it costs
/// alone.
pub(super) const MANY_ROWS: Machine = Machine {
    name: "many rows",
    step_us: |rows, sequences| 700.0 + 130.0 * rows + 90.0 * sequences,
    draft_us: |rows, sequences| 1_040.0 + 22.0 * rows + 89.0 * sequences,
    read_us: 22.0,
    beside: [1.3, 1.3],
    hidden: 0.0,
};

/// The demo pair on two virtual cores with AVX-512, as measured. A draft beside steps takes three
/// times as long, and collecting hidden states costs a twentieth of a step.
pub(super) const TWO_CORES: Machine = Machine {
    name: "two cores",
    step_us: |rows, sequences| 400.0 + 75.0 * rows + 5.0 * sequences,
    draft_us: |rows, sequences| 350.0 + 25.0 * rows + 60.0 * sequences,
    read_us: 25.0,
    beside: [1.13, 3.0],
    hidden: 0.05,
};

/// Factor on the first plain step after a block. Measured: 1.14 as the median, 1.25 as the mean.
pub(super) const UNSETTLED: f64 = 1.2;

pub(super) const PLAIN: Permit =
    Permit { lane: Lane::Plain, max_draft: 0, reason: RouteReason::Forced, policy_epoch: 0 };
pub(super) const FORCED: Permit =
    Permit { lane: Lane::Speculative, max_draft: 15, reason: RouteReason::Forced, policy_epoch: 0 };
pub(super) const ROUTED: Permit =
    Permit { lane: Lane::Speculative, max_draft: 15, reason: RouteReason::Prior, policy_epoch: 0 };

pub(super) fn request(permit: Permit, tokens: u32) -> Request {
    Request {
        prompt: vec![7; 60],
        continuation: vec![],
        max_tokens: tokens,
        stop_ids: vec![],
        ignored_ids: vec![END],
        deadline: None,
        permit,
        class: "default".into(),
        cache_scope: String::new(),
        images: Default::default(),
        last_turn: None,
    }
}

/// Ends an answer. The client ignores the end.
pub(super) const END: u32 = 2;

pub(super) struct Stream {
    /// Acceptance by tokens had.
    pub(super) text: Text,
    /// A recorded answer, in its place.
    pub(super) trace: Option<&'static recorded::Trace>,
    pub(super) key: Option<SequenceKey>,
    pub(super) requests: usize,
    /// Position up to which the drafter has read.
    pub(super) read: usize,
    pub(super) over: bool,
}

pub(super) struct Round {
    pub(super) due_us: f64,
    pub(super) asked_us: f64,
    pub(super) steps: u64,
    pub(super) rows: usize,
    pub(super) wants: Vec<(SequenceKey, usize)>,
}

pub(super) struct Simulation {
    pub(super) machine: Machine,
    pub(super) scheduler: Scheduler,
    pub(super) streams: Vec<Stream>,
    pub(super) rounds: Vec<Round>,
    pub(super) drafter_free_us: f64,
    /// Rows that it was sent without a request, and when it has read them.
    pub(super) reading: Vec<(f64, usize)>,
    pub(super) now_us: f64,
    /// Time without the slowdown by others.
    pub(super) own_us: f64,
    pub(super) seed: u64,
    pub(super) steps: u64,
    /// Steps of which hidden states were collected.
    pub(super) collected: u64,
    pub(super) asked: u32,
    /// Probability that a step or a draft is paused, and the factor on its time then.
    pub(super) pauses: (f64, f64),
    /// The last step was plain.
    pub(super) settled: bool,
    /// How much others slow the machine, for seconds: amplitude of a logarithm.
    pub(super) others: f64,
    /// The ends of answers are reported.
    pub(super) ends: bool,
    /// The drafter takes its time and proposes nothing.
    pub(super) silent: bool,
    /// Answers of that drafter.
    pub(super) empty: u32,
    /// Every block: key, tokens that the sequence had, drafted and accepted tokens.
    pub(super) blocks: Vec<(SequenceKey, u32, usize, usize)>,
    pub(super) routes: Vec<RouteReason>,
}

impl Simulation {
    pub(super) fn new(machine: Machine, seed: u64) -> Self {
        let ledger = Ledger::new(1 << 40, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]);
        let scheduler = Scheduler::new(ledger, 32).with_row_us(300.0);
        Self {
            machine,
            scheduler,
            streams: vec![],
            rounds: vec![],
            drafter_free_us: 0.0,
            reading: vec![],
            now_us: 0.0,
            own_us: 0.0,
            seed,
            steps: 0,
            collected: 0,
            asked: 0,
            pauses: (0.01, 4.0),
            settled: false,
            others: 0.0,
            ends: true,
            silent: false,
            empty: 0,
            blocks: vec![],
            routes: vec![],
        }
    }

    pub(super) fn roll(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / f64::from(1u32 << 31)
    }

    /// Steps vary by a tenth, and some are paused.
    pub(super) fn noise(&mut self) -> f64 {
        let (chance, times) = self.pauses;
        let pause = if self.roll() < chance { times } else { 1.0 };
        (0.95 + 0.1 * self.roll()) * pause * self.slowdown()
    }

    /// How much others slow the machine at this moment: two waves without a common period.
    pub(super) fn slowdown(&self) -> f64 {
        let s = self.now_us / 1e6;
        (self.others * ((s / 0.53).sin() + (s / 0.137).sin())).exp()
    }

    /// Time passes until then.
    pub(super) fn pass(&mut self, until_us: f64) {
        self.own_us += (until_us - self.now_us).max(0.0) / self.slowdown();
        self.now_us = self.now_us.max(until_us);
    }

    /// Runs these streams to their end, each with `requests` requests one after the other. Returns
    /// the seconds that a stream took, as a mean.
    pub(super) fn run(
        &mut self,
        texts: &[Text],
        permit: Permit,
        requests: usize,
        tokens: u32,
    ) -> f64 {
        let (begin_us, mut sum_us) = (self.now_us, 0.0);
        self.streams = texts
            .iter()
            .map(|text| Stream {
                text: *text,
                trace: None,
                key: None,
                requests,
                read: 0,
                over: false,
            })
            .collect();
        loop {
            for stream in
                self.streams.iter_mut().filter(|stream| stream.key.is_none() && stream.requests > 0)
            {
                // Prompts without common tokens are no evidence about each other.
                let prompt = vec![self.asked; 60];
                self.asked += 1;
                stream.key = Some(
                    self.scheduler
                        .add(Request { prompt, ..request(permit, tokens) })
                        .expect("room"),
                );
                (stream.requests, stream.read) = (stream.requests - 1, 0);
            }
            if self.scheduler.is_empty() {
                return sum_us / texts.len() as f64 / 1e6;
            }
            self.turn();
            let ended = self
                .streams
                .iter_mut()
                .filter(|stream| stream.key.is_none() && stream.requests == 0 && !stream.over);
            for stream in ended {
                stream.over = true;
                sum_us += self.now_us - begin_us;
            }
        }
    }

    pub(super) fn turn(&mut self) {
        self.take_drafts();
        self.scheduler.start(|_| 0);
        let step = self.scheduler.next_step(Millis((self.now_us / 1e3) as u64), |_| 0);
        if step.parts.is_empty() {
            let due = self.rounds.iter().map(|round| round.due_us).fold(f64::INFINITY, f64::min);
            assert!(due.is_finite(), "nothing to do and nothing to wait for");
            self.pass(due);
            return;
        }
        let (rows, sequences) =
            (step.parts.iter().map(|part| part.rows).sum::<usize>(), step.parts.len());
        let beside = if self.drafter_free_us > self.now_us { self.machine.beside[0] } else { 1.0 };
        let collects = self.collects(&step);
        self.collected += u64::from(collects);
        let hidden = if collects { 1.0 + self.machine.hidden } else { 1.0 };
        // A pause has the same length in any step, so it does not multiply the time of a prefill.
        let noise = self.noise().min(if step.parts.iter().any(|part| part.prefill) {
            1.05
        } else {
            f64::INFINITY
        });
        let plain = rows == sequences && beside == 1.0;
        let settled = std::mem::replace(&mut self.settled, plain);
        let unsettled = if plain && !settled { UNSETTLED } else { 1.0 };
        let factors = beside * hidden * noise * unsettled;
        let took_us = (self.machine.step_us)(rows as f64, sequences as f64) * factors;
        self.pass(self.now_us + took_us);
        self.steps += 1;
        let drafting = step.parts.iter().filter(|part| part.chooses);
        let chosen = drafting.map(|part| self.choose(part)).collect();
        for emission in self.scheduler.on_step(&step.parts, chosen, took_us as u64) {
            if let Some(end) = emission.end {
                self.routes.push(end.served.route.reason);
                let stream = self
                    .streams
                    .iter_mut()
                    .find(|stream| stream.key == Some(emission.key))
                    .expect("one of ours");
                stream.key = None;
            }
        }
        self.ask();
    }

    /// Whether hidden states of a step are collected.
    pub(super) fn collects(&self, step: &Step) -> bool {
        step.parts.iter().any(|part| self.scheduler.keeps_hidden_states(part.key))
    }

    /// Tokens that the target chooses for one sequence of a step.
    pub(super) fn choose(&mut self, part: &StepPart) -> Chosen {
        let had = self.scheduler.get(part.key).expect("there").generated();
        let stream = self
            .streams
            .iter()
            .position(|stream| stream.key == Some(part.key))
            .expect("one of ours");
        let (text, trace) = (self.streams[stream].text, self.streams[stream].trace);
        let accepted = match trace {
            Some(trace) => trace.accepted(had).min(part.drafted),
            None => (0..part.drafted).take_while(|at| self.roll() < text(had + *at as u32)).count(),
        };
        if part.drafted > 0 {
            self.blocks.push((part.key, had, part.drafted, accepted));
        }
        let tokens = match trace {
            Some(trace) if self.ends => trace.tokens(had, accepted + 1),
            _ => vec![Token { id: 1, margin: 1.0 }; accepted + 1],
        };
        Chosen { key: part.key, tokens }
    }

    pub(super) fn take_drafts(&mut self) {
        let now_us = self.now_us;
        let (due, rest): (Vec<Round>, Vec<Round>) =
            self.rounds.drain(..).partition(|round| round.due_us <= now_us);
        self.rounds = rest;
        for round in due {
            let (us, steps) = (now_us - round.asked_us, (self.steps - round.steps) as u32);
            self.scheduler.speculation.drafted(round.wants.len(), round.rows, us, steps);
            for (key, drafted) in round.wants {
                if self.silent {
                    self.empty += 1;
                    self.scheduler.give_up_draft(key);
                    self.scheduler.speculation.proposed_nothing(key);
                } else {
                    self.scheduler.proposed(key, drafted);
                }
            }
        }
    }

    pub(super) fn ask(&mut self) {
        let committed: Vec<(SequenceKey, usize)> =
            self.scheduler.iter().map(|(key, one)| (key, one.committed)).collect();
        let read: Vec<(SequenceKey, usize)> =
            self.streams.iter().filter_map(|one| Some((one.key?, one.read))).collect();
        let busy = self.drafter_free_us > self.now_us;
        let plan = self.scheduler.plan(false, |key, _| {
            let committed = committed.iter().find(|one| one.0 == key)?.1;
            let unread = (committed - read.iter().find(|one| one.0 == key)?.1).min(512);
            // Rows that it is reading at the moment are unread.
            let unread = if busy { unread.max(1) } else { unread };
            Some(DrafterReadiness {
                has_nothing: false,
                unread_rows: unread,
                can_draft: unread <= 256,
                longest: None,
                beyond_context: false,
            })
        });

        let mut rows = 0;
        for key in &plan.feed {
            let committed = self.scheduler.get(*key).expect("there").committed;
            let stream = self
                .streams
                .iter_mut()
                .find(|stream| stream.key == Some(*key))
                .expect("one of ours");
            rows += committed.saturating_sub(stream.read).min(512);
            stream.read = committed;
        }
        let begin_us = self.drafter_free_us.max(self.now_us);
        if plan.ask.is_empty() {
            if rows > 0 {
                self.drafter_free_us = begin_us + rows as f64 * self.machine.read_us;
                self.reading.push((self.drafter_free_us, rows));
            }
            return;
        }
        rows += plan.ask.iter().map(|(_, length)| length + 1).sum::<usize>();
        let others = self.scheduler.len() > plan.ask.len();
        let beside = if others { self.machine.beside[1] } else { 1.0 };
        let took_us =
            (self.machine.draft_us)(rows as f64, plan.ask.len() as f64) * beside * self.noise();
        self.drafter_free_us = begin_us + took_us;
        let now_us = self.now_us;
        self.reading.retain(|(due_us, _)| *due_us > now_us);
        let rows = rows + self.reading.iter().map(|(_, rows)| rows).sum::<usize>();
        for (key, _) in &plan.ask {
            self.scheduler.asked(*key, Millis(u64::MAX));
        }
        let (asked_us, steps) = (self.now_us, self.steps);
        self.rounds.push(Round {
            due_us: self.drafter_free_us,
            asked_us,
            steps,
            rows,
            wants: plan.ask,
        });
    }
}

/// Seconds of the plain, forced and routed lane, and the simulation of the routed one.
pub(super) fn lanes(
    machine: Machine,
    texts: &[Text],
    requests: usize,
    tokens: u32,
    seed: u64,
) -> ([f64; 3], Simulation) {
    let time = |permit| {
        let mut simulation = Simulation::new(machine, seed);
        simulation.scheduler.speculation.set_linked(true, false);
        (simulation.run(texts, permit, requests, tokens), simulation)
    };
    let ((plain, _), (forced, _), (routed, simulation)) = (time(PLAIN), time(FORCED), time(ROUTED));
    ([plain, forced, routed], simulation)
}

/// Blocks of the only sequence of a run.
pub(super) fn alone(machine: Machine, text: Text, tokens: u32, seed: u64) -> Simulation {
    let mut simulation = Simulation::new(machine, seed);
    // The costs are measured already.
    simulation.run(&[|_| FACTS], ROUTED, 3, 100);
    simulation.blocks.clear();
    simulation.run(&[text], ROUTED, 1, tokens);
    simulation
}
