//! JPEG (ITU T.81, annex B): markers, most with a length and content, and coded data after the
//! start of each scan.

use image::metadata::Orientation;

use super::super::BadImage;
use super::{CUT, Cursor, Header, Kind, area, exif};

/// Scans of an image, at most. Each costs its decoder a pass over all pixels, and a few bytes
/// suffice for one; programs write about ten.
const MAX_SCANS: u32 = 40;

pub(super) fn read(bytes: &[u8]) -> Result<Header, BadImage> {
    let mut cursor = Cursor { rest: &bytes[2..] };
    let (mut frame, mut orientation, mut scans): (Option<Frame>, _, _) =
        (None, Orientation::NoTransforms, 0);
    loop {
        let marker = marker(&mut cursor)?;
        match marker {
            0xd9 => break,
            // Without content: a restart, or nothing at all.
            0x01 | 0xd0..=0xd7 => continue,
            0xd8 => return Err("a JPEG with two beginnings".into()),
            _ => {}
        }
        let length = usize::from(u16::from_be_bytes(cursor.array()?));
        let content =
            cursor.take(length.checked_sub(2).ok_or("a JPEG segment shorter than its length")?)?;
        match marker {
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                if frame.is_some() {
                    return Err("a JPEG with two frames".into());
                }
                frame = Some(Frame::read(content, marker)?);
            }
            0xe1 if content.starts_with(b"Exif\0\0") => {
                orientation = exif(content).unwrap_or(orientation)
            }
            0xda => {
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(
                        format!("a JPEG of more than {MAX_SCANS} scans; save it anew").into()
                    );
                }
                coded(&mut cursor)?;
            }
            _ => {}
        }
    }
    let Some(Frame { width, height, decoding_bytes }) = frame.filter(|_| scans > 0) else {
        return Err("a JPEG without an image".into());
    };
    // Its decoder works on a copy of the file.
    let decoding_bytes = decoding_bytes.saturating_add(bytes.len() as u64);
    Ok(Header { kind: Kind::Jpeg, width, height, orientation, decoding_bytes })
}

/// The next marker; any number of fill bytes may stand before it.
fn marker(cursor: &mut Cursor<'_>) -> Result<u8, BadImage> {
    if cursor.byte()? != 0xff {
        return Err("a JPEG with something else where a marker belongs".into());
    }
    loop {
        match cursor.byte()? {
            0xff => {}
            0 => return Err("a JPEG with something else where a marker belongs".into()),
            marker => return Ok(marker),
        }
    }
}

/// Passes over a scan's coded data, up to the marker that ends it.
fn coded(cursor: &mut Cursor<'_>) -> Result<(), BadImage> {
    let ends = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
    let length = cursor.rest.windows(2).position(ends).ok_or(CUT)?;
    cursor.take(length).map(|_| ())
}

struct Frame {
    width: u32,
    height: u32,
    decoding_bytes: u64,
}

impl Frame {
    fn read(content: &[u8], marker: u8) -> Result<Self, BadImage> {
        let mut cursor = Cursor { rest: content };
        let _precision = cursor.byte()?;
        let height = u32::from(u16::from_be_bytes(cursor.array()?));
        let width = u32::from(u16::from_be_bytes(cursor.array()?));
        let count = usize::from(cursor.byte()?);
        if !matches!(count, 1 | 3 | 4) {
            return Err(format!("a JPEG of {count} components; 1, 3 or 4 are expected").into());
        }
        let (mut blocks, mut largest) = (0u64, 1u64);
        for _ in 0..count {
            let [_, sampling, _] = cursor.array()?;
            let (across, down) = (u64::from(sampling >> 4), u64::from(sampling & 15));
            if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
                return Err("a JPEG of impossible sampling".into());
            }
            blocks += across * down;
            largest = largest.max(across * down);
        }
        let output = area(width, height, if count == 1 { 1 } else { 3 });
        // A progressive one keeps the coefficients of all its scans, two bytes each.
        let kept = match marker {
            0xc0 | 0xc1 => 0,
            _ => {
                area(width.next_multiple_of(32), height.next_multiple_of(32), 2)
                    .saturating_mul(blocks)
                    / largest
            }
        };
        Ok(Self { width, height, decoding_bytes: output.saturating_add(kept) })
    }
}
