//! Conversions between protobuf and `paceline_vocabulary`, for every shell: enums and reports here, a
//! request and its answer in [`generation`]. The service's status becomes JSON in [`service`].
//!
//! Towards protobuf a conversion cannot fail. From protobuf the value `UNSPECIFIED` has no
//! counterpart: the conversion returns [`Unspecified`].

mod generation;
pub mod service;

use paceline_vocabulary as words;
use paceline_vocabulary::{report, state};

use crate::internal::v1 as internal;
use crate::v1;

/// A message without a value where one is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a value of {name}, found UNSPECIFIED")]
pub struct Unspecified {
    /// The enum's name.
    pub name: &'static str,
}

/// A message without a field that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {field} in the message, found none")]
pub struct Missing {
    /// Path of the field in the message.
    pub field: &'static str,
}

macro_rules! convert {
    ($($wire:path = $word:path { $($value:ident),* $(,)? })*) => {$(
        impl From<$word> for $wire {
            fn from(value: $word) -> Self {
                match value { $(<$word>::$value => <$wire>::$value,)* }
            }
        }

        impl TryFrom<$wire> for $word {
            type Error = Unspecified;

            fn try_from(value: $wire) -> Result<Self, Unspecified> {
                match value {
                    <$wire>::Unspecified => Err(Unspecified { name: stringify!($wire) }),
                    $(<$wire>::$value => Ok(<$word>::$value),)*
                }
            }
        }
    )*};
}

convert! {
    v1::Lane = words::Lane { Plain, Speculative }
    v1::RouteWish = words::RouteWish { Auto, Plain, Speculative }
    v1::RouteReason = words::RouteReason {
        Forced, Benefit, Probe, Prior, NotWorth, Concurrency, KvPressure, Context, Modality,
        DrafterAbsent, DrafterLoading, DrafterSuspect, DrafterIncompatible, DrafterBehind,
        DrafterLate,
    }
    v1::ProcessState = state::ProcessState {
        Absent, Stopped, Starting, Loading, Ready, Suspect, Draining, BackingOff, Failed,
    }
    internal::WorkerPhase = state::WorkerPhase { Loading, Idle, Prefill, Decode, Stopping, Failed }
    internal::LinkPhase = state::LinkPhase { Absent, Greeting, Up, Refused, Ejected, Lost, Suspect }
    internal::GatewayState = state::GatewayState { Starting, Ready, Draining }
    internal::PolicyForce = words::Force { Auto, Plain, Speculative }
    internal::TensorType = words::TensorType { F32, F16, Bf16 }
    v1::Products = words::Products { Float, Integer }
}

impl From<report::ImageLimits> for v1::ImageLimits {
    fn from(limits: report::ImageLimits) -> Self {
        let report::ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
        Self { max_images, max_pixels, read_pixels, max_tokens }
    }
}

impl From<v1::ImageLimits> for report::ImageLimits {
    fn from(limits: v1::ImageLimits) -> Self {
        let v1::ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
        Self { max_images, max_pixels, read_pixels, max_tokens }
    }
}

impl From<words::Route> for v1::Route {
    fn from(route: words::Route) -> Self {
        Self {
            lane: v1::Lane::from(route.lane).into(),
            reason: v1::RouteReason::from(route.reason).into(),
        }
    }
}

impl TryFrom<v1::Route> for words::Route {
    type Error = Unspecified;

    fn try_from(route: v1::Route) -> Result<Self, Unspecified> {
        Ok(Self { lane: route.lane().try_into()?, reason: route.reason().try_into()? })
    }
}

impl From<report::LinkReport> for internal::LinkReport {
    fn from(report: report::LinkReport) -> Self {
        Self {
            generation: report.generation,
            phase: internal::LinkPhase::from(report.phase).into(),
            reason: report.reason,
            serving: report.serving,
        }
    }
}

/// Converts messages in both directions whose fields have one name and one type on both sides. A
/// field that is missing on one side does not compile.
macro_rules! same_fields {
    ($($wire:path = $word:path { $($field:ident),* $(,)? })*) => {$(
        impl From<$word> for $wire {
            fn from(value: $word) -> Self {
                Self { $($field: value.$field,)* }
            }
        }

        impl From<$wire> for $word {
            fn from(value: $wire) -> Self {
                Self { $($field: value.$field,)* }
            }
        }
    )*};
}
use same_fields;

same_fields! {
    internal::CostModel = report::CostModel {
        base_us, row_us, sequence_us, context_us, observations,
    }
    internal::ClassFigures = report::ClassFigures { class, cycles, survival }
    internal::SpeculationBucket = report::SpeculationBucket { up_to, steps, gain }
    v1::RoutingBucket = report::SpeculationBucket { up_to, steps, gain }
    internal::StepCost = report::StepCost { rows, us, draft_us }
    v1::StepCost = report::StepCost { rows, us, draft_us }
    internal::SpeculationTotals = report::SpeculationTotals {
        cycles, drafted, accepted, late, link_bytes,
    }
    internal::StepTimes = report::StepTimes { prefill_p99_us, decode_p99_us }
    internal::MemoryUse = report::MemoryUse {
        active_bytes, cache_bytes, limit_bytes, recommended_bytes,
    }
    internal::KvClass = report::KvClass { positions, bytes }
    internal::DrafterInfo = report::DrafterInfo {
        name, path, kind, weight_bytes, block_size, images,
    }
}

impl From<report::ModelInfo> for internal::ModelInfo {
    fn from(model: report::ModelInfo) -> Self {
        Self {
            name: model.name,
            path: model.path,
            architecture: model.architecture,
            context_length: model.context_length,
            vocab_size: model.vocab_size,
            weight_bytes: model.weight_bytes,
            vision: model.vision,
            exact_lanes: model.exact_lanes,
            logit_unit: model.logit_unit,
            products: v1::Products::from(model.products).into(),
            instructions: model.instructions,
        }
    }
}

impl From<internal::ModelInfo> for report::ModelInfo {
    fn from(model: internal::ModelInfo) -> Self {
        Self {
            // A target that names none has no integers.
            products: model.products().try_into().unwrap_or_default(),
            name: model.name,
            path: model.path,
            architecture: model.architecture,
            context_length: model.context_length,
            vocab_size: model.vocab_size,
            weight_bytes: model.weight_bytes,
            vision: model.vision,
            exact_lanes: model.exact_lanes,
            logit_unit: model.logit_unit,
            instructions: model.instructions,
        }
    }
}

/// Each item converted.
fn each<A, B: From<A>>(items: Vec<A>) -> Vec<B> {
    items.into_iter().map(B::from).collect()
}

/// Converts the measured worth of speculation in one direction.
macro_rules! speculation_figures {
    ($from:path => $to:path) => {
        impl From<$from> for $to {
            fn from(figures: $from) -> Self {
                Self {
                    step: figures.step.map(Into::into),
                    draft: figures.draft.map(Into::into),
                    classes: each(figures.classes),
                    by_sequences: each(figures.by_sequences),
                    by_context: each(figures.by_context),
                    step_costs: each(figures.step_costs),
                }
            }
        }
    };
}
speculation_figures!(report::SpeculationFigures => internal::SpeculationFigures);
speculation_figures!(internal::SpeculationFigures => report::SpeculationFigures);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_both_conversions() {
        for &reason in words::RouteReason::ALL {
            assert_eq!(words::RouteReason::try_from(v1::RouteReason::from(reason)), Ok(reason));
            assert_eq!(v1::RouteReason::from(reason).word(), reason.word());
        }
        for &lane in words::Lane::ALL {
            assert_eq!(words::Lane::try_from(v1::Lane::from(lane)), Ok(lane));
            assert_eq!(v1::Lane::from(lane).word(), lane.word());
        }
        for &state in state::ProcessState::ALL {
            assert_eq!(state::ProcessState::try_from(v1::ProcessState::from(state)), Ok(state));
            assert_eq!(v1::ProcessState::from(state).word(), state.word());
        }
        for &wish in words::RouteWish::ALL {
            assert_eq!(words::RouteWish::try_from(v1::RouteWish::from(wish)), Ok(wish));
            assert_eq!(v1::RouteWish::from(wish).word(), wish.word());
        }
        for &phase in state::LinkPhase::ALL {
            assert_eq!(state::LinkPhase::try_from(internal::LinkPhase::from(phase)), Ok(phase));
        }
    }

    #[test]
    fn a_model_is_the_same_after_a_message() {
        let model = report::ModelInfo {
            name: "m".into(),
            path: "/m".into(),
            architecture: "qwen3".into(),
            context_length: 1,
            vocab_size: 2,
            weight_bytes: 3,
            vision: true,
            exact_lanes: true,
            logit_unit: 0.5,
            products: words::Products::Integer,
            instructions: "AVX2".into(),
        };
        let message = internal::ModelInfo::from(model.clone());
        assert_eq!(report::ModelInfo::from(message), model);
        let without = report::ModelInfo::from(internal::ModelInfo::default());
        assert_eq!(without.products, words::Products::Float);
    }

    #[test]
    fn a_value_that_is_not_specified_is_an_error_that_names_the_enum() {
        let error = words::Lane::try_from(v1::Lane::Unspecified).expect_err("no lane");
        assert!(error.to_string().contains("Lane"), "{error}");
    }
}
