//! Figures that MLX knows of a device.

use std::ffi::CStr;

use crate::bindings::{
    mlx_device_free, mlx_device_info_free, mlx_device_info_get, mlx_device_info_get_size,
    mlx_device_info_new, mlx_device_new_type, mlx_device_type__MLX_CPU, mlx_device_type__MLX_GPU,
};

/// The number that MLX keeps under `key` about the first GPU, or about the CPU; `None` if MLX keeps
/// no number under that key. The keys differ between backends. Metal has
/// `max_recommended_working_set_size`, in bytes.
///
/// To be called for the GPU only where MLX has one: without one MLX calls its error handler.
pub fn device_figure(gpu: bool, key: &CStr) -> Option<usize> {
    let kind = if gpu { mlx_device_type__MLX_GPU } else { mlx_device_type__MLX_CPU };
    // SAFETY: both handles are made here, used on this thread only, and freed once. `key` ends in
    // NUL and outlives the call.
    unsafe {
        let device = mlx_device_new_type(kind, 0);
        let mut info = mlx_device_info_new();
        let mut value = 0;
        let found = mlx_device_info_get(&mut info, device) == 0
            && mlx_device_info_get_size(&mut value, info, key.as_ptr()) == 0;
        mlx_device_info_free(info);
        mlx_device_free(device);
        found.then_some(value)
    }
}
