//! Code that the CPU runs instead of MLX: matrix products, under the name by which MLX calls them
//! (`cblas_sgemm`), and the functions of rows between them ([`rows`]). Not here: the choice and
//! order of the computations, MLX.
//!
//! On Linux the prebuilt libmlx asks the dynamic linker for `cblas_sgemm`, and an executable is
//! searched before any library: one that links this crate and exports the symbol (mlx-sys/rpath.rs)
//! is called instead of OpenBLAS.
//!
//! ```text
//!  libmlx ─ cblas_sgemm ─┬─ in rows, something to sum ─▶ kernel, columns and rows given out to the threads of pool
//!                        └─ anything else ─────────────▶ openblas (without one: any_layout, slow and right)
//! ```
//! Two things OpenBLAS does not give. One row reads the weights as fast as the memory allows; and
//! row i of a product has the same bits with 1 row or 1,000, whatever the other rows hold and
//! however many threads there are, so that drafted tokens are verified with the numbers of plain
//! decoding, and a prompt in chunks of any width leaves the same keys and values (I1).
//!
//! On macOS, where MLX calls Accelerate, the crate is empty but for its functions that then do
//! nothing.

#[cfg(target_os = "linux")]
pub mod attention;
#[cfg(target_os = "linux")]
pub mod delta;
#[cfg(target_os = "linux")]
pub mod experts;
#[cfg(target_os = "linux")]
pub mod floats;
#[cfg(target_os = "linux")]
pub mod huge_pages;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod largest;
#[cfg(target_os = "linux")]
mod openblas;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
pub mod quantized;
#[cfg(target_os = "linux")]
pub mod routing;
#[cfg(target_os = "linux")]
pub mod rows;
#[cfg(all(test, target_os = "linux"))]
mod samples;
#[cfg(target_os = "linux")]
mod sgemm;

#[cfg(target_os = "linux")]
pub use sgemm::cblas_sgemm;

/// The keys that a row attends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowKeys {
    /// The slot in which they lie.
    pub slot: usize,
    /// Their positions in the slot.
    pub positions: std::ops::Range<usize>,
}

/// Rows of one slot in a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotRows {
    /// Number of the slot among those of the layer.
    pub slot: usize,
    /// Whether the sequence begins: the slot's numbers count as zeros.
    pub begins: bool,
    /// Rows of the tape of the pass before that were accepted. They come first.
    pub accepted: std::ops::Range<usize>,
    /// New rows, among those of the pass.
    pub rows: std::ops::Range<usize>,
    /// How many of the last new rows may be rejected. The slot does not change by them; they are
    /// written on the tape of this pass.
    pub uncertain: usize,
    /// The first row of this pass's tape that they take.
    pub tape: usize,
}

/// Products since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductCounts {
    /// Computed here.
    pub own: u64,
    /// Handed on.
    pub forwarded: u64,
}

/// How many products were computed here, and how many forwarded. All zeros on systems where MLX
/// does not call this crate.
pub fn calls() -> ProductCounts {
    #[cfg(target_os = "linux")]
    return sgemm::calls();
    #[cfg(not(target_os = "linux"))]
    ProductCounts::default()
}

/// The instruction set the kernels use here; `None` where there are none.
pub fn instructions() -> Option<&'static str> {
    #[cfg(target_os = "linux")]
    return Some(sgemm::kernels().name);
    #[cfg(not(target_os = "linux"))]
    None
}

/// How many threads one product may use, the caller's included. Without a call:
/// `OPENBLAS_NUM_THREADS`, which is how the supervisor shares the cores out, else one for each
/// core.
pub fn set_threads(n: usize) {
    #[cfg(target_os = "linux")]
    pool::set_threads(n);
    #[cfg(not(target_os = "linux"))]
    let _ = n;
}
