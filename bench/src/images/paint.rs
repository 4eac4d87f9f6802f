//! Images for the benchmark. Each is different, so no cache has a part of it. Images of one size
//! cost the same. They are gradients with noise, like photographs, because flat images are decoded
//! much faster. Pure.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};

/// Largest difference that noise makes to a channel, in both directions.
const NOISE: i32 = 6;

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}

impl serde::Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Makes the image of this number as a PNG file. Equal numbers give equal files.
pub fn paint(size: Size, number: u64) -> Vec<u8> {
    let Size { width, height } = size;
    let mut file = Vec::new();
    let encoder = PngEncoder::new(&mut file);
    let written =
        encoder.write_image(&pixels(size, number), width, height, ExtendedColorType::Rgb8);
    written.expect("the pixels are of this size, and memory takes all bytes");
    file
}

fn pixels(size: Size, number: u64) -> Vec<u8> {
    let mut draws = Draws(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // For each channel: its value at the top left, and the growth of the value to the right and to
    // the bottom.
    let slopes: Vec<[i32; 3]> =
        (0..3).map(|_| [draws.next() & 127, draws.next() & 63, draws.next() & 63]).collect();
    let mut pixels = Vec::with_capacity(size.width as usize * size.height as usize * 3);
    for y in 0..size.height {
        for x in 0..size.width {
            let (x, y) = ((x * 256 / size.width) as i32, (y * 256 / size.height) as i32);
            for [base, right, down] in &slopes {
                let noise = draws.next().rem_euclid(2 * NOISE + 1) - NOISE;
                pixels.push((base + (x * right + y * down) / 256 + noise).clamp(0, 255) as u8);
            }
        }
    }
    pixels
}

/// Marsaglia's xorshift generator. It gives the same numbers on each machine.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> i32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { width: 40, height: 24 };

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
