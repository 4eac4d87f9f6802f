//! Images for the benchmark. Each is different, so no cache has a part of it. Images of one size
//! cost the same. They are gradients with noise, like photographs, because flat images are decoded
//! much faster. Pure.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};

use crate::random::below;

/// Largest difference that noise makes to a channel, in both directions.
const NOISE: i32 = 6;

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelSize {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

impl std::fmt::Display for PixelSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}

impl serde::Serialize for PixelSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Makes the image of this number as a PNG file. Equal numbers give equal files.
pub fn paint(size: PixelSize, number: u64) -> Vec<u8> {
    let PixelSize { width, height } = size;
    let mut file = Vec::new();
    let encoder = PngEncoder::new(&mut file);
    let written =
        encoder.write_image(&pixels(size, number), width, height, ExtendedColorType::Rgb8);
    written.expect("the pixels are of this size, and memory takes all bytes");
    file
}

fn pixels(size: PixelSize, number: u64) -> Vec<u8> {
    let mut state = number;
    let mut draw = |count| below(&mut state, count) as i32;
    // For each channel: its value at the top left, and the growth of the value to the right and to
    // the bottom.
    let slopes: Vec<[i32; 3]> = (0..3).map(|_| [draw(128), draw(64), draw(64)]).collect();
    let mut pixels = Vec::with_capacity(size.width as usize * size.height as usize * 3);
    for y in 0..size.height {
        for x in 0..size.width {
            let (x, y) = ((x * 256 / size.width) as i32, (y * 256 / size.height) as i32);
            for [base, right, down] in &slopes {
                let noise = draw(2 * NOISE as u32 + 1) - NOISE;
                pixels.push((base + (x * right + y * down) / 256 + noise).clamp(0, 255) as u8);
            }
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: PixelSize = PixelSize { width: 40, height: 24 };

    #[test]
    fn an_image_is_determined_by_its_number() {
        let file = paint(SIZE, 7);
        assert_eq!(file, paint(SIZE, 7));
        assert_ne!(pixels(SIZE, 7), pixels(SIZE, 8));
        let read = image::load_from_memory(&file).expect("an image").into_rgb8();
        assert_eq!((read.width(), read.height(), read.as_raw()), (40, 24, &pixels(SIZE, 7)));
    }

    #[test]
    fn painted_images_do_not_compress_well() {
        // An image that compresses well would be decoded too fast.
        assert!(paint(SIZE, 7).len() > 40 * 24, "a third of its bytes at least");
    }
}
