//! Parts of the answers of all protocols: the model that answered, the tokens of a request, and the
//! extension that no other service has.

use std::collections::BTreeMap;

use paceline_text::stream::{AnswerEnd, Timing, Usage};
use paceline_vocabulary::Route;
use paceline_vocabulary::generation::Speculation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::protocol::DecodeContext;

/// Fields that every chunk of an answer repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The request's id, without the prefix of its kind.
    pub request_id: String,
    /// When the request came, in seconds since 1970.
    pub created: i64,
    /// Name of the served model.
    pub model: String,
}

impl Head {
    /// Of the answers to this request.
    pub(crate) fn of(context: &DecodeContext<'_>) -> Self {
        Self {
            request_id: context.request_id.to_owned(),
            created: context.created,
            model: context.served.to_owned(),
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of all its answers.
    pub completion_tokens: u64,
    /// The sum.
    pub total_tokens: u64,
    /// More about the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
    /// More about the answers.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// More about the tokens of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens that came from the prefix cache.
    pub cached_tokens: u64,
}

/// More about the tokens of all answers to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: u64,
}

/// Report of this service, for which the protocol has no field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnswerExtension {
    /// The lane that served the first answer, and why.
    pub route: Option<RouteReport>,
    /// Drafts and their outcome, in all answers.
    pub speculation: SpeculationReport,
    /// Times of the answer that took longest.
    pub timing: TimingReport,
    /// The seed that makes the same answers again.
    pub seed: u64,
    /// How often the answers went on after a process of the service had ended. Absent: never.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u32,
    /// Texts of the answer that looked like a tool call and are none, or that tool calls are not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<AnswerWarning>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The lane of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouteReport {
    /// `plain` or `speculative`.
    pub lane: String,
    /// Why.
    pub reason: String,
}

/// Drafts and their outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpeculationReport {
    /// Rounds of drafting and verifying.
    pub cycles: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
}

/// Times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TimingReport {
    /// In the queue.
    pub queue_ms: f64,
    /// From the request's arrival to the first token.
    pub ttft_ms: f64,
    /// From the request's arrival to the end.
    pub total_ms: f64,
    /// Decoding of images.
    pub image_decode_ms: f64,
    /// Resizing and writing of images.
    pub image_resize_ms: f64,
    /// The vision tower.
    pub tower_ms: f64,
    /// The prefill.
    pub prefill_ms: f64,
}

/// A text of an answer that looked like a tool call and is none, or that tool calls are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnswerWarning {
    /// The answer that has the text.
    pub index: u32,
    /// The expected form, and the text that was found.
    pub message: String,
}

/// Sums the ends of a request's answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Answers that ended.
    pub(crate) ended: u32,
    /// Answers of each prompt; 0: all answers have one prompt.
    of_prompt: u32,
    /// The tokens of each prompt that has an answer, by the prompt's index.
    prompts: BTreeMap<u32, PromptTokens>,
    usage: CompletionUsage,
    extension: AnswerExtension,
}

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PromptTokens {
    all: u64,
    cached: u64,
}

impl Totals {
    /// Of a request with several prompts, each with this number of answers.
    pub(crate) fn of_prompts(answers: u32) -> Self {
        Self { of_prompt: answers, ..Default::default() }
    }

    /// One of the answers ended.
    pub(crate) fn add(&mut self, index: u32, end: &AnswerEnd) {
        let AnswerEnd { usage, route, speculation, timing, seed, resumed, .. } = end;
        self.ended += 1;
        let Usage { prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens } = *usage;
        let sums = &mut self.usage;
        let prompt =
            self.prompts.entry(index.checked_div(self.of_prompt).unwrap_or(0)).or_default();
        prompt.all = prompt.all.max(prompt_tokens.into());
        prompt.cached = prompt.cached.max(cached_tokens.into());
        sums.prompt_tokens = self.prompts.values().map(|prompt| prompt.all).sum();
        sums.completion_tokens += u64::from(completion_tokens);
        sums.total_tokens = sums.prompt_tokens + sums.completion_tokens;
        let details = &mut sums.prompt_tokens_details;
        details.cached_tokens = self.prompts.values().map(|prompt| prompt.cached).sum();
        sums.completion_tokens_details.reasoning_tokens += u64::from(reasoning_tokens);
        let extension = &mut self.extension;
        if index == 0 {
            extension.route = route.map(|Route { lane, reason }| RouteReport {
                lane: lane.word().to_owned(),
                reason: reason.word().to_owned(),
            });
        }
        let Speculation { cycles, drafted, accepted } = *speculation;
        extension.speculation.cycles += cycles;
        extension.speculation.drafted += drafted;
        extension.speculation.accepted += accepted;
        extension.timing.longest(*timing);
        extension.seed = *seed;
        extension.resumed = extension.resumed.saturating_add(*resumed);
    }

    /// A sentence for the client: a text of an answer looked like a tool call and is none, or tool
    /// calls are not read.
    pub(crate) fn warn(&mut self, index: u32, message: String) {
        self.extension.warnings.push(AnswerWarning { index, message });
    }

    /// Tokens of the answers that ended.
    pub(crate) fn usage(&self) -> CompletionUsage {
        self.usage.clone()
    }

    /// The rest of what is known of them.
    pub(crate) fn extension(&self) -> AnswerExtension {
        self.extension.clone()
    }
}

impl TimingReport {
    /// Takes the longer time of each kind.
    fn longest(&mut self, timing: Timing) {
        *self = Self {
            queue_ms: self.queue_ms.max(timing.queue_ms),
            ttft_ms: self.ttft_ms.max(timing.ttft_ms),
            total_ms: self.total_ms.max(timing.total_ms),
            image_decode_ms: self.image_decode_ms.max(timing.image_decode_ms),
            image_resize_ms: self.image_resize_ms.max(timing.image_resize_ms),
            tower_ms: self.tower_ms.max(timing.tower_ms),
            prefill_ms: self.prefill_ms.max(timing.prefill_ms),
        };
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::{Lane, RouteReason};

    use super::*;

    #[test]
    fn several_answers_have_one_prompt_and_the_sum_of_their_tokens() {
        let route = |reason| Some(Route { lane: Lane::Speculative, reason });
        let end = |completion_tokens, cached_tokens, reason, total_ms| AnswerEnd {
            usage: Usage {
                prompt_tokens: 10,
                completion_tokens,
                reasoning_tokens: completion_tokens - 1,
                cached_tokens,
            },
            route: route(reason),
            speculation: Speculation { cycles: 2, drafted: 8, accepted: 5 },
            timing: Timing { total_ms, ..Default::default() },
            seed: 7,
            ..Default::default()
        };
        let mut totals = Totals::default();
        totals.add(1, &end(3, 8, RouteReason::Probe, 9.0));
        totals.add(0, &end(4, 4, RouteReason::Benefit, 5.0));
        let usage = totals.usage();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (10, 7, 17));
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 8);
        assert_eq!(usage.completion_tokens_details.reasoning_tokens, 2 + 3);
        let AnswerExtension { route, speculation, timing, seed, resumed: _, warnings } =
            totals.extension();
        let route = route.expect("reported");
        assert_eq!((route.lane.as_str(), route.reason.as_str()), ("speculative", "benefit"));
        assert_eq!((speculation.drafted, speculation.accepted), (16, 10));
        assert_eq!((timing.total_ms, seed, warnings.len()), (9.0, 7, 0));
    }

    #[test]
    fn the_tokens_of_several_prompts_are_summed() {
        let end = |prompt_tokens| AnswerEnd {
            usage: Usage {
                prompt_tokens,
                completion_tokens: 3,
                cached_tokens: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut totals = Totals::of_prompts(2);
        for (index, prompt_tokens) in [(3, 7), (0, 10), (1, 10), (2, 7)] {
            totals.add(index, &end(prompt_tokens));
        }
        let usage = totals.usage();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            (17, 12, 29)
        );
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 2);
    }
}
