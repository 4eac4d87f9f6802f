//! The linear regression through the cells of a cost, and the isotonic one that makes a curve
//! rising.

use paceline_vocabulary::report::CostModel;

use super::Size;

/// Weight of the assumptions beside one measured time, whose weight is 1 at the least cost.
const PRIOR_WEIGHT: f64 = 0.05;
/// Rows that are assumed to cost as much as one step more. As all assumptions, rather too cheap: a
/// size that is tried is measured, and a size that looks dear is never tried.
const PRIOR_ROWS: f64 = 64.0;
/// Sequences that are assumed to cost half a step more.
const PRIOR_SEQUENCES: f64 = 32.0;
/// Thousands of positions that are assumed to cost half a step more.
const PRIOR_KILOPOSITIONS: f64 = 8.0;

/// Microseconds = base + row · rows + sequence · sequences + context · positions / 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Regression([f64; 4]);

impl Regression {
    fn features(size: Size) -> [f64; 4] {
        [1.0, size.rows, size.sequences, size.context / 1000.0]
    }

    /// What work of this size costs, in microseconds.
    pub(super) fn us(&self, size: Size) -> f64 {
        self.0.iter().zip(Self::features(size)).map(|(one, other)| one * other).sum()
    }

    /// What one more row costs, in microseconds.
    pub(super) fn row_us(&self) -> f64 {
        self.0[1]
    }

    /// What one more sequence costs, in microseconds.
    pub(super) fn sequence_us(&self) -> f64 {
        self.0[2]
    }

    /// What a thousand more positions cost, in microseconds.
    pub(super) fn context_us(&self) -> f64 {
        self.0[3]
    }

    /// The coefficients, for the report.
    pub(super) fn model(&self, observations: u64) -> CostModel {
        let [base_us, row_us, sequence_us, context_us] = self.0;
        CostModel { base_us, row_us, sequence_us, context_us, observations }
    }
}

/// The normal equations of the least squares fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    products: [[f64; 4]; 4],
    sums: [f64; 4],
}

impl Sums {
    /// Adds a measured cost.
    pub(super) fn add(&mut self, size: Size, us: f64, weight: f64) {
        let features = Regression::features(size);
        for row in 0..4 {
            for column in 0..4 {
                self.products[row][column] += weight * features[row] * features[column];
            }
            self.sums[row] += weight * features[row] * us;
        }
    }

    /// Adds the assumptions for all that is not measured, in units of the least measured cost.
    pub(super) fn add_prior(&mut self, least_us: f64) {
        let weight = PRIOR_WEIGHT / (least_us * least_us);
        let amounts = [0.0, PRIOR_ROWS, PRIOR_SEQUENCES, PRIOR_KILOPOSITIONS];
        let costs = [0.0, least_us, least_us / 2.0, least_us / 2.0];
        for at in 0..4 {
            self.products[at][at] += weight * amounts[at] * amounts[at];
            self.sums[at] += weight * amounts[at] * costs[at];
        }
    }

    /// The regression. No coefficient is negative: one that would be is left out. The base is not
    /// negative either, because the first times, all of one size, would else make a row so dear
    /// that no other size is ever tried.
    pub(super) fn solve(&self) -> Regression {
        let mut used = [true; 4];
        loop {
            let found = self.eliminate(used);
            match (0..4).rev().find(|at| used[*at] && found[*at] < 0.0) {
                Some(negative) => used[negative] = false,
                None => return Regression(found),
            }
        }
    }

    /// Gaussian elimination over the used coefficients; the others become 0.
    fn eliminate(&self, used: [bool; 4]) -> [f64; 4] {
        let (mut left, mut right) = (self.products, self.sums);
        for at in (0..4).filter(|at| !used[*at]) {
            left[at] = [0.0; 4];
            (0..4).for_each(|row| left[row][at] = 0.0);
            (left[at][at], right[at]) = (1.0, 0.0);
        }
        // The matrix is positive definite, so no pivoting is needed. A coefficient of a singular
        // one becomes 0.
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
}

/// Neighbouring values of a curve that share one value.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    value: f64,
    weight: f64,
    members: usize,
}

/// The nearest curve that never falls (isotonic regression by pooling adjacent violators).
/// Neighbours that fall get their weighted mean, so a well measured value stays and a guessed one
/// moves.
pub(super) fn rising<const N: usize>(curve: [f64; N], weight: impl Fn(usize) -> f64) -> [f64; N] {
    let mut pools = [Pool::default(); N];
    let mut count = 0;
    for (at, value) in curve.into_iter().enumerate() {
        pools[count] = Pool { value, weight: weight(at), members: 1 };
        count += 1;
        while count > 1 && pools[count - 2].value > pools[count - 1].value {
            let (low, high) = (pools[count - 2], pools[count - 1]);
            let both = low.weight + high.weight;
            pools[count - 2] = Pool {
                value: (low.value * low.weight + high.value * high.weight) / both,
                weight: both,
                members: low.members + high.members,
            };
            count -= 1;
        }
    }
    let mut risen = [0.0; N];
    let values =
        pools[..count].iter().flat_map(|pool| std::iter::repeat_n(pool.value, pool.members));
    risen.iter_mut().zip(values).for_each(|(place, value)| *place = value);
    risen
}
