//! Half-precision elements, in the form `mlx-rs` expects: what bindgen makes of the Arm types, on
//! every machine. On aarch64 the functions are mlx-c's, elsewhere shim/half.cpp's; a value crosses
//! as its 16 bits either way.

use std::ffi::c_int;

use crate::mlx_array;

/// An IEEE half as its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct float16_t(pub u16);

/// A bfloat16 as its bits.
pub type bfloat16_t = u16;

#[allow(missing_docs, reason = "as the generated functions for the other element types")]
unsafe extern "C" {
    pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> c_int;
    pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> c_int;
    pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
    pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;
}
