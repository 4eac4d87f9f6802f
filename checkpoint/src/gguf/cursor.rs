//! A cursor over the bytes of a file that never reads beyond their end.

use crate::error::FormatError;

/// A cursor over a file.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    /// The next bytes.
    pub(super) fn take(&mut self, length: u64) -> Result<&'a [u8], FormatError> {
        let rest = self.rest();
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let taken = taken.ok_or_else(|| {
            let (what, expected) = (format!("byte {}", self.at), format!("{length} more bytes"));
            FormatError::new(what, expected, cut_off(rest.len() as u64))
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    /// Bytes before the next one.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the file by their places; none unless all of them are there.
    pub(super) fn between(&self, begin: u64, end: u64) -> &'a [u8] {
        let places = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
        places.and_then(|(begin, end)| self.file.get(begin..end)).unwrap_or_default()
    }

    /// The bytes that are left.
    fn rest(&self) -> &'a [u8] {
        &self.file[self.at..]
    }

    /// The bytes between an earlier state of this cursor and this one.
    pub(super) fn since(&self, earlier: &Self) -> &'a [u8] {
        &self.file[earlier.at..self.at]
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        // The bytes fit.
        Ok(little_endian(self.take(4)?) as u32)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.take(8).map(little_endian)
    }

    /// A text: its length and its bytes.
    pub(super) fn text(&mut self) -> Result<&'a str, FormatError> {
        let at = self.at;
        let length = self.u64()?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map_err(|error| FormatError::new(format!("text at byte {at}"), "UTF-8", error))
    }
}

/// The whole number without a sign that at most eight bytes are.
pub(super) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rfold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The contents of a file that ends too early.
pub(super) fn cut_off(bytes: u64) -> String {
    format!("{bytes}: the file is cut off or damaged")
}
