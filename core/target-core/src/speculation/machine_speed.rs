//! How slow the machine is now, compared with its mean.
//!
//! A machine that others use too, or that is hot, is slower for seconds, and all work on it alike.
//! If the costs followed that, work that happens to be measured at such a time would become dearer
//! and work that is not measured would not. The controller would then draft only because plain
//! steps were measured last when the machine was slow. So costs describe the machine at its mean
//! speed, and this module estimates the present speed from every step, whatever its kind.
//!
//! As long as all steps are of one kind, a slower machine looks like a kind whose cost was too low.
//! Both are estimated together, by a Kalman filter with two states: the speed of all work, and the
//! difference of steps with drafted tokens. Each deviation is divided among the states by how
//! uncertain each one is. The first steps of the other kind then correct both.
//!
//! An estimate that stayed where an error left it would be taken out of the costs of whatever is
//! measured next. So the speed returns to 1 (an Ornstein-Uhlenbeck process), and a machine that
//! stays slower becomes one whose costs are higher.

/// Variance of the logarithm of a step's time over its cost: a fifth, one standard deviation.
const STEP_VARIANCE: f64 = 0.04;
/// Additional variance of a step whose cost rests on few times, divided by one more than their
/// number.
const FEW_TIMES_VARIANCE: f64 = 0.5;
/// Times from which on a cost counts as measured.
const MEASURED_TIMES: f64 = 8.0;
/// What the variance of the speed grows by in the time of one plain step. With it 0.12 of a
/// deviation is attributed to the speed as long as all steps are of one kind.
const SPEED_DRIFT: f64 = 6.5e-4;
/// Largest variance of the difference between kinds of steps.
const KIND_VARIANCE: f64 = 0.04;
/// What the variance of that difference grows by in the time of one plain step.
const KIND_DRIFT: f64 = 1.5e-5;
/// Share of the speed's logarithm that is left after the time of one plain step without
/// observations: half of it after 138 steps.
const RETURN: f64 = 0.995;
/// A step counts as the time of at least 1 and at most this many plain steps.
const LONGEST_STEP: f64 = 30.0;
/// Largest ratio of a step's time over its expected time that counts. One pause moves the estimate
/// little.
const MAX_RATIO: f64 = 2.0;
/// Bound of both logarithms: a factor of 20.
const MAX_LN: f64 = 3.0;

/// One step against its expected time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedStep {
    /// Measured over expected time.
    pub(super) ratio: f64,
    /// The step had drafted tokens.
    pub(super) drafted: bool,
    /// Variance of the logarithm of `ratio`; see [`variance`].
    pub(super) variance: f64,
    /// Expected time, in plain steps.
    pub(super) length: f64,
}

/// Variance of a step whose cost rests on this many times.
pub(super) fn variance(times: f64) -> f64 {
    if times < MEASURED_TIMES {
        STEP_VARIANCE + FEW_TIMES_VARIANCE / (1.0 + times)
    } else {
        STEP_VARIANCE
    }
}

/// The estimate: factors on the costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineSpeed {
    /// Logarithms of the factor of all work, and of the factor of steps with drafted tokens.
    ln: [f64; 2],
    /// Variances of both.
    variance: [f64; 2],
    covariance: f64,
    /// The exponentials of `ln`, because a decision asks for a thousand costs.
    all: f64,
    drafted: f64,
}

impl Default for MachineSpeed {
    fn default() -> Self {
        Self {
            ln: [0.0; 2],
            variance: [STEP_VARIANCE, KIND_VARIANCE],
            covariance: 0.0,
            all: 1.0,
            drafted: 1.0,
        }
    }
}

impl MachineSpeed {
    /// Updates the estimate by one step.
    pub(super) fn observe(&mut self, step: ObservedStep) {
        let length = step.length.clamp(1.0, LONGEST_STEP);
        let left = RETURN.powf(length);
        let [all, kind] = &mut self.variance;
        self.ln[0] *= left;
        *all = *all * left * left + SPEED_DRIFT * length;
        self.covariance *= left;
        *kind = (*kind + KIND_DRIFT * length).min(KIND_VARIANCE);
        // Covariances of the states with the observation, and the observation's own variance.
        let (with_all, with_kind, observed) = if step.drafted {
            (
                *all + self.covariance,
                *kind + self.covariance,
                *all + 2.0 * self.covariance + *kind + step.variance,
            )
        } else {
            (*all, self.covariance, *all + step.variance)
        };
        let deviation = (step.ratio.min(MAX_RATIO) - 1.0) / observed;
        for (ln, with) in self.ln.iter_mut().zip([with_all, with_kind]) {
            *ln = (*ln + with * deviation).clamp(-MAX_LN, MAX_LN);
        }
        *all -= with_all * with_all / observed;
        *kind -= with_kind * with_kind / observed;
        self.covariance -= with_all * with_kind / observed;
        (self.all, self.drafted) = (self.ln[0].exp(), self.ln[1].exp());
    }

    /// Makes the speed of all work uncertain again, because it is stale: the next steps decide.
    pub(super) fn mark_stale(&mut self) {
        self.variance[0] = self.variance[0].max(STEP_VARIANCE);
    }

    /// Factor on the cost of all work.
    pub(super) fn all(&self) -> f64 {
        self.all
    }

    /// Factor on the cost of a step with or without drafted tokens.
    pub(super) fn step(&self, drafted: bool) -> f64 {
        if drafted { self.all * self.drafted } else { self.all }
    }
}
