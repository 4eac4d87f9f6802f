//! Lengths of prompts that are measured, and those that do not fit. Pure.

use paceline_client::Failure;
use paceline_client::own_service::settings::Settings;

use crate::args::{BenchArgs, ascending};
use crate::mode::Mode;

/// Tokens of an answer: those of llama-bench (tg128).
const ANSWER_TOKENS: u32 = 128;

/// Plan of a sweep of contexts.
#[derive(Clone, Debug)]
pub struct ContextPlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer whose generation is timed. The first one of the answer is not: prefill
    /// makes it.
    pub answer_tokens: usize,
    lengths: Vec<usize>,
}

/// Lengths of a plan in a model's context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// Lengths that are measured, ascending.
    pub measured: Vec<usize>,
    /// Lengths that are left out, because the model's context is shorter.
    pub too_long: Vec<usize>,
}

impl ContextPlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory does not exist.
    pub fn from_args(args: &BenchArgs) -> Result<Self, Failure> {
        let mut settings = args.settings(args.drafter.as_deref())?;
        // All modes of a run have the same prompt; with the cache only the first would prefill it.
        settings.config.kv.prefix_cache = false;
        Ok(Self {
            settings,
            runs: args.runs(3),
            answer_tokens: args.max_tokens.unwrap_or(ANSWER_TOKENS) as usize,
            lengths: ascending(&args.contexts),
        })
    }

    /// The modes that are compared.
    pub fn modes(drafter: bool) -> &'static [Mode] {
        match drafter {
            true => &[Mode::Absent, Mode::Forced, Mode::Routed],
            false => &[Mode::Absent],
        }
    }

    /// The lengths in a context of this number of positions.
    pub fn lengths(&self, context: usize) -> Lengths {
        let most = context.saturating_sub(self.answer_tokens + 1);
        let (measured, too_long) = self.lengths.iter().partition(|length| **length <= most);
        Lengths { measured, too_long }
    }
}

/// Work of a measurement, in tokens that are prefilled. A token that is generated takes about as
/// long as this many of a prompt.
pub fn work(length: usize, answer_tokens: usize) -> f64 {
    const GENERATED: usize = 8;
    (length + GENERATED * answer_tokens) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_end_where_prompt_and_answer_fill_the_context() {
        let plan = ContextPlan {
            settings: Settings::default(),
            runs: 3,
            answer_tokens: 128,
            lengths: vec![1_024, 3_967, 3_968, 8_192],
        };
        let found = plan.lengths(4_096);
        assert_eq!(found.measured, [1_024, 3_967]);
        assert_eq!(found.too_long, [3_968, 8_192]);
        assert_eq!(plan.lengths(100).measured, Vec::<usize>::new());
    }

    #[test]
    fn without_a_drafter_there_is_one_lane() {
        assert_eq!(ContextPlan::modes(false), [Mode::Absent]);
        assert_eq!(ContextPlan::modes(true).len(), 3);
    }

    #[test]
    fn longer_prompts_are_more_work() {
        assert_eq!((work(1_024, 128), work(4_096, 128)), (2_048.0, 5_120.0));
    }
}
