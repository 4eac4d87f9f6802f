//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::prefixes_in_the_graph_of_mlx", "graphs::prefixes_in_the_graph_of_a_gpu"];

/// Bits that are the same however a prompt is cut.
const SKIPPED_OF_MLX: [(&str, Reason); 3] = [
    ("states::another_last_turn_begins_with_the_states_before_it", Reason::OwnGraphOnly),
    ("states::kept_states_give_the_same_bits", Reason::OwnGraphOnly),
    ("states::samples_and_requests_with_one_beginning_compute_it_once", Reason::OwnGraphOnly),
];

/// Bits that are the same however a prompt is cut.
const SKIPPED_OF_A_GPU: [(&str, Reason); 3] = [
    ("states::kept_states_give_the_same_bits", Reason::OwnGraphOnly),
    ("states::samples_and_requests_with_one_beginning_compute_it_once", Reason::OwnGraphOnly),
    ("windows::kept_windows_give_the_same_bits", Reason::OwnGraphOnly),
];

#[test]
#[ignore = "more: half a minute"]
fn prefixes_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &SKIPPED_OF_MLX, reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: half a minute"]
fn prefixes_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &SKIPPED_OF_A_GPU, reruns: &RERUNS }.run();
}
