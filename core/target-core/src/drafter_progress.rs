//! How far the drafter is with one sequence over the present link: the rows that it was sent, and
//! the rows that it reported as read.
//!
//! ```text
//! 0 ··· start ────────── read_to ─────── sent ─────── end of the available rows
//!         the drafter has read │ under way │ not sent yet
//! ```
//!
//! The rows that can be sent at a moment are the *available* ones: those of the window of hidden
//! states, or for a drafter that reads token ids alone all committed ones.

use std::ops::Range;

/// Rows that may be under way when a draft is requested. The drafter reads them together with the
/// request; more of them would make the draft late.
const MAX_LAG: usize = 256;

/// The drafter's progress with one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterProgress {
    /// Position after the last row that was sent; `None`: the drafter does not know the sequence.
    sent: Option<usize>,
    read_to: usize,
    /// The drafter may retain an earlier session up to this position.
    recall: Option<usize>,
    /// The largest position that was ever sent. A report of it may be under way when the session
    /// starts again at a smaller position.
    most: usize,
}

/// Meaning of a report of the drafter's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedPosition {
    /// The drafter has read farther than it had reported.
    Advanced,
    /// It was reported before, or belongs to the session before the last restart.
    Stale,
    /// The drafter cannot have read that far, because the rows were never sent.
    Impossible,
}

/// Rows to be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPiece {
    /// Position of the first.
    pub position: usize,
    /// How many.
    pub rows: usize,
    /// The drafter starts a new session: the rows before these are missing.
    pub fresh: bool,
    /// The drafter may retain the missing rows of an earlier session.
    pub recall: bool,
}

impl DrafterProgress {
    /// The next of the available rows to send, at most `most`.
    pub fn next_piece(&self, available: &Range<usize>, most: usize) -> Option<FeedPiece> {
        let (position, fresh) = self.next(available);
        let rows = available.end.saturating_sub(position).min(most);
        let recall = fresh && self.recall == Some(position);
        (rows > 0).then_some(FeedPiece { position, rows, fresh, recall })
    }

    /// Position of the row to be sent next, and whether the session starts with it.
    fn next(&self, available: &Range<usize>) -> (usize, bool) {
        match (self.sent, self.recall) {
            (Some(sent), _) if sent >= available.start => (sent, false),
            (None, Some(recall)) if available.contains(&recall) => (recall, true),
            // Nothing was sent yet, or rows were dropped before they were sent.
            _ => (available.start, true),
        }
    }

    /// The sequence came from the prefix cache up to this position, so the drafter may retain an
    /// earlier session of it.
    pub fn recall_at(&mut self, position: usize) {
        self.recall = Some(position);
    }

    /// The piece was sent.
    pub fn sent(&mut self, piece: FeedPiece) {
        if piece.fresh {
            self.read_to = piece.position;
        }
        self.recall = None;
        let end = piece.position + piece.rows;
        self.sent = Some(end);
        self.most = self.most.max(end);
    }

    /// Available rows that the drafter has not reported as read.
    pub fn unread(&self, available: &Range<usize>) -> usize {
        match self.sent {
            Some(sent) if sent >= available.start => available.end.saturating_sub(self.read_to),
            _ => available.end - self.next(available).0,
        }
    }

    /// Rows that were sent and not reported as read.
    pub fn on_their_way(&self) -> usize {
        self.sent.map_or(0, |sent| sent - self.read_to.min(sent))
    }

    /// Whether a draft after `committed` rows could be requested if the unsent ones of the available
    /// rows are sent with the request.
    pub fn could_ask(&self, committed: usize, available: &Range<usize>) -> bool {
        available.end == committed && self.unread(available) <= MAX_LAG
    }

    /// Whether the drafter knows the sequence.
    pub fn is_open(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether a draft after `committed` rows may be requested: all of them were sent, and few of
    /// them are unread.
    pub fn may_ask(&self, committed: usize) -> bool {
        self.sent == Some(committed) && committed - self.read_to <= MAX_LAG
    }

    /// Takes the drafter's report that it has read up to `position`.
    pub fn report(&mut self, position: usize) -> ReportedPosition {
        if position > self.most {
            return ReportedPosition::Impossible;
        }
        // A position beyond the rows sent belongs to the session before the last restart.
        if position <= self.read_to || self.sent.is_none_or(|sent| position > sent) {
            return ReportedPosition::Stale;
        }
        self.read_to = position;
        ReportedPosition::Advanced
    }

    /// The session starts again with the window, because the drafter misses a part of it.
    pub fn start_again(&mut self) {
        (self.sent, self.read_to, self.recall) = (None, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::ReportedPosition::{Advanced, Impossible, Stale};
    use super::*;

    fn send(
        progress: &mut DrafterProgress,
        available: Range<usize>,
        most: usize,
    ) -> Option<(usize, usize, bool)> {
        let piece = progress.next_piece(&available, most)?;
        progress.sent(piece);
        Some((piece.position, piece.rows, piece.fresh))
    }

    #[test]
    fn a_draft_is_requested_after_the_prompt_was_sent_and_read() {
        let mut progress = DrafterProgress::default();
        assert_eq!(send(&mut progress, 0..600, 400), Some((0, 400, true)));
        assert_eq!(send(&mut progress, 0..600, 400), Some((400, 200, false)));
        assert_eq!(send(&mut progress, 0..600, 400), None);
        assert!(!progress.may_ask(600), "600 rows are under way");
        assert_eq!(progress.on_their_way(), 600);
        assert_eq!(progress.report(400), Advanced);
        assert!(progress.may_ask(600));
        assert_eq!(progress.on_their_way(), 200);
        assert!(!progress.may_ask(601), "the newest row was not sent");
        assert_eq!(send(&mut progress, 0..601, 400), Some((600, 1, false)));
        assert!(progress.may_ask(601));
    }

    #[test]
    fn rows_dropped_before_sending_restart_the_session() {
        let mut progress = DrafterProgress::default();
        send(&mut progress, 0..10, 99);
        assert_eq!(progress.report(10), Advanced);
        assert_eq!(send(&mut progress, 20..25, 99), Some((20, 5, true)));
        assert!(progress.may_ask(25) && progress.is_open());
        progress.start_again();
        assert!(!progress.may_ask(25) && !progress.is_open());
        // A report of the session before the restart is no fault. It does not count for the session
        // that starts again at a smaller position.
        assert_eq!(send(&mut progress, 20..23, 99), Some((20, 3, true)));
        assert_eq!([progress.report(25), progress.report(26)], [Stale, Impossible]);
        assert!(progress.may_ask(23));
    }

    #[test]
    fn retained_rows_are_sent_only_after_the_drafter_misses_them() {
        let mut progress = DrafterProgress::default();
        progress.recall_at(640);
        // No row after the retained ones is available yet.
        assert_eq!(progress.unread(&(300..640)), 340);
        let read = 300..660;
        assert_eq!((progress.unread(&read), progress.could_ask(660, &read)), (20, true));
        let piece = progress.next_piece(&read, 99).expect("rows");
        assert_eq!(piece, FeedPiece { position: 640, rows: 20, fresh: true, recall: true });
        progress.sent(piece);
        assert!(progress.may_ask(660));
        progress.start_again();
        assert!(!progress.could_ask(660, &read));
        let piece = progress.next_piece(&read, 999).expect("rows");
        assert_eq!(piece, FeedPiece { position: 300, rows: 360, fresh: true, recall: false });
        // The window begins after the retained rows, so they cannot be continued.
        let mut late = DrafterProgress::default();
        late.recall_at(100);
        assert_eq!(
            late.next_piece(&read, 999).map(|piece| (piece.position, piece.recall)),
            Some((300, false))
        );
    }

    #[test]
    fn a_report_of_rows_that_were_not_sent_is_impossible() {
        let mut progress = DrafterProgress::default();
        assert_eq!(progress.report(1), Impossible);
        send(&mut progress, 0..10, 99);
        assert_eq!(progress.report(11), Impossible);
        // A stale report is no fault.
        assert_eq!(
            [progress.report(10), progress.report(10), progress.report(5)],
            [Advanced, Stale, Stale]
        );
        assert!(progress.may_ask(10));
    }
}
