//! A request that is well formed, and the checks that make it so.

use paceline_text::images::ReservedTokens;
use paceline_text::prompt::Source;

use super::conversation;
use super::error::InferenceError;
use super::input::{ContentPartInput, ConversationInput, PromptInput, RequestInput};
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
pub fn check(input: RequestInput, reserved: ReservedTokens<'_>) -> Result<Request, InferenceError> {
    let RequestInput { prompt, params } = input;
    let source = match prompt {
        PromptInput::Text(text) if text.is_empty() => {
            return Err(InferenceError::invalid("text", "a prompt", "an empty one"));
        }
        PromptInput::Ids(ids) if ids.is_empty() => {
            return Err(InferenceError::invalid("token_ids.ids", "at least one token id", "none"));
        }
        PromptInput::Text(text) => {
            reserved.check_text("text", &text)?;
            Source::Text(text)
        }
        PromptInput::Ids(ids) => {
            reserved.check_ids("token_ids.ids", &ids)?;
            Source::Ids(ids)
        }
        PromptInput::IdsWithImages { ids, images } => {
            // A model that reads no images refuses them later, with its own reason.
            match reserved.count(&ids) {
                Some(found) if found != images.len() => {
                    let expected = format!("one placeholder for each of {} images", images.len());
                    return Err(InferenceError::invalid("token_ids.ids", expected, found));
                }
                _ => Source::IdsWithImages { ids, images },
            }
        }
        PromptInput::Conversation(input) => {
            check_reserved(&input, reserved)?;
            Source::Chat(conversation::check(input)?)
        }
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

/// Checks all text that a template may show.
fn check_reserved(
    conversation: &ConversationInput,
    reserved: ReservedTokens<'_>,
) -> Result<(), InferenceError> {
    if reserved.is_empty() {
        return Ok(());
    }
    for (at, message) in conversation.messages.iter().enumerate() {
        let field = |name: &str| format!("messages[{at}].{name}");
        for (place, part) in message.content.iter().enumerate() {
            if let ContentPartInput::Text(text) = part {
                reserved.check_text(&field(&format!("content[{place}]")), text)?;
            }
        }
        // Templates show the parts of a message one after the other.
        let text = |part: &ContentPartInput| match part {
            ContentPartInput::Text(text) => text.clone(),
            ContentPartInput::Image(_) | ContentPartInput::ImageUrl { .. } => "\n".to_owned(),
        };
        if message.content.len() > 1 {
            let all: String = message.content.iter().map(text).collect();
            reserved.check_text(&field("content"), &all)?;
        }
        reserved.check_text(&field("name"), &message.name)?;
        reserved.check_text(&field("reasoning"), &message.reasoning)?;
        reserved.check_text(&field("tool_call_id"), &message.tool_call_id)?;
        for (place, call) in message.tool_calls.iter().enumerate() {
            let field = |name: &str| field(&format!("tool_calls[{place}].{name}"));
            reserved.check_text(&field("arguments"), &call.arguments.text())?;
            reserved.check_text(&field("id"), &call.id)?;
        }
    }
    for (at, tool) in conversation.tools.iter().enumerate() {
        reserved.check_text(&format!("tools[{at}].description"), &tool.description)?;
        reserved.check_text(&format!("tools[{at}].parameters"), &tool.parameters.text())?;
    }
    reserved.check_text("template_arguments", &conversation.template_arguments.text())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_text::samples::processor;

    use super::*;
    use crate::inference::input::{MessageInput, ToolCallInput, ToolInput};

    #[test]
    fn the_image_placeholder_is_refused_in_every_field() {
        let made = processor();
        let reserved = ReservedTokens::new(Some(&made));
        let word = format!("a {} b", made.placeholder);
        let field = |prompt: PromptInput| {
            let input = RequestInput { prompt, params: GenerationParams::default() };
            let error = check(input, reserved).expect_err("it has the placeholder");
            assert_eq!(error.kind, paceline_vocabulary::Reason::InvalidArgument);
            error.message.split(": ").next().unwrap_or_default().to_owned()
        };
        assert_eq!(field(PromptInput::Text(word.clone())), "text");
        assert_eq!(field(PromptInput::Ids(vec![1, made.token])), "token_ids.ids[1]");
        let fine = |prompt, reserved| {
            let input = RequestInput { prompt, params: GenerationParams::default() };
            assert!(check(input, reserved).is_ok());
        };
        fine(PromptInput::Ids(vec![1, made.token]), ReservedTokens::new(None));
        fine(PromptInput::Text("a <|image| b".into()), reserved);

        let conversation = |input| field(PromptInput::Conversation(input));
        let of = |message| {
            let messages = vec![MessageInput::default(), message];
            conversation(ConversationInput { messages, ..Default::default() })
        };
        let part = |text: &str| ContentPartInput::Text(text.into());
        assert_eq!(
            of(MessageInput { content: vec![part("x"), part(&word)], ..Default::default() }),
            "messages[1].content[1]"
        );
        let (head, tail) = made.placeholder.split_at(4);
        assert_eq!(
            of(MessageInput { content: vec![part(head), part(tail)], ..Default::default() }),
            "messages[1].content"
        );
        assert_eq!(
            of(MessageInput { name: word.clone(), ..Default::default() }),
            "messages[1].name"
        );
        assert_eq!(
            of(MessageInput { reasoning: word.clone(), ..Default::default() }),
            "messages[1].reasoning"
        );
        let call = ToolCallInput { arguments: word.as_str().into(), ..Default::default() };
        assert_eq!(
            of(MessageInput { tool_calls: vec![call], ..Default::default() }),
            "messages[1].tool_calls[0].arguments"
        );
        let tool = ToolInput { description: word.clone(), ..Default::default() };
        assert_eq!(
            conversation(ConversationInput { tools: vec![tool], ..Default::default() }),
            "tools[0].description"
        );
        let arguments =
            ConversationInput { template_arguments: word.as_str().into(), ..Default::default() };
        assert_eq!(conversation(arguments), "template_arguments");
    }
}
