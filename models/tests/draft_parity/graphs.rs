//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::all_drafters_in_the_graph_of_mlx", "graphs::all_drafters_in_the_graph_of_a_gpu"];

/// Names of formats, and weights that only nodes of our own keep quantized.
const SKIPPED_OF_MLX: [(&str, Reason); 2] = [
    ("model::quantized_models_draft_nearly_the_same", Reason::OwnGraphOnly),
    ("mtp::a_head_that_is_stored_quantized_drafts_nearly_the_same", Reason::OwnGraphOnly),
];

/// The head with experts in bfloat16, and a model with such experts; bounds of float32; near logits of
/// random weights.
const SKIPPED_OF_A_GPU: [(&str, Reason); 13] = [
    ("mtp_glm::the_layer_in_the_targets_checkpoint_follows_the_reference", Reason::NoBoundIn16Bits),
    ("a_quantized_drafter_gives_the_same_tokens_in_few_more_cycles", Reason::NoBoundIn16Bits),
    ("quantized_weights_change_little", Reason::NoBoundIn16Bits),
    (
        "hybrid::greedy_drafts_of_ids_for_a_hybrid_target_follow_the_reference",
        Reason::NoBoundIn16Bits,
    ),
    (
        "hybrid::sampled_drafts_of_ids_for_a_hybrid_target_follow_the_reference_by_the_target_s_noise",
        Reason::NoBoundIn16Bits,
    ),
    ("model::a_text_model_with_float_experts_drafts", Reason::NoGatherMm),
    ("mtp::a_head_that_is_stored_quantized_drafts_nearly_the_same", Reason::NoGatherMm),
    ("mtp::a_head_with_experts_in_a_folder_of_its_own_follows_the_reference", Reason::NoGatherMm),
    (
        "mtp::a_reduced_head_with_experts_proposes_its_first_ids_and_special_tokens_alone",
        Reason::NoGatherMm,
    ),
    ("mtp::a_session_of_a_head_with_experts_may_begin_in_the_middle", Reason::NoGatherMm),
    ("mtp::how_the_context_of_a_head_with_experts_was_cut_does_not_matter", Reason::NoGatherMm),
    ("mtp::quantized_heads_with_experts_draft_nearly_the_same", Reason::NoGatherMm),
    ("mtp::sessions_of_a_head_with_experts_together_are_sessions_alone", Reason::NoGatherMm),
];

#[test]
#[ignore = "more: a minute; all drafters again"]
fn all_drafters_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &SKIPPED_OF_MLX, reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: three minutes; all drafters again"]
fn all_drafters_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &SKIPPED_OF_A_GPU, reruns: &RERUNS }.run();
}
