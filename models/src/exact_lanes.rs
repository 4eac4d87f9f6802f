//! Exact lanes: whether a plain step gives the bits that verification gives for the same row.
//!
//! MLX's kernel for one row by a quantized weight adds in another order than its kernel for 2 to 12
//! rows, on Metal from generation 15 on (M3). The second one adds each row alike whatever other rows
//! there are. With exact lanes a row alone is multiplied as two equal rows. On earlier chips and with
//! CUDA the kernel for one row serves the first rows of a block too (5 and 7), so nothing is done
//! there. Source: mlx, `backend/metal/quantized.cpp` and `backend/cuda/quantized`.

use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use crate::device::{gpu_architecture, on_gpu};
use crate::error::Result;

/// First generation of Apple's GPUs whose kernels for one row and for a few rows differ.
const FIRST_GENERATION: u32 = 15;

/// Whether rows alone are multiplied as two. Chosen once, when a worker starts.
static PAIRED: AtomicBool = AtomicBool::new(false);

/// Whether this device needs exact lanes: one row has other bits there than in a block.
pub fn needs_exact_lanes() -> bool {
    needs(gpu_architecture().as_deref())
}

fn needs(architecture: Option<&str>) -> bool {
    architecture.and_then(generation).is_some_and(|generation| generation >= FIRST_GENERATION)
}

/// The generation in a name such as `applegpu_g15s`.
fn generation(architecture: &str) -> Option<u32> {
    let digits = architecture.strip_prefix("applegpu_g")?;
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Switches exact lanes on or off for products that are made from now on.
pub fn set_exact_lanes(on: bool) {
    PAIRED.store(on, Ordering::Relaxed);
}

/// Whether exact lanes are on.
pub fn exact_lanes() -> bool {
    PAIRED.load(Ordering::Relaxed)
}

/// `product` of `x` `[rows, in]` → `[rows, out]`. With exact lanes a row alone is given to it twice.
pub(crate) fn exact(x: &Array, product: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    if x.ndim() != 2 || x.dim(0) != 1 || !exact_lanes() || !on_gpu() {
        return product(x);
    }
    let both = product(&concatenate(&[x, x], 0)?)?;
    Ok(both.try_index((..1, ..))?)
}

/// Unit in which the logits of a model are known that computes in `dtype`: the distance of
/// neighbouring numbers of that type from 16 to 32, where the largest logits of language models lie.
/// 0 for float32, whose unit is far below every margin that is counted.
pub fn logit_unit(dtype: mlx_rs::Dtype) -> f32 {
    match dtype {
        // 8 and 11 bits of precision.
        mlx_rs::Dtype::Bfloat16 => 0.125,
        mlx_rs::Dtype::Float16 => 0.015_625,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;

    use super::*;
    use crate::device::{DeviceChoice, choose};

    #[test]
    fn chips_from_the_third_generation_of_macs_on_need_exact_lanes() {
        let chips = [
            ("applegpu_g13g", false),
            ("applegpu_g14s", false),
            ("applegpu_g15s", true),
            ("applegpu_g16d", true),
            ("applegpu_g17", true),
            ("sm_90", false),
            ("applegpu_gx", false),
        ];
        for (architecture, expected) in chips {
            assert_eq!(needs(Some(architecture)), expected, "{architecture}");
        }
        assert!(!needs(None));
    }

    #[test]
    fn a_unit_is_the_distance_of_neighbouring_numbers_from_16_to_32() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        for dtype in [Dtype::Bfloat16, Dtype::Float16] {
            let rounded = |number: f32| {
                let there = Array::from_f32(number).as_dtype(dtype).expect("converts");
                let back = there.as_dtype(Dtype::Float32).expect("converts");
                back.eval().expect("evaluates");
                back.try_item_exact::<f32>().expect("a number")
            };
            let unit = logit_unit(dtype);
            for base in [16.0, 24.0, 32.0 - unit] {
                assert_eq!(rounded(base + unit), base + unit, "{dtype:?}");
                assert_ne!(rounded(base + unit / 2.0), base + unit / 2.0, "{dtype:?}");
            }
        }
        assert_eq!(logit_unit(Dtype::Float32), 0.0);
    }
}
