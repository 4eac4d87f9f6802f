//! The report of conversations: a table with explanations.

use paceline_client::own_service::report::Report;
use serde::Serialize;

use super::plan::{Form, Turn};
use super::row::{FormRun, SessionGain, TurnRow};
use crate::output::sheet::{Column, Sheet, Value, cell};
use crate::report::BenchReport;
use crate::requests::{COLUMNS, RequestFigures};

/// Figures of `--clean` and `--session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ConversationReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// A row for each length, form and request.
    pub rows: Vec<TurnRow>,
    /// The session's second turn over the clean one, of each length with both forms.
    pub gains: Vec<SessionGain>,
}

impl Report for ConversationReport {
    fn failures(&self) -> Vec<String> {
        self.rows.iter().filter_map(wrong_cache).collect()
    }

    fn text(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let mut text: String = self.sheets().iter().map(Sheet::text).collect();
        text.push_str(&format!(
            "\nCLEAN: each prompt is new to the prefix cache. SESSION: the next turn comes after the first one of its conversation. SHORT AFTER\n\
             LONG: a short new prompt after the next turn. OVER: TTFT over that of the first turn, or of the short prompt alone, within\n\
             each run\n{COLUMNS}\
             As routed, one request at a time, {tokens} tokens an answer. Medians of {runs} runs, in brackets the 95 % interval\n"
        ));
        for SessionGain { text_tokens, ttft_over_clean } in &self.gains {
            let ratio = cell(Some(&ttft_over_clean.estimate), 3);
            text.push_str(&format!(
                "{text_tokens} tokens, next turn: TTFT of the session over the clean one: {ratio}\n"
            ));
        }
        text
    }
}

/// Why the figures of a request are not what they are named after.
fn wrong_cache(row: &TurnRow) -> Option<String> {
    let TurnRow { text_tokens, form, request, prompt_tokens, cached_tokens: (least, most), .. } =
        row;
    let place = format!("{text_tokens} tokens, {}, {}", form.word(), request.word());
    let half = prompt_tokens / 2;
    match (form, request) {
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

impl BenchReport for ConversationReport {
    fn sheets(&self) -> Vec<Sheet> {
        let head = [
            Column::plain("text_tokens", "TEXT"),
            Column::plain("form", "FORM"),
            Column::plain("request", "REQUEST"),
            Column::plain("prompt_tokens", "PROMPT"),
            Column::plain("cached_tokens", "CACHED"),
        ];
        let over = Column::estimate("ttft_over", "OVER", 3);
        let columns = head.into_iter().chain(RequestFigures::columns()).chain([over]);
        let mut sheet = Sheet::new("conversations", columns);
        for row in &self.rows {
            let head = [
                row.text_tokens.into(),
                row.form.word().into(),
                row.request.word().into(),
                Value::Count(u64::from(row.prompt_tokens)),
                Value::Count(u64::from(row.cached_tokens.1)),
            ];
            let over = Value::from(row.ttft_over.as_ref());
            sheet.row(head.into_iter().chain(row.requests.values()).chain([over]));
        }
        vec![sheet]
    }
}

/// A line about a form of a run.
pub fn form_line(run: usize, runs: usize, place: &str, found: &FormRun) -> String {
    let times: Vec<String> = Turn::ALL
        .iter()
        .zip(found)
        .map(|(turn, times)| format!("{} {:.0}", turn.word(), times.ttft_ms))
        .collect();
    format!("run {} of {runs}: {place}: first tokens after {} ms", run + 1, times.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::row::MeasuredForm;
    use super::*;
    use crate::output::sheet::csv;
    use crate::requests::RequestTimes;

    fn report(session_cached: u32) -> ConversationReport {
        let times = |ttft_ms, prompt_tokens, cached_tokens| RequestTimes {
            ttft_ms,
            e2e_ms: ttft_ms + 63.0,
            tokens: 64,
            prompt_tokens,
            cached_tokens,
        };
        let form = |form, next_ms, cached| MeasuredForm {
            text_tokens: 450,
            form,
            runs: vec![[
                times(100.0, 480, 0),
                times(next_ms, 500, cached),
                times(12.0, 24, 0),
                times(10.0, 24, 0),
            ]],
        };
        let forms = [form(Form::Clean, 125.0, 0), form(Form::Session, 25.0, session_cached)];
        ConversationReport {
            runs: 1,
            max_tokens: 64,
            rows: forms.iter().flat_map(MeasuredForm::rows).collect(),
            gains: forms.iter().filter_map(|one| one.gain(&forms)).collect(),
        }
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
        let line = form_line(0, 3, "450 tokens, clean", &[100.2, 20.0, 12.0, 10.0].map(times));
        let expected = "run 1 of 3: 450 tokens, clean: first tokens after first turn 100, next turn 20, short after long 12, short alone 10 ms";
        assert_eq!(line, expected);
    }
}
