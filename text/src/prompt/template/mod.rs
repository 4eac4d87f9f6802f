//! A model's chat template: a conversation becomes the text of a prompt, with the markup that the
//! template wrote told from the same characters of a client ([`markup`]).
//!
//! The compilation finds out which parts of a conversation the template can show ([`probe`]). A
//! conversation with a part that the template leaves out is refused (I5).

mod call_ids;
mod capabilities;
mod effort;
mod engine;
mod last_turn;
mod names;
mod probe;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::conversation::{Conversation, Edits, Message, Role, normalize};
use super::delimiters;
use super::format::AnswerFormat;
use super::markup::{
    self, Added, Decoded, Item, Marker, Markup, MarkupError, Occurrence, Rendered,
};
use super::resent::AssistantMarkup;

use capabilities::{Capabilities, NO_TOOLS, Shown};
use effort::EffortWords;
use engine::{Engine, MAX_OUTPUT_BYTES, for_engine, too_large};

pub(super) use engine::SpecialTokens;

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It is not valid Jinja.
    #[error(transparent)]
    Jinja(#[from] minijinja::Error),
    /// The markup of the template cannot be told from text.
    #[error(transparent)]
    Markup(#[from] MarkupError),
    /// The engine panicked: a fault of the engine, not of the model's files alone.
    #[error(
        "expected a template that the engine compiles and renders, found that the engine panics; use another template"
    )]
    Panic,
}

/// Why a conversation cannot be rendered, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation.
    #[error("{0}")]
    Conversation(String),
    /// The template does not show the content of a field.
    #[error(
        "{field}: this model's chat template would leave it out; {advice}, or use another model"
    )]
    NoTools {
        /// The field.
        field: String,
        /// What the client can do instead.
        advice: &'static str,
    },
}

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    engine: Engine,
    capabilities: Capabilities,
    /// How it takes an amount of thinking.
    efforts: EffortWords,
    /// For each markup: whether the template puts it together of pieces.
    assembled: Vec<bool>,
    /// The markup that the template writes around thoughts and tool calls.
    assistant_markup: AssistantMarkup,
    /// How the model writes its answers.
    answer_format: AnswerFormat,
    /// The template for conversations with tools, if it is another one. Both have the same markup.
    with_tools: Option<Box<Template>>,
}

impl Template {
    /// Compiles `source` for a tokenizer with these added tokens.
    ///
    /// # Errors
    /// The first syntax error, with its line; there are too many special tokens.
    pub fn compile(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
        added: &[Added],
    ) -> Result<Self, CompileError> {
        Self::compile_both(source, None, SpecialTokens { bos: bos_token, eos: eos_token }, added)
    }

    /// As [`Template::compile`], with another template for conversations that have tools.
    ///
    /// # Errors
    /// As [`Template::compile`], of either template.
    pub(super) fn compile_both(
        source: &str,
        with_tools: Option<&str>,
        tokens: SpecialTokens,
        added: &[Added],
    ) -> Result<Self, CompileError> {
        let compiled = AssertUnwindSafe(|| {
            let source = in_lines(source);
            let mut items = markup_items(&source, &tokens, added)?;
            let Some(with_tools) = with_tools.map(in_lines) else {
                return Self::with_items(&source, &tokens, items);
            };
            for item in markup_items(&with_tools, &tokens, added)? {
                if items.iter().all(|known| known.text != item.text) {
                    items.push(item);
                }
            }
            let mut template = Self::with_items(&source, &tokens, items.clone())?;
            template.with_tools = Some(Self::with_items(&with_tools, &tokens, items)?.into());
            Ok(template)
        });
        catch_unwind(compiled).unwrap_or(Err(CompileError::Panic))
    }

    fn with_items(
        source: &str,
        tokens: &SpecialTokens,
        items: Vec<Item>,
    ) -> Result<Self, CompileError> {
        let engine = Engine::new(source, tokens, Markup::new(items)?)?;
        let capabilities = probe::capabilities(&engine);
        let mut assembled = vec![false; engine.markup().items().len()];
        for probe in delimiter_probes(&engine, capabilities) {
            for at in engine.markup().plain(&probe) {
                assembled[at.item] = true;
            }
        }
        let assistant_markup = AssistantMarkup {
            thoughts: capabilities.reasoning && source.contains("</think>"),
            calls: capabilities.calls != Shown::Never && source.contains("<tool_call>"),
        };
        Ok(Self {
            efforts: EffortWords::of(&engine, capabilities, source),
            answer_format: AnswerFormat::of_template(source),
            engine,
            capabilities,
            assembled,
            assistant_markup,
            with_tools: None,
        })
    }

    /// Texts that only the template may write.
    pub fn markup(&self) -> &[Item] {
        self.engine.markup().items()
    }

    /// How the model writes thoughts and tool calls.
    pub fn answer_format(&self) -> AnswerFormat {
        self.for_tools().answer_format
    }

    /// What the template calls in some branch and the engine does not have, such as `filter
    /// fromjson`. A conversation that reaches such a call is refused.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = self.engine.lacks();
        lacks.extend(self.with_tools.iter().flat_map(|template| template.engine.lacks()));
        lacks.sort_unstable();
        lacks.dedup();
        lacks
    }

    /// The template of conversations with tools.
    fn for_tools(&self) -> &Self {
        self.with_tools.as_deref().unwrap_or(self)
    }

    /// Whether tools come through.
    pub fn knows_tools(&self) -> bool {
        self.for_tools().capabilities.knows_tools()
    }

    /// The prompt of a conversation, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// The template's objection, in words for the client; the template would leave tools out.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, RenderError> {
        if let Some(template) = self.with_tools.as_deref()
            && !conversation.tools.is_empty()
        {
            return template.render(conversation);
        }
        let conversation = &self.in_form(conversation);
        let no_tools = |(field, advice)| RenderError::NoTools { field, advice };
        if let Some((field, advice)) = self.capabilities.missing_field(conversation) {
            return Err(no_tools((field.to_owned(), advice)));
        }
        let rendered = self.render_apart(conversation)?;
        if rendered.text.len() > MAX_OUTPUT_BYTES {
            return Err(RenderError::Conversation(too_large()));
        }
        // Some templates show tools only beside messages of a certain role.
        match conversation.tools.iter().position(|tool| !rendered.text.contains(&tool.name)) {
            Some(at) => Err(no_tools((format!("tools[{at}]"), NO_TOOLS))),
            None => {
                let last_turn = self.last_turn(conversation, &rendered.text);
                Ok(Rendered { last_turn, ..rendered })
            }
        }
    }

    /// The conversation in the form in which the template shows all of it.
    fn in_form(&self, conversation: &Conversation) -> Conversation {
        let mut changed = conversation.clone();
        let mut messages = std::mem::take(&mut changed.messages);
        // System messages go in front unless the template shows each in its place.
        let is_system = |message: &Message| message.role == Role::System;
        if !self.capabilities.system_anywhere && messages.iter().skip(1).any(is_system) {
            messages = normalize(messages);
        }
        // Agents resend markup as text.
        let markup = self.assistant_markup;
        messages.iter_mut().for_each(|message| markup.move_to_fields(message));
        let apart = messages.into_iter().flat_map(|mut message| {
            let calls = self.capabilities.splits(&message).then(|| Message {
                calls: std::mem::take(&mut message.calls),
                name: message.name.clone(),
                ..Message::new(message.role, vec![])
            });
            [Some(message), calls].into_iter().flatten()
        });
        changed.messages = apart.collect();
        self.efforts.set(&mut changed);
        if self.capabilities.short_ids_alone {
            call_ids::shorten(&mut changed);
        }
        changed
    }

    /// Renders a conversation so that markup of the template is told from the client's strings.
    fn render_apart(&self, conversation: &Conversation) -> Result<Rendered, RenderError> {
        let decoded = self.render_edited(conversation, &mut |text| match markup::escape(text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(escaped) => Some(escaped),
        })?;
        let plain = self.engine.markup().plain(&decoded);
        let of_pieces = self.of_pieces(&plain, conversation);
        let Some(marker) = self.marker(&of_pieces) else { return Ok(decoded.rendered(plain)) };
        let marked = self.render_edited(conversation, &mut |text| Some(marker.mark(text)))?;
        let plain = self.engine.markup().plain(&marked);
        Ok(marked.rendered_of_pieces(plain, |item| of_pieces[item]))
    }

    /// For each markup: whether it is in the rendering and the template may have put it together of
    /// pieces. The template may have if it is known to do so, or if no string of the client has the
    /// markup.
    fn of_pieces(&self, plain: &[Occurrence], conversation: &Conversation) -> Vec<bool> {
        let mut of_pieces = vec![false; self.assembled.len()];
        if plain.is_empty() {
            return of_pieces;
        }
        let mut written = vec![false; self.assembled.len()];
        let mut note = |text: &str| {
            self.engine.markup().note(text, &mut written);
            None
        };
        Edits(&mut note).apply(&mut conversation.clone());
        for at in plain {
            of_pieces[at.item] = self.assembled[at.item] || !written[at.item];
        }
        of_pieces
    }

    /// Marks the client's share of the wanted markup; `None` if none is wanted.
    fn marker(&self, wanted: &[bool]) -> Option<Marker> {
        let texts = self
            .markup()
            .iter()
            .zip(wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(item, _)| item.text.as_str());
        wanted.contains(&true).then(|| Marker::new(texts))
    }

    fn render_edited(
        &self,
        conversation: &Conversation,
        edit: &mut dyn FnMut(&str) -> Option<String>,
    ) -> Result<Decoded, RenderError> {
        let mut edited = conversation.clone();
        Edits(edit).apply(&mut edited);
        Ok(self.engine.markup().decode(&self.engine.render(&edited, self.capabilities)?))
    }
}

/// Renderings of conversations that show turn delimiters, as far as the template takes them.
fn delimiter_probes(
    engine: &Engine,
    capabilities: Capabilities,
) -> impl Iterator<Item = Decoded> + '_ {
    let render = move |probe: Conversation| engine.render(&probe, capabilities).ok();
    let rendered = delimiters::probes().into_iter().filter_map(render);
    rendered.map(|rendered| engine.markup().decode(&rendered))
}

/// The source as Jinja2 reads it: each line ends in a line feed, and marks of training are gone.
fn in_lines(source: &str) -> String {
    for_engine(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

/// All markup of a template: special tokens, added tokens that the template uses, and turn
/// delimiters that are ordinary text. The latter two are in renderings of a few words by a template
/// that knows special tokens alone.
fn markup_items(
    source: &str,
    tokens: &SpecialTokens,
    added: &[Added],
) -> Result<Vec<Item>, CompileError> {
    let is_markup = |token: &&Added| {
        !token.text.is_empty() && (token.special || token.is_tag() && source.contains(&token.text))
    };
    let (protected, others): (Vec<&Added>, Vec<&Added>) = added.iter().partition(is_markup);
    let mut items: Vec<Item> = protected.into_iter().map(Added::item).collect();
    let draft = Engine::new(source, tokens, Markup::new(items.clone())?)?;
    for probe in delimiter_probes(&draft, probe::capabilities(&draft)) {
        let shown =
            others.iter().filter(|token| token.is_tag() && probe.text.contains(&token.text));
        let shown: Vec<Item> = shown.map(|token| token.item()).collect();
        let hidden = draft.markup().hidden(&probe.text, delimiters::SPECIAL);
        let texts = delimiters::of(&hidden).into_iter().map(|text| Item { text, token: None });
        for item in shown.into_iter().chain(texts) {
            if items.iter().all(|known| known.text != item.text) {
                items.push(item);
            }
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests;
