//! Searches a request's fields for the token that stands for an image.

use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::{ChatRequest, ContentPart, GenerateRequest, Message};

use crate::images::{ImageError, ReservedTokens};

/// Checks the prompt of a Generate message.
///
/// # Errors
/// The field that has a reserved token.
pub fn check_generate(
    message: &GenerateRequest,
    reserved: ReservedTokens<'_>,
) -> Result<(), ImageError> {
    match &message.prompt {
        Some(Prompt::Text(text)) => reserved.check_text("text", text),
        Some(Prompt::TokenIds(list)) => reserved.check_ids("token_ids.ids", &list.ids),
        None => Ok(()),
    }
}

/// Checks every field of a Chat message that a template may show.
///
/// # Errors
/// The first field that has a reserved token.
pub fn check_chat(message: &ChatRequest, reserved: ReservedTokens<'_>) -> Result<(), ImageError> {
    if reserved.is_empty() {
        return Ok(());
    }
    for (at, message) in message.messages.iter().enumerate() {
        check_message(message, &format!("messages[{at}]"), reserved)?;
    }
    for (at, tool) in message.tools.iter().enumerate() {
        reserved.check_text(&format!("tools[{at}].description"), &tool.description)?;
        reserved.check_text(&format!("tools[{at}].parameters"), &tool.parameters)?;
    }
    reserved.check_text("template_arguments", &message.template_arguments)
}

fn check_message(
    message: &Message,
    field: &str,
    reserved: ReservedTokens<'_>,
) -> Result<(), ImageError> {
    for (place, part) in message.content.iter().enumerate() {
        if let Some(Part::Text(text)) = &part.part {
            reserved.check_text(&format!("{field}.content[{place}]"), text)?;
        }
    }
    // Templates write the parts of a message without anything between them.
    let text = |part: &ContentPart| match &part.part {
        Some(Part::Text(text)) => text.clone(),
        _ => "\n".to_owned(),
    };
    if message.content.len() > 1 {
        let all = message.content.iter().map(text).collect::<String>();
        reserved.check_text(&format!("{field}.content"), &all)?;
    }
    reserved.check_text(&format!("{field}.name"), &message.name)?;
    reserved.check_text(&format!("{field}.reasoning"), &message.reasoning)?;
    reserved.check_text(&format!("{field}.tool_call_id"), &message.tool_call_id)?;
    for (place, call) in message.tool_calls.iter().enumerate() {
        let call_field = format!("{field}.tool_calls[{place}]");
        reserved.check_text(&format!("{call_field}.arguments"), &call.arguments)?;
        reserved.check_text(&format!("{call_field}.id"), &call.id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::{TokenIds, Tool, ToolCall};
    use paceline_vocabulary::Reason;

    use super::*;
    use crate::images::tests::processor;

    #[test]
    fn the_placeholder_is_refused_in_every_field() {
        let processor = processor();
        let reserved = ReservedTokens::new(Some(&processor));
        let word = format!("a {} b", processor.placeholder);
        let field = |outcome: Result<(), ImageError>| {
            let error = outcome.expect_err("it has the placeholder");
            assert_eq!(error.reason(), Reason::InvalidArgument);
            error.field().unwrap_or_default().to_owned()
        };
        let generate = |prompt| GenerateRequest { prompt: Some(prompt), ..Default::default() };
        let text = generate(Prompt::Text(word.clone()));
        assert_eq!(field(check_generate(&text, reserved)), "text");
        let ids = generate(Prompt::TokenIds(TokenIds { ids: vec![1, processor.token] }));
        assert_eq!(field(check_generate(&ids, reserved)), "token_ids.ids[1]");
        assert!(check_generate(&ids, ReservedTokens::new(None)).is_ok());
        let similar = generate(Prompt::Text("a <|image| b".into()));
        assert!(check_generate(&similar, reserved).is_ok());

        let part = |text: &str| ContentPart { part: Some(Part::Text(text.into())) };
        let chat = |message| ChatRequest {
            messages: vec![Message::default(), message],
            ..Default::default()
        };
        let of = |message| field(check_chat(&chat(message), reserved));
        assert_eq!(
            of(Message { content: vec![part("x"), part(&word)], ..Default::default() }),
            "messages[1].content[1]"
        );
        let (head, tail) = processor.placeholder.split_at(4);
        assert_eq!(
            of(Message { content: vec![part(head), part(tail)], ..Default::default() }),
            "messages[1].content"
        );
        assert_eq!(of(Message { name: word.clone(), ..Default::default() }), "messages[1].name");
        assert_eq!(
            of(Message { reasoning: word.clone(), ..Default::default() }),
            "messages[1].reasoning"
        );
        let call = ToolCall { arguments: word.clone(), ..Default::default() };
        assert_eq!(
            of(Message { tool_calls: vec![call], ..Default::default() }),
            "messages[1].tool_calls[0].arguments"
        );
        let tool = Tool { description: word.clone(), ..Default::default() };
        let offered = ChatRequest { tools: vec![tool], ..Default::default() };
        assert_eq!(field(check_chat(&offered, reserved)), "tools[0].description");
        let arguments = ChatRequest { template_arguments: word, ..Default::default() };
        assert_eq!(field(check_chat(&arguments, reserved)), "template_arguments");
    }
}
