//! Sizes that fill a budget, as Gemma 4's image processor computes them.

use super::super::{BadImage, Size};

/// Rows of the prompt that models are trained with, ascending. Source: Gemma 4's image processor in
/// transformers.
pub const TRAINED: [u32; 5] = [70, 140, 280, 560, 1120];

/// The sizes that images get if each fills as much of a budget as its shape allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Pixels of a side of the square that becomes a row of the prompt. Sides are multiples of it.
    pub factor: u32,
    /// Rows of the prompt, at most.
    pub rows: u32,
}

impl Budget {
    /// The largest budget that models are trained with, of at most `pixels` and of no more rows
    /// than this one; if there is none, the smallest.
    pub fn at_most(self, pixels: u64) -> Self {
        let fits = |rows: &&u32| u64::from(**rows) * u64::from(self.factor).pow(2) <= pixels;
        let largest = TRAINED.iter().rev().find(fits).copied().unwrap_or(TRAINED[0]);
        Self { rows: self.rows.min(largest), ..self }
    }

    /// The size that an image gets. Source: `get_aspect_ratio_preserving_size`, transformers,
    /// models/gemma4.
    ///
    /// # Errors
    /// The image has no pixels.
    pub fn of(&self, size: Size) -> Result<Size, BadImage> {
        let Size { width, height } = size;
        let (pixels, side) = (f64::from(width) * f64::from(height), f64::from(self.factor));
        let most = f64::from(self.rows) * side * side;
        let scale = (most / pixels).sqrt();
        let squares = |length: u32| (scale * f64::from(length) / side).floor() as u32;
        // Of an image that is long and thin one side becomes less than a square.
        let along = |long: u32, short: u32| (long / short.max(1)).min(self.rows);
        let (wide, high) = match (squares(width), squares(height)) {
            (0, 0) => {
                let what = format!("expected an image of pixels, found {width} x {height}");
                return Err(what.into());
            }
            (wide, 0) if wide > 0 => (along(width, height), 1),
            (0, high) if high > 0 => (1, along(height, width)),
            both => both,
        };
        Ok(Size { width: wide * self.factor, height: high * self.factor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_budget_is_one_that_models_are_trained_with() {
        let of = |rows: u32, pixels: u64| Budget { factor: 48, rows }.at_most(pixels).rows;
        assert_eq!([of(280, 512 * 512), of(1120, 1 << 20), of(70, 1 << 20)], [70, 280, 70]);
        assert_eq!(of(280, 10), 70, "the smallest");
    }

    #[test]
    fn no_size_is_beyond_the_budget() {
        for rows in TRAINED {
            let budget = Budget { factor: 48, rows };
            for (width, height) in [(1, 1), (1, 9000), (9000, 1), (3000, 2), (640, 480), (47, 49)] {
                let Size { width, height } = budget.of(Size { width, height }).expect("fine");
                assert!(width % 48 == 0 && height % 48 == 0 && width > 0 && height > 0);
                assert!(width / 48 * (height / 48) <= rows, "{width} x {height} of {rows}");
            }
        }
    }
}
