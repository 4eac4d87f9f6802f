//! The structure of an image file, read before a decoder gets it: type, size, animation,
//! completeness, and the memory that its decoder would take.
//!
//! Metadata is not passed on to the decoder: a colour profile of a megabyte may unpack to a
//! gigabyte, and no part of the service reads it. Nothing of the pixels is unpacked here.

mod gif;
mod jpeg;
mod png;
mod webp;

use std::borrow::Cow;

use image::metadata::Orientation;

use super::{BadImage, Size};

/// The type of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Portable Network Graphics.
    Png,
    /// JPEG, baseline or progressive.
    Jpeg,
    /// WebP, lossy or lossless.
    WebP,
    /// Graphics Interchange Format.
    Gif,
}

/// Header of an image file: type, size, orientation and memory for decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the file, from its first bytes.
    pub kind: Kind,
    /// Pixels from left to right as stored, before `orientation`.
    pub width: u32,
    /// Pixels from top to bottom as stored, before `orientation`.
    pub height: u32,
    /// How the stored image is to be turned.
    pub orientation: Orientation,
    /// Bytes that decoding takes, the decoder's own buffers and copies of the file included.
    pub decoding_bytes: u64,
}

impl Header {
    /// The size of the upright image.
    pub fn upright(&self) -> Size {
        match self.orientation {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => Size { width: self.height, height: self.width },
            Orientation::NoTransforms
            | Orientation::Rotate180
            | Orientation::FlipHorizontal
            | Orientation::FlipVertical => Size { width: self.width, height: self.height },
        }
    }
}

/// The refusal of a file that ends before its structure does.
const CUT: &str = "the file ends before the image does";

/// Reads a file's structure.
///
/// # Errors
/// The file has no served type, is animated, is cut off, or contradicts itself.
pub fn read(bytes: &[u8]) -> Result<Header, BadImage> {
    match bytes {
        [] => Err("the file is empty".into()),
        _ if bytes.starts_with(png::SIGNATURE) => png::read(bytes),
        [0xff, 0xd8, 0xff, ..] => jpeg::read(bytes),
        _ if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") => webp::read(bytes),
        _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => gif::read(bytes),
        _ => Err(format!("expected PNG, JPEG, WebP or GIF, found {}", guess(bytes)).into()),
    }
}

/// The file as its decoder gets it: without metadata that would cost memory.
pub fn for_decoder(kind: Kind, bytes: &[u8]) -> Cow<'_, [u8]> {
    match kind {
        Kind::Png => png::essential(bytes),
        // Their decoders do not read metadata unless the caller requests it.
        Kind::Jpeg | Kind::WebP | Kind::Gif => Cow::Borrowed(bytes),
    }
}

/// A known type that is not served, for the message.
fn guess(bytes: &[u8]) -> &'static str {
    let head = &bytes[..bytes.len().min(512)];
    let begins =
        |word: &[u8]| head.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let has =
        |word: &[u8]| head.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word));
    if has(b"<svg") {
        "SVG, which is a program and not pixels; convert it"
    } else if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") {
        "a document of text"
    } else if begins(b"%PDF") {
        "PDF"
    } else if begins(b"BM") {
        "BMP"
    } else if begins(b"II*\0") || begins(b"MM\0*") {
        "TIFF"
    } else if head.get(4..8) == Some(b"ftyp") {
        "HEIC, AVIF or video; convert it"
    } else if begins(&[0x1f, 0x8b]) || begins(b"PK\x03\x04") {
        "a packed file"
    } else {
        "another file, or none"
    }
}

/// Bytes of an image's pixels.
fn area(width: u32, height: u32, bytes_of_pixel: u64) -> u64 {
    u64::from(width).saturating_mul(u64::from(height)).saturating_mul(bytes_of_pixel)
}

/// The orientation in an Exif block, with or without its heading.
fn exif(block: &[u8]) -> Option<Orientation> {
    Orientation::from_exif_chunk(block.strip_prefix(b"Exif\0\0").unwrap_or(block))
}

/// Reads forward through bytes.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BadImage> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadImage> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(CUT)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, BadImage> {
        self.array::<1>().map(|[byte]| byte)
    }
}

#[cfg(test)]
mod tests;
