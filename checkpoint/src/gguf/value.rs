//! Values of the metadata. They stay as the file has them, and are read by the kind that is asked for.

use super::cursor::{Cursor, little_endian};
use super::error;
use crate::error::{FormatError, shown};

/// Number of the type of texts.
const TEXT: u32 = 8;
/// Number of the type of arrays.
const ARRAY: u32 = 9;
/// Bytes of a value by the number of its type; 0 of a text and of an array.
const SIZES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

/// A number or a text, or an array of these.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value<'a> {
    /// Number of the type of an item.
    kind: u32,
    /// Number of the items of an array.
    count: Option<u64>,
    /// The items.
    bytes: &'a [u8],
}

/// A number of the metadata.
#[derive(Clone, Copy, Debug)]
enum Number {
    Whole(i128),
    /// In the shortest decimal form, also of a number of 32 bits.
    Real(f64),
    Bool(bool),
}

impl<'a> Value<'a> {
    /// Reads the type of a value and the value.
    pub(super) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, FormatError> {
        let (kind, count) = match cursor.u32()? {
            ARRAY => (cursor.u32()?, Some(cursor.u64()?)),
            kind => (kind, None),
        };
        let (begin, items) = (cursor.clone(), count.unwrap_or(1));
        match size(kind) {
            Some(size) => drop(cursor.take(items.saturating_mul(size))?),
            None if kind == TEXT => (0..items).try_for_each(|_| cursor.text().map(drop))?,
            None => {
                let (expected, place) = match count {
                    None => ("a number, a text or an array of these", ""),
                    Some(_) => ("an array of numbers or texts", " in it"),
                };
                return Err(error(key, expected, format!("type {kind}{place}")));
            }
        }
        Ok(Self { kind, count, bytes: cursor.since(&begin) })
    }

    fn text_items(&self) -> Option<Vec<&'a str>> {
        let (mut cursor, items) = (Cursor::new(self.bytes), self.count.unwrap_or(1));
        let is_text = self.kind == TEXT;
        is_text.then(|| (0..items).map(|_| cursor.text().ok()).collect())?
    }

    fn numbers(&self) -> Option<impl Iterator<Item = Number>> {
        let (kind, size) = (self.kind, usize::try_from(size(self.kind)?).ok()?);
        Some(self.bytes.chunks_exact(size).map(move |bytes| Number::of(kind, bytes)))
    }

    /// The number of a value that is no array.
    fn number(&self) -> Option<Number> {
        self.numbers().filter(|_| self.count.is_none())?.next()
    }

    /// A whole number of at least 0.
    pub(super) fn count(&self) -> Option<u64> {
        self.number()?.count()
    }

    /// A finite floating-point number in its shortest decimal form.
    pub(super) fn float(&self) -> Option<f64> {
        match self.number()? {
            Number::Real(number) => Some(number).filter(|number| number.is_finite()),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.text_items().filter(|_| self.count.is_none())?.pop()
    }

    /// The texts of an array.
    pub(super) fn texts(&self) -> Option<Vec<&'a str>> {
        self.text_items().filter(|_| self.count.is_some())
    }

    /// The items of an array, if they are whole numbers of at least 0.
    pub(super) fn counts(&self) -> Option<Vec<u64>> {
        self.numbers().filter(|_| self.count.is_some())?.map(Number::count).collect()
    }

    /// The value in an error.
    pub(super) fn words(&self) -> String {
        if let Some(count) = self.count {
            return format!("an array of {count} values of type {}", self.kind);
        }
        match self.number() {
            Some(Number::Whole(number)) => number.to_string(),
            Some(Number::Real(number)) => number.to_string(),
            Some(Number::Bool(value)) => value.to_string(),
            None => shown(self.text().unwrap_or_default()),
        }
    }
}

impl Number {
    fn of(kind: u32, bytes: &[u8]) -> Self {
        let raw = little_endian(bytes);
        match kind {
            // Signed types: the upper bits become the sign.
            1 | 3 | 5 | 11 => {
                let unused = u64::BITS - 8 * bytes.len() as u32;
                Self::Whole(((raw << unused) as i64 >> unused).into())
            }
            6 => {
                let text = f32::from_bits(raw as u32).to_string();
                Self::Real(text.parse().unwrap_or(f64::NAN))
            }
            7 => Self::Bool(raw != 0),
            12 => Self::Real(f64::from_bits(raw)),
            _ => Self::Whole(raw.into()),
        }
    }

    fn count(self) -> Option<u64> {
        match self {
            Self::Whole(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

/// Bytes of a value of this type, if they are the same for each.
fn size(kind: u32) -> Option<u64> {
    let size = SIZES.get(usize::try_from(kind).ok()?).copied();
    size.filter(|size| *size > 0)
}
