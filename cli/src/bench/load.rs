//! One measurement: the requests of a cell, so many at once, from the first submission to the end of the last answer.

use futures::StreamExt as _;
use futures::stream;
use paceline_process::clock::monotonic_ns;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use crate::failure::Failure;
use crate::selftest::ask::{Ask, Choice};
use crate::selftest::figures::Seen;
use crate::selftest::prompts::Prompt;

/// Requests that are sent so many at once: when one ends the next begins.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// What is asked.
    pub prompts: &'a [Prompt],
    /// At once.
    pub streams: usize,
    /// In which lane.
    pub wish: RouteWish,
    /// Tokens of each answer; the model's end of an answer is passed over, so that the work is the same whatever it says.
    pub max_tokens: u32,
}

/// What was seen of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// From the first submission to the end of the last answer, by this process's clock.
    pub seconds: f64,
    /// Of all answers.
    pub tokens: usize,
    /// The answers, in the order of the prompts.
    pub answers: Vec<Seen>,
}

impl Measured {
    /// The one metric: tokens over wall-clock time.
    pub fn tok_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Answers that waited before they were let in: they did not run at once with the others.
    pub fn waited(&self) -> usize {
        self.answers.iter().filter(|seen| seen.queue_ms > 0.0).count()
    }
}

impl Load<'_> {
    /// Sends all and reads all answers.
    ///
    /// # Errors
    /// The service's refusal of one of them.
    pub async fn send(&self, client: &InferenceClient<Channel>) -> Result<Measured, Failure> {
        let (wish, max_tokens) = (self.wish, self.max_tokens);
        let ask = |prompt: &Prompt| {
            let (mut client, prompt) = (client.clone(), prompt.clone());
            async move {
                let (prompt, choice) = (&prompt, Choice::Greedy);
                Ask { prompt, choice, lane: wish, max_tokens, margins: false, ignore_eos: true }.send(&mut client).await
            }
        };
        let (answers, seconds) = at_once(self.prompts, self.streams, ask).await?;
        Ok(Measured { seconds, tokens: answers.iter().map(|seen| seen.ids.len()).sum(), answers })
    }
}

/// Asks for all, so many at once: when one ends the next begins. The answers in the order of the prompts, and the seconds
/// from the first submission to the end of the last answer by this process's clock.
///
/// # Errors
/// The first failure of one of them.
pub async fn at_once<P, A, F>(prompts: &[P], streams: usize, ask: impl Fn(&P) -> F) -> Result<(Vec<A>, f64), Failure>
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
    // Never 0: a request takes more than a nanosecond, and who divides by this need not ask.
    let seconds = (monotonic_ns() - begin).max(1) as f64 / 1e9;
    answers.sort_by_key(|(at, _)| *at);
    Ok((answers.into_iter().map(|(_, answer)| answer).collect(), seconds))
}
