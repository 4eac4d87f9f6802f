//! A tower's patches: in which order they come, what they are made of, how heads rotate by their
//! places, and where they are in a Qwen's table of positions.
//!
//! Order: the merged rows' one after another, and inside each its own patches from the top, left to
//! right, so that the patches of one row of the prompt are neighbours. Source:
//! `image_processing_pil_qwen2_vl.py`, `vision_utils.py` in transformers 5.23.

use mlx_rs::Dtype;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::{ImagePixels, VisionInfo};
use crate::error::Result;
use crate::layers::RopeTables;

/// (row, column) of every patch of an image of `rows` by `columns` patches.
pub(super) fn order(rows: i32, columns: i32, merge: i32) -> Vec<(i32, i32)> {
    let mut order = Vec::with_capacity((rows * columns) as usize);
    for top in (0..rows).step_by(merge as usize) {
        for left in (0..columns).step_by(merge as usize) {
            square(top, left, merge, &mut order);
        }
    }
    order
}

/// Appends (row, column) of the patches of a square with this corner.
pub(super) fn square(top: i32, left: i32, side: i32, places: &mut Vec<(i32, i32)>) {
    for row in top..top + side {
        places.extend((left..left + side).map(|column| (row, column)));
    }
}

/// Patches that are embedded at a time.
const EMBEDDED_AT_ONCE: usize = 1024;

/// The patches at these places, embedded part after part. Computed when this returns.
///
/// # Errors
/// Those of `embed`; MLX's own.
pub(super) fn in_parts(
    places: &[(i32, i32)],
    embed: impl Fn(&[(i32, i32)]) -> Result<Array>,
) -> Result<Array> {
    let mut parts = Vec::new();
    for places in places.chunks(EMBEDDED_AT_ONCE) {
        let part = embed(places)?;
        // Evaluated now, so that its inputs are freed before the next part is made.
        part.eval()?;
        parts.push(part);
    }
    let all = concatenate(&parts, 0)?;
    all.eval()?;
    Ok(all)
}

/// Rotations of heads of `dim` numbers by their patches' places: of a head's numbers a quarter rotates by
/// the row, a quarter by the column; and their partners. Angles and their tables in float32,
/// whatever the weights are.
///
/// # Errors
/// MLX's own.
pub(super) fn rotations(places: &[(i32, i32)], dim: i32, theta: f64) -> Result<RopeTables> {
    let quarter = (dim / 4) as usize;
    let frequencies: Vec<f32> =
        (0..quarter).map(|j| theta.powf(-(j as f64) / quarter as f64) as f32).collect();
    // Patches share their rows and columns.
    let most = places.iter().map(|(row, column)| row.max(column)).max().map_or(0, |most| most + 1);
    let known: Vec<(f32, f32)> = (0..most)
        .flat_map(|at| frequencies.iter().map(move |frequency| (at as f32 * frequency).sin_cos()))
        .map(|(sin, cos)| (cos, sin))
        .collect();
    RopeTables::new(places.len(), 2 * quarter, Dtype::Float32, |patch, i| {
        let (row, column) = places[patch];
        let at = if i < quarter { row } else { column };
        known[at as usize * quarter + i % quarter]
    })
}

/// Numbers of these patches, one patch after another, each as its pixels lie: from the top, left
/// to right, red green blue.
pub(super) fn patches(
    image: &ImagePixels<'_>,
    info: &VisionInfo,
    places: &[(i32, i32)],
) -> Vec<f32> {
    // What a byte becomes, by channel.
    let table: Vec<[f32; 3]> = (0..=u8::MAX)
        .map(|byte| {
            [0, 1, 2]
                .map(|channel| f32::from(byte).mul_add(image.scale[channel], image.bias[channel]))
        })
        .collect();
    let patch = info.patch as usize;
    let (line, width) = (patch * 3, image.columns as usize * patch * 3);
    let mut numbers = Vec::with_capacity(places.len() * patch * line);
    for (row, column) in places {
        let corner = *row as usize * patch * width + *column as usize * line;
        for y in 0..patch {
            let pixels = &image.pixels[corner + y * width..][..line];
            for pixel in pixels.as_chunks::<3>().0 {
                numbers
                    .extend([0, 1, 2].map(|channel| table[usize::from(pixel[channel])][channel]));
            }
        }
    }
    numbers
}

/// For each patch `TAPS` rows of a table, and the share of each.
#[derive(Debug, PartialEq)]
pub(super) struct Interpolation<const TAPS: usize> {
    /// Rows of the table, `TAPS` entries for each patch.
    pub(super) indices: Vec<i32>,
    /// Shares of these rows, `TAPS` entries for each patch.
    pub(super) shares: Vec<f32>,
}

impl<const TAPS: usize> Interpolation<TAPS> {
    /// Rows of `table` `[rows, width]`, mixed: `[patches, width]`.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn take(&self, table: &Array) -> Result<Array> {
        let (n, taps) = ((self.indices.len() / TAPS) as i32, TAPS as i32);
        let rows = table
            .take_axis(Array::from_slice(&self.indices, &[n * taps]), 0)?
            .reshape(&[n, taps, table.dim(1)])?;
        Ok(rows.multiply(Array::from_slice(&self.shares, &[n, taps, 1]))?.sum_axis(1, false)?)
    }
}

/// A square table of `side` · `side` rows, resampled between its corners to `rows` · `columns`.
pub(super) fn interpolation(
    places: &[(i32, i32)],
    rows: i32,
    columns: i32,
    side: i32,
) -> Interpolation<4> {
    resampled(
        places,
        |row| neighbours(row, rows, side),
        |column| neighbours(column, columns, side),
        side,
    )
}

/// A square table of `side` · `side` rows, resampled to `rows` · `columns`: rows of the table and
/// patches are squares, and the shares are by the distances of their centres. Beyond the centres at
/// the edge the table goes on as it is there. As `interpolate` of torch with `align_corners` off.
pub(super) fn between_centres(
    places: &[(i32, i32)],
    rows: i32,
    columns: i32,
    side: i32,
) -> Interpolation<4> {
    let at = |at: i32, size: i32| {
        let source = ((at as f32 + 0.5) * side as f32 / size as f32 - 0.5).max(0.0);
        shared(source, side)
    };
    resampled(places, |row| at(row, rows), |column| at(column, columns), side)
}

/// The `TAPS` rows around each place, by its `N` neighbours on both axes.
pub(super) fn resampled<const N: usize, const TAPS: usize>(
    places: &[(i32, i32)],
    on_rows: impl Fn(i32) -> [(i32, f32); N],
    on_columns: impl Fn(i32) -> [(i32, f32); N],
    side: i32,
) -> Interpolation<TAPS> {
    let count = places.len() * TAPS;
    let (mut indices, mut shares) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (row, column) in places {
        let (vertical, horizontal) = (on_rows(*row), on_columns(*column));
        for (row, of_row) in vertical {
            for (column, of_column) in horizontal {
                indices.push(row * side + column);
                shares.push(of_row * of_column);
            }
        }
    }
    Interpolation { indices, shares }
}

/// Place `at` of `size` on an axis of `side`: its two neighbours and their shares.
fn neighbours(at: i32, size: i32, side: i32) -> [(i32, f32); 2] {
    shared(at as f32 * (side - 1) as f32 / (size - 1).max(1) as f32, side)
}

/// The two neighbours of a place on an axis of `side`, and their shares.
fn shared(source: f32, side: i32) -> [(i32, f32); 2] {
    let (first, share) = (source.floor() as i32, source - source.floor());
    [(first.min(side - 1), 1.0 - share), ((first + 1).min(side - 1), share)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vision::ImageForm;

    #[test]
    fn patches_of_one_row_of_the_prompt_are_neighbours() {
        let expected = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)];
        assert_eq!(order(2, 4, 2), expected);
        assert_eq!(
            order(4, 2, 2)[4..],
            expected[..4].iter().map(|(row, column)| (row + 2, *column)).collect::<Vec<_>>()
        );
        assert_eq!(order(2, 2, 1), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_table_between_centres_goes_on_as_it_is_at_its_edges() {
        // Four patches over a table of two: the centres are at -1/4, 1/4, 3/4 and 5/4.
        let places: Vec<(i32, i32)> = (0..4).map(|column| (0, column)).collect();
        let found = between_centres(&places, 1, 4, 2);
        let shares: Vec<f32> = found.shares.chunks(4).map(|four| four[1] + four[3]).collect();
        assert_eq!(shares, [0.0, 0.25, 0.75, 0.25]);
        // The neighbours of the last one are the same column.
        assert_eq!(found.indices[12..], [1, 1, 3, 3]);
        // A table of the image's own size stays as it is.
        let same = between_centres(&order(3, 3, 1), 3, 3, 3);
        let whole: Vec<i32> = same.indices.chunks(4).map(|four| four[0]).collect();
        assert_eq!(whole, (0..9).collect::<Vec<_>>());
        assert!(same.shares.chunks(4).all(|four| four[0] == 1.0));
    }

    #[test]
    fn a_patch_is_its_pixels() {
        let info = VisionInfo {
            patch: 2,
            merge: 1,
            image_token: 0,
            blocks: 1,
            form: ImageForm::Grid,
            whole: false,
            most_rows: None,
        };
        // 2 x 4 pixels: pixel n is (3n, 3n + 1, 3n + 2).
        let pixels: Vec<u8> = (0..24).collect();
        let image = ImagePixels {
            pixels: &pixels,
            rows: 1,
            columns: 2,
            scale: [1.0, 2.0, 0.5],
            bias: [0.0, 1.0, -1.0],
        };
        let found = patches(&image, &info, &[(0, 1)]);
        let expected = [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23].map(|byte: u8| {
            let channel = usize::from(byte) % 3;
            f32::from(byte) * image.scale[channel] + image.bias[channel]
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn the_table_is_resampled_between_its_corners() {
        // The corners are the table's own, whatever the size.
        let places = order(3, 5, 1);
        let Interpolation { indices, shares } = interpolation(&places, 3, 5, 4);
        let at = |place: usize| -> Vec<(i32, f32)> {
            let all = indices[place * 4..][..4]
                .iter()
                .copied()
                .zip(shares[place * 4..][..4].iter().copied());
            all.filter(|(_, share)| *share > 0.0).collect()
        };
        assert_eq!(
            (at(0), at(4), at(10), at(14)),
            (vec![(0, 1.0)], vec![(3, 1.0)], vec![(12, 1.0)], vec![(15, 1.0)])
        );
        // The middle of 3 rows lies between rows 1 and 2 of 4, column 1 of 5 at 0.75.
        assert_eq!(at(6), [(4, 0.125), (5, 0.375), (8, 0.125), (9, 0.375)]);
        // One patch alone takes the table's first row, and none is beyond the table.
        assert_eq!(
            interpolation(&[(0, 0)], 1, 1, 4),
            Interpolation { indices: vec![0, 1, 4, 5], shares: vec![1.0, 0.0, 0.0, 0.0] }
        );
        assert!(indices.iter().all(|index| (0..16).contains(index)));
    }
}
