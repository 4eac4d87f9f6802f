//! Numbers as the files of weights store them.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// Whether it is a type of floats that are read.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Stored floats as float32, as many as both sides have.
pub fn floats(bytes: &[u8], dtype: Dtype, out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        for (out, chunk) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *out = value(*chunk);
        }
    }
    match dtype {
        Dtype::F16 => each(bytes, out, |two| f16::from_le_bytes(two).to_f32()),
        Dtype::BF16 => each(bytes, out, |two| bf16::from_le_bytes(two).to_f32()),
        _ => each(bytes, out, f32::from_le_bytes),
    }
}
