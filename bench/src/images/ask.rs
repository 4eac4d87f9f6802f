//! Requests about images, and the figures of their answers.

use bytes::Bytes;
use paceline_client::Failure;
use paceline_client::ask::{Choice, whole};
use paceline_client::message::{image, text};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::count_tokens_request::Request as Counted;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{
    ChatRequest, ContentPart, CountTokensRequest, GetModelRequest, Limits, Message, RouteWish,
    content_part::Part,
};
use tonic::transport::Channel;

use super::stages::{FirstToken, ImageCache};
use crate::report::failed;

/// A request about an image, for one token in the plain lane.
pub fn request(cache: ImageCache, file: Bytes) -> ChatRequest {
    let words = |words: &str| ContentPart { part: Some(Part::Text(words.to_owned())) };
    let mut content = vec![image(file), words("What does this image show?")];
    if cache == ImageCache::Elsewhere {
        content.insert(0, words("Look at this one."));
    }
    let mut messages = vec![Message { role: "user".to_owned(), content, ..Default::default() }];
    if cache == ImageCache::NextTurn {
        // The real answer of the model may be text that its template refuses.
        messages.push(text("assistant", "Some colours."));
        messages.push(text("user", "Which one is the brightest?"));
    }
    chat(messages, Some(1))
}

/// A request for an endless text.
pub fn story(number: usize) -> ChatRequest {
    chat(vec![text("user", format!("Tell a long story in {} chapters.", number + 20))], None)
}

fn chat(messages: Vec<Message>, max_tokens: Option<u32>) -> ChatRequest {
    ChatRequest {
        messages,
        sampling: Some(Choice::Greedy.sampling()),
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
) -> Result<FirstToken, Failure> {
    Ok(FirstToken::of(&whole(client.chat(request).await).await?))
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
    Err(failed(format!(
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
