//! These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).

use paceline_models::testing::rerun::{Reason, Rerun};

const RERUNS: [&str; 2] =
    ["graphs::drafts_in_the_graph_of_mlx", "graphs::drafts_in_the_graph_of_a_gpu"];

const MEASURED: [(&str, Reason); 2] = [
    (
        "controller::wrong_drafts_send_a_sequence_to_the_plain_lane_and_save_the_drafter_work",
        Reason::MeasuredTimes,
    ),
    ("controller::right_drafts_are_requested_and_the_figures_report_it", Reason::MeasuredTimes),
];

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_mlx() {
    Rerun { graph: "mlx", only: &[], skipped: &MEASURED, reruns: &RERUNS }.run();
}

#[test]
#[ignore = "more: half a minute"]
fn drafts_in_the_graph_of_a_gpu() {
    Rerun { graph: "gpu", only: &[], skipped: &MEASURED, reruns: &RERUNS }.run();
}
