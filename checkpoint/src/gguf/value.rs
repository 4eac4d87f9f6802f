//! Values of the metadata.

use super::cursor::Cursor;
use super::error;
use crate::error::{FormatError, shown};

/// Number of the type of texts.
const TEXT: u32 = 8;
/// Number of the type of arrays.
const ARRAY: u32 = 9;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// A whole number without a sign, of 8 to 64 bits.
    Unsigned(u64),
    /// A whole number with a sign, of 8 to 64 bits.
    Signed(i64),
    /// A floating-point number of 32 bits.
    Single(f32),
    /// A floating-point number of 64 bits.
    Double(f64),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// Several values of one type.
    Array(Array<'a>),
}

/// Several numbers or texts, as the file has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<'a> {
    kind: u32,
    count: u64,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    /// Reads the type of a value and the value.
    pub(super) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, FormatError> {
        let kind = cursor.u32()?;
        if kind == ARRAY {
            Array::read(cursor, key).map(Self::Array)
        } else {
            Self::plain(cursor, key, kind)
        }
    }

    /// Reads a value that is no array.
    fn plain(cursor: &mut Cursor<'a>, key: &str, kind: u32) -> Result<Self, FormatError> {
        if kind == TEXT {
            return cursor.text().map(Self::Text);
        }
        let size = size(kind).ok_or_else(|| {
            error(key, "a number, a text or an array of these", format!("type {kind}"))
        })?;
        Ok(Self::fixed(kind, cursor.take(size)?))
    }

    /// A value of fixed size.
    fn fixed(kind: u32, bytes: &[u8]) -> Self {
        let mut low = [0; 8];
        low[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(low);
        match kind {
            // Narrower numbers are extended with their sign.
            1 => Self::Signed(i64::from(raw as u8 as i8)),
            3 => Self::Signed(i64::from(raw as u16 as i16)),
            5 => Self::Signed(i64::from(raw as u32 as i32)),
            6 => Self::Single(f32::from_bits(raw as u32)),
            7 => Self::Bool(raw != 0),
            11 => Self::Signed(raw as i64),
            12 => Self::Double(f64::from_bits(raw)),
            _ => Self::Unsigned(raw),
        }
    }

    /// A whole number of at least 0.
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Self::Unsigned(number) => Some(*number),
            Self::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A finite floating-point number in its shortest decimal form.
    pub(super) fn float(&self) -> Option<f64> {
        let number = match self {
            Self::Single(number) => number.to_string().parse().ok()?,
            Self::Double(number) => *number,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn array(&self) -> Option<&Array<'a>> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The value in an error.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Unsigned(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Single(number) => number.to_string(),
            Self::Double(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => shown(text),
            Self::Array(array) => {
                format!("an array of {} values of type {}", array.count, array.kind)
            }
        }
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, FormatError> {
        let (kind, count) = (cursor.u32()?, cursor.u64()?);
        let begin = cursor.clone();
        match size(kind) {
            Some(size) => drop(cursor.take(count.saturating_mul(size))?),
            None if kind == TEXT => {
                for _ in 0..count {
                    cursor.text()?;
                }
            }
            None => {
                return Err(error(
                    key,
                    "an array of numbers or texts",
                    format!("type {kind} in it"),
                ));
            }
        }
        Ok(Self { kind, count, bytes: cursor.since(&begin) })
    }

    /// The values, if they are texts.
    pub fn texts(&self) -> Option<Vec<&'a str>> {
        if self.kind != TEXT {
            return None;
        }
        let mut cursor = Cursor::new(self.bytes);
        (0..self.count).map(|_| cursor.text().ok()).collect()
    }

    /// The values, if they are whole numbers of at least 0.
    pub fn counts(&self) -> Option<Vec<u64>> {
        let size = usize::try_from(size(self.kind)?).ok()?;
        self.bytes.chunks_exact(size).map(|bytes| Value::fixed(self.kind, bytes).count()).collect()
    }
}

/// Bytes of a value of this type, if they are the same for each.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
