//! How many tokens each sequence drafts. The algorithm: widths grow greedily, the likeliest token
//! of all first, and the point with the most expected tokens per second counts if it beats plain
//! steps and the last widths by a margin; a sequence for which no width pays rests, and is tried
//! again, if that is worth its cost, after a back-off that doubles. A sequence for which not even a
//! trial is worth its cost sleeps: no hidden states are collected for it. A class that is parked at
//! this load is not considered.

use std::{collections::BTreeMap, sync::Arc};

use paceline_vocabulary::Force;

use super::acceptance::{CHANGE_PER_CYCLE, KINDS, LONGEST_DRAFT, Offered, Survival, accepted};
use super::load::load_range;
use super::parking::Pause;
use super::step_cost::{Costs, Size};
use super::{DraftCause, Speculation, State};
use crate::draft_plan::{
    DraftPlan, DrafterReadiness, LaneEvent, Parked, RankedCycle, WidthDecision,
};
use crate::{Draft, Phase, Sequence, SequenceKey};

/// Gain over the last choice from which on another one is taken, so that noise of a few percent
/// does not change widths. Set by `lengths_and_lanes_do_not_flap`.
const MARGIN: f64 = 1.02;
/// Tokens of the first drafts: three rows, because wide blocks lose on quantized weights. A draft
/// has at most one token more than twice the longest verified one, so each width is measured
/// before a wider one. Set by `a_machine_on_which_wide_blocks_lose_keeps_narrow_ones`.
const FIRST_DRAFT: usize = 2;
/// Expected remaining tokens of a sequence: the tokens that it has, plus this. Set by the table of
/// recorded texts.
const EXPECTED_TOKENS: u32 = 64;
/// Tokens of the first back-off, and of the longest. Set by
/// `poor_text_becomes_plain_within_a_few_cycles_and_trials_become_rarer`.
const BACKOFF_TOKENS: [u32; 2] = [10, 1_024];
/// Tokens of the first back-off of a sequence for which not even a trial is worth its cost. Other
/// texts of its class change that slowly, and another load ends the back-off.
const NOT_WORTH_TOKENS: u32 = 64;
/// Tokens after parking from which on a sequence drafts again. The drafter starts with the hidden
/// states of these, because those of the tokens before were not collected.
pub(super) const RESUME_TOKENS: u32 = 16;
/// Least and most of the survival from which on drafts are offered, whatever rows cost: until a cost is
/// measured rows are assumed to cost next to nothing.
const OFFERED: [f64; 2] = [0.2, 0.9];
/// Cycles before the first plain measurement at a load, and between later ones. From blocks alone a
/// slower machine and dearer blocks look the same. Set by the table of recorded texts.
const CHECK_CYCLES: [u32; 2] = [3, 96];

/// All sequences that step together: their number, and their positions of context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLoad {
    pub(crate) sequences: usize,
    pub(crate) context: f64,
}

/// A sequence that a decision considers.
#[derive(Clone, Debug)]
struct Candidate {
    key: SequenceKey,
    survival: Survival,
    /// Most drafted tokens.
    most: usize,
    /// Tokens that it has.
    had: u32,
    /// Tokens that are still expected.
    expected: f64,
    /// Time in which the drafter reads its context, in microseconds.
    read_us: f64,
    /// A draft may be requested now, and the drafter first reads no longer than a plain step takes.
    ready: bool,
    has_nothing: bool,
}

/// Drafts of a cycle, in sum.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    drafting: usize,
    /// Drafted tokens that are asked for.
    asked: usize,
    /// Those that are expected: some blocks end early.
    rows: f64,
    /// Tokens of the drafting sequences, with their bonus tokens.
    tokens: f64,
    /// Time of reading that this cycle has to earn, in microseconds.
    read_us: f64,
}

/// Tokens, and the time in microseconds.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    tokens: f64,
    us: f64,
}

/// Costs of the cycles of one load.
#[derive(Debug)]
pub(crate) struct Cycles<'a> {
    costs: &'a Costs,
    load: StepLoad,
    plain_us: f64,
    /// For each place in a block the share of drafts that is offered although it is not accepted.
    offered: Survival,
}

impl<'a> Cycles<'a> {
    pub(crate) fn new(costs: &'a Costs, load: StepLoad, offered: &Offered) -> Self {
        let plain_us = costs.plain_us(load.sequences as f64, load.context);
        Self { costs, load, plain_us, offered: offered.shares(load.sequences) }
    }

    /// Rows of a draft of `length` tokens, and how many of them are accepted.
    fn expected(&self, survival: &Survival, length: usize) -> [f64; 2] {
        let places = self.offered.iter().zip(survival).take(length);
        places.fold([0.0; 2], |[rows, accepted], (offered, alive)| {
            [rows + row(*alive, *offered), accepted + f64::from(*alive)]
        })
    }

    /// Adds a draft of `length` tokens.
    fn with(&self, mut sums: Sums, one: &Candidate, length: usize) -> Sums {
        let [rows, accepted] = self.expected(&one.survival, length);
        let tokens = 1.0 + accepted;
        (sums.drafting, sums.asked) = (sums.drafting + 1, sums.asked + length);
        (sums.rows, sums.tokens) = (sums.rows + rows, sums.tokens + tokens);
        sums.read_us += one.read_us * tokens / one.expected;
        sums
    }

    /// Tokens per microsecond of plain steps.
    fn plain_rate(&self) -> f64 {
        self.load.sequences as f64 / self.plain_us
    }

    /// The drafter works while the others step plainly, then one step verifies.
    fn of(&self, sums: Sums) -> Cycle {
        let (costs, StepLoad { sequences, context }) = (self.costs, self.load);
        let (count, n, asked) = (sequences as f64, sums.drafting as f64, sums.asked as f64);
        let others = count - n;
        let size = Size { rows: count + sums.rows, sequences: count, context };
        // More rows are never cheaper than a plain step.
        let verify_us = costs.step.us(size).max(self.plain_us) + sums.read_us;
        // Blocks with their bonus tokens, and the positions that the last cycle committed.
        let draft_us = costs.draft_us(n + asked + sums.tokens, n);
        if others == 0.0 {
            return Cycle { tokens: sums.tokens, us: draft_us + verify_us };
        }
        let [beside_step, beside_draft] = costs.beside(sequences - sums.drafting);
        let beside_us = costs.plain_us(others, context * others / count) * beside_step;
        // A draft arrives in the middle of a step, and is taken at the step's end.
        let steps = (draft_us * beside_draft / beside_us + 0.5).max(1.0);
        Cycle { tokens: sums.tokens + (1.0 + steps) * others, us: steps * beside_us + verify_us }
    }

    /// Tokens that plain steps give in the time of one more row, if each of `drafting` sequences has one
    /// more. A draft that survives less often is not worth verifying.
    fn row_price(&self, drafting: usize) -> f64 {
        let StepLoad { sequences, context } = self.load;
        let size =
            Size { rows: (sequences + drafting) as f64, sequences: sequences as f64, context };
        (self.costs.step.us(size) - self.plain_us) / drafting as f64 * self.plain_rate()
    }

    fn rate(&self, sums: Sums) -> f64 {
        let Cycle { tokens, us } = self.of(sums);
        tokens / us
    }

    /// For each number of drafting sequences the best cycle, the best of all last, and its lengths.
    /// Rates are per microsecond.
    fn ranked(&self, candidates: &[&Candidate]) -> (Vec<RankedCycle>, Vec<usize>) {
        let of = |at: &usize| accepted(&candidates[*at].survival, candidates[*at].most);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|one, other| of(other).total_cmp(&of(one)));
        // Tokens after the first of each block, by rank of the block, and the rows that each costs.
        // Survival falls along a block.
        let mut growth: Vec<(f32, usize, f64)> = vec![];
        for (rank, at) in order.iter().enumerate() {
            let more = candidates[*at].survival.iter().zip(self.offered);
            let more = more.take(candidates[*at].most).skip(1);
            growth.extend(more.map(|(alive, offered)| (*alive, rank, row(*alive, offered))));
        }
        growth.sort_by(|one, other| other.0.total_cmp(&one.0));
        // Not every number of drafting sequences is compared: one of many changes little.
        let counts = (0..5).map(|power| 1 << power).filter(|count| *count < order.len());
        let mut ranking = vec![];
        for drafting in counts.chain((!order.is_empty()).then_some(order.len())) {
            let first = order[..drafting].iter().map(|at| candidates[*at]);
            let mut sums = first.fold(Sums::default(), |sums, one| self.with(sums, one, 1));
            let mut best = RankedCycle { drafting, drafted: drafting, rate: self.rate(sums) };
            let mut compared = sums.asked;
            for (alive, _, row) in growth.iter().filter(|(_, rank, _)| *rank < drafting) {
                sums.read_us *= 1.0 + f64::from(*alive) / sums.tokens;
                (sums.rows, sums.tokens) = (sums.rows + row, sums.tokens + f64::from(*alive));
                sums.asked += 1;
                // A token of many changes little, so not every one is compared.
                if sums.asked - compared > compared / 5 {
                    compared = sums.asked;
                    let rate = self.rate(sums);
                    if rate > best.rate {
                        best = RankedCycle { drafting, drafted: sums.asked, rate };
                    }
                }
            }
            ranking.push(best);
        }
        ranking.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        let mut lengths = vec![0; candidates.len()];
        if let Some(best) = ranking.last() {
            order[..best.drafting].iter().for_each(|at| lengths[*at] = 1);
            let grown = growth.iter().filter(|(_, rank, _)| *rank < best.drafting);
            let grown = grown.take(best.drafted - best.drafting);
            grown.for_each(|(_, rank, _)| lengths[order[*rank]] += 1);
        }
        (ranking, lengths)
    }

    /// For each kind of text the largest gain over plain steps of `drafting` sequences with drafts
    /// of one length.
    pub(crate) fn gains(
        &self,
        drafting: usize,
        table: &[Survival; KINDS],
        most: usize,
    ) -> [f64; KINDS] {
        let mut gains = [0.0f64; KINDS];
        for length in lengths_up_to(most) {
            let (asked, count) = (length * drafting, drafting as f64);
            let cycle = |rows| self.of(Sums { drafting, asked, rows, tokens: count, read_us: 0.0 });
            let of_kind = |survival| self.expected(survival, length).map(|of_one| count * of_one);
            let expected = table.each_ref().map(of_kind);
            // The rows of every kind lie between those of the first and of the last.
            let [fewest, largest] = [expected[0][0], expected[KINDS - 1][0]];
            let (low, high) = (cycle(fewest), cycle(largest));
            for (gain, [rows, accepted]) in gains.iter_mut().zip(expected) {
                let place = (rows - fewest) / (largest - fewest).max(f64::EPSILON);
                let us = low.us + place * (high.us - low.us);
                *gain = gain.max((low.tokens + accepted) / us / self.plain_rate());
            }
        }
        gains
    }
}

/// Rows that a draft costs on average which is accepted with probability `alive`, and offered in this
/// share of the other cases.
fn row(alive: f32, offered: f32) -> f64 {
    f64::from(alive + (1.0 - alive) * offered)
}

/// Lengths that are compared if one length serves all sequences: each up to four, then fewer.
fn lengths_up_to(most: usize) -> impl Iterator<Item = usize> {
    (1..=most).filter(move |length| *length == most || length.is_multiple_of(1 + length / 5))
}

fn state_of<'a>(states: &'a mut BTreeMap<SequenceKey, State>, one: &Candidate) -> &'a mut State {
    states.get_mut(&one.key).expect("each candidate has a state")
}

impl Speculation {
    /// Plan for this step border. `readiness` returns how far the drafter is with a sequence.
    /// `pressed`: the KV memory is above the policy's pressure.
    pub fn plan(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        pressed: bool,
        readiness: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        self.pressed = pressed;
        if sequences.values().all(|one| one.draft == Draft::None) {
            self.settle();
        }
        let (mut plan, mut candidates, mut unread) = (DraftPlan::default(), vec![], vec![]);
        let (mut at_border, mut context) = (true, 0);
        let single_us = self.costs.plain_us(1.0, 0.0);
        for (key, sequence) in sequences {
            context += sequence.committed;
            let readiness = readiness(*key, sequence).unwrap_or_default();
            unread.extend((readiness.unread_rows > 0).then_some(*key));
            if let Some(one) = self.candidate(*key, sequence, readiness, single_us, &mut plan) {
                at_border &= sequence.draft == Draft::None;
                candidates.push(one);
            }
        }
        let load = StepLoad { sequences: sequences.len(), context: context as f64 };
        let has_forced = !plan.feed.is_empty();
        if at_border && !candidates.is_empty() {
            self.decide(load, &candidates, &mut plan);
        } else {
            let keys = candidates.iter().map(|one| one.key);
            plan.feed.extend(keys.filter(|key| self.states[key].fed));
        }
        if has_forced {
            self.parking.disturb();
        }
        if !plan.ask.is_empty() {
            let [least, most] = OFFERED;
            let price = Cycles::new(&self.costs, load, &self.offered).row_price(plan.ask.len());
            plan.least_survival = price.clamp(least, most) as f32;
        }
        let is_asked = |key| plan.ask.iter().any(|(asked, _)| *asked == key);
        self.drafter_reads = plan.feed.iter().any(|key| unread.contains(key) && !is_asked(*key));
        plan
    }

    /// Counts what the last cycle saved.
    fn settle(&mut self) {
        for Pause { class, sequences, steps } in self.parking.settle() {
            let class = self.classes[class].0.clone();
            self.log.add_parked(Parked { class, sequences, steps });
        }
    }

    /// The sequence, if a decision is to consider it. A forced one is put into the plan at once. A
    /// plain step of one sequence takes `single_us`.
    fn candidate(
        &mut self,
        key: SequenceKey,
        sequence: &Sequence,
        readiness: DrafterReadiness,
        single_us: f64,
        plan: &mut DraftPlan,
    ) -> Option<Candidate> {
        let load = self.states.len();
        let state = self.states.get_mut(&key)?;
        let may_draft =
            sequence.permit.may_draft() && !self.pressed && self.policy.force != Force::Plain;
        let forced = self.policy.forces(&sequence.permit);
        let longest = self.policy.max_context.filter(|_| !forced);
        let too_long = longest.is_some_and(|longest| sequence.committed > longest as usize);
        state.beyond_context = may_draft && (readiness.beyond_context || too_long);
        state.fed &= may_draft && !state.beyond_context;
        if !may_draft || state.beyond_context {
            return None;
        }
        let (had, most) = (sequence.generated(), sequence.draft_most());
        let can_draft = sequence.phase == Phase::Decoding && readiness.can_draft;
        if forced {
            state.fed = true;
            state.chosen |= !readiness.has_nothing;
            plan.feed.push(key);
            if sequence.draft == Draft::None && can_draft && most > 0 {
                state.cause = Some(DraftCause::Forced);
                plan.ask.push((key, most));
            }
            return None;
        }
        // A drafter that has nothing costs nothing until it has something.
        if !readiness.has_nothing {
            if self.parking.is_parked(state.class, load) {
                (state.fed, state.resumes_at) = (false, had + RESUME_TOKENS);
                return None;
            }
            if state.rests_on(had, load_range(load)) {
                state.fed = false;
                return None;
            }
        }
        let read_us = self.costs.read_us(readiness.unread_rows);
        let soon = read_us <= single_us;
        // Longer reading is done beside plain steps, and costs what it slows them.
        let share = if soon { 1.0 } else { (1.0 - 1.0 / self.costs.beside(load)[0]).max(0.0) };
        let widest = FIRST_DRAFT.max(2 * self.widest + 1).min(LONGEST_DRAFT);
        Some(Candidate {
            key,
            survival: state.belief.survival,
            most: most.min(widest).min(readiness.longest.unwrap_or(usize::MAX)),
            had,
            expected: f64::from(sequence.left().min(had + EXPECTED_TOKENS).max(1)),
            read_us: share * read_us,
            ready: can_draft && soon && had >= state.resumes_at,
            has_nothing: readiness.has_nothing,
        })
    }

    fn decide(&mut self, load: StepLoad, all: &[Candidate], plan: &mut DraftPlan) {
        let costs = Arc::clone(&self.costs);
        let cycles = Cycles::new(&costs, load, &self.offered);
        let (idle, some): (Vec<_>, Vec<_>) =
            all.iter().filter(|one| one.most > 0).partition(|one| one.has_nothing);
        let is_open = |one: &&Candidate| self.states[&one.key].rests_until.is_none();
        let open: Vec<&Candidate> = some.iter().copied().filter(is_open).collect();
        let (ranking, lengths) = self.lengths(&cycles, &open);
        let (StepLoad { sequences, context }, plain_rate) = (load, cycles.plain_rate());
        let mut decision =
            WidthDecision { sequences, context, plain_rate, ranking, chosen: vec![] };
        self.drafts = lengths.iter().any(|length| *length > 0);
        if self.drafts && self.check_is_due(sequences) {
            self.log.decision = Some(decision);
            return;
        }
        // A drafter that has nothing costs nothing until it has something.
        let mut asked: Vec<(&Candidate, usize, DraftCause)> =
            idle.into_iter().map(|one| (one, one.most, DraftCause::Prior)).collect();
        let alone = StepLoad { sequences: 1, context: context / sequences as f64 };
        let alone = Cycles::new(&costs, alone, &self.offered);
        for (one, length) in open.into_iter().zip(lengths) {
            let unseen = self.states[&one.key].belief.cycles == 0;
            let pays = || alone.ranked(&[one]).0[0].rate > alone.plain_rate();
            if length > 0 {
                let cause = if unseen { DraftCause::Prior } else { DraftCause::Benefit };
                asked.push((one, length, cause));
            } else if unseen || !pays() {
                self.rest(one);
            }
        }
        let trials = self.trials(&cycles, &some);
        asked.extend(trials.into_iter().map(|(one, length)| (one, length, DraftCause::Probe)));
        for one in all {
            let own = asked.iter().find(|asked| asked.0.key == one.key);
            let state = state_of(&mut self.states, one);
            state.fed = own.is_some();
            state.chosen |= state.fed && !one.has_nothing;
            let own = own.filter(|_| one.ready);
            (state.length, state.cause) = (own.map_or(0, |own| own.1), own.map(|own| own.2));
            plan.feed.extend(state.fed.then_some(one.key));
            let draft_tokens = state.length;
            if state.cause == Some(DraftCause::Probe) {
                self.log.add(LaneEvent::Probed { key: one.key, draft_tokens });
            }
            decision.chosen.extend((draft_tokens > 0).then_some((one.key, draft_tokens)));
        }
        let classes = decision.chosen.iter().map(|(key, _)| self.states[key].class).collect();
        self.parking.begin(classes, sequences, cycles.plain_us);
        plan.ask.extend(&decision.chosen);
        self.log.decision = Some(decision);
    }

    /// The cycles that were compared, and the lengths for these sequences; all 0 if plain steps are
    /// better.
    fn lengths(&self, cycles: &Cycles<'_>, some: &[&Candidate]) -> (Vec<RankedCycle>, Vec<usize>) {
        let (ranking, lengths) = cycles.ranked(some);
        let margin = if self.drafts { 1.0 } else { MARGIN };
        let best = ranking.last().map_or(0.0, |best| best.rate);
        if best <= margin * cycles.plain_rate() {
            return (ranking, vec![0; some.len()]);
        }
        let last: Vec<usize> =
            some.iter().map(|one| self.states[&one.key].length.min(one.most)).collect();
        let same_set = last.iter().zip(&lengths).all(|(one, other)| (*one > 0) == (*other > 0));
        let drafts = some.iter().zip(&last).filter(|(_, length)| **length > 0);
        let sums =
            drafts.fold(Sums::default(), |sums, (one, length)| cycles.with(sums, one, *length));
        let keeps = same_set && MARGIN * cycles.rate(sums) >= best;
        (ranking, if keeps { last } else { lengths })
    }

    /// Counts a cycle. Returns true if a plain step is to be taken in its place. The first plain
    /// step after a block is not measured, so three are taken at most.
    fn check_is_due(&mut self, sequences: usize) -> bool {
        let (cycles, interval) = self.checks.entry(sequences).or_insert((0, CHECK_CYCLES[0]));
        *cycles += 1;
        let is_due = *cycles > *interval;
        if *cycles > *interval + 3 {
            self.plain_measured(sequences);
        }
        is_due
    }

    /// Plain steps of this number of sequences were measured.
    pub(super) fn plain_measured(&mut self, sequences: usize) {
        self.checks.insert(sequences, (0, CHECK_CYCLES[1]));
    }

    /// Lets a sequence rest for its next back-off. One without a cycle is due at once.
    fn rest(&mut self, one: &Candidate) {
        let state = state_of(&mut self.states, one);
        if state.belief.cycles > 0 {
            state.backoff = (2 * state.backoff).clamp(BACKOFF_TOKENS[0], BACKOFF_TOKENS[1]);
        }
        let until_tokens = one.had + state.backoff;
        state.rests_until = Some(until_tokens);
        self.log.add(LaneEvent::BackoffBegan { key: one.key, until_tokens });
    }

    /// Resting sequences whose back-off is over, with the length of their trial, if what drafts of
    /// each kind of text would save is worth the cost of one cycle.
    fn trials<'c>(
        &mut self,
        cycles: &Cycles<'_>,
        some: &[&'c Candidate],
    ) -> Vec<(&'c Candidate, usize)> {
        let until = |one: &Candidate| self.states[&one.key].rests_until;
        let is_due = |one: &&Candidate| until(one).is_some_and(|until| one.had >= until);
        let due: Vec<&Candidate> = some.iter().copied().filter(is_due).collect();
        let Some(most) = due.iter().map(|one| one.most).min() else { return vec![] };
        let (mut saved, mut read_us) = (0.0, 0.0);
        let table = &self.classes[self.states[&due[0].key].class].1.table;
        let gains = cycles.gains(due.len(), table, most);
        for one in &due {
            // Its text may have changed.
            let state = state_of(&mut self.states, one);
            state.belief.drift(&self.classes[state.class].1, CHANGE_PER_CYCLE);
            let saves = |(share, gain): (&f64, f64)| share * (1.0 - 1.0 / gain.max(1.0));
            saved += one.expected * state.belief.kinds.iter().zip(gains).map(saves).sum::<f64>();
            read_us += one.read_us;
        }
        let cost = |length| {
            let add = |sums: Sums, one: &&Candidate| cycles.with(sums, one, length);
            let sums = Sums { read_us, ..due.iter().fold(Sums::default(), add) };
            let Cycle { tokens, us } = cycles.of(sums);
            (us * cycles.plain_rate() - tokens, length)
        };
        let cheapest = lengths_up_to(most).map(cost).min_by(|one, other| one.0.total_cmp(&other.0));
        let worth = cheapest.filter(|(cost, _)| saved > *cost);
        let Some((_, length)) = worth else {
            let load = self.states.len();
            for one in due {
                let state = state_of(&mut self.states, one);
                state.backoff = (2 * state.backoff).clamp(NOT_WORTH_TOKENS, BACKOFF_TOKENS[1]);
                state.rests_until = Some(one.had + state.backoff);
                state.asleep_at = Some(load_range(load));
            }
            return vec![];
        };
        // One that sleeps is tried when the drafter has hidden states to start with.
        let is_awake = |one: &&Candidate| {
            let state = state_of(&mut self.states, one);
            let slept = state.asleep_at.take().is_some();
            if slept {
                state.rests_until = Some(one.had + RESUME_TOKENS);
            }
            !slept
        };
        due.into_iter().filter(is_awake).map(|one| (one, length)).collect()
    }
}
