//! Times of requests at the client, as users of other servers report them. Pure.
//!
//! - TTFT · from submission of the request to receipt of its first token
//! - TPOT · from receipt of the first token to receipt of the last, over the tokens after the first
//! - E2E · from submission to receipt of the last token
//! - prompt tok/s · tokens of the prompt that no cache had, over TTFT
//! - decode tok/s · tokens after the first one, over the time of TPOT: the speed of one stream
//!
//! A run has one value of each: times are means of its requests, and speeds are of all its tokens
//! together. All times are of this process's clock, so that time in the service's queue counts.

use serde::Serialize;

use crate::load::Sent;
use crate::output::sheet::SheetBuilder;
use crate::statistics::Figure;

/// One request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestTimes {
    /// Milliseconds from submission to the first token.
    pub ttft_ms: f64,
    /// Milliseconds from submission to the last token.
    pub e2e_ms: f64,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had.
    pub cached_tokens: u32,
}

impl RequestTimes {
    /// The times of an answer. An answer without a token has none.
    pub fn of(sent: &Sent) -> Option<Self> {
        let Sent { answer, sent_ns } = sent;
        let since = |received_ns: &i64| (received_ns - sent_ns) as f64 / 1e6;
        Some(Self {
            ttft_ms: answer.received_ns.first().map(since)?,
            e2e_ms: answer.received_ns.last().map(since)?,
            tokens: answer.token_ids.len(),
            prompt_tokens: answer.usage.prompt_tokens,
            cached_tokens: answer.usage.cached_tokens,
        })
    }
}

/// The requests of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestMeans {
    /// Mean time to the first token.
    pub ttft_ms: f64,
    /// Mean time per token after the first. `None` if no time passed after the first one.
    pub tpot_ms: Option<f64>,
    /// Mean time to the last token.
    pub e2e_ms: f64,
    /// Prompt tokens that were prefilled, over the times to the first token.
    pub prompt_tok_s: f64,
}

impl RequestMeans {
    /// `None` without requests.
    pub fn of(requests: &[RequestTimes]) -> Option<Self> {
        let sum = |of: fn(&RequestTimes) -> f64| requests.iter().map(of).sum::<f64>();
        let count = (!requests.is_empty()).then_some(requests.len() as f64)?;
        let (ttft_ms, e2e_ms) = (sum(|one| one.ttft_ms), sum(|one| one.e2e_ms));
        let after_first = sum(|one| one.tokens.saturating_sub(1) as f64);
        let prefilled = sum(|one| f64::from(one.prompt_tokens.saturating_sub(one.cached_tokens)));
        let decode_ms = e2e_ms - ttft_ms;
        Some(Self {
            ttft_ms: ttft_ms / count,
            tpot_ms: (decode_ms > 0.0 && after_first > 0.0).then(|| decode_ms / after_first),
            e2e_ms: e2e_ms / count,
            prompt_tok_s: prefilled * 1e3 / ttft_ms.max(f64::MIN_POSITIVE),
        })
    }
}

/// The requests of all runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestStatistics {
    /// Time to the first token.
    pub ttft_ms: Option<Figure>,
    /// Time per token after the first.
    pub tpot_ms: Option<Figure>,
    /// Speed of prefill, tokens a second.
    pub prompt_tok_s: Option<Figure>,
    /// Speed of one stream, tokens a second.
    pub decode_tok_s: Option<Figure>,
    /// Time to the last token.
    pub e2e_ms: Option<Figure>,
}

impl RequestStatistics {
    /// The figures of all runs.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a [RequestTimes]>) -> Self {
        let runs: Vec<RequestMeans> = runs.into_iter().filter_map(RequestMeans::of).collect();
        let tpot_ms = || runs.iter().filter_map(|run| run.tpot_ms);
        Self {
            ttft_ms: Figure::of(runs.iter().map(|run| run.ttft_ms)),
            tpot_ms: Figure::of(tpot_ms()),
            prompt_tok_s: Figure::of(runs.iter().map(|run| run.prompt_tok_s)),
            decode_tok_s: Figure::of(tpot_ms().map(|tpot_ms| 1e3 / tpot_ms)),
            e2e_ms: Figure::of(runs.iter().map(|run| run.e2e_ms)),
        }
    }

    /// Adds the columns of these figures to a table.
    pub fn columns<'a, R>(
        table: SheetBuilder<'a, R>,
        of: impl Fn(&'a R) -> &'a Self,
    ) -> SheetBuilder<'a, R> {
        table
            .number("ttft_ms", "TTFT ms", 1, |row| of(row).ttft_ms.as_ref())
            .number("tpot_ms", "TPOT ms", 2, |row| of(row).tpot_ms.as_ref())
            .number("prompt_tok_s", "PROMPT tok/s", 0, |row| of(row).prompt_tok_s.as_ref())
            .number("decode_tok_s", "DECODE tok/s", 1, |row| of(row).decode_tok_s.as_ref())
            .number("e2e_ms", "E2E ms", 0, |row| of(row).e2e_ms.as_ref())
    }
}

/// Tokens per cycle of one draft and one verification; `None` without cycles.
pub fn tokens_per_cycle(accepted: u64, cycles: u64) -> Option<f64> {
    (cycles > 0).then(|| (accepted + cycles) as f64 / cycles as f64)
}

/// Explanation of the columns below a table.
pub const COLUMNS: &str = "\
TTFT: from submission to the first token. TPOT: from the first token to the last, over the tokens after the first. PROMPT: tokens\n\
of the prompt that no cache had, over TTFT. DECODE: 1000 over TPOT, the speed of one stream. E2E: from submission to the last\n\
token. All at the client; means of a run's requests, waiting included\n";

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::answer::{Answer, Usage};

    fn sent(sent_ms: i64, received_ms: &[i64], tokens: usize) -> Sent {
        let usage = Usage { prompt_tokens: 100, cached_tokens: 64, ..Usage::default() };
        let answer = Answer {
            received_ns: received_ms.iter().map(|ms| ms * 1_000_000).collect(),
            token_ids: vec![7; tokens],
            usage,
            ..Answer::default()
        };
        Sent { answer, sent_ns: sent_ms * 1_000_000 }
    }

    #[test]
    fn times_begin_with_the_submission_and_end_with_the_last_token() {
        let times = RequestTimes::of(&sent(100, &[130, 150, 190], 5)).expect("tokens came");
        let expected = RequestTimes {
            ttft_ms: 30.0,
            e2e_ms: 90.0,
            tokens: 5,
            prompt_tokens: 100,
            cached_tokens: 64,
        };
        assert_eq!(times, expected);
        assert_eq!(RequestTimes::of(&sent(100, &[], 0)), None);
    }

    #[test]
    fn a_run_is_the_mean_of_its_requests() {
        let one = RequestTimes::of(&sent(100, &[130, 190], 5)).expect("tokens came");
        let other = RequestTimes::of(&sent(100, &[110, 150], 6)).expect("tokens came");
        let means = RequestMeans::of(&[one, other]).expect("two requests");
        assert_eq!((means.ttft_ms, means.e2e_ms), (20.0, 70.0));
        // 60 ms for 4 tokens and 40 ms for 5.
        assert_eq!(means.tpot_ms, Some(100.0 / 9.0));
        // 36 tokens of each prompt were prefilled, in 30 and in 10 ms.
        assert_eq!(means.prompt_tok_s, 1_800.0);
        assert_eq!(RequestMeans::of(&[]), None);
    }

    #[test]
    fn one_token_has_no_speed() {
        let alone = RequestTimes::of(&sent(100, &[130], 1)).expect("a token came");
        let figures = RequestStatistics::of([&[alone][..], &[][..]]);
        assert_eq!(figures.ttft_ms.map(|figure| figure.values), Some(vec![30.0]));
        assert_eq!((figures.tpot_ms, figures.decode_tok_s), (None, None));
        let two = RequestTimes { e2e_ms: 50.0, tokens: 3, ..alone };
        let figures = RequestStatistics::of([&[two][..]]);
        assert_eq!(figures.decode_tok_s.map(|figure| figure.values), Some(vec![100.0]));
    }
}
