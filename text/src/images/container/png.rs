//! PNG (W3C, third edition): a signature and chunks of length, type, content and checksum.

use std::borrow::Cow;
use std::io::Read as _;

use image::metadata::Orientation;

use super::super::BadImage;
use super::{CUT, Cursor, Header, Kind, area, exif};

pub(super) const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Chunks of the image itself. All others are text, profiles, times.
const ESSENTIAL: [&[u8; 4]; 5] = [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"];

/// Bytes that all packed metadata of a file may unpack to. Profiles of cameras and printers have at
/// most a few million; a file with more is made to fill a reader's memory.
const MAX_METADATA_BYTES: u64 = 8 << 20;

struct Chunk<'a> {
    kind: [u8; 4],
    content: &'a [u8],
    /// With length and checksum.
    whole: &'a [u8],
}

fn chunk<'a>(cursor: &mut Cursor<'a>) -> Result<Chunk<'a>, BadImage> {
    let from = cursor.rest;
    let length = u32::from_be_bytes(cursor.array()?);
    let kind = cursor.array()?;
    let length = usize::try_from(length).map_err(|_| CUT)?;
    let content = cursor.take(length)?;
    cursor.take(4)?;
    Ok(Chunk { kind, content, whole: &from[..length + 12] })
}

pub(super) fn read(bytes: &[u8]) -> Result<Header, BadImage> {
    let mut cursor = Cursor { rest: &bytes[SIGNATURE.len()..] };
    let first = chunk(&mut cursor)?;
    let (b"IHDR", Ok(header)) = (&first.kind, <&[u8; 13]>::try_from(first.content)) else {
        return Err("a PNG without its first chunk".into());
    };
    let &[w0, w1, w2, w3, h0, h1, h2, h3, depth, color, ..] = header;
    let (width, height) =
        (u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
    let (mut orientation, mut transparent, mut kept) = (Orientation::NoTransforms, false, 0u64);
    let mut metadata = 0;
    loop {
        let chunk = chunk(&mut cursor)?;
        match &chunk.kind {
            b"IEND" => break,
            b"acTL" | b"fcTL" | b"fdAT" => {
                return Err("the PNG is animated; one still image is expected, so that none of its frames is lost".into());
            }
            b"IHDR" => return Err("a PNG with two headers".into()),
            b"iCCP" | b"zTXt" | b"iTXt" => {
                metadata += unpacked_bytes(&chunk, MAX_METADATA_BYTES - metadata);
                if metadata >= MAX_METADATA_BYTES {
                    let kind = if &chunk.kind == b"iCCP" { "colour profile" } else { "text" };
                    let most = MAX_METADATA_BYTES >> 20;
                    return Err(format!(
                        "a PNG with a {kind} that unpacks to {most} MiB or more; save it without"
                    )
                    .into());
                }
            }
            b"tRNS" => transparent = true,
            b"eXIf" => orientation = exif(chunk.content).unwrap_or(orientation),
            _ => {}
        }
        if ESSENTIAL.contains(&&chunk.kind) {
            kept += chunk.whole.len() as u64;
        }
    }
    // Color types of the standard; palettes become red, green and blue.
    let channels = match color {
        0 => 1,
        4 => 2,
        2 | 3 => 3,
        6 => 4,
        _ => return Err(format!("a PNG of unknown color type {color}").into()),
    };
    let channels = channels + u64::from(transparent && matches!(color, 0 | 2 | 3));
    let pixels = area(width, height, channels * if depth == 16 { 2 } else { 1 });
    Ok(Header {
        kind: Kind::Png,
        width,
        height,
        orientation,
        decoding_bytes: pixels.saturating_add(kept),
    })
}

/// Bytes that a chunk of metadata unpacks to, counted up to `most` without storing them. A broken
/// chunk counts up to its error, because no decoder gets it.
fn unpacked_bytes(chunk: &Chunk<'_>, most: u64) -> u64 {
    // A name and its end, then of text whether it is packed and how, its language and its
    // translated name.
    let behind = |bytes: &[u8], ends: usize| {
        let mut nuls =
            bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at + 1);
        nuls.nth(ends)
    };
    let packed = match &chunk.kind {
        b"iTXt" => {
            let flags = behind(chunk.content, 0);
            let is_packed =
                flags.and_then(|at| chunk.content.get(at)).is_some_and(|flag| *flag != 0);
            let rest = flags.filter(|_| is_packed).and_then(|at| chunk.content.get(at + 2..));
            rest.and_then(|rest| behind(rest, 1).and_then(|at| rest.get(at..)))
        }
        _ => behind(chunk.content, 0).and_then(|at| chunk.content.get(at + 1..)),
    };
    let Some(packed) = packed else { return 0 };
    let mut reader = flate2::read::ZlibDecoder::new(packed).take(most);
    let (mut buffer, mut count) = ([0; 16 << 10], 0);
    while let Ok(read @ 1..) = reader.read(&mut buffer) {
        count += read as u64;
    }
    count
}

/// Without the chunks that are not the image. For files that [`read`] passed.
pub(super) fn essential(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut cursor = Cursor { rest: bytes.get(SIGNATURE.len()..).unwrap_or_default() };
    let (mut kept, mut all) = (SIGNATURE.to_vec(), true);
    while let Ok(chunk) = chunk(&mut cursor) {
        if ESSENTIAL.contains(&&chunk.kind) {
            kept.extend_from_slice(chunk.whole);
        } else {
            all = false;
        }
        if &chunk.kind == b"IEND" {
            break;
        }
    }
    if all { Cow::Borrowed(bytes) } else { Cow::Owned(kept) }
}
