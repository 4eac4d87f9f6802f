//! A budget beside a grammar, and along drafted paths.

use super::*;
use crate::grammar::tests::thoughtful;

/// The ids of the tags of a thought, after the bytes and the id that ends answers.
const OPEN: u32 = 257;
const CLOSE: u32 = 258;

fn budget(max_tokens: u32) -> ThoughtBudget {
    ThoughtBudget { max_tokens, open_id: Some(OPEN), end: vec![vec![CLOSE]], marks: 1 }
}

fn ids(text: &str) -> Vec<u32> {
    [&[OPEN][..], &text.bytes().map(u32::from).collect::<Vec<_>>()].concat()
}

fn alone(constraint: &AnswerConstraint, path: &[u32]) -> bool {
    *constraint.allowed(path) == IdSet::of_ids(&[CLOSE])
}

#[test]
fn a_row_on_a_drafted_path_allows_what_the_plain_row_does() {
    let constraint = AnswerConstraint::new(None, Some(budget(4)), 300);
    assert!(constraint.follow(&ids("a"), 1).is_none(), "the end is not near");
    let draft = [&ids("bcde")[1..], &[CLOSE, 9]].concat();
    assert!(constraint.follow(&ids("a"), draft.len() + 1).is_some());
    for at in 0..draft.len() {
        // A draft that goes on with the thought is wrong, and the row after it is forced as well.
        assert_eq!(alone(&constraint, &draft[..at]), (3..5).contains(&at), "{at}");
    }
    assert_eq!(constraint.allowed_drafts(&draft), 3, "the fourth one is forced");
    let right = [&ids("bcd")[1..], &[CLOSE, 9]].concat();
    assert_eq!(constraint.allowed_drafts(&right), 5);
    assert!(constraint.allowed(&[]).contains(299), "a free row allows every id");
    // The same place, without a draft.
    assert!(constraint.follow(&ids("abcd"), 1).is_some() && alone(&constraint, &[]));
    assert!(constraint.follow(&[&ids("abcd")[..], &[CLOSE]].concat(), 9).is_none());
}

#[test]
fn an_answer_is_searched_for_the_end_of_its_thought_until_it_is_found() {
    let constraint = AnswerConstraint::new(None, Some(budget(4)), 300);
    let ended = [&ids("ab")[..], &[CLOSE, 7, 7, 7]].concat();
    assert!(constraint.follow(&ended[..3], 1).is_none(), "the budget is far");
    assert!(constraint.follow(&ended, 1).is_none());
    // Nothing takes an end back. An answer without one shows that it is not searched again.
    assert!(constraint.follow(&ids("abcdefgh"), 1).is_none());
}

#[test]
fn a_budget_ends_a_thought_of_a_grammar_after_a_whole_character() {
    let constraint = AnswerConstraint::new(Some(thoughtful()), Some(budget(3)), 300);
    for (text, forced) in [("ab", false), ("abc", true), ("abcd", true), ("abé", true)] {
        constraint.follow(&ids(text), 1).expect("the grammar constrains all rows");
        assert_eq!(alone(&constraint, &[]), forced, "{text}");
    }
    // Inside of a character the grammar goes first.
    let half = &ids("abé")[..4];
    constraint.follow(half, 1).expect("the grammar");
    let allowed = constraint.allowed(&[]);
    assert!(!allowed.contains(CLOSE) && allowed.contains(0xA9));
    // After the thought the grammar alone holds.
    constraint.follow(&[&ids("abc")[..], &[CLOSE]].concat(), 1).expect("the grammar");
    let allowed = constraint.allowed(&[]);
    assert!(allowed.contains(u32::from(b'{')) && !allowed.contains(CLOSE));
}
