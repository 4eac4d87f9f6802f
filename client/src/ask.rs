//! One request of a measurement, and its whole answer.

use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ChatRequest, GenerateResponse, Limits, RouteWish, Sampling};
use paceline_vocabulary::SamplingRule;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::answer::Answer;
use crate::channel::sent;
use crate::failure::Failure;
use crate::prompts::Prompt;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The most probable one.
    Greedy,
    /// Drawn, with this seed.
    Sampled(u64),
}

impl Choice {
    /// Name of the choice in reports.
    pub fn word(self) -> &'static str {
        match self {
            Choice::Greedy => "greedy",
            Choice::Sampled(_) => "sampled",
        }
    }

    /// Sets every field: with a model's own defaults the reports of two models would be different
    /// tests.
    pub fn sampling(self) -> Sampling {
        let (temperature, top_p, repetition_penalty, seed) = match self {
            Choice::Greedy => (0.0, 1.0, 1.0, 0),
            Choice::Sampled(seed) => (0.8, 0.95, 1.1, seed),
        };
        let rule = SamplingRule { temperature, top_p, repetition_penalty, ..SamplingRule::GREEDY };
        Sampling { seed: Some(seed), ..rule.into() }
    }
}

/// One request in a lane.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The prompt.
    pub prompt: &'a Prompt,
    /// How tokens are chosen.
    pub choice: Choice,
    /// The lane.
    pub lane: RouteWish,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Whether margins are reported, which costs time.
    pub margins: bool,
    /// Continue after the model's end of the answer, for exactly `max_tokens`.
    pub ignore_eos: bool,
}

impl Ask<'_> {
    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// The service's refusal, with the prompt it is about.
    pub async fn send(&self, client: &mut InferenceClient<Channel>) -> Result<Answer, Failure> {
        let most = if self.ignore_eos {
            self.max_tokens
        } else {
            self.max_tokens.min(self.prompt.max_tokens)
        };
        let request = ChatRequest {
            messages: self.prompt.messages.clone(),
            sampling: Some(self.choice.sampling()),
            limits: Some(Limits {
                max_tokens: Some(most),
                ignore_eos: self.ignore_eos,
                ..Default::default()
            }),
            route: self.lane.into(),
            report_margins: self.margins,
            ..Default::default()
        };
        let response = sent(async || client.chat(request.clone()).await).await;
        whole(response).await.map_err(|failure| {
            let Prompt { kind, index, .. } = self.prompt;
            let message = format!("{kind} prompt {}: {}", index + 1, failure.message);
            Failure { message, ..failure }
        })
    }
}

/// Reads the whole answer to a request that was sent.
///
/// # Errors
/// As [`Answer::read`].
pub async fn whole(
    sent: Result<Response<Streaming<GenerateResponse>>, Status>,
) -> Result<Answer, Failure> {
    let mut stream = sent.map_err(|status| Failure::refused(&status))?.into_inner();
    Answer::read(&mut stream, |_| Ok(())).await
}
