//! Time as cores know it: an argument, never a clock (I10).

use std::ops::{Add, Sub};

/// Milliseconds since a process's start, monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Millis {
    type Output = Millis;
    fn add(self, ms: u64) -> Millis {
        Millis(self.0.saturating_add(ms))
    }
}

impl Sub<Millis> for Millis {
    type Output = u64;
    fn sub(self, earlier: Millis) -> u64 {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::Millis;

    #[test]
    fn a_difference_is_never_negative() {
        assert_eq!(Millis(5).since(Millis(9)), 0);
        assert_eq!(Millis(9) - Millis(5), 4);
        assert_eq!(Millis(u64::MAX) + 1, Millis(u64::MAX));
    }
}
