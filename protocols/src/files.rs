//! Files beside texts and images. A file of text becomes text. Another file is refused in the
//! conversation's newest turn, in words on which clients act. In an earlier turn a note takes its
//! place, because clients resend the whole conversation and it has to go on.

use paceline_text::images::{BadImage, address, decode_base64};

use crate::inference::error::{InferenceError, Result, refuse};
use crate::inference::images::ImageError;
use crate::inference::input::ContentPartInput;

/// Beginning of a PDF. Readers of PDF look for it in the first 1,024 bytes.
const PDF: &[u8] = b"%PDF-";

/// Where a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSource<'a> {
    /// The text of the file, in the request as it is.
    Text(&'a str),
    /// The file in base64, or a `data:` URL with it.
    Encoded(&'a str),
    /// At an address, or kept by another service under an id.
    Elsewhere,
}

impl<'a> FileSource<'a> {
    /// The file at an address, which is served if the address contains it.
    pub fn at(address: &'a str) -> Self {
        if is_data(address) { Self::Encoded(address) } else { Self::Elsewhere }
    }
}

/// Whether an address contains a file.
fn is_data(address: &str) -> bool {
    let start = address.trim_start().get(..5);
    start.is_some_and(|start| start.eq_ignore_ascii_case("data:"))
}

/// Place of a part in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A turn after which the user or the model said something.
    Earlier,
    /// The newest turn.
    Newest,
}

impl Turn {
    /// The turn of a message by its index and that of the newest turn's first message.
    pub fn of(at: usize, newest: usize) -> Self {
        if at < newest { Self::Earlier } else { Self::Newest }
    }

    /// A part that may be refused.
    ///
    /// # Errors
    /// The part cannot be shown and is of the newest turn.
    fn part_or_note(self, part: Result<String>, what: &str) -> Result<ContentPartInput> {
        match (part, self) {
            (Err(_), Self::Earlier) => {
                Ok(ContentPartInput::Text(format!("[{what} was here. It is not shown.]")))
            }
            (part, _) => part.map(ContentPartInput::Text),
        }
    }
}

/// A file at the path `field` as a part of a message. `head` are lines about it, such as its title.
///
/// # Errors
/// It is no text, and of the newest turn.
pub fn file(
    field: &str,
    name: Option<&str>,
    head: &[(&str, Option<&str>)],
    source: FileSource<'_>,
    turn: Turn,
) -> Result<ContentPartInput> {
    let text = file_text(field, source).map(|text| with_head(name, head, &text));
    let what = name.map_or_else(|| "A file".to_owned(), |name| format!("The file {name}"));
    turn.part_or_note(text, &what)
}

/// A sound, which is never served.
///
/// # Errors
/// It is of the newest turn.
pub fn sound(field: &str, turn: Turn) -> Result<ContentPartInput> {
    let expected = "text, because this service does not support audio input";
    turn.part_or_note(refuse(field, expected, "a sound"), "A sound")
}

/// An image that another service keeps.
///
/// # Errors
/// It is of the newest turn.
pub fn image_elsewhere(field: &str, turn: Turn) -> Result<ContentPartInput> {
    let problem = "expected the image itself, found the id of a file of another service; send the image as a data: URL or in base64";
    let error = ImageError::Bad { field: field.to_owned(), problem: BadImage::from(problem) };
    turn.part_or_note(Err(error.into()), "An image")
}

/// A text after lines about it.
pub fn with_head(name: Option<&str>, head: &[(&str, Option<&str>)], text: &str) -> String {
    let name = [("Document", name)];
    let lines = name.iter().chain(head).filter_map(|(key, value)| Some((key, (*value)?)));
    let lines: String = lines.map(|(key, value)| format!("{key}: {value}\n")).collect();
    match lines.is_empty() {
        true => text.to_owned(),
        false => format!("{lines}\n{text}"),
    }
}

fn file_text(field: &str, source: FileSource<'_>) -> Result<String> {
    let encoded = match source {
        FileSource::Text(text) => return Ok(text.to_owned()),
        FileSource::Encoded(encoded) => encoded,
        FileSource::Elsewhere => {
            let expected = "the file itself, because this service keeps and fetches no file";
            return refuse(field, expected, "the id or address of a file");
        }
    };
    let bytes = if is_data(encoded) { address::open(encoded) } else { decode_base64(encoded) };
    let bytes = bytes.map_err(|_| {
        InferenceError::invalid(field, "a file in base64, or a data: URL with one", "another value")
    })?;
    let beginning = &bytes[..bytes.len().min(1024)];
    if beginning.windows(PDF.len()).any(|part| part == PDF) {
        return refuse(field, "text, because this service does not support PDF input", "a PDF");
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| InferenceError::invalid(field, "a file of text in UTF-8", "another file"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use paceline_text::prompt::Source;
    use paceline_text::prompt::conversation::ContentPart;
    use serde_json::{Value, json};

    use crate::bodies::BodyKind;
    use crate::inference::error::InferenceError;

    const KINDS: [BodyKind; 3] =
        [BodyKind::Messages, BodyKind::Responses, BodyKind::ChatCompletions];

    fn base64(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    /// A part of this protocol with a file. `data` is `None` for a file that is elsewhere.
    fn file(kind: BodyKind, data: Option<&[u8]>) -> Value {
        let encoded = data.map(base64);
        let url = encoded.as_ref().map(|data| format!("data:text/plain;base64,{data}"));
        match (kind, encoded) {
            (BodyKind::Messages, Some(data)) => json!({"type": "document", "title": "a.txt",
                "source": {"type": "base64", "media_type": "text/plain", "data": data}}),
            (BodyKind::Messages, None) => json!({"type": "document", "title": "a.txt",
                "source": {"type": "file", "file_id": "file_1"}}),
            (BodyKind::Responses, Some(_)) => {
                json!({"type": "input_file", "filename": "a.txt", "file_data": url, "detail": "low"})
            }
            (BodyKind::Responses, None) => {
                json!({"type": "input_file", "filename": "a.txt", "file_url": "https://a.example/a"})
            }
            (_, Some(_)) => {
                json!({"type": "file", "file": {"filename": "a.txt", "file_data": url}})
            }
            (_, None) => {
                json!({"type": "file", "file": {"filename": "a.txt", "file_id": "file_1"}})
            }
        }
    }

    /// The texts of a request with these messages.
    fn texts(kind: BodyKind, messages: &Value) -> Result<Vec<String>, InferenceError> {
        let body = match kind {
            BodyKind::Responses => json!({"model": "m", "input": messages}),
            _ => json!({"model": "m", "max_tokens": 9, "messages": messages}),
        };
        let Source::Chat(conversation) = kind.request(body.to_string().as_bytes())?.source else {
            panic!("a conversation")
        };
        let text = |part: &ContentPart| match part {
            ContentPart::Text(text) => text.clone(),
            ContentPart::Image(number) => format!("<{number}>"),
        };
        let messages = conversation.messages.iter();
        Ok(messages
            .map(|message| message.parts.iter().map(text).collect::<Vec<_>>().join("|"))
            .collect())
    }

    fn user(content: Value) -> Value {
        json!({"role": "user", "content": content})
    }

    #[test]
    fn a_file_of_text_is_text_for_the_model() {
        for kind in KINDS {
            let found = texts(kind, &json!([user(json!([file(kind, Some(b"alpha"))]))]));
            assert_eq!(found.expect("text"), ["Document: a.txt\n\nalpha"], "{kind:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_text_is_refused_once_and_left_out_later() {
        for kind in KINDS {
            for (data, word) in [
                (Some(&b"%PDF-1.7\n\xff"[..]), "does not support PDF input"),
                (Some(b"\x00\xff"), "a file of text"),
                (None, "keeps and fetches no file"),
            ] {
                let asked = json!([{"role": "user", "content": [file(kind, data)]}]);
                let error = texts(kind, &asked).expect_err("refused");
                assert!(error.message.contains(word), "{kind:?}: {error}");
                let field = error.field.expect("a field");
                let list = if kind == BodyKind::Responses { "input" } else { "messages" };
                assert!(field.starts_with(&format!("{list}[0].content[0]")), "{field}");
                let said = json!([
                    {"role": "user", "content": [file(kind, data)]},
                    {"role": "assistant", "content": "No."},
                    {"role": "user", "content": "So?"},
                ]);
                let found = texts(kind, &said).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
                assert_eq!(found[0], "[The file a.txt was here. It is not shown.]", "{kind:?}");
                // A client that sends the refused message again goes on with its next one.
                let again = json!([user(json!([file(kind, data)])), user(json!("So?"))]);
                assert!(texts(kind, &again).is_ok(), "{kind:?}");
            }
        }
    }

    #[test]
    fn documents_of_the_messages_protocol_have_all_their_forms() {
        let document = |source: Value| json!({"type": "document", "source": source});
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "alpha"});
        let mut named = document(plain.clone());
        named["title"] = "T".into();
        named["context"] = "C".into();
        named["citations"] = json!({"enabled": false});
        named["cache_control"] = json!({"type": "ephemeral"});
        let image = json!({"type": "image", "source": {"type": "url", "url": "data:,x"}});
        let blocks = json!([{"type": "text", "text": "beta"}, image]);
        let search = json!({"type": "search_result", "title": "S", "source": "https://a.example",
            "citations": {"enabled": true}, "content": [{"type": "text", "text": "found"}]});
        let all = json!([
            named,
            document(json!({"type": "content", "content": "gamma"})),
            document(json!({"type": "content", "content": blocks})),
            search,
        ]);
        let shown = "Document: T\nContext: C\n\nalpha|gamma|beta|<0>|Document: S\nSource: https://a.example\n\nfound";
        let found = texts(BodyKind::Messages, &json!([user(all.clone())])).expect("served");
        assert_eq!(found, [shown]);
        let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": all}]);
        let found = texts(BodyKind::Messages, &json!([user(result)])).expect("served");
        assert_eq!(found, [shown]);
    }

    #[test]
    fn an_image_that_another_service_keeps_is_refused_once_and_left_out_later() {
        let of_messages = json!({"type": "image", "source": {"type": "file", "file_id": "file_1"}});
        let of_responses = json!({"type": "input_image", "file_id": "file_1", "detail": "auto"});
        for (kind, image) in
            [(BodyKind::Messages, of_messages), (BodyKind::Responses, of_responses)]
        {
            let error = texts(kind, &json!([user(json!([image]))])).expect_err("refused");
            assert!(error.message.contains("Could not process image"), "{kind:?}: {error}");
            let said = json!([
                user(json!([image])),
                {"role": "assistant", "content": "No."},
                user(json!("So?")),
            ]);
            let found = texts(kind, &said).expect("left out");
            assert_eq!(found[0], "[An image was here. It is not shown.]");
        }
    }

    #[test]
    fn blocks_that_another_service_made_do_not_end_a_conversation() {
        let listing = json!({"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []});
        let fallback = json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {}});
        let compaction = |content: Value| {
            json!({"type": "compaction", "content": content,
                "encrypted_content": "e", "signature": "s", "tool_changes": []})
        };
        let upload = json!({"type": "container_upload", "file_id": "file_1"});
        let state = json!({"type": "browser_state", "tabs": [{"url": "https://a.example"}]});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}, "toolset_name": "browser"});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "toolset_name": "browser",
            "content": [{"type": "text", "text": "r"}, state]});
        let said = |uploaded: &[Value]| {
            json!([
                user(json!([{"type": "text", "text": "a"}, upload])),
                {"role": "assistant", "content": [compaction(json!("summary")), compaction(json!(null)),
                    listing, fallback, upload, {"type": "text", "text": "b"}, call]},
                user(json!([[result.clone()].as_slice(), uploaded].concat())),
            ])
        };
        let found = texts(BodyKind::Messages, &said(&[])).expect("served");
        let state = r#"r|{"tabs":[{"url":"https://a.example"}]}"#;
        assert_eq!(found[0], "a|[The file file_1 was here. It is not shown.]");
        assert!(found[1].starts_with("summary") && found[1].ends_with('b'), "{found:?}");
        assert_eq!(found.last().map(String::as_str), Some(state));
        let error =
            texts(BodyKind::Messages, &said(std::slice::from_ref(&upload))).expect_err("a new one");
        assert!(error.message.contains("keeps and fetches no file"), "{error}");
    }

    #[test]
    fn items_that_another_service_made_do_not_end_a_conversation() {
        let foreign = [
            json!({"type": "compaction", "encrypted_content": "e"}),
            json!({"type": "compaction_summary", "encrypted_content": "e"}),
            json!({"type": "context_compaction", "encrypted_content": "e"}),
            json!({"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}),
            json!({"type": "file_search_call", "id": "f", "queries": ["q"], "results": null}),
            json!({"type": "code_interpreter_call", "id": "c", "code": "1", "container_id": "k", "outputs": []}),
            json!({"type": "image_generation_call", "id": "i", "result": "AAEC"}),
            json!({"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "1"}),
            json!({"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}),
            json!({"type": "mcp_approval_request", "id": "m", "name": "f", "server_label": "s", "arguments": "{}"}),
            json!({"type": "mcp_approval_response", "approval_request_id": "m", "approve": true}),
            json!({"type": "computer_call", "call_id": "c", "action": {"type": "click", "x": 1}}),
            json!({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}),
            json!({"type": "ghost_snapshot", "ghost_commit": {"id": "a"}}),
            json!({"type": "program", "id": "p", "call_id": "c", "code": "1", "fingerprint": "f"}),
            json!({"type": "program_output", "id": "p", "call_id": "c", "result": "1", "status": "completed"}),
            json!({"type": "other"}),
        ];
        for item in foreign {
            let items = json!([user(json!("a")), item, user(json!("b"))]);
            let found = texts(BodyKind::Responses, &items);
            let found = found.unwrap_or_else(|error| panic!("{item}: {error}"));
            assert_eq!(found, ["a\n\nb"], "{item}");
        }
        for (item, word) in [
            (json!({"type": "item_reference", "id": "i"}), "keeps no conversation"),
            (json!({"type": "compaction_trigger"}), "compacts no conversation"),
            (json!({"type": "mood"}), "unknown variant"),
        ] {
            let items = json!([user(json!("a")), item]);
            let error = texts(BodyKind::Responses, &items).expect_err("refused");
            assert!(error.message.contains(word), "{error}");
        }
        let cited = json!([{"type": "output_text", "text": "b", "annotations": [{"type": "url_citation"}]}]);
        let items =
            json!([user(json!("a")), {"role": "assistant", "content": cited}, user(json!("c"))]);
        assert_eq!(texts(BodyKind::Responses, &items).expect("served"), ["a", "b", "c"]);
        let chat = json!([user(json!("a")),
            {"role": "assistant", "content": "b", "annotations": [{"type": "url_citation"}], "audio": {"id": "x"}},
            user(json!("c"))]);
        assert_eq!(texts(BodyKind::ChatCompletions, &chat).expect("served"), ["a", "b", "c"]);
    }

    #[test]
    fn a_sound_of_an_earlier_turn_is_left_out() {
        let sound =
            json!({"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}});
        let kinds = [BodyKind::ChatCompletions, BodyKind::Responses];
        for kind in kinds {
            let error = texts(kind, &json!([user(json!([sound]))])).expect_err("refused");
            assert!(error.message.contains("does not support audio input"), "{kind:?}: {error}");
            let said = json!([
                user(json!([sound])),
                {"role": "assistant", "content": "No."},
                user(json!("So?")),
            ]);
            let found = texts(kind, &said).expect("left out");
            assert_eq!(found[0], "[A sound was here. It is not shown.]", "{kind:?}");
        }
    }
}
