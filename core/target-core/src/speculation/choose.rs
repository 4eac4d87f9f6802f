//! The lengths of all drafts of the next cycle.
//!
//! The algorithm: the batch drafts the lengths with the largest geometric mean of the sequences'
//! throughputs, by the cost of steps and drafts and the survival of drafts. The geometric mean
//! keeps one text that drafts far from slowing fifteen others (proportional fairness: Kelly,
//! Maulloo, Tan 1998).
//!
//! A cycle of n drafting sequences among N: the drafter works, the others step plainly beside it,
//! and then one step verifies all blocks and takes the others along. Its cost has a large part that
//! the first drafted token pays for all. Growing from nothing by single tokens would therefore
//! never begin. So for each number of drafting sequences the blocks grow greedily, the likeliest
//! token of all first, and the best point on the way counts.

use super::cost::Size;
use super::costs::Costs;
use super::survival::{LONGEST_DRAFT, Survival, accepted};

/// A token that is less likely to be accepted is never drafted, whatever it costs.
const LEAST_SURVIVAL: f32 = 0.01;
/// Numbers of drafting sequences that are compared, and all of them. Sparse at the end, because
/// there one sequence more changes little.
const DRAFTING_COUNTS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Lengths that are compared if one length serves all sequences.
const LENGTHS: [usize; 10] = [2, 3, 4, 5, 7, 9, 11, 15, 22, 31];

/// All sequences that step together.
#[derive(Clone, Copy, Debug)]
pub struct BatchLoad {
    /// Their number.
    pub sequences: usize,
    /// Positions of context of all of them.
    pub context: f64,
}

/// Tokens and time of a cycle, or of a plain step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Microseconds.
    pub us: f64,
    /// Expected tokens of all sequences.
    pub tokens: f64,
}

impl Throughput {
    /// Tokens per microsecond.
    pub fn rate(&self) -> f64 {
        self.tokens / self.us
    }
}

/// Costs of a cycle that are the same for all lengths, in microseconds.
#[derive(Clone, Copy, Debug)]
struct FixedCosts {
    /// A step of those that do not draft, while the drafter works; 0 if all draft.
    beside_us: f64,
    /// A plain step of all.
    plain_us: f64,
}

/// The drafts of a cycle, in sum.
#[derive(Clone, Copy, Debug)]
struct DraftSums {
    drafting: usize,
    rows: f64,
    accepted: f64,
}

impl BatchLoad {
    /// One plain step of all.
    pub fn plain(&self, costs: &Costs) -> Throughput {
        let count = self.sequences as f64;
        Throughput { us: costs.plain_us(count, self.context), tokens: count }
    }

    /// A cycle in which `drafting` sequences draft `rows` tokens in all, of which `accepted` are
    /// expected to be accepted.
    pub fn cycle(&self, costs: &Costs, drafting: usize, rows: f64, accepted: f64) -> Throughput {
        self.cycle_of(costs, self.fixed(costs, drafting), DraftSums { drafting, rows, accepted })
    }

    fn fixed(&self, costs: &Costs, drafting: usize) -> FixedCosts {
        let (count, others) =
            (self.sequences as f64, self.sequences.saturating_sub(drafting) as f64);
        let beside_us = if others < 0.5 {
            0.0
        } else {
            costs.plain_us(others, self.context * others / count) * costs.step_beside()
        };
        FixedCosts { beside_us, plain_us: costs.plain_us(count, self.context) }
    }

    fn cycle_of(&self, costs: &Costs, fixed: FixedCosts, drafts: DraftSums) -> Throughput {
        let DraftSums { rows, accepted, .. } = drafts;
        let (count, drafting) = (self.sequences as f64, drafts.drafting as f64);
        let others = count - drafting;
        // Blocks with their bonus tokens, and the positions that the last cycle committed.
        let draft_us = costs.draft_us(2.0 * drafting + rows + accepted, drafting);
        let (wait_us, plain_tokens) = if others < 0.5 {
            (draft_us, 0.0)
        } else {
            // The draft arrives in the middle of a step, and is taken at the step's end.
            let steps = (draft_us * costs.draft_beside() / fixed.beside_us + 0.5).max(1.0);
            (steps * fixed.beside_us, steps * others)
        };
        let verified = Size { rows: count + rows, sequences: count, context: self.context };
        Throughput {
            us: wait_us + costs.verify_us(verified, fixed.plain_us),
            tokens: count + accepted + plain_tokens,
        }
    }
}

/// A sequence that may draft.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Expected survival of its draft.
    pub survival: &'a Survival,
    /// Most drafted tokens.
    pub most: usize,
    /// Time that the drafter needs to read its context, per token that is still expected, in
    /// microseconds.
    pub read_us: f64,
}

/// Lengths, and what they give.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Drafted tokens of each candidate; 0 is plain.
    pub lengths: Vec<usize>,
    /// Throughput of the cycle; of a plain step if no sequence drafts.
    pub throughput: Throughput,
    /// Geometric mean of the sequences' throughputs, in tokens per microsecond. The best choice
    /// has the largest one.
    pub rate: f64,
}

/// The geometric mean of all throughputs. `logs` is the sum of the logarithms of the drafting
/// sequences' tokens, `own` the sum of those tokens.
fn fair_rate(load: BatchLoad, drafting: usize, logs: f64, own: f64, cycle: Throughput) -> f64 {
    let others = load.sequences - drafting;
    let plain =
        if others == 0 { 0.0 } else { others as f64 * ((cycle.tokens - own) / others as f64).ln() };
    ((logs + plain) / load.sequences as f64).exp() / cycle.us
}

/// The product of the tokens of the sequences that do not draft.
fn plain_product(load: BatchLoad, drafting: usize, own: f64, cycle: Throughput) -> f64 {
    match load.sequences - drafting {
        0 => 1.0,
        others => {
            ((cycle.tokens - own) / others as f64).powi(i32::try_from(others).unwrap_or(i32::MAX))
        }
    }
}

/// One more token of a candidate's block.
#[derive(Clone, Copy, Debug)]
struct Growth {
    survival: f32,
    /// Place of the candidate in `Search::order`.
    rank: usize,
}

/// The best point so far.
#[derive(Clone, Copy, Debug)]
struct Best {
    rate: f64,
    drafting: usize,
    rows: usize,
    throughput: Throughput,
}

/// Blocks on the way of greedy growth.
#[derive(Clone, Copy, Debug)]
struct Point {
    rows: usize,
    /// Sum of the drafting sequences' expected tokens.
    sum: f64,
    /// Product of the drafting sequences' expected tokens. A block has at most 32 tokens and 32
    /// blocks at most 32^32, so it fits a double.
    product: f64,
}

/// The search over numbers of drafting sequences and lengths.
struct Search<'a> {
    costs: &'a Costs,
    load: BatchLoad,
    candidates: &'a [Candidate<'a>],
    /// Candidates that may draft, the ones with the most accepted tokens first.
    order: Vec<usize>,
    /// Tokens after the first of each block, the likeliest first. Survival falls along a block, so
    /// each block grows in order.
    growth: Vec<Growth>,
    best: Option<Best>,
}

impl<'a> Search<'a> {
    fn new(costs: &'a Costs, load: BatchLoad, candidates: &'a [Candidate<'a>]) -> Self {
        let mut order: Vec<(usize, f64)> = candidates
            .iter()
            .enumerate()
            .map(|(at, one)| (at, accepted(one.survival, one.most)))
            .collect();
        order.retain(|(at, _)| {
            candidates[*at].most > 0 && candidates[*at].survival[0] >= LEAST_SURVIVAL
        });
        order.sort_by(|one, other| other.1.total_cmp(&one.1));
        let order: Vec<usize> = order.into_iter().map(|(at, _)| at).collect();
        let mut growth: Vec<Growth> = vec![];
        for (rank, at) in order.iter().enumerate() {
            let survival = &candidates[*at].survival[..candidates[*at].most.min(LONGEST_DRAFT)];
            growth.extend(
                survival[1..]
                    .iter()
                    .take_while(|alive| **alive >= LEAST_SURVIVAL)
                    .map(|alive| Growth { survival: *alive, rank }),
            );
        }
        growth.sort_unstable_by(|one, other| other.survival.total_cmp(&one.survival));
        Self { costs, load, candidates, order, growth, best: None }
    }

    /// Grows the blocks of the first candidates, one for each place in `tokens`, and compares the
    /// points on the way. `tokens` is scratch space for the expected tokens of each block.
    fn grow(&mut self, tokens: &mut [f64]) {
        let drafting = tokens.len();
        for (place, at) in tokens.iter_mut().zip(&self.order) {
            *place = 1.0 + f64::from(self.candidates[*at].survival[0]);
        }
        let mut point =
            Point { rows: drafting, sum: tokens.iter().sum(), product: tokens.iter().product() };
        let read_us: f64 =
            self.order[..drafting].iter().map(|at| self.candidates[*at].read_us).sum::<f64>()
                / drafting as f64;
        let fixed = self.load.fixed(self.costs, drafting);
        // If many draft, one row more changes nothing, so not every point is compared.
        let stride = (drafting / 3).max(1);
        self.compare(drafting, point, fixed, read_us);
        for at in 0..self.growth.len() {
            let Growth { survival, rank } = self.growth[at];
            if rank >= drafting {
                continue;
            }
            let alive = f64::from(survival);
            point.rows += 1;
            point.product *= 1.0 + alive / tokens[rank];
            tokens[rank] += alive;
            point.sum += alive;
            if (point.rows - drafting).is_multiple_of(stride) {
                self.compare(drafting, point, fixed, read_us);
            }
        }
        self.compare(drafting, point, fixed, read_us);
    }

    fn compare(&mut self, drafting: usize, point: Point, fixed: FixedCosts, read_us: f64) {
        let Point { rows, sum, product } = point;
        let (load, accepted) = (self.load, sum - drafting as f64);
        let drafts = DraftSums { drafting, rows: rows as f64, accepted };
        let mut throughput = load.cycle_of(self.costs, fixed, drafts);
        throughput.us += read_us * sum;
        let count = i32::try_from(load.sequences).unwrap_or(i32::MAX);
        // Compares the numbers whose root is the rate, so that a worse point needs no logarithm.
        if self.best.is_some_and(|best| {
            product * plain_product(load, drafting, sum, throughput)
                <= (best.rate * throughput.us).powi(count)
        }) {
            return;
        }
        let rate = fair_rate(load, drafting, product.ln(), sum, throughput);
        if self.best.is_none_or(|best| rate > best.rate) {
            self.best = Some(Best { rate, drafting, rows, throughput });
        }
    }

    fn choice(&self) -> Option<Choice> {
        let Best { rate, drafting, rows, throughput } = self.best?;
        let mut lengths = vec![0; self.candidates.len()];
        self.order[..drafting].iter().for_each(|at| lengths[*at] = 1);
        let grown = self.growth.iter().filter(|one| one.rank < drafting).take(rows - drafting);
        grown.for_each(|one| lengths[self.order[one.rank]] += 1);
        Some(Choice { lengths, throughput, rate })
    }
}

/// The best cycle in which at least one candidate drafts; `None` if none may. The caller compares
/// it with a plain step, because the caller knows what a change costs.
pub fn best_cycle(costs: &Costs, load: BatchLoad, candidates: &[Candidate<'_>]) -> Option<Choice> {
    let mut search = Search::new(costs, load, candidates);
    let mut tokens = vec![0.0; search.order.len()];
    for drafting in drafting_counts(search.order.len()) {
        search.grow(&mut tokens[..drafting]);
    }
    search.choice()
}

/// Numbers of drafting sequences that are compared if so many may draft.
fn drafting_counts(all: usize) -> impl Iterator<Item = usize> {
    DRAFTING_COUNTS
        .into_iter()
        .take_while(move |count| *count < all)
        .chain((all > 0).then_some(all))
}

/// Given lengths as a choice.
pub fn choice_of(
    costs: &Costs,
    load: BatchLoad,
    candidates: &[Candidate<'_>],
    lengths: &[usize],
) -> Choice {
    let drafts = || candidates.iter().zip(lengths).filter(|(_, length)| **length > 0);
    let (drafting, rows) = (drafts().count(), lengths.iter().sum::<usize>() as f64);
    let (mut sum, mut logs) = (0.0, 0.0);
    for (one, length) in drafts() {
        let tokens = 1.0 + accepted(one.survival, *length);
        (sum, logs) = (sum + tokens, logs + tokens.ln());
    }
    let read_us: f64 = drafts().map(|(one, _)| one.read_us).sum::<f64>() / drafting.max(1) as f64;
    let mut throughput = load.cycle(costs, drafting, rows, sum - drafting as f64);
    throughput.us += read_us * sum;
    let rate = fair_rate(load, drafting, logs, sum, throughput);
    Choice { lengths: lengths.to_vec(), throughput, rate }
}

/// The lengths that are compared if one length of at most `most` serves all sequences.
pub fn lengths_up_to(most: usize) -> impl Iterator<Item = usize> {
    LENGTHS.into_iter().map(move |length| length.min(most)).filter(|length| *length > 0)
}

/// The best throughput, over plain steps, that `drafting` sequences reach whose text is of one
/// kind; 0 if no draft is possible.
pub fn gain_of_kind(
    costs: &Costs,
    load: BatchLoad,
    drafting: usize,
    survival: &Survival,
    most: usize,
) -> f64 {
    let (plain, fixed) = (load.plain(costs).rate(), load.fixed(costs, drafting));
    let mut best = 0.0;
    for length in lengths_up_to(most) {
        let rows = (length * drafting) as f64;
        let drafts =
            DraftSums { drafting, rows, accepted: accepted(survival, length) * drafting as f64 };
        let gain = load.cycle_of(costs, fixed, drafts).rate() / plain;
        if gain > best {
            best = gain;
        }
    }
    best
}

#[cfg(test)]
pub(super) mod tests;
