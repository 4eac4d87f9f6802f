//! The expected length of an answer, computed from the lengths of the last answers. Admission
//! reserves memory for it: nearly all answers end long before `max_tokens`, which most clients
//! leave at the rest of the context.

/// Answers that are counted.
const RECENT: usize = 64;
/// Expected tokens of an answer before any was measured.
pub const PRIOR_TOKENS: u32 = 256;

/// Lengths of the last answers. At the start all of them have the prior's length, so measured
/// lengths replace them one by one.
#[derive(Clone, Debug)]
pub struct AnswerLengths {
    tokens: [u32; RECENT],
    next: usize,
    typical: u32,
}

impl Default for AnswerLengths {
    fn default() -> Self {
        Self { tokens: [PRIOR_TOKENS; RECENT], next: 0, typical: PRIOR_TOKENS }
    }
}

impl AnswerLengths {
    /// The length that three of four answers do not exceed. Not the median: an estimate that is too
    /// short preempts a sequence and costs its recompute, one that is too long only costs a wait.
    /// So 17 long answers raise it, and it takes 48 short ones to lower it.
    pub fn typical(&self) -> u32 {
        self.typical
    }

    /// An answer ended after `tokens` tokens; `cut`: by its limit. How long it would have become is
    /// not known, only that it would have been longer: it counts if it exceeds the typical length.
    pub fn learn(&mut self, tokens: u32, cut: bool) {
        if cut && tokens <= self.typical {
            return;
        }
        self.tokens[self.next] = tokens;
        self.next = (self.next + 1) % RECENT;
        let mut sorted = self.tokens;
        sorted.sort_unstable();
        self.typical = sorted[RECENT * 3 / 4 - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typical_of(answers: impl IntoIterator<Item = (u32, bool)>) -> u32 {
        let mut all = AnswerLengths::default();
        answers.into_iter().for_each(|(tokens, cut)| all.learn(tokens, cut));
        all.typical()
    }

    #[test]
    fn seventeen_long_answers_raise_the_length_and_48_short_ones_lower_it() {
        assert_eq!(typical_of([]), PRIOR_TOKENS);
        assert_eq!(typical_of([(900, false); 16]), PRIOR_TOKENS);
        assert_eq!(typical_of([(900, false); 17]), 900);
        assert_eq!(typical_of([(10, false); 47]), PRIOR_TOKENS);
        assert_eq!(typical_of([(10, false); 48]), 10);
    }

    #[test]
    fn only_the_last_64_answers_count() {
        let long = [(900, false); 1_000];
        assert_eq!(typical_of(long.into_iter().chain([(50, false); 64])), 50);
        assert_eq!(typical_of((1..=64).map(|tokens| (tokens, false))), 48);
    }

    #[test]
    fn an_answer_cut_by_its_limit_never_lowers_the_length() {
        assert_eq!(typical_of([(16, true); 200]), PRIOR_TOKENS);
        assert_eq!(typical_of([(2_000, true); 17]), 2_000);
    }
}
