//! `tojson` as the published templates' renderer has it: Python's `json.dumps`, character for
//! character. minijinja's own writes `<` as `\u003c`, which would change prompts.

use std::fmt::Write as _;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::markup;
use super::tool_call_text::ToolCallText;

/// Columns of one level of indentation, at most.
const MAX_INDENT: usize = 16;

/// How it is written.
struct Style {
    indent: Option<String>,
    between: String,
    colon: String,
    ascii: bool,
    sorted: bool,
}

/// The filter: `ensure_ascii`, `indent` (a number of spaces, or what one level is indented by),
/// `separators` (two texts) and `sort_keys`, as in `json.dumps`; by default nothing is escaped that
/// need not be.
///
/// # Errors
/// A value JSON cannot express, or an unknown argument.
pub(super) fn tojson(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent = match arguments.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.chars().take(MAX_INDENT).collect(),
            None => " ".repeat(usize::try_from(value).unwrap_or(0).min(MAX_INDENT)),
        }),
    };
    let separators = match arguments.get::<Option<Value>>("separators")? {
        Some(value) if !value.is_none() => Some(pair(&value)?),
        _ => None,
    };
    // Python: no space at a line's end.
    let usual = || ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned());
    let (between, colon) = separators.unwrap_or_else(usual);
    let ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    arguments.assert_all_used()?;
    if let Some(text) = ToolCallText::of(value) {
        return Ok(Value::from(text));
    }
    let json = serde_json::to_value(value).map_err(|_| {
        Error::new(ErrorKind::BadSerialization, "tojson: the value has no JSON form")
    })?;
    let mut out = String::new();
    Style { indent, between, colon, ascii, sorted }.write(&json, 0, &mut out);
    Ok(Value::from(out))
}

/// A list of two texts.
fn pair(value: &Value) -> Result<(String, String), Error> {
    let mut texts = value.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned));
    match (texts.next(), texts.next(), texts.next()) {
        (Some(between), Some(colon), None) => Ok((between, colon)),
        _ => {
            let what = "tojson: expected two texts as separators";
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

impl Style {
    fn write(&self, value: &Json, depth: usize, out: &mut String) {
        match value {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => match number.as_f64() {
                Some(value) if number.is_f64() => float(value, out),
                _ => {
                    let _ = write!(out, "{number}"); // a String takes everything
                }
            },
            Json::String(text) => self.text(text, out),
            Json::Array(items) => {
                self.row('[', ']', items.iter().map(|item| (None, item)), depth, out)
            }
            Json::Object(members) => {
                let mut members: Vec<_> =
                    members.iter().map(|(key, value)| (Some(key.as_str()), value)).collect();
                if self.sorted {
                    members.sort_by_key(|(key, _)| *key);
                }
                self.row('{', '}', members.into_iter(), depth, out);
            }
        }
    }

    fn row<'a>(
        &self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = (Option<&'a str>, &'a Json)>,
        depth: usize,
        out: &mut String,
    ) {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        let empty = items.len() == 0;
        out.push(open);
        for (at, (key, value)) in items.enumerate() {
            if at > 0 {
                out.push_str(&self.between);
            }
            line(depth + 1, out);
            if let Some(key) = key {
                self.text(key, out);
                out.push_str(&self.colon);
            }
            self.write(value, depth + 1, out);
        }
        if !empty {
            line(depth, out);
        }
        out.push(close);
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for (character, is_code) in markup::characters(text, self.ascii) {
            let escape = match character {
                _ if is_code => {
                    out.push(character);
                    continue;
                }
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                '\0'..='\u{1f}' => {
                    let _ = write!(out, "\\u{:04x}", u32::from(character));
                    continue;
                }
                _ if self.ascii && !character.is_ascii() => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                    continue;
                }
                _ => {
                    out.push(character);
                    continue;
                }
            };
            out.push_str(escape);
        }
        out.push('"');
    }
}

/// The shortest digits that are this number, as Python writes them: with an exponent of two digits
/// at least below 1e-4 and from 1e16 on.
fn float(value: f64, out: &mut String) {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        out.push_str(&scientific);
        return;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let _ = if (-4..16).contains(&exponent) {
        write!(out, "{value:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.abs())
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_is_written_as_python_writes_it() {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", super::tojson);
        let render = |expression: &str| {
            let source =
                "{% set v = {'b': [1, 2.5, none, true], 'a': {'x': '<é\\'\\n>'}, 'e': []} %}"
                    .to_owned()
                    + expression;
            environment.render_str(&source, minijinja::context! {})
        };
        assert_eq!(
            render("{{ v | tojson }}").expect("renders"),
            r#"{"b": [1, 2.5, null, true], "a": {"x": "<é'\n>"}, "e": []}"#
        );
        let indented = render("{{ v.b | tojson(indent=2, ensure_ascii=false) }}").expect("renders");
        assert_eq!(indented, "[\n  1,\n  2.5,\n  null,\n  true\n]");
        assert_eq!(
            render("{{ v.e | tojson(indent=2) }}{{ {} | tojson(indent=none) }}").expect("renders"),
            "[]{}"
        );
        let compact =
            render("{{ v | tojson(separators=(',', ':'), sort_keys=true) }}").expect("renders");
        assert_eq!(compact, r#"{"a":{"x":"<é'\n>"},"b":[1,2.5,null,true],"e":[]}"#);
        assert_eq!(
            render("{{ 'é🦀\\u0001' | tojson(ensure_ascii=true) }}").expect("renders"),
            r#""\u00e9\ud83e\udd80\u0001""#
        );
        assert!(render("{{ v | tojson(colour=1) }}").is_err());
        assert!(render("{{ v | tojson(separators=1) }}").is_err());
    }

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let written = |value: f64| {
            let mut out = String::new();
            super::float(value, &mut out);
            out
        };
        // Each as `repr` of Python 3 has it.
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(written(value), expected);
        }
    }
}
