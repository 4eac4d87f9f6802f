//! Bounds of values. Each function returns what it expected and what it found.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};

use crate::auto::Auto;
use crate::drafter_models::DrafterModels;

/// A value that is a number, or stands for one.
pub(crate) trait Numeric {
    /// Type of the number.
    type Number: Copy + PartialOrd + Display;

    /// The number; `None` if the service finds it by itself.
    fn number(&self) -> Option<Self::Number>;
}

macro_rules! numeric {
    ($($number:ty),*) => {$(
        impl Numeric for $number {
            type Number = $number;

            fn number(&self) -> Option<$number> {
                Some(*self)
            }
        }
    )*};
}
numeric!(u32, u64, f64);

impl<T: Copy + PartialOrd + Display> Numeric for Auto<T> {
    type Number = T;

    fn number(&self) -> Option<T> {
        self.given()
    }
}

/// Checks that a number is in a range, which `expected` describes.
///
/// # Errors
/// It is not.
pub(crate) fn within<V: Numeric>(
    value: &V,
    range: impl RangeBounds<V::Number>,
    expected: &str,
) -> Result<(), String> {
    match value.number() {
        Some(found) if !range.contains(&found) => {
            Err(format!("expected {expected}, found {found}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a number is `least` or more.
///
/// # Errors
/// It is not.
pub(crate) fn at_least<V: Numeric>(value: &V, least: V::Number) -> Result<(), String> {
    within(value, least.., &format!("at least {least}"))
}

/// Checks that a number is a share of a whole, of which some must be left.
///
/// # Errors
/// It is not.
pub(crate) fn share<V: Numeric<Number = f64>>(value: &V) -> Result<(), String> {
    let range = (Bound::Excluded(0.0), Bound::Included(1.0));
    within(value, range, "above 0, at most 1")
}

/// Checks that a word is one of the known ones.
///
/// # Errors
/// It is not.
pub(crate) fn one_of(found: &str, known: &[&str]) -> Result<(), String> {
    match known.contains(&found) {
        true => Ok(()),
        false => Err(format!("expected one of {}, found {found:?}", known.join(", "))),
    }
}

/// Checks that each place of a list of drafters has one.
///
/// # Errors
/// It has not.
pub(crate) fn no_empty_place(models: &DrafterModels) -> Result<(), String> {
    models.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_its_bound_is_found_with_what_was_expected() {
        let refused = |checked: Result<(), String>| checked.expect_err("out of its bound");
        assert_eq!(refused(at_least(&0_u64, 1)), "expected at least 1, found 0");
        assert_eq!(refused(at_least(&Auto::Is(0_u32), 1)), "expected at least 1, found 0");
        assert_eq!(refused(within(&61_u64, ..=60, "at most 60")), "expected at most 60, found 61");
        assert_eq!(refused(one_of("c", &["a", "b"])), "expected one of a, b, found \"c\"");
        for share_out in [0.0, 1.5, -0.1, f64::NAN] {
            let expected = format!("expected above 0, at most 1, found {share_out}");
            assert_eq!(refused(share(&share_out)), expected);
        }
        for inside in [at_least(&1_u64, 1), at_least(&Auto::<u32>::Auto, 1), share(&1.0)] {
            assert_eq!(inside, Ok(()));
        }
    }
}
