//! Products by matrices of float32. The bits are those of the same product through
//! [`crate::cblas_sgemm`], which is how MLX asks for it.

use crate::kernel::Product;
use crate::pool;
use crate::quantized::FloatRows;
use crate::sgemm::kernels;

/// x · Wᵀ into `out`, rows of `outputs` numbers; `weight` is `[outputs, inputs]`.
///
/// # Panics
/// `weight` is not made of rows as long as those of x, or `out` has another size.
pub fn product(x: FloatRows<'_>, weight: &[f32], outputs: usize, out: &mut [f32]) {
    x.check();
    assert!(
        outputs.checked_mul(x.length) == Some(weight.len()) && out.len() == x.count * outputs,
        "expected {outputs} rows of {} numbers and room for {outputs} for each of {} rows, found \
         {} numbers and room for {}",
        x.length,
        x.count,
        weight.len(),
        out.len()
    );
    if out.is_empty() {
        return;
    }
    if x.length == 0 {
        return out.fill(0.0);
    }
    let product = Product {
        transposed: true,
        m: x.count,
        n: outputs,
        k: x.length,
        alpha: 1.0,
        a: x.numbers.as_ptr(),
        a_row: x.stride,
        a_step: 1,
        packed: std::ptr::null(),
        b: weight.as_ptr(),
        ldb: x.length,
        weight: std::ptr::null(),
        beta: 0.0,
        c: out.as_mut_ptr(),
        ldc: outputs,
    };
    // SAFETY: the sizes were checked above; `kernels` are of this processor.
    unsafe { pool::run(kernels(), &product) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_the_bits_of_the_exported_function() {
        let wave = |count: usize, step: f32| -> Vec<f32> {
            (0..count).map(|at| (at as f32 * step).sin()).collect()
        };
        for (rows, outputs, inputs) in [(1, 70, 33), (5, 300, 64), (40, 17, 129), (2, 3, 1)] {
            // Rows two numbers further apart than they are long.
            let (x, weight) = (wave(rows * (inputs + 2), 0.37), wave(outputs * inputs, 0.11));
            let (mut found, mut expected) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
            let rows_of_x =
                FloatRows { numbers: &x, count: rows, stride: inputs + 2, length: inputs };
            product(rows_of_x, &weight, outputs, &mut found);
            let [m, n, k, lda] = [rows, outputs, inputs, inputs + 2].map(|size| size as i32);
            // SAFETY: the matrices are as large as the sizes say.
            unsafe {
                let (x, w, out) = (x.as_ptr(), weight.as_ptr(), expected.as_mut_ptr());
                crate::cblas_sgemm(101, 111, 112, m, n, k, 1.0, x, lda, w, k, 0.0, out, n);
            }
            assert_eq!(found, expected, "{rows} rows, {outputs} x {inputs}");
        }
    }

    #[test]
    fn nothing_to_sum_gives_zeros() {
        let mut out = [1.0; 4];
        product(FloatRows { numbers: &[], count: 2, stride: 0, length: 0 }, &[], 2, &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}
