//! Quantized weights in the order that products of integers read.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use mlx_sys::HostOutput as Output;
use paceline_cpu::quantized::{self, FactorsMut, QuantizedFormat};

use super::{format_of, integers, matrix, node_with};
use crate::error::Result;
use crate::layers::QuantizedParts;

/// The format of a weight and the numbers of its rows, if there are kernels for it.
fn known(weight: &QuantizedParts<'_>) -> Option<(QuantizedFormat, usize)> {
    let (last, outer) = weight.packed.shape().split_last()?;
    let inputs = last.checked_mul(32)?.checked_div(weight.bits)?;
    Some((format_of(weight, outer, inputs)?, inputs as usize))
}

/// The same, if the weight can be arranged.
fn arrangeable(weight: &QuantizedParts<'_>) -> Option<(QuantizedFormat, usize)> {
    // All rows of an expert.
    let rows = weight.packed.shape().iter().rev().nth(1).copied()?;
    known(weight).filter(|_| quantized::can_be_arranged(rows as usize))
}

/// Whether the numbers of an array lie in the order of their indices.
fn in_order(array: &Array) -> bool {
    let mut next = 1;
    array.shape().iter().zip(array.strides()).rev().all(|(length, stride)| {
        let fits = *length == 1 || *stride == next;
        next *= *length as usize;
        fits
    })
}

/// All scales or biases.
///
/// # Safety
/// The array is evaluated, its numbers lie in order, and for as long as they are borrowed nobody
/// else reads them.
unsafe fn factors(array: &Array, are_scaled: bool) -> FactorsMut<'_> {
    let count = array.size();
    // SAFETY: the caller's; the types are those that `format_of` compared.
    unsafe {
        if are_scaled {
            let place = mlx_sys::mlx_array_data_float16(array.as_ptr()).cast_mut();
            return FactorsMut::Scaled(slice(place.cast(), 2 * count));
        }
        let halves = |place: *mut u16| FactorsMut::Halves(slice(place, count));
        match array.dtype() {
            Dtype::Float32 => {
                let place = mlx_sys::mlx_array_data_float32(array.as_ptr());
                FactorsMut::Words(slice(place.cast_mut(), count))
            }
            Dtype::Float16 => {
                halves(mlx_sys::mlx_array_data_float16(array.as_ptr()).cast_mut().cast())
            }
            _ => halves(mlx_sys::mlx_array_data_bfloat16(array.as_ptr()).cast_mut().cast()),
        }
    }
}

/// # Safety
/// As many numbers lie there, and nobody else reads them for as long.
unsafe fn slice<'a, T>(place: *mut T, count: usize) -> &'a mut [T] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(place, count) }
}

/// Calls `change` with all parts, format and inputs.
///
/// # Safety
/// Nobody else reads the arrays, which are evaluated and lie in order.
unsafe fn change(
    weight: &QuantizedParts<'_>,
    format: QuantizedFormat,
    inputs: usize,
    change: fn(&mut [u32], [FactorsMut<'_>; 2], QuantizedFormat, usize),
) {
    // SAFETY: the caller's.
    unsafe {
        let place = mlx_sys::mlx_array_data_uint32(weight.packed.as_ptr()).cast_mut();
        let both = [weight.scales, weight.biases].map(|part| factors(part, weight.are_scaled()));
        change(slice(place, weight.packed.size()), both, format, inputs);
    }
}

/// Arranges a weight in place. False if it cannot be: there are no kernels for its format, its rows
/// are no whole tiles, or its numbers are no numbers of its own, as in a load that is rehearsed.
/// Nobody else may hold the arrays.
///
/// # Errors
/// MLX's own.
pub(crate) fn arrange(weight: &QuantizedParts<'_>) -> Result<bool, Exception> {
    let Some((format, inputs)) = arrangeable(weight).filter(|_| super::computes(&[])) else {
        return Ok(false);
    };
    let arrays = [weight.packed, weight.scales, weight.biases];
    mlx_rs::transforms::eval(arrays)?;
    let own = arrays.into_iter().all(|array| array.size() > 0 && in_order(array));
    if own {
        // SAFETY: the caller's; they were evaluated and compared.
        unsafe { change(weight, format, inputs, quantized::arrange) };
    }
    Ok(own)
}

/// The parts of an arranged weight in the order of checkpoints, as arrays of their own.
///
/// # Errors
/// MLX's own.
pub(crate) fn restored(weight: &QuantizedParts<'_>) -> Result<[Array; 3], Exception> {
    let (format, inputs) = arrangeable(weight).ok_or_else(not_arranged)?;
    let copy = |array: &Array| -> Result<Array, Exception> {
        let copy = array.deep_clone();
        copy.eval()?;
        Ok(copy)
    };
    let arrays = [copy(weight.packed)?, copy(weight.scales)?, copy(weight.biases)?];
    let [packed, scales, biases] = &arrays;
    let copies = QuantizedParts { packed, scales, biases, ..*weight };
    // SAFETY: the copies are nobody else's.
    unsafe { change(&copies, format, inputs, quantized::restore) };
    Ok(arrays)
}

/// Rows `ids` `[ids]` of a weight that MLX does not know, because it is arranged or its factors are
/// scaled → `[ids, in]`, float32. An id without a row gives NaN.
///
/// # Errors
/// Memory is out.
pub(crate) fn rows_of(ids: &Array, weight: &QuantizedParts<'_>) -> Result<Array> {
    let (format, inputs) = known(weight).ok_or_else(not_arranged)?;
    let tiles = weight.tiles;
    let ids = ids.as_dtype(Dtype::Uint32)?;
    let (count, shape) = (ids.size() as i32, inputs as i32);
    let numbers = [&ids, weight.packed, weight.scales, weight.biases];
    node_with(&[], &numbers, &[count, shape], Output::Fresh, move |_, parts, out| {
        let matrix = matrix(&parts[1..], format, inputs, tiles);
        for (id, out) in integers(parts[0]).iter().zip(out.chunks_exact_mut(inputs)) {
            match *id as usize {
                id if id < matrix.outputs() => matrix.expand_row(id, out),
                _ => out.fill(f32::NAN),
            }
        }
    })
}

fn not_arranged() -> Exception {
    Exception::custom("expected a weight that is arranged, found one that cannot be")
}
