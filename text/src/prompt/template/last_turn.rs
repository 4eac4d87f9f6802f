//! Where the last turn of a conversation begins in its rendering: the last message of the user,
//! with the tool calls and results that follow it.
//!
//! The algorithm: the text of that message is searched for in the rendering. If it occurs more than
//! once, the conversation is rendered again with a mark before it. The place is a hint for the
//! prefix cache and changes no prompt: where the template shows the text in another form, or the
//! mark would change the rendering, none is given.

use super::Template;
use crate::prompt::conversation::{ContentPart, Conversation, Edits, Role};
use crate::prompt::markup;

/// A text of a conversation.
#[derive(Clone, Copy)]
struct TextPlace {
    message: usize,
    part: usize,
}

impl Template {
    /// Index in `rendered`, the rendering of the conversation, at which the text of the last
    /// message of the user begins.
    pub(super) fn last_turn(&self, conversation: &Conversation, rendered: &str) -> Option<usize> {
        let message =
            conversation.messages.iter().rposition(|message| message.role == Role::User)?;
        let has_characters =
            |part: &ContentPart| part.text().is_some_and(|text| !text.trim().is_empty());
        let parts = &conversation.messages[message].parts;
        let part = parts.iter().position(has_characters)?;
        let mut found = rendered.match_indices(parts[part].text()?.trim());
        let (first, _) = found.next()?;
        match found.next() {
            None => Some(first),
            Some(_) => self.marked(conversation, TextPlace { message, part }, rendered),
        }
    }

    /// Where a mark before this text comes to lie. `None` if the mark changes the rendering.
    fn marked(&self, conversation: &Conversation, at: TextPlace, rendered: &str) -> Option<usize> {
        let text = conversation.messages[at.message].parts[at.part].text()?;
        let mut marked = conversation.clone();
        Edits(&mut |text| Some(markup::escape(text).into_owned())).apply(&mut marked);
        marked.messages[at.message].parts[at.part] =
            ContentPart::Text(markup::mark_beginning(text));
        let output = self.engine.render(&marked, self.capabilities).ok()?;
        let decoded = self.engine.markup().decode(&output);
        decoded.first_mark().filter(|_| decoded.text == rendered)
    }
}
