//! Requests of which a fixed number runs at once.

use futures::StreamExt as _;
use futures::stream;
use paceline_client::Failure;
use paceline_system::clock::monotonic_ns;

/// The answer to a request, and when the request was submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent<A> {
    /// The answer.
    pub answer: A,
    /// Time of the submission, in nanoseconds of [`monotonic_ns`].
    pub sent_ns: i64,
}

/// Sends all prompts, `streams` at once: when one ends, the next begins. Returns the answers in the
/// order of the prompts. The second value is the time in seconds from the first submission to the
/// end of the last answer.
///
/// # Errors
/// The first failure of one of them.
pub async fn at_once<P, A, F>(
    prompts: &[P],
    streams: usize,
    ask: impl Fn(&P) -> F,
) -> Result<(Vec<Sent<A>>, f64), Failure>
where
    F: Future<Output = Result<A, Failure>>,
{
    let begin = monotonic_ns();
    let asked = prompts.iter().enumerate().map(|(at, prompt)| {
        let answer = ask(prompt);
        async move {
            let sent_ns = monotonic_ns();
            answer.await.map(|answer| (at, Sent { answer, sent_ns }))
        }
    });
    let mut running = stream::iter(asked).buffer_unordered(streams.max(1));
    let mut answers = Vec::with_capacity(prompts.len());
    while let Some(answer) = running.next().await {
        answers.push(answer?);
    }
    // Never 0, so that callers may divide by it.
    let seconds = (monotonic_ns() - begin).max(1) as f64 / 1e9;
    answers.sort_by_key(|(at, _)| *at);
    Ok((answers.into_iter().map(|(_, answer)| answer).collect(), seconds))
}

/// Number of tokens of the answer to the prompt `index`. Numbers are spread evenly, up to a quarter
/// below and above the mean, and are the same in each mode. If all answers had one length, plain
/// streams that begin together would end together. Their next prompts would always share one
/// prefill step, which does not happen in real traffic.
pub fn answer_tokens(index: usize, mean: u32) -> u32 {
    // Multiples of the golden ratio, modulo 1, are spread evenly for each count.
    let share = (index as f64 * 0.618_033_988_749_895).fract();
    ((f64::from(mean) * (0.75 + 0.5 * share)).round() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_lengths_vary_around_the_requested_mean() {
        for count in [8, 16, 40] {
            let all: Vec<u32> = (0..count).map(|index| answer_tokens(index, 96)).collect();
            let mean = f64::from(all.iter().sum::<u32>()) / count as f64;
            assert!(
                (mean - 96.0).abs() < 5.0 && all.iter().all(|tokens| (72..=120).contains(tokens)),
                "{mean} {all:?}"
            );
            let mut different = all.clone();
            different.sort_unstable();
            different.dedup();
            assert!(different.len() > 2 * all.len() / 3, "{all:?}");
        }
        assert_eq!(answer_tokens(0, 1), 1);
    }
}
