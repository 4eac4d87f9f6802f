//! Samples for tests: the demo model, an image processor, and answers of each family.

pub mod answers;

use std::path::{Path, PathBuf};

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::images::resize::{SizeRule, Sizes, SmallSides};
use crate::images::{ImageProcessor, ImageTokens};
use crate::prompt::{Infill, Language, Tokens};

/// The directory of the demo model.
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
}

/// The text side of the demo model.
///
/// # Panics
/// A file of the demo model cannot be used.
pub fn language() -> Language {
    Language::read(&dir()).expect("the demo model is in the repository")
}

/// How a model whose tokenizer has these added tokens, from id 0 on, fills in the middle.
///
/// # Panics
/// There is no token.
pub fn infill(added: &[&str]) -> Option<Infill> {
    let mut tokenizer = Tokenizer::new(WordLevel::default());
    let added = added.iter().map(|text| AddedToken::from(*text, false));
    tokenizer.add_tokens(added).expect("few tokens");
    Infill::of(&Tokens::new(tokenizer).expect("a vocabulary"))
}

/// The image processor of a demo model with vision.
pub fn processor() -> ImageProcessor {
    ImageProcessor {
        sizes: SizeRule::Within(Sizes {
            factor: 32,
            min_pixels: 1024,
            max_pixels: 16_384,
            frames: 1,
            small: SmallSides::AsTheyAre,
        }),
        patch: 16,
        merge: 2,
        tokens: ImageTokens::Squares,
        scale: [1.0 / 127.5; 3],
        bias: [-1.0; 3],
        token: 77,
        marks: None,
    }
}
