//! How many cases of a long test a run tries: `make test` a hundredth, `make test-more` a tenth,
//! `make soak` all. So one body of a test serves all three recipes.
//!
//! Needs nothing but `std`: the tests of other crates take this file in by `#[path]`.

use std::ffi::OsStr;

/// The recipe that runs: `more`, `soak`, or not set. `scripts/test-more.sh` and `scripts/soak.sh`
/// set this variable.
const SHARE: &str = "PACELINE_TEST_SHARE";

/// How many of `all` cases this run tries, rounded up: at least one, unless `all` is zero.
///
/// # Panics
/// The variable has another value than the two above.
pub fn of(all: usize) -> usize {
    all.div_ceil(divisor(std::env::var_os(SHARE).as_deref()))
}

/// Whether this run tries all cases, on a machine that does nothing else: `make soak`.
pub fn is_all() -> bool {
    of(100) == 100
}

fn divisor(recipe: Option<&OsStr>) -> usize {
    let Some(recipe) = recipe else { return 100 };
    match recipe.to_str() {
        Some("more") => 10,
        Some("soak") => 1,
        _ => panic!("{SHARE}={}: expected more, soak, or no such variable", recipe.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_tries_a_hundredth_a_tenth_or_all_of_the_cases() {
        let shares =
            [None, Some("more"), Some("soak")].map(|recipe| divisor(recipe.map(OsStr::new)));
        assert_eq!(shares, [100, 10, 1]);
        assert_eq!(shares.map(|share| 811_usize.div_ceil(share)), [9, 82, 811]);
    }

    #[test]
    #[should_panic(expected = "PACELINE_TEST_SHARE=most: expected more, soak, or no such variable")]
    fn another_recipe_is_refused() {
        divisor(Some(OsStr::new("most")));
    }
}
