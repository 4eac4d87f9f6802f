//! The largest number of a row, and whether a choice can be made of the row at all: one pass over
//! its numbers, then a search for the place. The loops are plain Rust over a fixed number of elements,
//! which the compiler turns into vector instructions.

use crate::pool::fill_rows;

/// Numbers that one turn of a loop handles: four vectors of the smallest vector unit, so that the
/// turns do not wait for one another.
const ELEMENTS: usize = 16;

/// Numbers that are compared before the search for a place may stop.
const SEARCHED: usize = 64;

/// Fills `out`, two numbers a row, for rows of `length`: the bits of the place of the row's largest
/// number, and the bits of 1 if the row is sound or of 0 if it is not. A row is sound if each of
/// its numbers is a number and the largest is finite; −∞ may stand beside finite numbers. Of equal
/// numbers the first place counts. The place is always below `length`, also of a row that is not
/// sound.
///
/// # Panics
/// A row is shorter.
pub fn largest<'a>(x: impl Fn(usize) -> &'a [f32] + Sync, length: usize, out: &mut [f32]) {
    fill_rows(out, 2, length, |row, out| {
        let (place, is_sound) = of(&x(row)[..length]);
        out.copy_from_slice(&[place as u32, u32::from(is_sound)].map(f32::from_bits));
    });
}

/// The place of the largest number, and whether the row is sound.
fn of(row: &[f32]) -> (usize, bool) {
    let mut most = [f32::NEG_INFINITY; ELEMENTS];
    let mut unsound = [0_u32; ELEMENTS];
    let chunks = row.chunks_exact(ELEMENTS);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (at, x) in chunk.iter().enumerate() {
            most[at] = if *x > most[at] { *x } else { most[at] };
            unsound[at] |= u32::from(is_unsound(*x));
        }
    }
    let most = most
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |most, x| if *x > most { *x } else { most });
    let is_sound = most > f32::NEG_INFINITY
        && unsound.iter().all(|unsound| *unsound == 0)
        && !rest.iter().any(|x| is_unsound(*x));
    (place_of(row, most), is_sound)
}

/// Whether a number is none, or +∞. Both compare as "not less than +∞".
#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "the negation is true for what is not a number"
)]
fn is_unsound(x: f32) -> bool {
    !(x < f32::INFINITY)
}

/// The first place of a number; 0 if it is nowhere, as in an empty row or one without a number.
fn place_of(row: &[f32], number: f32) -> usize {
    for (at, chunk) in row.chunks(SEARCHED).enumerate() {
        // Without an early exit inside the chunk, so that it is compared by vectors.
        if chunk.iter().fold(false, |found, x| found | (*x == number)) {
            let within = chunk.iter().position(|x| *x == number).unwrap_or(0);
            return at * SEARCHED + within;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest number by its definition, number by number.
    fn by_definition(row: &[f32]) -> (usize, bool) {
        let mut best: Option<usize> = None;
        for (at, x) in row.iter().enumerate() {
            if !x.is_nan() && best.is_none_or(|best| *x > row[best]) {
                best = Some(at);
            }
        }
        let finite = best.is_some_and(|best| row[best].is_finite());
        (best.unwrap_or(0), finite && !row.iter().any(|x| x.is_nan()))
    }

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            // Few different numbers, so that many are equal.
            (state % 97) as f32 - 50.0
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn the_first_of_the_largest_numbers_is_found_in_rows_of_any_length() {
        for length in 1..200 {
            let row = numbers(length, length as u32);
            assert_eq!(of(&row), by_definition(&row), "{length}: {row:?}");
        }
        assert_eq!(of(&[0.0, -0.0, 0.0]).0, 0);
        assert_eq!(of(&[-0.0, 0.0]).0, 0, "both zeros are equal");
        assert_eq!(of(&[]), (0, false));
    }

    #[test]
    fn a_number_that_is_none_or_infinitely_large_is_found_at_every_place() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in 0..83 {
                let mut row = numbers(83, 5);
                row[at] = bad;
                let (place, is_sound) = of(&row);
                assert!(!is_sound && place < row.len(), "{bad} at {at}: {place}");
            }
        }
        assert_eq!(of(&[f32::NAN; 40]), (0, false));
        assert_eq!(of(&[f32::NEG_INFINITY; 40]), (0, false));
    }

    #[test]
    fn a_banned_id_does_not_make_a_row_unsound() {
        for at in 0..40 {
            let mut row = vec![f32::NEG_INFINITY; 40];
            row[at] = -3.0e38;
            assert_eq!(of(&row), (at, true));
        }
        assert_eq!(of(&[f32::MAX, f32::MIN]), (0, true));
    }

    #[test]
    fn many_rows_are_given_out_and_each_has_its_own_verdict() {
        let (rows, length) = (40, 3000);
        let mut x: Vec<f32> = (0..rows).flat_map(|row| numbers(length, row as u32 + 1)).collect();
        x[7 * length + 2999] = f32::NAN;
        x[23 * length] = f32::INFINITY;
        let mut out = vec![0.0; 2 * rows];
        largest(|row| &x[row * length..], length, &mut out);
        for row in 0..rows {
            let expected = by_definition(&x[row * length..(row + 1) * length]);
            let found = (out[2 * row].to_bits() as usize, out[2 * row + 1].to_bits() == 1);
            assert_eq!(found.1, expected.1, "row {row}");
            assert!(!found.1 || found.0 == expected.0, "row {row}: {found:?} {expected:?}");
        }
    }
}
