//! A model's chat template: Jinja as published templates use it, with bounds on work and output.
//!
//! The template comes with the model and is trusted to mean well, not to end: fuel bounds its
//! steps, a writer its output. What it can show is found out when it is compiled, by showing it: a
//! template that leaves something out does so in silence (I5).

use std::borrow::Cow;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json, json};

use super::conversation::{ContentPart, Conversation, Edits, Message, Role, Tool, ToolCall};
use super::markup::{Added, Decoded, Item, Marker, Markup, Occurrence, Rendered};
use super::resent::Writes;
use super::variables::{Content, Variables};
use super::{delimiters, json, literals, markup, python};

/// Steps a rendering may take; about 90 ms of work. A turn of a published template takes a few
/// hundred.
const FUEL: u64 = 1_000_000;
/// Bytes a rendering may have.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// A rendering with its codes, escapes and marks: a character of one byte has up to two marks of
/// three bytes each.
const MAX_CODED_BYTES: usize = 7 * MAX_OUTPUT_BYTES;
/// Characters of a template's own message that are passed on: it travels in HTTP/2 headers.
const MAX_MESSAGE_CHARS: usize = 500;

/// Variables that are set here, or could be by a model's files; a request sets others.
pub const OWN_NAMES: [&str; 14] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
    "raise_exception",
    "strftime_now",
];

/// Why a conversation cannot be rendered, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation.
    #[error("{0}")]
    Conversation(String),
    /// The template does not show the content of a field.
    #[error(
        "{field}: this model's chat template would leave it out; send no tools, or use another model"
    )]
    NoTools {
        /// The field.
        field: String,
    },
}

impl RenderError {
    fn no_tools(field: impl Into<String>) -> Self {
        Self::NoTools { field: field.into() }
    }
}

/// What comes through a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shows {
    /// `content` as text. Some published templates need it so.
    text: bool,
    /// `content` as a list of parts. Some published ones drop it in silence, some need it.
    parts: bool,
    tools: bool,
    /// What the assistant called.
    calls: bool,
    /// What tools answered.
    answers: bool,
    /// What the assistant thought.
    reasoning: bool,
}

/// Nothing is known to be left out.
const ALL: Shows =
    Shows { text: true, parts: true, tools: true, calls: true, answers: true, reasoning: true };

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    shows: Shows,
    markup: Markup,
    /// Of each markup, whether the template puts it together of pieces.
    assembled: Vec<bool>,
    /// What the template writes itself around thoughts and calls.
    writes: Writes,
}

const NAME: &str = "chat";

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
    ) -> Result<Self, Error> {
        let source = without_generation_tags(source);
        let is_markup = |token: &&Added| {
            !token.text.is_empty()
                && (token.special || token.is_tag() && source.contains(&token.text))
        };
        let (protected, others): (Vec<&Added>, Vec<&Added>) = added.iter().partition(is_markup);
        let mut items: Vec<Item> = protected.into_iter().map(Added::item).collect();
        // What it shows of a few words, with special tokens alone, tells the rest.
        let draft =
            Self::with_markup(&source, bos_token.clone(), eos_token.clone(), items.clone())?;
        for probe in draft.probes() {
            let shown =
                others.iter().filter(|token| token.is_tag() && probe.text.contains(&token.text));
            let tokens: Vec<Item> = shown.map(|token| token.item()).collect();
            let lines = delimiters::of(&draft.markup.hidden(&probe.text, delimiters::SPECIAL));
            let texts = lines.into_iter().map(|text| Item { text, token: None });
            for item in tokens.into_iter().chain(texts) {
                if items.iter().all(|known| known.text != item.text) {
                    items.push(item);
                }
            }
        }
        let mut template = Self::with_markup(&source, bos_token, eos_token, items)?;
        for probe in template.probes() {
            for at in template.markup.plain(&probe) {
                template.assembled[at.item] = true;
            }
        }
        template.writes = Writes {
            thoughts: template.shows.reasoning && source.contains("</think>"),
            calls: template.shows.calls && source.contains("<tool_call>"),
        };
        Ok(template)
    }

    fn with_markup(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
        items: Vec<Item>,
    ) -> Result<Self, Error> {
        let markup =
            Markup::new(items).map_err(|what| Error::new(ErrorKind::InvalidOperation, what))?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", json::tojson);
        environment.add_template_owned(NAME, literals::coded(source, &markup))?;
        let [bos_token, eos_token] =
            [bos_token, eos_token].map(|token| token.map(|token| markup.coded(&token)));
        let (assembled, writes) = (vec![false; markup.items().len()], Writes::default());
        let mut template =
            Self { environment, bos_token, eos_token, shows: ALL, markup, assembled, writes };
        template.shows = template.probe();
        Ok(template)
    }

    /// Texts that only the template may write.
    pub fn markup(&self) -> &[Item] {
        self.markup.items()
    }

    /// Whether tools come through.
    pub fn knows_tools(&self) -> bool {
        self.shows.tools && self.shows.calls && self.shows.answers
    }

    /// The prompt of a conversation, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// What the template objects to, in words for the client; that it would leave tools out.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, RenderError> {
        let conversation = &self.with_fields(conversation);
        let message = |wanted: &dyn Fn(&Message) -> bool| conversation.messages.iter().any(wanted);
        if !conversation.tools.is_empty() && !self.shows.tools {
            return Err(RenderError::no_tools("tools"));
        }
        if !self.shows.calls && message(&|message| !message.calls.is_empty()) {
            return Err(RenderError::no_tools("messages.tool_calls"));
        }
        if !self.shows.answers && message(&|message| message.role == Role::Tool) {
            return Err(RenderError::no_tools("messages.role"));
        }
        let rendered = self.render_apart(conversation).map_err(RenderError::Conversation)?;
        if rendered.text.len() > MAX_OUTPUT_BYTES {
            return Err(RenderError::Conversation(too_large()));
        }
        // Some show tools only beside messages of a certain role.
        match conversation.tools.iter().position(|tool| !rendered.text.contains(&tool.name)) {
            Some(at) => Err(RenderError::no_tools(format!("tools[{at}]"))),
            None => Ok(rendered),
        }
    }

    /// The conversation with what agents resend as text moved to its fields.
    fn with_fields<'a>(&self, conversation: &'a Conversation) -> Cow<'a, Conversation> {
        if !conversation.messages.iter().any(|message| self.writes.concerns(message)) {
            return Cow::Borrowed(conversation);
        }
        let mut changed = conversation.clone();
        changed.messages =
            changed
                .messages
                .into_iter()
                .map(|message| {
                    if self.writes.concerns(&message) {
                        self.writes.split(message)
                    } else {
                        message
                    }
                })
                .collect();
        Cow::Owned(changed)
    }

    /// Renders a conversation so that markup of the template is told from the client's strings.
    fn render_apart(&self, conversation: &Conversation) -> Result<Rendered, String> {
        let decoded = self.render_edited(conversation, &mut |text| match markup::escape(text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(escaped) => Some(escaped),
        })?;
        let plain = self.markup.plain(&decoded);
        let of_pieces = self.of_pieces(&plain, conversation);
        let Some(marker) = self.marker(&of_pieces) else { return Ok(decoded.rendered(plain)) };
        let marked = self.render_edited(conversation, &mut |text| Some(marker.mark(text)))?;
        let plain = self.markup.plain(&marked);
        Ok(marked.rendered_of_pieces(plain, |item| of_pieces[item]))
    }

    /// Of each markup, whether it is in the rendering and the template may have put it together of
    /// pieces: it is known to do so, or no string of the client has it.
    fn of_pieces(&self, plain: &[Occurrence], conversation: &Conversation) -> Vec<bool> {
        let mut of_pieces = vec![false; self.assembled.len()];
        if plain.is_empty() {
            return of_pieces;
        }
        let mut written = vec![false; self.assembled.len()];
        let mut note = |text: &str| {
            self.markup.note(text, &mut written);
            None
        };
        Edits(&mut note).apply(&mut conversation.clone());
        for at in plain {
            of_pieces[at.item] = self.assembled[at.item] || !written[at.item];
        }
        of_pieces
    }

    /// What marks the client's share in these; `None` if there are none.
    fn marker(&self, wanted: &[bool]) -> Option<Marker> {
        let texts = self
            .markup
            .items()
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
    ) -> Result<Decoded, String> {
        let mut edited = conversation.clone();
        Edits(edit).apply(&mut edited);
        Ok(self.markup.decode(&self.render_as(&edited, self.shows)?))
    }

    /// The conversations that show turn delimiters, as far as the template takes them.
    fn probes(&self) -> Vec<Decoded> {
        let rendered = delimiters::probes()
            .into_iter()
            .filter_map(|probe| self.render_as(&probe, self.shows).ok());
        rendered.map(|rendered| self.markup.decode(&rendered)).collect()
    }

    /// Tries each shape of content, and tools, on a few words, and sees which arrive (I5).
    fn probe(&self) -> Shows {
        let shown = |messages: Vec<Message>, tools: Vec<Tool>, shows: Shows, words: &[&str]| {
            let conversation = Conversation { messages, tools, ..Conversation::default() };
            self.render_as(&conversation, shows)
                .map(|text| words.iter().all(|word| text.contains(word)))
        };
        let message = |role: Role, parts: &[&str]| {
            Message::new(role, parts.iter().map(ToString::to_string).collect())
        };
        let words = ["f1rst", "sec0nd"];
        let arrives = |parts: &[&str], shows: Shows| {
            shown(vec![message(Role::User, parts)], vec![], shows, parts) == Ok(true)
        };
        let text = arrives(&words[..1], Shows { text: true, parts: false, ..ALL });
        let parts = arrives(&words, Shows { text: false, parts: true, ..ALL });
        // A template that lets neither through objects to the probe itself; requests will hear why.
        let content = if text || parts { Shows { text, parts, ..ALL } } else { ALL };

        // One that objects to a probe does not leave out in silence: only what is rendered without
        // the words counts.
        let comes = |outcome: Result<bool, String>| outcome.unwrap_or(true);
        let asked = || message(Role::User, &words[..1]);
        let called = |parts: &[&str]| {
            let arguments = Map::from_iter([("k3y".to_owned(), Json::from("valu3"))]);
            let call = ToolCall { id: "call00001".into(), name: "t00l".into(), arguments };
            Message { calls: vec![call], ..message(Role::Assistant, parts) }
        };
        let answered = || Message {
            call_id: "call00001".into(),
            name: "t00l".into(),
            ..message(Role::Tool, &["answ3r"])
        };
        let tool = || {
            let parameters = json!({"type": "object", "properties": {"k3y": {"type": "string", "description": "k"}}});
            let parameters = parameters.as_object().cloned().unwrap_or_default();
            Tool { name: "t00l".into(), description: "d0es".into(), parameters }
        };
        let declared = self
            .environment
            .get_template(NAME)
            .is_ok_and(|it| it.undeclared_variables(false).contains("tools"));
        // Some show them beside a system message only.
        let offered = |messages: Vec<Message>| {
            comes(shown(messages, vec![tool()], content, &["t00l", "k3y"]))
        };
        let tools = declared
            && (offered(vec![asked()])
                || offered(vec![message(Role::System, &["syst3m"]), asked()]));
        let history = || vec![asked(), called(&[""]), answered()];
        let calls = comes(shown(history(), vec![], content, &["t00l", "k3y", "valu3"]));
        let answers = comes(shown(history(), vec![], content, &["answ3r"]));
        let thinking = || Message { reasoning: "th0ught".into(), ..called(&[""]) };
        let reasoning =
            shown(vec![asked(), thinking(), answered()], vec![], content, &["th0ught"]) == Ok(true);
        Shows { tools, calls, answers, reasoning, ..content }
    }

    fn render_as(&self, conversation: &Conversation, shows: Shows) -> Result<String, String> {
        let variables = Variables {
            conversation,
            content: &|parts| content(parts, shows),
            bos_token: self.bos_token.as_deref(),
            eos_token: self.eos_token.as_deref(),
        };
        let mut output = Capped(Vec::new());
        let describe = |error: Error| describe(&error, &self.markup);
        let template = self.environment.get_template(NAME).map_err(describe)?;
        template
            .render_captured_to(Value::from(Serde(&variables)), &mut output)
            .map_err(describe)?;
        String::from_utf8(output.0)
            .map_err(|_| "the chat template's output is not UTF-8".to_owned())
    }
}

/// One part as plain text, several as a list; as the template needs it where it takes only one
/// shape. With pictures always a list: whether they came through is counted in the prompt.
fn content(parts: &[ContentPart], shows: Shows) -> Content<'_> {
    let as_text = if parts.len() <= 1 { shows.text } else { !shows.parts };
    match parts.iter().map(ContentPart::text).collect::<Option<Vec<&str>>>().filter(|_| as_text) {
        None => Content::Parts(parts),
        Some(texts) => match texts[..] {
            [only] => Content::Text(Cow::Borrowed(only)),
            _ => Content::Text(Cow::Owned(texts.join("\n"))),
        },
    }
}

fn too_large() -> String {
    format!(
        "expected a rendered conversation of at most {MAX_OUTPUT_BYTES} bytes, found more; shorten it"
    )
}

fn describe(error: &Error, markup: &Markup) -> String {
    let text = match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the chat template took more than {FUEL} steps; shorten the conversation")
        }
        ErrorKind::WriteFailure => too_large(),
        _ => {
            // Without words of its own an error has those of its kind, and its place in the
            // template.
            let words = error
                .detail()
                .map_or_else(|| error.kind().to_string(), |detail| markup.readable(detail));
            let line = error
                .line()
                .map_or_else(String::new, |line| format!(" (line {line} of the template)"));
            format!("the chat template refused the conversation: {words}{line}")
        }
    };
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

/// Takes bytes up to a bound.
struct Capped(Vec<u8>);

impl io::Write for Capped {
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

/// `{% generation %}` marks what training counts and is no Jinja. A block that is always true keeps
/// the marks' whitespace control as it is.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at..].find("%}") else { break };
        let tag = &rest[at..at + length];
        out.push_str(&rest[..at]);
        match tag.trim_start_matches("{%").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
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

/// Today, as templates that tell the model the date ask for it.
#[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown format"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, parts: &[&str]) -> Message {
        Message::new(
            Role::from_word(role).expect("a role"),
            parts.iter().map(ToString::to_string).collect(),
        )
    }

    fn call(name: &str) -> ToolCall {
        ToolCall {
            id: "1".into(),
            name: name.into(),
            arguments: Map::from_iter([("path".to_owned(), "a.rs".into())]),
        }
    }

    fn tool(name: &str) -> Tool {
        Tool { name: name.into(), description: String::new(), parameters: Map::new() }
    }

    fn render(source: &str, messages: &[Message]) -> Result<String, String> {
        let template =
            Template::compile(source, None, Some("<end>".into()), &[]).expect("valid Jinja");
        let conversation = Conversation { messages: messages.to_vec(), ..Conversation::default() };
        template
            .render(&conversation)
            .map(|rendered| rendered.text)
            .map_err(|refused| format!("{refused:?}"))
    }

    #[test]
    fn what_published_templates_need_is_there() {
        let line = |source: &str, expected: &str| {
            assert_eq!(
                render(source, &[message("user", &[" Hi <b> "])]).expect(source),
                expected,
                "{source}"
            );
        };
        line("{{ messages[0].content.strip() }}{{ eos_token }}", "Hi <b><end>");
        line(
            "{% for m in messages %}\n    {% if loop.first %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n",
            "user\n",
        );
        line("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#);
        line("{{ messages[0].content.split(' ')[1] }}{{ 'x'.startswith('x') }}", "HiTrue");
        line("a {%- generation -%} b {%- endgeneration %} c", "ab c");
        line("{% if add_generation_prompt and not bos_token %}go{{ bos_token }}{% endif %}", "go");
        line(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        );
        line("{% for m in messages %}{% if true %}{% break %}{% endif %}x{% endfor %}", "");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
    fn the_date_is_todays() {
        let year = jiff::Zoned::now().year().to_string();
        let rendered =
            render("{{ strftime_now('%Y') }}", &[message("user", &["x"])]).expect("a format");
        assert!(
            rendered == year
                || rendered == (year.parse::<i32>().expect("a number") + 1).to_string()
        );
        assert!(render("{{ strftime_now('%!') }}", &[message("user", &["x"])]).is_err());
    }

    #[test]
    fn a_templates_objection_is_passed_on() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let error = render(source, &[message("user", &["x"])]).expect_err("it objects");
        assert!(
            error.contains(
                "refused the conversation: roles must alternate (line 1 of the template)"
            ),
            "{error}"
        );
    }

    #[test]
    fn work_and_output_are_bounded() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(render(endless, &[message("user", &["x"])]).expect_err("no end").contains("steps"));
        let large = "{% for a in range(99) %}{{ messages[0].content }}{% endfor %}";
        assert!(
            render(large, &[message("user", &[&"x".repeat(1 << 20)])])
                .expect_err("too large")
                .contains("4194304 bytes")
        );
    }

    #[test]
    fn no_part_is_lost_whatever_shape_the_template_takes() {
        let parts = message("user", &["one", "two"]);
        let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(
            render(both, &[parts.clone(), message("user", &["three"])]).expect("fine"),
            "[one][two]three"
        );
        // As Qwen3's: a list becomes nothing.
        let text_only = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(render(text_only, std::slice::from_ref(&parts)).expect("fine"), "one\ntwo");
        let list_only =
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
        assert_eq!(
            render(list_only, &[parts, message("user", &["three"])]).expect("fine"),
            "onetwothree"
        );
    }

    #[test]
    fn tools_are_never_left_out_in_silence() {
        let mute = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
        let (template, user) = (
            Template::compile(mute, None, None, &[]).expect("valid Jinja"),
            message("user", &["x"]),
        );
        assert!(!template.knows_tools());
        let of = |messages: &[Message], tools: &[Tool]| {
            let conversation = Conversation {
                messages: messages.to_vec(),
                tools: tools.to_vec(),
                ..Conversation::default()
            };
            template.render(&conversation).map(|rendered| rendered.text)
        };
        assert_eq!(
            of(std::slice::from_ref(&user), &[tool("read")]),
            Err(RenderError::no_tools("tools"))
        );
        let calling = Message { calls: vec![call("read")], ..message("assistant", &["y"]) };
        assert_eq!(
            of(&[user.clone(), calling], &[]),
            Err(RenderError::no_tools("messages.tool_calls"))
        );
        assert_eq!(of(&[user.clone(), message("tool", &["z"])], &[]), Ok("user:x;tool:z;".into()));

        let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
        let answered = [user.clone(), message("tool", &["z"])];
        assert_eq!(render(users, &answered), Err(r#"NoTools { field: "messages.role" }"#.into()));

        // Only beside a system message.
        let some = "{% for m in messages %}{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}\
                    {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
        let template = Template::compile(some, None, None, &[]).expect("valid Jinja");
        let of = |messages: Vec<Message>| {
            template.render(&Conversation {
                messages,
                tools: vec![tool("read")],
                ..Default::default()
            })
        };
        assert!(
            of(vec![message("system", &["s"]), user.clone()])
                .is_ok_and(|rendered| rendered.text.contains("\"read\""))
        );
        assert!(of(vec![user]).is_err());
    }

    #[test]
    fn a_request_sets_variables() {
        let source = "{{ messages[0].content }}{{ ' thinks' if enable_thinking is true }}{{ documents is none }}";
        let template = Template::compile(source, None, None, &[]).expect("valid Jinja");
        let with = |arguments: Json| {
            let arguments = arguments.as_object().expect("an object").clone();
            let messages = vec![message("user", &["x"])];
            template
                .render(&Conversation { messages, arguments, ..Default::default() })
                .expect("renders")
                .text
        };
        assert_eq!(with(json!({})), "xTrue");
        assert_eq!(with(json!({"enable_thinking": true, "documents": []})), "x thinksFalse");
    }
}
