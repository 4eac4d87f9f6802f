//! WebP (RFC 9649): a RIFF file of chunks, with one bitstream `VP8 ` or `VP8L`, alone or after a
//! header `VP8X`.

use image::metadata::Orientation;

use super::super::BadImage;
use super::{CUT, Cursor, Header, Kind, area, exif};

const MOVES: &str =
    "the WebP is animated; one still image is expected, so that none of its frames is lost";

pub(super) fn read(bytes: &[u8]) -> Result<Header, BadImage> {
    let mut cursor = Cursor { rest: &bytes[4..] };
    let size = usize::try_from(u32::from_le_bytes(cursor.array()?)).map_err(|_| CUT)?;
    let mut cursor = Cursor { rest: cursor.take(size)? };
    cursor.take(4)?;
    let (mut canvas, mut stream, mut orientation) = (None, None, Orientation::NoTransforms);
    let mut alpha = false;
    while !cursor.rest.is_empty() {
        let kind: [u8; 4] = cursor.array()?;
        let length = usize::try_from(u32::from_le_bytes(cursor.array()?)).map_err(|_| CUT)?;
        let content = cursor.take(length)?;
        // Chunks begin at even places; the last may lack its filling.
        if length % 2 == 1 && !cursor.rest.is_empty() {
            cursor.take(1)?;
        }
        match &kind {
            b"VP8X" => {
                alpha |= content.first().is_some_and(|flags| flags & 0x10 != 0);
                canvas = Some(extended(content)?);
            }
            b"ANIM" | b"ANMF" => return Err(MOVES.into()),
            b"VP8 " | b"VP8L" if stream.is_some() => {
                return Err("a WebP with two images".into());
            }
            b"VP8 " => stream = Some((lossy(content)?, false)),
            b"VP8L" => stream = Some((lossless(content)?, true)),
            b"ALPH" => alpha = true,
            b"EXIF" => orientation = exif(content).unwrap_or(orientation),
            _ => {}
        }
    }
    let ((width, height), lossless) = stream.ok_or("a WebP without an image")?;
    // Its decoder would notice only when it has made room for the larger.
    if let Some((wide, high)) = canvas.filter(|canvas| *canvas != (width, height)) {
        return Err(format!(
            "a WebP of {wide} x {high} pixels by its header and {width} x {height} by its image"
        )
        .into());
    }
    // Pixels as they come out and as they go through: with transparency and without; or planes of
    // brightness and colour, and those of transparency, which are packed as an image of their own.
    let each = match (lossless, alpha) {
        (true, _) => 7,
        (false, false) => 5,
        (false, true) => 12,
    };
    let decoding_bytes = area(width.next_multiple_of(16), height.next_multiple_of(16), each);
    Ok(Header { kind: Kind::WebP, width, height, orientation, decoding_bytes })
}

fn extended(content: &[u8]) -> Result<(u32, u32), BadImage> {
    let mut cursor = Cursor { rest: content };
    let [flags, _, _, _] = cursor.array()?;
    if flags & 2 != 0 {
        return Err(MOVES.into());
    }
    let mut side = || cursor.array().map(|[a, b, c]: [u8; 3]| u32::from_le_bytes([a, b, c, 0]) + 1);
    Ok((side()?, side()?))
}

fn lossy(content: &[u8]) -> Result<(u32, u32), BadImage> {
    let mut cursor = Cursor { rest: content };
    let [tag, _, _, start @ ..]: [u8; 6] = cursor.array()?;
    if tag & 1 != 0 || start != [0x9d, 0x01, 0x2a] {
        return Err("a WebP that does not begin with a whole image".into());
    }
    let mut side = || cursor.array().map(|bytes| u32::from(u16::from_le_bytes(bytes) & 0x3fff));
    Ok((side()?, side()?))
}

fn lossless(content: &[u8]) -> Result<(u32, u32), BadImage> {
    let mut cursor = Cursor { rest: content };
    if cursor.byte()? != 0x2f {
        return Err("a lossless WebP without its signature".into());
    }
    let sizes = u32::from_le_bytes(cursor.array()?);
    Ok(((sizes & 0x3fff) + 1, (sizes >> 14 & 0x3fff) + 1))
}
