//! A reader of GGUF files, versions 2 and 3, little-endian: the metadata, and the tensors with the
//! places of their bytes. The file, or its head, is a byte slice, and all that is read borrows from it.
//! A model may be split into several files ([`GgufFiles`]). The parts of a file, in their order:
//!
//! ```text
//! magic · version · number of tensors · number of pairs
//! pairs                 key, type, value
//! tensors               name, dimensions from the innermost on, type, offset in the data
//! padding · data        the data and each tensor in it begin at a multiple of the alignment
//! ```
//!
//! No number of the file sizes memory before it is compared with the bytes that are left.

mod blocks;
mod cursor;
mod files;
mod tensors;
mod value;

use std::collections::BTreeMap;
use std::fmt::Display;

pub use blocks::{BlockType, expand};
pub use files::{GgufFile, GgufFiles, part_paths};
pub(crate) use files::{MAX_PARTS, PartName, broken, stem};
pub(crate) use tensors::Tensor;

use crate::error::{FormatError, shown};
use cursor::Cursor;
use value::{Item, Value};

/// Begin of each GGUF file.
const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that are laid out alike.
const VERSIONS: [u32; 2] = [2, 3];
/// Key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of a file that names none.
const ALIGNMENT: u64 = 32;
/// Most pairs of a file: published ones have some 50. A pair takes several times its bytes in memory.
const MAX_PAIRS: u64 = 1 << 16;

/// A GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf<'a> {
    pub(crate) metadata: Metadata<'a>,
    /// The tensors, in the order of the file. No two have the same name.
    pub(crate) tensors: Vec<Tensor<'a>>,
}

impl<'a> Gguf<'a> {
    /// Reads a whole file.
    ///
    /// # Errors
    /// The file is no GGUF file of a known version, or contradicts itself.
    pub fn read(file: &'a [u8]) -> Result<Self, FormatError> {
        Self::read_head(file, file.len() as u64)
    }

    /// Reads a file of `file_bytes` bytes by its head, which has at least all that is before the data.
    ///
    /// # Errors
    /// As [`Gguf::read`].
    pub fn read_head(file: &'a [u8], file_bytes: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(file);
        let magic = cursor.take(4)?;
        if magic != MAGIC {
            let found = shown(&String::from_utf8_lossy(magic));
            return Err(FormatError::new("begin of the file", "\"GGUF\"", found));
        }
        let version = cursor.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(FormatError::new("version of GGUF", "2 or 3, little-endian", version));
        }
        let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
        if pairs > MAX_PAIRS {
            return Err(FormatError::new("number of pairs", format!("at most {MAX_PAIRS}"), pairs));
        }
        let metadata = Metadata::read(&mut cursor, pairs)?;
        let alignment = metadata.alignment()?;
        let tensors = tensors::read(&mut cursor, tensors, alignment, file_bytes)?;
        Ok(Self { metadata, tensors })
    }
}

/// The pairs of a key and a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metadata<'a>(BTreeMap<&'a str, Value<'a>>);

impl<'a> Metadata<'a> {
    fn read(cursor: &mut Cursor<'a>, pairs: u64) -> Result<Self, FormatError> {
        let mut metadata = BTreeMap::new();
        for _ in 0..pairs {
            let key = cursor.text()?;
            let value = Value::read(cursor, key)?;
            if metadata.insert(key, value).is_some() {
                return Err(error(key, "one value", "two"));
            }
        }
        Ok(Self(metadata))
    }

    fn alignment(&self) -> Result<u64, FormatError> {
        if !self.0.contains_key(ALIGNMENT_KEY) {
            return Ok(ALIGNMENT);
        }
        let power =
            |value: &Value<'a>| value.one(Item::count).filter(|number| number.is_power_of_two());
        self.required(ALIGNMENT_KEY, "a power of two", power)
    }

    /// The value of a key in the form that `read` takes from it.
    fn required<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<T, FormatError> {
        let value = self.0.get(key).ok_or_else(|| error(key, expected, "nothing"))?;
        read(value).ok_or_else(|| error(key, expected, value.words()))
    }

    /// Whether a key has a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// What `read` takes from the value of a key that need not be there.
    pub(crate) fn optional<T>(
        &self,
        key: &str,
        read: impl Fn(&Self, &str) -> Result<T, FormatError>,
    ) -> Result<Option<T>, FormatError> {
        self.has(key).then(|| read(self, key)).transpose()
    }

    /// A number that counts something.
    pub(crate) fn count(&self, key: &str) -> Result<u64, FormatError> {
        self.required(key, "a whole number of at least 0", |value| value.one(Item::count))
    }

    /// A floating-point number in its shortest decimal form: 1e-5 of a float32, not
    /// 9.999999747378752e-6.
    pub(crate) fn float(&self, key: &str) -> Result<f64, FormatError> {
        self.required(key, "a finite floating-point number", |value| value.one(Item::float))
    }

    /// A truth value.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, FormatError> {
        self.required(key, "a truth value", |value| value.one(Item::flag))
    }

    pub(crate) fn text(&self, key: &str) -> Result<&'a str, FormatError> {
        self.required(key, "a text", |value| value.one(Item::text))
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&'a str>, FormatError> {
        self.required(key, "a list of texts", |value| value.all(Item::text))
    }

    pub(crate) fn counts(&self, key: &str) -> Result<Vec<u64>, FormatError> {
        let expected = "a list of whole numbers of at least 0";
        self.required(key, expected, |value| value.all(Item::count))
    }

    /// Numbers that count something: one for all layers, or one for each.
    pub(crate) fn count_or_counts(&self, key: &str) -> Result<Vec<u64>, FormatError> {
        let expected = "whole numbers of at least 0";
        self.required(key, expected, |value| value.each(Item::count))
    }

    pub(crate) fn flags(&self, key: &str) -> Result<Vec<bool>, FormatError> {
        self.required(key, "a list of truth values", |value| value.all(Item::flag))
    }

    pub(crate) fn floats(&self, key: &str) -> Result<Vec<f64>, FormatError> {
        self.required(key, "a list of finite numbers", |value| value.all(Item::float))
    }
}

/// An error about a key of the metadata.
pub(crate) fn error(key: &str, expected: impl Display, found: impl Display) -> FormatError {
    FormatError::new(format!("metadata {}", shown(key)), expected, found)
}
