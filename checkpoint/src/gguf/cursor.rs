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
            let (at, left) = (self.at, rest.len());
            let found = format!("{left}: the file is cut off or damaged");
            FormatError::new(format!("byte {at}"), format!("{length} more bytes"), found)
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    /// The bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.file[self.at..]
    }

    /// The bytes between an earlier state of this cursor and this one.
    pub(super) fn since(&self, earlier: &Self) -> &'a [u8] {
        &self.file[earlier.at..self.at]
    }

    /// Goes on at the next multiple of the alignment, or at the end of the file.
    pub(super) fn align(&mut self, alignment: u64) {
        let next = (self.at as u64).checked_next_multiple_of(alignment);
        let next = next.and_then(|next| usize::try_from(next).ok()).unwrap_or(usize::MAX);
        self.at = next.min(self.file.len());
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.fixed().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.fixed().map(u64::from_le_bytes)
    }

    /// A text: its length and its bytes.
    pub(super) fn text(&mut self) -> Result<&'a str, FormatError> {
        let at = self.at;
        let length = self.u64()?;
        std::str::from_utf8(self.take(length)?).map_err(|error| {
            FormatError::new(format!("text at byte {at}"), "UTF-8", error.to_string())
        })
    }
}
