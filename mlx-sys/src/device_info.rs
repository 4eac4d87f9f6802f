//! Figures and texts that MLX knows of a device.

use std::ffi::{CStr, c_char};

use crate::bindings::{
    mlx_device_free, mlx_device_info, mlx_device_info_free, mlx_device_info_get,
    mlx_device_info_get_size, mlx_device_info_get_string, mlx_device_info_new, mlx_device_new_type,
    mlx_device_type__MLX_CPU, mlx_device_type__MLX_GPU,
};

/// The number that MLX keeps under `key` about the first GPU, or about the CPU; `None` if MLX keeps
/// no number under that key. The keys differ between backends. Metal has
/// `max_recommended_working_set_size`, in bytes.
///
/// To be called for the GPU only where MLX has one: without one MLX calls its error handler.
pub fn device_figure(gpu: bool, key: &CStr) -> Option<usize> {
    // SAFETY: `info` lives for the call; `key` ends in NUL and outlives it.
    with_info(gpu, |info| unsafe {
        let mut value = 0;
        (mlx_device_info_get_size(&mut value, info, key.as_ptr()) == 0).then_some(value)
    })
}

/// The text that MLX keeps under `key`, as [`device_figure`] has numbers. Metal has `architecture`,
/// such as `applegpu_g15s`.
pub fn device_text(gpu: bool, key: &CStr) -> Option<String> {
    // SAFETY: as above; the text lives as long as `info` and ends in NUL.
    with_info(gpu, |info| unsafe {
        let mut text: *const c_char = std::ptr::null();
        let found = mlx_device_info_get_string(&mut text, info, key.as_ptr()) == 0;
        (found && !text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    })
}

/// What `read` finds in what MLX knows of a device.
fn with_info<T>(gpu: bool, read: impl FnOnce(mlx_device_info) -> Option<T>) -> Option<T> {
    let kind = if gpu { mlx_device_type__MLX_GPU } else { mlx_device_type__MLX_CPU };
    // SAFETY: both handles are made here, used on this thread only, and freed once.
    unsafe {
        let device = mlx_device_new_type(kind, 0);
        let mut info = mlx_device_info_new();
        let found = match mlx_device_info_get(&mut info, device) {
            0 => read(info),
            _ => None,
        };
        mlx_device_info_free(info);
        mlx_device_free(device);
        found
    }
}
