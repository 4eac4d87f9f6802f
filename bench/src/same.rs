//! Compares the tokens of all measurements (I1). Each later answer to a prompt must equal the first
//! one, in each lane and beside any number of other requests. A difference is judged by sending its
//! prompt once more.

use std::collections::HashMap;

use paceline_client::answer::Answer;
use paceline_client::ask::Choice;
use paceline_client::compare::{JudgedDifferences, bound_in_words, first_difference, weigh};
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::StatusResponse;
use serde::Serialize;

use crate::load::Sent;
use crate::mode::Mode;

/// Most differences that are judged. Further ones are only counted.
const MAX_JUDGED: usize = 20;

/// An answer that differs from the first one to its prompt.
#[derive(Clone, Debug, PartialEq)]
struct DifferentAnswer {
    /// Prompt of both answers.
    prompt: Prompt,
    /// Ids of the first answer.
    first: Vec<u32>,
    /// Ids of the answer that differs.
    other: Vec<u32>,
}

/// Compares answers as they come.
#[derive(Clone, Debug, Default)]
pub struct AnswerComparison {
    first: HashMap<(String, usize), Vec<u32>>,
    counts: Counts,
    suspects: Vec<DifferentAnswer>,
}

/// Numbers of compared answers and of differences.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Answers compared with an earlier one to the same prompt.
    pub answers: usize,
    /// Tokens, up to the first difference of each.
    pub tokens: usize,
    /// Answers that differ, by mode, in the order of their first difference.
    pub different: Vec<(Mode, usize)>,
    /// Differences between the lanes, and which of them are near-ties.
    #[serde(flatten)]
    pub judged: JudgedDifferences,
}

impl Counts {
    /// The lines of a report.
    pub fn text(&self) -> String {
        let Self { answers, tokens, different, judged } = self;
        let outcome = match different.as_slice() {
            [] => "equal".to_owned(),
            modes => {
                let modes = modes.iter().map(|(mode, count)| format!("{count} {}", mode.word()));
                format!(
                    "{} differ; weighed: {} near-ties (margin below {}), {} DIFFERENT",
                    modes.collect::<Vec<_>>().join(", "),
                    judged.near_ties.len(),
                    bound_in_words(judged.bound),
                    judged.differences.len()
                )
            }
        };
        let places = judged.lines();
        format!(
            "identity: {answers} answers, {tokens} tokens compared with the first to their prompt: {outcome}\n{places}"
        )
    }

    /// Why the command fails, if there is a difference that is no near-tie.
    pub fn failure(&self) -> Option<String> {
        self.judged.differences.first().map(|place| format!("answers differ: {place}"))
    }
}

impl AnswerComparison {
    /// Compares the answers to prompts.
    pub fn take(&mut self, mode: Mode, prompts: &[Prompt], answers: &[Answer]) {
        for (prompt, seen) in prompts.iter().zip(answers) {
            let Some(first) = self.first.get(&(prompt.kind.clone(), prompt.index)) else {
                self.first.insert((prompt.kind.clone(), prompt.index), seen.token_ids.clone());
                continue;
            };
            let (equal, different) = first_difference(first, &seen.token_ids);
            self.counts.answers += 1;
            self.counts.tokens += equal;
            if !different {
                continue;
            }
            match self.counts.different.iter_mut().find(|(known, _)| *known == mode) {
                Some((_, count)) => *count += 1,
                None => self.counts.different.push((mode, 1)),
            }
            let suspect = DifferentAnswer {
                prompt: prompt.clone(),
                first: first.clone(),
                other: seen.token_ids.clone(),
            };
            if self.suspects.len() < MAX_JUDGED && !self.suspects.contains(&suspect) {
                self.suspects.push(suspect);
            }
        }
    }

    /// Counts of the compared answers. Each answer that differs is judged by the margins of one
    /// more answer, which `again` requests. `from` names the answers that it differs from.
    ///
    /// # Errors
    /// Those of `again`.
    pub async fn weighed(
        self,
        status: &StatusResponse,
        from: &str,
        screen: &mut Screen,
        again: impl AsyncFn(&Prompt) -> Result<Sent, Failure>,
    ) -> Result<Counts, Failure> {
        let Self { mut counts, suspects, .. } = self;
        counts.judged = JudgedDifferences::of(status);
        if !suspects.is_empty() {
            screen.note(&format!("{} answers differ {from}: weighing them", suspects.len()));
        }
        for DifferentAnswer { prompt, first, other } in suspects {
            let Answer { token_ids, margins, .. } = again(&prompt).await?.answer;
            let difference = weigh(&first, &other, &token_ids, &margins);
            counts.judged.add(&prompt, Choice::Greedy, difference);
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::prompts::longest;

    #[test]
    fn each_answer_is_compared_with_the_first_for_its_prompt() {
        let prompts = longest("json", 2);
        let seen = |ids: &[u32]| Answer { token_ids: ids.into(), ..Answer::default() };
        let mut same = AnswerComparison::default();
        same.take(Mode::Absent, &prompts, &[seen(&[1, 2, 3]), seen(&[4, 5])]);
        same.take(Mode::Forced, &prompts, &[seen(&[1, 2, 3]), seen(&[4, 6])]);
        same.take(Mode::Routed, &prompts[1..], &[seen(&[4, 6])]);
        same.take(Mode::Forced, &prompts[1..], &[seen(&[4])]);
        let AnswerComparison { counts, suspects, .. } = same;
        assert_eq!((counts.answers, counts.tokens), (4, 6));
        assert_eq!(counts.different, [(Mode::Forced, 2), (Mode::Routed, 1)]);
        // A difference that occurs twice is judged once.
        assert_eq!(
            suspects.iter().map(|suspect| suspect.other.as_slice()).collect::<Vec<_>>(),
            [&[4, 6][..], &[4]]
        );
        assert!(suspects.iter().all(|suspect| suspect.first == [4, 5]));
    }
}
