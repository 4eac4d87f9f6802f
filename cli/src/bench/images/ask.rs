//! Requests about images, and the figures of their answers.

use bytes::Bytes;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::count_tokens_request::Request as Counted;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{
    ChatRequest, ContentPart, CountTokensRequest, GetModelRequest, Limits, Message, RouteWish,
    content_part::Part,
};
use tonic::transport::Channel;

use super::row::Stages;
use crate::answer::Answer;
use crate::bench::tables::load::greedy;
use crate::failure::Failure;
use crate::messages::{picture, text};

/// What the caches of the service hold of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCache {
    /// Nothing: it comes for the first time.
    New,
    /// Its rows in the prefix cache: it comes in the next turn of the same conversation.
    NextTurn,
    /// Its features: it comes in another conversation, after other words, so its rows are prefilled
    /// again.
    Elsewhere,
}

impl ImageCache {
    /// All states, in the order of measurement: each needs the ones before it.
    pub const ALL: [Self; 3] = [Self::New, Self::NextTurn, Self::Elsewhere];

    /// Its word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::NextTurn => "next turn",
            Self::Elsewhere => "elsewhere",
        }
    }

    fn messages(self, file: Bytes) -> Vec<Message> {
        let words = |words: &str| ContentPart { part: Some(Part::Text(words.to_owned())) };
        let mut parts = vec![picture(file), words("What does this picture show?")];
        if self == Self::Elsewhere {
            parts.insert(0, words("Look at this one."));
        }
        let first = Message { role: "user".to_owned(), content: parts, ..Default::default() };
        match self {
            Self::New | Self::Elsewhere => vec![first],
            // The real answer of the model may be text that its template refuses.
            Self::NextTurn => vec![
                first,
                text("assistant", "Some colours."),
                text("user", "Which one is the brightest?"),
            ],
        }
    }
}

/// A request about an image, for one token in the plain lane.
pub fn request(cache: ImageCache, file: Bytes) -> ChatRequest {
    chat(cache.messages(file), Some(1))
}

/// A request for an endless text.
pub fn story(number: usize) -> ChatRequest {
    chat(vec![text("user", format!("Tell a long story in {} chapters.", number + 20))], None)
}

fn chat(messages: Vec<Message>, max_tokens: Option<u32>) -> ChatRequest {
    ChatRequest {
        messages,
        sampling: Some(greedy()),
        limits: Some(Limits { max_tokens, ignore_eos: true, ..Default::default() }),
        route: RouteWish::Plain.into(),
        ..Default::default()
    }
}

/// Sends a request about an image and returns the times of its first token.
///
/// # Errors
/// The service's refusal.
pub async fn first_token(
    mut client: InferenceClient<Channel>,
    request: ChatRequest,
) -> Result<Stages, Failure> {
    let mut stream =
        client.chat(request).await.map_err(|status| Failure::refused(&status))?.into_inner();
    let answer = Answer::read(&mut stream, |_| Ok(())).await?;
    Ok(Stages::of(&answer.timing, &answer.usage))
}

/// Checks that the model answers conversations with images.
///
/// # Errors
/// It has no vision tower, or chat is not served.
pub async fn check_vision(client: &mut InferenceClient<Channel>) -> Result<(), Failure> {
    let asked = client.get_model(GetModelRequest::default()).await;
    let model = asked.map_err(|status| Failure::refused(&status))?.into_inner();
    if model.vision && model.chat {
        return Ok(());
    }
    let lacks = if model.vision { "no chat template" } else { "no vision tower" };
    Err(Failure::bench(format!(
        "--images: expected a model with a vision tower and a chat template, found {} ({}), which has {lacks}: name one with --model",
        model.name, model.architecture
    )))
}

/// The number of tokens of a prompt, or the reason why the prompt does not fit.
///
/// # Errors
/// Any other refusal.
pub async fn tokens(
    client: &mut InferenceClient<Channel>,
    request: ChatRequest,
) -> Result<Result<u32, String>, Failure> {
    let asked = CountTokensRequest { request: Some(Counted::Chat(request)), ..Default::default() };
    match client.count_tokens(asked).await {
        Ok(counted) => Ok(Ok(counted.into_inner().prompt_tokens)),
        Err(status) if Reason::of(&status) == Some(Reason::PromptTooLong) => {
            Ok(Err(status.message().to_owned()))
        }
        Err(status) => Err(Failure::refused(&status)),
    }
}
