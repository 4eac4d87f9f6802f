//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::images_in_the_graph_of_mlx", "graphs::images_in_the_graph_of_a_gpu"];

/// Golden answers of float32, and bits of a prompt that is read again.
const SKIPPED_OF_A_GPU: [(&str, Reason); 8] = [
    ("a_preempted_sequence_recomputes_its_images", Reason::OwnGraphOnly),
    ("answers_equal_the_reference_alone_and_in_a_batch", Reason::NoBoundIn16Bits),
    ("answers_of_a_glm_equal_the_reference_alone_and_in_a_batch", Reason::NoBoundIn16Bits),
    (
        "answers_about_images_on_axes_in_sections_and_of_lines_equal_the_reference",
        Reason::NoBoundIn16Bits,
    ),
    (
        "hybrid::answers_of_a_target_with_states_equal_the_reference_alone_and_in_a_batch",
        Reason::NoBoundIn16Bits,
    ),
    ("gemma::answers_of_an_edge_model_to_images_equal_the_reference", Reason::NoBoundIn16Bits),
    ("gemma::answers_of_the_model_without_a_tower_equal_the_reference", Reason::NoBoundIn16Bits),
    (
        "gemma::answers_to_images_whose_rows_attend_both_ways_equal_the_reference",
        Reason::NoBoundIn16Bits,
    ),
];

#[test]
#[ignore = "more: a minute or two"]
fn images_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &[], reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: a minute or two"]
fn images_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &SKIPPED_OF_A_GPU, reruns: &RERUNS }.run();
}
