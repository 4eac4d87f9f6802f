//! Puts a quantized matrix into the order that products of integers read: tiles of 16 rows, in place.

use super::{QuantizedFormat, run_bytes};
use crate::kernel::RUN;
use crate::kernel::integer::{LINE, Plane, TILE, UNIT, planes};
use crate::pool;

/// Scales or biases that are arranged, by the size of their numbers.
#[derive(Debug)]
pub enum FactorsMut<'a> {
    /// Floats of 32 bits.
    Words(&'a mut [f32]),
    /// Floats of 16 bits, of either kind.
    Halves(&'a mut [u16]),
    /// Runs of a float16 and bytes.
    Scaled(&'a mut [u8]),
}

/// Whether a matrix of as many rows can be arranged: they must be whole tiles. Matrices of several
/// experts are one matrix, if those of an expert can be.
pub fn can_be(rows: usize) -> bool {
    rows > 0 && rows.is_multiple_of(TILE)
}

/// Arranges all parts of a matrix of rows of `inputs` numbers, as
/// [`QuantizedMatrix::new`](super::QuantizedMatrix::new) takes them. It must not be arranged yet.
///
/// # Panics
/// There are no kernels for the format, or the parts are not as many numbers as whole tiles of such
/// rows have.
pub fn arrange(
    packed: &mut [u32],
    factors: [FactorsMut<'_>; 2],
    format: QuantizedFormat,
    inputs: usize,
) {
    let [words, groups] = sizes(packed, format, inputs);
    for factors in factors {
        match factors {
            FactorsMut::Words(numbers) => transpose(numbers, TILE, groups),
            FactorsMut::Halves(numbers) => transpose(numbers, TILE, groups),
            FactorsMut::Scaled(bytes) => arrange_runs(bytes, format.group, inputs),
        }
    }
    // A tile has as many bytes as its rows had.
    pool::for_each_part(packed, TILE * words, |tile| match format.bits {
        2 => arrange_tile::<2>(tile, words),
        3 => arrange_tile::<3>(tile, words),
        4 => arrange_tile::<4>(tile, words),
        5 => arrange_tile::<5>(tile, words),
        6 => arrange_tile::<6>(tile, words),
        _ => arrange_tile::<8>(tile, words),
    });
}

/// The opposite of [`arrange`].
///
/// # Panics
/// As [`arrange`]'s.
pub fn restore(
    packed: &mut [u32],
    factors: [FactorsMut<'_>; 2],
    format: QuantizedFormat,
    inputs: usize,
) {
    let [words, groups] = sizes(packed, format, inputs);
    let bits = format.bits;
    let arranged = packed.to_vec();
    packed.fill(0);
    for (row, to) in packed.chunks_exact_mut(words).enumerate() {
        for at in 0..inputs {
            let number = u64::from(number(&arranged, bits, inputs, row, at)) << (at * bits % 32);
            to[at * bits / 32] |= number as u32;
            if number >> 32 > 0 {
                to[at * bits / 32 + 1] |= (number >> 32) as u32;
            }
        }
    }
    // A transposed tile has as many rows as a row has groups.
    for factors in factors {
        match factors {
            FactorsMut::Words(numbers) => transpose(numbers, groups, TILE),
            FactorsMut::Halves(numbers) => transpose(numbers, groups, TILE),
            FactorsMut::Scaled(bytes) => restore_runs(bytes, format.group, inputs),
        }
    }
}

/// Puts the runs of each tile's rows side by side: the floats of all rows first, then byte for byte.
fn arrange_runs(bytes: &mut [u8], group: usize, inputs: usize) {
    let (length, runs) = (run_bytes(group), inputs / RUN);
    for tile in bytes.chunks_exact_mut(TILE * runs * length) {
        let stored = tile.to_vec();
        for (at, run) in stored.chunks_exact(length).enumerate() {
            let (row, to) = (at / runs, &mut tile[at % runs * TILE * length..]);
            to[2 * row..][..2].copy_from_slice(&run[..2]);
            let codes = run[2..].iter().enumerate();
            codes.for_each(|(at, code)| to[(2 + at) * TILE + row] = *code);
        }
    }
}

/// The opposite of [`arrange_runs`].
fn restore_runs(bytes: &mut [u8], group: usize, inputs: usize) {
    let (length, runs) = (run_bytes(group), inputs / RUN);
    for tile in bytes.chunks_exact_mut(TILE * runs * length) {
        let arranged = tile.to_vec();
        for (at, run) in tile.chunks_exact_mut(length).enumerate() {
            let (row, from) = (at / runs, &arranged[at % runs * TILE * length..]);
            run[..2].copy_from_slice(&from[2 * row..][..2]);
            let codes = run[2..].iter_mut().enumerate();
            codes.for_each(|(at, code)| *code = from[(2 + at) * TILE + row]);
        }
    }
}

/// Words and groups of a row.
///
/// # Panics
/// [`arrange`]'s.
fn sizes(packed: &[u32], format: QuantizedFormat, inputs: usize) -> [usize; 2] {
    let QuantizedFormat { bits, group } = format;
    assert!(
        format.is_known() && inputs > 0 && inputs.is_multiple_of(group),
        "expected a known format and whole groups, found {format:?} and {inputs} inputs"
    );
    let words = inputs / 32 * bits;
    let rows = packed.len() / words;
    assert!(
        can_be(rows) && packed.len() == rows * words,
        "expected whole tiles of rows of {words} words, found {} words",
        packed.len()
    );
    [words, inputs / group]
}

/// Transposes each of the matrices of `rows` rows of `columns` numbers that lie one after another.
fn transpose<T: Copy>(numbers: &mut [T], rows: usize, columns: usize) {
    assert!(
        numbers.len().is_multiple_of(rows * columns),
        "expected matrices of {rows} x {columns} factors, found {} factors",
        numbers.len()
    );
    for matrix in numbers.chunks_exact_mut(rows * columns) {
        let stored = matrix.to_vec();
        for (column, to) in matrix.chunks_exact_mut(rows).enumerate() {
            to.iter_mut().enumerate().for_each(|(row, to)| *to = stored[row * columns + column]);
        }
    }
}

/// The four numbers of a step of BITS words, one in each byte, the first one in the lowest.
fn four<const BITS: usize>(words: &[u32; BITS], step: usize) -> u32 {
    let bit = 4 * BITS * step;
    let next = words.get(bit / 32 + 1).copied().unwrap_or(0);
    let two = (u64::from(words[bit / 32]) | u64::from(next) << 32) >> (bit % 32);
    let mask = (1u64 << BITS) - 1;
    (0..4).fold(0, |four, at| four | ((two >> (at * BITS) & mask) as u32) << (8 * at))
}

/// Arranges the rows of one tile.
fn arrange_tile<const BITS: usize>(tile: &mut [u32], words: usize) {
    let stored = tile.to_vec();
    for (unit, to) in tile.chunks_exact_mut(TILE * BITS).enumerate() {
        // A line is a word for each row.
        let mut lines = [[0u32; TILE]; BITS];
        for (row, of_row) in stored.chunks_exact(words).enumerate() {
            let Some(of_unit) = of_row[unit * BITS..].first_chunk::<BITS>() else { continue };
            for step in 0..UNIT / 4 {
                let numbers = four(of_unit, step);
                for plane in planes(BITS).into_iter().filter(|plane| plane.width > 0) {
                    // The same bits of all four bytes.
                    let mask = ((1u32 << plane.width) - 1) * 0x0101_0101;
                    let (line, place) = plane.place(step);
                    lines[line][row] |= (numbers >> plane.shift & mask) << place;
                }
            }
        }
        for (to, word) in to.iter_mut().zip(lines.as_flattened()) {
            // The first number of the four is in the first byte.
            *to = u32::from_ne_bytes(word.to_le_bytes());
        }
    }
}

/// Number `at` of row `row` of arranged words.
pub(super) fn number(packed: &[u32], bits: usize, inputs: usize, row: usize, at: usize) -> u8 {
    let unit = (row / TILE * (inputs / UNIT) + at / UNIT) * bits * LINE;
    let (step, byte) = (at % UNIT / 4, row % TILE * 4 + at % 4);
    let of = |plane: Plane| {
        let (line, place) = plane.place(step);
        let at = unit + line * LINE + byte;
        let byte = packed[at / 4].to_ne_bytes()[at % 4];
        (byte >> place & ((1u32 << plane.width) - 1) as u8) << plane.shift
    };
    let [first, second] = planes(bits);
    of(first) | if second.width > 0 { of(second) } else { 0 }
}
