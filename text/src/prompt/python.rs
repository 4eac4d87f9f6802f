//! Methods that published templates call on Python's texts and lists. Most come with minijinja's
//! companion; these it lacks.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value, value::from_args};

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
    let three = |parts: [&str; 3]| Ok(parts.into_iter().collect::<Value>());
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (by,): (&str,) = from_args(arguments)?;
            three(text.split_once(by).map_or([text, "", ""], |(before, after)| [before, by, after]))
        }
        "rpartition" => {
            let (by,): (&str,) = from_args(arguments)?;
            three(
                text.rsplit_once(by).map_or(["", "", text], |(before, after)| [before, by, after]),
            )
        }
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            // Negative: as many as there are.
            let pieces = most
                .and_then(|most| usize::try_from(most).ok())
                .map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> = match by {
                Some("") => return Err(wrong("rsplit: expected a separator, found an empty one")),
                Some(by) => text.rsplitn(pieces, by).collect(),
                None if pieces == usize::MAX => text.split_whitespace().rev().collect(),
                None => {
                    return Err(wrong(
                        "rsplit: expected a separator with a number of splits, found none",
                    ));
                }
            };
            parts.reverse();
            Ok(parts.into_iter().collect())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
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
