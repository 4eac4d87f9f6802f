//! Conversations from JSON, in the form most clients write: `[{"role": …, "content": text | [parts]}]`, alone or under
//! `"messages"`. Nothing is left out in silence (I5): an unknown key or part type is an error that names it. Roles, and
//! whether the model can see, are the service's to judge.

use base64::Engine as _;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ContentPart, Image, Message};
use serde_json::{Map, Value};

/// A message of one text.
pub fn text(role: &str, text: impl Into<String>) -> Message {
    Message { role: role.to_owned(), content: vec![ContentPart { part: Some(Part::Text(text.into())) }], ..Default::default() }
}

/// A picture as a part.
pub fn picture(data: impl Into<bytes::Bytes>) -> ContentPart {
    ContentPart { part: Some(Part::Image(Image { data: data.into() })) }
}

/// Puts pictures before the text of the last message of the user.
///
/// # Errors
/// There is no such message.
pub fn show(messages: &mut [Message], pictures: Vec<ContentPart>) -> Result<(), String> {
    if pictures.is_empty() {
        return Ok(());
    }
    let last = messages.iter_mut().rfind(|message| message.role == "user");
    let message = last.ok_or("--image: expected a message of the role user that the picture belongs to, found none")?;
    message.content.splice(0..0, pictures);
    Ok(())
}

/// Reads a conversation.
///
/// # Errors
/// What was expected at which place, and what was found.
pub fn parse(json: &str) -> Result<Vec<Message>, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| format!("not JSON: {error}"))?;
    let list = match &value {
        Value::Object(object) => {
            let list = object.get("messages").ok_or("expected a list of messages, or an object with the key \"messages\"")?;
            only(object, &["messages"], "the object; other settings are flags of the command")?;
            list
        }
        other => other,
    };
    let list = list.as_array().ok_or_else(|| format!("messages: expected a list, found {}", kind(list)))?;
    list.iter().enumerate().map(|(index, value)| message(value, &format!("messages[{index}]"))).collect()
}

fn message(value: &Value, place: &str) -> Result<Message, String> {
    let object = value.as_object().ok_or_else(|| format!("{place}: expected an object, found {}", kind(value)))?;
    only(object, &["role", "content"], place)?;
    let role = string(object, "role", place)?;
    let content = match object.get("content") {
        Some(Value::String(text)) => vec![ContentPart { part: Some(Part::Text(text.clone())) }],
        Some(Value::Array(parts)) => {
            let numbered = parts.iter().enumerate();
            numbered.map(|(index, value)| part(value, &format!("{place}.content[{index}]"))).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(format!("{place}.content: expected text or a list of parts, found {}", kind(other))),
        None => return Err(format!("{place}.content: expected text or a list of parts, found nothing")),
    };
    Ok(Message { role, content, ..Default::default() })
}

fn part(value: &Value, place: &str) -> Result<ContentPart, String> {
    let object = value.as_object().ok_or_else(|| format!("{place}: expected an object with a type, found {}", kind(value)))?;
    match string(object, "type", place)?.as_str() {
        "text" | "input_text" => {
            only(object, &["type", "text"], place)?;
            Ok(ContentPart { part: Some(Part::Text(string(object, "text", place)?)) })
        }
        "image_url" | "image" | "input_image" => {
            only(object, &["type", "image_url", "image", "source", "detail"], place)?;
            Ok(picture(picture_bytes(object, place)?))
        }
        other => Err(format!("{place}.type: expected text, image_url, image or input_image, found {other:?}")),
    }
}

/// The picture's bytes where they are written out (`data:` URL, or base64 in `source`). A picture at another address is
/// sent without bytes: nothing here or in the service fetches addresses, and whether the model sees at all is the first
/// question, which the service answers.
fn picture_bytes(object: &Map<String, Value>, place: &str) -> Result<Vec<u8>, String> {
    let decode = |text: &str| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim());
        bytes.map_err(|error| format!("{place}: expected a picture in base64: {error}"))
    };
    if let Some(data) = object.get("source").and_then(|source| source.get("data")).and_then(Value::as_str) {
        return decode(data);
    }
    let address = ["image_url", "image"].iter().find_map(|key| {
        let value = object.get(*key)?;
        value.as_str().or_else(|| value.get("url")?.as_str())
    });
    match address {
        Some(url) if url.starts_with("data:") => {
            let (_, data) = url.split_once(";base64,").ok_or_else(|| format!("{place}: expected data:<type>;base64,<data>"))?;
            decode(data)
        }
        Some(_) => Ok(Vec::new()),
        None => Err(format!("{place}: expected image_url or image with a data: URL, or source with data, found none")),
    }
}

fn string(object: &Map<String, Value>, key: &str, place: &str) -> Result<String, String> {
    match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("{place}.{key}: expected text, found {}", kind(other))),
        None => Err(format!("{place}.{key}: expected text, found nothing")),
    }
}

fn only(object: &Map<String, Value>, known: &[&str], place: &str) -> Result<(), String> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown key {key:?} in {place}; expected {}", known.join(", "))),
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

    /// Parts of all messages, written short: `user:[text "hi", image 3]`.
    fn short(json: &str) -> String {
        let messages = match parse(json) {
            Ok(messages) => messages,
            Err(error) => return format!("error: {error}"),
        };
        let part = |part: &ContentPart| match &part.part {
            Some(Part::Text(text)) => format!("text {text:?}"),
            Some(Part::Image(image)) => format!("image {}", image.data.len()),
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
            (r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAEC"}}]}]"#, "user:[image 3]"),
            (r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]"#, "user:[image 0]"),
            (r#"[{"role":"wizard","content":"hi"}]"#, r#"wizard:[text "hi"]"#),
            ("[]", ""),
        ] {
            assert_eq!(short(json), expected, "{json}");
        }
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
            (r#"[{"role":"user","content":"x","name":"y"}]"#, "unknown key \"name\" in messages[0]"),
            (
                r#"[{"role":"user","content":[{"type":"audio"}]}]"#,
                "messages[0].content[0].type: expected text, image_url, image or input_image, found \"audio\"",
            ),
            (r#"[{"role":"user","content":[{"type":"image_url"}]}]"#, "messages[0].content[0]"),
            (r#"[{"role":"user","content":[{"type":"image","image":"data:image/png;base64,?"}]}]"#, "base64"),
        ] {
            let found = short(json);
            assert!(found.starts_with("error: ") && found.contains(expected), "{json}: {found}");
        }
    }

    #[test]
    fn pictures_go_before_the_users_last_text() {
        let mut messages = vec![text("user", "a"), text("assistant", "b"), text("user", "c"), text("assistant", "d")];
        show(&mut messages, vec![picture(vec![1]), picture(vec![2])]).expect("there is a user");
        assert_eq!(messages.iter().map(|message| message.content.len()).collect::<Vec<_>>(), [1, 1, 3, 1]);
        assert!(matches!(&messages[2].content[0].part, Some(Part::Image(_))));
        assert!(show(&mut [text("system", "a")], vec![picture(vec![1])]).is_err());
    }
}
