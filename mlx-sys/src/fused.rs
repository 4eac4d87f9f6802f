//! The operations of `mlx::core::fast` as a GPU has them: one primitive each. On the CPU MLX takes
//! each apart into ten or so, so a graph that is built there for its count would show others than
//! the GPU runs.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use crate::bindings::{self, mlx_array, mlx_optional_float, mlx_stream};

thread_local! {
    /// Whether this thread builds a graph for its count.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `build`, in which norms, rotary turns and attention of `mlx::core::fast` become one
/// primitive each. The arrays that depend on one can be counted
/// ([`graph_primitives`](crate::graph_primitives)); their evaluation is an error.
pub fn as_fused<T>(build: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Restored(bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            COUNTED.set(self.0);
        }
    }
    let _restored = Restored(COUNTED.replace(true));
    build()
}

/// Lets `array`, which some primitives compute from `inputs`, count as one primitive of this name in
/// [`as_fused`]: a kernel of our own, which exists on a GPU alone. False if memory is out.
///
/// # Safety
/// `array` and `inputs` are arrays.
pub unsafe fn count_as_one(array: mlx_array, name: &CStr, inputs: &[mlx_array]) -> bool {
    let mut array = array;
    // SAFETY: the caller's. The handle's array is replaced, and the handle stays.
    unsafe { fused(0, &raw mut array, name, inputs) == 0 }
}

unsafe extern "C" {
    fn paceline_fuse(
        array: *mut mlx_array,
        name: *const c_char,
        inputs: *const mlx_array,
        count: usize,
    ) -> c_int;
}

/// `made`, the code of the function that made `res`, after `res` became one primitive if a count is
/// under way.
///
/// # Safety
/// `inputs` are arrays or null, and `res` is one if `made` is 0.
unsafe fn fused(made: c_int, res: *mut mlx_array, name: &CStr, inputs: &[mlx_array]) -> c_int {
    if made != 0 || !COUNTED.get() {
        return made;
    }
    // SAFETY: the caller's.
    unsafe { paceline_fuse(res, name.as_ptr(), inputs.as_ptr(), inputs.len()) }
}

/// mlx-c's function, one primitive in [`as_fused`].
///
/// # Safety
/// As mlx-c's.
pub unsafe fn mlx_fast_rms_norm(
    res: *mut mlx_array,
    x: mlx_array,
    weight: mlx_array,
    eps: f32,
    s: mlx_stream,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        let made = bindings::mlx_fast_rms_norm(res, x, weight, eps, s);
        fused(made, res, c"RMSNorm", &[x, weight])
    }
}

/// mlx-c's function, one primitive in [`as_fused`].
///
/// # Safety
/// As mlx-c's.
pub unsafe fn mlx_fast_layer_norm(
    res: *mut mlx_array,
    x: mlx_array,
    weight: mlx_array,
    bias: mlx_array,
    eps: f32,
    s: mlx_stream,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        let made = bindings::mlx_fast_layer_norm(res, x, weight, bias, eps, s);
        fused(made, res, c"LayerNorm", &[x, weight, bias])
    }
}

/// mlx-c's function, one primitive in [`as_fused`].
///
/// # Safety
/// As mlx-c's.
#[allow(clippy::too_many_arguments, reason = "mlx-c's")]
pub unsafe fn mlx_fast_rope(
    res: *mut mlx_array,
    x: mlx_array,
    dims: c_int,
    traditional: bool,
    base: mlx_optional_float,
    scale: f32,
    offset: c_int,
    freqs: mlx_array,
    s: mlx_stream,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        let made =
            bindings::mlx_fast_rope(res, x, dims, traditional, base, scale, offset, freqs, s);
        fused(made, res, c"RoPE", &[x, freqs])
    }
}

/// mlx-c's function, one primitive in [`as_fused`].
///
/// # Safety
/// As mlx-c's.
#[allow(clippy::too_many_arguments, reason = "mlx-c's")]
pub unsafe fn mlx_fast_rope_dynamic(
    res: *mut mlx_array,
    x: mlx_array,
    dims: c_int,
    traditional: bool,
    base: mlx_optional_float,
    scale: f32,
    offset: mlx_array,
    freqs: mlx_array,
    s: mlx_stream,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        let made = bindings::mlx_fast_rope_dynamic(
            res,
            x,
            dims,
            traditional,
            base,
            scale,
            offset,
            freqs,
            s,
        );
        fused(made, res, c"RoPE", &[x, offset, freqs])
    }
}

/// mlx-c's function, one primitive in [`as_fused`].
///
/// # Safety
/// As mlx-c's.
#[allow(clippy::too_many_arguments, reason = "mlx-c's")]
pub unsafe fn mlx_fast_scaled_dot_product_attention(
    res: *mut mlx_array,
    queries: mlx_array,
    keys: mlx_array,
    values: mlx_array,
    scale: f32,
    mask_mode: *const c_char,
    mask_arr: mlx_array,
    sinks: mlx_array,
    force_fused: bool,
    s: mlx_stream,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        let made = bindings::mlx_fast_scaled_dot_product_attention(
            res,
            queries,
            keys,
            values,
            scale,
            mask_mode,
            mask_arr,
            sinks,
            force_fused,
            s,
        );
        let inputs = [queries, keys, values, mask_arr, sinks];
        fused(made, res, c"ScaledDotProductAttention", &inputs)
    }
}
