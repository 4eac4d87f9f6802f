//! A request that is well formed, and the checks that make it so.

use paceline_text::images::ReservedTokens;
use paceline_text::prompt::Source;

use super::conversation;
use super::error::{Result, refuse};
use super::input::{PromptInput, RequestInput};
use super::params::GenerationParams;

/// A request that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The prompt to continue or to answer.
    pub source: Source,
    /// Parameters of the answer.
    pub params: GenerationParams,
    /// Version of the text side that it was checked with.
    pub language: u64,
}

/// Checks everything that does not need the served model, but for the tokens that its text side
/// reserves.
///
/// # Errors
/// The first field that cannot be served.
pub fn check(input: RequestInput, reserved: ReservedTokens<'_>) -> Result<Request> {
    let RequestInput { prompt, params } = input;
    let source = match prompt {
        PromptInput::Text(text) if text.is_empty() => {
            return refuse("text", "a prompt", "an empty one");
        }
        PromptInput::Ids(ids) if ids.is_empty() => {
            return refuse("token_ids.ids", "at least one token id", "none");
        }
        PromptInput::Text(text) => Source::Text(text),
        PromptInput::Ids(ids) => {
            reserved.check_ids("token_ids.ids", &ids)?;
            Source::Ids(ids)
        }
        PromptInput::IdsWithImages { ids, images } => {
            // A model that reads no images refuses them later, with its own reason.
            match reserved.count(&ids) {
                Some(found) if found != images.len() => {
                    let expected = format!("one placeholder for each of {} images", images.len());
                    return refuse("token_ids.ids", expected, found);
                }
                _ => Source::IdsWithImages { ids, images },
            }
        }
        PromptInput::Conversation(input) => Source::Chat(conversation::check(input)?),
    };
    Ok(Request { source, params: params.check()?, language: 0 })
}

impl Request {
    /// The field of the prompt.
    pub fn prompt_field(&self) -> &'static str {
        match self.source {
            Source::Text(_) => "text",
            Source::Ids(_) | Source::IdsWithImages { .. } => "token_ids.ids",
            Source::Chat(_) => "messages",
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_text::samples::processor;

    use super::*;

    #[test]
    fn the_image_placeholder_is_refused_among_ids() {
        let made = processor();
        let reserved = ReservedTokens::new(Some(&made));
        let check = |prompt, reserved| {
            check(RequestInput { prompt, params: GenerationParams::default() }, reserved)
        };
        let ids = || PromptInput::Ids(vec![1, made.token]);
        let error = check(ids(), reserved).expect_err("it has the placeholder");
        assert_eq!(error.kind, paceline_vocabulary::Reason::InvalidArgument);
        assert_eq!(error.field.as_deref(), Some("token_ids.ids[1]"));
        assert!(check(ids(), ReservedTokens::new(None)).is_ok());
        assert!(check(PromptInput::Text("a <|image_pad|> b".into()), reserved).is_ok());
    }
}
