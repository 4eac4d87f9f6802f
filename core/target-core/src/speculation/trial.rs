//! What a trial is worth: one cycle of drafts for sequences that rest, because drafting is not
//! expected to pay for them and their text may have changed.
//!
//! The algorithm: the value is the time that drafting would save if the text were of a kind that
//! pays, times the probability of that kind. The cost is what the cycle takes beyond plain steps.

use super::choose::{BatchLoad, gain_of_kind, lengths_up_to};
use super::costs::Costs;
use super::survival::{KINDS, Survival, accepted};

/// The sequences of a trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialGroup<'a> {
    /// Sequences that would draft.
    pub drafting: usize,
    /// Sequences that learn from it: these, and others like them.
    pub learning: usize,
    /// Mean probabilities of their kinds.
    pub kinds: &'a [f64; KINDS],
    /// Survival in each kind.
    pub table: &'a [Survival; KINDS],
    /// Longest draft that all of them may have.
    pub most: usize,
    /// Tokens that are still expected of all that learn.
    pub expected_tokens: f64,
    /// Time that the drafter needs to read their contexts, in microseconds.
    pub read_us: f64,
}

/// A cycle of trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Drafted tokens of each sequence.
    pub length: usize,
    /// Expected time beyond plain steps, in microseconds.
    pub cost_us: f64,
    /// Expected saving, in microseconds.
    pub value_us: f64,
}

/// The cheapest trial of this group; `None` if no draft is possible.
pub fn trial(costs: &Costs, load: BatchLoad, group: TrialGroup<'_>) -> Option<Trial> {
    let plain_us = 1.0 / load.plain(costs).rate();
    let mut value_us = 0.0;
    for (share, survival) in group.kinds.iter().zip(group.table) {
        let gain = gain_of_kind(costs, load, group.learning, survival, group.most);
        value_us += share * plain_us * (1.0 - 1.0 / gain.max(1.0)) * group.expected_tokens;
    }
    let mut best: Option<Trial> = None;
    for length in lengths_up_to(group.most) {
        let sum: f64 = group
            .kinds
            .iter()
            .zip(group.table)
            .map(|(share, survival)| share * accepted(survival, length))
            .sum();
        let drafting = group.drafting;
        let cycle = load.cycle(costs, drafting, (length * drafting) as f64, sum * drafting as f64);
        let cost_us = cycle.us - cycle.tokens * plain_us + group.read_us;
        if best.is_none_or(|best| cost_us < best.cost_us) {
            best = Some(Trial { length, cost_us, value_us });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::choose::tests::cpu;
    use super::super::survival::{Belief, TrafficClass};
    use super::*;

    #[test]
    fn a_trial_is_worth_its_cost_only_while_much_can_be_gained() {
        let (costs, class) = (cpu(), TrafficClass::default());
        let load = BatchLoad { sequences: 1, context: 0.0 };
        let unknown = *Belief::new(class.mixture()).kinds();
        let ask = |kinds: &[f64; KINDS], left, read| {
            let group = TrialGroup {
                drafting: 1,
                learning: 1,
                kinds,
                table: class.table(),
                most: 15,
                expected_tokens: left,
                read_us: read,
            };
            trial(&costs, load, group).expect("a draft is possible")
        };
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
}
