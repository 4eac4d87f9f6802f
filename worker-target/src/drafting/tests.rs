//! Bookkeeping without a link.

use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{ProposalKind, ReadProgress, SessionProgress, Welcome};

use super::link::{Received, RequestedDraft};
use super::*;

const KEY: SequenceKey = SequenceKey(7);
const ROW_BYTES: usize = 4;
const REQUESTED: RequestTime = RequestTime { at_ns: 1_000_000, rows: 24, steps: 0 };

/// The drafter was sent 20 rows of a sequence, and a request for a draft after them.
fn fed() -> Drafting {
    let hello = Hello {
        version: 0,
        generation: 0,
        hidden_size: 1,
        vocab_size: 0,
        n_layers: 0,
        element: TensorType::F32,
        token_digest: String::new(),
        context_length: 0,
        max_sessions: 0,
    };
    let mut drafting = Drafting::new(hello, vec![0], 16);
    let session = drafting.session(KEY);
    session.window.push(0, &[0; 20 * ROW_BYTES]);
    let piece = session.progress.next_piece(&(0..20), 99).expect("rows");
    session.progress.sent(piece);
    session.is_known = true;
    session.awaited = Some(AwaitedDraft { position: 20, requested: REQUESTED, sequences: 3 });
    drafting
}

/// A drafter that reads hidden states, and `context_length` positions at most.
fn drafter(context_length: Option<u32>) -> Welcome {
    Welcome {
        version: 0,
        generation: 0,
        kind: "dflash".into(),
        fingerprint: "dflash 1".into(),
        proposal: ProposalKind::Hidden,
        hidden_size: 1,
        vocab_size: None,
        target_layers: None,
        feature_layers: vec![0],
        token_ids: false,
        reads_at_once: false,
        block_size: 8,
        embeddings: false,
        mask_id: None,
        element: TensorType::F32,
        token_digest: String::new(),
        logit_softcap: None,
        context_length,
    }
}

fn report(drafting: &mut Drafting, position: u32) -> Result<(), LinkEnd> {
    let sessions = vec![SessionProgress { session: KEY.0, position, drafts_from: position + 3 }];
    let progress = Received::Progress(ReadProgress { sessions, missed: vec![] });
    drafting.on_message(progress, &Border { now: Millis(0), at_ns: 0 }, &mut vec![])
}

#[test]
fn a_report_about_dropped_hidden_states_is_stale_and_no_fault() {
    let mut drafting = fed();
    drafting.drop_hidden_states(KEY);
    assert_eq!(
        (drafting.closed.as_slice(), drafting.window(KEY).expect("there").bytes()),
        (&[KEY.0][..], 0)
    );
    // The window has rows again, from farther on. The drafter has received neither yet, and reports
    // what it had read.
    drafting.session(KEY).window.push(30, &[0; 2 * ROW_BYTES]);
    assert!(report(&mut drafting, 20).is_ok());
    let unread = drafting.readiness(KEY, 32, &drafter(None)).expect("there").unread_rows;
    assert_eq!(unread, 2, "nothing of the new session was read");
    assert!(report(&mut drafting, 21).is_err(), "that position was never sent");
}

#[test]
fn a_sequence_that_ends_after_it_was_left_out_is_closed_at_the_drafter() {
    let mut drafting = fed();
    let left_out = vec![RequestedDraft { session: KEY.0, position: 20, max_tokens: 7 }];
    let message = Received::Drafts { requested: REQUESTED, served: vec![], left_out };
    let border = Border { now: Millis(0), at_ns: 0 };
    let mut events = vec![];
    drafting.on_message(message, &border, &mut events).expect("no fault");
    assert_eq!(events, [DraftEvent::NoDraft(KEY)]);
    // All of it is to be sent anew. Until then the drafter still has the session.
    drafting.close(KEY);
    assert_eq!(drafting.closed, [KEY.0]);
}

#[test]
fn a_late_draft_counts_with_the_time_until_it_was_given_up() {
    let mut drafting = fed();
    let late = drafting.late(&[KEY], &Border { now: Millis(21), at_ns: 21_000_000 });
    let time = DraftTime { sequences: 3, rows: 24, us: 20_000, steps: 0, tower: false };
    assert_eq!(late, Some(DraftEvent::Took(time)));
    assert_eq!(drafting.late(&[KEY], &Border { now: Millis(22), at_ns: 22_000_000 }), None);
}

#[test]
fn no_draft_is_requested_after_the_drafters_context() {
    let drafting = fed();
    let beyond = |committed, context| {
        drafting.readiness(KEY, committed, &drafter(context)).expect("there").beyond_context
    };
    let found = [beyond(98, Some(100)), beyond(99, Some(100)), beyond(5_000, None)];
    assert_eq!(found, [false, true, false]);
}

#[test]
fn no_draft_is_requested_where_the_drafter_has_none() {
    let mut drafting = fed();
    // The report is of position 20 and says that drafts begin at 23.
    report(&mut drafting, 20).expect("it was sent");
    let lookup =
        Welcome { feature_layers: vec![], token_ids: true, reads_at_once: true, ..drafter(None) };
    let mut at = |committed: usize| {
        // All rows but the last were sent.
        let session = drafting.session(KEY);
        let piece = session.progress.next_piece(&(0..committed), 99).expect("a row");
        session.progress.sent(piece);
        let found = drafting.readiness(KEY, committed, &lookup).expect("there");
        (found.can_draft, found.has_nothing, found.unread_rows)
    };
    // It has proposed nothing so far.
    assert_eq!([at(21), at(22), at(23)], [(false, true, 0), (false, true, 0), (true, true, 0)]);
}
