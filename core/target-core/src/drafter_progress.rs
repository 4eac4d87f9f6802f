//! What the drafter has of one sequence over the present link: what it was sent, and what it said
//! it has read.
//!
//! ```text
//! 0 ··· start ────────── reached ─────── sent ─────── end of the window
//!         the drafter has read │ on its way │ not sent yet
//! ```

use super::HiddenStateWindow;

/// Rows that may be on their way when a draft is asked for: the drafter reads them together with
/// the draft. More would make the draft late.
const LAG: usize = 256;

/// One sequence, as the drafter sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterProgress {
    /// Position behind the last row sent; `None`: the drafter does not know the sequence.
    sent: Option<usize>,
    reached: usize,
    /// The drafter may have kept an earlier session up to here.
    recall: Option<usize>,
    /// The farthest that was ever sent: news of it may be under way when the session starts again
    /// from farther back.
    most: usize,
}

/// What a report of the drafter's position is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedPosition {
    /// The drafter has read farther than it had reported.
    Advanced,
    /// Nothing new: it was reported before, or is of the session before it started again.
    Stale,
    /// The drafter cannot have read that far: it was never sent.
    Impossible,
}

/// Rows to be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPiece {
    /// Position of the first.
    pub position: usize,
    /// How many.
    pub rows: usize,
    /// The drafter forgets what it had: rows before these are missing.
    pub fresh: bool,
    /// Unless it has kept them of an earlier session.
    pub recall: bool,
}

impl DrafterProgress {
    /// What is to be sent of `window`, at most `most` rows.
    pub fn next_piece(&self, window: &HiddenStateWindow, most: usize) -> Option<FeedPiece> {
        let (position, fresh) = self.next(window);
        let rows = window.end().saturating_sub(position).min(most);
        let recall = fresh && self.recall == Some(position);
        (rows > 0).then_some(FeedPiece { position, rows, fresh, recall })
    }

    /// Position of the row to be sent next, and whether the session starts with it.
    fn next(&self, window: &HiddenStateWindow) -> (usize, bool) {
        match (self.sent, self.recall) {
            (Some(sent), _) if sent >= window.first() => (sent, false),
            (None, Some(recall)) if (window.first()..window.end()).contains(&recall) => {
                (recall, true)
            }
            // Never sent, or rows were dropped that had not been sent.
            _ => (window.first(), true),
        }
    }

    /// The sequence was found up to here in the prefix cache: of one that was, the drafter may have
    /// kept what it had read.
    pub fn recall_at(&mut self, position: usize) {
        self.recall = Some(position);
    }

    /// That was sent.
    pub fn sent(&mut self, piece: FeedPiece) {
        if piece.fresh {
            self.reached = piece.position;
        }
        self.recall = None;
        let end = piece.position + piece.rows;
        self.sent = Some(end);
        self.most = self.most.max(end);
    }

    /// Rows of `window` that the drafter has not said it has read.
    pub fn unread(&self, window: &HiddenStateWindow) -> usize {
        match self.sent {
            Some(sent) if sent >= window.first() => window.end().saturating_sub(self.reached),
            _ => window.end() - self.next(window).0,
        }
    }

    /// Rows that were sent and that the drafter has not said it has read.
    pub fn on_their_way(&self) -> usize {
        self.sent.map_or(0, |sent| sent - self.reached.min(sent))
    }

    /// Whether a draft behind `committed` rows could be asked for once what is unsent of `window`
    /// is sent with it.
    pub fn could_ask(&self, committed: usize, window: &HiddenStateWindow) -> bool {
        window.end() == committed && self.unread(window) <= LAG
    }

    /// Whether the drafter knows the sequence.
    pub fn is_open(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether a draft behind `committed` rows may be asked for: they were all sent, and it has
    /// read, or is about to read, all of them.
    pub fn may_ask(&self, committed: usize) -> bool {
        self.sent == Some(committed) && committed - self.reached <= LAG
    }

    /// Takes the drafter's report that it has read up to `position`.
    pub fn report(&mut self, position: usize) -> ReportedPosition {
        if position > self.most {
            return ReportedPosition::Impossible;
        }
        // Farther than what was sent last is a report of the session before it started again.
        if position <= self.reached || self.sent.is_none_or(|sent| position > sent) {
            return ReportedPosition::Stale;
        }
        self.reached = position;
        ReportedPosition::Advanced
    }

    /// The session starts again, from the window: the drafter misses something of it.
    pub fn start_again(&mut self) {
        (self.sent, self.reached, self.recall) = (None, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::ReportedPosition::{Advanced, Impossible, Stale};
    use super::*;

    fn window(first: usize, rows: usize) -> HiddenStateWindow {
        let mut window = HiddenStateWindow::new(512, 1);
        window.push(first, &vec![0; rows]);
        window
    }

    fn send(
        reach: &mut DrafterProgress,
        window: &HiddenStateWindow,
        most: usize,
    ) -> Option<(usize, usize, bool)> {
        let piece = reach.next_piece(window, most)?;
        reach.sent(piece);
        Some((piece.position, piece.rows, piece.fresh))
    }

    #[test]
    fn a_prompt_is_sent_in_pieces_and_asked_for_when_it_was_read() {
        let mut reach = DrafterProgress::default();
        let mut read = window(0, 600);
        assert_eq!(send(&mut reach, &read, 400), Some((0, 400, true)));
        assert_eq!(send(&mut reach, &read, 400), Some((400, 200, false)));
        assert_eq!(send(&mut reach, &read, 400), None);
        assert!(!reach.may_ask(600), "600 rows are on their way");
        assert_eq!(reach.on_their_way(), 600);
        assert_eq!(reach.report(400), Advanced);
        assert!(reach.may_ask(600));
        assert_eq!(reach.on_their_way(), 200);
        read.push(600, &[0]);
        assert!(!reach.may_ask(601), "the newest row was not sent");
        assert_eq!(send(&mut reach, &read, 400), Some((600, 1, false)));
        assert!(reach.may_ask(601));
    }

    #[test]
    fn what_was_dropped_unsent_starts_the_session_again() {
        let mut reach = DrafterProgress::default();
        send(&mut reach, &window(0, 10), 99);
        assert_eq!(reach.report(10), Advanced);
        assert_eq!(send(&mut reach, &window(20, 5), 99), Some((20, 5, true)));
        assert!(reach.may_ask(25) && reach.is_open());
        reach.start_again();
        assert!(!reach.may_ask(25) && !reach.is_open());
        // News of the session as it was is no fault, and no news of the one that starts again from
        // farther back.
        assert_eq!(send(&mut reach, &window(20, 3), 99), Some((20, 3, true)));
        assert_eq!([reach.report(25), reach.report(26)], [Stale, Impossible]);
        assert!(reach.may_ask(23));
    }

    #[test]
    fn what_the_drafter_may_have_kept_is_not_sent_unless_it_has_not() {
        let mut reach = DrafterProgress::default();
        reach.recall_at(640);
        let mut read = window(300, 340);
        // Nothing is read behind it yet: nothing can be said.
        assert_eq!(reach.unread(&read), 340);
        read.push(640, &[0; 20]);
        assert_eq!((reach.unread(&read), reach.could_ask(660, &read)), (20, true));
        let piece = reach.next_piece(&read, 99).expect("rows");
        assert_eq!(piece, FeedPiece { position: 640, rows: 20, fresh: true, recall: true });
        reach.sent(piece);
        assert!(reach.may_ask(660));
        reach.start_again();
        assert!(!reach.could_ask(660, &read));
        let piece = reach.next_piece(&read, 999).expect("rows");
        assert_eq!(piece, FeedPiece { position: 300, rows: 360, fresh: true, recall: false });
        // What lies before it is gone: it cannot be gone on from there.
        let mut late = DrafterProgress::default();
        late.recall_at(100);
        assert_eq!(
            late.next_piece(&read, 999).map(|piece| (piece.position, piece.recall)),
            Some((300, false))
        );
    }

    #[test]
    fn nobody_has_read_what_was_not_sent() {
        let mut reach = DrafterProgress::default();
        assert_eq!(reach.report(1), Impossible);
        send(&mut reach, &window(0, 10), 99);
        assert_eq!(reach.report(11), Impossible);
        // Old news is no fault.
        assert_eq!([reach.report(10), reach.report(10), reach.report(5)], [Advanced, Stale, Stale]);
        assert!(reach.may_ask(10));
    }
}
