//! What a step or a draft costs, learnt from what was measured: time over rows, sequences and
//! context.
//!
//! Two layers. A grid of cells by rows and sequences keeps a running mean each, which outliers move
//! little; a straight line through the cells, nearer ones no more than far ones, serves where
//! nothing was measured. A cell does not forget because others are measured more often, so a lane
//! that is seldom taken keeps its price; only what it adds to the line fades, so that an old figure
//! that was too high is tried again one day. Costs never fall with rows: the price of a batch is
//! not a line on a CPU (one row is a product of its own, sixteen cost two or three times one), and
//! noise must not make more rows look cheaper than fewer.

use paceline_vocabulary::report::CostModel;

/// Upper ends of the cells.
const ROWS: [u32; 18] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
const SEQUENCES: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Least weight of the newest figure in a cell's mean: a machine that changes is followed within
/// some 20 steps.
const NEWEST: f64 = 0.06;
/// What a cell counts for at most in the line.
const HEAVY: f64 = 8.0;
/// A single figure counts at most so many times what was expected: on a shared machine one step may
/// be paused for as long as ten others take. Nothing makes one shorter than it is.
const OUTLIER: f64 = 2.0;
/// Of plain steps, which every cycle is held against: a few that are paused would be the reason to
/// draft.
const PLAIN_OUTLIER: f64 = 1.4;
/// Figures of a cell before an expectation is held against it.
const KNOWN: f64 = 3.0;
/// Figures of which the middle one counts.
const FIRST: usize = 3;
/// What a cell's deviation from the line is divided among: so many figures, and its own.
const DOUBT: f64 = 1.5;
/// What a cell's figures still count at the next fit, if it gets no new ones.
const FADES: f64 = 0.99;
/// What a guess between cells counts for beside a figure.
const UNMEASURED: f64 = 0.02;
/// Figures between two fits.
const FIT_EVERY: u64 = 8;

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
    /// Figures, at most 1 / `NEWEST`.
    weight: f64,
    size: Size,
    us: f64,
    /// The first ones, ascending: until there are more the one in the middle counts, not their
    /// mean. A load that is met rarely has no more for long, and one pause among three would make
    /// half a price of its own.
    first: [f64; FIRST],
    firsts: usize,
}

impl Cell {
    fn observe(&mut self, size: Size, us: f64) {
        let share = (1.0 / (self.weight + 1.0)).max(NEWEST);
        let mix = |old: &mut f64, new: f64| *old += share * (new - *old);
        if self.firsts < FIRST {
            self.begin(us);
        } else {
            mix(&mut self.us, us);
        }
        mix(&mut self.size.rows, size.rows);
        mix(&mut self.size.sequences, size.sequences);
        mix(&mut self.size.context, size.context);
        self.weight = (self.weight + 1.0).min(1.0 / NEWEST);
    }

    /// One of the first: the middle one of those there are; of two the lesser.
    fn begin(&mut self, us: f64) {
        self.first[self.firsts] = us;
        self.first[..=self.firsts].sort_unstable_by(f64::total_cmp);
        self.us = self.first[self.firsts / 2];
        self.firsts += 1;
    }
}

/// A line: microseconds = base + row · rows + sequence · sequences + context · positions / 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Regression([f64; 4]);

impl Regression {
    fn features(size: Size) -> [f64; 4] {
        [1.0, size.rows, size.sequences, size.context / 1000.0]
    }

    fn at(&self, size: Size) -> f64 {
        self.0.iter().zip(Self::features(size)).map(|(one, other)| one * other).sum()
    }
}

/// What plain steps cost, by the exact number of sequences: it is what every cycle is held against,
/// so the place within a cell of [`Cost`] must not matter.
#[derive(Clone, Debug)]
pub struct Plain([Cell; EXACT]);

/// Numbers of sequences that are told apart.
const EXACT: usize = 33;

impl Default for Plain {
    fn default() -> Self {
        Self([Cell::default(); EXACT])
    }
}

impl Plain {
    /// A plain step of all these sequences took so long; by `step` so long was expected.
    pub fn observe(&mut self, size: Size, us: f64, step: &Cost) {
        let expected = self.us(size, step);
        if let Some(cell) =
            self.0.get_mut(size.sequences as usize).filter(|_| us.is_finite() && us > 0.0)
        {
            let us = if cell.weight >= KNOWN { us.min(expected * PLAIN_OUTLIER) } else { us };
            cell.observe(size, us);
        }
    }

    /// How many there were of that number; old ones count less.
    pub fn figures(&self, size: Size) -> f64 {
        self.0.get(size.sequences as usize).map_or(0.0, |cell| cell.weight)
    }

    /// What a plain step of these sequences costs, microseconds; where there was none of that
    /// number, the nearest one says how far `step` is right.
    pub fn us(&self, size: Size, step: &Cost) -> f64 {
        let known = |number: usize| self.0.get(number).filter(|cell| cell.weight > 0.0);
        let at = size.sequences as usize;
        let below = (0..=at.min(EXACT - 1)).rev().find_map(known);
        let above = (at..EXACT).find_map(known);
        let us = step.us(size);
        let right = |cell: &Cell| cell.us / step.us(cell.size);
        match (below, above) {
            (Some(cell), _) if cell.size.sequences.round() as usize == at => {
                (cell.us + step.context_us(size.context - cell.size.context)).max(cell.us / 2.0)
            }
            (Some(one), Some(other)) => us * f64::midpoint(right(one), right(other)),
            (Some(one), None) | (None, Some(one)) => us * right(one),
            (None, None) => us,
        }
    }
}

/// The cost of one kind of work.
#[derive(Clone, Debug)]
pub struct Cost {
    cells: [[Cell; ROWS.len()]; SEQUENCES.len()],
    line: Regression,
    /// Cost at the cells' upper ends without context, and what a row more costs within each cell.
    curve: [[f64; ROWS.len()]; SEQUENCES.len()],
    slope: [[f64; ROWS.len()]; SEQUENCES.len()],
    seen: u64,
    fitted: u64,
}

impl Default for Cost {
    fn default() -> Self {
        let zero = [[0.0; ROWS.len()]; SEQUENCES.len()];
        let cells = [[Cell::default(); ROWS.len()]; SEQUENCES.len()];
        Self { cells, line: Regression::default(), curve: zero, slope: zero, seen: 0, fitted: 0 }
    }
}

impl Cost {
    /// A step or draft of that size took so long.
    pub fn observe(&mut self, size: Size, us: f64) {
        if !(us.is_finite() && us > 0.0) {
            return;
        }
        let (row, sequence) =
            (place(&ROW_PLACES, size.rows), place(&SEQUENCE_PLACES, size.sequences));
        let known = self.cells[sequence][row].weight;
        let expected = if known >= KNOWN {
            Some(self.cells[sequence][row].us)
        } else {
            (self.seen >= FIT_EVERY).then(|| 1.3 * self.us(size))
        };
        let us = expected.map_or(us, |expected| us.min(expected * OUTLIER));
        self.cells[sequence][row].observe(size, us);
        self.seen += 1;
        if known < KNOWN || self.seen - self.fitted >= FIT_EVERY {
            self.fit();
        }
    }

    /// Nothing of this was measured for a while: what is seen next counts as if it were the first.
    pub fn doubt(&mut self) {
        for cell in self.cells.iter_mut().flatten().filter(|cell| cell.weight > 0.0) {
            (cell.weight, cell.firsts) = (cell.weight.min(1.0), 0);
        }
    }

    /// How many there were of about that size; old ones count less.
    pub fn figures(&self, size: Size) -> f64 {
        self.cells[place(&SEQUENCE_PLACES, size.sequences)][place(&ROW_PLACES, size.rows)].weight
    }

    /// How many figures there were in all.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether anything was measured.
    pub fn is_known(&self) -> bool {
        self.seen > 0
    }

    /// What work of that size costs, in microseconds; 0 before anything was measured.
    pub fn us(&self, size: Size) -> f64 {
        let sequence = place(&SEQUENCE_PLACES, size.sequences);
        let curve = &self.curve[sequence];
        let row = place(&ROW_PLACES, size.rows);
        let last = f64::from(ROWS[ROWS.len() - 1]);
        let flat = if size.rows > last {
            curve[ROWS.len() - 1] + (size.rows - last) * self.line.0[1]
        } else if row == 0 {
            curve[0]
        } else {
            curve[row - 1] + (size.rows - f64::from(ROWS[row - 1])) * self.slope[sequence][row]
        };
        // The curve is of as many sequences as the cell has at most.
        let fewer = (f64::from(SEQUENCES[sequence]) - size.sequences).max(0.0) * self.line.0[2];
        (flat - fewer + self.line.0[3] * size.context / 1000.0).max(flat / 2.0)
    }

    /// One more row, in microseconds, by the line.
    pub fn row_us(&self) -> f64 {
        self.line.0[1]
    }

    /// So many more positions of context, in microseconds, by the line.
    pub fn context_us(&self, positions: f64) -> f64 {
        self.line.0[3] * positions / 1000.0
    }

    /// For the report.
    pub fn model(&self) -> CostModel {
        let [base_us, row_us, sequence_us, context_us] = self.line.0;
        CostModel { base_us, row_us, sequence_us, context_us, observations: self.seen }
    }

    fn fit(&mut self) {
        self.fitted = self.seen;
        for cell in self.cells.iter_mut().flatten().filter(|cell| cell.weight > 1.0) {
            cell.weight = (cell.weight * FADES).max(1.0);
        }
        let known: Vec<&Cell> =
            self.cells.iter().flatten().filter(|cell| cell.weight > 0.0).collect();
        // What is assumed until it is measured, as faint figures: sixty-four rows cost one step
        // more, thirty-two sequences or eight thousand positions half a step. Rather too cheap:
        // what is tried is measured, what looks dear is never tried.
        let least = known.iter().map(|cell| cell.us).fold(f64::INFINITY, f64::min);
        let faint = 0.05 / (least * least);
        let prior = [(0.0, 0.0), (64.0, least), (32.0, least / 2.0), (8.0, least / 2.0)];
        let (mut products, mut sums) = ([[0.0; 4]; 4], [0.0; 4]);
        for cell in &known {
            let (features, weight) =
                (Regression::features(cell.size), cell.weight.min(HEAVY) / (cell.us * cell.us));
            for row in 0..4 {
                for column in 0..4 {
                    products[row][column] += weight * features[row] * features[column];
                }
                sums[row] += weight * features[row] * cell.us;
            }
        }
        for (at, (amount, us)) in prior.into_iter().enumerate() {
            products[at][at] += faint * amount * amount;
            sums[at] += faint * amount * us;
        }
        self.line = Regression(solve(products, sums));
        for (sequence, most) in SEQUENCES.iter().enumerate() {
            let curve = self.curve_of(sequence, f64::from(*most));
            for row in 1..ROWS.len() {
                self.slope[sequence][row] =
                    (curve[row] - curve[row - 1]) / f64::from(ROWS[row] - ROWS[row - 1]);
            }
            self.curve[sequence] = curve;
        }
    }

    /// Line and what the cells deviate from it, never falling.
    fn curve_of(&self, sequence: usize, sequences: f64) -> [f64; ROWS.len()] {
        let line = self.line;
        // By how much the cells at hand are above the line; between two of them, and beyond, by the
        // way from one to the other.
        let deviation = |row: usize| {
            let cell = &self.cells[sequence][row];
            (cell.weight > 0.0)
                .then(|| (cell.us - line.at(cell.size)) * cell.weight / (cell.weight + DOUBT))
        };
        let mut curve = [0.0; ROWS.len()];
        let mut before: Option<(usize, f64)> = None;
        for row in 0..ROWS.len() {
            let here = deviation(row);
            let after =
                (row..ROWS.len()).find_map(|next| deviation(next).map(|value| (next, value)));
            let value = match (here, before, after) {
                (Some(value), _, _) => value,
                (None, Some((low, one)), Some((high, other))) => {
                    one + (other - one) * (row - low) as f64 / (high - low) as f64
                }
                // Beyond what was measured the deviation fades.
                (None, Some((low, one)), None) => one / (1.0 + (row - low) as f64),
                (None, None, Some((high, other))) => other / (1.0 + (high - row) as f64),
                (None, None, None) => 0.0,
            };
            if let Some(value) = here {
                before = Some((row, value));
            }
            let size = Size { rows: f64::from(ROWS[row]), sequences, context: 0.0 };
            curve[row] = (line.at(size) + value).max(1.0);
        }
        rising(curve, |row| self.cells[sequence][row].weight + UNMEASURED)
    }
}

/// Which cell each whole amount falls in: a decision asks for hundreds of prices.
static ROW_PLACES: [u8; ROWS[ROWS.len() - 1] as usize + 1] = places(&ROWS);
static SEQUENCE_PLACES: [u8; SEQUENCES[SEQUENCES.len() - 1] as usize + 1] = places(&SEQUENCES);

const fn places<const N: usize>(ends: &[u32]) -> [u8; N] {
    let (mut places, mut amount, mut cell) = ([0; N], 0, 0);
    while amount < N {
        if ends[cell] < amount as u32 {
            cell += 1;
        }
        places[amount] = cell as u8;
        amount += 1;
    }
    places
}

/// Which cell an amount falls in; what is beyond the last falls in the last.
fn place(places: &[u8], amount: f64) -> usize {
    // Rounded up. (The processor's own way to is not in every x86-64.)
    let whole = amount as usize;
    let up = whole.saturating_add(usize::from((whole as f64) < amount));
    usize::from(places[up.min(places.len() - 1)])
}

/// The nearest curve that never falls: neighbours that do are given their mean, by weight, so that
/// what is known well stays and what is guessed gives way.
fn rising<const N: usize>(curve: [f64; N], weight: impl Fn(usize) -> f64) -> [f64; N] {
    // Value, weight, and how many neighbours share it.
    let mut pools = [(0.0, 0.0, 0usize); N];
    let mut count = 0;
    for (at, value) in curve.into_iter().enumerate() {
        pools[count] = (value, weight(at), 1);
        count += 1;
        while count > 1 && pools[count - 2].0 > pools[count - 1].0 {
            let (low, high) = (pools[count - 2], pools[count - 1]);
            let both = low.1 + high.1;
            pools[count - 2] = ((low.0 * low.1 + high.0 * high.1) / both, both, low.2 + high.2);
            count -= 1;
        }
    }
    let mut risen = [0.0; N];
    let values =
        pools[..count].iter().flat_map(|(value, _, many)| std::iter::repeat_n(*value, *many));
    risen.iter_mut().zip(values).for_each(|(place, value)| *place = value);
    risen
}

/// The solution of a 4×4 system of a least squares fit. No price is negative: one that would be is
/// left out. The base neither, or the first figures, all of one size, would make a row so dear that
/// nothing of any other size is ever tried.
fn solve(products: [[f64; 4]; 4], sums: [f64; 4]) -> [f64; 4] {
    let mut used = [true; 4];
    loop {
        let found = eliminate(&products, &sums, used);
        match (0..4).rev().find(|at| used[*at] && found[*at] < 0.0) {
            Some(negative) => used[negative] = false,
            None => return found,
        }
    }
}

fn eliminate(products: &[[f64; 4]; 4], sums: &[f64; 4], used: [bool; 4]) -> [f64; 4] {
    let (mut left, mut right) = (*products, *sums);
    for at in (0..4).filter(|at| !used[*at]) {
        left[at] = [0.0; 4];
        (0..4).for_each(|row| left[row][at] = 0.0);
        (left[at][at], right[at]) = (1.0, 0.0);
    }
    // Positive definite, so no pivot is needed; what is all but singular comes out as zero.
    for pivot in 0..4 {
        for row in pivot + 1..4 {
            if left[pivot][pivot].abs() < f64::MIN_POSITIVE {
                continue;
            }
            let factor = left[row][pivot] / left[pivot][pivot];
            (pivot..4).for_each(|column| left[row][column] -= factor * left[pivot][column]);
            right[row] -= factor * right[pivot];
        }
    }
    let mut found = [0.0; 4];
    for row in (0..4).rev() {
        let rest: f64 = (row + 1..4).map(|column| left[row][column] * found[column]).sum();
        let value = (right[row] - rest) / left[row][row];
        found[row] = if value.is_finite() { value } else { 0.0 };
    }
    found
}

#[cfg(test)]
mod tests;
