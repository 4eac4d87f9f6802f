//! Windows of patches that attend to one another alone, as in some blocks of Qwen2.5-VL (arXiv
//! 2502.13923, section 2.1).
//!
//! The order of patches is free, because all that depends on a patch's place comes with the patch. In
//! the order of this module windows of one size lie one after another, so that they attend as one
//! batch and need no mask.

use super::grid::square;

/// Neighbouring windows of as many patches each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRun {
    pub(crate) windows: i32,
    /// Patches of each.
    pub(crate) patches: i32,
}

/// The patches of an image, window by window.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WindowedPatches {
    /// (row, column) of each patch. Those of one row of the prompt are neighbours.
    pub(super) places: Vec<(i32, i32)>,
    /// Windows, in the order of the patches.
    pub(super) runs: Vec<WindowRun>,
    /// For each row of the prompt where its patches lie, counted in rows of the prompt.
    pub(super) order: Vec<i32>,
}

impl WindowedPatches {
    /// Of an image of `rows` by `columns` patches, of which `merge` by `merge` become a row of the
    /// prompt. A window is `side` by `side` of these rows. Windows begin at the upper left. Those at
    /// the right and at the lower edge may be smaller.
    ///
    /// Source: `get_vision_window_index`, `vision_utils.py` in transformers 5.24.
    pub(super) fn new(rows: i32, columns: i32, merge: i32, side: i32) -> Self {
        let (high, wide) = (rows / merge, columns / merge);
        let mut made =
            Self { places: vec![], runs: vec![], order: vec![0; (high * wide) as usize] };
        let mut placed = 0;
        for (tops, height) in spans(high, side) {
            for (lefts, width) in spans(wide, side) {
                let windows = (tops.len() * lefts.len()) as i32;
                made.runs.push(WindowRun { windows, patches: height * width * merge * merge });
                for top in &tops {
                    for left in &lefts {
                        for row in *top..top + height {
                            for column in *left..left + width {
                                square(row * merge, column * merge, merge, &mut made.places);
                                made.order[(row * wide + column) as usize] = placed;
                                placed += 1;
                            }
                        }
                    }
                }
            }
        }
        made
    }
}

/// Parts of an axis of `size`: beginnings of those of the whole `side`, and of the shorter last one,
/// each with the length.
fn spans(size: i32, side: i32) -> Vec<(Vec<i32>, i32)> {
    let whole = size / side * side;
    let full: Vec<i32> = (0..whole).step_by(side as usize).collect();
    let mut spans = vec![];
    if !full.is_empty() {
        spans.push((full, side));
    }
    if whole < size {
        spans.push((vec![whole], size - whole));
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vision::grid;

    #[test]
    fn windows_of_one_size_are_neighbours_and_every_patch_is_in_one() {
        for (rows, columns, merge, side) in
            [(10, 14, 2, 2), (4, 4, 2, 4), (2, 2, 2, 1), (9, 5, 1, 3), (6, 18, 3, 2)]
        {
            let made = WindowedPatches::new(rows, columns, merge, side);
            let mut at = 0;
            for WindowRun { windows, patches } in &made.runs {
                for _ in 0..*windows {
                    let window = &made.places[at..at + *patches as usize];
                    let of =
                        |(row, column): &(i32, i32)| (row / merge / side, column / merge / side);
                    assert!(window.iter().all(|place| of(place) == of(&window[0])), "{window:?}");
                    at += *patches as usize;
                }
            }
            assert_eq!(at, made.places.len());
            // Rows of the prompt, put back by the order, are those of an image without windows.
            let squares: Vec<_> = made.places.chunks((merge * merge) as usize).collect();
            let back: Vec<_> =
                made.order.iter().flat_map(|at| squares[*at as usize]).copied().collect();
            assert_eq!(back, grid::order(rows, columns, merge), "{rows} x {columns}");
        }
    }

    #[test]
    fn smaller_windows_lie_at_the_right_and_at_the_lower_edge() {
        let made = WindowedPatches::new(6, 10, 2, 2);
        let run = |windows, patches| WindowRun { windows, patches };
        assert_eq!(made.runs, [run(2, 16), run(1, 8), run(2, 8), run(1, 4)]);
        assert_eq!(made.order[..6], [0, 1, 4, 5, 8, 2]);
    }
}
