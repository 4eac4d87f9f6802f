//! A request while the engine runs it: the request, its stream, and what its first token cost.

use crate::outlet::TokenOutlet;
use crate::request::ValidRequest;

/// A request that the engine runs, or is about to run.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    pub(crate) request: ValidRequest,
    pub(crate) outlet: TokenOutlet,
    pub(crate) first_token: FirstTokenTimes,
}

impl RunningRequest {
    /// A request that has not started.
    pub(crate) fn new(request: ValidRequest, outlet: TokenOutlet) -> Self {
        Self { request, outlet, first_token: FirstTokenTimes::default() }
    }

    /// The request's id as text.
    pub(crate) fn id(&self) -> &str {
        self.request.id.as_str()
    }
}

/// What a request's first token cost: steps of the vision tower for its images, and steps with rows
/// of its prompt. A preempted sequence that recomputes its rows after its first token adds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstTokenTimes {
    tower_us: u64,
    prefill_us: u64,
    has_first_token: bool,
}

impl FirstTokenTimes {
    /// The vision tower worked on one of the request's images for `us` microseconds.
    pub(crate) fn add_tower(&mut self, us: u64) {
        if !self.has_first_token {
            self.tower_us += us;
        }
    }

    /// A step with rows of the request's prompt took `us` microseconds.
    pub(crate) fn add_prefill(&mut self, us: u64) {
        if !self.has_first_token {
            self.prefill_us += us;
        }
    }

    /// The request's first token was chosen.
    pub(crate) fn set_first_token(&mut self) {
        self.has_first_token = true;
    }

    pub(crate) fn tower_ms(self) -> f64 {
        self.tower_us as f64 / 1e3
    }

    pub(crate) fn prefill_ms(self) -> f64 {
        self.prefill_us as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_end_with_the_first_token() {
        let mut times = FirstTokenTimes::default();
        times.add_tower(1_500);
        times.add_tower(500);
        times.add_prefill(250);
        times.set_first_token();
        times.add_tower(7_000);
        times.add_prefill(7_000);
        assert_eq!((times.tower_ms(), times.prefill_ms()), (2.0, 0.25));
    }
}
