//! CPU or GPU: chosen once per process, before the first array.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx_rs::{Array, Device, DeviceType};

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The GPU if this MLX library has one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; none is an error.
    Gpu,
}

/// The configuration asks for a GPU and there is none.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The MLX library has no GPU code.
    #[error(
        "a GPU is configured (target.device = \"gpu\") and the MLX library in use is built for the CPU; set target.device = \"cpu\" or \"auto\""
    )]
    CpuLibrary,
    /// The GPU cannot compute.
    #[error(
        "a GPU is configured (target.device = \"gpu\") and MLX cannot compute on it; set target.device = \"cpu\" or \"auto\""
    )]
    Broken(#[source] mlx_rs::error::Exception),
    /// A test asks for a graph that does not exist.
    #[error("PACELINE_TEST_GRAPH: expected cpu, mlx or gpu, found {0}")]
    TestGraph(String),
}

/// Makes the choice for this process. Returns whether it is the GPU.
///
/// # Errors
/// [`DeviceChoice::Gpu`] where no array can be computed on one. In builds for tests: an unknown
/// graph in `PACELINE_TEST_GRAPH`.
pub fn choose(choice: DeviceChoice) -> Result<bool, DeviceError> {
    if TAKES_TEST_GRAPH {
        TestGraph::of_environment()?;
    }
    // Tests choose the CPU; on a machine with a GPU its graph is computed there.
    let on_the_machines = TAKES_TEST_GRAPH && test_graph() == TestGraph::Gpu && is_gpu();
    if choice == DeviceChoice::Cpu && !on_the_machines {
        Device::set_default(&Device::cpu());
        return Ok(false);
    }
    let works = || Array::from_f32(1.0).add(Array::from_f32(1.0)).and_then(|two| two.eval());
    match (is_gpu(), choice) {
        (true, DeviceChoice::Gpu) => works().map(|()| true).map_err(DeviceError::Broken),
        (true, _) if works().is_ok() => Ok(true),
        (false, DeviceChoice::Gpu) => Err(DeviceError::CpuLibrary),
        _ => {
            Device::set_default(&Device::cpu());
            Ok(false)
        }
    }
}

/// The graph that tests ask for, whatever the device is: `PACELINE_TEST_GRAPH`, in debug builds and
/// with the feature `test-graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestGraph {
    /// `cpu`, and without the variable: that of the device.
    Own,
    /// `mlx`: MLX's operations alone, no node of our own.
    Mlx,
    /// `gpu`: as on a GPU, so stored types and MLX's fused operations as well. If the MLX library
    /// has a GPU, it is computed on that.
    Gpu,
}

impl TestGraph {
    /// Reads the variable's value; `None` if it is not set.
    fn read(value: Option<&str>) -> Result<Self, DeviceError> {
        match value {
            None | Some("cpu") => Ok(Self::Own),
            Some("mlx") => Ok(Self::Mlx),
            Some("gpu") => Ok(Self::Gpu),
            Some(other) => Err(DeviceError::TestGraph(other.to_owned())),
        }
    }

    /// The graph of this process, read once.
    fn of_environment() -> Result<Self, DeviceError> {
        static VALUE: OnceLock<Option<String>> = OnceLock::new();
        let value = || {
            let value = std::env::var_os("PACELINE_TEST_GRAPH");
            value.map(|value| value.to_string_lossy().into_owned())
        };
        Self::read(VALUE.get_or_init(value).as_deref())
    }
}

/// Whether this build takes its graph from the environment.
const TAKES_TEST_GRAPH: bool = cfg!(any(debug_assertions, feature = "test-graph"));

/// The graph that tests ask for.
///
/// # Panics
/// The variable has a value that [`choose`] refuses.
pub(crate) fn test_graph() -> TestGraph {
    static GRAPH: OnceLock<TestGraph> = OnceLock::new();
    if !TAKES_TEST_GRAPH {
        return TestGraph::Own;
    }
    let read = || TestGraph::of_environment().unwrap_or_else(|error| panic!("{error}"));
    *GRAPH.get_or_init(read)
}

/// Whether nodes of our own may be in the graph. They exist on Linux alone.
#[cfg(target_os = "linux")]
pub(crate) fn allows_nodes() -> bool {
    test_graph() == TestGraph::Own && !on_gpu()
}

/// Whether arrays made now are computed on the GPU, or a test wants its graph.
pub fn on_gpu() -> bool {
    test_graph() == TestGraph::Gpu || is_gpu()
}

/// MLX's own default is the GPU where its library was built for one.
fn is_gpu() -> bool {
    matches!(Device::try_default().and_then(|device| device.get_type()), Ok(DeviceType::Gpu))
}

/// The architecture of the GPU as MLX names it, such as `applegpu_g15s`; `None` without a GPU.
pub(crate) fn gpu_architecture() -> Option<String> {
    // Asked of the GPU only where there is one: MLX reports an error otherwise.
    is_gpu().then(|| mlx_sys::device_text(true, c"architecture")).flatten()
}

/// Bytes of the buffers of models that the CPU computes, beside MLX's arrays.
pub(crate) static SCRATCH_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes held in arrays and in buffers between them, and in MLX's cache of freed buffers.
pub fn memory() -> (u64, u64) {
    let count = |bytes: Result<usize, _>| bytes.map_or(0, |bytes: usize| bytes as u64);
    let arrays = count(mlx_rs::memory::active_memory());
    let scratch = SCRATCH_BYTES.load(Ordering::Relaxed);
    (arrays + scratch, count(mlx_rs::memory::cache_memory()))
}

/// Bytes that the GPU's driver recommends all its memory to stay below (Metal:
/// `recommendedMaxWorkingSetSize`, some two thirds to three quarters of the machine); 0 if there is
/// no such bound, as on the CPU and with CUDA. Above it Metal may fail the commands of any process.
/// It holds for all processes together, so each has to leave room for the others.
pub fn recommended_memory() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    // Asked of the GPU only where there is one: MLX reports an error otherwise.
    let figure = || mlx_sys::device_figure(true, c"max_recommended_working_set_size");
    *BYTES.get_or_init(|| is_gpu().then(figure).flatten().map_or(0, |bytes| bytes as u64))
}

/// Bytes that this process can still use: what is free in the machine, and no more than the GPU's
/// working set has left.
pub fn usable_memory(free_bytes: u64) -> u64 {
    usable(free_bytes, recommended_memory(), memory().0)
}

fn usable(free: u64, recommended: u64, active: u64) -> u64 {
    if recommended == 0 { free } else { free.min(recommended.saturating_sub(active)) }
}

/// Most bytes MLX means to hold in arrays; 0 if it cannot tell.
pub fn memory_limit() -> u64 {
    mlx_rs::memory::memory_limit().map_or(0, |bytes| bytes as u64)
}

/// Bounds what MLX means to hold in arrays, where its own bound (most of the machine) is larger. A
/// guideline: above it an evaluation waits for what is under way before it goes on, and on the GPU
/// freed buffers are let go first; nothing fails. Source: mlx, `eval_impl` in transforms.cpp and
/// the allocators of the backends.
///
/// MLX's own bound on Metal is 1.5 times [`recommended_memory`], which is too much, so callers
/// bound it by [`usable_memory`].
pub fn limit_memory(bytes: u64) {
    let set = mlx_rs::memory::set_memory_limit;
    if let Ok(before) = set(bytes as usize)
        && (before as u64) < bytes
    {
        // MLX's own was lower.
        let _ = set(before);
    }
}

/// Wires the GPU's memory up to [`recommended_memory`], so that the system does not page it out, or
/// ends that. Does nothing where no working set is recommended. Wired memory of a process that is
/// killed may stay lost until the machine is started again.
pub fn wire(on: bool) {
    let bytes = recommended_memory();
    // A limit that cannot be set leaves the memory as it was: slower after a pause, and no error.
    if bytes > 0 {
        let _ = mlx_rs::memory::set_wired_limit(if on { bytes as usize } else { 0 });
    }
}

/// Gives MLX's cache of freed buffers back.
pub fn drop_cache() {
    // What cannot be dropped stays within the cache's limit.
    let _ = mlx_rs::memory::clear_cache();
}

/// Share of the working set that freed buffers may take: one part of this many.
const CACHE_SHARE: u64 = 10;
/// Bytes of freed buffers that MLX may retain in any case.
const LEAST_CACHE_BYTES: u64 = 512 << 20;

/// Most bytes of freed buffers to retain. A prompt's scores are some hundred MiB each where MLX does
/// not fuse attention; buffers above the bound would be allocated anew in every layer.
pub fn cache_bytes() -> u64 {
    cache_share(recommended_memory())
}

fn cache_share(recommended: u64) -> u64 {
    (recommended / CACHE_SHARE).max(LEAST_CACHE_BYTES)
}

/// Bounds MLX's cache of freed buffers: on the GPU it may by default grow to most of the machine. A
/// smaller bound of MLX's own (32 MiB on the CPU) stays.
pub fn limit_cache(bytes: u64) {
    let set = mlx_rs::memory::set_cache_limit;
    // A limit that cannot be set leaves MLX's own.
    if let Ok(before) = set(bytes as usize)
        && (before as u64) < bytes
    {
        let _ = set(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_graph_of_tests_is_an_error_that_names_the_three() {
        assert_eq!(TestGraph::read(None).expect("none"), TestGraph::Own);
        let found = ["cpu", "mlx", "gpu"].map(|name| TestGraph::read(Some(name)).expect(name));
        assert_eq!(found, [TestGraph::Own, TestGraph::Mlx, TestGraph::Gpu]);
        for other in ["", "GPU", "metal"] {
            let error = TestGraph::read(Some(other)).expect_err("unknown").to_string();
            let expected = format!("PACELINE_TEST_GRAPH: expected cpu, mlx or gpu, found {other}");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn usable_memory_is_what_is_free_within_the_recommended_working_set() {
        assert_eq!(usable(8_000, 0, 5_000), 8_000, "no bound");
        assert_eq!(usable(8_000, 12_000, 5_000), 7_000, "the working set is the tighter bound");
        assert_eq!(usable(3_000, 12_000, 5_000), 3_000, "the machine is the tighter bound");
        assert_eq!(usable(3_000, 4_000, 5_000), 0, "more is held than is recommended");
    }

    #[test]
    fn freed_buffers_take_a_tenth_of_the_working_set_or_half_a_gibibyte() {
        assert_eq!(cache_share(0), 512 << 20, "no working set is known");
        assert_eq!(cache_share(4 << 30), 512 << 20);
        assert_eq!(cache_share(20 << 30), 2 << 30);
    }

    #[test]
    fn a_working_set_is_recommended_on_metal_alone() {
        assert_eq!(recommended_memory() > 0, cfg!(target_os = "macos") && is_gpu());
        assert!(usable_memory(1_234) <= 1_234);
    }
}
