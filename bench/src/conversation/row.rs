//! Figures of each request over all runs. Pure.

use serde::Serialize;

use super::plan::{Form, Turn};
use crate::requests::{RequestFigures, RequestTimes};
use crate::statistics::Figure;

/// The requests of one run of a form, in the order of [`Turn::ALL`].
pub type FormRun = [RequestTimes; 4];

/// Time to the first token of a request over another one's, run by run.
fn ratio(one: &[RequestTimes], other: &[RequestTimes]) -> Option<Figure> {
    let pairs = one.iter().zip(other).filter(|(_, other)| other.ttft_ms > 0.0);
    Figure::of(pairs.map(|(one, other)| one.ttft_ms / other.ttft_ms))
}

/// A request over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TurnRow {
    /// Tokens of the long prompt's text.
    pub text_tokens: usize,
    /// Whether the conversation is in the prefix cache.
    pub form: Form,
    /// The request.
    pub request: Turn,
    /// Tokens of the prompt, in the run with the most.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had: the least and the most of all runs.
    pub cached_tokens: (u32, u32),
    /// Times of the requests.
    #[serde(flatten)]
    pub requests: RequestFigures,
    /// Time to the first token over that of [`Turn::compared_with`], within each run.
    pub ttft_over: Option<Figure>,
}

/// The second turn with its conversation in the cache over the second turn without.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionGain {
    /// Tokens of the long prompt's text.
    pub text_tokens: usize,
    /// Time to the first token of the session's over that of the clean one, within each run.
    pub ttft_over_clean: Figure,
}

/// A form at a length, run by run.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredForm {
    /// Tokens of the long prompt's text.
    pub text_tokens: usize,
    /// The form.
    pub form: Form,
    /// The runs.
    pub runs: Vec<FormRun>,
}

impl MeasuredForm {
    fn of_turn(&self, turn: Turn) -> Vec<RequestTimes> {
        let at = Turn::ALL.iter().position(|known| *known == turn).unwrap_or(0);
        self.runs.iter().map(|run| run[at]).collect()
    }

    /// A row for each request.
    pub fn rows(&self) -> impl Iterator<Item = TurnRow> {
        Turn::ALL.into_iter().map(|turn| {
            let runs = self.of_turn(turn);
            let cached = || runs.iter().map(|run| run.cached_tokens);
            TurnRow {
                text_tokens: self.text_tokens,
                form: self.form,
                request: turn,
                prompt_tokens: runs.iter().map(|run| run.prompt_tokens).max().unwrap_or(0),
                cached_tokens: (cached().min().unwrap_or(0), cached().max().unwrap_or(0)),
                requests: RequestFigures::of(runs.iter().map(std::slice::from_ref)),
                ttft_over: turn
                    .compared_with()
                    .and_then(|other| ratio(&runs, &self.of_turn(other))),
            }
        })
    }

    /// The gain of the second turn, if this is a session and `others` has the clean form.
    pub fn gain(&self, others: &[Self]) -> Option<SessionGain> {
        let is_clean =
            |other: &&Self| other.form == Form::Clean && other.text_tokens == self.text_tokens;
        let clean = others.iter().find(is_clean).filter(|_| self.form == Form::Session)?;
        let (next, clean) = (self.of_turn(Turn::Next), clean.of_turn(Turn::Next));
        let ttft_over_clean = ratio(&next, &clean)?;
        Some(SessionGain { text_tokens: self.text_tokens, ttft_over_clean })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(form: Form, next_ms: f64, cached_tokens: u32) -> MeasuredForm {
        let times = |ttft_ms, cached_tokens| RequestTimes {
            ttft_ms,
            e2e_ms: ttft_ms + 63.0,
            tokens: 64,
            prompt_tokens: 500,
            cached_tokens,
        };
        let run = |slow: f64| {
            [
                times(100.0 * slow, 0),
                times(next_ms * slow, cached_tokens),
                times(12.0 * slow, 0),
                times(10.0 * slow, 0),
            ]
        };
        MeasuredForm { text_tokens: 450, form, runs: vec![run(1.0), run(2.0)] }
    }

    #[test]
    fn requests_are_compared_within_a_run() {
        let (clean, session) =
            (measured(Form::Clean, 110.0, 0), measured(Form::Session, 20.0, 448));
        let rows: Vec<TurnRow> = session.rows().collect();
        let over = |row: &TurnRow| row.ttft_over.clone().map(|figure| figure.values);
        assert_eq!(over(&rows[0]), None);
        assert_eq!(over(&rows[1]), Some(vec![0.2, 0.2]));
        assert_eq!(over(&rows[2]), Some(vec![1.2, 1.2]));
        assert_eq!((rows[1].prompt_tokens, rows[1].cached_tokens), (500, (448, 448)));
        let both = [clean, session];
        let gain = both[1].gain(&both).expect("both were measured");
        assert_eq!(gain.ttft_over_clean.values, [20.0 / 110.0, 40.0 / 220.0]);
        assert_eq!((both[0].gain(&both), both[1].gain(&both[1..])), (None, None));
    }
}
