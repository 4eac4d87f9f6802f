//! Resampling of a table of positions by cubic polynomials of four rows and four columns, as torch's
//! `grid_sample` does with `bicubic`, `border` and `align_corners=False`.

use super::grid::{Interpolation, resampled};

/// Steepness of the polynomials: torch's.
const A: f32 = -0.75;

/// A square table of `side` · `side` rows, resampled to `rows` · `columns`. Centres of cells lie on
/// centres; beyond the table its outermost rows are repeated.
pub(super) fn shares(
    places: &[(i32, i32)],
    rows: i32,
    columns: i32,
    side: i32,
) -> Interpolation<16> {
    resampled(places, |row| taps(row, rows, side), |column| taps(column, columns, side), side)
}

/// Place `at` of `size` on an axis of `side`: its four neighbours and their shares.
fn taps(at: i32, size: i32, side: i32) -> [(i32, f32); 4] {
    // From -1 to 1 and back, in the reference's order of operations.
    let centred = (at as f32 + 0.5) / size as f32 * 2.0 - 1.0;
    let source = ((centred + 1.0) * side as f32 - 1.0) / 2.0;
    let (first, share) = (source.floor() as i32, source - source.floor());
    let tap = |index: i32, share: f32| ((first + index).clamp(0, side - 1), share);
    [
        tap(-1, far(share + 1.0)),
        tap(0, near(share)),
        tap(1, near(1.0 - share)),
        tap(2, far(2.0 - share)),
    ]
}

/// Share of a row at a distance up to 1.
fn near(x: f32) -> f32 {
    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
}

/// Share of a row at a distance from 1 to 2.
fn far(x: f32) -> f32 {
    ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_as_large_as_the_table_takes_its_rows() {
        let places: Vec<(i32, i32)> =
            (0..3).flat_map(|row| (0..3).map(move |c| (row, c))).collect();
        let Interpolation { indices, shares } = shares(&places, 3, 3, 3);
        for (at, (row, column)) in places.iter().enumerate() {
            let (indices, shares) = (&indices[at * 16..][..16], &shares[at * 16..][..16]);
            let own: f32 = indices
                .iter()
                .zip(shares)
                .filter(|(index, _)| **index == row * 3 + column)
                .map(|(_, share)| share)
                .sum();
            assert!((own - 1.0).abs() < 1e-6, "{row} {column}: {own}");
        }
    }

    #[test]
    fn half_a_cell_between_two_rows_takes_four_and_repeats_those_at_the_border() {
        // Two places on an axis of four: their centres lie at 0.5 and 2.5.
        let [first, second] = [0, 1].map(|at| taps(at, 2, 4));
        let (outer, inner) = (-0.09375, 0.59375);
        assert_eq!(first, [(0, outer), (0, inner), (1, inner), (2, outer)]);
        assert_eq!(second, [(1, outer), (2, inner), (3, inner), (3, outer)]);
        // The shares of any place are 1 in all.
        for (size, side) in [(1, 1), (1, 24), (7, 24), (100, 24), (4096, 2)] {
            for at in [0, size / 2, size - 1] {
                let taps = taps(at, size, side);
                let sum: f32 = taps.iter().map(|(_, share)| share).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{at} of {size}, {side}: {taps:?}");
                assert!(taps.iter().all(|(index, _)| (0..side).contains(index)));
            }
        }
    }
}
