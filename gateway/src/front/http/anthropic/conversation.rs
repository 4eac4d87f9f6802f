//! Messages of the protocol as messages of templates. A user's message may hold answers of tools
//! among its text; each answer becomes a message of its own, in its place.

use std::collections::HashMap;

use paceline_proto::limits;

use super::accepted;
use super::decode::{image, text};
use super::types::{Block, Message, ResultBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock};
use crate::front::http::accepted::check;
use crate::front::http::values::TextOr;
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, quoted};
use crate::inference::input::{ContentPartInput, MessageInput, ToolCallInput};

/// A conversation in the making.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Its messages.
    pub(super) messages: Vec<MessageInput>,
    /// The path in the body of each of them.
    pub(super) paths: Vec<String>,
    /// Names of the called tools by the ids of the calls.
    tools: HashMap<String, String>,
}

impl Turns {
    /// Adds a message that was made of the field at `path`.
    pub(super) fn push(&mut self, path: String, message: MessageInput) {
        self.messages.push(message);
        self.paths.push(path);
    }

    /// Adds the messages of a request.
    ///
    /// # Errors
    /// The first block that is not served, by its path.
    pub(super) fn add(&mut self, messages: Vec<Message>) -> Result<(), InferenceError> {
        for (at, Message { role, content, rest }) in messages.into_iter().enumerate() {
            let path = format!("messages[{at}]");
            check(&format!("{path}."), &rest, accepted::MESSAGE)?;
            if !["user", "assistant", "system"].contains(&role.as_str()) {
                let field = format!("{path}.role");
                let expected = "user, assistant or system";
                return Err(InferenceError::invalid(&field, expected, quoted(&role)));
            }
            let mut turn = Turn { path, role, open: None, turns: self };
            match content {
                TextOr::Text(text) => {
                    turn.message().content.push(ContentPartInput::Text(text));
                }
                TextOr::List(blocks) => {
                    let field = format!("{}.content", turn.path);
                    check_elements(&field, blocks.len(), limits::MAX_PARTS)?;
                    for (place, block) in blocks.into_iter().enumerate() {
                        turn.block(place, block)?;
                    }
                }
            }
            turn.close();
        }
        Ok(())
    }
}

/// One message of the client, which becomes one message or several.
struct Turn<'a> {
    path: String,
    role: String,
    /// The message that the next block belongs to.
    open: Option<MessageInput>,
    turns: &'a mut Turns,
}

impl Turn<'_> {
    fn block(&mut self, place: usize, block: Block) -> Result<(), InferenceError> {
        let path = format!("{}.content[{place}]", self.path);
        let of_role = |role: &str, kind: &str| match self.role == role {
            true => Ok(()),
            false => {
                let expected = format!("{kind} only in messages of the role {role}");
                Err(InferenceError::invalid(&path, expected, quoted(&self.role)))
            }
        };
        match block {
            Block::Text(block) => {
                let text = text(&path, block)?;
                self.text_or_thought();
                self.message().content.push(ContentPartInput::Text(text));
            }
            Block::Image(block) => {
                let image = image(&path, block)?;
                self.message().content.push(image);
            }
            Block::Thinking(ThinkingBlock { thinking, rest }) => {
                of_role("assistant", "thinking")?;
                check(&format!("{path}."), &rest, accepted::THINKING)?;
                self.text_or_thought();
                let message = self.message();
                if !message.reasoning.is_empty() {
                    message.reasoning.push_str("\n\n");
                }
                message.reasoning.push_str(&thinking);
            }
            Block::ToolUse(ToolUseBlock { id, name, input, rest }) => {
                of_role("assistant", "tool_use")?;
                check(&format!("{path}."), &rest, accepted::TOOL_USE)?;
                self.turns.tools.insert(id.clone(), name.clone());
                let arguments = input.0.to_string();
                self.message().tool_calls.push(ToolCallInput { id, name, arguments });
            }
            Block::ToolResult(block) => {
                of_role("user", "tool_result")?;
                self.close();
                self.result(path, block)?;
            }
        }
        Ok(())
    }

    /// Text and thoughts after a call begin another message: a template shows them before the calls
    /// of their message.
    fn text_or_thought(&mut self) {
        if self.open.as_ref().is_some_and(|message| !message.tool_calls.is_empty()) {
            self.close();
        }
    }

    /// The answer of a tool, as a message.
    fn result(&mut self, path: String, block: ToolResultBlock) -> Result<(), InferenceError> {
        let ToolResultBlock { tool_use_id, content, is_error, rest } = block;
        check(&format!("{path}."), &rest, accepted::TOOL_RESULT)?;
        let mut parts = Vec::new();
        match content {
            // The protocol's mark of a failure is not text; tools of agents say in words why.
            None if is_error == Some(true) => {
                parts.push(ContentPartInput::Text("the tool failed".into()));
            }
            None => {}
            Some(TextOr::Text(text)) => parts.push(ContentPartInput::Text(text)),
            Some(TextOr::List(blocks)) => {
                check_elements(&format!("{path}.content"), blocks.len(), limits::MAX_PARTS)?;
                for (place, block) in blocks.into_iter().enumerate() {
                    let path = format!("{path}.content[{place}]");
                    parts.push(match block {
                        ResultBlock::Text(block) => ContentPartInput::Text(text(&path, block)?),
                        ResultBlock::Image(block) => image(&path, block)?,
                    });
                }
            }
        }
        let message = MessageInput {
            role: "tool".into(),
            content: parts,
            name: self.turns.tools.get(&tool_use_id).cloned().unwrap_or_default(),
            tool_call_id: tool_use_id,
            ..Default::default()
        };
        self.push(path, message);
        Ok(())
    }

    /// The open message.
    fn message(&mut self) -> &mut MessageInput {
        let Self { role, open, .. } = self;
        open.get_or_insert_with(|| MessageInput { role: role.clone(), ..Default::default() })
    }

    /// Ends the open message.
    fn close(&mut self) {
        if let Some(message) = self.open.take() {
            self.push(self.path.clone(), message);
        }
    }

    /// Adds a message. One without content is an empty text.
    fn push(&mut self, path: String, mut message: MessageInput) {
        if message.content.is_empty() && message.tool_calls.is_empty() {
            message.content.push(ContentPartInput::Text(String::new()));
        }
        self.turns.push(path, message);
    }
}
