//! How far a test is: the words of its progress, and the end of its time (`--seconds`). Reads no
//! clock.

use paceline_vocabulary::Millis;

/// The prompts of a test, in parts of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Prompts of each part.
    pub(super) prompts: usize,
    /// Time for all of them.
    pub(super) limit_ms: Option<u64>,
    /// When the first one was sent.
    pub(super) begun: Millis,
    /// Prompts whose answers were compared.
    pub(super) done: usize,
}

/// The parts: two rounds of greedy answers, then sampled ones.
pub(super) const PARTS: [&str; 3] = ["round 1", "round 2", "sampled"];

impl Pace {
    /// Whether there is time for the next prompt. There always is for the first one.
    pub(super) fn goes_on(&self, now: Millis) -> bool {
        self.done == 0 || self.limit_ms.is_none_or(|limit| now.since(self.begun) < limit)
    }

    /// Progress before the next prompt, which is of this kind.
    pub(super) fn words(&self, kind: &str, now: Millis) -> String {
        let Self { prompts, limit_ms, begun, done } = *self;
        let (spent, all) = (now.since(begun), prompts * PARTS.len());
        let left = (spent * (all - done) as u64).checked_div(done as u64);
        let bound = limit_ms.map(|limit| limit.saturating_sub(spent));
        let left = match left.into_iter().chain(bound).min().map(|ms| ms.div_ceil(1_000)) {
            None => String::new(),
            Some(seconds @ ..120) => format!(", about {seconds} s left"),
            Some(seconds) => format!(", about {} min left", seconds / 60),
        };
        format!("{}: {kind}, {} of {all} prompts{left}", PARTS[done / prompts], done + 1)
    }

    /// The prompts for which there was no time, by parts.
    pub(super) fn left_out(&self) -> Vec<String> {
        let Self { prompts, done, .. } = *self;
        let left = |at: usize| prompts - done.saturating_sub(at * prompts).min(prompts);
        let parts = PARTS.iter().enumerate().filter(|(at, _)| left(*at) > 0);
        parts.map(|(at, part)| format!("{part}: {} of {prompts} prompts", left(at))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_shows_what_is_left_and_ends_with_its_time() {
        let mut pace = Pace { prompts: 6, limit_ms: None, begun: Millis(1_000), done: 0 };
        assert_eq!(pace.words("code", Millis(1_000)), "round 1: code, 1 of 18 prompts");
        pace.done = 9;
        let words = "round 2: json, 10 of 18 prompts, about 45 s left";
        assert_eq!(pace.words("json", Millis(46_000)), words);
        assert!(pace.words("json", Millis(1_801_000)).ends_with("about 30 min left"));
        assert!(pace.goes_on(Millis(u64::MAX)));
        pace.limit_ms = Some(50_000);
        assert!(pace.words("json", Millis(46_000)).ends_with("about 5 s left"));
        assert!(pace.goes_on(Millis(50_999)) && !pace.goes_on(Millis(51_000)));
        assert_eq!(pace.left_out(), ["round 2: 3 of 6 prompts", "sampled: 6 of 6 prompts"]);
        pace.done = 18;
        assert_eq!(pace.left_out(), [""; 0]);
        pace.done = 0;
        assert!(pace.goes_on(Millis(99_000)), "the first prompt is always asked");
    }
}
