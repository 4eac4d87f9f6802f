//! Cost of a step by rows, sequences and context, and of a draft by rows and sequences. The
//! algorithm: a line is fitted to the means of all measured cells, and each estimate is the line
//! times the mean deviation of the cells near it, so that a bend is kept where it was measured.

use std::collections::BTreeMap;

use paceline_vocabulary::{ExponentialMean, mean::moved, report::CostModel};

use super::load::{LOADS, load_range};

/// Least weight of the newest time in a cell: a changed machine is followed in twenty steps. Set by
/// `pauses_hardly_move_the_cost_and_a_lasting_change_does`.
const NEWEST_WEIGHT: f64 = 0.06;
/// A time counts as at most this factor times the expected one: on a shared machine one step may be
/// paused for as long as ten others take. Set by `one_pause_among_the_first_times_hardly_counts`.
const OUTLIER: f64 = 1.5;
/// Octaves of rows and sequences at which a cell counts a quarter. Set by
/// `a_bend_in_the_cost_is_kept_where_it_was_measured`.
const REACH: f64 = 0.25;
/// Times that the line counts as beside the cells near an estimate. Set by the same test.
const LINE_TIMES: f64 = 0.2;
/// Steps, rows, sequences and thousands of positions that are assumed to cost one step. Too cheap
/// rather than too dear: a size that is tried is measured. Set by the table of all machines.
const ASSUMED: [f64; 4] = [1.0, 64.0, 64.0, 16.0];
/// Factor on steps and drafts beside each other until measured. Set by the same table.
const ASSUMED_BESIDE: f64 = 1.2;
/// Largest factor that is learned. On two cores drafts were measured to take three times as long.
const MOST_BESIDE: f64 = 6.0;
/// Drafts from which on their cost may exceed that of a step of as many rows: one of the first may
/// have been paused, and saved costs that are too high would never be measured again. Set by
/// `after_a_burst_at_the_start_a_single_sequence_drafts` and
/// `saved_costs_of_drafts_that_are_too_high_are_measured_again`.
const FEW_DRAFTS: u64 = 8;
/// Most cells of a table. A service with 32 sequences measures half of them.
const MAX_CELLS: usize = 256;
/// Weight of the newest step in the slowness of the machine, and share of it that is forgotten in
/// each step: half within 140. Set by the table of recorded texts on a shared machine.
const SLOWNESS_WEIGHTS: [f64; 2] = [0.1, 0.005];
/// First times that saved cells are compared with.
const FIRST_TIMES: usize = 8;
/// Octaves between a time and its cell from which on it contradicts. If most do, the machine or the
/// model is another one. Set by `saved_cells_that_are_contradicted_are_dropped`.
const CONTRADICTION: f64 = 1.0;
/// Microseconds of a step or a draft that can have been measured: from ten nanoseconds to a quarter
/// of an hour.
const PLAUSIBLE_US: std::ops::RangeInclusive<f64> = 1e-2..=1e9;
/// Rows, sequences or positions of a step that can have been measured, at most.
const PLAUSIBLE_SIZE: f64 = 1e9;

/// The size of a step, or of a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// Rows of all sequences.
    pub rows: f64,
    /// Sequences.
    pub sequences: f64,
    /// Positions of context of all sequences.
    pub context: f64,
}

impl Size {
    /// Octaves of rows and sequences, and quarter octaves of the context of one sequence.
    fn octaves(self) -> [f64; 3] {
        let (rows, sequences) = (self.rows.max(1.0), self.sequences.max(1.0));
        [rows.log2(), sequences.log2(), (1.0 + self.context / sequences / 256.0).log2() / 4.0]
    }

    /// The cell: quarter octaves, so that each number up to eight has its own.
    fn place(self) -> [i16; 3] {
        self.octaves().map(|octaves| (4.0 * octaves).round() as i16)
    }

    fn features(self) -> [f64; 4] {
        [1.0, self.rows, self.sequences, self.context / 1000.0]
    }
}

/// A measured cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostCell {
    /// Mean size.
    pub size: Size,
    /// Mean time in microseconds.
    pub us: f64,
    /// Times that were measured. Old ones count less.
    pub times: f64,
}

impl CostCell {
    /// Whether such a cell can have been measured.
    pub fn is_plausible(&self) -> bool {
        let Self { size: Size { rows, sequences, context }, us, times } = *self;
        (1.0..=rows).contains(&sequences)
            && rows <= PLAUSIBLE_SIZE
            && (0.0..=PLAUSIBLE_SIZE).contains(&context)
            && PLAUSIBLE_US.contains(&us)
            && (0.0..=PLAUSIBLE_SIZE).contains(&times)
    }
}

/// How far a cell deviates from the line.
#[derive(Clone, Copy, Debug)]
struct Deviation {
    octaves: [f64; 3],
    times: f64,
    share: f64,
}

/// The cost of one kind of work.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    cells: BTreeMap<[i16; 3], CostCell>,
    deviations: Vec<Deviation>,
    /// Coefficients of [`Size::features`], in microseconds.
    line: [f64; 4],
    /// Times that were measured, and restored cells.
    pub(crate) n_times: u64,
    /// First times after saved cells were restored, until there are enough to compare.
    first: Option<Vec<(Size, f64)>>,
}

impl Default for Table {
    fn default() -> Self {
        // Only ratios matter until a time is measured: a step of 10 ms.
        let line = ASSUMED.map(|amount| 1e4 / amount);
        Self { cells: BTreeMap::new(), deviations: vec![], line, n_times: 0, first: None }
    }
}

impl Table {
    /// Work of this size took `us`, a positive number.
    pub(super) fn observe(&mut self, size: Size, us: f64) {
        if let Some(mut first) = self.first.take() {
            first.push((size, us));
            if first.len() < FIRST_TIMES {
                self.first = Some(first);
                return;
            }
            self.compare(&first);
            first.into_iter().for_each(|(size, us)| self.observe(size, us));
            return;
        }
        let us = if self.n_times > 0 { us.min(OUTLIER * self.us(size)) } else { us };
        self.n_times += 1;
        if self.cells.len() >= MAX_CELLS && !self.cells.contains_key(&size.place()) {
            let least = self.cells.iter().min_by(|one, two| one.1.times.total_cmp(&two.1.times));
            let least = *least.expect("the table is full").0;
            self.cells.remove(&least);
        }
        let fresh = CostCell { size, us, times: 0.0 };
        let cell = self.cells.entry(size.place()).or_insert(fresh);
        let share = (1.0 / (cell.times + 1.0)).max(NEWEST_WEIGHT);
        cell.us = moved(cell.us, us, share);
        cell.size.rows = moved(cell.size.rows, size.rows, share);
        cell.size.sequences = moved(cell.size.sequences, size.sequences, share);
        cell.size.context = moved(cell.size.context, size.context, share);
        cell.times = (cell.times + 1.0).min(1.0 / NEWEST_WEIGHT);
        self.fit();
    }

    /// Drops restored cells if most of the first times contradict them.
    fn compare(&mut self, first: &[(Size, f64)]) {
        let octaves = first.iter().map(|(size, us)| (us / self.us(*size)).log2().abs());
        if 2 * octaves.filter(|off| *off > CONTRADICTION).count() > first.len() {
            *self = Self::default();
        }
    }

    /// Time of work of this size, in microseconds.
    pub(crate) fn us(&self, size: Size) -> f64 {
        let here = size.octaves();
        let (mut sum, mut all) = (0.0, LINE_TIMES);
        for Deviation { octaves, times, share } in &self.deviations {
            let distance = here.iter().zip(octaves).map(|(one, other)| (one - other).powi(2));
            let near = 1.0 + distance.sum::<f64>() / (REACH * REACH);
            let weight = times / (near * near);
            (sum, all) = (sum + weight * share, all + weight);
        }
        self.line_us(size) * (1.0 + sum / all)
    }

    fn line_us(&self, size: Size) -> f64 {
        self.line.iter().zip(size.features()).map(|(one, other)| one * other).sum()
    }

    /// Least squares of relative errors, by coordinate descent from the last line. No coefficient
    /// is negative: a negative base would make a row so dear that no other size is ever tried.
    fn fit(&mut self) {
        let least_us = self.cells.values().map(|cell| cell.us).fold(f64::INFINITY, f64::min);
        // The assumptions weigh a twentieth of a time.
        let mut sums = ASSUMED.map(|amount| 0.05 * amount / least_us);
        let mut products = [[0.0; 4]; 4];
        for (at, amount) in ASSUMED.into_iter().enumerate() {
            products[at][at] = 0.05 * (amount / least_us).powi(2);
        }
        for cell in self.cells.values() {
            let weight = cell.times.min(8.0) / (cell.us * cell.us);
            let features = cell.size.features();
            for (row, feature) in features.into_iter().enumerate() {
                (0..4).for_each(|at| products[row][at] += weight * feature * features[at]);
                sums[row] += weight * feature * cell.us;
            }
        }
        for at in (0..4).cycle().take(160) {
            let all: f64 = products[at].iter().zip(self.line).map(|(one, other)| one * other).sum();
            let rest = all - products[at][at] * self.line[at];
            self.line[at] = ((sums[at] - rest) / products[at][at]).max(0.0);
        }
        let deviation = |CostCell { size, us, times }: &CostCell| {
            let share = us / self.line_us(*size) - 1.0;
            Deviation { octaves: size.octaves(), times: *times, share }
        };
        self.deviations = self.cells.values().map(deviation).collect();
    }

    /// The line, for the report.
    pub(crate) fn model(&self) -> CostModel {
        let [base_us, row_us, sequence_us, context_us] = self.line;
        CostModel { base_us, row_us, sequence_us, context_us, observations: self.n_times }
    }

    /// Measured cells, for [`Table::restored`].
    pub(crate) fn cells(&self) -> Vec<CostCell> {
        self.cells.values().copied().collect()
    }

    /// A table of saved cells. Each counts as one time; implausible ones are left out.
    pub(super) fn restored(saved: &[CostCell]) -> Self {
        let mut table = Self::default();
        for cell in saved.iter().take(MAX_CELLS) {
            if cell.is_plausible() {
                table.cells.insert(cell.size.place(), CostCell { times: 1.0, ..*cell });
            }
        }
        table.n_times = table.cells.len() as u64;
        if table.n_times > 0 {
            table.first = Some(vec![]);
            table.fit();
        }
        table
    }
}

/// Steps of the target while a draft was under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    pub(super) steps: u32,
    /// Sequences of these steps.
    pub(super) others: usize,
}

/// All costs.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// Steps while the drafter rests.
    pub(crate) step: Table,
    /// Drafts while the target waits for them, from the request to the arrival.
    pub(crate) draft: Table,
    /// Drafts of this drafter that arrived in this process, measured or not.
    tried: u64,
    /// Factors on steps and on drafts that run beside each other, by the range of the number of
    /// sequences that step.
    beside: [[ExponentialMean; LOADS]; 2],
    /// Factor on all times at this moment, because others use the machine too. Times are divided by
    /// it, so that a slow minute makes no size dearer than another.
    slowness: f64,
}

impl Default for Costs {
    fn default() -> Self {
        let beside = [[ExponentialMean::new(NEWEST_WEIGHT); LOADS]; 2];
        Self { step: Table::default(), draft: Table::default(), tried: 0, beside, slowness: 1.0 }
    }
}

impl Costs {
    /// Factors on steps of `sequences` sequences, and on drafts, that run beside each other: those
    /// of the nearest range that was measured.
    pub(super) fn beside(&self, sequences: usize) -> [f64; 2] {
        let here = load_range(sequences);
        self.beside.map(|means| {
            let measured = (0..LOADS).filter_map(|at| Some((at.abs_diff(here), means[at].get()?)));
            let nearest = measured.min_by_key(|(distance, _)| *distance);
            nearest.map_or(ASSUMED_BESIDE, |(_, factor)| factor)
        })
    }

    /// A factor beside steps of `sequences` sequences was measured. `kind` as in
    /// [`Costs::beside`].
    fn observe_beside(&mut self, kind: usize, sequences: usize, factor: f64) {
        let start = ExponentialMean::starting_at(self.beside(sequences)[kind], NEWEST_WEIGHT);
        let mean = &mut self.beside[kind][load_range(sequences)];
        *mean = mean.get().map_or(start, |_| *mean);
        mean.add(factor.clamp(1.0 / OUTLIER, MOST_BESIDE));
    }

    /// A time without the slowdown by others.
    fn own_us(&self, us: f64) -> f64 {
        us / self.slowness
    }

    /// The time of a draft as it counts against drafts: a pause of the machine counts little.
    pub(super) fn counted_draft_us(&self, size: Size, us: f64) -> f64 {
        self.own_us(us).min(OUTLIER * self.draft_us(size.rows, size.sequences))
    }

    /// The time of a step in the same way. `beside`: the drafter worked meanwhile.
    pub(super) fn counted_step_us(&self, size: Size, us: f64, beside: bool) -> f64 {
        let factor = if beside { self.beside(size.sequences as usize)[0] } else { 1.0 };
        self.own_us(us).min(OUTLIER * factor * self.step.us(size))
    }

    /// Cost of a step of one row of each sequence, in microseconds.
    pub(super) fn plain_us(&self, sequences: f64, context: f64) -> f64 {
        self.step.us(Size { rows: sequences, sequences, context })
    }

    /// Cost of a draft for `sequences` sequences; `rows` are the rows of blocks and of new context.
    pub(crate) fn draft_us(&self, rows: f64, sequences: f64) -> f64 {
        let size = Size { rows, sequences, context: 0.0 };
        match self.draft.n_times {
            0 => self.plain_us(1.0, 0.0) / 2.0,
            few if few.min(self.tried) < FEW_DRAFTS => self.draft.us(size).min(self.step.us(size)),
            _ => self.draft.us(size),
        }
    }

    /// Time that the drafter needs to read `rows` rows of context.
    pub(super) fn read_us(&self, rows: usize) -> f64 {
        let assumed_us = self.plain_us(1.0, 0.0) / ASSUMED[1];
        let rows = rows as f64;
        let us = rows * if self.draft.n_times > 0 { self.draft.line[1] } else { assumed_us };
        let most = || self.step.us(Size { rows, sequences: 1.0, context: 0.0 });
        if self.tried < FEW_DRAFTS { us.min(most()) } else { us }
    }

    /// A step took `us`. `beside`: the drafter worked meanwhile.
    pub(super) fn observe_step(&mut self, size: Size, us: f64, beside: bool) {
        if !(us.is_finite() && us > 0.0) {
            return;
        }
        let us = self.own_us(us);
        let ratio = us / self.step.us(size);
        if beside && self.step.n_times > 0 {
            self.observe_beside(0, size.sequences as usize, ratio.min(2.0 * OUTLIER));
        } else if !beside {
            if self.step.n_times > 0 {
                let slowness = self.slowness * ratio.clamp(1.0 / OUTLIER, OUTLIER);
                let [newest, forgotten] = SLOWNESS_WEIGHTS;
                self.slowness = moved(moved(self.slowness, slowness, newest), 1.0, forgotten);
            }
            self.step.observe(size, us);
        }
    }

    /// A draft arrived `us` after its request. If the target stepped meanwhile, that is an upper
    /// bound of the time of a draft alone. The draft arrived during the last of these steps, so the
    /// believed factor moves no farther than into the range that this leaves.
    pub(super) fn observe_draft(&mut self, size: Size, us: f64, beside: Beside) {
        if !(us.is_finite() && us > 0.0) {
            return;
        }
        let (us, Beside { steps, others }) = (self.own_us(us), beside);
        self.tried += 1;
        if steps > 0 && self.draft.n_times > 0 {
            let most = us / self.draft_us(size.rows, size.sequences);
            let least = most * (1.0 - 1.0 / f64::from(steps));
            self.observe_beside(1, others, self.beside(others)[1].clamp(least, most));
        }
        let is_restored = self.draft.first.is_some();
        let believed_us = || self.draft_us(size.rows, size.sequences);
        if steps == 0 || us < if is_restored { self.draft.us(size) } else { believed_us() } {
            self.draft.observe(size, us);
        }
    }

    /// Begins with saved costs of drafts.
    pub(super) fn restore_drafts(&mut self, saved: &[CostCell]) {
        (self.draft, self.tried) = (Table::restored(saved), 0);
    }

    /// Longest draft of a measured step, in tokens.
    pub(super) fn longest_draft(&self) -> usize {
        let length = |cell: &CostCell| (cell.size.rows / cell.size.sequences) as usize - 1;
        self.step.cells.values().map(length).max().unwrap_or(0)
    }
}
