//! Methods that published templates call on Python's texts and lists. Most come with minijinja's
//! companion; these it lacks, or takes with fewer arguments.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value, context, value::from_args};

use super::arguments::{Arguments, columns};

/// Methods of loops, and those that change a value: the reference refuses the latter as well, when a
/// conversation reaches them.
const OTHERS: [&str; 8] =
    ["changed", "cycle", "append", "extend", "insert", "pop", "remove", "update"];

/// Whether a template can call this method of a text, a list, a mapping or a loop.
pub(super) fn has(environment: &Environment<'_>, name: &str) -> bool {
    let mut state = environment.empty_state();
    let values = [Value::from(""), Value::from(Vec::<Value>::new()), context! {}];
    let is_known = |value: &Value| {
        let called = method(&mut state, value, name, &[]);
        called.map_or_else(|error| error.kind() != ErrorKind::UnknownMethod, |_| true)
    };
    OTHERS.contains(&name) || values.iter().any(is_known)
}

/// Calls `method` on `value`, as Python would.
///
/// # Errors
/// Python has no such method, or it is called otherwise than Python would take.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(outcome) = of_own(text, method, arguments)
    {
        return outcome;
    }
    match minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments) {
        Err(error) if error.kind() == ErrorKind::UnknownMethod => {
            match (value.as_str(), value.kind()) {
                (Some(text), _) => of_text(text, method, arguments),
                (None, ValueKind::Seq) => of_list(value, method, arguments),
                _ => Err(error),
            }
        }
        outcome => outcome,
    }
}

fn of_text(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let part = || from_args::<(&str,)>(arguments).map(|(part,)| part);
    Ok(match method {
        "removeprefix" => Value::from(text.strip_prefix(part()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(part()?).unwrap_or(text)),
        "partition" | "rpartition" => {
            let by = part()?;
            let (halves, whole) = match method {
                "partition" => (text.split_once(by), [text, "", ""]),
                _ => (text.rsplit_once(by), ["", "", text]),
            };
            halves.map_or(whole, |(before, after)| [before, by, after]).into_iter().collect()
        }
        "index" | "rindex" => {
            let at = if method == "index" { text.find(part()?) } else { text.rfind(part()?) };
            let at = at.ok_or_else(|| wrong("index: the text has no such part"))?;
            Value::from(text[..at].chars().count())
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let (width,) = from_args(arguments)?;
            Value::from(padded(text, width, method)?)
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// The text with as many columns as `width`, filled as the method of this name fills it.
///
/// # Errors
/// The width is beyond reason.
pub(super) fn padded(text: &str, width: usize, method: &str) -> Result<String, Error> {
    let missing = columns(width)?.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let fill = if method == "zfill" { "0" } else { " " };
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// Methods that the companion has with another outcome; `None` if it is none of them.
fn of_own(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "split" | "rsplit" => split(text, arguments, method == "rsplit"),
        "replace" if arguments.last().is_some_and(Value::is_kwargs) => {
            replace(text, arguments).map(Value::from)
        }
        "splitlines" if arguments.is_empty() => Ok(lines(text).into_iter().collect()),
        "title" if arguments.is_empty() => Ok(Value::from(title(text))),
        _ => return None,
    })
}

fn split(text: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments, &["sep", "maxsplit"])?;
    let (by, most) = (arguments.get("sep"), arguments.number("maxsplit")?);
    arguments.done()?;
    // Negative: as many as there are.
    let pieces = most
        .and_then(|most| usize::try_from(most).ok())
        .map_or(usize::MAX, |most| most.saturating_add(1));
    let by = by.map(|by| by.to_string());
    let mut parts: Vec<&str> = match (by.as_deref(), from_end) {
        (Some(""), _) => return Err(wrong("split: expected a separator, found an empty one")),
        (Some(by), false) => text.splitn(pieces, by).collect(),
        (Some(by), true) => text.rsplitn(pieces, by).collect(),
        (None, _) if pieces == usize::MAX => return Ok(text.split_whitespace().collect()),
        (None, false) => words(text, pieces),
        (None, true) => {
            return Err(wrong("rsplit: expected a separator with a number of splits, found none"));
        }
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().collect())
}

/// At most `pieces` words. The last one has the rest of the text.
fn words(text: &str, pieces: usize) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).filter(|_| out.len() + 1 < pieces);
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        out.push(word);
        rest = behind.trim_start();
    }
    out
}

/// With an optional number of replacements.
///
/// # Errors
/// An argument is missing, unknown or of another type.
pub(super) fn replace(text: &str, arguments: &[Value]) -> Result<String, Error> {
    let arguments = Arguments::new(arguments, &["old", "new", "count"])?;
    let part = |name| {
        let part = arguments.get(name).map(|value| value.to_string());
        part.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    };
    let (old, new) = (part("old")?, part("new")?);
    let count = arguments.number("count")?.and_then(|count| usize::try_from(count).ok());
    arguments.done()?;
    Ok(text.replacen(&old, &new, count.unwrap_or(usize::MAX)))
}

/// Each letter after something else is upper case, all others are lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = character.is_alphabetic();
    }
    out
}

/// The lines of a text without their ends, as Python's `splitlines` finds them.
pub(super) fn lines(text: &str) -> Vec<&str> {
    let ends = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        out.push(&rest[..at]);
        let behind = &rest[at..];
        let end = behind.chars().next().map_or(0, char::len_utf8);
        rest = &behind[if behind.starts_with("\r\n") { 2 } else { end }..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

fn of_list(list: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    match method {
        "index" => {
            let (wanted,): (Value,) = from_args(arguments)?;
            let at = list.try_iter()?.position(|item| item == wanted);
            at.map(Value::from).ok_or_else(|| wrong("index: the list has no such item"))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

#[cfg(test)]
mod tests {
    #[test]
    fn methods_return_what_pythons_methods_return() {
        let mut environment = minijinja::Environment::new();
        environment.set_unknown_method_callback(super::method);
        let render =
            |expression: &str| environment.render_str(&format!("{{{{ {expression} }}}}"), ());
        for (expression, expected) in [
            ("'abc'.removeprefix('a') ~ 'abc'.removeprefix('x')", "bcabc"),
            ("'abc'.removesuffix('c') ~ 'abc'.removesuffix('x')", "ababc"),
            ("'a=b=c'.partition('=') | join('/')", "a/=/b=c"),
            ("'a=b=c'.rpartition('=') | join('/')", "a=b/=/c"),
            ("'abc'.partition('=') | join('/')", "abc//"),
            ("'abc'.rpartition('=') | join('/')", "//abc"),
            ("'a b c'.rsplit(' ', 1) | join('/')", "a b/c"),
            ("'a b c'.rsplit(' ') | join('/')", "a/b/c"),
            ("' a  b '.rsplit() | join('/')", "a/b"),
            ("['a', 'b'].index('b')", "1"),
            ("'x'.upper() ~ {'k': 1}.get('k') ~ {'k': 1}.get('l', 2)", "X12"),
        ] {
            assert_eq!(render(expression).expect(expression), expected, "{expression}");
        }
        for broken in [
            "'a'.sing()",
            "['a'].index('b')",
            "'a'.rsplit('')",
            "'a'.rsplit(none, 1)",
            "['a'].pop()",
        ] {
            assert!(render(broken).is_err(), "{broken}");
        }
    }
}
