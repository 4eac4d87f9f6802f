//! CPU or GPU: chosen once per process, before the first array.

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

/// A GPU was asked for and there is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "a GPU was asked for (target.device = \"gpu\") and MLX has none that works: {0}; set target.device = \"cpu\" or \"auto\""
)]
pub struct DeviceError(String);

/// Makes the choice for this process and says whether it is the GPU.
///
/// # Errors
/// [`DeviceChoice::Gpu`] where no array can be computed on one.
pub fn choose(choice: DeviceChoice) -> Result<bool, DeviceError> {
    if choice == DeviceChoice::Cpu {
        Device::set_default(&Device::cpu());
        return Ok(false);
    }
    // MLX's own default is the GPU where its library was built for one.
    let is_gpu = matches!(Device::try_default().and_then(|device| device.get_type()), Ok(DeviceType::Gpu));
    let works = || Array::from_f32(1.0).add(Array::from_f32(1.0)).and_then(|two| two.eval());
    match (is_gpu, choice) {
        (true, DeviceChoice::Gpu) => works().map(|()| true).map_err(|error| DeviceError(error.to_string())),
        (true, _) if works().is_ok() => Ok(true),
        (false, DeviceChoice::Gpu) => Err(DeviceError("the MLX library in use is built for the CPU".into())),
        _ => {
            Device::set_default(&Device::cpu());
            Ok(false)
        }
    }
}

/// Whether arrays made now are computed on the GPU.
pub fn on_gpu() -> bool {
    matches!(Device::try_default().and_then(|device| device.get_type()), Ok(DeviceType::Gpu))
}

/// Bytes MLX holds in arrays, and in its cache of freed buffers.
pub fn memory() -> (u64, u64) {
    let count = |bytes: Result<usize, _>| bytes.map_or(0, |bytes: usize| bytes as u64);
    (count(mlx_rs::memory::active_memory()), count(mlx_rs::memory::cache_memory()))
}

/// Most bytes MLX means to hold in arrays; 0 if it cannot tell.
pub fn memory_limit() -> u64 {
    mlx_rs::memory::memory_limit().map_or(0, |bytes| bytes as u64)
}

/// Bounds what MLX means to hold in arrays, where its own bound (most of the machine) is larger. A guideline: above it an
/// evaluation waits for what is under way before it goes on, and on the GPU freed buffers are let go first; nothing fails.
/// Source: mlx, `eval_impl` in transforms.cpp and the allocators of the backends.
pub fn limit_memory(bytes: u64) {
    let set = mlx_rs::memory::set_memory_limit;
    if let Ok(before) = set(bytes as usize)
        && (before as u64) < bytes
    {
        // MLX's own was lower.
        let _ = set(before);
    }
}

/// Gives MLX's cache of freed buffers back.
pub fn drop_cache() {
    // What cannot be dropped stays within the cache's limit.
    let _ = mlx_rs::memory::clear_cache();
}

/// Bounds MLX's cache of freed buffers: on the GPU it may by default grow to most of the machine. A smaller bound of MLX's own
/// (32 MiB on the CPU) stays.
pub fn limit_cache(bytes: u64) {
    let set = mlx_rs::memory::set_cache_limit;
    // A limit that cannot be set leaves MLX's own.
    if let Ok(before) = set(bytes as usize)
        && (before as u64) < bytes
    {
        let _ = set(before);
    }
}
