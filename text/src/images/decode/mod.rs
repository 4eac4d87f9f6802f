//! An image's pixels: decoded by the `image` crate within bounds, turned upright, on white where
//! they are transparent, with eight bits each of red, green and blue.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageError, ImageResult, Limits};

use super::container::{self, Header, Kind};
use super::{BadImage, Size};

/// Pixels of an image's side, at most.
const MAX_SIDE: u32 = 8192;

/// Bounds of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Pixels, at most.
    pub pixels: u64,
    /// Bytes that decoding may take, at most.
    pub bytes: u64,
}

/// Reads a file's structure without decoding it, and checks the bounds.
///
/// # Errors
/// A fault of the file, or the bound that it exceeds.
pub fn inspect(file: &[u8], bounds: Bounds) -> Result<Header, BadImage> {
    let header = container::read(file)?;
    let Header { width, height, .. } = header;
    if !(1..=MAX_SIDE).contains(&width) || !(1..=MAX_SIDE).contains(&height) {
        return Err(
            format!("expected sides of 1 to {MAX_SIDE} pixels, found {width} x {height}").into()
        );
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > bounds.pixels {
        let most = bounds.pixels;
        return Err(format!(
            "expected at most {most} pixels (limits.max_image_pixels), found {pixels} ({width} x {height})"
        ).into());
    }
    if header.decoding_bytes > bounds.bytes {
        let (most, found) = (bounds.bytes >> 20, header.decoding_bytes >> 20);
        return Err(format!(
            "expected an image that takes at most {most} MiB to decode, found one that takes {found} MiB; shrink it, or save it with fewer colours or without progression"
        ).into());
    }
    Ok(header)
}

/// A decoded image, as its file has it.
pub struct Pixels {
    data: Vec<u8>,
    color: ColorType,
    header: Header,
}

/// Decodes a file that [`inspect`] accepted.
///
/// # Errors
/// The file is broken.
pub fn decode(file: &[u8], header: &Header) -> Result<Pixels, BadImage> {
    let kept = container::for_decoder(header.kind, file);
    let reader = Cursor::new(&*kept);
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    // The bytes that were computed from the file, and a margin for the decoder's own tables.
    limits.max_alloc = Some(header.decoding_bytes.saturating_add(1 << 20));
    let unpacked = match header.kind {
        Kind::Png => {
            PngDecoder::with_limits(reader, limits).and_then(|decoder| unpack(decoder, header))
        }
        Kind::Jpeg => JpegDecoder::new(reader).and_then(|decoder| limited(decoder, limits, header)),
        Kind::WebP => WebPDecoder::new(reader).and_then(|decoder| limited(decoder, limits, header)),
        Kind::Gif => GifDecoder::new(reader).and_then(|decoder| limited(decoder, limits, header)),
    };
    unpacked.map_err(|error| broken(header.kind, &error).into())
}

fn limited(mut decoder: impl ImageDecoder, limits: Limits, header: &Header) -> ImageResult<Pixels> {
    decoder.set_limits(limits)?;
    unpack(decoder, header)
}

fn unpack(decoder: impl ImageDecoder, header: &Header) -> ImageResult<Pixels> {
    let ((width, height), color) = (decoder.dimensions(), decoder.color_type());
    // The bytes were computed from the file's structure. A decoder that reads it otherwise must
    // not go on.
    let length = decoder.total_bytes();
    if (width, height) != (header.width, header.height) || length > header.decoding_bytes {
        let limit =
            image::error::LimitError::from_kind(image::error::LimitErrorKind::DimensionError);
        return Err(ImageError::Limits(limit));
    }
    // Bounded above.
    let mut data = vec![0; length as usize];
    decoder.read_image(&mut data)?;
    Ok(Pixels { data, color, header: header.clone() })
}

/// The refusal of a file that its decoder cannot decode. The decoder's own message is left out,
/// because it may repeat bytes of the file.
fn broken(kind: Kind, error: &ImageError) -> String {
    let kind = match kind {
        Kind::Png => "PNG",
        Kind::Jpeg => "JPEG",
        Kind::WebP => "WebP",
        Kind::Gif => "GIF",
    };
    let why = match error {
        ImageError::Unsupported(_) => "it is of a kind that is not served",
        ImageError::Limits(_) => "it needs more room than its header says",
        _ => "its data is broken or cut off",
    };
    format!("expected a whole {kind}, found one that cannot be decoded: {why}")
}

impl Pixels {
    /// The size of the upright image.
    pub fn size(&self) -> Size {
        self.header.upright()
    }

    /// Writes row `y` of the upright image: red, green, blue for each column.
    pub fn row(&self, y: u32, line: &mut [u8]) {
        let (pixels, _) = line.as_chunks_mut::<3>();
        let (w, h) = (self.header.width as usize, self.header.height as usize);
        let y = y as usize;
        // Index of the row's first pixel, and the distance from one pixel to the next.
        let (start, step): (usize, isize) = match self.header.orientation {
            Orientation::NoTransforms => (y * w, 1),
            Orientation::FlipHorizontal => (y * w + w - 1, -1),
            Orientation::Rotate180 => ((h - 1 - y) * w + w - 1, -1),
            Orientation::FlipVertical => ((h - 1 - y) * w, 1),
            Orientation::Rotate90FlipH => (y, w as isize),
            Orientation::Rotate90 => ((h - 1) * w + y, -(w as isize)),
            Orientation::Rotate270FlipH => ((h - 1) * w + w - 1 - y, -(w as isize)),
            Orientation::Rotate270 => (w - 1 - y, w as isize),
        };
        let at = |x: usize| start.wrapping_add_signed(step * x as isize);
        if self.color == ColorType::Rgb8 && step == 1 {
            let row = &self.data[start * 3..][..pixels.len() * 3];
            pixels.as_flattened_mut().copy_from_slice(row);
            return;
        }
        let channels = usize::from(self.color.channel_count());
        let bytes_of_sample = usize::from(self.color.bytes_per_pixel()) / channels;
        for (x, pixel) in pixels.iter_mut().enumerate() {
            let found =
                &self.data[at(x) * channels * bytes_of_sample..][..channels * bytes_of_sample];
            let sample = |channel: usize| match bytes_of_sample {
                1 => found[channel],
                // The upper byte, as in the reference implementation.
                _ => (u16::from_ne_bytes([found[2 * channel], found[2 * channel + 1]]) >> 8) as u8,
            };
            *pixel = match channels {
                1 => [sample(0); 3],
                2 => [on_white(sample(0), sample(1)); 3],
                3 => [sample(0), sample(1), sample(2)],
                _ => [0, 1, 2].map(|channel| on_white(sample(channel), sample(3))),
            };
        }
    }
}

/// A transparent sample on white, rounded as in Pillow's `alpha_composite`.
fn on_white(sample: u8, alpha: u8) -> u8 {
    if alpha == 0 {
        return 255;
    }
    const BITS: u32 = 7;
    let (sample, alpha) = (u32::from(sample), u32::from(alpha));
    let sum = (sample * alpha + 255 * (255 - alpha) + 0x80) << BITS;
    ((((sum >> 8) + sum) >> 8) >> BITS) as u8
}

#[cfg(test)]
mod tests;
