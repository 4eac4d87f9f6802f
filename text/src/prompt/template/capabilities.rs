//! Parts of a conversation that a template can show.

use std::borrow::Cow;

use crate::prompt::conversation::{ContentPart, Conversation, Message, Role};
use crate::prompt::variables::Content;

/// Parts of a conversation that a template shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// `content` as text. Some published templates take nothing else.
    pub(super) text: bool,
    /// `content` as a list of parts. Some published templates leave a list out, some take nothing
    /// else.
    pub(super) parts: bool,
    /// Tools that the model may call.
    pub(super) tools: bool,
    /// Tool calls of the assistant.
    pub(super) calls: Shown,
    /// Answers of tools.
    pub(super) answers: Shown,
    /// Calls are shown only in a message without content: it then gets none instead of "".
    pub(super) calls_need_none: bool,
    /// Thoughts of the assistant.
    pub(super) reasoning: bool,
    /// Each of several system messages in its place.
    pub(super) system_anywhere: bool,
    /// No ids of tool calls but those of nine letters and digits.
    pub(super) short_ids_alone: bool,
    /// A text beside calls is refused if the message has `thinking`.
    pub(super) thinking_replaces_text: bool,
}

/// When a template shows a part of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// In every conversation.
    Always,
    /// In conversations with tools.
    BesideTools,
    /// In none.
    Never,
}

/// Advice for a template that leaves tools out.
pub(super) const NO_TOOLS: &str = "send no tools";

impl Capabilities {
    /// A template that leaves nothing out.
    pub(super) const ALL: Self = Self {
        text: true,
        parts: true,
        tools: true,
        calls: Shown::Always,
        answers: Shown::Always,
        calls_need_none: false,
        reasoning: true,
        system_anywhere: true,
        short_ids_alone: false,
        thinking_replaces_text: false,
    };

    /// Whether the template shows all that tools need.
    pub(super) fn knows_tools(self) -> bool {
        self.tools && self.calls != Shown::Never && self.answers != Shown::Never
    }

    /// Whether a message becomes two, because the template shows either its text or its calls.
    pub(super) fn splits(self, message: &Message) -> bool {
        self.calls_need_none && !message.calls.is_empty() && !message.has_no_content()
    }

    /// The first field of a conversation that the template leaves out, and what a client can do.
    pub(super) fn missing_field(
        self,
        conversation: &Conversation,
    ) -> Option<(&'static str, &'static str)> {
        let any = |wanted: fn(&Message) -> bool| conversation.messages.iter().any(wanted);
        let calls = any(|message| !message.calls.is_empty()).then_some(self.calls);
        let answers = any(|message| message.role == Role::Tool).then_some(self.answers);
        if !self.tools && !conversation.tools.is_empty() {
            return Some(("tools", NO_TOOLS));
        }
        let shown = [("messages.tool_calls", calls), ("messages.role", answers)];
        shown.into_iter().find_map(|(field, shown)| match shown? {
            Shown::BesideTools if conversation.tools.is_empty() => Some((field, "send its tools")),
            Shown::Never => Some((field, NO_TOOLS)),
            Shown::BesideTools | Shown::Always => None,
        })
    }

    /// The thought of a message under its older name `thinking`. Empty if it would be refused.
    pub(super) fn thinking(self, message: &Message) -> &str {
        let refused = self.thinking_replaces_text && !message.calls.is_empty();
        if refused && !message.has_no_content() { "" } else { &message.reasoning }
    }

    /// One part as text, several as a list. A template that takes only one of the two forms gets
    /// that form. Content with images is always a list: the placeholders in the prompt are counted
    /// later, so an image that the template leaves out is noticed.
    pub(super) fn content(self, message: &Message) -> Content<'_> {
        let parts = &message.parts;
        if self.calls_need_none && !message.calls.is_empty() && message.has_no_content() {
            return Content::None;
        }
        let as_text = if parts.len() <= 1 { self.text } else { !self.parts };
        let texts = parts.iter().map(ContentPart::text).collect::<Option<Vec<&str>>>();
        match texts.filter(|_| as_text) {
            None => Content::of_parts(parts),
            Some(texts) => match texts[..] {
                [only] => Content::Text(Cow::Borrowed(only)),
                _ => Content::Text(Cow::Owned(texts.join("\n"))),
            },
        }
    }
}
