//! What steps and drafts cost on this machine with this pair, at the machine's present speed.

use paceline_vocabulary::ExponentialMean;

use super::cost::{Cost, PlainCost, Size};
use super::machine_speed::{self, MachineSpeed, ObservedStep};

/// Cost of a step of no rows until one was measured, in microseconds. Only ratios matter then.
const ASSUMED_STEP_US: f64 = 10_000.0;
/// Rows that cost as much as a step of none, until measured.
const ASSUMED_ROWS: f64 = 64.0;
/// Factor on a step and on a draft that run beside each other, until measured.
const ASSUMED_BESIDE: f64 = 1.2;
/// Least such factor that is believed.
const LEAST_BESIDE: f64 = 0.8;
/// Largest such factor that is believed.
const MOST_BESIDE: f64 = 4.0;
/// Weight of the newest such factor in its mean.
const BESIDE_WEIGHT: f64 = 0.1;
/// Drafts from which on the measured cost of drafts is believed.
const FEW_DRAFTS: u64 = 8;
/// Factor on the cost of drafts for each doubt, while none is requested for long.
const OPTIMISM_STEP: f64 = 0.65;
/// Least factor on the cost of drafts after many doubts.
const LEAST_OPTIMISM: f64 = 0.1;

/// All costs.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Steps while the drafter rests.
    pub step: Cost,
    /// Steps of one row of each sequence, by the number of sequences.
    pub plain: PlainCost,
    /// Drafts while the target waits for them, from the request to the arrival.
    pub draft: Cost,
    /// Factor on a step while the drafter works.
    step_beside: ExponentialMean,
    /// Factor on a draft while the target steps.
    draft_beside: ExponentialMean,
    /// Factor on the cost of drafts. Below 1 while drafts were not requested for long.
    optimism: f64,
    speed: MachineSpeed,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            step: Cost::default(),
            plain: PlainCost::default(),
            draft: Cost::default(),
            step_beside: ExponentialMean::starting_at(ASSUMED_BESIDE, BESIDE_WEIGHT),
            draft_beside: ExponentialMean::starting_at(ASSUMED_BESIDE, BESIDE_WEIGHT),
            optimism: 1.0,
            speed: MachineSpeed::default(),
        }
    }
}

/// Expected costs.
impl Costs {
    /// Factor on a step while the drafter works.
    pub fn step_beside(&self) -> f64 {
        self.step_beside.get().unwrap_or(ASSUMED_BESIDE)
    }

    /// Factor on a draft while the target steps.
    pub fn draft_beside(&self) -> f64 {
        self.draft_beside.get().unwrap_or(ASSUMED_BESIDE)
    }

    /// Cost of a step, in microseconds.
    pub fn step_us(&self, size: Size) -> f64 {
        let Size { rows, sequences, context } = size;
        match self.step.is_known() {
            true if rows > sequences => self.verify_us(size, self.plain_us(sequences, context)),
            true => self.speed.step(false) * self.step.us(size),
            false => ASSUMED_STEP_US * (1.0 + rows / ASSUMED_ROWS),
        }
    }

    /// Cost of a step of one row.
    pub fn one_row_us(&self) -> f64 {
        self.step_us(Size { rows: 1.0, sequences: 1.0, context: 0.0 })
    }

    /// Cost of a step with drafted tokens, where a plain one of the same sequences costs
    /// `plain_us`.
    pub fn verify_us(&self, size: Size, plain_us: f64) -> f64 {
        match self.step.is_known() {
            // More rows are never cheaper. A lower cost was measured at another moment than the
            // cost of plain steps.
            true => (self.speed.step(true) * self.step.us(size)).max(plain_us),
            false => self.step_us(size),
        }
    }

    /// Cost of a step of one row of each of the sequences.
    pub fn plain_us(&self, sequences: f64, context: f64) -> f64 {
        let size = Size { rows: sequences, sequences, context };
        match self.step.is_known() {
            true => self.speed.all() * self.plain.us(size, &self.step),
            false => self.step_us(size),
        }
    }

    /// Cost of a draft for so many sequences; `rows` are the rows of the blocks and of new context.
    /// Until one is measured it is half a plain step: rather too cheap, because what looks dear is
    /// never tried. While few are measured it is at most a step of as many rows: a drafter is
    /// smaller than its target, and the first drafts may have been paused.
    pub fn draft_us(&self, rows: f64, sequences: f64) -> f64 {
        let size = Size { rows, sequences, context: 0.0 };
        let measured_us = || self.optimism * self.speed.all() * self.draft.us(size);
        match self.draft.n_times() {
            0 => self.one_row_us() / 2.0,
            1..FEW_DRAFTS => measured_us().min(self.step_us(size)),
            _ => measured_us(),
        }
    }

    /// Time that the drafter needs to read so many rows of context.
    pub fn read_us(&self, rows: usize) -> f64 {
        let row = match self.draft.is_known() {
            true => self.optimism * self.speed.all() * self.draft.row_us(),
            false => self.one_row_us() / ASSUMED_ROWS,
        };
        rows as f64 * row
    }

    /// What it costs the sequences that step while the drafter reads so many rows: each step takes
    /// longer, and none waits for the drafter.
    pub fn read_beside_us(&self, rows: usize) -> f64 {
        self.read_us(rows) * (1.0 - 1.0 / self.step_beside()).max(0.0)
    }
}

/// Measured times.
impl Costs {
    /// Lowers the expected cost of drafts until one is tried. After a long time without drafts the
    /// measured cost may be an accident, and nothing else would correct it.
    pub fn doubt_draft_cost(&mut self) {
        self.draft.distrust();
        self.optimism = (self.optimism * OPTIMISM_STEP).max(LEAST_OPTIMISM);
    }

    /// A draft arrived `us` after its request. The target did `steps` steps meanwhile.
    pub fn observe_draft(&mut self, size: Size, us: f64, steps: u32) {
        self.optimism = 1.0;
        match steps {
            0 => self.draft.observe(size, us / self.speed.all()),
            _ => self.observe_draft_beside(size, us, steps),
        }
    }

    /// A step took `us` while the drafter worked.
    pub fn observe_step_beside(&mut self, size: Size, us: f64) {
        let factor = us / self.expected_us(size);
        add_bounded(&mut self.step_beside, factor);
    }

    /// The machine's speed is stale: the last plain step took another time than expected.
    pub fn mark_speed_stale(&mut self) {
        self.speed.mark_stale();
    }

    /// A step took `us` while the drafter rested.
    pub fn observe_step(&mut self, size: Size, us: f64) {
        let plain = size.rows <= size.sequences;
        // A step of a size that was never measured counts as well. Else a machine that others have
        // left would stay slow, and blocks would stay cheap, while blocks of new lengths go on.
        if self.step.is_known() {
            let expected_us = self.expected_us(size);
            self.speed.observe(ObservedStep {
                ratio: us / expected_us,
                drafted: !plain,
                variance: machine_speed::variance(self.times(size)),
                length: expected_us / self.plain_us(size.sequences, size.context),
            });
        }
        let us = us / self.speed.step(!plain);
        self.step.observe(size, us);
        if plain {
            self.plain.observe(size, us, &self.step);
        }
    }

    /// Cost of a step of this size, plain or not.
    fn expected_us(&self, size: Size) -> f64 {
        match size.rows > size.sequences {
            true => self.step_us(size),
            false => self.plain_us(size.sequences, size.context),
        }
    }

    /// Times that the cost of a step of this size rests on.
    fn times(&self, size: Size) -> f64 {
        match size.rows <= size.sequences {
            true => self.plain.times(size),
            false => self.step.times(size),
        }
    }

    /// A draft arrived while the target did `steps` steps, at least one. It came somewhere in the
    /// last of them, so its time is known only within that step's length.
    fn observe_draft_beside(&mut self, size: Size, us: f64, steps: u32) {
        let steps = f64::from(steps.max(1));
        let expected_us = self.draft_us(size.rows, size.sequences);
        if us < expected_us {
            // A draft takes no longer alone than beside steps. So a pause among the first drafts
            // does not stay in their cost.
            self.draft.observe(size, us / self.speed.all());
        }
        let (least, most) = (us * (steps - 1.0) / steps / expected_us, us / expected_us);
        let nearest = self.draft_beside().clamp(least, most);
        add_bounded(&mut self.draft_beside, nearest);
    }
}

fn add_bounded(mean: &mut ExponentialMean, factor: f64) {
    if factor.is_finite() {
        mean.add(factor.clamp(LEAST_BESIDE, MOST_BESIDE));
    }
}

#[cfg(test)]
mod tests;
