//! `/save`: a conversation as a file, which `paceline generate --messages` and the clients of
//! `/v1/chat/completions` read.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_client::Failure;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ContentPart, Message};
use serde_json::{Value, json};

/// Writes a conversation into a file that only this user may read.
///
/// # Errors
/// There is no conversation yet; the file is there and not to be replaced, or cannot be written.
pub fn save(messages: &[Message], path: &Path, replaces: bool) -> Result<(), Failure> {
    let refuse = |why: String| Failure::usage(format!("/save: {why}"));
    if path.as_os_str().is_empty() {
        return Err(refuse("expected a file after it, found none".into()));
    }
    if messages.is_empty() {
        return Err(refuse("expected a conversation, found no message yet".into()));
    }
    let messages: Vec<Value> = messages.iter().map(object).collect();
    let text = serde_json::to_string_pretty(&json!({ "messages": messages }));
    let text = text.expect("a conversation is plain JSON") + "\n";
    let mut options = OpenOptions::new();
    options.write(true).truncate(true).create(replaces).create_new(!replaces).mode(0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            refuse(format!("{0} is there already; /save --force {0} replaces it", path.display()))
        }
        _ => refuse(format!("cannot write {}: {error}", path.display())),
    })
}

/// A message of `/v1/chat/completions`.
fn object(message: &Message) -> Value {
    let texts = message.content.iter().map(|part| match &part.part {
        Some(Part::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    let content = match texts.collect::<Option<String>>() {
        Some(text) => Value::from(text),
        None => message.content.iter().map(part).collect(),
    };
    let mut object = json!({ "role": message.role, "content": content });
    if !message.reasoning.is_empty() {
        object["reasoning_content"] = message.reasoning.clone().into();
    }
    object
}

fn part(part: &ContentPart) -> Value {
    let image = |url: String| json!({ "type": "image_url", "image_url": { "url": url } });
    match &part.part {
        Some(Part::Text(text)) => json!({ "type": "text", "text": text }),
        Some(Part::Image(file)) => {
            image(format!("data:{};base64,{}", media_type(&file.data), STANDARD.encode(&file.data)))
        }
        Some(Part::ImageUrl(address)) => image(address.url.clone()),
        None => Value::Null,
    }
}

/// The type of an image's file, by its first bytes.
fn media_type(file: &[u8]) -> &'static str {
    match file {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'G', b'I', b'F', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', ..] => "image/webp",
        _ => "image/png",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use paceline_client::message;

    use super::*;
    use crate::messages::parse;

    #[test]
    fn a_saved_conversation_is_read_again_and_is_replaced_only_by_force() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("a chat.json");
        let mut asked = message::text("user", "what?\n\"\x1b\"");
        asked.content.insert(0, message::image(b"\xff\xd8\xff".to_vec()));
        let answer =
            Message { reasoning: "hm".into(), ..message::text("assistant", "a triangle ▲") };
        let messages = [message::text("system", "Be brief."), asked, answer];
        save(&messages, &path, false).expect("written");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).expect("text");
        let mut found = parse(&text).expect("a conversation").messages;
        let image = found[1].content.remove(0).part;
        assert!(
            matches!(&image, Some(Part::ImageUrl(url)) if url.url == "data:image/jpeg;base64,/9j/"),
            "{image:?}"
        );
        let mut expected = messages.to_vec();
        expected[1].content.remove(0);
        assert_eq!(found, expected);

        let refused = save(&messages[..1], &path, false).expect_err("it is there").message;
        assert!(refused.contains("/save --force") && refused.contains("a chat.json"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), text, "as it was");
        save(&messages[..1], &path, true).expect("replaced");
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(parse(&text).expect("a conversation").messages, messages[..1]);

        for (messages, path, word) in [
            (&messages[..], Path::new(""), "expected a file after it"),
            (&[], &path, "found no message yet"),
            (&messages[..], dir.path(), "is there already"),
            (&messages[..], &dir.path().join("no/chat"), "cannot write"),
        ] {
            let refused = save(messages, path, false).expect_err(word).message;
            assert!(refused.contains(word), "{refused}");
        }
    }
}
