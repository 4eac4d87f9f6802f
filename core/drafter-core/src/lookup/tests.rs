use proptest::prelude::*;

use super::*;

fn session(ids: &[u32]) -> LookupSession {
    let mut session = LookupSession::new(0);
    session.append(0, ids);
    session
}

/// The longest earlier occurrence of the text's end, the most recent one, by trying all.
fn by_trying(text: &[u32]) -> Occurrence {
    let agreeing = |end: usize| {
        (0..end).take_while(|back| text[end - 1 - back] == text[text.len() - 1 - back]).count()
    };
    let best = (1..text.len()).map(|end| (agreeing(end), end)).max().unwrap_or_default();
    let (length, end) = (best.0 as u32, best.1 as u32);
    if length == 0 { Occurrence::default() } else { Occurrence { length, end } }
}

proptest! {
    /// Few tokens, so that much recurs.
    #[test]
    fn the_longest_and_most_recent_occurrence_is_found(
        text in prop::collection::vec(0u32..4, 1..200),
    ) {
        let mut suffixes = Suffixes::default();
        for length in 1..=text.len() {
            let found = suffixes.push(text[length - 1]);
            let expected = by_trying(&text[..length]);
            prop_assert_eq!(found.length, expected.length);
            if found.length > 0 {
                prop_assert_eq!(found.end, expected.end);
            }
        }
        let (states, edges) = suffixes.size();
        prop_assert!(states <= 2 * text.len().max(1) + 1 && edges <= 3 * text.len() + 1);
    }
}

#[test]
fn a_text_of_one_token_finds_the_token_before() {
    let mut suffixes = Suffixes::default();
    for length in 1..200 {
        let found = suffixes.push(7);
        assert_eq!(
            (found.length, found.end),
            (length - 1, if length == 1 { 0 } else { length - 1 })
        );
    }
}

#[test]
fn a_quotation_is_proposed_from_its_original() {
    let original: Vec<u32> = (100..140).collect();
    let mut session = session(&original);
    assert_eq!(session.propose(8, 0.0), LookupProposal::default(), "nothing recurs");
    session.append(40, &[7, 100, 101, 102, 103]);
    let proposal = session.propose(8, 0.0);
    assert!(proposal.ids.starts_with(&[104]), "{proposal:?}");
    assert_eq!(proposal.ids.len(), proposal.logprobs.len());
    assert!(proposal.logprobs.iter().all(|logprob| *logprob <= 0.0));
    // Each hit makes the next proposal longer.
    session.append(45, &(104..130).collect::<Vec<_>>());
    assert_eq!(session.propose(8, 0.0).ids, (130..138).collect::<Vec<_>>());
    assert_eq!(session.propose(99, 0.0).ids.len(), LONGEST_PROPOSAL as usize);
    // The dearer a row, the surer a proposal has to be.
    let lengths = [0.0, 0.5, 0.9, 1.0].map(|least| session.propose(99, least).ids.len());
    assert!(lengths.is_sorted_by(|one, next| one >= next), "{lengths:?}");
    assert!(lengths[0] > lengths[2] && lengths[3] == 0, "{lengths:?}");
}

#[test]
fn of_two_continuations_the_more_recent_one_is_proposed() {
    let session = session(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2, 3, 4]);
    assert_eq!(session.propose(1, 0.0).ids, [6]);
}

#[test]
fn a_longer_match_is_preferred_to_a_more_recent_one() {
    let session = session(&[7, 1, 2, 3, 4, 5, 9, 0, 2, 3, 4, 6, 8, 7, 1, 2, 3, 4]);
    assert_eq!(session.propose(1, 0.0).ids, [5]);
}

#[test]
fn a_periodic_text_is_proposed_beyond_its_end() {
    let text: Vec<u32> = [1, 2, 3].repeat(20);
    assert_eq!(session(&text).propose(7, 0.0).ids, [1, 2, 3, 1, 2, 3, 1]);
}

#[test]
fn matches_that_predict_nothing_are_proposed_no_more() {
    // A pair of tokens recurs with another token after it each time.
    let mut session = LookupSession::new(0);
    for other in 0..40 {
        session.append(session.end(), &[1, 2, 1000 + other]);
    }
    session.append(session.end(), &[1, 2]);
    assert_eq!(session.propose(8, 0.0), LookupProposal::default());
}

#[test]
fn a_proposal_is_announced_as_many_tokens_ahead_as_have_to_agree() {
    // At first two tokens have to agree.
    let mut session = session(&[1, 2, 3, 4]);
    assert_eq!(session.proposes_from(), 3 + 2);
    session.append(4, &[1]);
    assert_eq!(session.proposes_from(), 4 + 1);
    assert_eq!(session.propose(8, 0.0), LookupProposal::default());
    session.append(5, &[2]);
    assert_eq!((session.proposes_from(), session.propose(8, 0.0).ids), (5 + 1, vec![3]));
}

#[test]
fn a_bonus_token_that_is_committed_later_counts_once() {
    let mut session = LookupSession::new(10);
    session.append(10, &[1, 2, 3]);
    session.append(13, &[4]);
    session.append(13, &[4, 5]);
    session.append(12, &[3, 4, 5, 6]);
    assert_eq!((session.end(), session.n_tokens()), (16, 6));
    // A token that contradicts the text begins a new one, as does a gap.
    session.append(15, &[9]);
    assert_eq!((session.end(), session.n_tokens()), (16, 1));
    session.append(30, &[9, 9]);
    assert_eq!((session.end(), session.n_tokens()), (32, 2));
}

#[test]
fn a_long_text_forgets_its_older_half_and_goes_on() {
    let mut session = LookupSession::new(0);
    let numbers: Vec<u32> = (0..MOST_TOKENS as u32).collect();
    session.append(0, &numbers);
    session.append(session.end(), &[1 << 20]);
    assert_eq!(session.n_tokens(), MOST_TOKENS / 2 + 1);
    assert_eq!(session.end() as usize, MOST_TOKENS + 1);
    // The second half is still found.
    let quoted: Vec<u32> = (60_000..60_010).collect();
    session.append(session.end(), &quoted);
    assert!(session.propose(4, 0.0).ids.starts_with(&[60_010]));
}

#[test]
fn a_proposal_says_how_many_of_its_tokens_are_accepted_on_average() {
    let halves = LookupProposal { ids: vec![1, 2], logprobs: vec![0.5f32.ln(), 0.5f32.ln()] };
    assert!((halves.expected() - 0.75).abs() < 1e-6);
    assert_eq!(LookupProposal::default().expected(), 0.0);
}

#[test]
fn parts_of_a_text_are_named_by_positions() {
    let mut text = LookupSession::new(10);
    text.append(10, &[1, 2, 3]);
    assert_eq!(text.tokens_from(11), [2, 3]);
    assert!(text.tokens_from(9).is_empty() && text.tokens_from(20).is_empty());
    assert_eq!(text.beginning(12), (10, &[1, 2][..]));
    assert_eq!([text.beginning(5).1.len(), text.beginning(99).1.len()], [0, 3]);
}
