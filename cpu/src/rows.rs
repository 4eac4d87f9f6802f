//! Functions of rows, float32: what a forward does between its products. A row's result has the
//! same bits whatever other rows there are and however many threads (I1). Many rows are given out
//! to the threads of products.

use crate::pool::fill_rows;
use crate::sgemm::kernels;

pub use crate::kernel::{Affine, Rotation};
pub use crate::largest::largest;

/// What [`gated`] and [`gated_by`] do with a number before it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^−x).
    Silu,
    /// The Gaussian error linear unit by tanh.
    Gelu,
}

/// act(gate) · up into `out`, rows of `width`; `both(row)` is gate and up, one after another
/// (arXiv 2002.05202).
///
/// # Panics
/// A row is shorter.
pub fn gated<'a>(
    both: impl Fn(usize) -> &'a [f32] + Sync,
    activation: Activation,
    width: usize,
    out: &mut [f32],
) {
    gated_by(|row| &both(row)[..width], activation, |row| &both(row)[width..], width, out);
}

/// x / sqrt(mean(x²) + eps) · weight into `out`, rows of the weight's length (arXiv 1910.07467).
///
/// # Panics
/// A row is shorter.
pub fn norm<'a>(x: impl Fn(usize) -> &'a [f32] + Sync, weight: &[f32], eps: f32, out: &mut [f32]) {
    let function = kernels().functions.norm;
    // SAFETY: `kernels` are of this processor.
    fill_rows(out, weight.len(), weight.len(), |row, out| unsafe {
        function(&x(row)[..weight.len()], weight, eps, out)
    });
}

/// The heads of a row.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Number of heads.
    pub count: usize,
    /// Numbers of a head.
    pub dim: usize,
}

/// Heads of `dim` into `out`, rows of `heads` of them: each normed by `weight` (one for all heads,
/// or one for each), then rotated by its row's position, index i with i + R/2 (arXiv 2104.09864). R
/// is the length of the rotation's tables, at most `dim`; the numbers behind are normed only.
/// `x(row)` holds head number `place(head)` of these.
///
/// # Panics
/// A row or the weight is shorter, a table is longer, or the tables' length is odd.
pub fn norm_rotate<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    place: impl Fn(usize) -> usize + Sync,
    weight: &[f32],
    eps: f32,
    Heads { count: heads, dim }: Heads,
    rotation: impl Fn(usize) -> Rotation<'a> + Sync,
    out: &mut [f32],
) {
    assert!(
        weight.len() == dim || weight.len() == heads * dim,
        "expected a weight for {heads} heads of {dim}"
    );
    let function = kernels().functions.norm_rotate;
    fill_rows(out, heads * dim, heads * dim, |row, out| {
        let (x, rotation) = (x(row), rotation(row));
        let rotary_dim = rotation.cos.len();
        assert!(
            rotary_dim % 2 == 0 && rotary_dim <= dim && rotation.sin.len() == rotary_dim,
            "expected two tables of an even length up to {dim}, found {rotary_dim}"
        );
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let weight = if weight.len() == dim { weight } else { &weight[head * dim..][..dim] };
            // SAFETY: `kernels` are of this processor.
            unsafe { function(&x[place(head) * dim..][..dim], weight, eps, rotation, out) }
        }
    });
}

/// Heads of `dim` into `out`, rows of `heads` of them, each normed by `weight` (one for all heads, or
/// one for each). `x(row)` begins with the heads.
///
/// # Panics
/// A row or the weight is shorter.
pub fn norm_heads<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    weight: &[f32],
    eps: f32,
    heads: Heads,
    out: &mut [f32],
) {
    // Of no numbers that rotate.
    norm_rotate(x, |head| head, weight, eps, heads, |_| Rotation { cos: &[], sin: &[] }, out);
}

/// x / (1 + e^−gate), number by number, into `out`, rows of `heads` heads of `dim`. Head h of
/// `gates(row)` is its head number `place(h)`.
///
/// # Panics
/// A row is shorter.
pub fn gated_by_heads<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    gates: impl Fn(usize) -> &'a [f32] + Sync,
    place: impl Fn(usize) -> usize + Sync,
    Heads { count: heads, dim }: Heads,
    out: &mut [f32],
) {
    let function = kernels().delta.sigmoid_gated;
    fill_rows(out, heads * dim, heads * dim, |row, out| {
        let (x, gates) = (x(row), gates(row));
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let gate = &gates[place(head) * dim..][..dim];
            // SAFETY: `kernels` are of this processor.
            unsafe { function(&x[head * dim..][..dim], gate, out) }
        }
    });
}

/// x / rms(x) · weight · silu(gate) of each head of the weight's length into `out`, rows of `width`
/// numbers. `gates(row)` begins with the gates of the row.
///
/// # Panics
/// A row is shorter, or `width` is not made of whole heads.
pub fn norm_gated<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    gates: impl Fn(usize) -> &'a [f32] + Sync,
    weight: &[f32],
    eps: f32,
    width: usize,
    out: &mut [f32],
) {
    let dim = weight.len();
    assert!(width.is_multiple_of(dim), "expected heads of {dim}, found {width} numbers");
    let function = kernels().delta.norm_gated;
    fill_rows(out, width, width, |row, out| {
        let (x, gates) = (x(row), gates(row));
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let part = |numbers: &'a [f32]| &numbers[head * dim..][..dim];
            // SAFETY: `kernels` are of this processor.
            unsafe { function(part(x), part(gates), weight, eps, out) }
        }
    });
}

/// Heads of `dim` into `out`, rows of `heads` of them, rotated by their rows' positions as
/// [`norm_rotate`] rotates: the numbers behind those that rotate stay. `x(row)` begins with the heads.
///
/// # Panics
/// A row is shorter, or the tables are no even number of numbers up to `dim`.
pub fn rotate<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    Heads { count: heads, dim }: Heads,
    rotation: impl Fn(usize) -> Rotation<'a> + Sync,
    out: &mut [f32],
) {
    let function = kernels().functions.rotate;
    fill_rows(out, heads * dim, heads * dim, |row, out| {
        let (x, rotation) = (x(row), rotation(row));
        let rotary_dim = rotation.cos.len();
        assert!(
            rotary_dim % 2 == 0 && rotary_dim <= dim && rotation.sin.len() == rotary_dim,
            "expected two tables of an even length up to {dim}, found {rotary_dim}"
        );
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let x = &x[head * dim..][..dim];
            out[rotary_dim..].copy_from_slice(&x[rotary_dim..]);
            // SAFETY: `kernels` are of this processor.
            unsafe { function(&x[..rotary_dim], rotation, &mut out[..rotary_dim]) }
        }
    });
}

/// (x − mean) / sqrt(variance + eps) · weight + bias into `out`, rows of the weight's length (arXiv
/// 1607.06450).
///
/// # Panics
/// A row or the bias is shorter.
pub fn layer_norm<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    affine: Affine<'_>,
    eps: f32,
    out: &mut [f32],
) {
    let (function, length) = (kernels().functions.layer_norm, affine.weight.len());
    let affine = Affine { bias: &affine.bias[..length], ..affine };
    // SAFETY: `kernels` are of this processor.
    fill_rows(out, length, length, |row, out| unsafe {
        function(&x(row)[..length], affine, eps, out)
    });
}

/// x + y, number by number, into `out`, rows of `length`.
///
/// # Panics
/// A slice has another size.
pub fn add(x: &[f32], y: &[f32], length: usize, out: &mut [f32]) {
    assert!(
        x.len() == out.len() && y.len() == out.len(),
        "expected twice {} numbers, found {} and {}",
        out.len(),
        x.len(),
        y.len()
    );
    fill_rows(out, length, length, |row, out| {
        let (x, y) = (&x[row * length..][..length], &y[row * length..][..length]);
        out.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum = x + y);
    });
}

/// Adds `bias` to every row of `rows`, which are as long as it.
pub fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    fill_rows(rows, bias.len(), bias.len(), |_, row| {
        row.iter_mut().zip(bias).for_each(|(sum, number)| *sum += number);
    });
}

/// act(x) · y, number by number, into `out`, rows of `length`.
///
/// # Panics
/// A row is shorter.
pub fn gated_by<'a>(
    x: impl Fn(usize) -> &'a [f32] + Sync,
    activation: Activation,
    y: impl Fn(usize) -> &'a [f32] + Sync,
    length: usize,
    out: &mut [f32],
) {
    let (silu, gelu) = (kernels().functions.gated, kernels().functions.gelu);
    fill_rows(out, length, length, |row, out| {
        let (x, y) = (&x(row)[..length], &y(row)[..length]);
        match activation {
            // SAFETY: `kernels` are of this processor.
            Activation::Silu => unsafe { silu(x, y, out) },
            Activation::Gelu => {
                out.copy_from_slice(x);
                // SAFETY: as above.
                unsafe { gelu(out) };
                out.iter_mut().zip(y).for_each(|(out, y)| *out *= y);
            }
        }
    });
}

/// In place: cap · tanh(x / cap).
pub fn softcap(x: &mut [f32], cap: f32) {
    /// Logits of one part. The parts of a row are given to all threads.
    const PART: usize = 4096;
    let capped = |x: &mut [f32]| x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    let (parts, rest) = x.split_at_mut(x.len() / PART * PART);
    fill_rows(parts, PART, 8 * PART, |_, part| capped(part));
    capped(rest);
}

/// In place, rows of `length`: the Gaussian error linear unit by tanh (arXiv 1606.08415).
pub fn gelu(x: &mut [f32], length: usize) {
    let function = kernels().functions.gelu;
    // SAFETY: `kernels` are of this processor.
    fill_rows(x, length, length, |_, x| unsafe { function(x) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Functions, available};

    /// Numbers between -1 and 1 times a size, the same each time.
    fn numbers(count: usize, size: f32) -> Vec<f32> {
        let mut state = 0x2545_f491_u32;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 * 2.0 - 1.0) * size
        };
        (0..count).map(next).collect()
    }

    fn check(found: &[f32], expected: impl Iterator<Item = f64>, off: f64, what: &str) {
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let far = (f64::from(*found) - expected).abs();
            assert!(
                far <= off * expected.abs().max(1e-30) || far < 1e-37,
                "{what}: at {at} expected {expected}, found {found}"
            );
        }
    }

    fn gelu_of(x: f64) -> f64 {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
    }

    fn silu(x: f32) -> f64 {
        f64::from(x) / (1.0 + (-f64::from(x)).exp())
    }

    /// One instruction set's functions, and rows of one length to compute.
    struct Rows {
        functions: Functions,
        what: String,
        length: usize,
        /// `length` numbers.
        x: Vec<f32>,
        /// Twice as many.
        y: Vec<f32>,
    }

    impl Rows {
        /// Every instruction set with rows of many lengths.
        fn all() -> impl Iterator<Item = Rows> {
            available().flat_map(|kernels| {
                [1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 768].into_iter().map(move |length| Rows {
                    functions: kernels.functions,
                    what: format!("{}, {length}", kernels.name),
                    length,
                    x: numbers(length, 20.0),
                    y: numbers(2 * length, 3.0),
                })
            })
        }

        /// √(mean of x² + 1e-6).
        fn rms(&self) -> f64 {
            let squares = self.x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            (squares / self.length as f64 + 1e-6).sqrt()
        }

        /// The largest of some numbers of x.
        fn largest(&self, range: std::ops::Range<usize>) -> f64 {
            f64::from(self.x[range].iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x)))
        }
    }

    #[test]
    fn both_activations_gate_and_logits_are_capped() {
        let (both, width) = (numbers(2 * 2 * 70, 4.0), 70);
        let row = |at: usize| &both[2 * width * at..][..2 * width];
        for activation in [Activation::Silu, Activation::Gelu] {
            let mut out = vec![f32::NAN; 2 * width];
            gated(row, activation, width, &mut out);
            let act = |x: f32| match activation {
                Activation::Silu => silu(x),
                Activation::Gelu => gelu_of(f64::from(x)),
            };
            let of_row =
                |at| (0..width).map(move |i| act(row(at)[i]) * f64::from(row(at)[width + i]));
            check(&out, (0..2).flat_map(of_row), 2e-6, &format!("{activation:?}"));
        }
        // More than one part, and a rest.
        let logits = numbers(10_000, 90.0);
        let mut capped = logits.clone();
        softcap(&mut capped, 30.0);
        let expected = logits.iter().map(|x| 30.0 * (f64::from(*x) / 30.0).tanh());
        check(&capped, expected, 2e-6, "capped");
    }

    #[test]
    fn gates_and_activations_equal_their_formulas() {
        for rows in Rows::all() {
            let Rows { functions, what, length, x, y } = &rows;
            let mut out = vec![f32::NAN; *length];
            // SAFETY: `available` are of this processor.
            unsafe { (functions.gated)(x, &y[..*length], &mut out) };
            let expected = x.iter().zip(y).map(|(gate, up)| silu(*gate) * f64::from(*up));
            check(&out, expected, 1e-6, what);

            let mut gelus: Vec<f32> = x.iter().map(|x| x / 3.0).collect();
            let expected: Vec<f64> = gelus.iter().map(|x| gelu_of(f64::from(*x))).collect();
            // SAFETY: as above.
            unsafe { (functions.gelu)(&mut gelus) };
            // Where little is left of x, 1 + e^… has lost what the power lacks.
            for (at, (found, expected)) in gelus.iter().zip(&expected).enumerate() {
                let far = (f64::from(*found) - expected).abs();
                assert!(
                    far < 3e-6 * expected.abs() + 1e-7,
                    "{what}: at {at} expected {expected}, found {found}"
                );
            }
        }
    }

    #[test]
    fn norms_equal_their_formulas() {
        for rows in Rows::all() {
            let rms = rows.rms();
            let Rows { functions, what, length, x, y } = &rows;
            let mut out = vec![f32::NAN; *length];
            // SAFETY: `available` are of this processor.
            unsafe { (functions.norm)(x, &y[..*length], 1e-6, &mut out) };
            let expected = x.iter().zip(y).map(|(x, w)| f64::from(*x) / rms * f64::from(*w));
            check(&out, expected, 1e-5, what);

            let count = *length as f64;
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
            let spread = (squares / count + 1e-2).sqrt();
            let affine = Affine { weight: &y[..*length], bias: &y[*length..] };
            // SAFETY: as above.
            unsafe { (functions.layer_norm)(x, affine, 1e-2, &mut out) };
            for (at, found) in out.iter().enumerate() {
                let expected = (f64::from(x[at]) - mean) / spread * f64::from(y[at])
                    + f64::from(y[length + at]);
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-5,
                    "{what}: at {at} expected {expected}, found {found}"
                );
            }
        }
    }

    #[test]
    fn powers_equal_their_formula() {
        for rows in Rows::all() {
            let Rows { functions, what, length, x, .. } = &rows;
            // Scaled so that the least powers are no longer normal numbers.
            let (third, half) = (length / 3, length / 2);
            for range in [0..*length, third..*length, 0..length - third, half..half] {
                let mut powers = x.clone();
                // SAFETY: `available` are of this processor.
                let [largest, sum] =
                    unsafe { (functions.powers)(&mut powers, 1.7, range.start, range.end) };
                let most = rows.largest(range.clone());
                let power = |x: &f32| ((f64::from(*x) - most) * 1.7).exp();
                let total: f64 = x[range.clone()].iter().map(power).sum();
                assert_eq!(f64::from(largest), most, "{what}");
                assert!((f64::from(sum) - total).abs() <= 1e-5 * total, "{what}: {sum}, {total}");
                let expected = |(at, x): (usize, &f32)| {
                    if range.contains(&at) { power(x) } else { 0.0 }
                };
                check(&powers, x.iter().enumerate().map(expected), 1e-4, what);
                let outside = powers[..range.start].iter().chain(&powers[range.end..]);
                assert!(outside.into_iter().all(|power| *power == 0.0), "{what}");
            }
        }
    }

    #[test]
    fn rotations_equal_their_formulas() {
        for rows in Rows::all().filter(|rows| rows.length % 2 == 0) {
            let rms = rows.rms();
            let Rows { functions, what, length, x, y } = &rows;
            let half = length / 2;
            let rotation = Rotation { cos: &y[..*length], sin: &y[*length..] };
            // A rotation of `n` by the tables, and the bound of its error.
            let close = |out: &[f32], n: &[f64], factor: f64| {
                for (at, found) in out.iter().enumerate() {
                    let (own, other) = (n[at], n[(at + half) % length]);
                    let expected =
                        own * f64::from(rotation.cos[at]) + other * f64::from(rotation.sin[at]);
                    let bound = 1e-5 * (own.abs() + other.abs() + 1.0) * factor;
                    assert!((f64::from(*found) - expected).abs() < bound, "{what}: {at}");
                }
            };
            let weight = numbers(*length, 2.0);
            let mut out = vec![f32::NAN; *length];
            // SAFETY: `available` are of this processor.
            unsafe { (functions.norm_rotate)(x, &weight, 1e-6, rotation, &mut out) };
            let normed = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / rms * f64::from(*w));
            close(&out, &normed.collect::<Vec<_>>(), 6.0);
            // SAFETY: as above.
            unsafe { (functions.rotate)(x, rotation, &mut out) };
            close(&out, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), 1.0);
        }
    }

    #[test]
    fn powers_are_right_to_the_last_places_and_never_infinite() {
        for kernels in available() {
            for step in -870..=0 {
                let x = step as f32 * 0.1;
                let mut pair = [x, 0.0];
                // SAFETY: `available` are of this processor.
                let found = unsafe { (kernels.functions.powers)(&mut pair, 1.0, 0, 2) };
                let power = f64::from(x).exp();
                check(&pair, [power, 1.0].into_iter(), 3e-7, kernels.name);
                check(&found, [0.0, 1.0 + power].into_iter(), 3e-7, kernels.name);
            }
            for x in [-1e30f32, -1000.0, 1000.0, 1e30, f32::INFINITY] {
                let mut out = [x];
                // SAFETY: as above.
                unsafe { (kernels.functions.gelu)(&mut out) };
                assert_eq!(
                    out[0],
                    if x > 0.0 { x } else { out[0].clamp(-1e-7, 0.0) },
                    "{}: {x}",
                    kernels.name
                );
                let mut out = [f32::NAN];
                // SAFETY: as above.
                unsafe { (kernels.functions.gated)(&[x], &[1.0], &mut out) };
                assert_eq!(
                    out[0],
                    if x > 0.0 { x } else { out[0].clamp(-1e-7, 0.0) },
                    "{}: {x}",
                    kernels.name
                );
            }
        }
    }

    #[test]
    fn a_nan_is_kept_where_it_is_visible() {
        for kernels in available() {
            for at in [0, 3, 17] {
                let mut x = numbers(18, 1.0);
                x[at] = f32::NAN;
                let mut out = vec![0.0; 18];
                let mut powers = x.clone();
                // SAFETY: as above.
                let [_, sum] = unsafe {
                    (kernels.functions.gated)(&x, &[1.0; 18], &mut out);
                    (kernels.functions.powers)(&mut powers, 1.0, 0, 18)
                };
                assert!(out[at].is_nan() && sum.is_nan(), "{}", kernels.name);
                // A key outside of the range is not read.
                let mut powers = x.clone();
                // SAFETY: as above.
                let [_, sum] = unsafe { (kernels.functions.powers)(&mut powers, 1.0, at + 1, 18) };
                let none = powers.iter().all(|power| !power.is_nan());
                assert!(none && !sum.is_nan(), "{}", kernels.name);
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_many() {
        let (rows, width) = (300, 768);
        let (x, weight) = (numbers(2 * rows * width, 4.0), numbers(width, 1.0));
        let row = |at: usize| &x[at * 2 * width..][..2 * width];
        let angles = numbers(rows * 128, 1.0);
        let rotation = |at: usize| Rotation {
            cos: &angles[at * 128..][..64],
            sin: &angles[at * 128 + 64..][..64],
        };
        let all = |first: usize, count: usize| {
            let mut out = vec![vec![0.0; count * width]; 7];
            gated(|at| row(first + at), Activation::Silu, width, &mut out[0]);
            norm(|at| row(first + at), &weight, 1e-6, &mut out[1]);
            norm_rotate(
                |at| row(first + at),
                |head| head,
                &weight,
                1e-6,
                Heads { count: 12, dim: 64 },
                |at| rotation(first + at),
                &mut out[2],
            );
            (0..count).for_each(|at| {
                out[3][at * width..][..width].copy_from_slice(&row(first + at)[..width])
            });
            gelu(&mut out[3], width);
            layer_norm(
                |at| row(first + at),
                Affine { weight: &weight, bias: &x[..width] },
                1e-6,
                &mut out[4],
            );
            let heads = Heads { count: 12, dim: 64 };
            super::rotate(|at| row(first + at), heads, |at| rotation(first + at), &mut out[5]);
            norm_heads(|at| row(first + at), &weight, 1e-6, heads, &mut out[6]);
            out
        };
        crate::set_threads(3);
        let together = all(0, rows);
        for at in [0, 1, 150, 299] {
            let alone = all(at, 1);
            for (function, (together, alone)) in together.iter().zip(&alone).enumerate() {
                let bits =
                    |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&together[at * width..][..width]),
                    bits(alone),
                    "function {function}, row {at}"
                );
            }
        }
    }
}
