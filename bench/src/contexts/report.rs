//! The report of contexts: a table with explanations.

use paceline_client::own_service::report::Report;
use serde::Serialize;

use super::row::{ContextLane, ContextRow};
use crate::output::llama_bench::LlamaTest;
use crate::output::sheet::{Column, Sheet, Value};
use crate::report::BenchReport;
use crate::requests::RequestFigures;
use crate::same::Counts;

/// Figures of each length in each mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContextReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer after the first one.
    pub answer_tokens: usize,
    /// A row for each length.
    pub rows: Vec<ContextRow>,
    /// Lengths that were not measured.
    pub left_out: Option<LeftOut>,
    /// Whether all modes gave the same answers.
    pub same: Counts,
}

/// Lengths that were not measured, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// Tokens of the prompts.
    pub prompt_tokens: Vec<usize>,
    /// Why these prompts were not measured, as a sentence.
    pub why: String,
}

impl LeftOut {
    /// Prompts that do not fit into the context, if there are any.
    pub fn of_context(lengths: &[usize], answer_tokens: usize, context: usize) -> Option<Self> {
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

impl Report for ContextReport {
    fn failures(&self) -> Vec<String> {
        let first = self.same.judged.differences.first();
        first.map(|place| format!("answers differ: {place}")).into_iter().collect()
    }

    fn text(&self) -> String {
        let (runs, tokens) = (self.runs, self.answer_tokens);
        let mut text: String = self.sheets().iter().map(Sheet::text).collect();
        text.push_str(&format!(
            "\nTTFT: from submission to the first token, at the client. PP: tokens of the prompt over TTFT. TG: {tokens} tokens after the first one\n\
             over their time, at the end of the prompt. OVER ABSENT: TG over that without a drafter, within each run. PEAK: the most that\n\
             both workers held until this length had been measured once, shorter ones before. One request alone; a made text, new to\n\
             the service, the same in all modes; no prefix cache. Medians of {runs} runs, in brackets the 95 % interval\n"
        ));
        if let Some(left_out) = &self.left_out {
            text.push_str(&left_out.line());
        }
        text.push_str(&self.same.text());
        text
    }
}

impl BenchReport for ContextReport {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheet = Sheet::new(
            "contexts",
            [
                Column::plain("prompt_tokens", "CONTEXT"),
                Column::plain("lane", "LANE"),
                Column::estimate("ttft_ms", "TTFT ms", 0),
                Column::estimate("pp_tok_s", "PP tok/s", 0),
                Column::estimate("tg_tok_s", "TG tok/s", 1),
                Column::estimate("e2e_ms", "E2E ms", 0),
                Column::estimate("over_absent", "OVER ABSENT", 2),
                Column::number("tokens_per_cycle", "TOKENS/CYCLE", 2),
                Column::plain("peak_bytes", "PEAK"),
            ],
        );
        for ContextRow { prompt_tokens, lanes, peak_bytes } in &self.rows {
            for lane in lanes {
                let RequestFigures { ttft_ms, prompt_tok_s, decode_tok_s, e2e_ms, .. } =
                    &lane.requests;
                let per_cycle = (lane.cycles > 0)
                    .then(|| (lane.accepted + lane.cycles) as f64 / lane.cycles as f64);
                sheet.row([
                    (*prompt_tokens).into(),
                    lane.mode.word().into(),
                    ttft_ms.as_ref().into(),
                    prompt_tok_s.as_ref().into(),
                    decode_tok_s.as_ref().into(),
                    e2e_ms.as_ref().into(),
                    lane.over_absent.as_ref().into(),
                    Value::Number(per_cycle),
                    Value::Bytes(*peak_bytes),
                ]);
            }
        }
        vec![sheet]
    }

    fn llama_tests(&self) -> Vec<LlamaTest> {
        let lanes =
            self.rows.iter().flat_map(|row| row.lanes.iter().map(|lane| (row.prompt_tokens, lane)));
        let tests = |(tokens, lane): (usize, &ContextLane)| {
            let RequestFigures { prompt_tok_s, decode_tok_s, .. } = &lane.requests;
            let generated = (self.answer_tokens, decode_tok_s);
            LlamaTest::of_context(lane.mode.word(), (tokens, prompt_tok_s), generated)
        };
        lanes.flat_map(tests).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::ContextRun;
    use super::*;
    use crate::mode::Mode;
    use crate::output::sheet::csv;
    use crate::requests::RequestTimes;

    fn report() -> ContextReport {
        let run = |decode_ms: f64, cycles| {
            let times = RequestTimes {
                ttft_ms: 500.0,
                e2e_ms: 500.0 + decode_ms,
                tokens: 129,
                prompt_tokens: 1_024,
                cached_tokens: 0,
            };
            ContextRun { times, cycles, drafted: 15 * cycles, accepted: 3 * cycles }
        };
        let measured = [(Mode::Absent, vec![run(640.0, 0)]), (Mode::Routed, vec![run(320.0, 10)])];
        ContextReport {
            runs: 1,
            answer_tokens: 128,
            rows: vec![ContextRow::of(1_024, &measured, Some(5 << 20))],
            left_out: LeftOut::of_context(&[8_192, 16_384], 128, 4_096),
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
