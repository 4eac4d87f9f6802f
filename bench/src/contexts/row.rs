//! Figures of each length over all runs. Pure.

use paceline_client::answer::Answer;
use serde::Serialize;

use crate::load::Sent;
use crate::mode::Mode;
use crate::requests::{RequestFigures, RequestTimes};
use crate::statistics::Figure;

/// One measurement of a length in a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContextRun {
    /// Times of the request.
    pub times: RequestTimes,
    /// Cycles of one draft and one verification.
    pub cycles: u64,
    /// Tokens that the drafter proposed.
    pub drafted: u64,
    /// Proposed tokens that the target accepted.
    pub accepted: u64,
}

impl ContextRun {
    /// The figures of an answer; `None` without tokens.
    pub fn of(sent: &Sent<Answer>) -> Option<Self> {
        let speculation = &sent.answer.speculation;
        Some(Self {
            times: RequestTimes::of(sent)?,
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
        })
    }

    /// Milliseconds from the first token to the last.
    fn decode_ms(&self) -> f64 {
        self.times.e2e_ms - self.times.ttft_ms
    }
}

/// A length in one mode, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextLane {
    /// How the prompts were served.
    pub mode: Mode,
    /// Times of the requests. `prompt_tok_s` is the speed of prefill (pp), `decode_tok_s` of
    /// generation (tg).
    #[serde(flatten)]
    pub requests: RequestFigures,
    /// Speed of generation over that without a drafter, within each run. `None` of that mode
    /// itself.
    pub over_absent: Option<Figure>,
    /// Cycles of one draft and one verification.
    pub cycles: u64,
    /// Tokens that the drafter proposed.
    pub drafted: u64,
    /// Proposed tokens that the target accepted.
    pub accepted: u64,
}

/// A length, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextRow {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The figures of each mode.
    pub lanes: Vec<ContextLane>,
    /// The most memory that both workers held until this length had been measured once in each
    /// mode, shorter lengths before.
    pub peak_bytes: Option<u64>,
}

impl ContextRow {
    /// The figures of a length, with what was measured in each mode, run by run.
    pub fn of(
        prompt_tokens: usize,
        measured: &[(Mode, Vec<ContextRun>)],
        peak_bytes: Option<u64>,
    ) -> Self {
        let absent = measured.iter().find(|(mode, _)| *mode == Mode::Absent);
        let absent = absent.map_or(&[][..], |(_, runs)| runs);
        let lanes = measured.iter().map(|(mode, runs)| lane(*mode, runs, absent)).collect();
        Self { prompt_tokens, lanes, peak_bytes }
    }
}

fn lane(mode: Mode, runs: &[ContextRun], absent: &[ContextRun]) -> ContextLane {
    // All modes generate the same number of tokens, so speeds are in the inverse ratio of times.
    let pairs = runs.iter().zip(absent).filter(|(run, _)| run.decode_ms() > 0.0);
    let ratios = pairs.map(|(run, absent)| absent.decode_ms() / run.decode_ms());
    let sum = |of: fn(&ContextRun) -> u64| runs.iter().map(of).sum();
    ContextLane {
        mode,
        requests: RequestFigures::of(runs.iter().map(|run| std::slice::from_ref(&run.times))),
        over_absent: Figure::of(ratios.filter(|_| mode != Mode::Absent)),
        cycles: sum(|run| run.cycles),
        drafted: sum(|run| run.drafted),
        accepted: sum(|run| run.accepted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(decode_ms: f64, cycles: u64) -> ContextRun {
        let times = RequestTimes {
            ttft_ms: 500.0,
            e2e_ms: 500.0 + decode_ms,
            tokens: 129,
            prompt_tokens: 1_000,
            cached_tokens: 0,
        };
        ContextRun { times, cycles, drafted: 15 * cycles, accepted: 3 * cycles }
    }

    #[test]
    fn lanes_are_compared_within_a_run() {
        let measured = [
            (Mode::Absent, vec![run(640.0, 0), run(1_280.0, 0)]),
            (Mode::Routed, vec![run(320.0, 10), run(640.0, 12)]),
        ];
        let row = ContextRow::of(1_000, &measured, Some(7));
        let [absent, routed] = &row.lanes[..] else { panic!("two modes") };
        // 1,000 tokens in half a second, and 128 after the first one.
        let values = |figure: &Option<Figure>| figure.clone().expect("measured").values;
        assert_eq!(values(&routed.requests.prompt_tok_s), [2_000.0, 2_000.0]);
        assert_eq!(values(&routed.requests.decode_tok_s), [400.0, 200.0]);
        assert_eq!(values(&routed.over_absent), [2.0, 2.0]);
        assert_eq!(absent.over_absent, None);
        assert_eq!((routed.cycles, routed.drafted, routed.accepted), (22, 330, 66));
    }
}
