//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::drafts_in_the_graph_of_mlx", "graphs::drafts_in_the_graph_of_a_gpu"];

/// Rows of another type.
const SKIPPED_OF_A_GPU: [(&str, Reason); 2] = [
    ("hybrid::drafts_change_no_token_of_a_target_with_states", Reason::Float32Drafter),
    ("windows::drafts_across_the_edge_of_a_window_change_no_token", Reason::Float32Drafter),
];

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &[], reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &SKIPPED_OF_A_GPU, reruns: &RERUNS }.run();
}
