//! The rows of an image in a prompt, and the positions of a sequence's rows for rotary embedding.
//! Host integers only.
//!
//! Text counts on by one on all axes. Qwen2-VL (arXiv 2409.12191, section 2.1) counts an image less
//! than its rows, HunyuanOCR (`HunYuanVLModel.get_rope_index` in transformers) as many.

/// The rows that an image has in a prompt, and the axes on which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageForm {
    /// One row for each merged patch. The position of each row is its index in the sequence.
    Indexed,
    /// One row for each merged patch, on three axes: time, height and width.
    Grid,
    /// One row for each merged patch, one after each line of them, one before the first line and one
    /// after the last one. Four axes: index, width, height and number of the image.
    Lines,
}

impl ImageForm {
    /// Rows of an image with `lines` merged patches from top to bottom and `columns` from left to
    /// right.
    pub fn rows(self, lines: u32, columns: u32) -> u64 {
        let (lines, columns) = (u64::from(lines), u64::from(columns));
        match self {
            Self::Indexed | Self::Grid => lines * columns,
            Self::Lines => lines * (columns + 1) + 2,
        }
    }

    /// Number of axes.
    pub fn axes(self) -> usize {
        match self {
            Self::Indexed => 1,
            Self::Grid => 3,
            Self::Lines => 4,
        }
    }
}

/// Where an image lies in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlacement {
    /// Index of its first row in the sequence.
    pub first: i32,
    /// Rows of its merged grid.
    pub rows: i32,
    /// Columns of its merged grid.
    pub columns: i32,
    /// Its rows in the sequence.
    pub form: ImageForm,
}

impl ImagePlacement {
    /// Index after its last row.
    pub fn end(&self) -> i32 {
        self.first + self.form.rows(self.rows as u32, self.columns as u32) as i32
    }

    /// Whether the row at this index is one of its rows.
    pub fn has(&self, index: i32) -> bool {
        (self.first..self.end()).contains(&index)
    }

    /// How much less its rows advance the positions after it than as many rows of text would.
    fn saved(&self) -> i32 {
        match self.form {
            ImageForm::Indexed | ImageForm::Lines => 0,
            ImageForm::Grid => self.rows * self.columns - self.rows.max(self.columns),
        }
    }

    /// Positions of the row at `index` of the sequence. `lag`: how much smaller positions are than
    /// indices there. `number`: images before this one. Axes that the form has not repeat the last.
    fn at(&self, index: i32, lag: i32, number: i32) -> [i32; MOST_AXES] {
        let (begin, inside) = (self.first - lag, index - self.first);
        let plain = [index - lag; MOST_AXES];
        match self.form {
            ImageForm::Indexed => plain,
            ImageForm::Grid => {
                let (height, width) =
                    (begin + inside / self.columns, begin + inside % self.columns);
                [begin, height, width, width]
            }
            ImageForm::Lines if index == self.first || index + 1 == self.end() => plain,
            ImageForm::Lines => {
                let (line, column) =
                    ((inside - 1) / (self.columns + 1), (inside - 1) % (self.columns + 1));
                [index - lag, column, line, number]
            }
        }
    }
}

/// Most axes of a form.
const MOST_AXES: usize = 4;

/// Positions of the rows `start..start + length` of a sequence, appended to the axes. There are as
/// many axes as the form of the images has, at most four. `images` are all of the sequence,
/// ascending, none overlapping another.
///
/// A [`ImageForm::Grid`] that would begin at p has time p, height p + row and width p + column; what
/// follows it begins at p + the larger of its sides. The grid of [`ImageForm::Lines`] has its columns
/// and lines from 0 on as width and height, and the rows around the grid are as text.
pub fn positions(images: &[ImagePlacement], start: i32, length: i32, axes: &mut [Vec<i32>]) {
    let (mut lag, mut next) = (0, 0);
    for index in start..start + length {
        while next < images.len() && images[next].end() <= index {
            lag += images[next].saved();
            next += 1;
        }
        let at = match images.get(next).filter(|image| image.first <= index) {
            None => [index - lag; MOST_AXES],
            Some(image) => image.at(index, lag, next as i32),
        };
        axes.iter_mut().zip(at).for_each(|(axis, at)| axis.push(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(form: ImageForm, images: &[ImagePlacement], start: i32, length: i32) -> Vec<Vec<i32>> {
        let mut axes = vec![vec![]; form.axes()];
        positions(images, start, length, &mut axes);
        axes
    }

    fn image(form: ImageForm, first: i32, rows: i32, columns: i32) -> ImagePlacement {
        ImagePlacement { first, rows, columns, form }
    }

    #[test]
    fn text_advances_all_axes_by_one() {
        assert_eq!(of(ImageForm::Indexed, &[], 5, 3), [[5, 6, 7]].map(Vec::from));
        assert_eq!(of(ImageForm::Grid, &[], 5, 3), [[5, 6, 7]; 3].map(Vec::from));
        assert_eq!(of(ImageForm::Lines, &[], 5, 3), [[5, 6, 7]; 4].map(Vec::from));
    }

    #[test]
    fn an_image_spans_its_grid_and_text_continues_after_its_larger_side() {
        let found = of(ImageForm::Grid, &[image(ImageForm::Grid, 2, 2, 3)], 0, 10);
        let [time, height, width] = found.try_into().expect("three axes");
        assert_eq!(time, [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]);
        assert_eq!(height, [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]);
        assert_eq!(width, [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn an_image_without_axes_is_counted_as_text() {
        let images = [image(ImageForm::Indexed, 1, 2, 2)];
        assert_eq!(of(ImageForm::Indexed, &images, 0, 7), [[0, 1, 2, 3, 4, 5, 6]].map(Vec::from));
    }

    #[test]
    fn lines_of_an_image_end_in_a_column_of_their_own_and_advance_the_index() {
        let images = [image(ImageForm::Lines, 1, 1, 2), image(ImageForm::Lines, 6, 2, 1)];
        assert_eq!(images.map(|image| image.end()), [6, 12]);
        let found = of(ImageForm::Lines, &images, 0, 13);
        let [index, width, height, number] = found.try_into().expect("four axes");
        assert_eq!(index, (0..13).collect::<Vec<_>>());
        assert_eq!(width, [0, 1, 0, 1, 2, 5, 6, 0, 1, 0, 1, 11, 12]);
        assert_eq!(height, [0, 1, 0, 0, 0, 5, 6, 0, 0, 1, 1, 11, 12]);
        assert_eq!(number, [0, 1, 0, 0, 0, 5, 6, 1, 1, 1, 1, 11, 12]);
    }

    #[test]
    fn positions_of_a_part_equal_that_part_of_the_whole() {
        for form in [ImageForm::Indexed, ImageForm::Grid, ImageForm::Lines] {
            let images = [image(form, 1, 3, 1), image(form, 10, 2, 2), image(form, 24, 1, 2)];
            let whole = of(form, &images, 0, 34);
            for start in 0..34 {
                for length in 0..34 - start {
                    let part = of(form, &images, start, length);
                    for (part, whole) in part.iter().zip(&whole) {
                        assert_eq!(*part, whole[start as usize..(start + length) as usize]);
                    }
                }
            }
        }
    }
}
