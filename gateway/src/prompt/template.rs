//! A model's chat template: Jinja as published templates use it, with bounds on work and output.
//!
//! The template comes with the model and is trusted to mean well, not to end: fuel bounds its steps, a writer its output. What
//! it can show is found out when it is compiled, by showing it: a template that leaves something out does so in silence (I5).

use std::borrow::Cow;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json, json};

use super::conversation::{Call, Conversation, Part, Role, Tool, Turn};
use super::variables::{Content, Variables};
use super::{json, python};

/// Steps a rendering may take; about 90 ms of work. A turn of a published template takes a few hundred.
const FUEL: u64 = 1_000_000;
/// Bytes a rendering may have.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
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

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// In words for the client.
    Conversation(String),
    /// The template does not show what this field has.
    NoTools(String),
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
}

/// Nothing is known to be left out.
const ALL: Shows = Shows { text: true, parts: true, tools: true, calls: true, answers: true };

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    shows: Shows,
}

const NAME: &str = "chat";

impl Template {
    /// Compiles `source`.
    ///
    /// # Errors
    /// The first syntax error, with its line.
    pub fn compile(source: &str, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", json::tojson);
        environment.add_template_owned(NAME, without_generation_tags(source))?;
        let mut template = Self { environment, bos_token, eos_token, shows: ALL };
        template.shows = template.probe();
        Ok(template)
    }

    /// Whether tools come through.
    pub fn knows_tools(&self) -> bool {
        self.shows.tools && self.shows.calls && self.shows.answers
    }

    /// The prompt of a conversation, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// What the template objects to, in words for the client; that it would leave tools out.
    pub fn render(&self, conversation: &Conversation) -> Result<String, Refused> {
        let turn = |wanted: &dyn Fn(&Turn) -> bool| conversation.turns.iter().any(wanted);
        if !conversation.tools.is_empty() && !self.shows.tools {
            return Err(Refused::NoTools("tools".into()));
        }
        if !self.shows.calls && turn(&|turn| !turn.calls.is_empty()) {
            return Err(Refused::NoTools("messages.tool_calls".into()));
        }
        if !self.shows.answers && turn(&|turn| turn.role == Role::Tool) {
            return Err(Refused::NoTools("messages.role".into()));
        }
        let rendered = self.render_as(conversation, self.shows).map_err(Refused::Conversation)?;
        // Some show tools only beside messages of a certain role.
        match conversation.tools.iter().position(|tool| !rendered.contains(&tool.name)) {
            Some(at) => Err(Refused::NoTools(format!("tools[{at}]"))),
            None => Ok(rendered),
        }
    }

    /// Tries each shape of content, and tools, on a few words, and sees which arrive (I5).
    fn probe(&self) -> Shows {
        let shown = |turns: Vec<Turn>, tools: Vec<Tool>, shows: Shows, words: &[&str]| {
            let conversation = Conversation { turns, tools, ..Conversation::default() };
            self.render_as(&conversation, shows).map(|text| words.iter().all(|word| text.contains(word)))
        };
        let turn = |role: Role, parts: &[&str]| Turn::new(role, parts.iter().map(ToString::to_string).collect());
        let words = ["f1rst", "sec0nd"];
        let arrives = |parts: &[&str], shows: Shows| shown(vec![turn(Role::User, parts)], vec![], shows, parts) == Ok(true);
        let text = arrives(&words[..1], Shows { text: true, parts: false, ..ALL });
        let parts = arrives(&words, Shows { text: false, parts: true, ..ALL });
        // A template that lets neither through objects to the probe itself; requests will hear why.
        let content = if text || parts { Shows { text, parts, ..ALL } } else { ALL };

        // One that objects to a probe does not leave out in silence: only what is rendered without the words counts.
        let comes = |outcome: Result<bool, String>| outcome.unwrap_or(true);
        let asked = || turn(Role::User, &words[..1]);
        let called = |parts: &[&str]| {
            let arguments = Map::from_iter([("k3y".to_owned(), Json::from("valu3"))]);
            let call = Call { id: "call00001".into(), name: "t00l".into(), arguments };
            Turn { calls: vec![call], ..turn(Role::Assistant, parts) }
        };
        let answered = || Turn { call_id: "call00001".into(), name: "t00l".into(), ..turn(Role::Tool, &["answ3r"]) };
        let tool = || {
            let parameters = json!({"type": "object", "properties": {"k3y": {"type": "string", "description": "k"}}});
            let parameters = parameters.as_object().cloned().unwrap_or_default();
            Tool { name: "t00l".into(), description: "d0es".into(), parameters }
        };
        let declared = self.environment.get_template(NAME).is_ok_and(|it| it.undeclared_variables(false).contains("tools"));
        // Some show them beside a system message only.
        let offered = |turns: Vec<Turn>| comes(shown(turns, vec![tool()], content, &["t00l", "k3y"]));
        let tools = declared && (offered(vec![asked()]) || offered(vec![turn(Role::System, &["syst3m"]), asked()]));
        let history = || vec![asked(), called(&[""]), answered()];
        let calls = comes(shown(history(), vec![], content, &["t00l", "k3y", "valu3"]));
        let answers = comes(shown(history(), vec![], content, &["answ3r"]));
        Shows { tools, calls, answers, ..content }
    }

    fn render_as(&self, conversation: &Conversation, shows: Shows) -> Result<String, String> {
        let variables = Variables {
            conversation,
            content: &|parts| content(parts, shows),
            bos_token: self.bos_token.as_deref(),
            eos_token: self.eos_token.as_deref(),
        };
        let mut output = Capped(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error))?;
        template.render_captured_to(Value::from(Serde(&variables)), &mut output).map_err(|error| describe(&error))?;
        String::from_utf8(output.0).map_err(|_| "the chat template's output is not UTF-8".to_owned())
    }
}

/// One part as plain text, several as a list; as the template needs it where it takes only one shape. With pictures always a
/// list: whether they came through is counted in the prompt.
fn content(parts: &[Part], shows: Shows) -> Content<'_> {
    let as_text = if parts.len() <= 1 { shows.text } else { !shows.parts };
    match parts.iter().map(Part::text).collect::<Option<Vec<&str>>>().filter(|_| as_text) {
        None => Content::Parts(parts),
        Some(texts) => match texts[..] {
            [only] => Content::Text(Cow::Borrowed(only)),
            _ => Content::Text(Cow::Owned(texts.join("\n"))),
        },
    }
}

fn describe(error: &Error) -> String {
    let text = match error.kind() {
        ErrorKind::OutOfFuel => format!("the chat template took more than {FUEL} steps; shorten the conversation"),
        ErrorKind::WriteFailure => {
            format!("expected a rendered conversation of at most {MAX_OUTPUT_BYTES} bytes, found more; shorten it")
        }
        _ => {
            // Without words of its own an error has those of its kind, and its place in the template.
            let words = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            let line = error.line().map_or_else(String::new, |line| format!(" (line {line} of the template)"));
            format!("the chat template refused the conversation: {words}{line}")
        }
    };
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

/// Takes bytes up to a bound.
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks what training counts and is no Jinja. A block that is always true keeps the marks' whitespace
/// control as it is.
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

    fn turn(role: &str, parts: &[&str]) -> Turn {
        Turn::new(Role::from_word(role).expect("a role"), parts.iter().map(ToString::to_string).collect())
    }

    fn call(name: &str) -> Call {
        Call { id: "1".into(), name: name.into(), arguments: Map::from_iter([("path".to_owned(), "a.rs".into())]) }
    }

    fn tool(name: &str) -> Tool {
        Tool { name: name.into(), description: String::new(), parameters: Map::new() }
    }

    fn render(source: &str, turns: &[Turn]) -> Result<String, String> {
        let template = Template::compile(source, None, Some("<end>".into())).expect("valid Jinja");
        let conversation = Conversation { turns: turns.to_vec(), ..Conversation::default() };
        template.render(&conversation).map_err(|refused| format!("{refused:?}"))
    }

    #[test]
    fn what_published_templates_need_is_there() {
        let line = |source: &str, expected: &str| {
            assert_eq!(render(source, &[turn("user", &[" Hi <b> "])]).expect(source), expected, "{source}");
        };
        line("{{ messages[0].content.strip() }}{{ eos_token }}", "Hi <b><end>");
        line("{% for m in messages %}\n    {% if loop.first %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n", "user\n");
        line("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#);
        line("{{ messages[0].content.split(' ')[1] }}{{ 'x'.startswith('x') }}", "HiTrue");
        line("a {%- generation -%} b {%- endgeneration %} c", "ab c");
        line("{% if add_generation_prompt and not bos_token %}go{{ bos_token }}{% endif %}", "go");
        line("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1");
        line("{% for m in messages %}{% if true %}{% break %}{% endif %}x{% endfor %}", "");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
    fn the_date_is_todays() {
        let year = jiff::Zoned::now().year().to_string();
        let rendered = render("{{ strftime_now('%Y') }}", &[turn("user", &["x"])]).expect("a format");
        assert!(rendered == year || rendered == (year.parse::<i32>().expect("a number") + 1).to_string());
        assert!(render("{{ strftime_now('%!') }}", &[turn("user", &["x"])]).is_err());
    }

    #[test]
    fn a_templates_objection_is_passed_on() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let error = render(source, &[turn("user", &["x"])]).expect_err("it objects");
        assert!(error.contains("refused the conversation: roles must alternate (line 1 of the template)"), "{error}");
    }

    #[test]
    fn work_and_output_are_bounded() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(render(endless, &[turn("user", &["x"])]).expect_err("no end").contains("steps"));
        let large = "{% for a in range(99) %}{{ messages[0].content }}{% endfor %}";
        assert!(render(large, &[turn("user", &[&"x".repeat(1 << 20)])]).expect_err("too large").contains("4194304 bytes"));
    }

    #[test]
    fn no_part_is_lost_whatever_shape_the_template_takes() {
        let parts = turn("user", &["one", "two"]);
        let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(render(both, &[parts.clone(), turn("user", &["three"])]).expect("fine"), "[one][two]three");
        // As Qwen3's: a list becomes nothing.
        let text_only = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(render(text_only, std::slice::from_ref(&parts)).expect("fine"), "one\ntwo");
        let list_only = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
        assert_eq!(render(list_only, &[parts, turn("user", &["three"])]).expect("fine"), "onetwothree");
    }

    #[test]
    fn tools_are_never_left_out_in_silence() {
        let mute = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
        let (template, user) = (Template::compile(mute, None, None).expect("valid Jinja"), turn("user", &["x"]));
        assert!(!template.knows_tools());
        let of = |turns: &[Turn], tools: &[Tool]| {
            let conversation = Conversation { turns: turns.to_vec(), tools: tools.to_vec(), ..Conversation::default() };
            template.render(&conversation)
        };
        assert_eq!(of(std::slice::from_ref(&user), &[tool("read")]), Err(Refused::NoTools("tools".into())));
        let calling = Turn { calls: vec![call("read")], ..turn("assistant", &["y"]) };
        assert_eq!(of(&[user.clone(), calling], &[]), Err(Refused::NoTools("messages.tool_calls".into())));
        assert_eq!(of(&[user.clone(), turn("tool", &["z"])], &[]), Ok("user:x;tool:z;".into()));

        let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
        let answered = [user.clone(), turn("tool", &["z"])];
        assert_eq!(render(users, &answered), Err(r#"NoTools("messages.role")"#.into()));

        // Only beside a system message.
        let some = "{% for m in messages %}{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}\
                    {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
        let template = Template::compile(some, None, None).expect("valid Jinja");
        let of = |turns: Vec<Turn>| template.render(&Conversation { turns, tools: vec![tool("read")], ..Default::default() });
        assert!(of(vec![turn("system", &["s"]), user.clone()]).is_ok_and(|text| text.contains("\"read\"")));
        assert!(of(vec![user]).is_err());
    }

    #[test]
    fn a_request_sets_variables() {
        let source = "{{ messages[0].content }}{{ ' thinks' if enable_thinking is true }}{{ documents is none }}";
        let template = Template::compile(source, None, None).expect("valid Jinja");
        let with = |arguments: Json| {
            let arguments = arguments.as_object().expect("an object").clone();
            let turns = vec![turn("user", &["x"])];
            template.render(&Conversation { turns, arguments, ..Default::default() }).expect("renders")
        };
        assert_eq!(with(json!({})), "xTrue");
        assert_eq!(with(json!({"enable_thinking": true, "documents": []})), "x thinksFalse");
    }
}
