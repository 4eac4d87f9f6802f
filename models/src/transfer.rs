//! Arrays as bytes and back, for process borders.

use std::borrow::Cow;

use half::{bf16, f16};
use mlx_rs::{Array, ArrayElement, Dtype};

use crate::error::{ModelError, Result};

/// The numbers of `array` as they lie in memory, row-major. Evaluates it.
///
/// # Errors
/// Another type than float32, float16, bfloat16; MLX's own.
pub fn to_bytes(array: &Array) -> Result<Vec<u8>> {
    // Nothing to do for what was evaluated with its step: each step of a stream with a drafter
    // comes through here.
    array.eval()?;
    let array = if lies_in_order(array) { array.clone() } else { array.contiguous()? };
    array.eval()?;
    Ok(match array.dtype() {
        Dtype::Float32 => bytes(array.try_as_slice::<f32>()?, |value| value.to_ne_bytes()),
        Dtype::Float16 => bytes(array.try_as_slice::<f16>()?, |value| value.to_ne_bytes()),
        Dtype::Bfloat16 => bytes(array.try_as_slice::<bf16>()?, |value| value.to_ne_bytes()),
        other => return Err(ModelError::Batch(format!("expected a float array, found {other:?}"))),
    })
}

/// An evaluated array's numbers, row-major, where they are if they lie like that.
pub(crate) fn in_order<T: ArrayElement + Copy>(array: &Array) -> Result<Cow<'_, [T]>> {
    // Nothing to do for what was evaluated with its step.
    array.eval()?;
    if lies_in_order(array) {
        return Ok(array.try_as_slice::<T>()?.into());
    }
    let array = array.contiguous()?;
    array.eval()?;
    Ok(array.try_as_slice::<T>()?.to_vec().into())
}

/// An array of `dtype` and `shape` from its bytes.
///
/// # Errors
/// A number of bytes that does not fit the shape; a type that is none of float32, float16,
/// bfloat16.
pub fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    let numbers: usize = shape.iter().map(|size| *size as usize).product();
    let width = if dtype == Dtype::Float32 { 4 } else { 2 };
    if bytes.len() != numbers * width {
        let what = format!(
            "expected {} bytes for {shape:?} of {dtype:?}, found {}",
            numbers * width,
            bytes.len()
        );
        return Err(ModelError::Batch(what));
    }
    Ok(match dtype {
        Dtype::Float32 => Array::from_slice(&values(bytes, f32::from_ne_bytes), shape),
        Dtype::Float16 => Array::from_slice(&values(bytes, f16::from_ne_bytes), shape),
        Dtype::Bfloat16 => Array::from_slice(&values(bytes, bf16::from_ne_bytes), shape),
        other => return Err(ModelError::Batch(format!("expected a float type, found {other:?}"))),
    })
}

/// Rows of several arrays `[rows, columns]` as one.
///
/// # Errors
/// Different columns; MLX's own.
pub fn stack(parts: &[Array]) -> Result<Array> {
    Ok(mlx_rs::ops::concatenate(parts, 0)?)
}

/// Whether an evaluated array's numbers are one after another in the order of their indices.
fn lies_in_order(array: &Array) -> bool {
    let axes = array.shape().iter().zip(array.strides()).rev();
    let mut next = 1;
    for (length, stride) in axes {
        if *length != 1 && *stride != next {
            return false;
        }
        next *= *length as usize;
    }
    true
}

/// In place and not collected byte by byte, which takes twenty times as long.
fn bytes<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut all = vec![0; values.len() * N];
    all.as_chunks_mut::<N>()
        .0
        .iter_mut()
        .zip(values)
        .for_each(|(place, value)| *place = to_bytes(*value));
    all
}

fn values<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_survives_its_bytes() {
        let rows = Array::from_slice(&[1.5f32, -2.0, 3.25, 0.0, f32::MAX, 1e-30], &[3, 2]);
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let array = rows.as_dtype(dtype).expect("a float type");
            let again =
                from_bytes(&to_bytes(&array).expect("floats"), &[3, 2], dtype).expect("fits");
            assert_eq!(to_bytes(&again).expect("floats"), to_bytes(&array).expect("floats"));
            assert_eq!((again.dtype(), again.shape()), (dtype, &[3, 2][..]));
        }
        // A transposed view has other strides; its bytes are row-major all the same.
        let turned = to_bytes(&rows.transpose().expect("two axes")).expect("floats");
        assert_eq!(turned[4..8], 3.25f32.to_ne_bytes());
        assert!(from_bytes(&turned[1..], &[3, 2], Dtype::Float32).is_err());
        assert!(to_bytes(&Array::from_int(3)).is_err());
    }
}
