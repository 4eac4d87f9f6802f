//! One measurement: a prompt of some length alone, and its answer.

use paceline_client::Failure;
use paceline_client::answer::Answer;
use paceline_client::ask::{Choice, whole};
use paceline_client::channel::sent;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, RouteWish, TokenIds};
use paceline_system::clock::monotonic_ns;
use tonic::transport::Channel;

use crate::load::Sent;

/// A request for a greedy answer of a fixed number of tokens.
#[derive(Clone, Copy, Debug)]
pub struct ContextRequest<'a> {
    /// Token ids of the prompt.
    pub ids: &'a [u32],
    /// The lane to ask for.
    pub wish: RouteWish,
    /// Tokens of the answer.
    pub max_tokens: usize,
    /// Whether margins are reported, which costs time.
    pub margins: bool,
}

impl ContextRequest<'_> {
    /// Sends the request and reads the whole answer.
    ///
    /// # Errors
    /// The service's refusal.
    pub async fn send(
        &self,
        client: &mut InferenceClient<Channel>,
    ) -> Result<Sent<Answer>, Failure> {
        let request = GenerateRequest {
            prompt: Some(Prompt::TokenIds(TokenIds { ids: self.ids.to_vec() })),
            sampling: Some(Choice::Greedy.sampling()),
            limits: Some(Limits {
                max_tokens: Some(self.max_tokens as u32),
                ignore_eos: true,
                ..Default::default()
            }),
            route: self.wish.into(),
            report_margins: self.margins,
            ..Default::default()
        };
        let sent_ns = monotonic_ns();
        let response = sent(async || client.generate(request.clone()).await).await;
        Ok(Sent { answer: whole(response).await?, sent_ns })
    }
}
