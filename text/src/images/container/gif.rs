//! GIF (89a): a screen, and blocks on it: extensions and frames.

use image::metadata::Orientation;

use super::super::BadImage;
use super::{Cursor, Header, Kind, area};

pub(super) fn read(bytes: &[u8]) -> Result<Header, BadImage> {
    let mut cursor = Cursor { rest: &bytes[6..] };
    let mut side = || cursor.array().map(|bytes| u32::from(u16::from_le_bytes(bytes)));
    let (width, height) = (side()?, side()?);
    let [flags, _, _] = cursor.array()?;
    palette(&mut cursor, flags)?;
    let mut frame: Option<Frame> = None;
    loop {
        match cursor.byte()? {
            0x3b => break,
            0x21 => {
                cursor.take(1)?;
                blocks(&mut cursor)?;
            }
            0x2c => {
                if frame.is_some() {
                    return Err(
                        "the GIF is animated; one still image is expected, so that none of its frames is lost".into()
                    );
                }
                let [x0, x1, y0, y1, w0, w1, h0, h1, flags] = cursor.array()?;
                let number = |low, high| u32::from(u16::from_le_bytes([low, high]));
                frame = Some(Frame {
                    left: number(x0, x1),
                    top: number(y0, y1),
                    width: number(w0, w1),
                    height: number(h0, h1),
                });
                palette(&mut cursor, flags)?;
                cursor.take(1)?;
                blocks(&mut cursor)?;
            }
            other => return Err(format!("a GIF with a block of unknown type {other:#04x}").into()),
        }
    }
    let frame = frame.ok_or("a GIF without an image")?;
    // A frame that does not span the screen is unpacked beside it.
    let spans = frame.left == 0 && frame.width == width && frame.top + frame.height <= height;
    let beside = if spans { 0 } else { area(frame.width, frame.height, 4) };
    let decoding_bytes = area(width, height, 4).saturating_add(beside);
    Ok(Header {
        kind: Kind::Gif,
        width,
        height,
        orientation: Orientation::NoTransforms,
        decoding_bytes,
    })
}

struct Frame {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
}

/// Passes over a table of colours, if the flags say that there is one.
fn palette(cursor: &mut Cursor<'_>, flags: u8) -> Result<(), BadImage> {
    let length = if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    cursor.take(length).map(|_| ())
}

/// Passes over blocks, each with its length before it, up to the empty one.
fn blocks(cursor: &mut Cursor<'_>) -> Result<(), BadImage> {
    loop {
        match cursor.byte()? {
            0 => return Ok(()),
            length => cursor.take(length.into())?,
        };
    }
}
