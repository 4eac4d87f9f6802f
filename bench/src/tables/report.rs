//! The report of the target alone: a table with explanations.

use paceline_client::compare::{Difference, bound_in_words};
use paceline_client::print::bytes;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::model::Model;
use super::plan::Shape;
use super::row::TableRow;
use crate::output::llama_bench::LlamaTest;
use crate::output::sheet::{Look, Sheet};
use crate::report::BenchReport;
use crate::statistics::Figure;

/// Bytes of weights below which a processor's caches may hold a part of them.
const CACHED_BYTES: u64 = 256 << 20;

/// Figures of `--tables` and `--roofline`: steps of the target without a drafter.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableReport {
    /// Sizes of the model.
    pub model: Model,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// The machine's memory, if it was measured.
    pub memory: Option<MemorySpeed>,
    /// A row for each shape.
    pub rows: Vec<TableRow>,
    /// Whether prompts gave the same first token both times.
    pub same: TableComparison,
    /// Prompt tokens that the first sending found in the prefix cache. Any makes figures invalid.
    pub cached: u64,
}

/// Read bandwidth of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemorySpeed {
    /// The fastest number of threads.
    pub threads: usize,
    /// Bytes of the buffer.
    pub buffer_bytes: usize,
    /// Bytes per second, the best of several passes in each run.
    pub bytes_s: Figure,
}

impl MemorySpeed {
    /// From all runs; `None` without runs.
    pub fn of(runs: &[Bandwidth], buffer_bytes: usize) -> Option<Self> {
        let threads = runs.first()?.threads;
        Some(Self {
            threads,
            buffer_bytes,
            bytes_s: Figure::of(runs.iter().map(|run| run.bytes_s))?,
        })
    }
}

/// First tokens, compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableComparison {
    /// Prompts that were sent twice.
    pub prompts: usize,
    /// Margin below which a difference is a near-tie.
    #[serde(rename = "near_tie_margin")]
    pub bound: f32,
    /// Differences that rounding explains.
    pub near_ties: usize,
    /// Differences that nothing explains.
    pub differences: Vec<Different>,
}

/// A first token that differs between prefill and prefix cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Different {
    /// The shape.
    #[serde(flatten)]
    pub shape: Shape,
    /// The difference and its margin.
    #[serde(flatten)]
    pub difference: Difference,
}

impl BenchReport for TableReport {
    fn sheets(&self) -> Vec<Sheet> {
        let [bound, share] = match &self.memory {
            Some(_) => [Look::Median, Look::Apart],
            None => [Look::Hidden; 2],
        };
        let sheet = Sheet::of("tables", &self.rows)
            .plain("prompt_tokens", "PROMPT", |row| row.shape.prompt_tokens)
            .plain("streams", "AT ONCE", |row| row.shape.streams)
            .number("pp_tok_s", "PP tok/s", 0, |row| row.pp_tok_s.as_ref())
            .look(Look::Apart)
            .number("tg_tok_s", "TG tok/s", 1, |row| row.tg_tok_s.as_ref())
            .look(Look::Apart)
            .number("bound_tok_s", "BOUND tok/s", 1, |row| Some(&row.bound.as_ref()?.tok_s))
            .look(bound)
            .number("bound_share", "SHARE", 3, |row| Some(&row.bound.as_ref()?.share))
            .look(share);
        vec![sheet.sheet()]
    }

    fn notes(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let mut text = format!(
            "PP: prompt tokens over wall-clock time, from the first submission to the end of the last answer of one token; no\n\
             prompt is known to the prefix cache. TG: tokens over time while all answers come, {tokens} tokens each. Tokens per\n\
             second of all requests together, plain lane, no drafter; medians of {runs} runs, in brackets the 95 % interval\n"
        );
        if let Some(memory) = &self.memory {
            text.push_str(&self.bound(memory));
        }
        let TableComparison { prompts, bound, near_ties, differences } = &self.same;
        let outcome = match (near_ties, differences.len()) {
            (0, 0) => "equal".to_owned(),
            (near, real) => {
                let bound = bound_in_words(*bound);
                format!("{near} near-ties (margin below {bound}), {real} DIFFERENT")
            }
        };
        text.push_str(&format!(
            "identity: first tokens of {prompts} prompts, for the first time and again: {outcome}\n"
        ));
        for TableRow { shape, waited, apart, .. } in &self.rows {
            if *waited > 0 {
                text.push_str(&format!("{shape}: {waited} answers waited for admission\n"));
            }
            if *apart > 0 {
                text.push_str(&format!(
                    "{shape}: in {apart} of {runs} runs the answers never came all at once\n"
                ));
            }
        }
        text
    }

    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.cached > 0 {
            failures.push(format!(
                "expected no prompt in the prefix cache, found {} tokens there: PP is of less than was asked",
                self.cached
            ));
        }
        if let Some(Different { shape, difference }) = self.same.differences.first() {
            let id = |id: Option<u32>| id.map_or("no token".to_owned(), |id| format!("id {id}"));
            let (plain, other) = (id(difference.plain_id), id(difference.other_id));
            failures.push(format!(
                "answers differ: {shape}, expected {plain} as the first time, found {other} the second"
            ));
        }
        failures
    }

    fn llama_tests(&self) -> Vec<LlamaTest> {
        let alone = self.rows.iter().filter(|row| row.shape.streams == 1);
        // The time of generation begins with the first token.
        let n_gen = self.max_tokens.saturating_sub(1) as usize;
        let tests = |row: &TableRow| {
            let pp = (row.shape.prompt_tokens, &row.pp_tok_s);
            LlamaTest::of_context("absent", pp, (n_gen, &row.tg_tok_s))
        };
        alone.flat_map(tests).collect()
    }
}

impl TableReport {
    fn bound(&self, memory: &MemorySpeed) -> String {
        let giga = |value: f64| format!("{:.1}", value / 1e9);
        let found = &memory.bytes_s.estimate;
        let interval = found
            .interval
            .map_or(String::new(), |(low, high)| format!(" ({} to {})", giga(low), giga(high)));
        let Model { weight_bytes, position_bytes, .. } = self.model;
        let mut text = format!(
            "\nread bandwidth: {} GB/s{interval}, {} threads through {}\n\
             a token reads {} of weights and {} of KV for each position before it; BOUND is the bandwidth over that, SHARE what\n\
             one stream reaches of it\n",
            giga(found.median),
            memory.threads,
            bytes(memory.buffer_bytes as u64),
            bytes(weight_bytes),
            bytes(position_bytes),
        );
        if weight_bytes < CACHED_BYTES {
            text.push_str("weights this small lie in the processor's caches in part, which are faster: SHARE may be above 1\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::ShapeRun;
    use super::*;
    use crate::output::sheet::csv;

    fn report(roofline: bool) -> TableReport {
        let model =
            Model { context: 4_096, vocab: 100, weight_bytes: 1_000_000, position_bytes: 1_000 };
        let bandwidth = vec![Bandwidth { threads: 2, bytes_s: 2e9 }; if roofline { 7 } else { 0 }];
        let run =
            |pp_tok_s, tg_tok_s| vec![ShapeRun { pp_tok_s, tg_tok_s, ..ShapeRun::default() }; 7];
        let row = |prompt_tokens, streams, runs: Vec<ShapeRun>| {
            TableRow::of(Shape { prompt_tokens, streams }, &runs, &bandwidth, &model, 64)
        };
        TableReport {
            memory: MemorySpeed::of(&bandwidth, 1 << 30),
            rows: vec![row(968, 1, run(4_000.0, Some(500.0))), row(256, 16, run(3_000.0, None))],
            same: TableComparison { prompts: 14, ..TableComparison::default() },
            model,
            runs: 7,
            max_tokens: 64,
            ..TableReport::default()
        }
    }

    #[test]
    fn the_table_has_what_was_measured() {
        let text = report(true).text();
        let expected = [
            "PROMPT  AT ONCE  PP tok/s          (95 %)  TG tok/s            (95 %)  BOUND tok/s  SHARE            (95 %)",
            "968           1      4000  (4000 to 4000)     500.0  (500.0 to 500.0)       1000.0  0.500  (0.500 to 0.500)",
            "256          16      3000  (3000 to 3000)         -                 -            -      -                 -",
        ];
        assert_eq!(text.lines().take(3).collect::<Vec<_>>(), expected);
        for line in [
            "read bandwidth: 2.0 GB/s (2.0 to 2.0), 2 threads through 1.0 GiB\n",
            "SHARE may be above 1\n",
            "identity: first tokens of 14 prompts, for the first time and again: equal\n",
            "256 tokens x 16: in 7 of 7 runs the answers never came all at once\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let text = report(false).text();
        assert!(
            text.starts_with(
                "PROMPT  AT ONCE  PP tok/s          (95 %)  TG tok/s            (95 %)\n"
            ),
            "{text}"
        );
        assert!(!text.contains("bandwidth"), "{text}");
    }

    #[test]
    fn llama_bench_gets_the_speeds_of_one_stream() {
        let tests = report(false).llama_tests();
        let test = LlamaTest { lane: "absent", ..LlamaTest::default() };
        let pp = LlamaTest { n_prompt: 968, samples_ts: vec![4_000.0; 7], ..test.clone() };
        let tg = LlamaTest { n_gen: 63, n_depth: 968, samples_ts: vec![500.0; 7], ..test };
        assert_eq!(tests, [pp, tg]);
        let csv = csv(&report(true).sheets(), &[]);
        assert!(
            csv.contains("\ntables,968,1,4000,4000,4000,500,500,500,1000,1000,1000,0.5,0.5,0.5\n"),
            "{csv}"
        );
        assert!(csv.ends_with("tables,256,16,3000,3000,3000,,,,,,,,,\n"), "{csv}");
    }

    #[test]
    fn invalid_figures_fail_the_command() {
        assert_eq!(report(true).failures(), Vec::<String>::new());
        let cached = TableReport { cached: 64, ..report(true) };
        assert!(cached.failures()[0].contains("found 64 tokens"), "{:?}", cached.failures());
        let shape = Shape { prompt_tokens: 968, streams: 1 };
        let difference =
            Difference { position: 0, plain_id: Some(3), other_id: Some(4), margin: Some(0.5) };
        let same = TableComparison {
            prompts: 14,
            bound: 0.125,
            near_ties: 1,
            differences: vec![Different { shape, difference }],
        };
        let different = TableReport { same, ..report(true) };
        assert!(
            different.failures()[0].contains("expected id 3")
                && different.failures()[0].contains("found id 4")
        );
        assert!(
            different.text().contains("1 near-ties (margin below 0.125), 1 DIFFERENT"),
            "{}",
            different.text()
        );
    }

    #[test]
    fn the_object_has_everything() {
        let object = serde_json::to_value(report(true)).expect("plain");
        assert_eq!(
            (&object["rows"][0]["prompt_tokens"], &object["rows"][1]["streams"]),
            (&968.into(), &16.into())
        );
        assert_eq!(object["rows"][0]["pp_tok_s"]["values"].as_array().map(Vec::len), Some(7));
        assert_eq!(object["rows"][0]["bound"]["share"]["median"], 0.5);
        assert_eq!(
            (&object["rows"][1]["tg_tok_s"], &object["rows"][1]["apart"]),
            (&serde_json::Value::Null, &7.into())
        );
        assert_eq!(
            (&object["memory"]["threads"], &object["memory"]["bytes_s"]["median"]),
            (&2.into(), &2e9.into())
        );
    }
}
