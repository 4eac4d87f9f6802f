//! How long an answer is likely to become, from how long the last ones were. By it admission counts
//! what a request will hold: nearly all answers end long before `max_tokens`, which most callers
//! leave at the rest of the context.

/// AnswerLengths that are remembered.
const RECENT: usize = 64;
/// What is taken for an answer's length as long as nothing is known (tokens).
pub const PRIOR_TOKENS: u32 = 256;

/// Lengths of the last answers. It begins as if all of them had been of the prior's length, so what
/// is measured takes over one by one.
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
    /// The length that three of four answers do not exceed. Not the middle: a guess that is too
    /// short costs somebody his memory and a second reading of all he has, one that is too long
    /// only costs a wait. So 17 long answers raise it, and it takes 48 short ones to lower it.
    pub fn typical(&self) -> u32 {
        self.typical
    }

    /// An answer ended after so many tokens; `cut`: by its limit. How long such a one would have
    /// become is not known, only that it is longer than it is: it counts where that says something.
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
    fn long_answers_raise_it_soon_and_short_ones_lower_it_late() {
        assert_eq!(typical_of([]), PRIOR_TOKENS);
        assert_eq!(typical_of([(900, false); 16]), PRIOR_TOKENS);
        assert_eq!(typical_of([(900, false); 17]), 900);
        assert_eq!(typical_of([(10, false); 47]), PRIOR_TOKENS);
        assert_eq!(typical_of([(10, false); 48]), 10);
    }

    #[test]
    fn the_last_answers_count_and_no_others() {
        let long = [(900, false); 1_000];
        assert_eq!(typical_of(long.into_iter().chain([(50, false); 64])), 50);
        assert_eq!(typical_of((1..=64).map(|tokens| (tokens, false))), 48);
    }

    #[test]
    fn a_limit_says_that_an_answer_is_longer_and_never_that_it_is_short() {
        assert_eq!(typical_of([(16, true); 200]), PRIOR_TOKENS);
        assert_eq!(typical_of([(2_000, true); 17]), 2_000);
    }
}
