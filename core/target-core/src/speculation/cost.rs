//! What a step or a draft costs, learned from measured times by rows, sequences and context.
//!
//! The algorithm has two layers. A grid of cells by rows and sequences holds a running mean in each
//! cell; an outlier moves it little. A linear regression through the cells gives the cost where
//! nothing was measured. A cell keeps its mean while other cells are measured, so a lane that is
//! seldom taken keeps its cost. Only the cell's weight in the regression fades, so that an old cost
//! that was too high is tried again one day. Costs never fall with rows (isotonic regression):
//! measurement noise must not make more rows look cheaper than fewer.
//!
//! The cost of a batch is not linear on a CPU: one row is a product of its own, and sixteen rows
//! cost two or three times one. That is why the cells exist.

mod regression;

use paceline_vocabulary::mean::moved;
use paceline_vocabulary::report::CostModel;

use regression::{Regression, Sums, rising};

/// Upper ends of the cells, in rows.
const ROWS: [u32; 18] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Upper ends of the cells, in sequences.
const SEQUENCES: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Least weight of the newest time in a cell's mean. With 0.06 a machine that changes is followed
/// within about 20 steps.
const NEWEST_WEIGHT: f64 = 0.06;
/// Largest weight of a cell in the regression.
const MAX_CELL_WEIGHT: f64 = 8.0;
/// A single time counts as at most this many times the expected one. On a shared machine one step
/// may be paused for as long as ten others take. Nothing makes a step shorter than it is.
const OUTLIER: f64 = 2.0;
/// [`OUTLIER`] of plain steps. It is stricter, because every cycle is compared with them: a few
/// paused ones would be a reason to draft.
const PLAIN_OUTLIER: f64 = 1.4;
/// Times that a cell needs before a new time is compared with its mean.
const KNOWN_TIMES: f64 = 3.0;
/// Factor on the regression's estimate when a new time is compared with it, because the cell has
/// no mean yet.
const ESTIMATE_MARGIN: f64 = 1.3;
/// Number of first times whose median is the cell's cost. A load that occurs seldom has no more for
/// long, and one pause among three would be half of their mean.
const MEDIAN_OF: usize = 3;
/// A cell's difference from the regression counts by weight / (weight + 1.5).
const DIFFERENCE_PRIOR: f64 = 1.5;
/// Factor on the weight of every cell at each fit. A cell that gets no new times fades.
const FIT_FADE: f64 = 0.99;
/// Weight of a cell without times when the curve is made rising. Small beside one measured time.
const UNMEASURED_WEIGHT: f64 = 0.02;
/// Times from one fit to the next.
const FIT_INTERVAL: u64 = 8;

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

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Number of times, at most 1 / `NEWEST_WEIGHT`.
    weight: f64,
    /// Mean size of the measured work.
    size: Size,
    us: f64,
    /// The first times, ascending.
    first: [f64; MEDIAN_OF],
    n_first: usize,
}

impl Cell {
    fn observe(&mut self, size: Size, us: f64) {
        let share = (1.0 / (self.weight + 1.0)).max(NEWEST_WEIGHT);
        if self.n_first < MEDIAN_OF {
            self.observe_first(us);
        } else {
            self.us = moved(self.us, us, share);
        }
        self.size = Size {
            rows: moved(self.size.rows, size.rows, share),
            sequences: moved(self.size.sequences, size.sequences, share),
            context: moved(self.size.context, size.context, share),
        };
        self.weight = (self.weight + 1.0).min(1.0 / NEWEST_WEIGHT);
    }

    /// Takes one of the first times. The cost is their median; of two it is the smaller one.
    fn observe_first(&mut self, us: f64) {
        self.first[self.n_first] = us;
        self.first[..=self.n_first].sort_unstable_by(f64::total_cmp);
        self.us = self.first[self.n_first / 2];
        self.n_first += 1;
    }
}

/// What plain steps cost, by the exact number of sequences. Every cycle is compared with this cost,
/// so the position within a cell of [`Cost`] must not matter.
#[derive(Clone, Debug)]
pub struct PlainCost([Cell; EXACT_NUMBERS]);

/// Numbers of sequences with a cell of their own.
const EXACT_NUMBERS: usize = 33;

impl Default for PlainCost {
    fn default() -> Self {
        Self([Cell::default(); EXACT_NUMBERS])
    }
}

impl PlainCost {
    /// A plain step of this size took `us`. `step` is the cost of steps of any kind.
    pub fn observe(&mut self, size: Size, us: f64, step: &Cost) {
        let expected = self.us(size, step);
        if let Some(cell) =
            self.0.get_mut(size.sequences as usize).filter(|_| us.is_finite() && us > 0.0)
        {
            let us = if cell.weight >= KNOWN_TIMES { us.min(expected * PLAIN_OUTLIER) } else { us };
            cell.observe(size, us);
        }
    }

    /// Times that were measured with this number of sequences. Old ones count less.
    pub fn times(&self, size: Size) -> f64 {
        self.0.get(size.sequences as usize).map_or(0.0, |cell| cell.weight)
    }

    /// What a plain step of this size costs, in microseconds. If none with this number of sequences
    /// was measured, the nearest numbers scale the cost that `step` gives.
    pub fn us(&self, size: Size, step: &Cost) -> f64 {
        let known = |number: usize| self.0.get(number).filter(|cell| cell.weight > 0.0);
        let at = size.sequences as usize;
        let below = (0..=at.min(EXACT_NUMBERS - 1)).rev().find_map(known);
        let above = (at..EXACT_NUMBERS).find_map(known);
        let us = step.us(size);
        let ratio = |cell: &Cell| cell.us / step.us(cell.size);
        match (below, above) {
            (Some(cell), _) if cell.size.sequences.round() as usize == at => {
                (cell.us + step.context_us(size.context - cell.size.context)).max(cell.us / 2.0)
            }
            (Some(one), Some(other)) => us * f64::midpoint(ratio(one), ratio(other)),
            (Some(one), None) | (None, Some(one)) => us * ratio(one),
            (None, None) => us,
        }
    }
}

type Grid<T> = [[T; ROWS.len()]; SEQUENCES.len()];

/// The cost of one kind of work.
#[derive(Clone, Debug)]
pub struct Cost {
    cells: Grid<Cell>,
    regression: Regression,
    /// Cost at the cells' upper ends, without context.
    curve: Grid<f64>,
    /// What one more row costs within each cell.
    slope: Grid<f64>,
    /// Times that were measured.
    n_times: u64,
    /// Times that were measured before the last fit.
    n_fitted: u64,
}

impl Default for Cost {
    fn default() -> Self {
        let zero = [[0.0; ROWS.len()]; SEQUENCES.len()];
        Self {
            cells: [[Cell::default(); ROWS.len()]; SEQUENCES.len()],
            regression: Regression::default(),
            curve: zero,
            slope: zero,
            n_times: 0,
            n_fitted: 0,
        }
    }
}

impl Cost {
    /// A step or draft of this size took `us`.
    pub fn observe(&mut self, size: Size, us: f64) {
        if !(us.is_finite() && us > 0.0) {
            return;
        }
        let (row, sequence) =
            (cell_at(&ROW_CELLS, size.rows), cell_at(&SEQUENCE_CELLS, size.sequences));
        let weight = self.cells[sequence][row].weight;
        let expected = if weight >= KNOWN_TIMES {
            Some(self.cells[sequence][row].us)
        } else {
            (self.n_times >= FIT_INTERVAL).then(|| ESTIMATE_MARGIN * self.us(size))
        };
        let us = expected.map_or(us, |expected| us.min(expected * OUTLIER));
        self.cells[sequence][row].observe(size, us);
        self.n_times += 1;
        if weight < KNOWN_TIMES || self.n_times - self.n_fitted >= FIT_INTERVAL {
            self.fit();
        }
    }

    /// Makes the next time of each cell count as if it were the first one: nothing was measured for
    /// a while.
    pub fn distrust(&mut self) {
        for cell in self.cells.iter_mut().flatten().filter(|cell| cell.weight > 0.0) {
            (cell.weight, cell.n_first) = (cell.weight.min(1.0), 0);
        }
    }

    /// Times that were measured in the cell of this size. Old ones count less.
    pub fn times(&self, size: Size) -> f64 {
        let sequence = cell_at(&SEQUENCE_CELLS, size.sequences);
        self.cells[sequence][cell_at(&ROW_CELLS, size.rows)].weight
    }

    /// Times that were measured in all.
    pub fn n_times(&self) -> u64 {
        self.n_times
    }

    /// Whether anything was measured.
    pub fn is_known(&self) -> bool {
        self.n_times > 0
    }

    /// What work of this size costs, in microseconds; 0 before anything was measured.
    pub fn us(&self, size: Size) -> f64 {
        let sequence = cell_at(&SEQUENCE_CELLS, size.sequences);
        let curve = &self.curve[sequence];
        let row = cell_at(&ROW_CELLS, size.rows);
        let last = f64::from(ROWS[ROWS.len() - 1]);
        let without_context = if size.rows > last {
            curve[ROWS.len() - 1] + (size.rows - last) * self.regression.row_us()
        } else if row == 0 {
            curve[0]
        } else {
            curve[row - 1] + (size.rows - f64::from(ROWS[row - 1])) * self.slope[sequence][row]
        };
        // The curve is for the upper end of the cell: fewer sequences cost less.
        let fewer = (f64::from(SEQUENCES[sequence]) - size.sequences).max(0.0)
            * self.regression.sequence_us();
        (without_context - fewer + self.regression.context_us() * size.context / 1000.0)
            .max(without_context / 2.0)
    }

    /// What one more row costs by the regression, in microseconds.
    pub fn row_us(&self) -> f64 {
        self.regression.row_us()
    }

    /// What `positions` more positions of context cost by the regression, in microseconds.
    pub fn context_us(&self, positions: f64) -> f64 {
        self.regression.context_us() * positions / 1000.0
    }

    /// The regression, for the report.
    pub fn model(&self) -> CostModel {
        self.regression.model(self.n_times)
    }

    fn fit(&mut self) {
        self.n_fitted = self.n_times;
        for cell in self.cells.iter_mut().flatten().filter(|cell| cell.weight > 1.0) {
            cell.weight = (cell.weight * FIT_FADE).max(1.0);
        }
        let known = || self.cells.iter().flatten().filter(|cell| cell.weight > 0.0);
        let least_us = known().map(|cell| cell.us).fold(f64::INFINITY, f64::min);
        let mut sums = Sums::default();
        for cell in known() {
            let weight = cell.weight.min(MAX_CELL_WEIGHT) / (cell.us * cell.us);
            sums.add(cell.size, cell.us, weight);
        }
        sums.add_prior(least_us);
        self.regression = sums.solve();
        for (sequence, most) in SEQUENCES.iter().enumerate() {
            let curve = self.curve_of(sequence, f64::from(*most));
            for row in 1..ROWS.len() {
                self.slope[sequence][row] =
                    (curve[row] - curve[row - 1]) / f64::from(ROWS[row] - ROWS[row - 1]);
            }
            self.curve[sequence] = curve;
        }
    }

    /// The regression plus the cells' differences from it, made rising. Between two measured cells
    /// the difference is interpolated; beyond the last one it fades with the distance.
    fn curve_of(&self, sequence: usize, sequences: f64) -> [f64; ROWS.len()] {
        let regression = self.regression;
        let difference = |row: usize| {
            let cell = &self.cells[sequence][row];
            (cell.weight > 0.0).then(|| {
                (cell.us - regression.us(cell.size)) * cell.weight
                    / (cell.weight + DIFFERENCE_PRIOR)
            })
        };
        let mut curve = [0.0; ROWS.len()];
        let mut before: Option<(usize, f64)> = None;
        for row in 0..ROWS.len() {
            let here = difference(row);
            let after =
                (row..ROWS.len()).find_map(|next| difference(next).map(|value| (next, value)));
            let value = match (here, before, after) {
                (Some(value), _, _) => value,
                (None, Some((low, one)), Some((high, other))) => {
                    one + (other - one) * (row - low) as f64 / (high - low) as f64
                }
                (None, Some((low, one)), None) => one / (1.0 + (row - low) as f64),
                (None, None, Some((high, other))) => other / (1.0 + (high - row) as f64),
                (None, None, None) => 0.0,
            };
            if let Some(value) = here {
                before = Some((row, value));
            }
            let size = Size { rows: f64::from(ROWS[row]), sequences, context: 0.0 };
            curve[row] = (regression.us(size) + value).max(1.0);
        }
        rising(curve, |row| self.cells[sequence][row].weight + UNMEASURED_WEIGHT)
    }
}

/// The cell of each whole amount. A decision asks for hundreds of costs, so it is tabulated.
static ROW_CELLS: [u8; ROWS[ROWS.len() - 1] as usize + 1] = cells(&ROWS);
static SEQUENCE_CELLS: [u8; SEQUENCES[SEQUENCES.len() - 1] as usize + 1] = cells(&SEQUENCES);

const fn cells<const N: usize>(ends: &[u32]) -> [u8; N] {
    let (mut cells, mut amount, mut cell) = ([0; N], 0, 0);
    while amount < N {
        if ends[cell] < amount as u32 {
            cell += 1;
        }
        cells[amount] = cell as u8;
        amount += 1;
    }
    cells
}

/// The cell of an amount. An amount beyond the last cell belongs to the last cell.
fn cell_at(cells: &[u8], amount: f64) -> usize {
    // Rounds up. Not every x86-64 processor has an instruction for `f64::ceil`.
    let whole = amount as usize;
    let up = whole.saturating_add(usize::from((whole as f64) < amount));
    usize::from(cells[up.min(cells.len() - 1)])
}

#[cfg(test)]
mod tests;
