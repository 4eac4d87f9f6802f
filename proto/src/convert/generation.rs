//! A request between our processes and its answer: `paceline_vocabulary::generation` as messages of
//! `generation.proto`, and back. Sampling parameters are converted by their one list.

use paceline_vocabulary::generation::{
    Done, Figures, FinishReason, Generation, Grammar, GrammarPart, PatchGrid, PromptImage,
    Speculation, TextForm, ThoughtBudget, TokenBatch, TokenLogprobs, TopLogprob,
};
use paceline_vocabulary::sampling::{LogitBias, SamplingRule, SamplingWish};
use paceline_vocabulary::{Route, RouteWish, with_sampling_parameters};

use super::{Missing, each, same_fields};
use crate::internal::v1 as internal;
use crate::v1;

/// The schema of any JSON object.
const ANY_OBJECT: &str = r#"{"type": "object"}"#;

macro_rules! convert_sampling {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $off:expr, $range:literal, $is_within:expr;)*) => {
        impl internal::SamplingRule {
            /// The most probable token, always.
            pub const GREEDY: Self =
                Self { $($name: SamplingRule::GREEDY.$name,)* logit_bias: Vec::new() };
        }

        /// Without biases.
        impl From<SamplingRule> for internal::SamplingRule {
            fn from(rule: SamplingRule) -> Self {
                Self { $($name: rule.$name,)* logit_bias: Vec::new() }
            }
        }

        /// Without biases. The numbers are not checked.
        impl From<&internal::SamplingRule> for SamplingRule {
            fn from(rule: &internal::SamplingRule) -> Self {
                Self { $($name: rule.$name,)* }
            }
        }

        /// Every number set, but for the seed, which is drawn.
        impl From<SamplingRule> for v1::Sampling {
            fn from(rule: SamplingRule) -> Self {
                Self { $($name: Some(rule.$name),)* seed: None, logit_bias: Vec::new() }
            }
        }

        /// The numbers of the rule alone.
        impl From<&v1::Sampling> for SamplingWish {
            fn from(sampling: &v1::Sampling) -> Self {
                Self { $($name: sampling.$name,)* }
            }
        }
    };
}
with_sampling_parameters!(convert_sampling);

same_fields! {
    v1::LogitBias = LogitBias { token_id, bias }
    v1::TopLogprob = TopLogprob { token_id, logprob }
    v1::Speculation = Speculation { cycles, drafted, accepted }
}

/// Converts a request in both directions. `$same` are the fields that have the same type on both
/// sides.
macro_rules! generation {
    ($($same:ident),*) => {
        impl From<Generation> for internal::Generation {
            fn from(generation: Generation) -> Self {
                let sampling = internal::SamplingRule {
                    logit_bias: each(generation.logit_bias),
                    ..generation.sampling.into()
                };
                let route = generation.route.map_or(v1::RouteWish::Unspecified, v1::RouteWish::from);
                Self {
                    sampling: Some(sampling),
                    route: route.into(),
                    images: each(generation.images),
                    grammar: generation.grammar.map(internal::Grammar::from),
                    thought: generation.thought.map(internal::ThoughtBudget::from),
                    $($same: generation.$same,)*
                }
            }
        }

        /// The numbers are not checked.
        impl TryFrom<internal::Generation> for Generation {
            type Error = Missing;

            /// # Errors
            /// The message has no sampling rule, or a part of its grammar has no content.
            fn try_from(generation: internal::Generation) -> Result<Self, Missing> {
                let rule = generation.sampling.ok_or(Missing { field: "sampling" })?;
                let route = v1::RouteWish::try_from(generation.route).unwrap_or_default();
                Ok(Self {
                    sampling: SamplingRule::from(&rule),
                    logit_bias: each(rule.logit_bias),
                    route: RouteWish::try_from(route).ok(),
                    images: each(generation.images),
                    grammar: generation.grammar.map(Grammar::try_from).transpose()?,
                    thought: generation.thought.map(ThoughtBudget::from),
                    $($same: generation.$same,)*
                })
            }
        }
    };
}
generation!(
    request_id,
    prompt_ids,
    continuation_ids,
    last_turn,
    seed,
    sample_index,
    max_tokens,
    stop_token_ids,
    ignored_token_ids,
    min_tokens,
    logprobs,
    deadline_ns,
    traffic_class,
    cache_scope,
    report_margins,
    report_so_far,
    tokenizer_vocab
);

impl From<ThoughtBudget> for internal::ThoughtBudget {
    fn from(ThoughtBudget { max_tokens, open_id, end, marks }: ThoughtBudget) -> Self {
        let end = end.into_iter().map(|ids| internal::ThoughtEndStep { ids }).collect();
        Self { max_tokens, open_id, end, marks }
    }
}

/// The numbers are not checked.
impl From<internal::ThoughtBudget> for ThoughtBudget {
    fn from(budget: internal::ThoughtBudget) -> Self {
        let internal::ThoughtBudget { max_tokens, open_id, end, marks } = budget;
        let end = end.into_iter().map(|step| step.ids).collect();
        Self { max_tokens, open_id, end, marks }
    }
}

impl From<Grammar> for internal::Grammar {
    fn from(Grammar { frame, parts, end_ids }: Grammar) -> Self {
        Self { frame, parts: each(parts), end_ids }
    }
}

impl TryFrom<internal::Grammar> for Grammar {
    type Error = Missing;

    fn try_from(grammar: internal::Grammar) -> Result<Self, Missing> {
        let internal::Grammar { frame, parts, end_ids } = grammar;
        let parts = parts.into_iter().map(GrammarPart::try_from).collect::<Result<_, _>>()?;
        Ok(Self { frame, parts, end_ids })
    }
}

impl From<GrammarPart> for internal::GrammarPart {
    fn from(GrammarPart { field, lenient, content }: GrammarPart) -> Self {
        use internal::grammar_part::Content;
        let content = match content {
            TextForm::JsonSchema(text) => Content::JsonSchema(text),
            TextForm::JsonObject => Content::JsonSchema(ANY_OBJECT.to_owned()),
            TextForm::Regex(text) => Content::Regex(text),
            TextForm::Lark(text) => Content::Lark(text),
        };
        Self { field, lenient, content: Some(content) }
    }
}

impl TryFrom<internal::GrammarPart> for GrammarPart {
    type Error = Missing;

    fn try_from(part: internal::GrammarPart) -> Result<Self, Missing> {
        use internal::grammar_part::Content;
        let internal::GrammarPart { field, lenient, content } = part;
        let content = match content.ok_or(Missing { field: "grammar.parts.content" })? {
            Content::JsonSchema(text) => TextForm::JsonSchema(text),
            Content::Regex(text) => TextForm::Regex(text),
            Content::Lark(text) => TextForm::Lark(text),
        };
        Ok(Self { field, lenient, content })
    }
}

impl From<PromptImage> for internal::Image {
    fn from(image: PromptImage) -> Self {
        let PromptImage { file, bytes, digest, start, grid, scale, bias } = image;
        let PatchGrid { rows, columns } = grid;
        Self { file, bytes, digest: digest.into(), first: start, rows, columns, scale, bias }
    }
}

impl From<internal::Image> for PromptImage {
    fn from(image: internal::Image) -> Self {
        let internal::Image { file, bytes, digest, first, rows, columns, scale, bias } = image;
        let grid = PatchGrid { rows, columns };
        Self { file, bytes, digest: digest.into(), start: first, grid, scale, bias }
    }
}

/// Without stamp.
impl From<TokenBatch> for internal::TokenBatch {
    fn from(batch: TokenBatch) -> Self {
        Self {
            stamp: None,
            first_index: batch.first_index,
            ids: batch.ids,
            margins: batch.margins,
            step_end_ns: batch.step_end_ns,
            done: batch.done.map(internal::Done::from),
            logprobs: each(batch.logprobs),
            so_far: batch
                .so_far
                .map(|figures| internal::Done::from(Done { finish_reason: None, figures })),
        }
    }
}

impl From<internal::TokenBatch> for TokenBatch {
    fn from(batch: internal::TokenBatch) -> Self {
        Self {
            first_index: batch.first_index,
            ids: batch.ids,
            margins: batch.margins,
            logprobs: each(batch.logprobs),
            step_end_ns: batch.step_end_ns,
            done: batch.done.map(Done::from),
            so_far: batch.so_far.map(|done| Done::from(done).figures),
        }
    }
}

impl From<TokenLogprobs> for v1::TokenLogprobs {
    fn from(TokenLogprobs { logprob, top }: TokenLogprobs) -> Self {
        Self { logprob, top: each(top) }
    }
}

impl From<v1::TokenLogprobs> for TokenLogprobs {
    fn from(v1::TokenLogprobs { logprob, top }: v1::TokenLogprobs) -> Self {
        Self { logprob, top: each(top) }
    }
}

impl From<Done> for internal::Done {
    fn from(Done { finish_reason, figures }: Done) -> Self {
        let finish_reason = match finish_reason {
            None => v1::FinishReason::Unspecified,
            Some(FinishReason::Stop) => v1::FinishReason::Stop,
            Some(FinishReason::Length) => v1::FinishReason::Length,
        };
        Self {
            finish_reason: finish_reason.into(),
            cached_tokens: figures.cached_tokens,
            route: figures.route.map(v1::Route::from),
            speculation: Some(figures.speculation.into()),
            queue_ms: figures.queue_ms,
            tower_ms: figures.tower_ms,
            prefill_ms: figures.prefill_ms,
        }
    }
}

impl From<internal::Done> for Done {
    fn from(done: internal::Done) -> Self {
        let finish_reason = match done.finish_reason() {
            v1::FinishReason::Unspecified => None,
            v1::FinishReason::Stop => Some(FinishReason::Stop),
            v1::FinishReason::Length => Some(FinishReason::Length),
        };
        let figures = Figures {
            cached_tokens: done.cached_tokens,
            route: done.route.and_then(|route| Route::try_from(route).ok()),
            speculation: done.speculation.unwrap_or_default().into(),
            queue_ms: done.queue_ms,
            tower_ms: done.tower_ms,
            prefill_ms: done.prefill_ms,
        };
        Self { finish_reason, figures }
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::{Lane, RouteReason};

    use super::*;

    fn generation() -> Generation {
        let part = |content| GrammarPart { field: "f".into(), lenient: true, content };
        Generation {
            request_id: "r".into(),
            prompt_ids: vec![1, 2],
            continuation_ids: vec![3],
            last_turn: Some(1),
            sampling: SamplingRule { top_p: 0.5, min_p: 0.25, ..SamplingRule::GREEDY },
            logit_bias: vec![LogitBias { token_id: 4, bias: -1.5 }],
            seed: 5,
            sample_index: 6,
            max_tokens: 7,
            stop_token_ids: vec![8],
            ignored_token_ids: vec![9],
            min_tokens: 10,
            logprobs: Some(11),
            deadline_ns: 12,
            traffic_class: "c".into(),
            cache_scope: "s".into(),
            route: Some(RouteWish::Plain),
            report_margins: true,
            report_so_far: true,
            images: vec![PromptImage {
                file: "p".into(),
                bytes: 13,
                digest: vec![14; 32],
                start: 15,
                grid: PatchGrid { rows: 16, columns: 17 },
                scale: vec![0.5; 3],
                bias: vec![-1.0; 3],
            }],
            tokenizer_vocab: 18,
            grammar: Some(Grammar {
                frame: "start: @part_0".into(),
                parts: vec![
                    part(TextForm::Regex("a".into())),
                    part(TextForm::Lark("start: \"a\"".into())),
                    part(TextForm::JsonSchema("{}".into())),
                ],
                end_ids: vec![8],
            }),
            thought: Some(ThoughtBudget {
                max_tokens: 19,
                open_id: Some(20),
                end: vec![vec![21], vec![22, 23]],
                marks: 1,
            }),
        }
    }

    #[test]
    fn a_request_survives_both_conversions() {
        let sent = internal::Generation::from(generation());
        assert_eq!(Generation::try_from(sent), Ok(generation()));
        let sent = internal::Generation { sampling: None, ..generation().into() };
        assert_eq!(Generation::try_from(sent), Err(Missing { field: "sampling" }));
    }

    #[test]
    fn tokens_survive_both_conversions() {
        let figures = Figures {
            cached_tokens: 1,
            route: Some(Route { lane: Lane::Speculative, reason: RouteReason::Benefit }),
            speculation: Speculation { cycles: 2, drafted: 3, accepted: 4 },
            queue_ms: 5.0,
            tower_ms: 6.0,
            prefill_ms: 7.0,
        };
        let top = vec![TopLogprob { token_id: 8, logprob: -0.5 }];
        let batch = |finish_reason| TokenBatch {
            first_index: 9,
            ids: vec![10],
            margins: vec![0.25],
            logprobs: vec![TokenLogprobs { logprob: -0.5, top: top.clone() }],
            step_end_ns: 11,
            done: Some(Done { finish_reason, figures }),
            so_far: Some(figures),
        };
        for reason in [None, Some(FinishReason::Stop), Some(FinishReason::Length)] {
            let sent = internal::TokenBatch::from(batch(reason));
            assert_eq!(TokenBatch::from(sent), batch(reason));
        }
    }

    #[test]
    fn every_sampling_parameter_survives_both_conversions() {
        let rule = SamplingRule { temperature: 0.5, top_k: 3, ..SamplingRule::GREEDY };
        assert_eq!(SamplingRule::from(&internal::SamplingRule::from(rule)), rule);
        let wish = SamplingWish::from(&v1::Sampling::from(rule));
        assert_eq!(wish, SamplingWish::from(rule));
        assert_eq!(wish.completed(&SamplingRule::GREEDY), rule);
    }
}
