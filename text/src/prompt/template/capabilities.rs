//! What a template can show, found out by rendering a few words in each form and searching the
//! output for them. A template that leaves something out does not report it (I5).

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::RenderError;
use super::engine::Engine;
use crate::prompt::conversation::{ContentPart, Conversation, Message, Role, Tool, ToolCall};
use crate::prompt::variables::Content;

/// What a template shows of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// `content` as text. Some published templates take nothing else.
    text: bool,
    /// `content` as a list of parts. Some published templates leave a list out, some take nothing
    /// else.
    parts: bool,
    /// Tools that the model may call.
    tools: bool,
    /// Calls of tools by the assistant.
    calls: bool,
    /// Answers of tools.
    answers: bool,
    /// Thoughts of the assistant.
    reasoning: bool,
    /// Each of several system messages in its place.
    system_anywhere: bool,
}

impl Capabilities {
    /// A template that leaves nothing out.
    pub(super) const ALL: Self = Self {
        text: true,
        parts: true,
        tools: true,
        calls: true,
        answers: true,
        reasoning: true,
        system_anywhere: true,
    };

    /// The capabilities of a template.
    pub(super) fn of(engine: &Engine) -> Self {
        let probe = Probe { engine, content: Self::content_forms(engine) };
        Self {
            tools: probe.shows_tools(),
            calls: probe.shows(history(), &["t00l", "k3y", "valu3"]).unwrap_or(true),
            answers: probe.shows(history(), &["answ3r"]).unwrap_or(true),
            reasoning: probe.shows(thoughts(), &["th0ught"]) == Ok(true),
            system_anywhere: probe.shows_system_anywhere(),
            ..probe.content
        }
    }

    /// The forms of content that the template shows, and all else.
    fn content_forms(engine: &Engine) -> Self {
        let arrives = |words: &[&str], text: bool, parts: bool| {
            let probe = Probe { engine, content: Self { text, parts, ..Self::ALL } };
            let conversation = Conversation {
                messages: vec![message(Role::User, words)],
                ..Conversation::default()
            };
            probe.shows(conversation, words) == Ok(true)
        };
        let text = arrives(&[FIRST], true, false);
        let parts = arrives(&[FIRST, "sec0nd"], false, true);
        // A template that shows neither form objects to the probe itself. It will object to
        // requests, too, and tell the client why.
        if text || parts { Self { text, parts, ..Self::ALL } } else { Self::ALL }
    }

    /// Whether the template shows all that tools need.
    pub(super) fn knows_tools(self) -> bool {
        self.tools && self.calls && self.answers
    }

    /// Whether the template shows the assistant's calls.
    pub(super) fn shows_calls(self) -> bool {
        self.calls
    }

    /// Whether the template shows the assistant's thoughts.
    pub(super) fn shows_reasoning(self) -> bool {
        self.reasoning
    }

    /// Whether the template shows each of several system messages in its place.
    pub(super) fn shows_system_anywhere(self) -> bool {
        self.system_anywhere
    }

    /// The first field of a conversation that the template leaves out.
    pub(super) fn missing_field(self, conversation: &Conversation) -> Option<&'static str> {
        let any = |wanted: &dyn Fn(&Message) -> bool| conversation.messages.iter().any(wanted);
        if !self.tools && !conversation.tools.is_empty() {
            return Some("tools");
        }
        if !self.calls && any(&|message| !message.calls.is_empty()) {
            return Some("messages.tool_calls");
        }
        if !self.answers && any(&|message| message.role == Role::Tool) {
            return Some("messages.role");
        }
        None
    }

    /// One part as text, several as a list. A template that takes only one of the two forms gets
    /// that form. Content with images is always a list: the placeholders in the prompt are counted
    /// later, so an image that the template leaves out is noticed.
    pub(super) fn content(self, parts: &[ContentPart]) -> Content<'_> {
        let as_text = if parts.len() <= 1 { self.text } else { !self.parts };
        let texts = parts.iter().map(ContentPart::text).collect::<Option<Vec<&str>>>();
        match texts.filter(|_| as_text) {
            None => Content::Parts(parts),
            Some(texts) => match texts[..] {
                [only] => Content::Text(Cow::Borrowed(only)),
                _ => Content::Text(Cow::Owned(texts.join("\n"))),
            },
        }
    }
}

/// Renders short conversations and searches the output for their words.
struct Probe<'a> {
    engine: &'a Engine,
    /// The form of content to use.
    content: Capabilities,
}

impl Probe<'_> {
    /// Whether all words are in the rendering of a conversation.
    ///
    /// # Errors
    /// The template's objection. A template that objects does not leave anything out in silence.
    fn shows(&self, conversation: Conversation, words: &[&str]) -> Result<bool, RenderError> {
        let text = self.engine.render(&conversation, self.content)?;
        Ok(words.iter().all(|word| text.contains(word)))
    }

    /// Whether system messages among the others and at the end are shown in their order. A template
    /// that objects to them gets them in front.
    fn shows_system_anywhere(&self) -> bool {
        let said = [
            (Role::System, "syst3m"),
            (Role::User, FIRST),
            (Role::Assistant, "ass1st"),
            (Role::System, "am0ng"),
            (Role::User, "l4ter"),
            (Role::System, "at3nd"),
        ];
        let messages = said.iter().map(|(role, word)| message(*role, &[word])).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        let Ok(text) = self.engine.render(&conversation, self.content) else { return false };
        let places: Option<Vec<usize>> = said.iter().map(|(_, word)| text.find(word)).collect();
        places.is_some_and(|places| places.is_sorted())
    }

    fn shows_tools(&self) -> bool {
        let offered = |messages: Vec<Message>| {
            let conversation =
                Conversation { messages, tools: vec![tool()], ..Conversation::default() };
            self.shows(conversation, &["t00l", "k3y"]).unwrap_or(true)
        };
        let question = || message(Role::User, &[FIRST]);
        // Some templates show tools only beside a system message.
        self.engine.uses("tools")
            && (offered(vec![question()])
                || offered(vec![message(Role::System, &["syst3m"]), question()]))
    }
}

/// A word that no template has.
const FIRST: &str = "f1rst";

fn message(role: Role, parts: &[&str]) -> Message {
    Message::new(role, parts.iter().map(ToString::to_string).collect())
}

/// A question, a call and its answer.
fn history() -> Conversation {
    let arguments = Map::from_iter([("k3y".to_owned(), Value::from("valu3"))]);
    let call =
        ToolCall { id: "call00001".into(), name: "t00l".into(), arguments: arguments.into() };
    let called = Message { calls: vec![call], ..message(Role::Assistant, &[""]) };
    let answered = Message {
        call_id: "call00001".into(),
        name: "t00l".into(),
        ..message(Role::Tool, &["answ3r"])
    };
    let messages = vec![message(Role::User, &[FIRST]), called, answered];
    Conversation { messages, ..Conversation::default() }
}

/// The same, with a thought before the call.
fn thoughts() -> Conversation {
    let mut conversation = history();
    conversation.messages[1].reasoning = "th0ught".into();
    conversation
}

fn tool() -> Tool {
    let key = json!({"type": "string", "description": "k"});
    let parameters = json!({"type": "object", "properties": {"k3y": key}});
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    Tool { name: "t00l".into(), description: "d0es".into(), parameters, strict: false }
}
