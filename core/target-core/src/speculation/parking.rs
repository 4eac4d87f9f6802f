//! Parking: a traffic class whose drafts have cost more than they saved at a load does without a
//! drafter there, until the load changes or a pause that doubles each time is over. What a cycle
//! saved is measured: the plain steps that give as many tokens, less the plain steps that fit in
//! its time.

use std::collections::BTreeMap;

use super::load::load_range;

/// Plain steps that the drafts of a class lose at a load before the class is parked there. A noisy
/// machine makes cycles that pay look like ones that lose, by less than this. Set by the table of
/// recorded texts on a shared machine.
const LOSS_LIMIT: f64 = 8.0;
/// Most plain steps of savings that later losses consume first. Set by the same table.
const MOST_CREDIT: f64 = 16.0;
/// Share of the balance that each cycle forgets. Set by the same table.
const FORGOTTEN: f64 = 0.05;
/// Most plain steps that one cycle loses: a paused step is not the fault of its drafts.
const MOST_LOSS: f64 = 3.0;
/// Share of the limit that is lost already when a pause is over: a few trials that do not pay begin
/// the next one.
const LEFT_AFTER_PAUSE: f64 = 0.75;
/// Steps of the first pause, and of the longest. A trial costs one or two plain steps, so the first
/// pause makes trials cost one percent, and the longest makes them cost nothing. Set by the table of
/// recorded texts.
const PAUSE_STEPS: [u64; 2] = [256, 8_192];

/// What drafts of one class have saved at one load.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// Plain steps; negative if drafts lost.
    saved: f64,
    /// Steps of the last pause; 0 if drafts have paid since.
    pause: u64,
    /// Number of the step with which the pause ends.
    until: u64,
}

/// A cycle that is under way.
#[derive(Clone, Debug)]
struct Cycle {
    /// Sequences in the engine.
    sequences: usize,
    /// Class of each sequence that drafts.
    classes: Vec<usize>,
    plain_us: f64,
    tokens: usize,
    us: f64,
}

/// The start of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) class: usize,
    pub(super) sequences: usize,
    pub(super) steps: u64,
}

/// Balances of all classes and loads.
#[derive(Clone, Debug, Default)]
pub(super) struct Parking {
    balances: BTreeMap<(usize, usize), Balance>,
    cycle: Option<Cycle>,
    /// Steps of the engine so far.
    steps: u64,
}

impl Parking {
    /// Whether a class is parked while this number of sequences is in the engine.
    pub(super) fn is_parked(&self, class: usize, sequences: usize) -> bool {
        let balance = self.balances.get(&(class, load_range(sequences)));
        balance.is_some_and(|balance| self.steps < balance.until)
    }

    /// Sequences of these classes draft in the next cycle, of `sequences` in the engine. A plain
    /// step of all of them takes `plain_us`.
    pub(super) fn begin(&mut self, classes: Vec<usize>, sequences: usize, plain_us: f64) {
        let cycle = Cycle { sequences, classes, plain_us, tokens: 0, us: 0.0 };
        self.cycle = Some(cycle).filter(|cycle| !cycle.classes.is_empty());
    }

    /// A step without prompts gave `tokens` tokens and took `us`.
    pub(super) fn stepped(&mut self, tokens: usize, us: f64) {
        self.steps += 1;
        if let Some(cycle) = &mut self.cycle {
            (cycle.tokens, cycle.us) = (cycle.tokens + tokens, cycle.us + us);
        }
    }

    /// The target waited `us` for drafts.
    pub(super) fn waited(&mut self, us: f64) {
        if let Some(cycle) = &mut self.cycle {
            cycle.us += us;
        }
    }

    /// The cycle that is under way is no measure: other work was done meanwhile.
    pub(super) fn disturb(&mut self) {
        self.cycle = None;
    }

    /// The cycle that was under way is over. Returns the pauses that begin because of it.
    pub(super) fn settle(&mut self) -> Vec<Pause> {
        let Some(cycle) = self.cycle.take().filter(|cycle| cycle.us > 0.0) else { return vec![] };
        let Cycle { sequences, mut classes, plain_us, tokens, us } = cycle;
        let saved = (tokens as f64 / sequences as f64 - us / plain_us).max(-MOST_LOSS);
        let drafting = classes.len() as f64;
        classes.sort_unstable();
        let of_class = classes.chunk_by(|one, other| one == other);
        let mut pauses = vec![];
        for class in of_class {
            let balance = self.balances.entry((class[0], load_range(sequences))).or_default();
            let share = class.len() as f64 / drafting;
            let all = balance.saved * (1.0 - FORGOTTEN) + share * saved;
            balance.saved = all.min(MOST_CREDIT);
            if balance.saved > 0.0 {
                balance.pause = 0;
            } else if balance.saved < -LOSS_LIMIT {
                balance.saved = -LOSS_LIMIT * LEFT_AFTER_PAUSE;
                balance.pause = (2 * balance.pause).clamp(PAUSE_STEPS[0], PAUSE_STEPS[1]);
                balance.until = self.steps + balance.pause;
                pauses.push(Pause { class: class[0], sequences, steps: balance.pause });
            }
        }
        pauses
    }

    /// Another drafter is attached, or the same one anew: nothing is parked.
    pub(super) fn end(&mut self) {
        (self.balances, self.cycle) = (BTreeMap::new(), None);
    }
}
