//! One request in one lane, and the figures of its answer. Times are the service's own (stamps of
//! steps, and the figures of the last message), not this process's clock.

use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ChatRequest, Limits, RouteWish, Sampling};
use paceline_vocabulary::SamplingRule;
use tonic::transport::Channel;

use super::figures::{Decode, LaneAnswer};
use super::prompts::Prompt;
use crate::answer::Answer;
use crate::failure::Failure;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The most probable one.
    Greedy,
    /// Drawn, with this seed.
    Sampled(u64),
}

impl Choice {
    /// Its word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Choice::Greedy => "greedy",
            Choice::Sampled(_) => "sampled",
        }
    }

    /// Sets every field: with a model's own defaults the reports of two models would be different
    /// tests.
    fn sampling(self) -> Sampling {
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
    pub async fn send(&self, client: &mut InferenceClient<Channel>) -> Result<LaneAnswer, Failure> {
        let most = if self.ignore_eos {
            self.max_tokens
        } else {
            self.max_tokens.min(self.prompt.max_tokens)
        };
        let request = ChatRequest {
            model: String::new(),
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
        let about = |mut failure: Failure| {
            failure.message = format!(
                "{} prompt {}: {}",
                self.prompt.kind,
                self.prompt.index + 1,
                failure.message
            );
            failure
        };
        let mut stream = client
            .chat(request)
            .await
            .map_err(|status| about(Failure::refused(&status)))?
            .into_inner();
        let mut stamps = Vec::new();
        let answer = Answer::read_with(&mut stream, |message| {
            if !message.token_ids.is_empty() {
                stamps.push((message.token_ids.len(), message.step_end_ns));
            }
            Ok(())
        });
        let answer = answer.await.map_err(about)?;
        Ok(LaneAnswer {
            ids: answer.token_ids,
            margins: answer.margins,
            decode: Decode::of(&stamps),
            ttft_ms: answer.timing.ttft_ms,
            queue_ms: answer.timing.queue_ms,
            speculation: answer.speculation,
            route: answer.route,
        })
    }
}
