//! The flags of `paceline bench`.

use std::path::PathBuf;

use clap::{ArgGroup, Parser};
use paceline_client::Failure;
use paceline_client::args::ConfigArg;
use paceline_client::own_service::settings::Settings;

use crate::output::ReportForm;

/// Tokens of each answer, if no others are named.
pub const ANSWER_TOKENS: u32 = 64;

/// Meaning of the columns, after the help.
const COLUMNS: &str = "\
Columns of requests, all measured at the client:
  TTFT ms           from submission of a request to its first token, waiting included
  TPOT ms           from the first token to the last, over the tokens after the first
  PROMPT tok/s      tokens of the prompt that no cache had, over TTFT
  DECODE tok/s      1000 over TPOT: the speed of one stream
  E2E ms            from submission of a request to its last token
  THROUGHPUT tok/s  tokens of all streams, from the first submission to the end of the last answer
  SPEED-UP          throughput over that of one stream of the same kind and lane, within each run
  peak memory       the most that each worker held since its start: resident memory on Linux, where
                    memory of a GPU does not count; the footprint on macOS
A run measures everything once, lanes in turn. Figures are medians of the runs, with their 95 %
intervals from 6 runs on. All requests are greedy and generate exactly the tokens that were asked for.

Examples:
  paceline bench --contexts --output llama-bench > result.json
  paceline bench --prompts mine.jsonl --concurrency 1,4 --runs 7
  paceline bench --clean --session --output markdown";

/// Measure how fast the lanes are, the target alone, and what the machine allows
#[derive(Debug, Default, Parser)]
#[command(name = "paceline bench", bin_name = "paceline bench", max_term_width = 110)]
#[command(after_long_help = COLUMNS)]
#[command(group(ArgGroup::new("of_lengths").args(["tables", "roofline", "clean", "session"]).multiple(true)))]
pub struct BenchArgs {
    /// Every kind at 1, 2, 4, 8 and 16 requests at once, without a drafter, with it forced, and as
    /// routed, with the verdict whether routed is slower than the better of the other two (exit code
    /// 1)
    #[arg(long)]
    pub sweep: bool,
    /// Directory of the programs of another build: each measurement is made with both, in turn, and
    /// the speed of this build over the other's is printed too
    #[arg(long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["contexts", "clean", "session", "burst", "tables", "roofline", "images"])]
    pub against: Option<PathBuf>,
    /// Prompts of these numbers of tokens, and the answers after them, without a drafter, with it
    /// forced, and as routed; without numbers 1024 to 32768, as far as the model's context goes
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', num_args = 0..=1)]
    #[arg(default_missing_value = "1024,2048,4096,8192,16384,32768")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(conflicts_with_all = ["sweep", "kinds", "prompts", "concurrency"])]
    pub contexts: Vec<u32>,
    /// A conversation in two turns and a short prompt after it, as routed; each prompt is new to
    /// the prefix cache. With --session both, compared within each run
    #[arg(long, conflicts_with_all = ["sweep", "contexts", "kinds", "prompts", "concurrency"])]
    pub clean: bool,
    /// The same; the second turn finds its conversation in the prefix cache
    #[arg(long, conflicts_with_all = ["sweep", "contexts", "kinds", "prompts", "concurrency"])]
    pub session: bool,
    /// One stream, a burst of this many requests at once, then one stream again: how soon and how
    /// completely its speed is back; without numbers 8
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', num_args = 0..=1)]
    #[arg(default_missing_value = "8", value_parser = clap::value_parser!(u32).range(2..=64))]
    #[arg(conflicts_with_all = ["sweep", "contexts", "clean", "session", "kinds", "prompts", "concurrency"])]
    pub burst: Vec<u32>,
    /// Speed of the target alone: prompt processing (PP) and generation (TG) by length of the
    /// prompt and by requests at once
    #[arg(long, conflicts_with_all = ["sweep", "contexts", "clean", "session", "burst", "kinds", "prompts", "drafter"])]
    pub tables: bool,
    /// Memory bandwidth of this machine and the share of it that one stream reaches: read bandwidth
    /// over the bytes a token reads
    #[arg(long, conflicts_with_all = ["sweep", "contexts", "clean", "session", "burst", "kinds", "prompts", "drafter"])]
    pub roofline: bool,
    /// Tokens of the prompts of --tables and --roofline, as 64,1024; without it 64, 256, 1024 and
    /// so on up to the context. Of the long prompts of --clean and --session; without it 2048, or
    /// half of a smaller context
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', requires = "of_lengths")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub lengths: Vec<u32>,
    /// Images: time to the first token by stage (decode, resize, tower, prefill), and what two
    /// requests with images do to the gaps of four streams of text; needs a model with a vision
    /// tower
    #[arg(long)]
    #[arg(conflicts_with_all = ["sweep", "contexts", "clean", "session", "burst", "tables", "roofline", "kinds"])]
    #[arg(conflicts_with_all = ["prompts", "lengths", "concurrency", "max_tokens", "drafter"])]
    pub images: bool,
    /// Runs, each of which measures everything once, of a sweep in both orders; an interval and a
    /// verdict need 6. Without it 3 for lanes, --contexts, --clean, --session and --burst, else 7
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: Option<u32>,
    /// Kinds of prompts, as json,prose; without it json, arithmetic, code, table, facts and prose.
    /// Two more by name: long (6000 tokens, or what the context allows) and chinese
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Prompts of your own instead: {"prompt": "..."} or {"messages": [...]} in each line, with a
    /// "kind" where kinds are measured apart; at most 1000. All of them are sent
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "kinds")]
    pub prompts: Option<PathBuf>,
    /// Requests at once, as 1,4; without it 1,2,4,8,16 for a sweep and for tables, else 1
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    pub concurrency: Vec<u32>,
    /// Tokens of each answer; of kinds of prompts their mean, as answers differ by up to a quarter
    /// there. Without it 128 for --sweep, --contexts and --burst, else 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4_096))]
    pub max_tokens: Option<u32>,
    /// The target, a directory or a name; without it target.model of the configuration
    #[arg(long, value_name = "DIR|NAME")]
    pub model: Option<String>,
    /// The drafter, a directory, a name, lookup or target; without it drafter.model
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub drafter: Option<String>,
    /// Form of the report
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    pub output: ReportForm,
    /// Print one JSON object with all figures: --output json
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

impl BenchArgs {
    /// Settings of the service, with this drafter if one is named.
    ///
    /// # Errors
    /// The configuration cannot be used, or a directory that was named is none.
    pub fn settings(&self, drafter: Option<&str>) -> Result<Settings, Failure> {
        Settings::find(self.config.config.as_deref(), self.model.as_deref(), drafter)
    }

    /// The form of the report.
    pub fn output(&self) -> ReportForm {
        if self.json { ReportForm::Json } else { self.output }
    }

    /// Checks that the report has the form that is wanted.
    ///
    /// # Errors
    /// It has not.
    pub fn check(&self) -> Result<(), Failure> {
        let speeds = self.tables || self.roofline || !self.contexts.is_empty();
        if self.output() == ReportForm::LlamaBench && !speeds {
            return Err(Failure::usage(
                "--output llama-bench: expected --contexts or --tables, whose prompts have fixed lengths; other reports have \
                 --output json",
            ));
        }
        Ok(())
    }

    /// Requests at once, ascending.
    pub fn streams(&self, default: &[usize]) -> Vec<usize> {
        if self.concurrency.is_empty() { default.to_vec() } else { ascending(&self.concurrency) }
    }
}

/// Numbers of a flag, each once.
pub fn ascending(numbers: &[u32]) -> Vec<usize> {
    let mut numbers: Vec<usize> = numbers.iter().map(|number| *number as usize).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        BenchArgs::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_flags_pass_claps_own_checks() {
        BenchArgs::command().debug_assert();
    }

    #[test]
    fn every_form_of_the_contract_is_parsed() {
        for line in [
            "bench",
            "bench --sweep --runs 7 --kinds json,prose --concurrency 1,16 --max-tokens 64 --json",
            "bench --model D --drafter D --config F",
            "bench --tables --lengths 64,1024 --concurrency 1,4 --max-tokens 32 --runs 7 --json",
            "bench --roofline --tables --model D --config F",
            "bench --images --runs 7 --model D --json",
            "bench --contexts --drafter D --output llama-bench",
            "bench --contexts 1024,2048 --max-tokens 32 --runs 7",
            "bench --prompts F --sweep --concurrency 1,4 --output csv",
            "bench --clean --session --lengths 512 --drafter D --output markdown",
            "bench --burst --runs 7",
            "bench --burst 4,16 --max-tokens 64 --output json",
            "bench --kinds long,chinese",
            "bench --sweep --against D",
        ] {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
        }
    }

    #[test]
    fn contradicting_flags_are_refused() {
        for line in [
            "bench fast",
            "bench --runs 0",
            "bench --concurrency 0",
            "bench --concurrency 33",
            "bench --max-tokens 1",
            "bench --tables --sweep",
            "bench --images --tables",
            "bench --images --max-tokens 4",
            "bench --tables --kinds json",
            "bench --roofline --drafter D",
            "bench --tables --lengths 0",
            "bench --sweep --lengths 64",
            "bench --lengths 64",
            "bench --contexts 0",
            "bench --contexts --sweep",
            "bench --contexts --tables",
            "bench --contexts --concurrency 2",
            "bench --clean --contexts",
            "bench --burst 1",
            "bench --burst --session",
            "bench --burst --images",
            "bench --prompts F --kinds json",
            "bench --prompts F --tables",
            "bench --output xml",
            "bench --json --output csv",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn numbers_may_be_left_out_and_json_is_a_form() {
        let args = parse("bench --contexts --output csv").expect("valid");
        assert_eq!(args.contexts, [1_024, 2_048, 4_096, 8_192, 16_384, 32_768]);
        assert_eq!((args.output(), args.burst.len()), (ReportForm::Csv, 0));
        assert_eq!(parse("bench --contexts 64,128").expect("valid").contexts, [64, 128]);
        assert_eq!(parse("bench --burst").expect("valid").burst, [8]);
        assert_eq!(parse("bench --json").expect("valid").output(), ReportForm::Json);
        assert_eq!(parse("bench").expect("valid").output(), ReportForm::Text);
    }

    #[test]
    fn llama_bench_has_no_form_for_prompts_of_any_length() {
        let check = |line| parse(line).expect("valid").check();
        assert_eq!(check("bench --contexts --output llama-bench"), Ok(()));
        assert_eq!(check("bench --tables --output llama-bench"), Ok(()));
        let failure = check("bench --output llama-bench").expect_err("kinds of prompts");
        assert!(failure.message.contains("--contexts or --tables"), "{failure}");
    }

    #[test]
    fn the_help_is_that_of_the_command() {
        let help = parse("bench --help").expect_err("a help").to_string();
        let head = "Measure how fast the lanes are, the target alone, and what the machine allows\n\n\
                    Usage: paceline bench [OPTIONS]\n\nOptions:\n      --sweep\n";
        assert!(help.starts_with(head), "{help}");
    }
}
