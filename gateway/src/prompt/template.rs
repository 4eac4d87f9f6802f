//! A model's chat template: Jinja as published templates use it, with bounds on work and output.
//!
//! The template comes with the model and is trusted to mean well, not to end: fuel bounds its steps, a writer its output.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};

use super::json;

/// Steps a rendering may take; about 90 ms of work. A turn of a published template takes a few hundred.
const FUEL: u64 = 1_000_000;
/// Bytes a rendering may have.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Characters of a template's own message that are passed on: it travels in HTTP/2 headers.
const MAX_MESSAGE_CHARS: usize = 500;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// "system", "user" or "assistant".
    pub role: String,
    /// Text parts, at least one.
    pub parts: Vec<String>,
}

/// Which shapes of `content` come through a template. Some published ones drop a list in silence, some need one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shapes {
    text: bool,
    parts: bool,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    shapes: Shapes,
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
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", json::tojson);
        environment.add_template_owned(NAME, without_generation_tags(source))?;
        let mut template = Self { environment, bos_token, eos_token, shapes: Shapes { text: true, parts: true } };
        template.shapes = template.probe();
        Ok(template)
    }

    /// The prompt of a conversation, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// What the template objects to, in words for the client.
    pub fn render(&self, turns: &[Turn]) -> Result<String, String> {
        self.render_as(turns, self.shapes)
    }

    /// Tries both shapes of content on a conversation of two words and sees which arrive (I5).
    fn probe(&self) -> Shapes {
        let words = ["f1rst", "sec0nd"];
        let arrives = |parts: &[&str], shapes: Shapes| {
            let turn = Turn { role: "user".into(), parts: parts.iter().map(ToString::to_string).collect() };
            self.render_as(&[turn], shapes).is_ok_and(|text| parts.iter().all(|word| text.contains(word)))
        };
        let found = Shapes {
            text: arrives(&words[..1], Shapes { text: true, parts: false }),
            parts: arrives(&words, Shapes { text: false, parts: true }),
        };
        // A template that lets neither through objects to the probe itself; requests will hear why.
        if found.text || found.parts { found } else { Shapes { text: true, parts: true } }
    }

    fn render_as(&self, turns: &[Turn], shapes: Shapes) -> Result<String, String> {
        // As templates know it from the OpenAI interface.
        let message = |turn: &Turn| {
            Value::from_pairs([("role", Value::from(turn.role.as_str())), ("content", content(&turn.parts, shapes))])
        };
        let context = context! {
            messages => turns.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => true,
            bos_token => special(&self.bos_token),
            eos_token => special(&self.eos_token),
        };
        let mut output = Capped(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error))?;
        template.render_captured_to(context, &mut output).map_err(|error| describe(&error))?;
        String::from_utf8(output.0).map_err(|_| "the chat template's output is not UTF-8".to_owned())
    }
}

/// A special token the model does not have is undefined, and prints as nothing, not as "None".
fn special(token: &Option<String>) -> Value {
    token.as_deref().map_or(Value::UNDEFINED, Value::from)
}

/// One part as plain text, several as a list; as the template needs it where it takes only one shape.
fn content(parts: &[String], shapes: Shapes) -> Value {
    let as_text = if parts.len() == 1 { shapes.text } else { !shapes.parts };
    if as_text {
        Value::from(parts.join("\n"))
    } else {
        parts.iter().map(|text| Value::from_pairs([("type", "text"), ("text", text.as_str())])).collect()
    }
}

fn describe(error: &Error) -> String {
    let text = match error.kind() {
        ErrorKind::OutOfFuel => format!("the chat template took more than {FUEL} steps; shorten the conversation"),
        ErrorKind::WriteFailure => {
            format!("expected a rendered conversation of at most {MAX_OUTPUT_BYTES} bytes, found more; shorten it")
        }
        _ => format!("the chat template refused the conversation: {}", error.detail().unwrap_or("an error in the template")),
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

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Today, as templates that tell the model the date ask for it.
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown format"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: &str, parts: &[&str]) -> Turn {
        Turn { role: role.into(), parts: parts.iter().map(ToString::to_string).collect() }
    }

    fn render(source: &str, turns: &[Turn]) -> Result<String, String> {
        Template::compile(source, None, Some("<end>".into())).expect("valid Jinja").render(turns)
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
        assert!(error.ends_with("roles must alternate"), "{error}");
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
}
