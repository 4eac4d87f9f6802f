//! Whether a model fits this machine, before a weight is read: what its weights and its shortest
//! sequence take, beside what is usable.

use super::CheckpointPlan;

/// Share of free memory for the KV when the configuration names none.
pub const KV_SHARE: f64 = 0.5;

/// Memory that a model needs, and memory that there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Bytes of the weights once they are loaded.
    pub weights: u64,
    /// Bytes of the KV of the shortest sequence.
    pub shortest: u64,
    /// Bytes that can be used now; `None` if the system does not tell.
    pub usable: Option<u64>,
    /// Bytes for the KV, by the configuration or as a share of what the weights leave.
    pub kv_budget: Option<u64>,
}

/// The model does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model does not fit this machine: its weights take {weights} and its shortest sequence {shortest}, of which {usable} can be used now; choose a smaller model or one with fewer bits, or end other programs (`paceline inspect` shows the figures)"
)]
pub struct DoesNotFit {
    weights: String,
    shortest: String,
    usable: String,
}

/// What a configuration says of the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvBudget {
    /// Bytes; `None`: a share of what the weights leave.
    pub bytes: Option<u64>,
    /// The share.
    pub share: f64,
}

impl Fit {
    /// Compares a plan with the memory that can be used.
    pub fn new(plan: &CheckpointPlan, budget: KvBudget, usable: Option<u64>) -> Self {
        let shortest = plan.kv_sizes().class_bytes().first().map_or(0, |(_, bytes)| *bytes);
        let weights = plan.storage.memory_bytes();
        let share = |all: u64| (all.saturating_sub(weights) as f64 * budget.share) as u64;
        let kv_budget = budget.bytes.or_else(|| usable.map(share));
        Self { weights, shortest, usable, kv_budget }
    }

    /// Bytes that the weights and the shortest sequence take.
    pub fn needed(&self) -> u64 {
        self.weights.saturating_add(self.shortest)
    }

    /// Whether weights and shortest sequence find room.
    ///
    /// # Errors
    /// Weights and shortest sequence take more than can be used.
    pub fn check(&self) -> Result<(), DoesNotFit> {
        match self.usable {
            Some(usable) if self.needed() > usable => {
                let [weights, shortest, usable] =
                    [self.weights, self.shortest, usable].map(in_words);
                Err(DoesNotFit { weights, shortest, usable })
            }
            _ => Ok(()),
        }
    }
}

/// A number of bytes for people.
fn in_words(count: u64) -> String {
    const UNITS: [&str; 4] = ["MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (count as f64 / f64::from(1 << 20), 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_fits_if_its_weights_and_one_sequence_do() {
        let fit = |usable| Fit { weights: 3 << 30, shortest: 1 << 20, usable, kv_budget: None };
        assert_eq!(fit(Some((3 << 30) + (1 << 20))).check(), Ok(()));
        assert_eq!(fit(None).check(), Ok(()), "unknown is no reason to refuse");
        let refused = fit(Some(3 << 30)).check().expect_err("one sequence is too much").to_string();
        for figure in ["weights take 3.0 GiB", "sequence 1.0 MiB", "3.0 GiB can be used"] {
            assert!(refused.contains(figure), "{refused}");
        }
    }
}
