//! The Jinja engine as published templates expect it, with bounds on work and output.
//!
//! The template comes with the model. It is trusted to mean well, and not to end: fuel bounds its
//! steps, and a writer bounds its output.

use std::io;

use minijinja::machinery::get_compiled_template;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};

use super::RenderError;
use super::capabilities::Capabilities;
use super::names::Names;
use crate::prompt::conversation::Conversation;
use crate::prompt::markup::Markup;
use crate::prompt::variables::Variables;
use crate::prompt::{jinja, json, literals, python};

/// Steps of one rendering, about 90 ms of work. A message of a published template takes a few
/// hundred.
const FUEL: u64 = 1_000_000;
/// Bytes of a rendering.
pub(super) const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Bytes of a rendering with its codes, escapes and marks: a character of one byte has up to two
/// marks of three bytes each.
const MAX_CODED_BYTES: usize = 7 * MAX_OUTPUT_BYTES;
/// Characters of a template's own message that a client gets: the message travels in HTTP/2
/// headers.
const MAX_MESSAGE_CHARS: usize = 500;

/// Name of the template in its environment.
const NAME: &str = "chat";

/// Texts of the special tokens that templates have as variables.
#[derive(Clone, Debug, Default)]
pub(in crate::prompt) struct SpecialTokens {
    /// Beginning of a sequence.
    pub(in crate::prompt) bos: Option<String>,
    /// End of a sequence.
    pub(in crate::prompt) eos: Option<String>,
}

/// A template that can be rendered.
#[derive(Debug)]
pub(super) struct Engine {
    environment: Environment<'static>,
    names: Names,
    /// With codes in place of markup.
    tokens: SpecialTokens,
    markup: Markup,
}

impl Engine {
    /// Compiles `source` with codes in place of `markup`.
    ///
    /// # Errors
    /// The first syntax error, with its line.
    pub(super) fn new(source: &str, tokens: &SpecialTokens, markup: Markup) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("joiner", minijinja_contrib::globals::joiner);
        environment.add_filter("tojson", json::tojson);
        jinja::add_to(&mut environment);
        environment.add_template_owned(NAME, literals::coded(source, &markup))?;
        let names = Names::of(get_compiled_template(&environment.get_template(NAME)?));
        let coded = |token: &Option<String>| token.as_deref().map(|token| markup.coded(token));
        let tokens = SpecialTokens { bos: coded(&tokens.bos), eos: coded(&tokens.eos) };
        Ok(Self { environment, names, tokens, markup })
    }

    /// Texts that only the template may write.
    pub(super) fn markup(&self) -> &Markup {
        &self.markup
    }

    /// Whether the template reads this variable before it assigns it.
    pub(super) fn uses(&self, variable: &str) -> bool {
        self.names.variables.contains(variable)
    }

    /// What the template calls in any branch and the engine does not have, in words.
    pub(super) fn lacks(&self) -> Vec<String> {
        let has = |test: &str, name: &String| {
            let known = self.environment.compile_expression(test);
            known
                .and_then(|known| known.eval(context! { name => name.as_str() }))
                .is_ok_and(|known| known.is_true())
        };
        let Names { filters, tests, functions, methods, .. } = &self.names;
        let filters = filters.iter().filter(|name| !has("name is filter", name));
        let tests = tests.iter().filter(|name| !has("name is test", name));
        let globals: Vec<&str> = self.environment.globals().map(|(name, _)| name).collect();
        let functions = functions.iter().filter(|name| !globals.contains(&name.as_str()));
        let methods = methods.iter().filter(|name| !python::has(&self.environment, name));
        let named = |kind: &'static str| move |name: &String| format!("{kind} {name}");
        let lacking = filters.map(named("filter")).chain(tests.map(named("test")));
        let lacking = lacking.chain(functions.map(named("function")));
        lacking.chain(methods.map(named("method"))).collect()
    }

    /// The rendering of a conversation, with its codes. Messages have the form of content that
    /// `capabilities` names.
    ///
    /// # Errors
    /// The template's objection; it took too many steps or wrote too much.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        capabilities: Capabilities,
    ) -> Result<String, RenderError> {
        let form = |message| (capabilities.content(message), capabilities.thinking(message));
        let names_reasoning = self.names.keys.contains("reasoning");
        let mut variables = Variables::new(conversation, form, names_reasoning);
        (variables.bos_token, variables.eos_token) =
            (self.tokens.bos.as_deref(), self.tokens.eos.as_deref());
        let mut output = BoundedOutput(Vec::new());
        let refused = |error: Error| RenderError::Conversation(self.describe(&error));
        let template = self.environment.get_template(NAME).map_err(refused)?;
        template
            .render_captured_to(Value::from(Serde(&variables)), &mut output)
            .map_err(refused)?;
        String::from_utf8(output.0).map_err(|_| {
            RenderError::Conversation("the chat template's output is not UTF-8".to_owned())
        })
    }

    /// An error in words for the client.
    fn describe(&self, error: &Error) -> String {
        let text = match error.kind() {
            ErrorKind::OutOfFuel => {
                format!("the chat template took more than {FUEL} steps; shorten the conversation")
            }
            ErrorKind::WriteFailure => too_large(),
            _ => {
                // An error without a detail is described by its kind and its line.
                let words = error.detail().map_or_else(
                    || error.kind().to_string(),
                    |detail| self.markup.readable(detail),
                );
                let line = error
                    .line()
                    .map_or_else(String::new, |line| format!(" (line {line} of the template)"));
                format!("the chat template refused the conversation: {words}{line}")
            }
        };
        text.chars().take(MAX_MESSAGE_CHARS).collect()
    }
}

/// The refusal of a rendering above [`MAX_OUTPUT_BYTES`].
pub(super) fn too_large() -> String {
    format!(
        "expected a rendered conversation of at most {MAX_OUTPUT_BYTES} bytes, found more; shorten it"
    )
}

/// Takes bytes up to [`MAX_CODED_BYTES`].
struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_CODED_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces `{% generation %}`, which marks what training counts and is not Jinja, by a block that
/// is always true. The block keeps the tag's whitespace control. Doubles a line break after
/// `{% raw %}`: the engine removes one, and Jinja2 none.
pub(super) fn for_engine(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at..].find("%}") else { break };
        let tag = &rest[at..at + length];
        out.push_str(&rest[..at]);
        match tag.trim_start_matches("{%").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            "raw" if !tag.ends_with('-') && rest[at + length..].starts_with("%}\n") => {
                out.push_str(tag);
                out.push_str("%}\n");
                rest = &rest[at + length + "%}".len()..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

/// The current date, for templates that tell it to the model.
#[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown format"))
}
