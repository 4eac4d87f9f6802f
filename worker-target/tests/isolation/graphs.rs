//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::interleavings_in_the_graph_of_mlx", "graphs::interleavings_in_the_graph_of_a_gpu"];

/// Products of integers are of the graph of the CPU alone.
const INTEGERS: (&str, Reason) = ("interleavings_multiply_integers_alike", Reason::OwnGraphOnly);

#[test]
#[ignore = "more: a minute"]
fn interleavings_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &[INTEGERS], reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: a minute"]
fn interleavings_in_the_graph_of_a_gpu() {
    let experts = "interleavings_keep_windows_and_experts_apart";
    let skipped = [(experts, Reason::NoGatherMm), INTEGERS];
    Rerun { graph: "gpu", only: &[], skipped: &skipped, reruns: &RERUNS }.run();
}
