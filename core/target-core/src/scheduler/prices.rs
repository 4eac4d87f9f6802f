//! Cost of the rows of a prompt. Each row attends to all positions before it, so the end of a long
//! prompt is dearer than its beginning.
//!
//! The algorithm: a linear regression of the time of a row over the positions before it, by least
//! squares over the newest chunks with fading weights.

use super::StepPart;
use super::batch::CHUNK_US;

/// Prompt rows from which on a step measures the cost of a row. The time of a step with fewer rows
/// is mostly the fixed cost of a step.
const MEASURED_ROWS: usize = 32;
/// Rows of the first chunk of a process. A decode step has one row, too, so a machine that can
/// decode at all does not look hung in its first chunk: until a step of the phase is measured, the
/// limit is `hang_s`.
const FIRST_ROWS: usize = 1;
/// Largest factor from one chunk to the next while the cost of a row is not known. A step counts as
/// hung at ten times the p99 of its phase; the difference is left for rows that cost more after
/// others.
const MAX_GROWTH: usize = 4;
/// Factor on the weight of earlier chunks after a chunk of full length. About the last four count,
/// so a machine that becomes slower or faster is followed within four chunks. A shorter step has
/// less weight, by its time, because much of it is the fixed cost of a step.
const CHUNK_FADE: f64 = 0.75;
/// Least weight of a step, as a share of a chunk of full length.
const LEAST_WEIGHT: f64 = 0.001;
/// Variance of positions, in square units, at which the measured slope counts half.
const SLOPE_PRIOR: f64 = 0.01;
/// Positions in a unit, so that the sums stay in a comfortable range.
const POSITIONS_PER_UNIT: f64 = 1024.0;

/// Microseconds of a row, by the positions before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RowPrice {
    /// Weight of all measurements.
    weight: f64,
    /// Mean of the units before a row.
    units: f64,
    /// Mean time of a row.
    row_us: f64,
    /// Mean of the squares of the units.
    squares: f64,
    /// Mean of the products of units and times.
    products: f64,
    /// The largest chunk so far, while none was large enough to be measured.
    small: Option<SmallChunk>,
}

/// A chunk of fewer than [`MEASURED_ROWS`] rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SmallChunk {
    rows: usize,
    /// Time of the chunk over its rows. A row of a larger chunk costs less, because the fixed cost
    /// of a step is spread over more rows.
    row_us: f64,
}

impl RowPrice {
    /// A known price that is the same for all rows.
    #[cfg(test)]
    pub(super) fn flat(us: f64) -> Self {
        Self { weight: 1.0, row_us: us, ..Self::default() }
    }

    /// A step with these parts took `took_us`. The time of its other rows counts as the prompts'.
    pub(super) fn measure(&mut self, parts: &[StepPart], took_us: f64) {
        let prompts = || parts.iter().filter(|part| part.prefill);
        let rows = prompts().map(|part| part.rows).sum::<usize>();
        if rows < MEASURED_ROWS {
            let is_largest = rows > 0 && self.small.is_none_or(|small| rows >= small.rows);
            if self.weight == 0.0 && is_largest {
                self.small = Some(SmallChunk { rows, row_us: took_us / rows as f64 });
            }
            return;
        }
        let places: f64 = prompts()
            .map(|part| part.rows as f64 * (part.start as f64 + part.rows as f64 / 2.0))
            .sum();
        let (row_us, units) = (took_us / rows as f64, places / rows as f64 / POSITIONS_PER_UNIT);
        let weight = (took_us / CHUNK_US).clamp(LEAST_WEIGHT, 1.0);
        self.weight = CHUNK_FADE.powf(weight) * self.weight + weight;
        let mix = |mean: &mut f64, new: f64| *mean += (new - *mean) * weight / self.weight;
        mix(&mut self.units, units);
        mix(&mut self.row_us, row_us);
        mix(&mut self.squares, units * units);
        mix(&mut self.products, units * row_us);
    }

    /// Microseconds of the first row of a prompt, and what a row costs more after each unit.
    fn regression(&self) -> (f64, f64) {
        let spread = (self.squares - self.units * self.units).max(0.0);
        let slope = ((self.products - self.units * self.row_us) / (spread + SLOPE_PRIOR)).max(0.0);
        // The first row is never free, whatever the regression gives.
        ((self.row_us - slope * self.units).max(self.row_us / 4.0), slope)
    }

    /// Least rows of a chunk, however long they take: `least` if the price of a row is known.
    /// Before that chunks grow step by step, so that no step takes many times as long as the one
    /// before.
    pub(super) fn least_rows(&self, least: usize) -> usize {
        match self.small {
            _ if self.weight > 0.0 => least,
            Some(small) => (MAX_GROWTH * small.rows).min(least),
            None => FIRST_ROWS,
        }
    }

    /// Rows from `start` on that take `us` microseconds; `None` if nothing was measured. Too few if
    /// only small chunks were measured.
    pub(super) fn rows(&self, start: usize, us: f64) -> Option<usize> {
        if self.weight == 0.0 {
            return self.small.map(|small| (us / small.row_us.max(1.0)) as usize);
        }
        let (first_us, unit_us) = self.regression();
        let (first_us, slope) =
            (first_us + unit_us * start as f64 / POSITIONS_PER_UNIT, unit_us / POSITIONS_PER_UNIT);
        // n · (first + slope · n / 2) = us
        let rows = 2.0 * us / (first_us + (first_us * first_us + 2.0 * slope * us).sqrt());
        Some(rows as usize)
    }

    /// Time of `rows` rows from `start` on, in microseconds; 0 if nothing was measured.
    pub(super) fn us(&self, start: usize, rows: usize) -> f64 {
        if self.weight == 0.0 {
            return self.small.map_or(0.0, |small| rows as f64 * small.row_us);
        }
        let (first_us, unit_us) = self.regression();
        rows as f64 * (first_us + unit_us * (start as f64 + rows as f64 / 2.0) / POSITIONS_PER_UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SequenceKey;

    fn part(start: usize, rows: usize) -> StepPart {
        StepPart { key: SequenceKey(0), start, rows, chooses: false, prefill: true, drafted: 0 }
    }

    /// Prefills prompts of 2,000 positions on a machine where a row costs `row_us`, and
    /// `position_us` more for each position before it. Returns the shortest and the longest chunk
    /// of the last prompt, without its last chunk.
    fn chunks_us(
        price: &mut RowPrice,
        row_us: f64,
        position_us: f64,
        prompts: usize,
    ) -> (f64, f64) {
        let (mut least, mut most) = (f64::INFINITY, 0.0f64);
        for prompt in 0..prompts {
            let mut start = 0;
            while start < 2_000 {
                let fits =
                    price.rows(start, 250_000.0).map_or(64, |rows| rows.clamp(32, 1024) / 32 * 32);
                let rows = fits.min(2_000 - start);
                let us = rows as f64 * (row_us + position_us * (start as f64 + rows as f64 / 2.0))
                    + 1_000.0;
                price.measure(&[part(start, rows)], us);
                start += rows;
                if prompt + 1 == prompts && start < 2_000 {
                    (least, most) = (least.min(us), most.max(us));
                }
            }
        }
        (least, most)
    }

    #[test]
    fn chunks_of_a_long_prompt_take_as_long_at_its_end_as_at_its_beginning() {
        for (row_us, position_us) in [(300.0, 0.2), (300.0, 0.0), (100.0, 0.4)] {
            let mut price = RowPrice::default();
            // The first prompt teaches.
            assert!(chunks_us(&mut price, row_us, position_us, 1).1 < 500_000.0);
            let (least, most) = chunks_us(&mut price, row_us, position_us, 4);
            assert!(
                most < 270_000.0 && least > 190_000.0,
                "{row_us} {position_us}: {least} to {most} of {price:?}"
            );
        }
    }

    #[test]
    fn rows_and_times_are_inverse_to_each_other() {
        let mut price = RowPrice::default();
        (0..9).for_each(|at| {
            price.measure(&[part(500 * at, 100)], 100.0 * (120.0 + 0.06 * (500 * at) as f64))
        });
        for start in [0, 700, 3_000] {
            let rows = price.rows(start, 100_000.0).expect("known");
            assert!(
                price.us(start, rows) <= 100_000.0 && price.us(start, rows + 1) > 100_000.0,
                "{rows}"
            );
        }
        assert_eq!((RowPrice::default().rows(5, 1e5), RowPrice::default().us(5, 64)), (None, 0.0));
    }

    #[test]
    fn a_machine_that_becomes_slower_or_faster_is_followed() {
        let mut price = RowPrice::default();
        chunks_us(&mut price, 300.0, 0.2, 3);
        let (_, most) = chunks_us(&mut price, 600.0, 0.4, 4);
        assert!(most < 280_000.0, "{most}");
        let (least, _) = chunks_us(&mut price, 200.0, 0.1, 5);
        assert!(least > 180_000.0, "{least}");
    }

    #[test]
    fn a_chunk_of_few_rows_is_not_measured() {
        let mut price = RowPrice::flat(10.0);
        price.measure(&[part(0, 31), StepPart { prefill: false, ..part(500, 90) }], 1e6);
        assert_eq!(price, RowPrice::flat(10.0));
    }

    #[test]
    fn until_a_large_chunk_is_measured_small_ones_bound_the_next() {
        let mut price = RowPrice::default();
        assert_eq!((price.least_rows(32), price.rows(0, 1e6)), (FIRST_ROWS, None));
        price.measure(&[part(0, 2)], 8_000.0);
        // 4 ms a row at most: 62 rows fit 250 ms, and a smaller chunk teaches nothing.
        assert_eq!(
            (price.least_rows(32), price.rows(0, 250_000.0), price.us(0, 3)),
            (8, Some(62), 12_000.0)
        );
        price.measure(&[part(0, 1)], 90_000.0);
        assert_eq!(price.rows(0, 250_000.0), Some(62));
        price.measure(&[part(2, 20)], 40_000.0);
        assert_eq!((price.least_rows(32), price.rows(0, 250_000.0)), (32, Some(125)));
        // From the first measured chunk on only the regression counts.
        price.measure(&[part(22, 64)], 64_000.0);
        assert_eq!(price.least_rows(32), 32);
        assert!(price.rows(0, 250_000.0).is_some_and(|rows| rows > 200), "{price:?}");
    }
}
