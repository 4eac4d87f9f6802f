//! Pictures of a sequence, as numbers: which they are and which rows they take. Pixels and features
//! are the shell's.

use sha2::{Digest as _, Sha256};

/// Name of a picture within a cache scope: a hash of the scope and of the picture's content. 256
/// bits, as of a page: who could make two of them equal could read what is in another's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageKey(pub [u8; 32]);

impl ImageKey {
    /// Of a picture with this digest; scopes never share one (I9).
    pub fn new(scope: &str, digest: &[u8; 32]) -> Self {
        // The digest comes first: it has one length, so that no two pairs are written alike.
        Self(
            Sha256::new()
                .chain_update(b"paceline picture")
                .chain_update(digest)
                .chain_update(scope)
                .finalize()
                .into(),
        )
    }
}

/// A picture in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Which.
    pub key: ImageKey,
    /// Place of its first row in the ids.
    pub first: usize,
    /// Rows of the prompt from top to bottom.
    pub grid_rows: usize,
    /// Rows of the prompt from left to right.
    pub grid_columns: usize,
    /// Patches the tower goes through.
    pub patches: u32,
}

impl Image {
    /// Rows of the prompt.
    pub fn rows(&self) -> usize {
        self.grid_rows * self.grid_columns
    }

    /// Place behind its last row.
    pub fn end(&self) -> usize {
        self.first + self.rows()
    }

    /// Whether a sequence that ends before `place` would have a part of it and not all.
    pub fn is_cut_at(&self, place: usize) -> bool {
        self.first < place && place < self.end()
    }
}

/// The largest place, at most `place`, before which no picture is cut.
pub fn uncut(images: &[Image], place: usize) -> usize {
    images.iter().find(|image| image.is_cut_at(place)).map_or(place, |image| image.first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_contents_have_names_of_their_own() {
        let [a, b] = [[1; 32], [2; 32]];
        let keys = [
            ImageKey::new("", &a),
            ImageKey::new("", &b),
            ImageKey::new("x", &a),
            ImageKey::new("x", &b),
        ];
        assert_eq!(ImageKey::new("x", &a), keys[2]);
        assert!((0..4).all(|one| (0..one).all(|other| keys[one] != keys[other])));
    }

    #[test]
    fn a_cut_goes_back_to_where_the_picture_begins() {
        let image = |first, grid_rows, grid_columns| Image {
            key: ImageKey([0; 32]),
            first,
            grid_rows,
            grid_columns,
            patches: 1,
        };
        let images = [image(10, 2, 5), image(20, 1, 4)];
        let found: Vec<_> =
            [5, 10, 11, 19, 20, 21, 24, 30].iter().map(|place| uncut(&images, *place)).collect();
        assert_eq!(found, [5, 10, 10, 10, 20, 20, 24, 30]);
    }
}
