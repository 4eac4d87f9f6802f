//! What rows of a prompt cost: each reads all positions before it, so the end of a long prompt is
//! dearer than its beginning.

use super::StepPart;
use super::batch::CHUNK_US;

/// Rows of a step that say what one costs: of fewer a large part is what any step costs.
const TELLS: usize = 32;
/// Rows of the very first prefill chunk of a process. A decode step has one row, too. So a machine
/// that can decode at all is not taken for hung during its first chunk. Until a step of the phase
/// is measured, the limit is `hang_s`.
const FIRST_ROWS: usize = 1;
/// By how much a chunk may be larger than the largest before it as long as a row's price is not
/// known. Less than the factor of ten over the p99 of the phase at which a step counts as hung,
/// with room for rows that cost more behind others.
const GROWTH: usize = 4;
/// What figures still count behind a whole chunk: some four tell the price, and a machine that
/// became slower or faster is followed within as many. A shorter step counts for less, by its time:
/// much of what it takes any step takes.
const FADES: f64 = 0.75;
/// What a step counts at least, as a share of a chunk.
const LEAST: f64 = 0.001;
/// Square units over which figures have to lie apart before a slope between them is half believed.
const APART: f64 = 0.01;
/// Positions in a unit of the price.
const UNIT: f64 = 1024.0;

/// Microseconds a row, by the positions before it: a line through the newest figures, as least
/// squares with fading weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RowPrice {
    /// Of the figures: their weight, and means of units, of microseconds a row, of the squares of
    /// units and of their product.
    weight: f64,
    units: f64,
    row_us: f64,
    squares: f64,
    products: f64,
    /// The largest chunk so far, as long as none was large enough for a figure.
    small: Option<SmallChunk>,
}

/// A chunk of fewer than [`TELLS`] rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SmallChunk {
    rows: usize,
    /// Its time over its rows: more than a row of a larger chunk costs, as a step's fixed cost is
    /// spread over few rows.
    row_us: f64,
}

impl RowPrice {
    /// A price that is the same everywhere.
    #[cfg(test)]
    pub(super) fn flat(us: f64) -> Self {
        Self { weight: 1.0, row_us: us, ..Self::default() }
    }

    /// A step with these parts took so long. Its other rows count as the prompts'.
    pub(super) fn measure(&mut self, parts: &[StepPart], took_us: f64) {
        let prompts = || parts.iter().filter(|part| part.prefill);
        let rows = prompts().map(|part| part.rows).sum::<usize>();
        if rows < TELLS {
            let is_largest = rows > 0 && self.small.is_none_or(|small| rows >= small.rows);
            if self.weight == 0.0 && is_largest {
                self.small = Some(SmallChunk { rows, row_us: took_us / rows as f64 });
            }
            return;
        }
        let places: f64 = prompts()
            .map(|part| part.rows as f64 * (part.start as f64 + part.rows as f64 / 2.0))
            .sum();
        let (row_us, units) = (took_us / rows as f64, places / rows as f64 / UNIT);
        let counts = (took_us / CHUNK_US).clamp(LEAST, 1.0);
        self.weight = FADES.powf(counts) * self.weight + counts;
        let mix = |mean: &mut f64, new: f64| *mean += (new - *mean) * counts / self.weight;
        mix(&mut self.units, units);
        mix(&mut self.row_us, row_us);
        mix(&mut self.squares, units * units);
        mix(&mut self.products, units * row_us);
    }

    /// Microseconds of the first row of a prompt, and what one is more behind each unit.
    fn line(&self) -> (f64, f64) {
        let spread = (self.squares - self.units * self.units).max(0.0);
        let slope = ((self.products - self.units * self.row_us) / (spread + APART)).max(0.0);
        // The first rows cost something, wherever the line goes.
        ((self.row_us - slope * self.units).max(self.row_us / 4.0), slope)
    }

    /// The least rows of a chunk, however long they take: `least` where the price of a row is
    /// known. Before that chunks grow step by step, so that no step takes many times as long as the
    /// one before it.
    pub(super) fn least_rows(&self, least: usize) -> usize {
        match self.small {
            _ if self.weight > 0.0 => least,
            Some(small) => (GROWTH * small.rows).min(least),
            None => FIRST_ROWS,
        }
    }

    /// Rows from `start` on that take so long; `None`: nothing is known. From small chunks alone
    /// fewer than would fit.
    pub(super) fn rows(&self, start: usize, us: f64) -> Option<usize> {
        if self.weight == 0.0 {
            return self.small.map(|small| (us / small.row_us.max(1.0)) as usize);
        }
        let (first_us, unit_us) = self.line();
        let (first_us, slope) = (first_us + unit_us * start as f64 / UNIT, unit_us / UNIT);
        // n · (first + slope · n / 2) = us
        let rows = 2.0 * us / (first_us + (first_us * first_us + 2.0 * slope * us).sqrt());
        Some(rows as usize)
    }

    /// What so many rows from `start` on take, microseconds; 0 where it is not known.
    pub(super) fn us(&self, start: usize, rows: usize) -> f64 {
        if self.weight == 0.0 {
            return self.small.map_or(0.0, |small| rows as f64 * small.row_us);
        }
        let (first_us, unit_us) = self.line();
        rows as f64 * (first_us + unit_us * (start as f64 + rows as f64 / 2.0) / UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SequenceKey;

    fn part(start: usize, rows: usize) -> StepPart {
        StepPart { key: SequenceKey(0), start, rows, chooses: false, prefill: true, drafted: 0 }
    }

    /// Reads prompts of 2,000 positions on a machine where a row costs so much, and so much more
    /// for each position before it; the shortest and the longest chunk of the last one but its
    /// rest.
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
    fn rows_and_times_are_each_others_inverse() {
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
    fn a_machine_that_became_slower_or_faster_is_followed() {
        let mut price = RowPrice::default();
        chunks_us(&mut price, 300.0, 0.2, 3);
        let (_, most) = chunks_us(&mut price, 600.0, 0.4, 4);
        assert!(most < 280_000.0, "{most}");
        let (least, _) = chunks_us(&mut price, 200.0, 0.1, 5);
        assert!(least > 180_000.0, "{least}");
    }

    #[test]
    fn a_few_rows_say_nothing() {
        let mut price = RowPrice::flat(10.0);
        price.measure(&[part(0, 31), StepPart { prefill: false, ..part(500, 90) }], 1e6);
        assert_eq!(price, RowPrice::flat(10.0));
    }

    #[test]
    fn as_long_as_only_small_chunks_were_measured_they_bound_the_next_one() {
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
        // From a whole figure on the line counts alone.
        price.measure(&[part(22, 64)], 64_000.0);
        assert_eq!(price.least_rows(32), 32);
        assert!(price.rows(0, 250_000.0).is_some_and(|rows| rows > 200), "{price:?}");
    }
}
