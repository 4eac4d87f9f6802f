//! The figures of a run: speed of both lanes pair by pair, acceptance by kind of prompt, identity.
//! Pure: computes numbers from answers.

use paceline_client::answer::Answer;
use paceline_client::compare::JudgedDifferences;
use serde::Serialize;

/// Tokens after those of the first message, and the seconds they took by the stamps of their steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Tokens.
    pub tokens: usize,
    /// Seconds; above 0.
    pub seconds: f64,
}

impl Decode {
    /// Of messages as (tokens, end of their step in ns), in order; `None` for an answer that came
    /// at once.
    pub fn of(messages: &[(usize, i64)]) -> Option<Self> {
        let [(_, first_ns), rest @ ..] = messages else { return None };
        let tokens: usize = rest.iter().map(|(tokens, _)| tokens).sum();
        let seconds = (rest.last()?.1 - first_ns) as f64 / 1e9;
        (tokens > 0 && seconds > 0.0).then_some(Self { tokens, seconds })
    }

    /// Tokens per second.
    pub fn speed(self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// One request in both lanes, one right after the other; the drafted answer is missing where there
/// is no drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Kind of the prompt.
    pub kind: String,
    /// Answer of the plain lane.
    pub plain: Answer,
    /// Answer with drafts.
    pub drafted: Option<Answer>,
}

/// Middle, least and most of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the values.
    pub median: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[half]
        } else {
            (values[half - 1] + values[half]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

/// Result for one kind of prompt, or for all kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SelftestRow {
    /// Kind of the prompts; "all".
    pub kind: String,
    /// Pairs of answers.
    pub pairs: usize,
    /// Draft-and-verify rounds.
    pub cycles: u64,
    /// Tokens proposed.
    pub drafted: u64,
    /// Proposed tokens that the target chose as well.
    pub accepted: u64,
    /// Tokens of a cycle, the target's own included.
    pub tokens_per_cycle: Option<f64>,
    /// Tokens per second in the plain lane, median of the answers.
    pub plain_tok_s: Option<f64>,
    /// Least and most of these. The plain lane's speed hardly depends on the text, so they show how
    /// steady the machine was.
    pub plain_range: Option<(f64, f64)>,
    /// Tokens per second with the drafter, median of the answers.
    pub drafted_tok_s: Option<f64>,
    /// Speed with the drafter over speed without, pair by pair.
    pub ratio: Option<Spread>,
    /// Time to the first token in the plain lane, median.
    pub plain_ttft_ms: Option<f64>,
    /// Time to the first token with the drafter over that without, median of the pairs.
    pub ttft_ratio: Option<f64>,
    /// Seconds of decoding in the plain lane, of pairs in which both are known.
    pub plain_s: f64,
    /// Seconds of decoding with the drafter, of the same pairs.
    pub drafted_s: f64,
}

impl SelftestRow {
    /// The figures of some pairs.
    pub fn of<'a>(kind: &str, pairs: impl Iterator<Item = &'a Pair>) -> Self {
        let mut row = Self { kind: kind.to_owned(), ..Self::default() };
        let (mut plain, mut drafted, mut ratios, mut ttfts, mut ttft_ratios) =
            (vec![], vec![], vec![], vec![], vec![]);
        for pair in pairs {
            row.pairs += 1;
            let without = Decode::of(&pair.plain.stamps);
            plain.extend(without.map(Decode::speed));
            let ttft_ms = pair.plain.timing.ttft_ms;
            ttfts.push(ttft_ms);
            let Some(other) = &pair.drafted else { continue };
            row.cycles += other.speculation.cycles;
            row.drafted += other.speculation.drafted;
            row.accepted += other.speculation.accepted;
            let with = Decode::of(&other.stamps);
            drafted.extend(with.map(Decode::speed));
            if let (Some(without), Some(with)) = (without, with) {
                ratios.push(with.speed() / without.speed());
                row.plain_s += without.seconds;
                row.drafted_s += with.seconds;
            }
            if ttft_ms > 0.0 {
                ttft_ratios.push(other.timing.ttft_ms / ttft_ms);
            }
        }
        let median = |values| Spread::of(values).map(|spread| spread.median);
        row.tokens_per_cycle =
            (row.cycles > 0).then(|| (row.accepted + row.cycles) as f64 / row.cycles as f64);
        let plain = Spread::of(plain);
        row.plain_tok_s = plain.map(|spread| spread.median);
        row.plain_range = plain.map(|spread| (spread.min, spread.max));
        row.drafted_tok_s = median(drafted);
        row.ratio = Spread::of(ratios);
        row.plain_ttft_ms = median(ttfts);
        row.ttft_ratio = median(ttft_ratios);
        row
    }

    /// Plain decoding time over that with the drafter, of all answers together.
    pub fn overall(&self) -> Option<f64> {
        (self.plain_s > 0.0 && self.drafted_s > 0.0).then(|| self.plain_s / self.drafted_s)
    }
}

/// A row for each kind, in the order they were first asked.
pub fn rows(pairs: &[Pair]) -> Vec<SelftestRow> {
    let mut kinds: Vec<&str> = Vec::new();
    for pair in pairs {
        if !kinds.contains(&pair.kind.as_str()) {
            kinds.push(&pair.kind);
        }
    }
    kinds
        .into_iter()
        .map(|kind| SelftestRow::of(kind, pairs.iter().filter(|pair| pair.kind == kind)))
        .collect()
}

/// Reasons why answers that asked for the drafter got no draft, each with their number.
/// An answer of two tokens has no room for a cycle.
pub fn undrafted(pairs: &[Pair]) -> Vec<(String, usize)> {
    let mut reasons: Vec<(String, usize)> = Vec::new();
    let without = |seen: &&Answer| seen.speculation.cycles == 0 && seen.token_ids.len() > 2;
    for seen in pairs.iter().filter_map(|pair| pair.drafted.as_ref()).filter(without) {
        match reasons.iter_mut().find(|(reason, _)| *reason == seen.route.reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((seen.route.reason.clone(), 1)),
        }
    }
    reasons
}

/// Result of the comparison of the lanes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TokenComparison {
    /// Pairs of streams compared.
    pub streams: usize,
    /// Tokens compared, up to the first difference of each pair.
    pub tokens: usize,
    /// Differences between the lanes, and which of them are near-ties.
    #[serde(flatten)]
    pub judged: JudgedDifferences,
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::answer::{Route, Speculation, Timing};

    fn seen(tokens: usize, seconds: f64, cycles: u64, accepted: u64) -> Answer {
        Answer {
            token_ids: vec![7; tokens + 1],
            stamps: vec![(1, 0), (tokens, (seconds * 1e9) as i64)],
            timing: Timing { ttft_ms: 10.0, ..Timing::default() },
            speculation: Speculation { cycles, drafted: 15 * cycles, accepted },
            route: Route { lane: "speculative".into(), reason: "forced".into() },
            ..Answer::default()
        }
    }

    fn pair(kind: &str, plain_s: f64, drafted_s: f64) -> Pair {
        Pair {
            kind: kind.into(),
            plain: seen(100, plain_s, 0, 0),
            drafted: Some(seen(100, drafted_s, 20, 80)),
        }
    }

    #[test]
    fn speed_is_tokens_after_the_first_message_over_their_time() {
        let ns = |ms: i64| 1_000_000_000 + ms * 1_000_000;
        assert_eq!(
            Decode::of(&[(1, ns(0)), (4, ns(10)), (6, ns(20))]),
            Some(Decode { tokens: 10, seconds: 0.02 })
        );
        // What came with the first message took its time before that.
        assert_eq!(
            Decode::of(&[(3, ns(0)), (1, ns(10))]),
            Some(Decode { tokens: 1, seconds: 0.01 })
        );
        for nothing in
            [&[][..], &[(1, ns(0))], &[(1, ns(0)), (1, ns(0))], &[(1, ns(0)), (0, ns(10))]]
        {
            assert_eq!(Decode::of(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_median_of_an_even_number_is_between() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(
            Spread::of(vec![3.0, 1.0, 2.0]),
            Some(Spread { median: 2.0, min: 1.0, max: 3.0 })
        );
        assert_eq!(
            Spread::of(vec![4.0, 1.0, 2.0, 3.0]),
            Some(Spread { median: 2.5, min: 1.0, max: 4.0 })
        );
    }

    #[test]
    fn a_row_has_ratios_of_pairs_and_sums_of_counts() {
        let pairs = [pair("json", 1.0, 0.25), pair("prose", 1.0, 2.0), pair("json", 2.0, 1.0)];
        let rows = rows(&pairs);
        assert_eq!(
            rows.iter().map(|row| (row.kind.as_str(), row.pairs)).collect::<Vec<_>>(),
            [("json", 2), ("prose", 1)]
        );
        let json = &rows[0];
        assert_eq!((json.cycles, json.drafted, json.accepted), (40, 600, 160));
        assert_eq!(json.tokens_per_cycle, Some(5.0));
        assert_eq!(json.ratio, Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!((json.plain_tok_s, json.drafted_tok_s), (Some(75.0), Some(250.0)));
        assert_eq!(json.plain_range, Some((50.0, 100.0)));
        assert_eq!(json.ttft_ratio, Some(1.0));
        assert_eq!((json.plain_s, json.drafted_s, json.overall()), (3.0, 1.25, Some(2.4)));
    }

    #[test]
    fn without_a_drafter_there_is_the_plain_lane_alone() {
        let row = SelftestRow::of("all", [Pair { drafted: None, ..pair("json", 1.0, 1.0) }].iter());
        assert_eq!(
            (row.plain_tok_s, row.drafted_tok_s, row.ratio, row.tokens_per_cycle),
            (Some(100.0), None, None, None)
        );
        assert_eq!(row.overall(), None);
    }

    #[test]
    fn answers_without_a_draft_are_counted_by_reason() {
        let mut without = pair("json", 1.0, 1.0);
        without.drafted = Some(Answer {
            route: Route { lane: "plain".into(), reason: "drafter_behind".into() },
            ..seen(9, 1.0, 0, 0)
        });
        let mut short = without.clone();
        short.drafted.as_mut().expect("set").token_ids.truncate(2);
        assert_eq!(undrafted(&[pair("json", 1.0, 1.0), short]), []);
        assert_eq!(undrafted(&[without.clone(), without]), [("drafter_behind".to_owned(), 2)]);
    }
}
