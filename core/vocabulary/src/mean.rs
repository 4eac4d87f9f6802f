//! The exponential mean.

/// Mean of observations in which older ones weigh less: after each observation the mean moves by
/// `weight` of the difference towards it. The first observation is the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialMean {
    weight: f64,
    value: Option<f64>,
}

impl ExponentialMean {
    /// No observations yet. `weight` of the newest observation, in (0, 1].
    pub const fn new(weight: f64) -> Self {
        Self { weight, value: None }
    }

    /// A mean that starts at `assumed`: the first observation counts with `weight`, too.
    pub const fn starting_at(assumed: f64, weight: f64) -> Self {
        Self { weight, value: Some(assumed) }
    }

    /// Adds an observation.
    pub fn add(&mut self, observation: f64) {
        self.value = Some(match self.value {
            Some(mean) => moved(mean, observation, self.weight),
            None => observation,
        });
    }

    /// The mean; `None` before the first observation.
    pub const fn get(&self) -> Option<f64> {
        self.value
    }
}

/// `mean` moved by `weight` of the difference towards `observation`: one step of an exponential
/// mean whose weight is not the same for all observations.
pub fn moved(mean: f64, observation: f64, weight: f64) -> f64 {
    mean + weight * (observation - mean)
}

#[cfg(test)]
mod tests {
    use super::ExponentialMean;

    #[test]
    fn the_mean_moves_by_its_weight_towards_each_observation() {
        let mut mean = ExponentialMean::new(0.25);
        assert_eq!(mean.get(), None);
        mean.add(8.0);
        assert_eq!(mean.get(), Some(8.0));
        mean.add(4.0);
        assert_eq!(mean.get(), Some(7.0));
    }

    #[test]
    fn an_assumed_start_counts_as_an_earlier_observation() {
        let mut mean = ExponentialMean::starting_at(8.0, 0.25);
        mean.add(4.0);
        assert_eq!(mean.get(), Some(7.0));
    }
}
