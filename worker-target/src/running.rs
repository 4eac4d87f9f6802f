//! A request while the engine runs it: the request, its stream, what its first token cost, and the
//! figures of its last log line.

use paceline_system::clock::monotonic_ns;
use paceline_target_core::DraftCounts;

use crate::constraint::AnswerConstraint;
use crate::grammar::GrammarState;
use crate::outlet::TokenOutlet;
use crate::request::ValidRequest;

/// A request that the engine runs, or is about to run.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    pub(crate) request: ValidRequest,
    pub(crate) outlet: TokenOutlet,
    /// Grammar of the answer and budget of its thought, and the answer's place in them.
    pub(crate) constraint: AnswerConstraint,
    pub(crate) first_token: FirstTokenTimes,
    pub(crate) figures: RequestFigures,
}

impl RunningRequest {
    /// A request that has not started.
    pub(crate) fn new(request: ValidRequest, outlet: TokenOutlet) -> Self {
        let figures = RequestFigures { arrived_ns: monotonic_ns(), ..RequestFigures::default() };
        let first_token = FirstTokenTimes::default();
        let constraint = AnswerConstraint::new(None, request.thought.clone(), request.id_limit);
        Self { request, outlet, constraint, first_token, figures }
    }

    /// The request, held to a grammar.
    pub(crate) fn with_grammar(mut self, grammar: Option<GrammarState>) -> Self {
        let ValidRequest { thought, id_limit, .. } = &self.request;
        self.constraint = AnswerConstraint::new(grammar, thought.clone(), *id_limit);
        self
    }

    /// The request's id as text.
    pub(crate) fn id(&self) -> &str {
        self.request.id.as_str()
    }
}

/// Figures of a request for its last log line: they answer why its stream was slow. Counting them
/// costs nothing measurable, so they do not depend on the log level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestFigures {
    /// When the engine got the request.
    pub(crate) arrived_ns: i64,
    /// When its sequence got memory for the first time.
    pub(crate) started_ns: Option<i64>,
    /// End of the step that chose its first token.
    pub(crate) first_token_ns: Option<i64>,
    /// Tokens after the prompt, continuation included.
    pub(crate) tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) counts: DraftCounts,
    /// How often the sequence lost its memory and recomputed its rows.
    pub(crate) preemptions: u32,
    /// Drafts that missed their deadline.
    pub(crate) late_drafts: u32,
    /// Drafts that were requested to measure whether drafts pay.
    pub(crate) probes: u32,
    /// How often the sequence stopped requesting drafts because they did not pay.
    pub(crate) backoffs: u32,
    /// Longest step with rows of the sequence after its first token, counted from the end of the
    /// step before or of the wait after that.
    pub(crate) slowest_step_us: u64,
}

impl RequestFigures {
    /// Time from the arrival until the sequence got memory, or until `now_ns`.
    pub(crate) fn queue_ms(&self, now_ns: i64) -> f64 {
        ms(self.started_ns.unwrap_or(now_ns) - self.arrived_ns)
    }

    /// Time from the first token until `now_ns`; 0 before it.
    pub(crate) fn decode_ms(&self, now_ns: i64) -> f64 {
        self.first_token_ns.map_or(0.0, |first_ns| ms(now_ns - first_ns))
    }
}

/// Milliseconds with one decimal: log lines need no more.
fn ms(ns: i64) -> f64 {
    (ns as f64 / 1e5).round() / 10.0
}

/// Cost of a request's first token: steps of the vision tower for its images, and steps with rows
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
