//! Filters and tests as Jinja2 has them, where minijinja lacks them or differs.

use std::borrow::Cow;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use super::arguments::{Arguments, columns};
use super::python;

/// Puts the filters and tests in place of the engine's.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_test("iterable", is_iterable);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("center", center);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("percent", percent);
}

/// The engine iterates over `none`, as over nothing.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn wordcount(text: Cow<'_, str>) -> usize {
    let separates = |character: char| !character.is_alphanumeric() && character != '_';
    text.split(separates).filter(|word| !word.is_empty()).count()
}

/// An undefined value has no items.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

fn indent(text: Cow<'_, str>, values: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = values.into_values();
    let arguments = Arguments::new(&values, &["width", "first", "blank"])?;
    let by = match arguments.get("width") {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(columns(usize::try_from(width.clone())?)?),
        },
    };
    let (first, blank) = (arguments.is_true("first"), arguments.is_true("blank"));
    arguments.done()?;
    // A text that ends in a line break has an empty last line.
    let text = format!("{text}\n");
    let mut out = String::with_capacity(text.len());
    for (number, line) in python::lines(&text).into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let indented = if number == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn replace(text: Cow<'_, str>, values: Rest<ValueOrKwargs>) -> Result<String, Error> {
    python::replace(&text, &values.into_values())
}

fn center(text: Cow<'_, str>, width: Option<usize>) -> Result<String, Error> {
    python::padded(&text, width.unwrap_or(80), "center")
}

fn truncate(text: Cow<'_, str>, values: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = values.into_values();
    let arguments = Arguments::new(&values, &["length", "killwords", "end", "leeway"])?;
    let size = |name, otherwise: usize| match arguments.number(name)? {
        Some(number) => Ok(usize::try_from(number).unwrap_or(0)),
        None => Ok::<_, Error>(otherwise),
    };
    let (length, leeway) = (size("length", 255)?, size("leeway", 5)?);
    let killwords = arguments.is_true("killwords");
    let end = arguments.get("end").map_or_else(|| "...".to_owned(), |end| end.to_string());
    arguments.done()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.into_owned());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let words = if killwords { &*kept } else { kept.rsplit_once(' ').map_or(&*kept, |(a, _)| a) };
    Ok(format!("{words}{end}"))
}

/// Python's `text % value`: the source is rewritten to this filter, because the engine's operator
/// is for numbers alone.
fn percent(text: Cow<'_, str>, value: Value) -> Result<String, Error> {
    let values = if value.is_tuple() { value.try_iter()?.collect() } else { vec![value] };
    format(FormatStyle::Printf, &text, &values)
}
