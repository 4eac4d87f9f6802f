//! Whatever a client sends as an image is refused in words or becomes pixels of the size that its
//! prompt was made for. The same function and bounds as
//! `images::tests::changed_files_are_refused_or_served`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_text::images::decode::Bounds;
use paceline_text::images::resize::{SizeRule, Sizes, SmallSides};
use paceline_text::images::{ImageProcessor, ImageTokens, process};

fuzz_target!(|file: &[u8]| {
    let processor = ImageProcessor {
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
    };
    let bounds = Bounds { pixels: 1 << 20, bytes: 16 << 20 };
    match process(file, bounds, &processor) {
        Ok((grid, pixels)) => {
            assert_eq!(pixels.len(), (grid.rows * grid.columns * 16 * 16 * 3) as usize)
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
});
