//! Hidden states of a sequence's newest positions, as bytes. A drafter that is attached in the
//! middle of a stream gets them, and the present drafter gets those that were not sent yet.

/// Hidden states of neighbouring positions, the newest last.
#[derive(Clone, Debug)]
pub struct HiddenStateWindow {
    keep: usize,
    row_bytes: usize,
    /// Position of the first row.
    first: usize,
    bytes: Vec<u8>,
    /// Bytes at the front that are dropped. They are removed together, so that rows seldom move.
    dropped: usize,
}

/// Rows of a window per row that may be dropped and not yet removed.
const DROPPED_PART: usize = 4;

impl HiddenStateWindow {
    /// A window that keeps `keep` rows of `row_bytes` bytes.
    pub fn new(keep: usize, row_bytes: usize) -> Self {
        Self { keep, row_bytes, first: 0, bytes: vec![], dropped: 0 }
    }

    /// Adds rows, the first of them at `position`. Rows that do not continue the window replace it.
    pub fn push(&mut self, position: usize, rows: &[u8]) {
        self.write(position, |bytes| bytes.extend_from_slice(rows));
    }

    /// [`HiddenStateWindow::push`] of the rows that `append` appends.
    pub fn write(&mut self, position: usize, append: impl FnOnce(&mut Vec<u8>)) {
        if position != self.end() {
            (self.first, self.dropped) = (position, 0);
            self.bytes.clear();
        }
        append(&mut self.bytes);
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Position of the first row.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Position after the last row.
    pub fn end(&self) -> usize {
        self.first + (self.bytes.len() - self.dropped).checked_div(self.row_bytes).unwrap_or(0)
    }

    /// Rows from `position` on, at most `count`; none if `position` is outside the window.
    pub fn rows(&self, position: usize, count: usize) -> &[u8] {
        let end = (position + count).min(self.end());
        if position < self.first || position >= end {
            return &[];
        }
        let at = |position: usize| self.dropped + (position - self.first) * self.row_bytes;
        &self.bytes[at(position)..at(end)]
    }

    /// Drops rows that are older than the window.
    pub fn trim(&mut self) {
        let old = (self.end() - self.first).saturating_sub(self.keep);
        self.first += old;
        self.dropped += old * self.row_bytes;
        if self.dropped > self.keep / DROPPED_PART * self.row_bytes {
            self.bytes.drain(..self.dropped);
            self.dropped = 0;
        }
    }

    /// Rows for which a window of `keep` rows has memory at most, besides the rows that were added
    /// since the last trim.
    pub fn most_rows(keep: usize) -> usize {
        keep + keep / DROPPED_PART
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(from: usize, count: usize) -> Vec<u8> {
        (from..from + count).flat_map(|position| [position as u8, !(position as u8)]).collect()
    }

    #[test]
    fn the_newest_rows_stay_at_their_positions() {
        let mut window = HiddenStateWindow::new(5, 2);
        for (from, count) in [(0, 3), (3, 1), (4, 9), (13, 1), (14, 2)] {
            window.push(from, &rows(from, count));
            assert_eq!(
                window.rows(from, 99),
                rows(from, count),
                "what is new is all there before it is trimmed"
            );
            window.trim();
            assert!(window.bytes() <= 2 * HiddenStateWindow::most_rows(5) as u64);
        }
        assert_eq!((window.first(), window.end()), (11, 16));
        assert_eq!(window.rows(11, 99), rows(11, 5));
        assert_eq!(window.rows(12, 2), rows(12, 2));
        assert_eq!((window.rows(10, 3), window.rows(16, 1)), (&[][..], &[][..]));
    }

    #[test]
    fn a_gap_starts_the_window_again() {
        let mut window = HiddenStateWindow::new(5, 2);
        window.push(0, &rows(0, 3));
        window.push(7, &rows(7, 2));
        assert_eq!((window.first(), window.end(), window.rows(7, 9)), (7, 9, &rows(7, 2)[..]));
    }

    #[test]
    fn a_window_of_no_rows_holds_no_bytes() {
        let mut window = HiddenStateWindow::new(0, 2);
        window.push(0, &rows(0, 3));
        window.trim();
        assert_eq!((window.first(), window.end(), window.bytes()), (3, 3, 0));
    }
}
