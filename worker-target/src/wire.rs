//! Conversions between the words of the core and protobuf: the only place of this crate that writes
//! figures and reads permits and policies as messages.

use paceline_proto::internal::v1 as internal;
use paceline_vocabulary::report;

/// A cost model as a message.
pub(crate) fn cost_model(model: report::CostModel) -> internal::CostModel {
    let report::CostModel { base_us, row_us, sequence_us, context_us, observations } = model;
    internal::CostModel { base_us, row_us, sequence_us, context_us, observations }
}

/// The measured worth of speculation as a message.
pub(crate) fn speculation_figures(
    figures: report::SpeculationFigures,
) -> internal::SpeculationFigures {
    let class = |report::ClassFigures { class, cycles, survival }| internal::ClassFigures {
        class,
        cycles,
        survival,
    };
    let bucket = |report::SpeculationBucket { up_to, steps, gain }| internal::SpeculationBucket {
        up_to,
        steps,
        gain,
    };
    internal::SpeculationFigures {
        step: figures.step.map(cost_model),
        draft: figures.draft.map(cost_model),
        classes: figures.classes.into_iter().map(class).collect(),
        by_sequences: figures.by_sequences.into_iter().map(bucket).collect(),
        by_context: figures.by_context.into_iter().map(bucket).collect(),
    }
}
