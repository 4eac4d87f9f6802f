//! Conversations from a file: the messages of a request of `/v1/chat/completions`, alone or under
//! `"messages"`, with `"tools"` beside. They are read as the service reads such a request.

use paceline_proto::v1::{ContentPart, Message, Tool};
use paceline_protocols::grpc::request;
use paceline_protocols::inference::error::{InferenceError, refuse};
use paceline_protocols::inference::input::PromptInput;
use paceline_protocols::json;
use paceline_protocols::openai::chat;
use serde_json::{Map, Value};

/// Puts images before the text of the last message of the user.
///
/// # Errors
/// There is no such message.
pub fn show(messages: &mut [Message], images: Vec<ContentPart>) -> Result<(), InferenceError> {
    if images.is_empty() {
        return Ok(());
    }
    let last = messages.iter_mut().rfind(|message| message.role == "user");
    let expected = "a message of the role user that the image belongs to";
    let Some(message) = last else { return refuse("--image", expected, "none") };
    message.content.splice(0..0, images);
    Ok(())
}

/// Contents of a file of messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
}

/// Reads a conversation.
///
/// # Errors
/// It is not one. The error names the field, the expected value and the one found.
pub fn parse(text: &str) -> Result<Conversation, InferenceError> {
    let is_list = text.trim_start_matches('\u{feff}').trim_start().starts_with('[');
    let alone =
        is_list.then(|| format!("{{\"messages\":{}}}", text.trim_start_matches('\u{feff}')));
    let body = alone.as_deref().unwrap_or(text).as_bytes();
    let fields: Map<String, Value> = json::decode(body, json::MAX_NUMBERS)?;
    let of_others = fields.keys().find(|name| !["messages", "tools"].contains(&name.as_str()));
    if let Some(name) = of_others.filter(|name| !fields[*name].is_null()) {
        let expected = "no field beside messages and tools, because other settings are flags";
        return refuse(name, expected, "one");
    }
    let input = chat::input(json::decode(body, json::MAX_NUMBERS)?)?;
    let PromptInput::Conversation(conversation) = input.prompt else {
        return refuse("messages", "a conversation", "another prompt");
    };
    let messages = conversation.messages.into_iter().enumerate();
    let messages = messages.map(|(at, message)| request::message(at, message));
    let tools = conversation.tools.into_iter().map(request::tool).collect();
    Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, tools })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::message;
    use paceline_proto::v1::content_part::Part;

    #[test]
    fn a_conversation_is_read_alone_and_under_its_name() {
        let list = r#"[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":
            [{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}]"#;
        let tools =
            r#"[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]"#;
        let alone = parse(list).expect("read");
        assert_eq!(alone, parse(&format!("\u{feff} {list}\n")).expect("with a mark"));
        let named = format!(r#"{{"messages":{list},"tools":{tools},"stream":null}}"#);
        let named = parse(&named).expect("read");
        assert_eq!(named.messages, alone.messages);
        assert_eq!((named.tools[0].name.as_str(), alone.tools.len()), ("f", 0));
        assert_eq!(alone.messages[0], message::text("user", "hi"));
        assert_eq!(alone.messages[1].tool_calls[0].name, "f");
        assert_eq!(alone.messages[1].content, vec![]);
        let text = "data:image/png;base64,AAEC";
        let image =
            format!(r#"[{{"role":"user","content":[{{"type":"image","image":"{text}"}}]}}]"#);
        let part = &parse(&image).expect("read").messages[0].content[0].part;
        assert!(matches!(part, Some(Part::ImageUrl(image)) if image.url == text));
    }

    #[test]
    fn errors_name_the_field() {
        for (text, field) in [
            ("{", "body"),
            ("3", "body"),
            (r#"{"prompt":"x"}"#, "prompt"),
            (r#"{"messages":[],"max_tokens":3}"#, "max_tokens"),
            (r#"[{"role":"user","content":"x","colour":"y"}]"#, "messages[0].colour"),
            (r#"[{"role":"user","content":[{"type":"audio"}]}]"#, "messages[0].content[0].type"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.field.as_deref(), Some(field), "{text}: {error}");
        }
    }

    #[test]
    fn images_go_before_the_users_last_text() {
        let mut messages = vec![
            message::text("user", "a"),
            message::text("assistant", "b"),
            message::text("user", "c"),
            message::text("assistant", "d"),
        ];
        show(&mut messages, vec![message::image(vec![1]), message::image(vec![2])])
            .expect("there is a user");
        let counts: Vec<_> = messages.iter().map(|message| message.content.len()).collect();
        assert_eq!(counts, [1, 1, 3, 1]);
        assert!(matches!(&messages[2].content[0].part, Some(Part::Image(_))));
        assert!(show(&mut [message::text("system", "a")], vec![message::image(vec![1])]).is_err());
    }
}
