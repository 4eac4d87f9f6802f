//! Requests of which a fixed number runs at once.

use futures::StreamExt as _;
use futures::stream;
use paceline_client::Failure;
use paceline_process::clock::monotonic_ns;

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
) -> Result<(Vec<A>, f64), Failure>
where
    F: Future<Output = Result<A, Failure>>,
{
    let begin = monotonic_ns();
    let asked = prompts.iter().enumerate().map(|(at, prompt)| {
        let answer = ask(prompt);
        async move { answer.await.map(|answer| (at, answer)) }
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
