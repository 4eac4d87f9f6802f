//! Images for the benchmark. Each is different, so that no cache has anything of it; all of one
//! size cost the same. They are slopes of colour with some noise, like photographs: flat images
//! would be decoded in no time. Pure.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};

/// Largest noise on each channel, up or down.
const NOISE: i32 = 6;

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
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

/// An image that cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[error("cannot make an image of {size} as PNG")]
pub struct PaintError {
    size: Size,
    #[source]
    cause: image::ImageError,
}

/// The image of this number, as a PNG file.
///
/// # Errors
/// The encoder's.
pub fn paint(size: Size, number: u64) -> Result<Vec<u8>, PaintError> {
    let mut file = Vec::new();
    let encoder = PngEncoder::new(&mut file);
    let written = encoder.write_image(
        &pixels(size, number),
        size.width,
        size.height,
        ExtendedColorType::Rgb8,
    );
    written.map_err(|cause| PaintError { size, cause })?;
    Ok(file)
}

fn pixels(size: Size, number: u64) -> Vec<u8> {
    let mut draws = Draws(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // Start of each channel's slope, and its steepness to the right and down.
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

/// Marsaglia's xorshift: the same numbers everywhere.
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
        let file = paint(SIZE, 7).expect("made");
        assert_eq!(file, paint(SIZE, 7).expect("made"));
        assert_ne!(pixels(SIZE, 7), pixels(SIZE, 8));
        let read = image::load_from_memory(&file).expect("a picture").into_rgb8();
        assert_eq!((read.width(), read.height(), read.as_raw()), (40, 24, &pixels(SIZE, 7)));
    }

    #[test]
    fn painted_images_do_not_compress_well() {
        // Noise is what unpacking takes time for.
        assert!(paint(SIZE, 7).expect("made").len() > 40 * 24, "a third of its bytes at least");
    }
}
