//! Requests for greedy answers of a fixed number of tokens, of which a fixed number runs at once.

use futures::StreamExt as _;
use futures::stream;
use paceline_client::Failure;
use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice, whole};
use paceline_client::channel::sent;
use paceline_client::prompts::Prompt;
use paceline_proto::v1::generate_request::Prompt as PromptOfRequest;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, RouteWish, TokenIds};
use paceline_system::clock::monotonic_ns;
use tonic::transport::Channel;

/// The answer to a request, and when the request was submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// The answer.
    pub answer: Answer,
    /// Time of the submission, in nanoseconds of [`monotonic_ns`].
    pub sent_ns: i64,
}

/// What a request asks for beside its prompt. Answers are greedy. End-of-sequence tokens are
/// ignored, so that each measurement has the same work.
#[derive(Clone, Copy, Debug)]
pub struct FixedAnswer {
    /// The lane to ask for.
    pub lane: RouteWish,
    /// Tokens of the answer.
    pub max_tokens: u32,
    /// Whether margins are reported, which costs time.
    pub margins: bool,
}

impl FixedAnswer {
    /// An answer of this number of tokens, without margins.
    pub fn new(lane: RouteWish, max_tokens: u32) -> Self {
        Self { lane, max_tokens, margins: false }
    }

    /// A plain answer with margins, by which a difference between two other answers is judged.
    pub fn to_judge(max_tokens: u32) -> Self {
        Self { lane: RouteWish::Plain, max_tokens, margins: true }
    }

    /// Sends a conversation and reads the whole answer.
    ///
    /// # Errors
    /// The service's refusal.
    pub async fn chat(
        self,
        client: &InferenceClient<Channel>,
        prompt: &Prompt,
    ) -> Result<Sent, Failure> {
        let Self { lane, max_tokens, margins } = self;
        let choice = Choice::Greedy;
        let ask = Ask { prompt, choice, lane, max_tokens, margins, ignore_eos: true };
        let sent_ns = monotonic_ns();
        Ok(Sent { answer: ask.send(&mut client.clone()).await?, sent_ns })
    }

    /// Sends a prompt of these ids and reads the whole answer.
    ///
    /// # Errors
    /// The service's refusal.
    pub async fn complete(
        self,
        client: &InferenceClient<Channel>,
        ids: &[u32],
    ) -> Result<Sent, Failure> {
        let request = GenerateRequest {
            prompt: Some(PromptOfRequest::TokenIds(TokenIds { ids: ids.to_vec() })),
            sampling: Some(Choice::Greedy.sampling()),
            limits: Some(Limits {
                max_tokens: Some(self.max_tokens),
                ignore_eos: true,
                ..Default::default()
            }),
            route: self.lane.into(),
            report_margins: self.margins,
            ..Default::default()
        };
        let mut client = client.clone();
        let sent_ns = monotonic_ns();
        let response = sent(async || client.generate(request.clone()).await).await;
        Ok(Sent { answer: whole(response).await?, sent_ns })
    }

    /// Sends conversations, `streams` at once. `max_tokens` is the mean of the answers, see
    /// [`answer_tokens`]. Returns what [`at_once`] does.
    ///
    /// # Errors
    /// The service's refusal of one of them.
    pub async fn chats(
        self,
        client: &InferenceClient<Channel>,
        prompts: &[Prompt],
        streams: usize,
    ) -> Result<(Vec<Sent>, f64), Failure> {
        at_once(prompts, streams, |prompt| {
            let max_tokens = answer_tokens(prompt.index, self.max_tokens);
            Self { max_tokens, ..self }.chat(client, prompt)
        })
        .await
    }
}

/// Sends all prompts, `streams` at once: when one ends, the next begins. Returns the answers in the
/// order of the prompts. The second value is the time in seconds from the first submission to the
/// end of the last answer.
///
/// # Errors
/// The first failure of one of them.
pub async fn at_once<'p, P, F>(
    prompts: &'p [P],
    streams: usize,
    ask: impl Fn(&'p P) -> F,
) -> Result<(Vec<Sent>, f64), Failure>
where
    F: Future<Output = Result<Sent, Failure>>,
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

/// Number of tokens of the answer to the prompt `index`. Numbers are spread evenly, up to a quarter
/// below and above the mean, and are the same in each mode. If all answers had one length, plain
/// streams that begin together would end together. Their next prompts would always share one
/// prefill step, which does not happen in real traffic.
fn answer_tokens(index: usize, mean: u32) -> u32 {
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
