//! The lengths of all drafts of the next cycle: the most tokens for the time, by what steps and drafts cost and how far drafts
//! survive (design section 7).
//!
//! A cycle of n drafting sequences among N: the drafter works, the others step plainly beside it, then one step verifies
//! all blocks and takes the others along. Its price has a large part that the first drafted token pays for all, so growing
//! by single tokens from nothing would never begin: for each number of drafting sequences the blocks are grown greedily,
//! the likeliest token of all first, and the best point on the way counts.

use super::cost::{Cost, Size};
use super::survival::{KINDS, MOST, Survival, accepted};

/// Until a step was measured; only ratios matter then.
const ASSUMED_STEP_US: f64 = 10_000.0;
/// Rows that cost as much as the base, until measured.
const ASSUMED_ROWS: f64 = 64.0;
/// How much slower a step is while the drafter works, until measured, and the bounds of what is believed.
const ASSUMED_BESIDE: f64 = 1.2;
const BESIDE: (f64, f64) = (0.8, 4.0);
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
    /// Drafts while the target waits for them: from asking to having them.
    pub draft: Cost,
    /// Times by which steps and drafts are slower beside each other.
    step_beside: f64,
    draft_beside: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { step: Cost::default(), draft: Cost::default(), step_beside: ASSUMED_BESIDE, draft_beside: ASSUMED_BESIDE }
    }
}

impl Costs {
    /// A step.
    pub fn step_us(&self, rows: f64, sequences: f64, context: f64) -> f64 {
        match self.step.is_known() {
            true => self.step.us(Size { rows, sequences, context }),
            false => ASSUMED_STEP_US * (1.0 + rows / ASSUMED_ROWS),
        }
    }

    /// A draft for so many sequences; `rows` are those of the blocks and of new context. Until one is measured it is half as
    /// dear as a plain step: rather too cheap, as what looks dear is never tried.
    pub fn draft_us(&self, rows: f64, sequences: f64) -> f64 {
        match self.draft.is_known() {
            true => self.draft.us(Size { rows, sequences, context: 0.0 }),
            false => self.step_us(1.0, 1.0, 0.0) / 2.0,
        }
    }

    /// What reading so many rows in costs the drafter.
    pub fn read_us(&self, rows: usize) -> f64 {
        let row = if self.draft.is_known() { self.draft.row_us() } else { self.step_us(1.0, 1.0, 0.0) / ASSUMED_ROWS };
        rows as f64 * row
    }

    /// A step took so long while the drafter worked.
    pub fn step_was_beside(&mut self, size: Size, us: f64) {
        let expected = self.step_us(size.rows, size.sequences, size.context);
        mix(&mut self.step_beside, us / expected);
    }

    /// A draft came so long after it was asked for while others stepped `steps` times: somewhere in the last of them, which
    /// says something only where it was expected in another.
    pub fn draft_was_beside(&mut self, size: Size, us: f64, steps: u32) {
        let steps = f64::from(steps.max(1));
        let expected = self.draft_us(size.rows, size.sequences);
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
pub struct Pace {
    /// Microseconds.
    pub us: f64,
    /// Tokens of all sequences.
    pub tokens: f64,
}

impl Pace {
    /// Tokens a microsecond.
    pub fn rate(&self) -> f64 {
        self.tokens / self.us
    }
}

impl Load {
    /// One plain step of all.
    pub fn plain(&self, costs: &Costs) -> Pace {
        let count = self.sequences as f64;
        Pace { us: costs.step_us(count, count, self.context), tokens: count }
    }

    /// A cycle in which `drafting` of them draft `rows` tokens in all, of which `accepted` are expected to be.
    pub fn cycle(&self, costs: &Costs, drafting: usize, rows: f64, accepted: f64) -> Pace {
        let (count, drafting) = (self.sequences as f64, drafting as f64);
        let others = count - drafting;
        // Blocks with their bonus tokens, and the positions that the last cycle committed.
        let draft_us = costs.draft_us(2.0 * drafting + rows + accepted, drafting);
        let (wait_us, plain_tokens) = if others < 0.5 {
            (draft_us, 0.0)
        } else {
            let step_us = costs.step_us(others, others, self.context * others / count) * costs.step_beside;
            // The draft comes somewhere in a step, and is seen at its end.
            let steps = (draft_us * costs.draft_beside / step_us + 0.5).max(1.0);
            (steps * step_us, steps * others)
        };
        Pace { us: wait_us + costs.step_us(count + rows, count, self.context), tokens: count + accepted + plain_tokens }
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
    pub pace: Pace,
}

/// The best cycle in which at least one candidate drafts; `None` where none can. Whether it is better than a plain step is for
/// the caller to say, who knows what it costs to change.
pub fn best_cycle(costs: &Costs, load: Load, candidates: &[Candidate<'_>]) -> Option<Choice> {
    let mut order: Vec<(usize, f64)> = candidates.iter().enumerate().map(|(at, one)| (at, worth(one))).collect();
    order.retain(|(at, _)| candidates[*at].most > 0 && candidates[*at].survival[0] >= UNLIKELY);
    order.sort_by(|one, other| other.1.total_cmp(&one.1));
    // Tokens behind the first of each block, the likeliest first. Survival falls along a block, so blocks grow in order.
    let mut growth: Vec<(f32, usize)> = vec![];
    for (rank, (at, _)) in order.iter().enumerate() {
        let survival = &candidates[*at].survival[..candidates[*at].most.min(MOST)];
        growth.extend(survival[1..].iter().take_while(|alive| **alive >= UNLIKELY).map(|alive| (*alive, rank)));
    }
    growth.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
    let mut best: Option<(f64, usize, usize, Pace)> = None;
    for drafting in SETS.into_iter().chain([order.len()]).filter(|count| (1..=order.len()).contains(count)) {
        let set = &order[..drafting];
        let mut sum: f64 = set.iter().map(|(at, _)| f64::from(candidates[*at].survival[0])).sum();
        let read: f64 = set.iter().map(|(at, _)| candidates[*at].read_us).sum::<f64>() / drafting as f64;
        // Where many draft one row more is nothing.
        let stride = (drafting / 3).max(1);
        let mut look = |rows: usize, sum: f64| {
            let mut pace = load.cycle(costs, drafting, rows as f64, sum);
            pace.us += read * (drafting as f64 + sum);
            if best.is_none_or(|best| pace.rate() > best.0) {
                best = Some((pace.rate(), drafting, rows, pace));
            }
        };
        look(drafting, sum);
        let mut rows = drafting;
        for (alive, _) in growth.iter().filter(|(_, rank)| *rank < drafting) {
            rows += 1;
            sum += f64::from(*alive);
            if (rows - drafting).is_multiple_of(stride) {
                look(rows, sum);
            }
        }
        look(rows, sum);
    }
    let (_, drafting, rows, pace) = best?;
    let mut lengths = vec![0; candidates.len()];
    order[..drafting].iter().for_each(|(at, _)| lengths[*at] = 1);
    for (_, rank) in growth.iter().filter(|(_, rank)| *rank < drafting).take(rows - drafting) {
        lengths[order[*rank].0] += 1;
    }
    Some(Choice { lengths, pace })
}

fn worth(candidate: &Candidate<'_>) -> f64 {
    accepted(candidate.survival, candidate.most)
}

/// The pace of given lengths.
pub fn pace_of(costs: &Costs, load: Load, candidates: &[Candidate<'_>], lengths: &[usize]) -> Pace {
    let drafts = || candidates.iter().zip(lengths).filter(|(_, length)| **length > 0);
    let (drafting, rows) = (drafts().count(), lengths.iter().sum::<usize>() as f64);
    let sum: f64 = drafts().map(|(one, length)| accepted(one.survival, *length)).sum();
    let read: f64 = drafts().map(|(one, _)| one.read_us).sum::<f64>() / drafting.max(1) as f64;
    let mut pace = load.cycle(costs, drafting, rows, sum);
    pace.us += read * (drafting as f64 + sum);
    pace
}

/// The best that `drafting` of them can reach whose text is of one kind: rate over plain, and the length.
pub fn gain_of_kind(costs: &Costs, load: Load, drafting: usize, survival: &Survival, most: usize) -> (f64, usize) {
    let plain = load.plain(costs).rate();
    let mut best = (0.0, 0);
    for length in LENGTHS.into_iter().map(|length| length.min(most)).filter(|length| *length > 0) {
        let sum = accepted(survival, length) * drafting as f64;
        let gain = load.cycle(costs, drafting, (length * drafting) as f64, sum).rate() / plain;
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
    /// What it may bring: the time that would be saved if they are of a kind that pays, times how likely that is.
    pub value_us: f64,
}

/// What a trial of `drafting` of them costs and may bring, when `kinds` says of which kind they are, `left` how many tokens are still
/// expected of all of them, and reading the drafter in takes `read_us`.
pub fn trial(
    costs: &Costs,
    load: Load,
    drafting: usize,
    kinds: &[f64; KINDS],
    table: &[Survival; KINDS],
    most: usize,
    (left, read_us): (f64, f64),
) -> Option<Trial> {
    let plain_us = 1.0 / load.plain(costs).rate();
    let mut value_us = 0.0;
    for (share, survival) in kinds.iter().zip(table) {
        let (gain, _) = gain_of_kind(costs, load, drafting, survival, most);
        value_us += share * plain_us * (1.0 - 1.0 / gain.max(1.0)) * left;
    }
    let mut best: Option<Trial> = None;
    for length in LENGTHS.into_iter().map(|length| length.min(most)).filter(|length| *length > 0) {
        let sum: f64 = kinds.iter().zip(table).map(|(share, survival)| share * accepted(survival, length)).sum();
        let pace = load.cycle(costs, drafting, (length * drafting) as f64, sum * drafting as f64);
        let cost_us = pace.us - pace.tokens * plain_us + read_us;
        if best.is_none_or(|best| cost_us < best.cost_us) {
            best = Some(Trial { length, cost_us, value_us });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::survival::{Belief, Class};
    use super::*;

    /// Costs of a machine as measured many times: microseconds of a step and of a draft.
    fn machine(step: impl Fn(f64, f64) -> f64, draft: impl Fn(f64, f64) -> f64) -> Costs {
        let mut costs = Costs::default();
        for _ in 0..20 {
            for sequences in [1.0, 2.0, 4.0, 8.0, 16.0] {
                for length in [0.0, 2.0, 5.0, 8.0, 15.0] {
                    let rows = sequences * (1.0 + length);
                    costs.step.observe(Size { rows, sequences, context: 0.0 }, step(rows, sequences));
                    costs.draft.observe(Size { rows: rows + sequences, sequences, context: 0.0 }, draft(rows, sequences));
                }
            }
        }
        costs
    }

    fn gpu() -> Costs {
        machine(|rows, _| 10_000.0 + 20.0 * rows, |_, _| 2_000.0)
    }

    fn cpu() -> Costs {
        machine(
            |rows, sequences| 3_000.0 + 320.0 * rows + 250.0 * sequences,
            |rows, sequences| 1_500.0 + 90.0 * rows + 500.0 * sequences,
        )
    }

    fn survival(accept: f32) -> Survival {
        let mut alive = 1.0;
        [0.0; MOST].map(|_: f32| {
            alive *= accept;
            alive
        })
    }

    /// Lengths for sequences with these rates of acceptance, and the gain over plain.
    fn best(costs: &Costs, accepts: &[f32]) -> (Vec<usize>, f64) {
        let survivals: Vec<Survival> = accepts.iter().map(|accept| survival(*accept)).collect();
        let candidates: Vec<Candidate<'_>> =
            survivals.iter().map(|survival| Candidate { survival, most: 15, read_us: 0.0 }).collect();
        let load = Load { sequences: accepts.len(), context: 0.0 };
        let choice = best_cycle(costs, load, &candidates).expect("some can");
        assert_eq!(pace_of(costs, load, &candidates, &choice.lengths).us.round(), choice.pace.us.round());
        let gain = choice.pace.rate() / load.plain(costs).rate();
        (choice.lengths, gain)
    }

    #[test]
    fn one_sequence_drafts_long_where_it_pays_and_a_poor_one_does_not_pay() {
        let (lengths, gain) = best(&gpu(), &[0.93]);
        assert!(lengths[0] >= 13 && gain > 5.0, "{lengths:?} {gain}");
        let (lengths, gain) = best(&cpu(), &[0.93]);
        assert!(lengths[0] >= 8 && gain > 1.8, "{lengths:?} {gain}");
        let (_, gain) = best(&cpu(), &[0.3]);
        assert!(gain < 1.0, "{gain}");
        // What hardly costs pays with little.
        assert!(best(&gpu(), &[0.45]).1 > 1.2);
    }

    #[test]
    fn among_many_those_draft_for_whom_it_pays() {
        let (lengths, gain) = best(&gpu(), &[0.9, 0.05, 0.92, 0.05]);
        assert!(lengths[0] > 5 && lengths[2] > 5 && lengths[1] + lengths[3] <= 4, "{lengths:?} {gain}");
        // On a CPU a batch shares its base already: drafts are shorter, and poor ones slow the others.
        assert!(best(&cpu(), &[0.5; 8]).1 < 1.0);
        let (alone, together) = (best(&cpu(), &[0.93]).0[0], best(&cpu(), &[0.93; 16]).0[0]);
        assert!(together <= alone, "{alone} alone, {together} among sixteen");
    }

    #[test]
    fn reading_the_drafter_in_counts() {
        let (costs, survival) = (cpu(), survival(0.8));
        let load = Load { sequences: 1, context: 0.0 };
        let rate = |read_us| {
            let candidate = Candidate { survival: &survival, most: 15, read_us };
            best_cycle(&costs, load, &[candidate]).expect("it can").pace.rate()
        };
        let (plain, free) = (load.plain(&costs).rate(), rate(0.0));
        assert!(free > plain && rate(5_000.0) < plain, "{free} {plain}");
    }

    #[test]
    fn nobody_drafts_who_may_not() {
        let survival = survival(0.9);
        let none = Candidate { survival: &survival, most: 0, read_us: 0.0 };
        assert_eq!(best_cycle(&cpu(), Load { sequences: 1, context: 0.0 }, &[none]), None);
        assert_eq!(best_cycle(&cpu(), Load { sequences: 1, context: 0.0 }, &[]), None);
    }

    #[test]
    fn a_trial_is_worth_it_while_there_is_much_to_win() {
        let (costs, class) = (cpu(), Class::default());
        let load = Load { sequences: 1, context: 0.0 };
        let unknown = *Belief::new(&class).kinds();
        let ask =
            |kinds: &[f64; KINDS], left, read| trial(&costs, load, 1, kinds, class.table(), 15, (left, read)).expect("it can");
        let open = ask(&unknown, 200.0, 0.0);
        assert!(open.value_us > 2.0 * open.cost_us, "{open:?}");
        // Nothing is left to win for the last tokens, nor by one that is known not to pay.
        let late = ask(&unknown, 1.0, 10_000.0);
        assert!(late.value_us < late.cost_us, "{late:?}");
        let mut poor = [0.001; KINDS];
        poor[0] = 1.0 - 0.001 * (KINDS as f64 - 1.0);
        let known = ask(&poor, 100.0, 0.0);
        assert!(known.value_us < 2.0 * known.cost_us, "{known:?}");
    }

    #[test]
    fn before_anything_is_measured_it_is_sane() {
        let costs = Costs::default();
        let class = Class::default();
        let open = Belief::new(&class).survival(&class);
        let candidate = Candidate { survival: &open, most: 15, read_us: costs.read_us(30) / 100.0 };
        let load = Load { sequences: 1, context: 0.0 };
        let choice = best_cycle(&costs, load, &[candidate]).expect("it can");
        assert!(choice.lengths[0] >= 1 && choice.pace.rate() > 0.5 * load.plain(&costs).rate());
    }
}
