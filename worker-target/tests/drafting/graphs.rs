//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::Rerun;

const RERUNS: [&str; 2] =
    ["graphs::drafts_in_the_graph_of_mlx", "graphs::drafts_in_the_graph_of_a_gpu"];

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &[], reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &[], reruns: &RERUNS }.run();
}
