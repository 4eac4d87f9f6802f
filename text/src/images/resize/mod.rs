//! Resizing as the reference implementation does it, bit for bit.
//!
//! The new size is a multiple of the vision tower's patches and within its budget of pixels. The
//! filter is Pillow's bicubic one: it is widened when the image shrinks, its weights have 22 bits,
//! and columns and rows are filtered one after the other, each rounded to a byte. Rows stream
//! through: memory holds the few rows that one row of the result needs.

mod budget;

use std::collections::VecDeque;
use std::io;

use super::{BadImage, Size};

pub use budget::{Budget, TRAINED};

/// The longer side over the shorter one, at most. The limit of the reference implementation.
const MAX_RATIO: f64 = 200.0;
/// Fraction bits of a weight: 32 of an accumulator, less 8 of a byte, less 2 of what
/// negative weights may add.
const PRECISION_BITS: u32 = 32 - 8 - 2;
/// Source pixels on either side that the filter reaches to.
const SUPPORT: f64 = 2.0;

/// The rule for the size that an image gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRule {
    /// The image's own size, as far as it lies within bounds: Qwen's rule.
    Within(Sizes),
    /// As large as a budget allows: Gemma's rule.
    Filling(Budget),
}

impl SizeRule {
    /// The rule for at most `pixels`.
    pub fn at_most(self, pixels: u64) -> Self {
        match self {
            Self::Within(sizes) => Self::Within(sizes.at_most(pixels)),
            Self::Filling(budget) => Self::Filling(budget.at_most(pixels)),
        }
    }

    /// Most pixels of an image that has got its size.
    pub fn most_pixels(&self) -> u64 {
        match self {
            Self::Within(sizes) => sizes.max_pixels / u64::from(sizes.frames),
            Self::Filling(Budget { factor, rows }) => u64::from(*rows) * u64::from(*factor).pow(2),
        }
    }

    /// The size that an image gets.
    ///
    /// # Errors
    /// The image has a shape that the model does not read.
    pub fn of(&self, size: Size) -> Result<Size, BadImage> {
        match self {
            Self::Within(sizes) => sizes.of(size),
            Self::Filling(budget) => budget.of(size),
        }
    }
}

/// The sizes that an image may get, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sides are multiples of it.
    pub factor: u32,
    /// Pixels of the image, at least, roughly.
    pub min_pixels: u64,
    /// Pixels of the image, at most.
    pub max_pixels: u64,
    /// How many times an image's pixels count against these bounds.
    pub frames: u32,
    /// What is done with sides of fewer pixels than `factor`.
    pub small: SmallSides,
}

/// What is done with an image that has a side of fewer pixels than the sides are multiples of, before
/// its size is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallSides {
    /// Nothing: Qwen's rule.
    AsTheyAre,
    /// Both sides grow by one factor, to whole pixels below: GLM's rule.
    RaisedTogether,
    /// The height first and then the width is raised to the factor, and the other side grows to the
    /// nearest pixel: PaddleOCR-VL's rule.
    RaisedOneByOne,
}

impl SmallSides {
    /// Width and height for the choice of a size.
    fn raised(self, width: f64, height: f64, factor: f64) -> (f64, f64) {
        match self {
            Self::RaisedTogether if width < factor || height < factor => {
                let scale = (factor / height).max(factor / width);
                ((width * scale).floor(), (height * scale).floor())
            }
            Self::RaisedOneByOne => {
                let (mut width, mut height) = (width, height);
                if height < factor {
                    (width, height) = ((width * factor / height).round_ties_even(), factor);
                }
                if width < factor {
                    (width, height) = (factor, (height * factor / width).round_ties_even());
                }
                (width, height)
            }
            _ => (width, height),
        }
    }
}

impl Sizes {
    /// These bounds with the upper one lowered to `pixels`.
    pub fn at_most(self, pixels: u64) -> Self {
        let frames = u64::from(self.frames);
        let least = u64::from(self.factor).pow(2) * frames;
        let max_pixels = self.max_pixels.min(pixels.saturating_mul(frames)).max(least);
        Self { min_pixels: self.min_pixels.min(max_pixels), max_pixels, ..self }
    }

    /// The size that an image gets. Source: `smart_resize`, transformers,
    /// models/qwen2_vl, models/glm4v and models/paddleocr_vl.
    ///
    /// # Errors
    /// The sides differ by more than the allowed ratio.
    pub fn of(&self, size: Size) -> Result<Size, BadImage> {
        let Size { width, height } = size;
        let Self { factor, min_pixels, max_pixels, frames, small } = *self;
        let (f, frames) = (f64::from(factor), f64::from(frames));
        let (w, h) = small.raised(f64::from(width), f64::from(height), f);
        if w.max(h) / w.min(h) > MAX_RATIO {
            return Err(format!(
                "expected sides that differ at most {MAX_RATIO} times, found {width} x {height} pixels"
            ).into());
        }
        // Python's `round` goes to the even neighbour from the middle.
        let nearest = |side: f64| (side / f).round_ties_even() * f;
        let (wide, high) = (nearest(w), nearest(h));
        let (pixels, rounded) = (frames * w * h, frames * wide * high);
        let (wide, high) = if rounded > max_pixels as f64 {
            let beta = (pixels / max_pixels as f64).sqrt();
            let fits = |side: f64| f.max((side / beta / f).floor() * f);
            (fits(w), fits(h))
        } else if rounded < min_pixels as f64 {
            let beta = (min_pixels as f64 / pixels).sqrt();
            let fills = |side: f64| (side * beta / f).ceil() * f;
            (fills(w), fills(h))
        } else {
            (wide, high)
        };
        // The budget of pixels keeps the sides in the range of u32.
        Ok(Size { width: wide as u32, height: high as u32 })
    }
}

/// Weights of one source pixel after the other for each pixel of a row (or column) of the result.
#[derive(Debug)]
struct Weights {
    /// First source pixel, and where its weights begin and end in `all`.
    of: Vec<(usize, std::ops::Range<usize>)>,
    all: Vec<i32>,
}

impl Weights {
    fn new(from: u32, to: u32) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let filter_scale = scale.max(1.0);
        let (support, narrowed) = (SUPPORT * filter_scale, 1.0 / filter_scale);
        let (mut of, mut all) = (Vec::with_capacity(to as usize), Vec::new());
        let mut weights = Vec::new();
        for at in 0..to {
            let center = (f64::from(at) + 0.5) * scale;
            // The cast truncates, and gives 0 for negative numbers, as in the reference.
            let first = (center - support + 0.5) as u32;
            let last = ((center + support + 0.5) as u32).min(from);
            weights.clear();
            weights
                .extend((first..last).map(|x| bicubic((f64::from(x) - center + 0.5) * narrowed)));
            let sum: f64 = weights.iter().sum();
            let begin = all.len();
            let fixed = |weight: f64| {
                let scaled = (if sum == 0.0 { weight } else { weight / sum })
                    * f64::from(1u32 << PRECISION_BITS);
                (scaled + 0.5f64.copysign(scaled)) as i32
            };
            all.extend(weights.iter().map(|weight| fixed(*weight)));
            of.push((first as usize, begin..all.len()));
        }
        Self { of, all }
    }
}

/// The cubic convolution kernel of a = -0.5.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Half of the last place, so that cutting rounds.
const HALF: i32 = 1 << (PRECISION_BITS - 1);

fn byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Resizes an image of red, green and blue. `row` writes one row of the source. It is called for
/// rows in ascending order, and may skip some. `out` gets the rows of the result.
///
/// # Errors
/// The error of `out`.
pub fn resize(
    from: Size,
    to: Size,
    mut row: impl FnMut(u32, &mut [u8]),
    mut out: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let across = Weights::new(from.width, to.width);
    let down = Weights::new(from.height, to.height);
    let rows_first = rows_first(from, to);
    // What rows are mixed of: the source's, or already of the result's width.
    let mixed_bytes = if rows_first { from.width } else { to.width } as usize * 3;
    let mut source = vec![0; from.width as usize * 3];
    // Rows to mix, of which the first in line is row `first` of the source.
    let (mut lines, mut first, mut spare): (VecDeque<Vec<u8>>, usize, Vec<Vec<u8>>) =
        Default::default();
    let (mut sums, mut mixed) = (vec![0i32; mixed_bytes], vec![0; mixed_bytes]);
    let mut result = vec![0; to.width as usize * 3];
    for (first_row, weights) in &down.of {
        let weights = &down.all[weights.clone()];
        while first < *first_row {
            spare.extend(lines.pop_front());
            first += 1;
        }
        while lines.len() < weights.len() {
            let mut line = spare.pop().unwrap_or_else(|| vec![0; mixed_bytes]);
            // Below the image's height, which bounds `first_row` and the number of weights.
            let y = (first + lines.len()) as u32;
            if rows_first {
                row(y, &mut line);
            } else {
                row(y, &mut source);
                horizontally(&source, &across, &mut line);
            }
            lines.push_back(line);
        }
        sums.fill(HALF);
        for (line, weight) in lines.iter().zip(weights) {
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (value, sum) in mixed.iter_mut().zip(&sums) {
            *value = byte(*sum);
        }
        if rows_first {
            horizontally(&mixed, &across, &mut result);
            out(&result)?;
        } else {
            out(&mixed)?;
        }
    }
    Ok(())
}

/// Whether rows are mixed before columns: each pass rounds, so the order shows. As Pillow 13 does
/// it, found by comparing with it over thousands of sizes: where rows become fewer by more than
/// twice as many as columns do.
fn rows_first(from: Size, to: Size) -> bool {
    let fewer = |from: u32, to: u32| i64::from(from) - i64::from(to);
    to.height < from.height && fewer(from.height, to.height) > 2 * fewer(from.width, to.width)
}

fn horizontally(source: &[u8], across: &Weights, line: &mut [u8]) {
    let (pixels, _) = source.as_chunks::<3>();
    let (results, _) = line.as_chunks_mut::<3>();
    for (result, (from, weights)) in results.iter_mut().zip(&across.of) {
        let mut sums = [HALF; 3];
        for (pixel, weight) in pixels[*from..].iter().zip(&across.all[weights.clone()]) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*value) * weight;
            }
        }
        *result = sums.map(byte);
    }
}

#[cfg(test)]
mod tests;
