//! One measurement: the requests of a cell, from the first submission to the end of the last
//! answer. A fixed number of them runs at once.

use paceline_client::Failure;
use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice};
use paceline_client::prompts::Prompt;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use crate::load::at_once;

/// Requests of which `streams` run at once. When one ends, the next begins.
#[derive(Clone, Copy, Debug)]
pub struct LaneWorkload<'a> {
    /// Prompts, one request each.
    pub prompts: &'a [Prompt],
    /// Requests at once.
    pub streams: usize,
    /// The lane to ask for.
    pub wish: RouteWish,
    /// Mean number of tokens of an answer (see [`tokens_of`]). End-of-sequence tokens are ignored,
    /// so that each measurement has the same work.
    pub max_tokens: u32,
}

/// Number of tokens of the answer to the prompt `index`. Numbers are spread evenly, up to a quarter
/// below and above the mean, and are the same in each mode. If all answers had one length, plain
/// streams that begin together would end together. Their next prompts would always share one
/// prefill step, which does not happen in real traffic.
fn tokens_of(index: usize, mean: u32) -> u32 {
    // Multiples of the golden ratio, modulo 1, are spread evenly for each count.
    let share = (index as f64 * 0.618_033_988_749_895).fract();
    ((f64::from(mean) * (0.75 + 0.5 * share)).round() as u32).max(1)
}

/// The figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellRun {
    /// Time from the first submission to the end of the last answer, by this process's clock. The
    /// sum of several passes.
    pub seconds: f64,
    /// Tokens of all answers.
    pub tokens: usize,
    /// The answers, in the order of the prompts.
    pub answers: Vec<Answer>,
}

impl CellRun {
    /// Tokens per second of wall-clock time: the metric of the benchmark.
    pub fn tok_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Adds one more pass of the same run.
    pub fn add(&mut self, pass: &CellRun) {
        self.seconds += pass.seconds;
        self.tokens += pass.tokens;
        self.answers.extend_from_slice(&pass.answers);
    }

    /// Answers that waited for admission. They did not run together with the others.
    pub fn waited(&self) -> usize {
        self.answers.iter().filter(|seen| seen.waited()).count()
    }
}

impl LaneWorkload<'_> {
    /// Sends all requests and reads all answers.
    ///
    /// # Errors
    /// The service's refusal of one of them.
    pub async fn send(&self, client: &InferenceClient<Channel>) -> Result<CellRun, Failure> {
        let (wish, mean) = (self.wish, self.max_tokens);
        let ask = |prompt: &Prompt| {
            let (mut client, prompt) = (client.clone(), prompt.clone());
            async move {
                let (prompt, choice, max_tokens) =
                    (&prompt, Choice::Greedy, tokens_of(prompt.index, mean));
                Ask { prompt, choice, lane: wish, max_tokens, margins: false, ignore_eos: true }
                    .send(&mut client)
                    .await
            }
        };
        let (answers, seconds) = at_once(self.prompts, self.streams, ask).await?;
        Ok(CellRun {
            seconds,
            tokens: answers.iter().map(|seen| seen.token_ids.len()).sum(),
            answers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_lengths_vary_around_the_requested_mean() {
        for count in [8, 16, 40] {
            let all: Vec<u32> = (0..count).map(|index| tokens_of(index, 96)).collect();
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
        assert_eq!(tokens_of(0, 1), 1);
    }
}
