//! Products by quantized weights, and their rows as floats.

use std::borrow::Cow;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream, ops};

use super::{QuantizedParts, host};
use crate::error::Result;
use crate::exact_lanes::exact;
use crate::load::{QuantFormat, QuantMode, QuantizedMatrix};
use crate::products::{Products, products};

impl QuantizedMatrix {
    /// The matrix in the order that products of integers read, changed in place, if this process
    /// computes such products and has kernels for its format. Nobody else may hold its arrays.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn arranged(self) -> Result<Self, Exception> {
        let tiles = match self.affine_parts() {
            Some(parts) if !self.tiles && products() == Products::Integer => host::arrange(&parts)?,
            _ => self.tiles,
        };
        Ok(Self { tiles, ..self })
    }

    /// The matrix in the order of checkpoints.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn as_stored(&self) -> Result<Cow<'_, Self>, Exception> {
        match self.affine_parts() {
            Some(parts) if self.tiles => {
                let [packed, scales, biases] = host::restored(&parts)?;
                let format = self.format;
                let biases = Some(biases);
                Ok(Cow::Owned(Self { packed, scales, biases, format, tiles: false }))
            }
            _ => Ok(Cow::Borrowed(self)),
        }
    }

    /// `x` `[…, in]` → `[…, out]`.
    pub(crate) fn product(&self, x: &Array) -> Result<Array> {
        if let Some(parts) = self.affine_parts()
            && let Some(product) = host::quantized_product(x, &parts)?
        {
            return Ok(product);
        }
        let stored = self.as_stored()?;
        exact(x, |x| stored.graph_product(x))
    }

    /// [`Self::product`] by MLX.
    fn graph_product(&self, x: &Array) -> Result<Array> {
        if self.affine_parts().is_some_and(|parts| parts.are_scaled()) {
            return Ok(x.matmul(&self.dequantized()?.transpose()?)?);
        }
        let Self { packed, scales, biases, format, .. } = self;
        if format.mode == QuantMode::Affine {
            let QuantFormat { group, bits, .. } = *format;
            return Ok(ops::quantized_matmul(x, packed, scales, biases, true, group, bits)?);
        }
        let mode = format.mode.name().as_ptr();
        self.raw(|result, numbers, nothing, stream| {
            let RawFormat { group, bits } = numbers;
            // SAFETY: the arrays live for the call; `nothing` stands for the absent biases.
            unsafe {
                mlx_sys::mlx_quantized_matmul(
                    result,
                    x.as_ptr(),
                    packed.as_ptr(),
                    scales.as_ptr(),
                    nothing,
                    true,
                    group,
                    bits,
                    mode,
                    stream,
                )
            }
        })
    }

    /// Parts of the weight, if its format is affine.
    pub(super) fn affine_parts(&self) -> Option<QuantizedParts<'_>> {
        let Self { packed, scales, biases, format, tiles } = self;
        let QuantFormat { group, bits, .. } = *format;
        let biases = biases.as_ref().filter(|_| format.mode == QuantMode::Affine)?;
        Some(QuantizedParts { packed, scales, biases, group, bits, tiles: *tiles })
    }

    /// As [`Self::product`] by the experts that `experts` `[rows, k]` names. `x` `[rows, 1 or k, 1,
    /// in]` → `[rows, k, 1, out]`. `sorted`: the experts ascend, so that MLX may read each expert's
    /// weight once for all its rows.
    pub(crate) fn expert_product(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        if self.affine_parts().is_some_and(|parts| parts.are_scaled()) {
            let weights = self.dequantized()?.swap_axes(-1, -2)?;
            return Ok(ops::gather_mm(x, &weights, None, experts, sorted)?);
        }
        let stored = self.as_stored()?;
        let Self { packed, scales, biases, format, .. } = &*stored;
        if format.mode == QuantMode::Affine {
            let QuantFormat { group, bits, .. } = *format;
            return Ok(ops::gather_qmm(
                x, packed, scales, biases, None, experts, true, group, bits, sorted,
            )?);
        }
        let mode = format.mode.name().as_ptr();
        self.raw(|result, numbers, nothing, stream| {
            let RawFormat { group, bits } = numbers;
            // SAFETY: as in `product`; `nothing` also stands for the rows of `x` in their order.
            unsafe {
                mlx_sys::mlx_gather_qmm(
                    result,
                    x.as_ptr(),
                    packed.as_ptr(),
                    scales.as_ptr(),
                    nothing,
                    nothing,
                    experts.as_ptr(),
                    true,
                    group,
                    bits,
                    mode,
                    sorted,
                    stream,
                )
            }
        })
    }

    /// Rows of `ids` `[ids]`, in `dtype` → `[ids, in]`.
    pub(crate) fn rows_of(&self, ids: &Array, dtype: Dtype) -> Result<Array> {
        let unknown_to_mlx = |parts: &QuantizedParts<'_>| parts.tiles || parts.are_scaled();
        if let Some(parts) = self.affine_parts().filter(unknown_to_mlx) {
            return Ok(host::rows_of(ids, &parts)?.as_dtype(dtype)?);
        }
        let rows = |array: &Array| array.take_axis(ids, 0);
        // Scales of affine formats are widened first, so that a float32 number is not rounded to
        // their type.
        let floats = |array: &Array| rows(array)?.as_dtype(dtype);
        let (scales, biases) = match &self.biases {
            Some(biases) => (floats(&self.scales)?, Some(floats(biases)?)),
            None => (rows(&self.scales)?, None),
        };
        let packed = rows(&self.packed)?;
        let some = Self { packed, scales, biases, format: self.format, tiles: false };
        Ok(some.dequantized()?.as_dtype(dtype)?)
    }

    /// All numbers as floats `[…, out, in]`.
    pub(crate) fn dequantized(&self) -> Result<Array> {
        if let Some(parts) = self.affine_parts().filter(QuantizedParts::are_scaled) {
            let (columns, rows) = self.packed.shape().split_last().expect("it has axes");
            let ids: Vec<u32> = (0..rows.iter().product::<i32>() as u32).collect();
            let all = host::rows_of(&Array::from_slice(&ids, &[ids.len() as i32]), &parts)?;
            return Ok(all.reshape(&[rows, &[columns * 32 / self.format.bits]].concat())?);
        }
        let stored = self.as_stored()?;
        let Self { packed, scales, biases, format, .. } = &*stored;
        if format.mode == QuantMode::Affine {
            return Ok(ops::dequantize(packed, scales, biases, format.group, format.bits)?);
        }
        let mode = format.mode.name().as_ptr();
        self.raw(|result, numbers, nothing, stream| {
            let RawFormat { group, bits } = numbers;
            let dtype = mlx_sys::mlx_optional_dtype {
                value: mlx_sys::mlx_dtype__MLX_FLOAT32,
                has_value: true,
            };
            // SAFETY: as in `product`; there is no global scale either.
            unsafe {
                mlx_sys::mlx_dequantize(
                    result,
                    packed.as_ptr(),
                    scales.as_ptr(),
                    nothing,
                    group,
                    bits,
                    mode,
                    nothing,
                    dtype,
                    stream,
                )
            }
        })
    }

    /// Calls MLX, whose bindings in mlx-rs know the affine mode alone. The last two arguments of
    /// `call` are an array that is none, and the stream.
    fn raw(
        &self,
        call: impl FnOnce(
            &mut mlx_sys::mlx_array,
            RawFormat,
            mlx_sys::mlx_array,
            mlx_sys::mlx_stream,
        ) -> i32,
    ) -> Result<Array> {
        let number = |value| mlx_sys::mlx_optional_int { value, has_value: true };
        let numbers =
            RawFormat { group: number(self.format.group), bits: number(self.format.bits) };
        let stream = Stream::thread_local_or_default();
        // SAFETY: an empty handle owns nothing; the result is owned by the array made of it.
        let (status, result) = unsafe {
            let (mut result, nothing) = (mlx_sys::mlx_array_new(), mlx_sys::mlx_array_new());
            let status = call(&mut result, numbers, nothing, stream.as_ptr());
            (status, Array::from_ptr(result))
        };
        if status == 0 {
            return Ok(result);
        }
        let what = format!("MLX refuses weights of format {}", self.format);
        Err(Exception::custom(what).into())
    }
}

/// A format as MLX's C functions take it.
#[derive(Clone, Copy)]
struct RawFormat {
    group: mlx_sys::mlx_optional_int,
    bits: mlx_sys::mlx_optional_int,
}

#[cfg(test)]
mod tests;
