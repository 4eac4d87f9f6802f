//! Parking: drafts of a traffic class at a load are paid from an account, in plain steps. What they
//! saved is paid in and what they lost is taken out, both measured: the plain steps that give as many
//! tokens, less the plain steps that fit in the cycle's time. Each step of that load pays in a small
//! share as well. An empty account parks the class: it does without a drafter at that load until the
//! shares are enough for a trial.

use std::collections::BTreeMap;

use super::load::{LOADS, load_range};

/// Plain steps on a new account, and the most that shares fill it to. A noisy machine makes cycles
/// that pay look like ones that lose, by less than this. Set by the table of recorded texts on a
/// shared machine.
const ALLOWANCE: f64 = 4.0;
/// Most plain steps of savings that later losses consume first. Set by the same table.
const MOST_CREDIT: f64 = 128.0;
/// Plain steps that one trial may cost: with these a parked class draws on its account again.
const TRIAL: f64 = 2.0;
/// Most plain steps that one cycle loses: a paused step is not the fault of its drafts.
const MOST_LOSS: f64 = 3.0;
/// Share of each step that is paid in at first, and the least: it halves each time the account is
/// empty again, until drafts have paid. So trials cost a sixty-fourth at most, and in the end
/// nothing.
const SHARES: [f64; 2] = [1.0 / 64.0, 1.0 / 4096.0];

/// The account of one class at one load.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Plain steps that drafts may lose.
    balance: f64,
    /// Share of each step that is paid in.
    share: f64,
    /// Steps of this load whose shares are paid in.
    paid_until: u64,
    is_parked: bool,
    /// It was empty before, and drafts have not paid since.
    was_empty: bool,
}

impl Account {
    fn new(steps: u64) -> Self {
        let (is_parked, was_empty) = (false, false);
        Self { balance: ALLOWANCE, share: SHARES[0], paid_until: steps, is_parked, was_empty }
    }

    /// The account after this number of steps of its load.
    fn at(mut self, steps: u64) -> Self {
        let share = self.share * (steps - self.paid_until) as f64;
        self.balance = self.balance.max((self.balance + share).min(ALLOWANCE));
        self.paid_until = steps;
        self.is_parked &= self.balance < TRIAL;
        self
    }

    /// Pays in what a cycle saved. Returns the steps for which its class is parked now, if that
    /// begins.
    fn settle(&mut self, saved: f64) -> Option<u64> {
        self.balance = (self.balance + saved).min(MOST_CREDIT);
        if self.balance > ALLOWANCE {
            (self.share, self.was_empty) = (SHARES[0], false);
        }
        if self.balance > 0.0 || self.is_parked {
            return None;
        }
        if self.was_empty {
            self.share = (self.share / 2.0).max(SHARES[1]);
        }
        (self.is_parked, self.was_empty) = (true, true);
        Some(((TRIAL - self.balance) / self.share).ceil() as u64)
    }
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

/// Accounts of all classes and loads.
#[derive(Clone, Debug, Default)]
pub(super) struct Parking {
    accounts: BTreeMap<(usize, usize), Account>,
    cycle: Option<Cycle>,
    /// Steps of the engine so far, by load.
    steps: [u64; LOADS],
}

impl Parking {
    /// Whether a class is parked while this number of sequences is in the engine.
    pub(super) fn is_parked(&self, class: usize, sequences: usize) -> bool {
        let load = load_range(sequences);
        let account = self.accounts.get(&(class, load));
        account.is_some_and(|account| account.at(self.steps[load]).is_parked)
    }

    /// Sequences of these classes draft in the next cycle, of `sequences` in the engine. A plain
    /// step of all of them takes `plain_us`.
    pub(super) fn begin(&mut self, classes: Vec<usize>, sequences: usize, plain_us: f64) {
        let cycle = Cycle { sequences, classes, plain_us, tokens: 0, us: 0.0 };
        self.cycle = Some(cycle).filter(|cycle| !cycle.classes.is_empty());
    }

    /// A step without prompts, with `sequences` in the engine, gave `tokens` tokens and took `us`.
    pub(super) fn stepped(&mut self, sequences: usize, tokens: usize, us: f64) {
        self.steps[load_range(sequences)] += 1;
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
        let load = load_range(sequences);
        let steps = self.steps[load];
        let mut pauses = vec![];
        for class in of_class {
            let share = class.len() as f64 / drafting;
            let new = || Account::new(steps);
            let account = self.accounts.entry((class[0], load)).or_insert_with(new);
            *account = account.at(steps);
            let pause = account.settle(share * saved);
            pauses.extend(pause.map(|steps| Pause { class: class[0], sequences, steps }));
        }
        pauses
    }

    /// Another drafter is attached, or the same one anew: nothing is parked.
    pub(super) fn end(&mut self) {
        (self.accounts, self.cycle) = (BTreeMap::new(), None);
    }
}
