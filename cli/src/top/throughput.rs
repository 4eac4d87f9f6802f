//! Generated tokens per second over time.

/// Throughput of the past, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throughput {
    /// Seconds of one number.
    pub interval_s: u64,
    /// Generated tokens per second.
    pub tokens_per_s: Vec<f64>,
}

/// Seconds whose mean is the present throughput, as on the status page.
const PRESENT_S: u64 = 10;

impl Throughput {
    /// Mean of the last ten seconds; `None` without a number.
    pub fn present(&self) -> Option<f64> {
        let count = (PRESENT_S / self.interval_s.max(1)).max(1) as usize;
        let rates = &self.tokens_per_s;
        let recent = &rates[rates.len().saturating_sub(count)..];
        (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64)
    }

    /// The largest number.
    pub fn peak(&self) -> f64 {
        self.tokens_per_s.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_throughput_is_a_mean_of_ten_seconds() {
        let of = |interval_s, rates: &[f64]| Throughput { interval_s, tokens_per_s: rates.into() };
        assert_eq!(of(2, &[90.0, 1.0, 2.0, 3.0, 4.0, 5.0]).present(), Some(3.0));
        assert_eq!(of(0, &[4.0, 2.0]).present(), Some(3.0));
        assert_eq!(of(60, &[4.0, 2.0]).present(), Some(2.0));
        assert_eq!((of(2, &[]).present(), of(2, &[1.0, 7.0, 2.0]).peak()), (None, 7.0));
    }
}
