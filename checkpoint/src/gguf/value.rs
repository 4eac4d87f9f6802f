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
    /// Bytes of the items, one after another.
    bytes: &'a [u8],
}

/// A number or a text of the metadata.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'a> {
    Whole(i128),
    /// In the shortest decimal form, also of a number of 32 bits.
    Real(f64),
    Bool(bool),
    Text(&'a str),
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

    fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, Cursor::new(self.bytes));
        (0..self.count.unwrap_or(1)).map_while(move |_| Item::read(&mut cursor, kind))
    }

    /// What `read` takes from a value that is no array.
    pub(super) fn one<T>(&self, read: fn(Item<'a>) -> Option<T>) -> Option<T> {
        self.items().next().filter(|_| self.count.is_none()).and_then(read)
    }

    /// What `read` takes from each item of an array.
    pub(super) fn all<T>(&self, read: fn(Item<'a>) -> Option<T>) -> Option<Vec<T>> {
        self.count.and_then(|_| self.each(read))
    }

    /// What `read` takes from each item of an array, or from a value that is none.
    pub(super) fn each<T>(&self, read: fn(Item<'a>) -> Option<T>) -> Option<Vec<T>> {
        self.items().map(read).collect()
    }

    /// The value in an error.
    pub(super) fn words(&self) -> String {
        let array = |count| format!("an array of {count} values of type {}", self.kind);
        self.count.map(array).or_else(|| self.one(|item| Some(item.words()))).unwrap_or_default()
    }
}

impl<'a> Item<'a> {
    fn read(cursor: &mut Cursor<'a>, kind: u32) -> Option<Self> {
        if kind == TEXT {
            return cursor.text().ok().map(Self::Text);
        }
        let bytes = cursor.take(size(kind)?).ok()?;
        let raw = little_endian(bytes);
        Some(match kind {
            // Signed types: the upper bits become the sign.
            1 | 3 | 5 | 11 => {
                let unused = u64::BITS - 8 * bytes.len() as u32;
                Self::Whole(((raw << unused) as i64 >> unused).into())
            }
            6 => Self::Real(f32::from_bits(raw as u32).to_string().parse().ok()?),
            7 => Self::Bool(raw != 0),
            12 => Self::Real(f64::from_bits(raw)),
            _ => Self::Whole(raw.into()),
        })
    }

    /// A whole number of at least 0.
    pub(super) fn count(self) -> Option<u64> {
        let Self::Whole(number) = self else { return None };
        u64::try_from(number).ok()
    }

    /// A finite number. Some writers store whole ones as such.
    pub(super) fn float(self) -> Option<f64> {
        let number = match self {
            Self::Real(number) => number,
            Self::Whole(number) => number as f64,
            Self::Bool(_) | Self::Text(_) => return None,
        };
        number.is_finite().then_some(number)
    }

    /// A truth value. Some writers store 0 or 1.
    pub(super) fn flag(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            Self::Whole(0) => Some(false),
            Self::Whole(1) => Some(true),
            _ => None,
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        let Self::Text(text) = self else { return None };
        Some(text)
    }

    fn words(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => shown(text),
        }
    }
}

/// Bytes of a value of this type, if they are the same for each.
fn size(kind: u32) -> Option<u64> {
    let size = SIZES.get(usize::try_from(kind).ok()?).copied();
    size.filter(|size| *size > 0)
}
