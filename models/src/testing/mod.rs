//! For tests and reports: the graph of MLX. Debug builds and the feature `test-graph` have it.
//!
//! `PACELINE_TEST_GRAPH` chooses the graph of a process:
//!
//! | value | nodes of our own | types and decisions | bounds of tests |
//! |---|---|---|---|
//! | `cpu`, or none | yes | of the device | the same bits |
//! | `mlx` | no | of the device | float32 |
//! | `gpu` | no | of a GPU: stored types, MLX's quantized products and fused attention | by type |

pub mod bounds;
pub mod primitives;
pub mod rerun;

pub use crate::device::TestGraph;

/// The graph of this process.
pub fn graph() -> TestGraph {
    crate::device::test_graph()
}
