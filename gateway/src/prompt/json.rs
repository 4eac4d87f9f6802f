//! `tojson` as the published templates' renderer has it: Python's spacing, no HTML escapes. minijinja's own writes `<` as
//! `\u003c`, which would change prompts.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Python's `json.dumps` without indentation: a space behind commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The filter. `indent` is a number of spaces; `ensure_ascii` is taken and has no effect, as in the published renderer.
///
/// # Errors
/// A value JSON cannot express, or an unknown argument.
pub(super) fn tojson(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let _: Option<bool> = arguments.get("ensure_ascii")?;
    arguments.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
        Some(spaces) => {
            let indent = " ".repeat(spaces.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(indent.as_bytes())))
        }
    };
    let failed = |what: &'static str| Error::new(ErrorKind::BadSerialization, what);
    written.map_err(|_| failed("tojson: the value has no JSON form"))?;
    String::from_utf8(out).map(Value::from).map_err(|_| failed("tojson: not UTF-8"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_writes_what_python_writes() {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", super::tojson);
        let render = |expression: &str| {
            let source = "{% set v = {'b': [1, 2.5, none, true], 'a': {'x': '<é\\'\\n>'}, 'e': []} %}".to_owned() + expression;
            environment.render_str(&source, minijinja::context! {})
        };
        assert_eq!(render("{{ v | tojson }}").expect("renders"), r#"{"b": [1, 2.5, null, true], "a": {"x": "<é'\n>"}, "e": []}"#);
        let indented = render("{{ v.b | tojson(indent=2, ensure_ascii=false) }}").expect("renders");
        assert_eq!(indented, "[\n  1,\n  2.5,\n  null,\n  true\n]");
        assert!(render("{{ v | tojson(colour=1) }}").is_err());
    }
}
