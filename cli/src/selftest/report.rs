//! The report of a run: a table, lines about identity and speed, and the verdict; or one JSON
//! object with all figures.

use paceline_proto::v1::{ProcessStatus, StatusResponse};
use serde::Serialize;

use super::figures::{DifferencePlace, SelftestRow, TokenComparison};
use crate::step_costs::{self, StepMs};

/// A model that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Model {
    /// Its directory.
    pub model: String,
    /// Its weights in memory.
    pub weight_bytes: u64,
}

/// Program, machine and models of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Subject {
    /// Version of this program.
    pub version: &'static str,
    /// Operating system and processor's architecture.
    pub platform: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The model that was served.
    pub target: Model,
    /// The drafter, if there was one.
    pub drafter: Option<Model>,
}

impl Subject {
    /// This program on this machine, with the models of the service. `drafted`: the drafter took
    /// part.
    pub fn new(status: &StatusResponse, drafted: bool) -> Self {
        let model = |process: &ProcessStatus| Model {
            model: process.model.clone(),
            weight_bytes: process.weight_bytes,
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            target: status.target.as_ref().map(model).unwrap_or_default(),
            drafter: status.drafter.as_ref().filter(|_| drafted).map(model),
        }
    }
}

/// All figures of a run; the object of `--json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SelftestReport {
    /// Program, machine and models.
    #[serde(flatten)]
    pub subject: Subject,
    /// Prompts of each kind.
    pub prompts_per_kind: usize,
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
    /// Drafts that came too late.
    pub late_drafts: u64,
    /// Answers without a draft although they asked for one: reason and number.
    pub undrafted: Vec<(String, usize)>,
    /// What a step of one request costs, by rows.
    pub step_costs: Vec<StepMs>,
    /// The verdict, in sentences.
    pub verdict: Vec<String>,
    /// Duration of the whole run.
    pub seconds: f64,
}

impl SelftestReport {
    /// Whether the lanes gave the same tokens, but for near-ties.
    pub fn is_identical(&self) -> bool {
        self.identity.differences.is_empty()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = table(&self.kinds, &self.all, self.subject.drafter.is_some());
        text.push('\n');
        text.push_str(&identity(&self.identity, self.subject.drafter.is_some()));
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
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    let mut rows: Vec<Vec<String>> = vec![if drafter {
        [
            "KIND",
            "ANSWERS",
            "TOKENS/CYCLE",
            "PLAIN tok/s",
            "DRAFTER tok/s",
            "RATIO",
            "(RANGE)",
            "TTFT RATIO",
        ]
        .map(String::from)
        .into()
    } else {
        ["KIND", "ANSWERS", "PLAIN tok/s", "TTFT ms"].map(String::from).into()
    }];
    for row in kinds.iter().chain([all]) {
        let mut cells = vec![row.kind.clone(), row.pairs.to_string()];
        if drafter {
            let range = row
                .ratio
                .map_or("-".into(), |ratio| format!("({:.2} to {:.2})", ratio.min, ratio.max));
            cells.extend([
                number(row.tokens_per_cycle, 2),
                number(row.plain_tok_s, 0),
                number(row.drafted_tok_s, 0),
            ]);
            cells.extend([
                number(row.ratio.map(|ratio| ratio.median), 2),
                range,
                number(row.ttft_ratio, 2),
            ]);
        } else {
            cells.extend([number(row.plain_tok_s, 0), number(row.plain_ttft_ms, 1)]);
        }
        rows.push(cells);
    }
    aligned(&rows)
}

/// A table with the first column aligned left and the numbers right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let cell = |column: usize, text: &String| match column {
        0 => format!("{text:0$}", width(column)),
        _ => format!("{text:>0$}", width(column)),
    };
    let line = |row: &Vec<String>| {
        row.iter()
            .enumerate()
            .map(|(column, text)| cell(column, text))
            .collect::<Vec<_>>()
            .join("  ")
    };
    rows.iter().map(|row| line(row) + "\n").collect()
}

fn identity(identity: &TokenComparison, drafter: bool) -> String {
    let what = if drafter { "both lanes" } else { "the plain lane twice" };
    let outcome = match (identity.differences.len(), identity.near_ties.len()) {
        (0, 0) => "equal".to_owned(),
        (0, near) => format!("equal but for {near} near-ties (margin below 1e-4)"),
        (real, near) => {
            format!("DIFFERENT in {real} streams, and {near} near-ties (margin below 1e-4)")
        }
    };
    let TokenComparison { streams, tokens, .. } = identity;
    let mut text = format!(
        "identity: {what}, {streams} pairs of streams, {tokens} tokens compared: {outcome}\n"
    );
    for (word, places) in [("near-tie", &identity.near_ties), ("DIFFERENT", &identity.differences)]
    {
        for place in places {
            text.push_str(&format!("  {word}: {}\n", place_line(place)));
        }
    }
    text
}

/// A line about the position where two streams differ.
pub fn place_line(place: &DifferencePlace) -> String {
    let id = |id: Option<u32>| id.map_or("the stream's end".to_owned(), |id| format!("id {id}"));
    let difference = &place.difference;
    let margin = difference.margin.map_or("unknown".to_owned(), |margin| format!("{margin:.2e}"));
    format!(
        "{} prompt {}, {}, token {}: expected {}, found {}; margin {margin}",
        place.kind,
        place.prompt + 1,
        place.choice,
        difference.position,
        id(difference.plain_id),
        id(difference.other_id),
    )
}

#[cfg(test)]
mod tests {
    use super::super::compare::Difference;
    use super::super::figures::Spread;
    use super::*;

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
            near_ties: vec![place(near)],
            differences: vec![place(real)],
        };
        let text = SelftestReport {
            identity: found,
            late_drafts: 2,
            step_costs: vec![StepMs { rows: 1, ms: 7.31, draft_ms: None }],
            undrafted: vec![("behind".into(), 3)],
            ..report()
        }
        .text();
        for expected in [
            "2 pairs of streams, 20 tokens compared: DIFFERENT in 1 streams, and 1 near-ties",
            "  near-tie: code prompt 2, sampled, token 17: expected id 4, found id 5; margin 2.00e-5\n",
            "  DIFFERENT: code prompt 2, sampled, token 3: expected id 8, found the stream's end; margin 5.00e-1\n",
            "3 answers got no draft although one was asked for: behind\n",
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
