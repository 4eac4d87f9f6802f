//! A tool call as a JSON object: `name`, and `arguments` or `parameters` (Hermes, Llama 3). The
//! order of its members is free. Arguments are sent at once if the name came before them.

use serde_json::{Map, Value};

use super::super::json::JsonScanner;
use super::super::tools::OfferedTools;
use super::{BrokenToolCall, PartialToolCall};

/// Keys of the object's members, without that of an id, which no uncertain call has.
const KEYS: [&str; 4] = ["name", "arguments", "parameters", "type"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Begin,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    CommaOrEnd,
    Nothing,
}

/// A member of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectMember {
    Name,
    Arguments,
    /// `"type": "function"`, which Llama writes as well.
    Type,
    /// The model's own id of the call, which Mistral writes as well.
    Id,
}

/// The key or value that runs.
#[derive(Clone, Debug)]
struct OpenMember {
    scanner: JsonScanner,
    /// The member whose value it is; none for a key.
    member: Option<ObjectMember>,
    /// Text of the member, except for arguments that are an object.
    text: String,
    is_text: bool,
}

/// Reads one object.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct JsonToolCall {
    expected: Expected,
    running: Option<OpenMember>,
    member: Option<ObjectMember>,
    has_arguments: bool,
    has_type: bool,
    allows_id: bool,
}

impl JsonToolCall {
    /// Reads an object that may have an id.
    pub(super) fn with_id() -> Self {
        Self { allows_id: true, ..Self::default() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.expected == Expected::Nothing
    }

    pub(super) fn in_text(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.scanner.in_text())
    }

    /// Adds the beginning of a value to the arguments of a tool call that is cut.
    pub(super) fn cut(&mut self, piece: &mut PartialToolCall) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.is_text) {
            running.scanner.cut(&mut piece.arguments);
        }
    }

    /// Whether the key or the name that runs can be one of a tool call.
    pub(super) fn may_become_tool_call(&self, tools: &OfferedTools) -> bool {
        let Some(OpenMember { member, text, .. }) = &self.running else { return true };
        let characters = text.strip_prefix('"').unwrap_or(text);
        match member {
            None => KEYS.iter().any(|key| key.starts_with(characters)),
            Some(ObjectMember::Name) => tools.has_beginning(characters),
            Some(ObjectMember::Arguments | ObjectMember::Type | ObjectMember::Id) => true,
        }
    }

    pub(super) fn push(
        &mut self,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        if self.running.is_some() {
            return self.go_on(character, piece);
        }
        if character.is_whitespace() {
            return Ok(());
        }
        self.expected = match (self.expected, character) {
            (Expected::Begin, '{') => Expected::KeyOrEnd,
            (Expected::KeyOrEnd | Expected::Key, '"') => {
                return self.begin(None, character, piece);
            }
            (Expected::Colon, ':') => Expected::Value,
            (Expected::Value, character) => {
                let member = self.member.take();
                return self.begin(member, character, piece);
            }
            (Expected::CommaOrEnd, ',') => Expected::Key,
            (Expected::CommaOrEnd | Expected::KeyOrEnd, '}') => {
                if piece.name.is_none() {
                    return Err(BrokenToolCall::other("a member \"name\"", "none"));
                }
                if !self.has_arguments {
                    piece.arguments.push_str("{}");
                }
                Expected::Nothing
            }
            (Expected::Begin, _) => {
                return Err(BrokenToolCall::other("a JSON object", "other text"));
            }
            (Expected::Nothing, _) => {
                return Err(BrokenToolCall::other("the end of the tool call", "other text"));
            }
            _ => return Err(BrokenToolCall::other("a member of the JSON object", "other text")),
        };
        Ok(())
    }

    /// Begins a key or a value with its first character.
    fn begin(
        &mut self,
        member: Option<ObjectMember>,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        let is_text = character == '"';
        if !is_text && (character != '{' || member != Some(ObjectMember::Arguments)) {
            let expected = if member == Some(ObjectMember::Arguments) {
                "arguments that are a JSON object"
            } else {
                "a name or an id that is a text"
            };
            return Err(BrokenToolCall::other(expected, "another value"));
        }
        let scanner = JsonScanner::new();
        self.running = Some(OpenMember { scanner, member, text: String::new(), is_text });
        self.go_on(character, piece)
    }

    fn go_on(
        &mut self,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let out = if running.is_text { &mut running.text } else { &mut piece.arguments };
        running.scanner.push(character, out)?;
        if !running.scanner.is_done() {
            return Ok(());
        }
        let Some(OpenMember { member, text, is_text, .. }) = self.running.take() else {
            return Ok(());
        };
        let text = || serde_json::from_str::<String>(&text).unwrap_or_default();
        self.expected = Expected::CommaOrEnd;
        match member {
            None => {
                self.member = Some(self.key(&text(), piece)?);
                self.expected = Expected::Colon;
            }
            Some(ObjectMember::Name) => piece.set_name(text())?,
            Some(ObjectMember::Id) => {}
            Some(ObjectMember::Type) if text() == "function" => self.has_type = true,
            Some(ObjectMember::Type) => {
                return Err(BrokenToolCall::other("the type \"function\"", "another"));
            }
            Some(ObjectMember::Arguments) => {
                self.has_arguments = true;
                if is_text {
                    piece.arguments.push_str(&arguments_of_text(&text())?);
                }
            }
        }
        Ok(())
    }

    /// The member of this key.
    fn key(&self, key: &str, piece: &PartialToolCall) -> Result<ObjectMember, BrokenToolCall> {
        let (member, is_new) = match key {
            "name" => (ObjectMember::Name, piece.name.is_none()),
            "arguments" | "parameters" => (ObjectMember::Arguments, !self.has_arguments),
            "type" => (ObjectMember::Type, !self.has_type),
            "id" if self.allows_id => (ObjectMember::Id, true),
            _ => {
                return Err(BrokenToolCall::other(
                    "the members \"name\" and \"arguments\"",
                    "another",
                ));
            }
        };
        if is_new {
            Ok(member)
        } else {
            Err(BrokenToolCall::other("each member once", "one twice"))
        }
    }
}

/// Arguments that came as a text with JSON in it.
fn arguments_of_text(text: &str) -> Result<String, BrokenToolCall> {
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(text);
    match parsed {
        // The last brace is the last character, so that it is sent with the end of the tool call.
        Ok(_) => Ok(text.trim().to_owned()),
        Err(_) => Err(BrokenToolCall::other("arguments that are a JSON object", "another text")),
    }
}
