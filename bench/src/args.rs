//! The flags of `paceline bench`.

use clap::Parser;
use paceline_client::Failure;
use paceline_client::args::ConfigArg;
use paceline_client::own_service::settings::Settings;

/// Tokens of each answer, if no others are named.
pub const ANSWER_TOKENS: u32 = 64;

/// Measure how fast the lanes are, the target alone, and what the machine allows
#[derive(Debug, Default, Parser)]
#[command(name = "paceline bench", bin_name = "paceline bench", max_term_width = 110)]
pub struct BenchArgs {
    /// Every kind at 1, 2, 4, 8 and 16 requests at once, without a drafter, with it forced, and as
    /// routed; exit code 1 if routed is slower than the better of the other two
    #[arg(long)]
    pub sweep: bool,
    /// Speed of the target alone: prompt processing (PP) and generation (TG) by length of the
    /// prompt and by requests at once
    #[arg(long, conflicts_with_all = ["sweep", "kinds", "drafter"])]
    pub tables: bool,
    /// Memory bandwidth of this machine and the share of it that one stream reaches: read bandwidth
    /// over the bytes a token reads
    #[arg(long, conflicts_with_all = ["sweep", "kinds", "drafter"])]
    pub roofline: bool,
    /// Tokens of the prompts of --tables and --roofline, as 64,1024; without it 64, 256, 1024 and
    /// so on up to the context
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', conflicts_with_all = ["sweep", "kinds", "drafter"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub lengths: Vec<u32>,
    /// Images: time to the first token by stage (decode, resize, tower, prefill), and what two
    /// requests with images do to the gaps of four streams of text; needs a model with a vision
    /// tower
    #[arg(long, conflicts_with_all = ["sweep", "tables", "roofline", "lengths", "kinds", "concurrency", "max_tokens", "drafter"])]
    pub images: bool,
    /// Runs, each of which measures everything once, of a sweep there and back; an interval and a
    /// verdict need 6. Without it 3 for lanes, else 7
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: Option<u32>,
    /// Kinds of prompts, as json,prose; without it all
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Requests at once, as 1,4; without it 1,2,4,8,16 for a sweep and for tables, else 1
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    pub concurrency: Vec<u32>,
    /// Tokens of each answer; of kinds of prompts their mean, as answers differ by up to a quarter
    /// there. Without it 128 for a sweep, else 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4_096))]
    pub max_tokens: Option<u32>,
    /// The target, a directory or a name; without it target.model of the configuration
    #[arg(long, value_name = "DIR|NAME")]
    pub model: Option<String>,
    /// The drafter, a directory, a name, lookup or target; without it drafter.model
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub drafter: Option<String>,
    /// Print one JSON object with all figures
    #[arg(long)]
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

    /// Number of runs.
    pub fn runs(&self, default: usize) -> usize {
        self.runs.map_or(default, |runs| runs as usize)
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
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_help_is_that_of_the_command() {
        let help = parse("bench --help").expect_err("a help").to_string();
        let head = "Measure how fast the lanes are, the target alone, and what the machine allows\n\n\
                    Usage: paceline bench [OPTIONS]\n\nOptions:\n      --sweep\n";
        assert!(help.starts_with(head), "{help}");
    }
}
