//! Positions of the rows of a sequence with images, for rotary embedding on three axes: time,
//! height and width. Qwen2-VL (arXiv 2409.12191), section 2.1. Host integers only.

/// Where an image lies in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlacement {
    /// Index of its first row in the sequence.
    pub first: i32,
    /// Rows of its merged grid.
    pub rows: i32,
    /// Columns of its merged grid.
    pub columns: i32,
}

impl ImagePlacement {
    /// Index after its last row.
    pub fn end(&self) -> i32 {
        self.first + self.rows * self.columns
    }

    /// Whether the row at this index is one of its rows.
    pub fn has(&self, index: i32) -> bool {
        (self.first..self.end()).contains(&index)
    }

    /// How much less its rows advance the positions after it than as many rows of text would.
    fn saved(&self) -> i32 {
        self.rows * self.columns - self.rows.max(self.columns)
    }
}

/// Positions of the rows `start..start + length` of a sequence, appended to the three axes.
/// `images` are all of the sequence, ascending, none overlapping another.
///
/// Text counts on by one on all axes. An image that would begin at p has time p, height p + row
/// and width p + column; what follows it begins at p + the larger of its sides.
pub fn positions(images: &[ImagePlacement], start: i32, length: i32, axes: &mut [Vec<i32>; 3]) {
    // How much smaller positions are than indices.
    let (mut lag, mut next) = (0, 0);
    for index in start..start + length {
        while next < images.len() && images[next].end() <= index {
            lag += images[next].saved();
            next += 1;
        }
        let at = match images.get(next).filter(|image| image.first <= index) {
            None => [index - lag; 3],
            Some(image) => {
                let (begin, inside) = (image.first - lag, index - image.first);
                [begin, begin + inside / image.columns, begin + inside % image.columns]
            }
        };
        axes.iter_mut().zip(at).for_each(|(axis, at)| axis.push(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(images: &[ImagePlacement], start: i32, length: i32) -> [Vec<i32>; 3] {
        let mut axes = Default::default();
        positions(images, start, length, &mut axes);
        axes
    }

    #[test]
    fn text_advances_all_axes_by_one() {
        assert_eq!(of(&[], 5, 3), [[5, 6, 7]; 3].map(Vec::from));
    }

    #[test]
    fn an_image_spans_its_grid_and_text_continues_after_its_larger_side() {
        let images = [ImagePlacement { first: 2, rows: 2, columns: 3 }];
        let [time, height, width] = of(&images, 0, 10);
        assert_eq!(time, [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]);
        assert_eq!(height, [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]);
        assert_eq!(width, [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn positions_of_a_part_equal_that_part_of_the_whole() {
        let images = [
            ImagePlacement { first: 1, rows: 3, columns: 1 },
            ImagePlacement { first: 4, rows: 2, columns: 2 },
            ImagePlacement { first: 12, rows: 1, columns: 2 },
        ];
        let whole = of(&images, 0, 20);
        for start in 0..20 {
            for length in 0..20 - start {
                let part = of(&images, start, length);
                for (part, whole) in part.iter().zip(&whole) {
                    assert_eq!(*part, whole[start as usize..(start + length) as usize]);
                }
            }
        }
    }
}
