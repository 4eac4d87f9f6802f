//! The scheduler with its drafter on machines that are made up: whole runs in virtual time, seeded.

use paceline_vocabulary::{Millis, Permit};

use super::*;
use crate::{Chosen, ClassBytes, Ledger, Request, Scheduler, Token};

/// The chance that a drafted token behind accepted ones is accepted, by the tokens a sequence has.
type Text = fn(u32) -> f64;

/// Such chances.
const PROSE: f64 = 0.47;
const FACTS: f64 = 0.8;
const JSON: f64 = 0.92;

#[derive(Clone, Copy, Debug)]
struct Machine {
    name: &'static str,
    step_us: fn(f64, f64) -> f64,
    draft_us: fn(f64, f64) -> f64,
    /// A row of context, read by the drafter.
    read_us: f64,
    /// How much slower both are beside each other.
    beside: f64,
}

/// As a GPU: a step costs what its weights cost, rows hardly anything.
const GPU: Machine = Machine {
    name: "gpu",
    step_us: |rows, _| 12_000.0 + 25.0 * rows,
    draft_us: |rows, _| 2_500.0 + 10.0 * rows,
    read_us: 10.0,
    beside: 1.05,
};
/// As two cores: one row is cheap, the second dear, and every further one costs.
const CPU: Machine = Machine {
    name: "cpu",
    step_us: |rows, sequences| {
        if rows < 1.5 { 3_600.0 } else { 4_000.0 + 290.0 * rows + 100.0 * sequences }
    },
    draft_us: |rows, sequences| 1_600.0 + 36.0 * rows + 180.0 * sequences,
    read_us: 36.0,
    beside: 1.3,
};

/// As two cores with products that read weights as fast as memory gives them: a plain step is
/// cheap, what MLX does with each row is not.
const FEW_ROWS: Machine = Machine {
    name: "few rows",
    step_us: |rows, sequences| 2_200.0 + 250.0 * rows + 50.0 * sequences,
    draft_us: |rows, sequences| 1_400.0 + 32.0 * rows + 160.0 * sequences,
    read_us: 32.0,
    beside: 1.3,
};

/// As two cores whose vectors do what lies between the products too: everything is cheap, and rows
/// of a block are what costs.
const VECTORS: Machine = Machine {
    name: "vectors",
    step_us: |rows, sequences| 750.0 + 80.0 * rows + 100.0 * sequences,
    draft_us: |rows, sequences| 630.0 + 23.0 * rows + 68.0 * sequences,
    read_us: 23.0,
    beside: 1.3,
};

/// As two cores whose vectors do it all, and the rows of a block cost nearly what they cost alone.
const MANY_ROWS: Machine = Machine {
    name: "many rows",
    step_us: |rows, sequences| 700.0 + 130.0 * rows + 90.0 * sequences,
    draft_us: |rows, sequences| 1_040.0 + 22.0 * rows + 89.0 * sequences,
    read_us: 22.0,
    beside: 1.3,
};

/// By how much a plain step is slower behind another (measured: a seventh in the middle, a quarter
/// in the mean).
const UNSETTLED: f64 = 1.2;

const PLAIN: Permit =
    Permit { lane: Lane::Plain, max_draft: 0, reason: RouteReason::Forced, policy_epoch: 0 };
const FORCED: Permit =
    Permit { lane: Lane::Speculative, max_draft: 15, reason: RouteReason::Forced, policy_epoch: 0 };
const ROUTED: Permit =
    Permit { lane: Lane::Speculative, max_draft: 15, reason: RouteReason::Prior, policy_epoch: 0 };

fn request(permit: Permit, tokens: u32) -> Request {
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
    }
}

/// Ends an answer that goes on.
const END: u32 = 2;

struct Stream {
    /// Acceptance by tokens had.
    text: Text,
    /// What a real pair did, in its place.
    trace: Option<&'static recorded::Trace>,
    key: Option<SequenceKey>,
    requests: usize,
    /// Position up to which the drafter has read.
    read: usize,
    over: bool,
}

struct Round {
    due_us: f64,
    asked_us: f64,
    steps: u64,
    rows: usize,
    wants: Vec<(SequenceKey, usize)>,
}

struct House {
    machine: Machine,
    scheduler: Scheduler,
    streams: Vec<Stream>,
    rounds: Vec<Round>,
    drafter_free_us: f64,
    /// Rows it was sent without being asked for anything, and when it has read them.
    reading: Vec<(f64, usize)>,
    now_us: f64,
    /// Time without what others slow.
    own_us: f64,
    seed: u64,
    steps: u64,
    asked: u32,
    /// How often a step or a draft is paused, and how many times as long it takes then.
    pauses: (f64, f64),
    /// The last step was plain.
    settled: bool,
    /// Borders, and those at which it was decided.
    borders: u32,
    decided: u32,
    /// Others use the machine too: by how much it is slower or faster, for seconds.
    others: f64,
    /// It is known where answers end that go on.
    ends: bool,
    /// The target says how sure it is: oftener of what is easier to foretell.
    telling: bool,
    /// Key, tokens it had, drafted and accepted, of every block; and how sequences were served.
    blocks: Vec<(SequenceKey, u32, usize, usize)>,
    routes: Vec<RouteReason>,
}

impl House {
    fn new(machine: Machine, seed: u64) -> Self {
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
            asked: 0,
            pauses: (0.01, 4.0),
            settled: false,
            borders: 0,
            decided: 0,
            others: 0.0,
            ends: true,
            telling: false,
            blocks: vec![],
            routes: vec![],
        }
    }

    fn roll(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / f64::from(1u32 << 31)
    }

    /// Steps vary by a tenth, and some are paused.
    fn noise(&mut self) -> f64 {
        let (chance, times) = self.pauses;
        let pause = if self.roll() < chance { times } else { 1.0 };
        (0.95 + 0.1 * self.roll()) * pause * self.slower()
    }

    /// By how much others slow it at this moment: two waves that never meet again.
    fn slower(&self) -> f64 {
        let s = self.now_us / 1e6;
        (self.others * ((s / 0.53).sin() + (s / 0.137).sin())).exp()
    }

    /// Time passes until then.
    fn pass(&mut self, until_us: f64) {
        self.own_us += (until_us - self.now_us).max(0.0) / self.slower();
        self.now_us = self.now_us.max(until_us);
    }

    /// Runs these streams, each so many requests one after the other, to their end; the time it
    /// took, seconds, as a mean over the streams.
    fn run(&mut self, texts: &[Text], permit: Permit, requests: usize, tokens: u32) -> f64 {
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
                // Prompts that have nothing in common say nothing of each other.
                let prompt = vec![self.asked; 60];
                self.asked += 1;
                stream.key = Some(
                    self.scheduler
                        .admit(Request { prompt, ..request(permit, tokens) })
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

    fn turn(&mut self) {
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
        let beside = if self.drafter_free_us > self.now_us { self.machine.beside } else { 1.0 };
        // A pause is as long whatever it falls into: not four times as long as many prompts take.
        let noise = self.noise().min(if step.parts.iter().any(|part| part.prefill) {
            1.05
        } else {
            f64::INFINITY
        });
        let plain = rows == sequences && beside == 1.0;
        let settled = std::mem::replace(&mut self.settled, plain);
        let unsettled = if plain && !settled { UNSETTLED } else { 1.0 };
        let took_us =
            (self.machine.step_us)(rows as f64, sequences as f64) * beside * noise * unsettled;
        self.pass(self.now_us + took_us);
        self.steps += 1;
        let mut chosen = vec![];
        for part in step.parts.iter().filter(|part| part.chooses) {
            let had = self.scheduler.get(part.key).expect("there").generated();
            let stream = self
                .streams
                .iter()
                .position(|stream| stream.key == Some(part.key))
                .expect("one of ours");
            let (text, trace) = (self.streams[stream].text, self.streams[stream].trace);
            let accepted = match trace {
                Some(trace) => trace.accepted(had).min(part.drafted),
                None => {
                    (0..part.drafted).take_while(|at| self.roll() < text(had + *at as u32)).count()
                }
            };
            if part.drafted > 0 {
                self.blocks.push((part.key, had, part.drafted, accepted));
            }
            let tokens = match trace {
                Some(trace) if self.ends => trace.tokens(had, accepted + 1),
                _ => vec![Token { id: 1, margin: 1.0 }; accepted + 1],
            };
            chosen.push(Chosen { key: part.key, tokens });
            let wanted = self.scheduler.speculation.wants_entropy(
                part.key,
                self.scheduler.get(part.key).expect("there"),
                had,
            );
            if let Some(trace) = trace.filter(|_| wanted) {
                self.scheduler
                    .speculation
                    .observe_entropy(part.key, trace.doubt(had, accepted + 1));
            } else if self.telling && wanted {
                let sure = text(had).sqrt();
                let nats: Vec<f32> =
                    (0..=accepted).map(|_| if self.roll() < sure { 0.0005 } else { 0.7 }).collect();
                self.scheduler.speculation.observe_entropy(part.key, &nats);
            }
        }
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

    fn take_drafts(&mut self) {
        let now_us = self.now_us;
        let (due, rest): (Vec<Round>, Vec<Round>) =
            self.rounds.drain(..).partition(|round| round.due_us <= now_us);
        self.rounds = rest;
        for round in due {
            let (us, steps) = (now_us - round.asked_us, (self.steps - round.steps) as u32);
            self.scheduler.speculation.drafted(round.wants.len(), round.rows, us, steps);
            for (key, drafted) in round.wants {
                self.scheduler.proposed(key, drafted);
            }
        }
    }

    fn ask(&mut self) {
        let committed: Vec<(SequenceKey, usize)> =
            self.scheduler.iter().map(|(key, one)| (key, one.committed)).collect();
        let read: Vec<(SequenceKey, usize)> =
            self.streams.iter().filter_map(|one| Some((one.key?, one.read))).collect();
        let busy = self.drafter_free_us > self.now_us;
        let plan = self.scheduler.plan(false, |key, _| {
            let committed = committed.iter().find(|one| one.0 == key)?.1;
            let unread = (committed - read.iter().find(|one| one.0 == key)?.1).min(512);
            // What it is reading it has not read.
            let unread = if busy { unread.max(1) } else { unread };
            Some(DrafterReadiness { unread, can: unread <= 256, beyond: false })
        });
        self.borders += 1;
        self.decided += u32::from(self.scheduler.speculation.borders == 1);
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
        let beside = if others { self.machine.beside } else { 1.0 };
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

mod lane_events;
mod recorded;

/// Seconds of the three lanes, and the house of the routed one.
fn lanes(
    machine: Machine,
    texts: &[Text],
    requests: usize,
    tokens: u32,
    seed: u64,
) -> ([f64; 3], House) {
    let time = |permit| {
        let mut house = House::new(machine, seed);
        house.scheduler.speculation.set_linked(true);
        (house.run(texts, permit, requests, tokens), house)
    };
    let ((plain, _), (forced, _), (routed, house)) = (time(PLAIN), time(FORCED), time(ROUTED));
    ([plain, forced, routed], house)
}

/// The horizon: 20 requests of 150 tokens in each stream, from nothing known on. The bound is 6 %
/// above the better lane.
#[test]
fn it_is_never_much_slower_than_the_better_of_both_lanes() {
    let (mut worst, mut lines) = (0.0f64, String::new());
    let kinds: [(&str, Text); 4] =
        [("noise", |_| 0.1), ("prose", |_| PROSE), ("facts", |_| FACTS), ("json", |_| JSON)];
    for machine in [GPU, CPU] {
        for (kind, text) in kinds {
            for streams in [1, 2, 4, 8, 16] {
                // The sums of a few: in one a pause may fall where it hurts.
                let all = [11, 12, 13].map(|seed| {
                    lanes(machine, &vec![text; streams], 20, 150, seed + streams as u64).0
                });
                let [plain, forced, routed] =
                    [0, 1, 2].map(|lane| all.iter().map(|one| one[lane]).sum::<f64>());
                let over = routed / plain.min(forced);
                lines += &format!(
                    "{} {kind} x{streams}: plain {plain:.2} s, forced {forced:.2} s, routed {routed:.2} s, {over:.3}\n",
                    machine.name
                );
                worst = worst.max(over);
            }
        }
    }
    assert!(worst <= 1.06, "{lines}");
}

#[test]
fn in_mixed_traffic_each_sequence_finds_its_lane() {
    let mixed: [Text; 4] = [|_| PROSE, |_| JSON, |_| 0.1, |_| FACTS];
    for machine in [GPU, CPU] {
        let ([plain, forced, routed], house) = lanes(machine, &mixed, 20, 150, 4);
        assert!(
            routed <= 1.03 * plain.min(forced),
            "{}: {plain:.2} {forced:.2} {routed:.2}",
            machine.name
        );
        assert!(house.routes.contains(&RouteReason::Benefit));
    }
}

#[test]
fn behind_an_end_that_is_passed_over_another_text_begins() {
    let mut scheduler = House::new(CPU, 1).scheduler;
    let mut admit = |request: Request| scheduler.admit(request).expect("room");
    let answer = admit(request(ROUTED, 50));
    let asked_about = admit(Request { prompt: vec![7, END, 7], ..request(ROUTED, 50) });
    let resumed = admit(Request { continuation: vec![7, END], ..request(ROUTED, 50) });
    let of_another =
        admit(Request { stop_ids: vec![], ignored_ids: vec![], ..request(ROUTED, 50) });
    let mut lives = |token: u32| {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(0), |_| 0);
        let chosen = step
            .parts
            .iter()
            .map(|part| Chosen { key: part.key, tokens: vec![Token { id: token, margin: 1.0 }] });
        scheduler.on_step(&step.parts, chosen.collect(), 1000);
        let class = |key| {
            let speculation = &scheduler.speculation;
            speculation.classes[speculation.courses[&key].class].0.clone()
        };
        [answer, asked_about, resumed, of_another].map(class)
    };
    assert_eq!(lives(1), ["default", "default", BEHIND_END, "default"]);
    assert_eq!(lives(END), [BEHIND_END, BEHIND_END, BEHIND_END, "default"]);
    assert_eq!(lives(END), [BEHIND_END, BEHIND_END, BEHIND_END, "default"]);
}

#[test]
fn what_the_target_doubts_tells_texts_of_one_class_apart() {
    // Seconds of both kinds of text, and blocks in the one that does not pay.
    let measure_one = |telling: bool, seed: u64| {
        let mut house = House::new(CPU, seed);
        house.telling = telling;
        house.scheduler.speculation.set_linked(true);
        let (mut seconds, mut poor) = ([0.0; 2], 0);
        for round in 0..60 {
            for (at, text) in [(|_| JSON) as Text, |_| 0.3].into_iter().enumerate() {
                house.blocks.clear();
                let took = house.run(&[text], ROUTED, 1, 100);
                if round >= 20 {
                    seconds[at] += took;
                    poor += at * house.blocks.len();
                }
            }
        }
        (seconds, poor)
    };
    // The sums of a few: what a trial happens to meet is worth some hundredths of one.
    let measure = |telling: bool| {
        let all = (31..37).map(|seed| measure_one(telling, seed));
        all.fold(([0.0; 2], 0), |sum, one| {
            ([sum.0[0] + one.0[0], sum.0[1] + one.0[1]], sum.1 + one.1)
        })
    };
    let (silent, telling) = (measure(false), measure(true));
    // Who is sure drafts far from the first cycle on; who is not pays for no more trials than
    // before.
    assert!(telling.0[0] <= 0.995 * silent.0[0], "{telling:?} and {silent:?} without");
    assert!(
        telling.0[1] <= 1.01 * silent.0[1] && telling.1 <= silent.1,
        "{telling:?} and {silent:?} without"
    );
}

#[test]
fn who_rests_and_becomes_sure_is_tried_before_its_pause_is_over() {
    // Where in a text that becomes predictable the first block is drafted behind that place, over
    // many requests.
    let found = |telling: bool| {
        let mut house = House::new(CPU, 31);
        house.telling = telling;
        house.scheduler.speculation.set_linked(true);
        for _ in 0..20 {
            house.run(&[|_| JSON], ROUTED, 1, 100);
            house.run(&[|_| 0.1], ROUTED, 1, 100);
        }
        let mut sum = 0;
        for _ in 0..20 {
            house.blocks.clear();
            house.run(&[|had| if had < 120 { 0.1 } else { JSON }], ROUTED, 1, 500);
            sum +=
                house.blocks.iter().map(|block| block.1).find(|at| *at >= 120).unwrap_or(500) - 120;
        }
        sum / 20
    };
    let (silent, telling) = (found(false), found(true));
    assert!(4 * telling < 3 * silent, "{telling} tokens behind it, {silent} without its own words");
}

/// Blocks of the only sequence of a run.
fn alone(machine: Machine, text: Text, tokens: u32, seed: u64) -> House {
    let mut house = House::new(machine, seed);
    // It knows its prices already.
    house.run(&[|_| FACTS], ROUTED, 3, 100);
    house.blocks.clear();
    house.run(&[text], ROUTED, 1, tokens);
    house
}

#[test]
fn who_does_not_pay_is_plain_within_a_few_cycles_and_is_tried_ever_more_rarely() {
    let house = alone(CPU, |_| 0.15, 3000, 21);
    let at: Vec<u32> = house.blocks.iter().map(|block| block.1).collect();
    let first = at.iter().filter(|at| **at < 30).count();
    assert!(first <= 5, "{first} cycles at first: {at:?}");
    let between = |low: u32, high: u32| at.iter().filter(|at| (low..high).contains(*at)).count();
    assert!(between(30, 1000) <= 20 && between(2000, 3000) <= 6, "{at:?}");
    assert!(between(300, 3000) >= 2, "and is never forgotten: {at:?}");
}

#[test]
fn who_becomes_predictable_is_found_by_a_trial() {
    // Of a few, as a trial may meet the one place where even such a text is rejected.
    let (mut rest, mut steady) = (0, 0);
    for seed in 21..29 {
        let house = alone(CPU, |had| if had < 300 { 0.2 } else { JSON }, 1500, seed);
        let late: Vec<_> = house.blocks.iter().filter(|block| block.1 >= 300).collect();
        let found = late.first().expect("it is tried").1;
        assert!(found < 300 + 400, "tried first at {found}");
        rest += 1500 - found - 100;
        steady += late
            .iter()
            .filter(|block| block.1 > found + 100)
            .map(|block| block.3 + 1)
            .sum::<usize>();
    }
    assert!(
        steady as f64 > 0.75 * f64::from(rest),
        "most of the rest is drafted: {steady} tokens of {rest}"
    );
}

#[test]
fn who_has_won_is_tried_again_soon_behind_a_place_where_nothing_is_accepted() {
    // Long enough for blocks of which nothing is accepted, short beside what drafting wins before
    // it and behind it.
    let mut late = 0;
    for machine in [CPU, FEW_ROWS, VECTORS] {
        for seed in 21..37 {
            let mut house = House::new(machine, seed);
            house.scheduler.speculation.set_linked(true);
            // One service, of which half the requests do not pay.
            for _ in 0..6 {
                house.run(&[|_| 0.97], ROUTED, 1, 100);
                house.run(&[|_| 0.3], ROUTED, 1, 100);
            }
            house.blocks.clear();
            house.run(&[|had| if (60..64).contains(&had) { 0.0 } else { 0.98 }], ROUTED, 1, 140);
            late += usize::from(!house.blocks.iter().any(|block| (64..90).contains(&block.1)));
        }
    }
    // (Where what was won counted for nothing it was 48.)
    assert!(late <= 2, "{late} of 48 were not tried within 26 tokens");
}

#[test]
fn lengths_and_lanes_do_not_flap() {
    for text in [(|_| 0.86) as Text, |_| 0.7, |_| JSON] {
        let house = alone(CPU, text, 1500, 21);
        // Of cycles of one sequence in a row: how often the next one is planned otherwise.
        let lengths: Vec<usize> = house.blocks.iter().skip(10).map(|block| block.2).collect();
        let changes = lengths.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 4).count();
        assert!(changes * 6 <= lengths.len(), "{changes} of {}: {lengths:?}", lengths.len());
    }
}

#[test]
fn a_burst_does_not_spoil_the_one_behind_it() {
    let mut house = House::new(CPU, 8);
    house.run(&[|_| JSON], ROUTED, 3, 150);
    house.run(&[(|_| JSON) as Text; 16], ROUTED, 1, 150);
    house.blocks.clear();
    house.run(&[|_| JSON], ROUTED, 1, 150);
    assert!(house.blocks[0].1 < 8, "it drafts at once: {:?}", house.blocks[0]);
    assert_eq!(house.routes.last(), Some(&RouteReason::Benefit));
}

#[test]
fn who_is_plain_is_not_shown_to_the_drafter() {
    let house = alone(CPU, |_| 0.05, 600, 21);
    assert!(house.blocks.len() < 12, "{:?}", house.blocks);
    // What the drafter read is what its few blocks needed.
    assert_eq!(house.scheduler.len(), 0);
    let mut house = House::new(CPU, 2);
    house.run(&[|_| JSON], PLAIN, 1, 100);
    assert!(house.blocks.is_empty() && house.drafter_free_us == 0.0);
    assert_eq!(house.routes, [RouteReason::Forced]);
}

fn speculation(policy: Policy) -> House {
    let mut house = House::new(GPU, 5);
    assert!(house.scheduler.speculation.set_policy(policy));
    house.scheduler.speculation.set_linked(true);
    house
}

#[test]
fn a_policy_goes_over_permits_and_an_older_one_is_dropped() {
    let force =
        |epoch, force| Policy { term: 1, epoch, force, kv_pressure: 0.85, max_context: None };
    let mut house = speculation(force(3, Force::Plain));
    assert!(!house.scheduler.speculation.set_policy(force(2, Force::Speculative)), "it is older");
    house.run(&[|_| JSON], ROUTED, 1, 60);
    assert!(house.blocks.is_empty());
    assert_eq!(house.routes, [RouteReason::Forced]);
    assert!(house.scheduler.speculation.set_policy(force(4, Force::Speculative)));
    house.run(&[|_| 0.0], ROUTED, 1, 60);
    // All of it, and all as long as may be.
    assert!(
        house.blocks.len() >= 50 && house.blocks.iter().take(40).all(|block| block.2 == 15),
        "{:?}",
        house.blocks
    );
    assert_eq!(house.routes[1], RouteReason::Forced);
}

#[test]
fn under_pressure_nobody_drafts() {
    let mut scheduler = Scheduler::new(
        Ledger::new(1 << 20, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]),
        4,
    )
    .with_row_us(1_000.0);
    scheduler.speculation.set_linked(true);
    let key = scheduler.admit(request(FORCED, 50)).expect("room");
    scheduler.start(|_| 0);
    let step = scheduler.next_step(Millis(0), |_| 0);
    scheduler.on_step(
        &step.parts,
        vec![Chosen { key, tokens: vec![Token { id: 1, margin: 1.0 }] }],
        1000,
    );
    let reading = |_: SequenceKey, _: &Sequence| {
        Some(DrafterReadiness { unread: 0, can: true, beyond: false })
    };
    assert_eq!(scheduler.plan(true, reading), DraftPlan::default());
    let sequence = scheduler.get(key).expect("there");
    assert_eq!(scheduler.speculation.route(key, sequence).reason, RouteReason::KvPressure);
    assert_eq!(scheduler.plan(false, reading), DraftPlan { feed: vec![key], ask: vec![(key, 15)] });
}

#[test]
fn one_that_is_too_long_is_left_alone() {
    let mut scheduler = Scheduler::new(
        Ledger::new(1 << 20, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]),
        4,
    )
    .with_row_us(1_000.0);
    scheduler.speculation.set_linked(true);
    let brief = |permit| Request { prompt: vec![7; 20], ..request(permit, 50) };
    let keys = [FORCED, ROUTED].map(|permit| scheduler.admit(brief(permit)).expect("room"));
    scheduler.start(|_| 0);
    let step = scheduler.next_step(Millis(0), |_| 0);
    let token = |key| Chosen { key, tokens: vec![Token { id: 1, margin: 1.0 }] };
    scheduler.on_step(&step.parts, keys.map(token).into(), 1000);
    let committed = scheduler.get(keys[0]).expect("there").committed;
    let mut fed = |context: usize, max_context| {
        let epoch = scheduler.speculation.policy().epoch + 1;
        assert!(scheduler.speculation.set_policy(Policy {
            epoch,
            max_context,
            ..Policy::default()
        }));
        let beyond = |_: SequenceKey, sequence: &Sequence| sequence.committed > context;
        let plan = scheduler.plan(false, |key, one| {
            Some(DrafterReadiness { unread: 0, can: true, beyond: beyond(key, one) })
        });
        let why = |key| scheduler.speculation.route(key, scheduler.get(key).expect("there")).reason;
        (plan.feed, keys.map(why))
    };
    let most = Some(committed as u32);
    assert_eq!(fed(committed, most).0, keys);
    // A number that an operator set holds for all but those that are told to draft; what the
    // drafter cannot read for all.
    assert_eq!(
        fed(committed, most.map(|most| most - 1)),
        (vec![keys[0]], [RouteReason::Behind, RouteReason::Context])
    );
    assert_eq!(fed(committed - 1, None), (vec![], [RouteReason::Context; 2]));
}

#[test]
fn why_it_was_plain_is_said() {
    let mut house = House::new(CPU, 3);
    // A class of which nothing pays is known after a while.
    house.scheduler.speculation.set_linked(true);
    house.run(&[|_| 0.02], ROUTED, 40, 40);
    assert!(house.routes.contains(&RouteReason::NotWorth), "{:?}", house.routes);
    assert!(house.routes.iter().all(|reason| *reason != RouteReason::Behind));
    // One that was chosen, and never ready.
    let key = house.scheduler.admit(Request { class: "other".into(), ..request(ROUTED, 50) });
    let key = key.expect("room");
    house
        .scheduler
        .plan(false, |_, _| Some(DrafterReadiness { unread: 500, can: false, beyond: false }));
    let reason = |house: &House| {
        house.scheduler.speculation.route(key, house.scheduler.get(key).expect("there")).reason
    };
    assert_eq!(reason(&house), RouteReason::Behind);
    house.scheduler.speculation.set_linked(false);
    assert_eq!(reason(&house), RouteReason::DrafterAbsent);
    // A drafter that rests for being late is asked for nobody: of those that were told to draft
    // that is the reason.
    house.scheduler.speculation.set_linked(true);
    for (permit, expected) in [
        (FORCED, RouteReason::Behind),
        (Permit { reason: RouteReason::DrafterSuspect, ..ROUTED }, RouteReason::DrafterSuspect),
        (ROUTED, RouteReason::NotWorth),
    ] {
        let key = house.scheduler.admit(request(permit, 50)).expect("room");
        let sequence = house.scheduler.get(key).expect("there");
        assert_eq!(house.scheduler.speculation.route(key, sequence).reason, expected);
    }
}

#[test]
fn figures_say_what_was_measured() {
    let empty = Speculation::default().figures();
    assert!(empty.by_sequences.iter().all(|range| range.steps == 0) && empty.classes.is_empty());
    let mut house = House::new(GPU, 6);
    house.run(&[|_| JSON], ROUTED, 5, 150);
    let figures = house.scheduler.speculation.figures();
    assert!(
        figures.step.expect("there").observations > 50
            && figures.draft.expect("there").observations > 20
    );
    assert_eq!(figures.classes[0].class, "default");
    let survival = &figures.classes[0].survival;
    assert!(
        survival.windows(2).all(|pair| pair[1] <= pair[0])
            && (survival[0] - JSON as f32).abs() < 0.06,
        "{survival:?}"
    );
    let one = &figures.by_sequences[0];
    assert!(one.up_to == 1 && one.steps > 50 && one.gain > 2.0, "{one:?}");
    assert!(figures.by_sequences.iter().chain(&figures.by_context).all(|range| range.gain >= 1.0));
    assert_eq!(
        figures.by_sequences.iter().map(|range| range.up_to).collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32]
    );
}

#[test]
fn a_plain_step_behind_a_block_says_nothing_of_those_that_would_go_on_plainly() {
    let mut speculation = Speculation::default();
    speculation.set_linked(true);
    let part = |drafted| StepPart {
        key: SequenceKey(0),
        start: 100,
        rows: 1 + drafted,
        chooses: true,
        prefill: false,
        drafted,
    };
    let mut stepped = |drafted, us| speculation.stepped(&[part(drafted)], &[], us, false);
    (0..20).for_each(|_| stepped(0, 1_000.0));
    for _ in 0..20 {
        stepped(7, 3_000.0);
        stepped(0, 1_400.0);
    }
    let plain_us = speculation.costs.plain_us(1.0, 100.0);
    assert!((950.0..=1_050.0).contains(&plain_us), "{plain_us}");
}

/// The CPU above while something else has half of it.
const HALF_A_CPU: Machine = Machine {
    name: "half a cpu",
    step_us: |rows, sequences| 2.0 * (CPU.step_us)(rows, sequences),
    draft_us: |rows, sequences| 2.0 * (CPU.draft_us)(rows, sequences),
    ..CPU
};

/// A machine that was slow and is not any more, as long as all steps are blocks, looks like blocks
/// that became cheaper, and plain steps are taken for as dear as they were in between: who is to
/// draft a little faster than plainly is not decided by that.
#[test]
fn behind_many_blocks_plain_steps_are_looked_at_before_they_are_judged() {
    let text: Text = |_| FACTS;
    let (mut before, mut decided) = (0.0f64, 0.0f64);
    for seed in 40..72 {
        let mut house = House::new(CPU, seed);
        house.scheduler.speculation.set_linked(true);
        house.run(&[text; 8], FORCED, 2, 100);
        house.run(&[text; 8], PLAIN, 1, 60);
        house.machine = HALF_A_CPU;
        house.run(&[text; 8], PLAIN, 1, 20);
        house.machine = CPU;
        house.run(&[text; 8], FORCED, 1, 150);
        let over = |house: &House| {
            house.scheduler.speculation.costs.plain_us(8.0, 8.0 * 70.0) / (CPU.step_us)(8.0, 8.0)
        };
        before += over(&house) / 32.0;
        for at in 0..8 {
            let prompt = vec![1_000 + at; 60];
            let key =
                house.scheduler.admit(Request { prompt, ..request(ROUTED, 60) }).expect("room");
            house.streams.push(Stream {
                text,
                trace: None,
                key: Some(key),
                requests: 0,
                read: 0,
                over: false,
            });
        }
        house.streams.drain(..8);
        house.blocks.clear();
        while house.blocks.is_empty() && !house.scheduler.is_empty() {
            house.turn();
        }
        decided += over(&house) / 32.0;
    }
    assert!(before > 1.3, "nothing to see: {before:.2} times what they take");
    assert!(
        decided < 1.4,
        "plain steps are taken for {decided:.2} times what they take, {before:.2} before"
    );
}

/// As long as nobody drafts it is thought of at every fourth border, or when something was seen.
#[test]
fn what_is_plain_is_not_decided_at_each_border() {
    let mut house = House::new(CPU, 5);
    house.scheduler.speculation.set_linked(true);
    let noise: Text = |_| 0.05;
    house.run(&[noise; 4], ROUTED, 4, 150);
    (house.borders, house.decided) = (0, 0);
    house.run(&[noise; 4], ROUTED, 2, 150);
    assert!(house.borders >= 300, "{}", house.borders);
    assert!(
        (house.borders / 8..=house.borders / 2).contains(&house.decided),
        "{} of {}",
        house.decided,
        house.borders
    );
}

/// What is expected of the first draft of a request, in tokens, behind others in a scope with the
/// same prompt.
fn expected_behind(taught: &str, asks: &str) -> f64 {
    let mut speculation = Speculation::default();
    let of = |scope: &str| Request { cache_scope: scope.into(), ..request(ROUTED, 100) };
    for key in (0..20).map(SequenceKey) {
        speculation.open(key, &of(taught));
        // Nothing of its drafts is ever accepted.
        (0..6).for_each(|_| speculation.verified(key, 60, 8, 0));
        speculation.close(key);
    }
    let key = SequenceKey(99);
    speculation.open(key, &of(asks));
    let survival = &speculation.courses[&key].survival;
    survival.iter().map(|alive| f64::from(*alive)).sum()
}

#[test]
fn a_request_learns_from_similar_prompts_of_its_own_cache_scope_alone() {
    let (own, other) = (expected_behind("a", "a"), expected_behind("a", "b"));
    assert!(
        own < 0.9 * other,
        "{own} behind prompts of its own scope, {other} behind another scope's"
    );
    // A request of another scope that runs at the same time teaches nothing either.
    let mut speculation = Speculation::default();
    for (key, scope) in [(0, "a"), (1, "b"), (2, "a")] {
        speculation
            .open(SequenceKey(key), &Request { cache_scope: scope.into(), ..request(ROUTED, 100) });
    }
    let near = |key: u64| {
        speculation.courses[&SequenceKey(key)]
            .near
            .iter()
            .map(|(other, _)| other.0)
            .collect::<Vec<_>>()
    };
    assert_eq!((near(0), near(1), near(2)), (vec![2], vec![], vec![0]));
}
