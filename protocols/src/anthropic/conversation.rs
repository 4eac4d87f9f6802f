//! Messages of the protocol as messages of templates. A user's message may hold answers of tools
//! among its text; each answer becomes a message of its own, in its place.

use std::collections::HashMap;

use paceline_proto::limits;

use super::blocks::{PlacedPart, browser_state, document, image, search_result, text};
use super::tools::ToolChange;
use super::types::{
    Block, CompactionBlock, KeptFile, Message, OutputConfig, ProviderMarkBlock,
    ProviderResultBlock, ProviderToolUseBlock, RedactedThinkingBlock, ResultBlock, ThinkingBlock,
    ToolReferenceBlock, ToolResultBlock, ToolUseBlock,
};
use crate::accepted::check;
use crate::files::{self, FileSource};
use crate::inference::bounds::check_elements;
use crate::inference::error::{Result, quoted, refuse};
use crate::inference::input::{ContentPartInput, MessageInput, ToolCallInput};
use crate::paths::MessagePath;
use crate::values::{self, TextOr};

/// A conversation in the making.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Messages of the conversation so far.
    pub(super) messages: Vec<MessageInput>,
    /// Where each of them stands in the body.
    pub(super) paths: Vec<MessagePath>,
    /// Changes of the offered tools, in order.
    pub(super) changes: Vec<ToolChange>,
    /// Output settings from system messages, with their paths.
    pub(super) outputs: Vec<(String, OutputConfig)>,
    /// Names of the called tools by the ids of the tool calls.
    called: HashMap<String, String>,
}

/// A message of the input in the making.
#[derive(Debug)]
pub(super) struct OpenMessage {
    message: MessageInput,
    path: MessagePath,
}

impl OpenMessage {
    /// A message of this role without content.
    pub(super) fn new(role: &str, path: &str) -> Self {
        let message = MessageInput { role: role.to_owned(), ..Default::default() };
        Self { message, path: MessagePath::new(path) }
    }

    /// Adds a part that stands at `path` of the body.
    pub(super) fn add(&mut self, path: impl Into<String>, part: ContentPartInput) {
        self.path.record(format!("content[{}]", self.message.content.len()), path);
        self.message.content.push(part);
    }

    /// Whether it has no part and no tool call.
    pub(super) fn is_empty(&self) -> bool {
        self.message.content.is_empty() && self.message.tool_calls.is_empty()
    }

    fn tool_call(&mut self, path: &str, call: ToolCallInput) {
        let inner = format!("tool_calls[{}]", self.message.tool_calls.len());
        self.path.record(format!("{inner}.arguments"), format!("{path}.input"));
        self.path.record(inner, path);
        self.message.tool_calls.push(call);
    }

    fn think(&mut self, path: &str, thought: &str) {
        let reasoning = &mut self.message.reasoning;
        if reasoning.is_empty() {
            self.path.record("reasoning", format!("{path}.thinking"));
        } else {
            reasoning.push_str("\n\n");
        }
        reasoning.push_str(thought);
    }
}

impl Turns {
    /// Adds a message. One without content is an empty text.
    pub(super) fn push(&mut self, open: OpenMessage) {
        let is_empty = open.is_empty();
        let OpenMessage { mut message, mut path } = open;
        if !message.tool_calls.is_empty() {
            // The protocol's tool calls are blocks of the content. Each has a path of its own already.
            path.record("tool_calls", format!("{}.content", path.path));
        }
        if is_empty {
            message.content.push(ContentPartInput::Text(String::new()));
        }
        self.messages.push(message);
        self.paths.push(path);
    }

    /// Adds the messages of a request.
    ///
    /// # Errors
    /// The first block that is not served, by its path.
    pub(super) fn add(&mut self, messages: Vec<Message>) -> Result<()> {
        let last_user = messages.iter().rposition(|message| message.role == "user");
        for (at, message) in messages.into_iter().enumerate() {
            let Message {
                role,
                content,
                reasoning_content,
                thinking,
                reasoning,
                clear_at,
                output_config,
                rest,
            } = message;
            let path = format!("messages[{at}]");
            check(&format!("{path}."), &rest, Message::ACCEPTED)?;
            if !["user", "assistant", "system"].contains(&role.as_str()) {
                let field = format!("{path}.role");
                return refuse(&field, "user, assistant or system", quoted(&role));
            }
            let texts = [reasoning_content, thinking, reasoning];
            let thought = values::thought(&format!("{path}."), &role, texts)?;
            let turn_is_over = last_user.is_some_and(|last| at < last);
            let is_cleared = cleared_by_user(&path, &role, clear_at)? && turn_is_over;
            if let Some(config) = output_config {
                let field = format!("{path}.output_config");
                of_role("system", &role, &field, "output_config")?;
                if !turn_is_over {
                    self.outputs.push((field, config));
                }
            }
            let age = files::Turn::of(at, last_user.unwrap_or(0));
            let mut turn = Turn { path, role, is_cleared, age, open: None, turns: self };
            if !thought.is_empty() {
                turn.message().message.reasoning = thought;
            }
            match content {
                TextOr::Text(text) => {
                    let path = format!("{}.content", turn.path);
                    turn.message().add(path, ContentPartInput::Text(text));
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

/// Whether the next message of the user takes this one out of the model's sight.
fn cleared_by_user(path: &str, role: &str, clear_at: Option<String>) -> Result<bool> {
    let Some(word) = clear_at else { return Ok(false) };
    let field = format!("{path}.clear_at");
    of_role("system", role, &field, "clear_at")?;
    match word.as_str() {
        "never" => Ok(false),
        "next_user_message" => Ok(true),
        _ => refuse(&field, "next_user_message or never", quoted(&word)),
    }
}

/// Checks that something stands in a message of the role that has it.
fn of_role(wanted: &str, role: &str, path: &str, what: &str) -> Result<()> {
    if role == wanted {
        return Ok(());
    }
    refuse(path, format!("{what} only in messages of the role {wanted}"), quoted(role))
}

/// One message of the client, which becomes one message or several.
struct Turn<'a> {
    path: String,
    role: String,
    /// Whether its text is not shown any more.
    is_cleared: bool,
    age: files::Turn,
    /// The message that the next block belongs to.
    open: Option<OpenMessage>,
    turns: &'a mut Turns,
}

impl Turn<'_> {
    /// Adds a block. Longer than 60 lines: an arm for each type of block.
    fn block(&mut self, place: usize, block: Block) -> Result<()> {
        let path = format!("{}.content[{place}]", self.path);
        match block {
            Block::Text(block) => {
                let text = text(&path, block)?;
                self.text_or_thought();
                self.message().add(path, ContentPartInput::Text(text));
            }
            Block::Image(block) => {
                let image = image(&path, block, self.age)?;
                self.message().add(path, image);
            }
            Block::Document(block) => {
                for (path, part) in document(&path, block, self.age)? {
                    self.message().add(path, part);
                }
            }
            Block::SearchResult(block) => {
                let found = search_result(&path, block)?;
                self.message().add(path, found);
            }
            Block::ContainerUpload(block) => self.upload(path, block)?,
            Block::Compaction(CompactionBlock { content, rest }) => {
                of_role("assistant", &self.role, &path, "compaction")?;
                check(&format!("{path}."), &rest, CompactionBlock::ACCEPTED)?;
                if let Some(summary) = content {
                    self.text_or_thought();
                    self.message().add(path, ContentPartInput::Text(summary));
                }
            }
            Block::Fallback(block) | Block::McpToolListing(block) => {
                let ProviderMarkBlock { rest } = block;
                self.leave_out(&path, "a mark of the provider")?;
                check(&format!("{path}."), &rest, ProviderMarkBlock::ACCEPTED)?;
            }
            Block::Thinking(ThinkingBlock { thinking, rest }) => {
                of_role("assistant", &self.role, &path, "thinking")?;
                check(&format!("{path}."), &rest, ThinkingBlock::ACCEPTED)?;
                self.text_or_thought();
                self.message().think(&path, &thinking);
            }
            Block::RedactedThinking(RedactedThinkingBlock { data: _, rest }) => {
                of_role("assistant", &self.role, &path, "redacted_thinking")?;
                check(&format!("{path}."), &rest, RedactedThinkingBlock::ACCEPTED)?;
            }
            Block::ToolUse(ToolUseBlock { id, name, input, rest }) => {
                of_role("assistant", &self.role, &path, "tool_use")?;
                check(&format!("{path}."), &rest, ToolUseBlock::ACCEPTED)?;
                self.turns.called.insert(id.clone(), name.clone());
                let arguments = input.input();
                self.message().tool_call(&path, ToolCallInput { id, name, arguments });
            }
            Block::ToolResult(block) => {
                of_role("user", &self.role, &path, "tool_result")?;
                self.close();
                self.result(path, block)?;
            }
            Block::ToolAddition(block) => {
                of_role("system", &self.role, &path, "tool_addition")?;
                self.turns.changes.push(ToolChange::of_block(&path, block, true)?);
            }
            Block::ToolRemoval(block) => {
                of_role("system", &self.role, &path, "tool_removal")?;
                self.turns.changes.push(ToolChange::of_block(&path, block, false)?);
            }
            Block::ToolSearchToolResult(block) => {
                self.leave_out(&path, "tool_search_tool_result")?;
                self.turns.changes.extend(ToolChange::found(&path, block)?);
            }
            Block::ServerToolUse(block) | Block::McpToolUse(block) => {
                let ProviderToolUseBlock { id: _, name: _, input: _, rest } = block;
                self.leave_out(&path, "a tool call that the provider ran")?;
                check(&format!("{path}."), &rest, ProviderToolUseBlock::ACCEPTED)?;
            }
            Block::WebSearchToolResult(block)
            | Block::WebFetchToolResult(block)
            | Block::CodeExecutionToolResult(block)
            | Block::BashCodeExecutionToolResult(block)
            | Block::TextEditorCodeExecutionToolResult(block)
            | Block::AdvisorToolResult(block)
            | Block::McpToolResult(block) => {
                let ProviderResultBlock { tool_use_id: _, rest } = block;
                self.leave_out(&path, "the result of a tool that the provider ran")?;
                check(&format!("{path}."), &rest, ProviderResultBlock::ACCEPTED)?;
            }
        }
        Ok(())
    }

    /// A file for code that the provider runs. The provider's own files are left out.
    fn upload(&mut self, path: String, block: KeptFile) -> Result<()> {
        let KeptFile { file_id, rest } = block;
        check(&format!("{path}."), &rest, KeptFile::ACCEPTED)?;
        if self.role != "assistant" {
            let field = format!("{path}.file_id");
            let note = files::file(&field, Some(&file_id), &[], FileSource::Elsewhere, self.age)?;
            self.message().add(path, note);
        }
        Ok(())
    }

    /// Leaves out a block of the assistant. Texts before and after it stay apart.
    fn leave_out(&mut self, path: &str, what: &str) -> Result<()> {
        of_role("assistant", &self.role, path, what)?;
        self.close();
        Ok(())
    }

    /// Text and thoughts after a tool call begin another message: a template shows them before the
    /// tool calls of their message.
    fn text_or_thought(&mut self) {
        if self.open.as_ref().is_some_and(|open| !open.message.tool_calls.is_empty()) {
            self.close();
        }
    }

    /// The answer of a tool, as a message.
    fn result(&mut self, path: String, block: ToolResultBlock) -> Result<()> {
        let ToolResultBlock { tool_use_id, content, is_error, rest } = block;
        check(&format!("{path}."), &rest, ToolResultBlock::ACCEPTED)?;
        let mut open = OpenMessage::new("tool", &path);
        let content_path = format!("{path}.content");
        match content {
            // The protocol's mark of a failure is not text; tools of agents say in words why.
            None if is_error == Some(true) => {
                open.add(content_path, ContentPartInput::Text("the tool failed".into()));
            }
            None => {}
            Some(TextOr::Text(text)) => open.add(content_path, ContentPartInput::Text(text)),
            Some(TextOr::List(blocks)) => {
                check_elements(&format!("{path}.content"), blocks.len(), limits::MAX_PARTS)?;
                for (place, block) in blocks.into_iter().enumerate() {
                    let path = format!("{content_path}[{place}]");
                    for (path, part) in self.result_parts(path, block)? {
                        open.add(path, part);
                    }
                }
            }
        }
        open.path.record("tool_call_id", format!("{path}.tool_use_id"));
        open.message.name = self.turns.called.get(&tool_use_id).cloned().unwrap_or_default();
        open.message.tool_call_id = tool_use_id;
        self.turns.push(open);
        Ok(())
    }

    fn result_parts(&mut self, path: String, block: ResultBlock) -> Result<Vec<PlacedPart>> {
        let part = match block {
            ResultBlock::Document(block) => return document(&path, block, self.age),
            ResultBlock::Text(block) => ContentPartInput::Text(text(&path, block)?),
            ResultBlock::Image(block) => image(&path, block, self.age)?,
            ResultBlock::SearchResult(block) => search_result(&path, block)?,
            ResultBlock::BrowserState(block) => browser_state(&path, block)?,
            ResultBlock::ToolReference(ToolReferenceBlock { tool_name, rest }) => {
                check(&format!("{path}."), &rest, ToolReferenceBlock::ACCEPTED)?;
                let text = format!("The tool {tool_name} is offered now.");
                self.turns.changes.push(ToolChange::Reference { name: tool_name });
                ContentPartInput::Text(text)
            }
        };
        Ok(vec![(path, part)])
    }

    /// The open message.
    fn message(&mut self) -> &mut OpenMessage {
        let Self { path, role, open, .. } = self;
        open.get_or_insert_with(|| OpenMessage::new(role, path))
    }

    /// Ends the open message.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && !self.is_cleared
        {
            self.turns.push(open);
        }
    }
}
