//! Arguments of filters and methods that Python takes by position or by name.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// Columns of `indent`, `center` and the like, at most: a wider one is a mistake of the template.
pub(super) const MAX_COLUMNS: usize = 10_000;

/// Arguments of one call.
pub(super) struct Arguments<'a> {
    positional: &'a [Value],
    named: Kwargs,
    names: &'static [&'static str],
}

impl<'a> Arguments<'a> {
    /// Arguments with these names, in the order of their positions.
    ///
    /// # Errors
    /// There are more than names.
    pub(super) fn new(values: &'a [Value], names: &'static [&'static str]) -> Result<Self, Error> {
        let (positional, named) = match values.split_last() {
            Some((last, rest)) if last.is_kwargs() => (rest, Kwargs::try_from(last.clone())?),
            _ => (values, Kwargs::from_iter(std::iter::empty::<(&str, Value)>())),
        };
        if positional.len() > names.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        Ok(Self { positional, named, names })
    }

    /// The argument of this name. One that is `none` counts as left out.
    pub(super) fn get(&self, name: &'static str) -> Option<Value> {
        let at = self.names.iter().position(|known| *known == name);
        // An argument that is named is noted as used.
        let named = self.named.get::<Option<Value>>(name).ok().flatten();
        let value = at.and_then(|at| self.positional.get(at)).cloned().or(named);
        value.filter(|value| !value.is_none() && !value.is_undefined())
    }

    /// The number of this name.
    ///
    /// # Errors
    /// It is no number.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<i64>, Error> {
        self.get(name).map(i64::try_from).transpose()
    }

    /// Whether the argument of this name is true.
    pub(super) fn is_true(&self, name: &'static str) -> bool {
        self.get(name).is_some_and(|value| value.is_true())
    }

    /// Refuses arguments by names that were not asked for.
    ///
    /// # Errors
    /// There is one.
    pub(super) fn done(&self) -> Result<(), Error> {
        self.named.assert_all_used()
    }
}

/// A width, if it is not beyond reason.
///
/// # Errors
/// It is above [`MAX_COLUMNS`].
pub(super) fn columns(width: usize) -> Result<usize, Error> {
    if width <= MAX_COLUMNS {
        return Ok(width);
    }
    let what = format!("expected a width of at most {MAX_COLUMNS} columns, found {width}");
    Err(Error::new(ErrorKind::InvalidOperation, what))
}
