//! Figures of each shape over all runs. Pure.

use paceline_client::answer::Answer;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::model::Model;
use super::plan::Shape;
use crate::statistics::Figure;

/// One run of a shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShapeRun {
    /// Prompt tokens per second of wall-clock time, at the first sending.
    pub pp_tok_s: f64,
    /// Generated tokens per second while all answers are generated; `None` if they never all are.
    pub tg_tok_s: Option<f64>,
    /// Prompt tokens of the first sending that were in the prefix cache: there must be none.
    pub cached: u64,
    /// Answers that waited for admission.
    pub waited: usize,
}

impl ShapeRun {
    /// From the first sending with its duration in seconds, and from the second one.
    pub fn of(shape: &Shape, read: &(Vec<Answer>, f64), generated: &[Answer]) -> Self {
        let (first, seconds) = read;
        Self {
            pp_tok_s: (first.len() * shape.prompt_tokens) as f64 / seconds,
            tg_tok_s: together(generated),
            cached: first.iter().map(|seen| u64::from(seen.usage.cached_tokens)).sum(),
            waited: first.iter().chain(generated).filter(|seen| seen.waited()).count(),
        }
    }
}

/// Tokens per second while all answers are generated: from the latest first token to the earliest
/// last token. `None` if an answer ended before another one began.
fn together(answers: &[Answer]) -> Option<f64> {
    let ends = |seen: &Answer| Some((seen.stamps.first()?.1, seen.stamps.last()?.1));
    let ends = answers.iter().map(ends).collect::<Option<Vec<_>>>()?;
    let begin = ends.iter().map(|(first, _)| *first).max()?;
    let end = ends.iter().map(|(_, last)| *last).min()?;
    let tokens: usize = answers
        .iter()
        .flat_map(|seen| &seen.stamps)
        .filter(|(_, at)| (begin + 1..=end).contains(at))
        .map(|(tokens, _)| tokens)
        .sum();
    (tokens > 0).then(|| tokens as f64 / ((end - begin) as f64 / 1e9))
}

/// A shape, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    /// The shape.
    #[serde(flatten)]
    pub shape: Shape,
    /// Prefill, tokens per second.
    pub pp_tok_s: Option<Figure>,
    /// Generation, tokens per second of all streams together; `None` if they never ran all at once.
    pub tg_tok_s: Option<Figure>,
    /// The bound by memory. Only for one stream, because several share the reading of weights.
    pub bound: Option<MemoryBound>,
    /// Runs in which the answers were never generated all at once.
    pub apart: usize,
    /// Answers that waited for admission.
    pub waited: usize,
}

/// The bound by memory, and the share of it that was reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryBound {
    /// Bytes that a token reads in the middle of its answer.
    pub token_bytes: f64,
    /// Bandwidth over those bytes: tokens per second.
    pub tok_s: Figure,
    /// Generation over the bound within each run, because a slow period affects both.
    pub share: Figure,
}

impl TableRow {
    /// The figures of a shape, run by run. `bandwidth` is of the same runs, if it was measured.
    pub fn of(
        shape: Shape,
        runs: &[ShapeRun],
        bandwidth: &[Bandwidth],
        model: &Model,
        max_tokens: u32,
    ) -> Self {
        let positions = shape.prompt_tokens as f64 + f64::from(max_tokens) / 2.0;
        let alone = shape.streams == 1;
        Self {
            shape,
            pp_tok_s: Figure::of(runs.iter().map(|run| run.pp_tok_s)),
            tg_tok_s: Figure::of(runs.iter().filter_map(|run| run.tg_tok_s)),
            bound: alone.then(|| bound(runs, bandwidth, model.token_bytes(positions))).flatten(),
            apart: runs.iter().filter(|run| run.tg_tok_s.is_none()).count(),
            waited: runs.iter().map(|run| run.waited).sum(),
        }
    }
}

fn bound(runs: &[ShapeRun], bandwidth: &[Bandwidth], token_bytes: f64) -> Option<MemoryBound> {
    let pairs = runs
        .iter()
        .zip(bandwidth)
        .filter_map(|(run, found)| Some((run.tg_tok_s?, found.bytes_s / token_bytes)));
    let (shares, bounds): (Vec<f64>, Vec<f64>) =
        pairs.map(|(reached, bound)| (reached / bound, bound)).unzip();
    Some(MemoryBound { token_bytes, tok_s: Figure::of(bounds)?, share: Figure::of(shares)? })
}

#[cfg(test)]
mod tests {
    use super::super::TableBench;
    use super::*;
    use crate::experiment::Experiment as _;
    use paceline_client::answer::{Timing, Usage};

    const MODEL: Model =
        Model { context: 4_096, vocab: 100, weight_bytes: 1_000, position_bytes: 10 };

    fn run(tg_tok_s: Option<f64>) -> ShapeRun {
        ShapeRun { pp_tok_s: 500.0, tg_tok_s, cached: 0, waited: 1 }
    }

    fn row(streams: usize, runs: &[ShapeRun]) -> TableRow {
        // The machine became half as fast in the second run.
        let bandwidth = [2_000_000.0, 1_000_000.0].map(|bytes_s| Bandwidth { threads: 2, bytes_s });
        TableRow::of(Shape { prompt_tokens: 84, streams }, runs, &bandwidth, &MODEL, 32)
    }

    fn stamped(stamps_ms: &[(usize, i64)]) -> Answer {
        Answer {
            stamps: stamps_ms.iter().map(|(tokens, ms)| (*tokens, ms * 1_000_000)).collect(),
            ..Answer::default()
        }
    }

    #[test]
    fn one_answer_counts_from_its_first_token_to_its_last() {
        let found =
            together(&[stamped(&[(1, 100), (1, 110), (2, 120), (1, 140)])]).expect("a time");
        assert!((found - 4.0 / 0.04).abs() < 1e-9, "{found}");
        assert_eq!(together(&[stamped(&[(4, 100)])]), None);
        assert_eq!(together(&[stamped(&[])]), None);
        assert_eq!(together(&[]), None);
    }

    #[test]
    fn several_streams_count_only_while_all_of_them_decode() {
        // The second begins at 120 and the first ends at 140: four tokens of each in 20 ms.
        let first = stamped(&[(1, 100), (1, 110), (1, 120), (2, 130), (2, 140)]);
        let second = stamped(&[(1, 120), (2, 130), (2, 140), (1, 150), (1, 160)]);
        let found = together(&[first.clone(), second]).expect("a time");
        assert!((found - 8.0 / 0.02).abs() < 1e-9, "{found}");
        assert_eq!(together(&[first, stamped(&[(1, 150), (1, 160)])]), None);
    }

    #[test]
    fn the_share_uses_the_bandwidth_of_the_same_run() {
        let row = row(1, &[run(Some(500.0)), run(Some(250.0))]);
        let bound = row.bound.expect("one stream");
        // 1,000 bytes of weights and 100 positions.
        assert_eq!(bound.token_bytes, 2_000.0);
        assert_eq!(
            (bound.tok_s.values, bound.share.values),
            (vec![1_000.0, 500.0], vec![0.5, 0.5])
        );
        assert_eq!(
            (row.pp_tok_s.map(|pp| pp.estimate.median), row.waited, row.apart),
            (Some(500.0), 2, 0)
        );
    }

    #[test]
    fn several_streams_have_no_bound_and_streams_out_of_step_no_speed() {
        let row = row(4, &[run(None), run(Some(100.0))]);
        assert_eq!((row.bound, row.apart), (None, 1));
        assert_eq!(row.tg_tok_s.map(|tg| tg.values), Some(vec![100.0]));
        let never = self::row(1, &[run(None), run(None)]);
        assert_eq!((never.bound, never.tg_tok_s, never.apart), (None, None, 2));
    }

    #[test]
    fn a_measurement_is_of_all_prompts_and_of_all_answers() {
        let shape = Shape { prompt_tokens: 100, streams: 2 };
        let seen = |cached_tokens, waited| Answer {
            usage: Usage { cached_tokens, ..Usage::default() },
            timing: Timing { queue_ms: if waited { 1.0 } else { 0.0 }, ..Timing::default() },
            stamps: vec![(1, 0), (1, 10_000_000)],
            ..Answer::default()
        };
        let first = vec![seen(0, false), seen(64, true), seen(0, false), seen(0, false)];
        let found = ShapeRun::of(&shape, &(first, 0.5), &[seen(64, false), seen(64, true)]);
        assert_eq!(
            found,
            ShapeRun { pp_tok_s: 800.0, tg_tok_s: Some(200.0), cached: 64, waited: 2 }
        );
    }

    #[test]
    fn a_shape_of_a_run_is_a_line() {
        let found = ShapeRun { pp_tok_s: 1_234.4, tg_tok_s: Some(99.6), ..ShapeRun::default() };
        let line =
            format!("{}: {}", Shape { prompt_tokens: 64, streams: 2 }, TableBench::line(&found));
        assert_eq!(line, "64 tokens x 2: pp 1234, tg 100 tok/s");
    }
}
