//! Figures of each length over all runs, and their report: a table with explanations. Pure.

use serde::Serialize;

use crate::load::Sent;
use crate::mode::Mode;
use crate::output::llama_bench::LlamaTest;
use crate::output::sheet::{CellValue, Sheet};
use crate::report::BenchReport;
use crate::requests::{RequestStatistics, RequestTimes, tokens_per_cycle};
use crate::same::Counts;
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
    pub fn of(sent: &Sent) -> Option<Self> {
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
    pub requests: RequestStatistics,
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
pub struct LengthRow {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The figures of each mode.
    pub lanes: Vec<ContextLane>,
    /// The most memory that both workers held until this length had been measured once in each
    /// mode, shorter lengths before.
    pub peak_bytes: Option<u64>,
}

impl LengthRow {
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
        requests: RequestStatistics::of(runs.iter().map(|run| std::slice::from_ref(&run.times))),
        over_absent: Figure::of(ratios.filter(|_| mode != Mode::Absent)),
        cycles: sum(|run| run.cycles),
        drafted: sum(|run| run.drafted),
        accepted: sum(|run| run.accepted),
    }
}

/// Figures of each length in each mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContextReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer after the first one.
    pub answer_tokens: usize,
    /// A row for each length.
    pub rows: Vec<LengthRow>,
    /// Lengths that were not measured.
    pub left_out: Option<LongerPrompts>,
    /// Whether all modes gave the same answers.
    pub same: Counts,
}

/// Lengths that were not measured, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LongerPrompts {
    /// Tokens of the prompts.
    pub prompt_tokens: Vec<usize>,
    /// Why these prompts were not measured, as a sentence.
    pub why: String,
}

impl LongerPrompts {
    /// Prompts that do not fit into the context, if there are any.
    pub fn than_context(lengths: &[usize], answer_tokens: usize, context: usize) -> Option<Self> {
        let why = format!(
            "with {answer_tokens} tokens of the answer they exceed the model's context of {context}"
        );
        (!lengths.is_empty()).then(|| Self { prompt_tokens: lengths.to_vec(), why })
    }

    fn line(&self) -> String {
        let lengths: Vec<String> = self.prompt_tokens.iter().map(usize::to_string).collect();
        format!("prompts of {} tokens: not measured: {}\n", lengths.join(", "), self.why)
    }
}

impl BenchReport for ContextReport {
    fn sheets(&self) -> Vec<Sheet> {
        let lanes: Vec<(&LengthRow, &ContextLane)> = self.lanes().collect();
        let sheet = Sheet::of("contexts", &lanes)
            .plain("prompt_tokens", "CONTEXT", |(row, _)| row.prompt_tokens)
            .plain("lane", "LANE", |(_, lane)| lane.mode.word())
            .number("ttft_ms", "TTFT ms", 0, |(_, lane)| lane.requests.ttft_ms.as_ref())
            .number("pp_tok_s", "PP tok/s", 0, |(_, lane)| lane.requests.prompt_tok_s.as_ref())
            .number("tg_tok_s", "TG tok/s", 1, |(_, lane)| lane.requests.decode_tok_s.as_ref())
            .number("e2e_ms", "E2E ms", 0, |(_, lane)| lane.requests.e2e_ms.as_ref())
            .number("over_absent", "OVER ABSENT", 2, |(_, lane)| lane.over_absent.as_ref())
            .number("tokens_per_cycle", "TOKENS/CYCLE", 2, |(_, lane)| {
                tokens_per_cycle(lane.accepted, lane.cycles)
            })
            .number("peak_bytes", "PEAK", 0, |(row, _)| CellValue::Bytes(row.peak_bytes));
        vec![sheet.sheet()]
    }

    fn notes(&self) -> String {
        let (runs, tokens) = (self.runs, self.answer_tokens);
        let text = format!(
            "TTFT: from submission to the first token, at the client. PP: tokens of the prompt over TTFT. TG: {tokens} tokens after the first one\n\
             over their time, at the end of the prompt. OVER ABSENT: TG over that without a drafter, within each run. PEAK: the most that\n\
             both workers held until this length had been measured once, shorter ones before. One request alone; a made text, new to\n\
             the service, the same in all modes; no prefix cache. Medians of {runs} runs, in brackets the 95 % interval\n"
        );
        let left_out = self.left_out.as_ref().map_or(String::new(), LongerPrompts::line);
        text + &left_out + &self.same.text()
    }

    fn failures(&self) -> Vec<String> {
        self.same.failure().into_iter().collect()
    }

    fn llama_tests(&self) -> Vec<LlamaTest> {
        let tests = |(row, lane): (&LengthRow, &ContextLane)| {
            let RequestStatistics { prompt_tok_s, decode_tok_s, .. } = &lane.requests;
            let generated = (self.answer_tokens, decode_tok_s);
            LlamaTest::of_context(lane.mode.word(), (row.prompt_tokens, prompt_tok_s), generated)
        };
        self.lanes().flat_map(tests).collect()
    }
}

impl ContextReport {
    fn lanes(&self) -> impl Iterator<Item = (&LengthRow, &ContextLane)> {
        self.rows.iter().flat_map(|row| row.lanes.iter().map(move |lane| (row, lane)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::sheet::csv;

    fn run(decode_ms: f64, cycles: u64) -> ContextRun {
        let times = RequestTimes {
            ttft_ms: 500.0,
            e2e_ms: 500.0 + decode_ms,
            tokens: 129,
            prompt_tokens: 1_024,
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
        let row = LengthRow::of(1_024, &measured, Some(7));
        let [absent, routed] = &row.lanes[..] else { panic!("two modes") };
        // 1,024 tokens in half a second, and 128 after the first one.
        let values = |figure: &Option<Figure>| figure.clone().expect("measured").values;
        assert_eq!(values(&routed.requests.prompt_tok_s), [2_048.0, 2_048.0]);
        assert_eq!(values(&routed.requests.decode_tok_s), [400.0, 200.0]);
        assert_eq!(values(&routed.over_absent), [2.0, 2.0]);
        assert_eq!(absent.over_absent, None);
        assert_eq!((routed.cycles, routed.drafted, routed.accepted), (22, 330, 66));
    }

    fn report() -> ContextReport {
        let measured = [(Mode::Absent, vec![run(640.0, 0)]), (Mode::Routed, vec![run(320.0, 10)])];
        ContextReport {
            runs: 1,
            answer_tokens: 128,
            rows: vec![LengthRow::of(1_024, &measured, Some(5 << 20))],
            left_out: LongerPrompts::than_context(&[8_192, 16_384], 128, 4_096),
            same: Counts { answers: 1, tokens: 129, ..Counts::default() },
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_mode_and_ends_with_the_context() {
        let text = report().text();
        let expected = "\
CONTEXT    LANE  TTFT ms  PP tok/s  TG tok/s  E2E ms  OVER ABSENT  TOKENS/CYCLE     PEAK
1024     absent      500      2048     200.0    1140            -             -  5.0 MiB
1024     routed      500      2048     400.0     820         2.00          4.00  5.0 MiB
";
        assert!(text.starts_with(expected), "{text}");
        let why = "prompts of 8192, 16384 tokens: not measured: with 128 tokens of the answer they exceed the model's context of 4096\n";
        assert!(text.contains(why), "{text}");
        assert!(text.contains("identity: 1 answers, 129 tokens"), "{text}");
        let expected = "contexts,1024,routed,500,,,2048,,,400,,,820,,,2,,,4,5242880\n";
        assert!(csv(&report().sheets(), &[]).ends_with(expected));
    }

    #[test]
    fn llama_bench_gets_prefill_and_generation_of_each_mode() {
        let test = |lane| LlamaTest { lane, ..LlamaTest::default() };
        let pp = |lane| LlamaTest { n_prompt: 1_024, samples_ts: vec![2_048.0], ..test(lane) };
        let tg = |lane, speed| LlamaTest {
            n_gen: 128,
            n_depth: 1_024,
            samples_ts: vec![speed],
            ..test(lane)
        };
        let expected = [pp("absent"), tg("absent", 200.0), pp("routed"), tg("routed", 400.0)];
        assert_eq!(report().llama_tests(), expected);
    }
}
