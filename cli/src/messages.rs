//! Conversations from JSON, in the form most clients write: `[{"role": …, "content": text |
//! [parts]}]`, alone or under `"messages"`, with `"tools"` beside. Nothing is left out in silence
//! (I5): an unknown key or part type is an error that names it. Roles and what each may have, and
//! whether the model can see, are the service's to judge.

use base64::Engine as _;
use paceline_client::message::image;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ContentPart, ImageUrl, Message, Tool, ToolCall};
use serde_json::{Map, Value};

/// Why a file of messages is refused.
#[derive(Debug, thiserror::Error)]
pub enum MessagesError {
    /// It is not JSON.
    #[error("not JSON")]
    NotJson(#[source] serde_json::Error),
    /// An image whose bytes are not base64.
    #[error("{place}: expected an image in base64")]
    NotBase64 {
        /// Path of the image in the file.
        place: String,
        /// The cause.
        #[source]
        cause: base64::DecodeError,
    },
    /// A value of another form: where, what was expected and what was found.
    #[error("{0}")]
    Form(String),
    /// Images without a message to go with.
    #[error("--image: expected a message of the role user that the image belongs to, found none")]
    NoUserMessage,
}

fn form(text: impl Into<String>) -> MessagesError {
    MessagesError::Form(text.into())
}

/// Puts images before the text of the last message of the user.
///
/// # Errors
/// There is no such message.
pub fn show(messages: &mut [Message], images: Vec<ContentPart>) -> Result<(), MessagesError> {
    if images.is_empty() {
        return Ok(());
    }
    let last = messages.iter_mut().rfind(|message| message.role == "user");
    let message = last.ok_or(MessagesError::NoUserMessage)?;
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
/// The wrong form. The error names the place, the expected form and the one found.
pub fn parse(json: &str) -> Result<Conversation, MessagesError> {
    let value: Value = serde_json::from_str(json).map_err(MessagesError::NotJson)?;
    let (messages, tools) = match &value {
        Value::Object(object) => {
            let messages = object.get("messages").ok_or_else(|| {
                form("expected a list of messages, or an object with the key \"messages\"")
            })?;
            only(
                object,
                &["messages", "tools"],
                "the object; other settings are flags of the command",
            )?;
            (messages, present(object, "tools"))
        }
        other => (other, None),
    };
    let tools = tools.map_or(Ok(vec![]), |tools| each(tools, "tools", tool))?;
    Ok(Conversation { messages: each(messages, "messages", message)?, tools })
}

/// Reads every item of a list.
fn each<T>(
    list: &Value,
    place: &str,
    read: impl Fn(&Value, &str) -> Result<T, MessagesError>,
) -> Result<Vec<T>, MessagesError> {
    let items = list
        .as_array()
        .ok_or_else(|| form(format!("{place}: expected a list, found {}", kind(list))))?;
    items
        .iter()
        .enumerate()
        .map(|(index, value)| read(value, &format!("{place}[{index}]")))
        .collect()
}

/// Value under this key; null counts as absent.
fn present<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn message(value: &Value, place: &str) -> Result<Message, MessagesError> {
    let object = value
        .as_object()
        .ok_or_else(|| form(format!("{place}: expected an object, found {}", kind(value))))?;
    let known =
        ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"];
    only(object, &known, place)?;
    let role = string(object, "role", place)?;
    let tool_calls = present(object, "tool_calls");
    let content = match object.get("content") {
        Some(Value::String(text)) => vec![ContentPart { part: Some(Part::Text(text.clone())) }],
        Some(parts @ Value::Array(_)) => each(parts, &format!("{place}.content"), part)?,
        // Clients send a turn of tool calls without content.
        None | Some(Value::Null) if tool_calls.is_some() => vec![],
        Some(other) => {
            return Err(form(format!(
                "{place}.content: expected text or a list of parts, found {}",
                kind(other)
            )));
        }
        None => {
            return Err(form(format!(
                "{place}.content: expected text or a list of parts, found nothing"
            )));
        }
    };
    let reasoning =
        if object.contains_key("reasoning_content") { "reasoning_content" } else { "reasoning" };
    Ok(Message {
        role,
        content,
        tool_calls: tool_calls
            .map_or(Ok(vec![]), |calls| each(calls, &format!("{place}.tool_calls"), tool_call))?,
        tool_call_id: optional(object, "tool_call_id", place)?,
        name: optional(object, "name", place)?,
        reasoning: optional(object, reasoning, place)?,
    })
}

type Members = Map<String, Value>;

/// The members of `{"type": "function", "function": {…}}`.
fn function<'a>(
    value: &'a Value,
    known: &[&str],
    place: &str,
) -> Result<(&'a Members, &'a Members), MessagesError> {
    let object = value
        .as_object()
        .ok_or_else(|| form(format!("{place}: expected an object, found {}", kind(value))))?;
    only(object, known, place)?;
    let named = optional(object, "type", place)?;
    if !matches!(named.as_str(), "" | "function") {
        return Err(form(format!("{place}.type: expected function, found {named:?}")));
    }
    let function = object.get("function").and_then(Value::as_object);
    let function = function.ok_or_else(|| {
        form(format!("{place}.function: expected an object with a name, found none"))
    })?;
    Ok((object, function))
}

fn tool(value: &Value, place: &str) -> Result<Tool, MessagesError> {
    let (_, function) = function(value, &["type", "function"], place)?;
    let place = format!("{place}.function");
    only(function, &["name", "description", "parameters", "strict"], &place)?;
    let name = string(function, "name", &place)?;
    Ok(Tool {
        name,
        description: optional(function, "description", &place)?,
        parameters: written(function, "parameters"),
        strict: flag(function, "strict", &place)?,
    })
}

fn tool_call(value: &Value, place: &str) -> Result<ToolCall, MessagesError> {
    let (object, function) = function(value, &["id", "type", "function", "index"], place)?;
    let inside = format!("{place}.function");
    only(function, &["name", "arguments"], &inside)?;
    let name = string(function, "name", &inside)?;
    Ok(ToolCall {
        id: optional(object, "id", place)?,
        name,
        arguments: written(function, "arguments"),
    })
}

/// JSON as text: most clients write it as text already, some as it is.
fn written(object: &Map<String, Value>, key: &str) -> String {
    match present(object, key) {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn flag(object: &Map<String, Value>, key: &str, place: &str) -> Result<bool, MessagesError> {
    match present(object, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => {
            Err(form(format!("{place}.{key}: expected true or false, found {}", kind(other))))
        }
    }
}

fn optional(object: &Map<String, Value>, key: &str, place: &str) -> Result<String, MessagesError> {
    present(object, key).map_or(Ok(String::new()), |_| string(object, key, place))
}

fn part(value: &Value, place: &str) -> Result<ContentPart, MessagesError> {
    let object = value.as_object().ok_or_else(|| {
        form(format!("{place}: expected an object with a type, found {}", kind(value)))
    })?;
    match string(object, "type", place)?.as_str() {
        "text" | "input_text" => {
            only(object, &["type", "text"], place)?;
            Ok(ContentPart { part: Some(Part::Text(string(object, "text", place)?)) })
        }
        "image_url" | "image" | "input_image" => {
            only(object, &["type", "image_url", "image", "source", "detail"], place)?;
            shown(object, place)
        }
        other => Err(form(format!(
            "{place}.type: expected text, image_url, image or input_image, found {other:?}"
        ))),
    }
}

/// The image's bytes where they are written out (`data:` URL, or base64 in `source`). Any other
/// address is passed on unchanged. Neither this program nor the service fetches addresses. The
/// service refuses the address, or images as such if the model has no vision tower.
fn shown(object: &Map<String, Value>, place: &str) -> Result<ContentPart, MessagesError> {
    let decode = |text: &str| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim());
        bytes
            .map(image)
            .map_err(|cause| MessagesError::NotBase64 { place: place.to_owned(), cause })
    };
    let source = object.get("source");
    if let Some(data) = source.and_then(|source| source.get("data")).and_then(Value::as_str) {
        return decode(data);
    }
    let address = ["image_url", "image"].iter().find_map(|key| {
        let value = object.get(*key)?;
        value.as_str().or_else(|| value.get("url")?.as_str())
    });
    match address.or_else(|| source?.get("url")?.as_str()) {
        Some(url) if url.starts_with("data:") => {
            let (_, data) = url
                .split_once(";base64,")
                .ok_or_else(|| form(format!("{place}: expected data:<type>;base64,<data>")))?;
            decode(data)
        }
        Some(url) => {
            Ok(ContentPart { part: Some(Part::ImageUrl(ImageUrl { url: url.to_owned() })) })
        }
        None => Err(form(format!(
            "{place}: expected image_url or image with a data: URL, or source with data, found none"
        ))),
    }
}

fn string(object: &Map<String, Value>, key: &str, place: &str) -> Result<String, MessagesError> {
    match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(form(format!("{place}.{key}: expected text, found {}", kind(other)))),
        None => Err(form(format!("{place}.{key}: expected text, found nothing"))),
    }
}

fn only(object: &Map<String, Value>, known: &[&str], place: &str) -> Result<(), MessagesError> {
    // Libraries write what they do not use as null.
    match object.keys().find(|key| !known.contains(&key.as_str()) && !object[*key].is_null()) {
        Some(key) => {
            Err(form(format!("unknown key {key:?} in {place}; expected {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::message;
    use paceline_process::chain;

    /// Parts of all messages, written short: `user:[text "hi", image 3]`.
    fn short(json: &str) -> String {
        let messages = match parse(json) {
            Ok(conversation) => conversation.messages,
            Err(error) => return format!("error: {}", chain(&error)),
        };
        let part = |part: &ContentPart| match &part.part {
            Some(Part::Text(text)) => format!("text {text:?}"),
            Some(Part::Image(image)) => format!("image {}", image.data.len()),
            Some(Part::ImageUrl(image)) => format!("at {}", image.url),
            None => "nothing".to_owned(),
        };
        let one = |message: &Message| {
            let parts: Vec<_> = message.content.iter().map(part).collect();
            format!("{}:[{}]", message.role, parts.join(", "))
        };
        messages.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn forms() {
        for (json, expected) in [
            (r#"[{"role":"user","content":"hi"}]"#, r#"user:[text "hi"]"#),
            (
                r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":""}]}"#,
                r#"system:[text "s"] user:[text ""]"#,
            ),
            (
                r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]}]"#,
                r#"user:[text "a", text "b"]"#,
            ),
            (
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC"}}]}]"#,
                "user:[image 3]",
            ),
            (
                r#"[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA=="}]}]"#,
                "user:[image 1]",
            ),
            (
                r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAEC"}}]}]"#,
                "user:[image 3]",
            ),
            (
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]"#,
                "user:[at https://x/y.png]",
            ),
            (
                r#"[{"role":"user","content":[{"type":"image","image":"/tmp/y.png"}]}]"#,
                "user:[at /tmp/y.png]",
            ),
            (
                r#"[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x/y"}}]}]"#,
                "user:[at http://x/y]",
            ),
            (r#"[{"role":"wizard","content":"hi"}]"#, r#"wizard:[text "hi"]"#),
            ("[]", ""),
        ] {
            assert_eq!(short(json), expected, "{json}");
        }
    }

    #[test]
    fn tools_and_tool_calls_are_read() {
        let json = r#"{"tools": [
                {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "b": 1, "a": 2}}},
                {"type": "function", "function": {"name": "g", "parameters": null}}],
            "messages": [
                {"role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                    {"id": "c2", "function": {"name": "g", "arguments": {"y": [2]}}}]},
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "done"}]}"#;
        let Conversation { messages, tools } = parse(json).expect("fine");
        let tool = |name: &str, description: &str, parameters: &str| Tool {
            name: name.into(),
            description: description.into(),
            parameters: parameters.into(),
            strict: false,
        };
        assert_eq!(tools, [tool("f", "d", r#"{"type":"object","b":1,"a":2}"#), tool("g", "", "")]);
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(
            messages[0].tool_calls,
            [call("c1", "f", r#"{"x": 1}"#), call("c2", "g", r#"{"y":[2]}"#)]
        );
        assert_eq!((messages[0].content.len(), messages[0].reasoning.as_str()), (0, "hm"));
        assert_eq!((messages[1].tool_call_id.as_str(), messages[1].name.as_str()), ("c1", "f"));
    }

    #[test]
    fn errors_name_the_place() {
        for (json, expected) in [
            ("{", "not JSON"),
            ("3", "messages: expected a list, found a number"),
            (r#"{"prompt":"x"}"#, "\"messages\""),
            (r#"{"messages":[],"max_tokens":3}"#, "unknown key \"max_tokens\""),
            (r#"[{"role":"user"}]"#, "messages[0].content"),
            (r#"[{"content":"x"}]"#, "messages[0].role"),
            (
                r#"[{"role":"user","content":"x","colour":"y"}]"#,
                "unknown key \"colour\" in messages[0]",
            ),
            (
                r#"[{"role":"user","content":null}]"#,
                "messages[0].content: expected text or a list of parts, found null",
            ),
            (
                r#"[{"role":"user","content":"x","name":3}]"#,
                "messages[0].name: expected text, found a number",
            ),
            (
                r#"[{"role":"assistant","tool_calls":{}}]"#,
                "messages[0].tool_calls: expected a list, found an object",
            ),
            (
                r#"[{"role":"assistant","tool_calls":[{"id":"1"}]}]"#,
                "messages[0].tool_calls[0].function: expected an object",
            ),
            (
                r#"[{"role":"assistant","tool_calls":[{"type":"x"}]}]"#,
                "messages[0].tool_calls[0].type: expected function",
            ),
            (
                r#"[{"role":"assistant","tool_calls":[{"function":{}}]}]"#,
                "messages[0].tool_calls[0].function.name: expected text",
            ),
            (
                r#"{"messages":[],"tools":[{"function":{"name":"f","deferred":true}}]}"#,
                "unknown key \"deferred\" in tools[0].function",
            ),
            (
                r#"{"messages":[],"tools":[{"function":{"name":"f","strict":"yes"}}]}"#,
                "tools[0].function.strict: expected true or false",
            ),
            (
                r#"[{"role":"user","content":[{"type":"audio"}]}]"#,
                "messages[0].content[0].type: expected text, image_url, image or input_image, found \"audio\"",
            ),
            (r#"[{"role":"user","content":[{"type":"image_url"}]}]"#, "messages[0].content[0]"),
            (
                r#"[{"role":"user","content":[{"type":"image","image":"data:image/png;base64,?"}]}]"#,
                "base64",
            ),
        ] {
            let found = short(json);
            assert!(found.starts_with("error: ") && found.contains(expected), "{json}: {found}");
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
        assert_eq!(
            messages.iter().map(|message| message.content.len()).collect::<Vec<_>>(),
            [1, 1, 3, 1]
        );
        assert!(matches!(&messages[2].content[0].part, Some(Part::Image(_))));
        assert!(show(&mut [message::text("system", "a")], vec![message::image(vec![1])]).is_err());
    }
}
