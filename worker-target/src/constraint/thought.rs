//! The forced end of a thought that has as many tokens as its budget.
//!
//! The algorithm: a thought begins after its opening id, or with the answer if the prompt opened it.
//! From its last allowed token on, a row allows the ids of the next step of the thought's end. The
//! next step follows the longest beginning of the end that the ids before the row have. So the
//! allowed ids depend on those ids alone: rows of a plain step, of a block and of a resumed request
//! choose the same (I1).

use paceline_vocabulary::generation::ThoughtBudget;

/// Ids before which a thought has to begin, from the first one of the answer on.
const MAX_BEFORE: usize = 4;
/// Ids of a thought's own header: its opening id, and the name that some families write after it.
const HEADER: usize = 2;

/// Ids that the row after `answer` allows, because the thought has as many tokens as it may; `None`
/// if the row is free. `answer` has the ids after the prompt.
pub(super) fn forced<'a>(budget: &'a ThoughtBudget, answer: &[u32]) -> Option<&'a [u32]> {
    let thought = thought(budget, answer)?;
    if thought.len() < budget.max_tokens as usize || is_ended(budget, answer) {
        return None;
    }
    let steps = &budget.end;
    let longest = steps.len().saturating_sub(1).min(thought.len());
    let follows = |count: &usize| matches(&thought[thought.len() - count..], &steps[..*count]);
    let begun = (1..=longest).rev().find(follows);
    // Inside the header of a message nothing ends.
    let header = &answer[answer.len().saturating_sub(HEADER)..];
    match begun {
        None if budget.open_id.is_some_and(|open| header.contains(&open)) => None,
        begun => steps.get(begun.unwrap_or(0)).map(Vec::as_slice),
    }
}

/// Whether one of the `rows` next rows can be a forced one, if the thought is not over.
pub(super) fn is_near(budget: &ThoughtBudget, answer: &[u32], rows: usize) -> bool {
    // A thought that begins later has fewer tokens than the answer.
    thought(budget, answer).unwrap_or(answer).len() + rows > budget.max_tokens as usize
}

/// Whether no later row can be a forced one: the thought has ended, or the answer began without one.
pub(super) fn is_over(budget: &ThoughtBudget, answer: &[u32]) -> bool {
    thought(budget, answer).map_or(answer.len() > MAX_BEFORE, |_| is_ended(budget, answer))
}

/// The ids of the thought and all after them; `None` if no thought has begun.
fn thought<'a>(budget: &ThoughtBudget, answer: &'a [u32]) -> Option<&'a [u32]> {
    let Some(open) = budget.open_id else { return Some(answer) };
    let at = answer.iter().take(MAX_BEFORE).position(|id| *id == open)?;
    Some(&answer[at + 1..])
}

/// Whether the answer has the last steps of the end, which end a thought in any case. They may begin
/// with the opening id.
fn is_ended(budget: &ThoughtBudget, answer: &[u32]) -> bool {
    let marks = budget.end.len().saturating_sub(budget.marks as usize);
    let marks = &budget.end[marks..];
    answer.windows(marks.len().max(1)).any(|ids| matches(ids, marks))
}

fn matches(ids: &[u32], steps: &[Vec<u32>]) -> bool {
    ids.len() == steps.len() && ids.iter().zip(steps).all(|(id, step)| step.contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thought between the ids 1 and 2.
    fn tagged(open_id: Option<u32>, max_tokens: u32) -> ThoughtBudget {
        ThoughtBudget { max_tokens, open_id, end: vec![vec![2]], marks: 1 }
    }

    /// Channels: 10 ends a message, 11 and 12 begin one, 1 is the sign of a channel's name, 3 the
    /// thought's name, 4 and 5 other names, 6 the begin of the text.
    fn channels(max_tokens: u32) -> ThoughtBudget {
        let end = vec![vec![10], vec![11], vec![12], vec![1], vec![4, 5]];
        ThoughtBudget { max_tokens, open_id: Some(1), end, marks: 2 }
    }

    /// The ids of an answer whose model would write `own` for ever, under this budget.
    fn written(budget: &ThoughtBudget, begin: &[u32], own: u32, count: usize) -> Vec<u32> {
        let mut answer = begin.to_vec();
        while answer.len() < count {
            let next = forced(budget, &answer).map_or(own, |ids| ids[0]);
            assert!(next == own || is_near(budget, &answer, 1), "{answer:?}");
            answer.push(next);
        }
        answer
    }

    #[test]
    fn a_thought_ends_after_as_many_tokens_as_its_budget() {
        assert_eq!(written(&tagged(None, 3), &[], 7, 6), [7, 7, 7, 2, 7, 7]);
        assert_eq!(written(&tagged(Some(1), 3), &[1], 7, 7), [1, 7, 7, 7, 2, 7, 7]);
        assert_eq!(written(&tagged(Some(1), 3), &[8, 1], 7, 7), [8, 1, 7, 7, 7, 2, 7]);
        // It ended by itself; it never began; the tag stands in the answer.
        assert_eq!(written(&tagged(None, 3), &[7, 2], 7, 6), [7, 2, 7, 7, 7, 7]);
        assert_eq!(written(&tagged(Some(1), 3), &[7], 7, 6), [7; 6]);
        assert_eq!(written(&tagged(Some(1), 2), &[7, 7, 7, 7, 1], 7, 9)[5..], [7; 4]);
    }

    #[test]
    fn a_thought_in_a_channel_ends_with_the_begin_of_another_channel() {
        let whole = written(&channels(5), &[1, 3, 6], 7, 13);
        assert_eq!(whole, [1, 3, 6, 7, 7, 7, 10, 11, 12, 1, 4, 7, 7]);
        // It goes on from what the model wrote of the end, and all thoughts count together.
        let begun = written(&channels(4), &[1, 3, 6, 7, 10, 11], 7, 10);
        assert_eq!(begun, [1, 3, 6, 7, 10, 11, 12, 1, 4, 7]);
        let again = written(&channels(7), &[1, 3, 6, 7, 10, 11, 12, 1, 3, 6], 7, 16);
        assert_eq!(again[10..], [10, 11, 12, 1, 4, 7]);
        // The answer's channel came, and the header of a thought is never cut.
        assert_eq!(written(&channels(2), &[1, 5, 6], 7, 6), [1, 5, 6, 7, 7, 7]);
        assert_eq!(forced(&channels(1), &[1, 3]), None);
        assert_eq!(forced(&channels(1), &[1, 3, 6]), Some(&[10][..]));
    }

    #[test]
    fn a_budget_constrains_no_row_before_its_end_is_near() {
        let budget = tagged(Some(1), 100);
        let answer = |count: usize| [&[1][..], &vec![7; count]].concat();
        assert!(!is_near(&budget, &answer(92), 8) && is_near(&budget, &answer(93), 8));
        assert!(is_over(&budget, &[answer(50), vec![2], vec![7; 60]].concat()));
        assert!(!is_over(&budget, &answer(110)) && !is_over(&budget, &[7; 4]));
        assert!(is_over(&budget, &[7; 5]), "no thought begins any more");
    }
}
