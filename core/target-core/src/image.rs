//! Images of a sequence as the core knows them: a key, and the rows that they take. The shell has
//! the pixels and the features.

use sha2::{Digest as _, Sha256};

/// Key of an image within a cache scope: a hash of the scope and of the image's content. It has 256
/// bits, as a page's key: a client that could make two keys equal could read another client's
/// image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageKey(pub [u8; 32]);

impl ImageKey {
    /// The key of an image with this digest. Two scopes never share a key (I9).
    pub fn new(scope: &str, digest: &[u8; 32]) -> Self {
        // The digest has a fixed length and comes first, so two pairs never give the same bytes.
        Self(
            Sha256::new()
                .chain_update(b"paceline image")
                .chain_update(digest)
                .chain_update(scope)
                .finalize()
                .into(),
        )
    }
}

/// An image in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Key of the image.
    pub key: ImageKey,
    /// Place of its first row in the ids.
    pub first: usize,
    /// Rows of the prompt.
    pub rows: usize,
    /// Merged patches from top to bottom.
    pub grid_rows: usize,
    /// Merged patches from left to right.
    pub grid_columns: usize,
    /// Patches that the tower computes.
    pub patches: u32,
}

impl Image {
    /// Place after its last row.
    pub fn end(&self) -> usize {
        self.first + self.rows
    }

    /// Whether a sequence that ends before `place` has a part of the image.
    pub fn is_cut_at(&self, place: usize) -> bool {
        self.first < place && place < self.end()
    }
}

/// The largest place, at most `place`, at which no image is cut.
pub fn uncut(images: &[Image], place: usize) -> usize {
    images.iter().find(|image| image.is_cut_at(place)).map_or(place, |image| image.first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_and_content_has_its_own_key() {
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
    fn a_cut_moves_back_to_the_start_of_the_image() {
        let image = |first, grid_rows, grid_columns| Image {
            key: ImageKey([0; 32]),
            first,
            rows: grid_rows * grid_columns,
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
