//! The report of a run: a table, lines about identity and speed, and the verdict; or one JSON
//! object with all figures.

use paceline_client::compare::bound_in_words;
use paceline_client::own_service::report::Report;
use paceline_client::own_service::subject::Subject;
use paceline_client::print::{Table, interval, number};
use serde::Serialize;

use super::figures::{SelftestRow, TokenComparison};
use crate::step_costs::{self, StepMs};

/// All figures of a run; the object of `--json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SelftestReport {
    /// Program, machine and models.
    #[serde(flatten)]
    pub subject: Subject,
    /// Prompts of each kind.
    pub prompts_per_kind: usize,
    /// Prompts for which there was no time (`--seconds`), by parts of the test.
    pub not_checked: Vec<String>,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// A row for each kind.
    pub kinds: Vec<SelftestRow>,
    /// All kinds together.
    pub all: SelftestRow,
    /// Plain decoding time over that with the drafter, of all answers together.
    pub overall_ratio: Option<f64>,
    /// Tokens of a cycle in answers that were sampled at temperature 0.8, the target's own included.
    pub sampled_tokens_per_cycle: Option<f64>,
    /// Whether the lanes gave the same tokens.
    pub identity: TokenComparison,
    /// Whether a row alone was computed by the kernels of blocks (`target.exact_lanes`).
    pub exact_lanes: bool,
    /// Products by quantized weights and their kernels, in words.
    pub products: Option<String>,
    /// Drafts that came too late.
    pub late_drafts: u64,
    /// Answers without a draft although they asked for one: reason and number.
    pub undrafted: Vec<(String, usize)>,
    /// Costs of a step of one request, by rows.
    pub step_costs: Vec<StepMs>,
    /// The verdict, in sentences.
    pub verdict: Vec<String>,
    /// Duration of the whole run.
    pub seconds: f64,
}

impl SelftestReport {
    /// Whether the lanes gave the same tokens, but for near-ties.
    pub fn is_identical(&self) -> bool {
        self.identity.judged.differences.is_empty()
    }

    /// The line about prompts for which there was no time.
    pub(super) fn left_out(&self) -> Option<String> {
        let parts = self.not_checked.join(", ");
        (!parts.is_empty()).then(|| format!("not checked, as --seconds was over: {parts}\n"))
    }
}

impl Report for SelftestReport {
    fn failures(&self) -> Vec<String> {
        let place = self.identity.judged.differences.first();
        place.map(|place| format!("the lanes differ: {place}")).into_iter().collect()
    }

    fn text(&self) -> String {
        let mut text = table(&self.kinds, &self.all, self.subject.drafter.is_some());
        text.push('\n');
        text.push_str(&identity(&self.identity, self.subject.drafter.is_some()));
        text.extend(self.left_out());
        if self.exact_lanes {
            text.push_str("exact lanes: a row alone is computed by the kernels of blocks\n");
        }
        let products = self.products.iter().map(|words| format!("products: {words}\n"));
        text.extend(products);
        if let (Some(sampled), Some(greedy)) =
            (self.sampled_tokens_per_cycle, self.all.tokens_per_cycle)
        {
            text.push_str(&format!(
                "sampled at temperature 0.8: {sampled:.2} tokens per cycle (greedy {greedy:.2})\n"
            ));
        }
        for (reason, count) in &self.undrafted {
            text.push_str(&format!(
                "{count} answers got no draft although one was asked for: {reason}\n"
            ));
        }
        if self.late_drafts > 0 {
            text.push_str(&format!(
                "{} drafts did not come in time; those cycles were plain steps\n",
                self.late_drafts
            ));
        }
        text.push_str(&step_costs::line(&self.step_costs));
        text.push('\n');
        for line in &self.verdict {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

fn table(kinds: &[SelftestRow], all: &SelftestRow, drafter: bool) -> String {
    let drafted =
        ["TOKENS/CYCLE", "PLAIN tok/s", "DRAFTER tok/s", "RATIO", "(RANGE)", "TTFT RATIO"];
    let plain = ["PLAIN tok/s", "TTFT ms"];
    let columns = if drafter { &drafted[..] } else { &plain };
    let mut table = Table::new(["KIND", "ANSWERS"].iter().chain(columns).copied());
    for row in kinds.iter().chain([all]) {
        let mut cells = vec![row.kind.clone(), row.pairs.to_string()];
        if drafter {
            cells.extend([
                number(row.tokens_per_cycle, 2),
                number(row.plain_tok_s, 0),
                number(row.drafted_tok_s, 0),
                number(row.ratio.map(|ratio| ratio.median), 2),
                interval(row.ratio.map(|ratio| (ratio.min, ratio.max)), 2),
                number(row.ttft_ratio, 2),
            ]);
        } else {
            cells.extend([number(row.plain_tok_s, 0), number(row.plain_ttft_ms, 1)]);
        }
        table.row(cells);
    }
    table.text()
}

fn identity(identity: &TokenComparison, drafter: bool) -> String {
    let TokenComparison { streams, tokens, judged } = identity;
    let what = if drafter { "both lanes" } else { "the plain lane twice" };
    let bound = bound_in_words(judged.bound);
    let outcome = match (judged.differences.len(), judged.near_ties.len()) {
        (0, 0) => "equal".to_owned(),
        (0, near) => format!("equal but for {near} near-ties (margin below {bound})"),
        (real, near) => {
            format!("DIFFERENT in {real} streams, and {near} near-ties (margin below {bound})")
        }
    };
    let places = judged.lines();
    format!(
        "identity: {what}, {streams} pairs of streams, {tokens} tokens compared: {outcome}\n{places}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::figures::Spread;
    use super::*;
    use paceline_client::compare::{Difference, DifferencePlace, JudgedDifferences, NEAR_TIE};
    use paceline_client::own_service::subject::Model;

    fn report() -> SelftestReport {
        let json = SelftestRow {
            kind: "json".into(),
            pairs: 6,
            tokens_per_cycle: Some(9.876),
            plain_tok_s: Some(330.4),
            drafted_tok_s: Some(1200.0),
            ratio: Some(Spread { median: 3.6, min: 3.21, max: 3.9 }),
            ttft_ratio: Some(1.0),
            ..SelftestRow::default()
        };
        let prose = SelftestRow {
            kind: "prose".into(),
            pairs: 6,
            plain_ttft_ms: Some(9.0),
            ..SelftestRow::default()
        };
        SelftestReport {
            subject: Subject { drafter: Some(Model::default()), ..Subject::default() },
            all: SelftestRow { kind: "all".into(), ..json.clone() },
            kinds: vec![json, prose],
            identity: TokenComparison { streams: 12, tokens: 3456, ..TokenComparison::default() },
            verdict: vec!["Leave the drafter on.".into()],
            ..SelftestReport::default()
        }
    }

    #[test]
    fn the_table_is_aligned_and_the_verdict_comes_last() {
        let expected = "\
KIND   ANSWERS  TOKENS/CYCLE  PLAIN tok/s  DRAFTER tok/s  RATIO         (RANGE)  TTFT RATIO
json         6          9.88          330           1200   3.60  (3.21 to 3.90)        1.00
prose        6             -            -              -      -               -           -
all          6          9.88          330           1200   3.60  (3.21 to 3.90)        1.00

identity: both lanes, 12 pairs of streams, 3456 tokens compared: equal

Leave the drafter on.
";
        assert_eq!(report().text(), expected);
    }

    #[test]
    fn exact_lanes_are_named() {
        let line = "equal\nexact lanes: a row alone";
        assert!(SelftestReport { exact_lanes: true, ..report() }.text().contains(line));
        assert!(!report().text().contains("exact lanes"));
    }

    #[test]
    fn products_are_named() {
        let products = Some("integer, kernels for AVX2".to_owned());
        let line = "equal\nproducts: integer, kernels for AVX2\n";
        assert!(SelftestReport { products, ..report() }.text().contains(line));
        assert!(!report().text().contains("products"));
    }

    #[test]
    fn without_a_drafter_the_table_has_one_lane() {
        let text = SelftestReport { subject: Subject::default(), ..report() }.text();
        assert!(text.starts_with("KIND   ANSWERS  PLAIN tok/s  TTFT ms\n"), "{text}");
        assert!(
            text.contains("prose        6            -      9.0\n")
                && text.contains("the plain lane twice"),
            "{text}"
        );
    }

    #[test]
    fn differences_are_reported_with_position_ids_and_margin() {
        let near = Difference {
            position: 17,
            plain_id: Some(4),
            other_id: Some(5),
            margin: Some(0.000_02),
        };
        let real = Difference { position: 3, plain_id: Some(8), other_id: None, margin: Some(0.5) };
        let place = |difference| DifferencePlace {
            kind: "code".into(),
            prompt: 1,
            choice: "sampled",
            difference,
        };
        let found = TokenComparison {
            streams: 2,
            tokens: 20,
            judged: JudgedDifferences {
                bound: NEAR_TIE,
                near_ties: vec![place(near)],
                differences: vec![place(real)],
            },
        };
        let text = SelftestReport {
            identity: found,
            late_drafts: 2,
            step_costs: vec![StepMs { rows: 1, ms: 7.31, draft_ms: None }],
            undrafted: vec![("drafter_behind".into(), 3)],
            ..report()
        }
        .text();
        for expected in [
            "2 pairs of streams, 20 tokens compared: DIFFERENT in 1 streams, and 1 near-ties",
            "  near-tie: code prompt 2, sampled, token 17: expected id 4, found id 5; margin 2.00e-5\n",
            "  DIFFERENT: code prompt 2, sampled, token 3: expected id 8, found the stream's end; margin 5.00e-1\n",
            "3 answers got no draft although one was asked for: drafter_behind\n",
            "2 drafts did not come in time",
            "ms of a step by rows (+ its draft): 1 7.3\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn the_object_has_everything() {
        let object = serde_json::to_value(report()).expect("plain");
        assert_eq!(object["kinds"][0]["ratio"]["median"], 3.6);
        assert_eq!(object["identity"]["differences"], serde_json::json!([]));
        assert_eq!(object["kinds"][1]["tokens_per_cycle"], serde_json::Value::Null);
    }
}
