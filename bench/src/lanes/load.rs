//! One measurement: the requests of a cell, from the first submission to the end of the last
//! answer. A fixed number of them runs at once.

use paceline_client::Failure;
use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice};
use paceline_client::prompts::Prompt;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use crate::load::{answer_tokens, at_once};
use crate::requests::RequestTimes;

/// Requests of which `streams` run at once. When one ends, the next begins.
#[derive(Clone, Copy, Debug)]
pub struct LaneWorkload<'a> {
    /// Prompts, one request each.
    pub prompts: &'a [Prompt],
    /// Requests at once.
    pub streams: usize,
    /// The lane to ask for.
    pub wish: RouteWish,
    /// Mean number of tokens of an answer (see [`answer_tokens`]). End-of-sequence tokens are ignored,
    /// so that each measurement has the same work.
    pub max_tokens: u32,
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
    /// Times of the requests, in the same order.
    pub requests: Vec<RequestTimes>,
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
        self.requests.extend_from_slice(&pass.requests);
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
                    (&prompt, Choice::Greedy, answer_tokens(prompt.index, mean));
                Ask { prompt, choice, lane: wish, max_tokens, margins: false, ignore_eos: true }
                    .send(&mut client)
                    .await
            }
        };
        let (sent, seconds) = at_once(self.prompts, self.streams, ask).await?;
        let requests = sent.iter().filter_map(RequestTimes::of).collect();
        let answers: Vec<Answer> = sent.into_iter().map(|sent| sent.answer).collect();
        Ok(CellRun {
            seconds,
            requests,
            tokens: answers.iter().map(|seen| seen.token_ids.len()).sum(),
            answers,
        })
    }
}
