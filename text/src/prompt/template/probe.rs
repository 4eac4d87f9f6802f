//! Finds what a template can show: renders a few words in each form and searches the output for
//! them. A template that leaves something out does not report it (I5).

use serde_json::{Map, Value, json};

use super::RenderError;
use super::capabilities::{Capabilities, Shown};
use super::engine::Engine;
use crate::prompt::conversation::{Conversation, Message, Role, Tool, ToolCall};

/// The capabilities of a template.
pub(super) fn capabilities(engine: &Engine) -> Capabilities {
    let mut probe = TemplateProbe { engine, content: content_forms(engine) };
    let tools = probe.shows_tools();
    let mut calls = probe.shown(&CALL, true);
    if calls == Shown::Never {
        probe.content.calls_need_none = true;
        // A template that objects to `none` does not need it.
        calls = probe.shown(&CALL, false);
        probe.content.calls_need_none = calls != Shown::Never;
    }
    Capabilities {
        tools,
        calls,
        answers: probe.shown(&["answ3r"], true),
        reasoning: probe.shows(thoughts(), &["th0ught"]) == Ok(true),
        system_anywhere: probe.shows_system_anywhere(),
        short_ids_alone: probe.refuses_long_ids(),
        thinking_replaces_text: probe.refuses_text_beside_thinking(),
        ..probe.content
    }
}

/// The forms of content that the template shows, and all else.
fn content_forms(engine: &Engine) -> Capabilities {
    let arrives = |words: &[&str], text: bool, parts: bool| {
        let probe =
            TemplateProbe { engine, content: Capabilities { text, parts, ..Capabilities::ALL } };
        let conversation =
            Conversation { messages: vec![message(Role::User, words)], ..Conversation::default() };
        probe.shows(conversation, words) == Ok(true)
    };
    let text = arrives(&[FIRST], true, false);
    let parts = arrives(&[FIRST, "sec0nd"], false, true);
    // A template that shows neither form objects to the probe itself. It will object to
    // requests, too, and tell the client why.
    if text || parts {
        Capabilities { text, parts, ..Capabilities::ALL }
    } else {
        Capabilities::ALL
    }
}

/// Renders short conversations and searches the output for their words.
struct TemplateProbe<'a> {
    engine: &'a Engine,
    /// The form of content to use.
    content: Capabilities,
}

impl TemplateProbe<'_> {
    /// Whether all words are in the rendering of a conversation.
    ///
    /// # Errors
    /// The template's objection. A template that objects does not leave anything out in silence.
    fn shows(&self, conversation: Conversation, words: &[&str]) -> Result<bool, RenderError> {
        let text = self.engine.render(&conversation, self.content)?;
        Ok(words.iter().all(|word| text.contains(word)))
    }

    /// In which conversations the words of the history are shown. `objecting` is the answer for a
    /// template that objects.
    fn shown(&self, words: &[&str], objecting: bool) -> Shown {
        if self.shows(history(), words).unwrap_or(objecting) {
            return Shown::Always;
        }
        // The tool's own words do not mislead: the call's value and the answer are not among them.
        let offered = Conversation { tools: vec![tool()], ..history() };
        match self.shows(offered, words).unwrap_or(objecting) {
            true => Shown::BesideTools,
            false => Shown::Never,
        }
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

    /// Whether the template takes a history with ids of nine characters, and refuses longer ones.
    fn refuses_long_ids(&self) -> bool {
        let mut long = history();
        for message in &mut long.messages {
            message.calls.iter_mut().for_each(|call| call.id.push_str("00000"));
            if message.role == Role::Tool {
                message.call_id.push_str("00000");
            }
        }
        self.shows(long, &[]).is_err() && self.shows(history(), &[]).is_ok()
    }

    /// Whether the template takes a thought before a call, and refuses a text between the two.
    fn refuses_text_beside_thinking(&self) -> bool {
        let mut said = thoughts();
        said.messages[1].parts = message(Role::Assistant, &["sa1d"]).parts;
        self.shows(said, &[]).is_err() && self.shows(thoughts(), &[]).is_ok()
    }

    /// Whether tools are shown: beside a question, a system message, or messages with calls, whose
    /// words are not those of the tool's description.
    fn shows_tools(&self) -> bool {
        let offered = |messages: Vec<Message>, words: &[&str]| {
            let tools = vec![tool()];
            self.shows(Conversation { messages, tools, ..Conversation::default() }, words)
        };
        let question = || message(Role::User, &[FIRST]);
        let beside_system = || vec![message(Role::System, &["syst3m"]), question()];
        self.engine.uses("tools")
            && (offered(vec![question()], &["t00l", "k3y"]).unwrap_or(true)
                || offered(beside_system(), &["t00l", "k3y"]).unwrap_or(true)
                || offered(history().messages, &["d0es"]) == Ok(true))
    }
}

/// The words of the history's tool call.
const CALL: [&str; 3] = ["t00l", "k3y", "valu3"];
/// A word that no template has.
const FIRST: &str = "f1rst";

fn message(role: Role, parts: &[&str]) -> Message {
    Message::new(role, parts.iter().map(ToString::to_string).collect())
}

/// A question, a tool call and its answer.
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

/// The history with a thought before the tool call.
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
