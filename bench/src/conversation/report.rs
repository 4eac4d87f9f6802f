//! Figures of each request over all runs, and their report: a table with explanations. Pure.

use serde::Serialize;

use super::plan::{ConversationCell, Form, Turn};
use crate::experiment::MeasuredCell;
use crate::output::sheet::{Sheet, cell};
use crate::report::BenchReport;
use crate::requests::{COLUMNS, RequestStatistics, RequestTimes};
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
    /// The conversation in its mode.
    #[serde(flatten)]
    pub cell: ConversationCell,
    /// Place of the request in the conversation.
    pub request: Turn,
    /// Tokens of the prompt, in the run with the most.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had: the least and the most of all runs.
    pub cached_tokens: (u32, u32),
    /// Times of the requests.
    #[serde(flatten)]
    pub requests: RequestStatistics,
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
pub type MeasuredForm = MeasuredCell<ConversationCell, FormRun>;

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
                cell: self.cell,
                request: turn,
                prompt_tokens: runs.iter().map(|run| run.prompt_tokens).max().unwrap_or(0),
                cached_tokens: (cached().min().unwrap_or(0), cached().max().unwrap_or(0)),
                requests: RequestStatistics::of(runs.iter().map(std::slice::from_ref)),
                ttft_over: turn
                    .compared_with()
                    .and_then(|other| ratio(&runs, &self.of_turn(other))),
            }
        })
    }

    /// The gain of the second turn, if this is a session and `others` has the clean form.
    pub fn gain(&self, others: &[Self]) -> Option<SessionGain> {
        let ConversationCell { text_tokens, form } = self.cell;
        let clean = ConversationCell { text_tokens, form: Form::Clean };
        let clean = others.iter().find(|other| other.cell == clean);
        let clean = clean.filter(|_| form == Form::Session)?;
        let (next, clean) = (self.of_turn(Turn::Next), clean.of_turn(Turn::Next));
        let ttft_over_clean = ratio(&next, &clean)?;
        Some(SessionGain { text_tokens, ttft_over_clean })
    }
}

/// Figures of `--clean` and `--session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ConversationReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// A row for each length, form and request.
    pub rows: Vec<TurnRow>,
    /// The session's second turn over the clean one, of each length with both forms.
    pub gains: Vec<SessionGain>,
}

impl BenchReport for ConversationReport {
    fn sheets(&self) -> Vec<Sheet> {
        let sheet = Sheet::of("conversations", &self.rows)
            .plain("text_tokens", "TEXT", |row| row.cell.text_tokens)
            .plain("form", "FORM", |row| row.cell.form.word())
            .plain("request", "REQUEST", |row| row.request.word())
            .plain("prompt_tokens", "PROMPT", |row| row.prompt_tokens)
            .plain("cached_tokens", "CACHED", |row| row.cached_tokens.1);
        let sheet = RequestStatistics::columns(sheet, |row| &row.requests).number(
            "ttft_over",
            "OVER",
            3,
            |row| row.ttft_over.as_ref(),
        );
        vec![sheet.sheet()]
    }

    fn notes(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let mut text = format!(
            "CLEAN: each prompt is new to the prefix cache. SESSION: the next turn comes after the first one of its conversation. SHORT AFTER\n\
             LONG: a short new prompt after the next turn. OVER: TTFT over that of the first turn, or of the short prompt alone, within\n\
             each run\n{COLUMNS}\
             As routed, one request at a time, {tokens} tokens an answer. Medians of {runs} runs, in brackets the 95 % interval\n"
        );
        for SessionGain { text_tokens, ttft_over_clean } in &self.gains {
            let ratio = cell(Some(&ttft_over_clean.estimate), 3);
            text.push_str(&format!(
                "{text_tokens} tokens, next turn: TTFT of the session over the clean one: {ratio}\n"
            ));
        }
        text
    }

    fn failures(&self) -> Vec<String> {
        self.rows.iter().filter_map(wrong_cache).collect()
    }
}

/// Why the figures of a request are not what they are named after.
fn wrong_cache(row: &TurnRow) -> Option<String> {
    let TurnRow { cell, request, prompt_tokens, cached_tokens: (least, most), .. } = row;
    let place = format!("{cell}, {}", request.word());
    let half = prompt_tokens / 2;
    match (cell.form, request) {
        (Form::Session, Turn::Next) if *least < half => Some(format!(
            "{place}: expected the conversation in the prefix cache, found {least} of {prompt_tokens} tokens there: raise \
             kv.budget_bytes"
        )),
        (Form::Clean, Turn::First | Turn::Next) if *most > half => Some(format!(
            "{place}: expected a prompt that is new to the prefix cache, found {most} of {prompt_tokens} tokens there"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConversationBench;
    use super::*;
    use crate::experiment::Experiment as _;
    use crate::output::sheet::csv;

    /// Runs of a form, each slower by its factor.
    fn measured(form: Form, next_ms: f64, cached_tokens: u32, runs: &[f64]) -> MeasuredForm {
        let times = |ttft_ms, prompt_tokens, cached_tokens| RequestTimes {
            ttft_ms,
            e2e_ms: ttft_ms + 63.0,
            tokens: 64,
            prompt_tokens,
            cached_tokens,
        };
        let run = |slow: &f64| {
            [
                times(100.0 * slow, 480, 0),
                times(next_ms * slow, 500, cached_tokens),
                times(12.0 * slow, 24, 0),
                times(10.0 * slow, 24, 0),
            ]
        };
        let cell = ConversationCell { text_tokens: 450, form };
        MeasuredForm { cell, runs: runs.iter().map(run).collect() }
    }

    fn report(session_cached: u32) -> ConversationReport {
        let forms = [
            measured(Form::Clean, 125.0, 0, &[1.0]),
            measured(Form::Session, 25.0, session_cached, &[1.0]),
        ];
        ConversationReport {
            runs: 1,
            max_tokens: 64,
            rows: forms.iter().flat_map(MeasuredForm::rows).collect(),
            gains: forms.iter().filter_map(|one| one.gain(&forms)).collect(),
        }
    }

    #[test]
    fn requests_are_compared_within_a_run() {
        let runs = [1.0, 2.0];
        let clean = measured(Form::Clean, 110.0, 0, &runs);
        let session = measured(Form::Session, 20.0, 448, &runs);
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

    #[test]
    fn the_table_has_a_row_for_each_request() {
        let text = report(448).text();
        let expected = "\
TEXT     FORM           REQUEST  PROMPT  CACHED  TTFT ms  TPOT ms  PROMPT tok/s  DECODE tok/s  E2E ms   OVER
450     clean        first turn     480       0    100.0     1.00          4800        1000.0     163      -
450     clean         next turn     500       0    125.0     1.00          4000        1000.0     188  1.250
450     clean  short after long      24       0     12.0     1.00          2000        1000.0      75  1.200
450     clean       short alone      24       0     10.0     1.00          2400        1000.0      73      -
450   session        first turn     480       0    100.0     1.00          4800        1000.0     163      -
450   session         next turn     500     448     25.0     1.00          2080        1000.0      88  0.250
";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.ends_with(
                "450 tokens, next turn: TTFT of the session over the clean one: 0.200\n"
            ),
            "{text}"
        );
        let line =
            "\nconversations,450,session,next turn,500,448,25,,,1,,,2080,,,1000,,,88,,,0.25,,\n";
        assert!(csv(&report(448).sheets(), &[]).contains(line));
    }

    #[test]
    fn a_session_without_its_prefix_fails() {
        assert_eq!(report(448).failures(), Vec::<String>::new());
        let failures = report(64).failures();
        assert_eq!(failures.len(), 1);
        assert!(
            failures[0].contains("450 tokens, session, next turn")
                && failures[0].contains("found 64 of 500"),
            "{failures:?}"
        );
        let mut known = report(448);
        known.rows[0].cached_tokens = (0, 300);
        assert!(known.failures()[0].contains("clean, first turn: expected a prompt that is new"));
    }

    #[test]
    fn a_form_of_a_run_is_a_line() {
        let times = |ttft_ms| RequestTimes { ttft_ms, ..RequestTimes::default() };
        let line = ConversationBench::line(&[100.2, 20.0, 12.0, 10.0].map(times));
        let expected = "first tokens after first turn 100, next turn 20, short after long 12, short alone 10 ms";
        assert_eq!(line, expected);
    }
}
