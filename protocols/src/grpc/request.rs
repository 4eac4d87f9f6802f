//! A conversation as messages of inference.proto, for clients that send one.

use paceline_proto::v1;
use paceline_proto::v1::content_part::Part;
use paceline_text::images::Detail;

use crate::inference::error::{Result, refuse};
use crate::inference::input::{ContentPartInput, MessageInput, ToolInput};

/// A message of a conversation, which is at `at` in it.
///
/// # Errors
/// An image of which the model is to read few pixels: the protocol has no word for that.
pub fn message(at: usize, message: MessageInput) -> Result<v1::Message> {
    let MessageInput { role, content, tool_calls, tool_call_id, name, reasoning } = message;
    let content = content.into_iter().enumerate();
    let content = content.map(|(place, part)| part_of(at, place, part));
    let calls = tool_calls.into_iter().map(|call| v1::ToolCall {
        id: call.id,
        name: call.name,
        arguments: call.arguments.text().into_owned(),
    });
    Ok(v1::Message {
        role,
        content: content.collect::<Result<_>>()?,
        tool_calls: calls.collect(),
        tool_call_id,
        name,
        reasoning,
    })
}

/// A tool that the model may call.
pub fn tool(tool: ToolInput) -> v1::Tool {
    let ToolInput { name, description, parameters, strict, path: _ } = tool;
    v1::Tool { name, description, parameters: parameters.text().into_owned(), strict }
}

fn part_of(at: usize, place: usize, part: ContentPartInput) -> Result<v1::ContentPart> {
    let part = match part {
        ContentPartInput::Text(text) => Part::Text(text),
        ContentPartInput::Image(data) => Part::Image(v1::Image { data }),
        ContentPartInput::ImageUrl { url, detail: Detail::Full } => {
            Part::ImageUrl(v1::ImageUrl { url })
        }
        ContentPartInput::ImageUrl { url: _, detail: Detail::Low } => {
            let field = format!("messages[{at}].content[{place}].detail");
            return refuse(&field, "auto or high, which this protocol sends", "low");
        }
    };
    Ok(v1::ContentPart { part: Some(part) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::decode;
    use crate::inference::input::{ConversationInput, JsonInput, PromptInput, ToolCallInput};

    #[test]
    fn a_conversation_that_is_sent_is_the_one_that_is_read() {
        let image = ContentPartInput::ImageUrl { url: "data:,a".into(), detail: Detail::Full };
        let messages = vec![
            MessageInput {
                role: "user".into(),
                content: vec![ContentPartInput::Text("a".into()), image],
                name: "n".into(),
                ..Default::default()
            },
            MessageInput {
                role: "assistant".into(),
                tool_calls: vec![ToolCallInput {
                    id: "c".into(),
                    name: "f".into(),
                    arguments: JsonInput::from(r#"{"x":1}"#),
                }],
                reasoning: "r".into(),
                ..Default::default()
            },
            MessageInput {
                role: "tool".into(),
                content: vec![ContentPartInput::Image(vec![1, 2].into())],
                tool_call_id: "c".into(),
                ..Default::default()
            },
        ];
        let tools = vec![ToolInput {
            name: "f".into(),
            description: "d".into(),
            parameters: JsonInput::from(r#"{"type":"object"}"#),
            strict: true,
            path: String::new(),
        }];
        let sent = v1::ChatRequest {
            messages: messages
                .iter()
                .enumerate()
                .map(|(at, one)| message(at, one.clone()).expect("sent"))
                .collect(),
            tools: tools.iter().cloned().map(tool).collect(),
            ..Default::default()
        };
        let read = decode::chat(sent).expect("read");
        let PromptInput::Conversation(read) = read.prompt else { panic!("a conversation") };
        assert_eq!(read, ConversationInput { messages, tools, ..Default::default() });
    }

    #[test]
    fn few_pixels_are_refused_by_their_field() {
        let part = ContentPartInput::ImageUrl { url: "data:,a".into(), detail: Detail::Low };
        let content = vec![ContentPartInput::Text("a".into()), part];
        let error = message(3, MessageInput { content, ..Default::default() }).expect_err("low");
        assert_eq!(error.field.as_deref(), Some("messages[3].content[1].detail"));
    }
}
