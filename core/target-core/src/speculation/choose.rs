//! The lengths of all drafts of the next cycle: the most tokens for the time, by what steps and
//! drafts cost and how far drafts survive.
//!
//! A cycle of n drafting sequences among N: the drafter works, the others step plainly beside it,
//! then one step verifies all blocks and takes the others along. Its price has a large part that
//! the first drafted token pays for all, so growing by single tokens from nothing would never
//! begin: for each number of drafting sequences the blocks are grown greedily, the likeliest token
//! of all first, and the best point on the way counts. Best is the geometric mean of all paces: by
//! the sum of tokens one text that drafts far would be worth that fifteen others go slower.

use super::cost::{Cost, Plain, Size};
use super::survival::{KINDS, MOST, Survival, accepted};

/// Until a step was measured; only ratios matter then.
const ASSUMED_STEP_US: f64 = 10_000.0;
/// Rows that cost as much as the base, until measured.
const ASSUMED_ROWS: f64 = 64.0;
/// How much slower a step is while the drafter works, until measured, and the bounds of what is
/// believed.
const ASSUMED_BESIDE: f64 = 1.2;
const BESIDE: (f64, f64) = (0.8, 4.0);
/// Drafts behind which their price is what was measured.
const FEW_DRAFTS: u64 = 8;
/// What drafts are taken for when none was asked for during so many steps, and at least, however
/// long it is.
const CHEAPER: f64 = 0.65;
const CHEAPEST: f64 = 0.1;
/// Variances, of logarithms: a step's deviation from its price, and what that is more, divided
/// among its figures and one, where the price is of few; what the machine's speed changes in the
/// time of a plain step (by which, as long as all are of one kind, 0.12 of a deviation is put down
/// to it); how far a kind of step may be off its price, and what that changes in that time. Of what
/// the machine is slower than in the mean so much is left after that time if nothing is heard.
const NOISE: f64 = 0.04;
const GUESSED: f64 = 0.5;
const MEASURED: f64 = 8.0;
const WANDERS: f64 = 6.5e-4;
const KINDS_DIFFER: f64 = 0.04;
const KIND_WANDERS: f64 = 1.5e-5;
const LEFT: f64 = 0.995;
/// A step counts at most as the time of so many plain ones.
const LONGEST: f64 = 30.0;
/// The most that one step counts for, and bounds of the logarithms.
const SINGLE: f64 = 2.0;
const MOST_SLOWER: f64 = 3.0;
/// Weight of the newest ratio.
const NEWEST: f64 = 0.1;
/// A token less likely than this is not drafted whatever it costs.
const UNLIKELY: f32 = 0.01;
/// Numbers of drafting sequences that are tried.
const SETS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Lengths that are tried where one serves all.
const LENGTHS: [usize; 10] = [2, 3, 4, 5, 7, 9, 11, 15, 22, 31];

/// What is known of this machine with this pair.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Steps while the drafter rests.
    pub step: Cost,
    /// Steps of one row of each sequence, by their number.
    pub plain: Plain,
    /// Drafts while the target waits for them: from asking to having them.
    pub draft: Cost,
    /// Times by which steps and drafts are slower beside each other.
    step_beside: f64,
    draft_beside: f64,
    /// Times by which drafts are hoped to be cheaper than they were.
    hope: f64,
    /// Times by which the machine is slower now than prices say.
    slower: Slower,
}

/// What all work has in common, and what steps with drafted tokens have in common beside it, both
/// as logarithms of times.
///
/// A machine that others use too, or that is hot, is slower for seconds, and all work on it alike.
/// What is done at such a time becomes dearer in the books and what is not done does not, so who
/// held the one against the other would draft because plain steps were measured last when the
/// machine was slow. So prices are those of a machine that is as it was in the mean, and how it is
/// now is known from every step, whatever its kind.
///
/// As long as all steps are of one kind, a machine that became slower looks like a kind that was
/// taken for too cheap. Both are estimated together (a Kalman filter of two states): what a
/// deviation is put down to goes by how well each was known when the kind changed, and the first
/// steps of the other kind set both right.
///
/// Prices times this factor are all that is ever seen of either: a factor that stays where a
/// mistake left it would be taken out of the prices of whatever is measured next, and what is
/// seldom measured would stay too dear by it. So it returns to 1 (an Ornstein-Uhlenbeck process),
/// and a machine that stays slower becomes one whose prices are higher.
#[derive(Clone, Copy, Debug)]
struct Slower {
    /// Of all work; of steps with drafted tokens beside it.
    ln: [f64; 2],
    /// Variances of both, and what they have in common.
    variance: [f64; 2],
    common: f64,
    /// e to those: a decision asks for a thousand prices.
    times: f64,
    of_blocks: f64,
}

impl Default for Slower {
    fn default() -> Self {
        Self {
            ln: [0.0; 2],
            variance: [NOISE, KINDS_DIFFER],
            common: 0.0,
            times: 1.0,
            of_blocks: 1.0,
        }
    }
}

impl Slower {
    /// A step, expected to be as long as so many plain ones, took so many times as long, with such
    /// a variance.
    fn observe(&mut self, ratio: f64, blocks: bool, noise: f64, length: f64) {
        let length = length.clamp(1.0, LONGEST);
        let left = LEFT.powf(length);
        let [all, kind] = &mut self.variance;
        self.ln[0] *= left;
        *all = *all * left * left + WANDERS * length;
        self.common *= left;
        *kind = (*kind + KIND_WANDERS * length).min(KINDS_DIFFER);
        // What each has in common with the deviation, whose variance is `seen`.
        let (with_all, with_kind, seen) = match blocks {
            true => {
                (*all + self.common, *kind + self.common, *all + 2.0 * self.common + *kind + noise)
            }
            false => (*all, self.common, *all + noise),
        };
        let deviation = (ratio.min(SINGLE) - 1.0) / seen;
        for (ln, with) in self.ln.iter_mut().zip([with_all, with_kind]) {
            *ln = (*ln + with * deviation).clamp(-MOST_SLOWER, MOST_SLOWER);
        }
        *all -= with_all * with_all / seen;
        *kind -= with_kind * with_kind / seen;
        self.common -= with_all * with_kind / seen;
        (self.times, self.of_blocks) = (self.ln[0].exp(), self.ln[1].exp());
    }

    /// What is known of all work is old: the next steps say it anew.
    fn forget(&mut self) {
        self.variance[0] = self.variance[0].max(NOISE);
    }

    /// Times by which a step is slower than its price says.
    fn step(&self, blocks: bool) -> f64 {
        if blocks { self.times * self.of_blocks } else { self.times }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            step: Cost::default(),
            plain: Plain::default(),
            draft: Cost::default(),
            step_beside: ASSUMED_BESIDE,
            draft_beside: ASSUMED_BESIDE,
            hope: 1.0,
            slower: Slower::default(),
        }
    }
}

impl Costs {
    /// A step.
    pub fn step_us(&self, rows: f64, sequences: f64, context: f64) -> f64 {
        match self.step.is_known() {
            true if rows > sequences => {
                self.block_us(Size { rows, sequences, context }, self.plain_us(sequences, context))
            }
            true => self.slower.step(false) * self.step.us(Size { rows, sequences, context }),
            false => ASSUMED_STEP_US * (1.0 + rows / ASSUMED_ROWS),
        }
    }

    /// A step with drafted tokens, where a plain one of the same sequences costs `plain_us`.
    fn block_us(&self, size: Size, plain_us: f64) -> f64 {
        match self.step.is_known() {
            // More rows are never cheaper: a price that says so is of another moment than the one
            // of plain steps.
            true => (self.slower.step(true) * self.step.us(size)).max(plain_us),
            false => self.step_us(size.rows, size.sequences, size.context),
        }
    }

    /// A step of one row of each of so many sequences.
    pub fn plain_us(&self, sequences: f64, context: f64) -> f64 {
        match self.step.is_known() {
            true => {
                self.slower.times
                    * self.plain.us(Size { rows: sequences, sequences, context }, &self.step)
            }
            false => self.step_us(sequences, sequences, context),
        }
    }

    /// A draft for so many sequences; `rows` are those of the blocks and of new context. Until one
    /// is measured it is half as dear as a plain step: rather too cheap, as what looks dear is
    /// never tried. As long as few are, it is no dearer than a step of as many rows: a drafter is
    /// smaller than its target, and the first drafts may have been paused.
    pub fn draft_us(&self, rows: f64, sequences: f64) -> f64 {
        let measured_us = || {
            self.hope * self.slower.times * self.draft.us(Size { rows, sequences, context: 0.0 })
        };
        match self.draft.seen() {
            0 => self.step_us(1.0, 1.0, 0.0) / 2.0,
            1..FEW_DRAFTS => measured_us().min(self.step_us(rows, sequences, 0.0)),
            _ => measured_us(),
        }
    }

    /// What reading so many rows in costs the drafter.
    pub fn read_us(&self, rows: usize) -> f64 {
        let row = match self.draft.is_known() {
            true => self.hope * self.slower.times * self.draft.row_us(),
            false => self.step_us(1.0, 1.0, 0.0) / ASSUMED_ROWS,
        };
        rows as f64 * row
    }

    /// What reading so many rows in costs all who step meanwhile: each step takes longer while the
    /// drafter works, and none waits for it.
    pub fn read_beside_us(&self, rows: usize) -> f64 {
        self.read_us(rows) * (1.0 - 1.0 / self.step_beside).max(0.0)
    }

    /// No draft was asked for so long that what is known of drafts may be an accident, which
    /// nothing would ever correct: they are taken for a little cheaper, until one is tried.
    pub fn nothing_drafted(&mut self) {
        self.draft.doubt();
        self.hope = (self.hope * CHEAPER).max(CHEAPEST);
    }

    /// A draft for `size` came so long after it was asked for; the target did `steps` steps
    /// meanwhile.
    pub fn drafted(&mut self, size: Size, us: f64, steps: u32) {
        self.hope = 1.0;
        match steps {
            0 => self.draft.observe(size, us / self.slower.times),
            _ => self.draft_was_beside(size, us, steps),
        }
    }

    /// A step took so long while the drafter worked.
    pub fn step_was_beside(&mut self, size: Size, us: f64) {
        let expected = self.expected_us(size);
        mix(&mut self.step_beside, us / expected);
    }

    /// How slow the machine is was last seen long ago, and what is seen now is something else.
    pub fn speed_changed(&mut self) {
        self.slower.forget();
    }

    /// A step took so long while the drafter rested.
    pub fn stepped(&mut self, size: Size, us: f64) {
        let plain = size.rows <= size.sequences;
        // What was never measured says something too: a machine that others have left, while blocks
        // of lengths that are new go on, would be taken for slow still, and the blocks for cheap.
        if self.step.is_known() {
            let expected = self.expected_us(size);
            let length = expected / self.plain_us(size.sequences, size.context);
            self.slower.observe(us / expected, !plain, self.noise(size), length);
        }
        let us = us / self.slower.step(!plain);
        self.step.observe(size, us);
        if plain {
            self.plain.observe(size, us, &self.step);
        }
    }

    /// What a step of that size costs, plain or not.
    fn expected_us(&self, size: Size) -> f64 {
        match size.rows > size.sequences {
            true => self.step_us(size.rows, size.sequences, size.context),
            false => self.plain_us(size.sequences, size.context),
        }
    }

    /// Variance of the logarithm of what a step of that size takes over what is expected.
    fn noise(&self, size: Size) -> f64 {
        let figures = match size.rows <= size.sequences {
            true => self.plain.figures(size),
            false => self.step.figures(size),
        };
        if figures < MEASURED { NOISE + GUESSED / (1.0 + figures) } else { NOISE }
    }

    /// A draft came so long after it was asked for while others stepped `steps` times: somewhere in
    /// the last of them, which says something only where it was expected in another.
    fn draft_was_beside(&mut self, size: Size, us: f64, steps: u32) {
        let steps = f64::from(steps.max(1));
        let expected = self.draft_us(size.rows, size.sequences);
        if us < expected {
            // Alone it takes no longer than beside others: a pause that fell into the first figures
            // is not believed for ever.
            self.draft.observe(size, us / self.slower.times);
        }
        let (least, most) = (us * (steps - 1.0) / steps / expected, us / expected);
        let nearest = self.draft_beside.clamp(least, most);
        mix(&mut self.draft_beside, nearest);
    }
}

fn mix(old: &mut f64, new: f64) {
    if new.is_finite() {
        *old += NEWEST * (new.clamp(BESIDE.0, BESIDE.1) - *old);
    }
}

/// All sequences that step together.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many.
    pub sequences: usize,
    /// Positions of all of them.
    pub context: f64,
}

/// Time and tokens of a way to go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Microseconds.
    pub us: f64,
    /// Tokens of all sequences.
    pub tokens: f64,
}

impl Throughput {
    /// Tokens a microsecond.
    pub fn rate(&self) -> f64 {
        self.tokens / self.us
    }
}

/// Prices of a cycle that are the same for all lengths, microseconds.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    /// A step of those that do not draft, while the drafter works; 0 where all draft.
    beside_us: f64,
    /// A plain step of all.
    plain_us: f64,
}

impl Load {
    /// One plain step of all.
    pub fn plain(&self, costs: &Costs) -> Throughput {
        let count = self.sequences as f64;
        Throughput { us: costs.plain_us(count, self.context), tokens: count }
    }

    /// A cycle in which `drafting` of them draft `rows` tokens in all, of which `accepted` are
    /// expected to be.
    pub fn cycle(&self, costs: &Costs, drafting: usize, rows: f64, accepted: f64) -> Throughput {
        self.cycle_of(costs, self.fixed(costs, drafting), drafting, rows, accepted)
    }

    /// What does not change with the lengths, of which many are tried.
    fn fixed(&self, costs: &Costs, drafting: usize) -> Fixed {
        let (count, others) =
            (self.sequences as f64, self.sequences.saturating_sub(drafting) as f64);
        let beside_us = if others < 0.5 {
            0.0
        } else {
            costs.plain_us(others, self.context * others / count) * costs.step_beside
        };
        Fixed { beside_us, plain_us: costs.plain_us(count, self.context) }
    }

    /// The cycle with those prices.
    fn cycle_of(
        &self,
        costs: &Costs,
        Fixed { beside_us, plain_us }: Fixed,
        drafting: usize,
        rows: f64,
        accepted: f64,
    ) -> Throughput {
        let (count, drafting) = (self.sequences as f64, drafting as f64);
        let others = count - drafting;
        // Blocks with their bonus tokens, and the positions that the last cycle committed.
        let draft_us = costs.draft_us(2.0 * drafting + rows + accepted, drafting);
        let (wait_us, plain_tokens) = if others < 0.5 {
            (draft_us, 0.0)
        } else {
            // The draft comes somewhere in a step, and is seen at its end.
            let steps = (draft_us * costs.draft_beside / beside_us + 0.5).max(1.0);
            (steps * beside_us, steps * others)
        };
        let verified = Size { rows: count + rows, sequences: count, context: self.context };
        Throughput {
            us: wait_us + costs.block_us(verified, plain_us),
            tokens: count + accepted + plain_tokens,
        }
    }
}

/// A sequence that may draft.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What is expected of its draft.
    pub survival: &'a Survival,
    /// Most drafted tokens.
    pub most: usize,
    /// What reading the drafter in costs for every token that is still expected, microseconds.
    pub read_us: f64,
}

/// What is best.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Drafted tokens, candidate by candidate; 0 is plain.
    pub lengths: Vec<usize>,
    /// Of the cycle; of a plain step where nobody drafts.
    pub pace: Throughput,
    /// The pace of one sequence, as the geometric mean of all, tokens a microsecond: what is to be
    /// large (proportional fairness: Kelly, Maulloo, Tan 1998).
    pub rate: f64,
}

/// The geometric mean of the paces of all: those that draft have `logs` of their tokens a cycle in
/// sum.
fn fair_rate(load: Load, drafting: usize, logs: f64, own: f64, pace: Throughput) -> f64 {
    let others = load.sequences - drafting;
    let plain =
        if others == 0 { 0.0 } else { others as f64 * ((pace.tokens - own) / others as f64).ln() };
    ((logs + plain) / load.sequences as f64).exp() / pace.us
}

/// The product of the tokens of those that do not draft.
fn plain_product(load: Load, drafting: usize, own: f64, pace: Throughput) -> f64 {
    match load.sequences - drafting {
        0 => 1.0,
        others => {
            ((pace.tokens - own) / others as f64).powi(i32::try_from(others).unwrap_or(i32::MAX))
        }
    }
}

/// The best cycle in which at least one candidate drafts; `None` where none can. Whether it is
/// better than a plain step is for the caller to say, who knows what it costs to change.
pub fn best_cycle(costs: &Costs, load: Load, candidates: &[Candidate<'_>]) -> Option<Choice> {
    let mut order: Vec<(usize, f64)> =
        candidates.iter().enumerate().map(|(at, one)| (at, worth(one))).collect();
    order.retain(|(at, _)| candidates[*at].most > 0 && candidates[*at].survival[0] >= UNLIKELY);
    order.sort_by(|one, other| other.1.total_cmp(&one.1));
    // Tokens behind the first of each block, the likeliest first. Survival falls along a block, so
    // blocks grow in order.
    let mut growth: Vec<(f32, usize)> = vec![];
    for (rank, (at, _)) in order.iter().enumerate() {
        let survival = &candidates[*at].survival[..candidates[*at].most.min(MOST)];
        growth.extend(
            survival[1..]
                .iter()
                .take_while(|alive| **alive >= UNLIKELY)
                .map(|alive| (*alive, rank)),
        );
    }
    growth.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
    let mut best: Option<(f64, usize, usize, Throughput)> = None;
    let mut tokens = vec![0.0; order.len()];
    let count = i32::try_from(load.sequences).unwrap_or(i32::MAX);
    for drafting in sets(order.len()) {
        let set = &order[..drafting];
        tokens
            .iter_mut()
            .zip(set)
            .for_each(|(tokens, (at, _))| *tokens = 1.0 + f64::from(candidates[*at].survival[0]));
        let mut sum: f64 = tokens[..drafting].iter().sum();
        // A block has 32 tokens at most, 32 of them 32^32: no double is too small for it.
        let mut product: f64 = tokens[..drafting].iter().product();
        let read: f64 =
            set.iter().map(|(at, _)| candidates[*at].read_us).sum::<f64>() / drafting as f64;
        let fixed = load.fixed(costs, drafting);
        // Where many draft one row more is nothing.
        let stride = (drafting / 3).max(1);
        let mut look = |rows: usize, sum: f64, product: f64| {
            let mut pace =
                load.cycle_of(costs, fixed, drafting, rows as f64, sum - drafting as f64);
            pace.us += read * sum;
            // The same two numbers of which the rate is a root, without a logarithm for each that
            // is not better.
            if best.is_some_and(|best| {
                product * plain_product(load, drafting, sum, pace) <= (best.0 * pace.us).powi(count)
            }) {
                return;
            }
            let rate = fair_rate(load, drafting, product.ln(), sum, pace);
            if best.is_none_or(|best| rate > best.0) {
                best = Some((rate, drafting, rows, pace));
            }
        };
        look(drafting, sum, product);
        let mut rows = drafting;
        for (alive, rank) in growth.iter().filter(|(_, rank)| *rank < drafting) {
            rows += 1;
            let alive = f64::from(*alive);
            product *= 1.0 + alive / tokens[*rank];
            tokens[*rank] += alive;
            sum += alive;
            if (rows - drafting).is_multiple_of(stride) {
                look(rows, sum, product);
            }
        }
        look(rows, sum, product);
    }
    let (rate, drafting, rows, pace) = best?;
    let mut lengths = vec![0; candidates.len()];
    order[..drafting].iter().for_each(|(at, _)| lengths[*at] = 1);
    for (_, rank) in growth.iter().filter(|(_, rank)| *rank < drafting).take(rows - drafting) {
        lengths[order[*rank].0] += 1;
    }
    Some(Choice { lengths, pace, rate })
}

/// Numbers of drafting sequences that are tried of so many.
fn sets(all: usize) -> impl Iterator<Item = usize> {
    SETS.into_iter().take_while(move |count| *count < all).chain((all > 0).then_some(all))
}

fn worth(candidate: &Candidate<'_>) -> f64 {
    accepted(candidate.survival, candidate.most)
}

/// Given lengths as a choice.
pub fn choice_of(
    costs: &Costs,
    load: Load,
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
    let read: f64 = drafts().map(|(one, _)| one.read_us).sum::<f64>() / drafting.max(1) as f64;
    let mut pace = load.cycle(costs, drafting, rows, sum - drafting as f64);
    pace.us += read * sum;
    Choice { lengths: lengths.to_vec(), pace, rate: fair_rate(load, drafting, logs, sum, pace) }
}

/// The best that `drafting` of them can reach whose text is of one kind: rate over plain, and the
/// length.
pub fn gain_of_kind(
    costs: &Costs,
    load: Load,
    drafting: usize,
    survival: &Survival,
    most: usize,
) -> (f64, usize) {
    let (plain, fixed) = (load.plain(costs).rate(), load.fixed(costs, drafting));
    let mut best = (0.0, 0);
    for length in LENGTHS.into_iter().map(|length| length.min(most)).filter(|length| *length > 0) {
        let sum = accepted(survival, length) * drafting as f64;
        let gain =
            load.cycle_of(costs, fixed, drafting, (length * drafting) as f64, sum).rate() / plain;
        if gain > best.0 {
            best = (gain, length);
        }
    }
    best
}

/// A cycle of trial, for those of whom nothing speaks for drafting but that little is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Drafted tokens of each.
    pub length: usize,
    /// What it is expected to cost beyond going on plainly, microseconds.
    pub cost_us: f64,
    /// What it may bring: the time that would be saved if they are of a kind that pays, times how
    /// likely that is.
    pub value_us: f64,
}

/// What a trial costs in which `drafting` draft, and what it may bring `learning`, these and
/// others, when `kinds` says of which kind they are, `left` how many tokens are still expected of
/// all that learn, and reading the drafter in takes `read_us`.
pub fn trial(
    costs: &Costs,
    load: Load,
    (drafting, learning): (usize, usize),
    kinds: &[f64; KINDS],
    table: &[Survival; KINDS],
    most: usize,
    (left, read_us): (f64, f64),
) -> Option<Trial> {
    let plain_us = 1.0 / load.plain(costs).rate();
    let mut value_us = 0.0;
    for (share, survival) in kinds.iter().zip(table) {
        let (gain, _) = gain_of_kind(costs, load, learning, survival, most);
        value_us += share * plain_us * (1.0 - 1.0 / gain.max(1.0)) * left;
    }
    let mut best: Option<Trial> = None;
    for length in LENGTHS.into_iter().map(|length| length.min(most)).filter(|length| *length > 0) {
        let sum: f64 = kinds
            .iter()
            .zip(table)
            .map(|(share, survival)| share * accepted(survival, length))
            .sum();
        let pace = load.cycle(costs, drafting, (length * drafting) as f64, sum * drafting as f64);
        let cost_us = pace.us - pace.tokens * plain_us + read_us;
        if best.is_none_or(|best| cost_us < best.cost_us) {
            best = Some(Trial { length, cost_us, value_us });
        }
    }
    best
}

#[cfg(test)]
mod tests;
