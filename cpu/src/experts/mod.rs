//! Products by the experts of a layer: each row by those that it chose. Rows are sorted by expert, so
//! that the weights of an expert are read once for all of its rows. A row's numbers have the same
//! bits whatever the other rows chose (I1).

use crate::kernel::{Product, QuantizedWeight};
use crate::pool;
use crate::quantized::{FloatRows, QuantizedMatrix};
use crate::sgemm::kernels;

/// The matrices of all experts, one after another, each `[outputs, inputs]`.
#[derive(Clone, Copy, Debug)]
pub enum ExpertMatrices<'a> {
    /// The float32 numbers of all experts, one matrix after another.
    Floats(&'a [f32]),
    /// One matrix of as many rows as all experts have.
    Quantized(QuantizedMatrix<'a>),
}

/// The sizes of a layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Number of experts.
    pub experts: usize,
    /// Rows of an expert's matrix.
    pub outputs: usize,
    /// Numbers of such a row.
    pub inputs: usize,
}

/// The slots of an expert among the sorted ones.
struct Run {
    expert: usize,
    from: usize,
    to: usize,
}

/// x · Wᵀ by the experts `ids` of each row, into `out` `[rows, chosen, outputs]`; `ids` are rows of
/// as many experts as there are ids for a row of x. An id that no expert has gives NaN, so that the
/// check of the logits finds it.
///
/// # Panics
/// Rows of x, the matrices, `ids` or `out` have other sizes.
pub fn product(
    x: FloatRows<'_>,
    ids: &[u32],
    matrices: &ExpertMatrices<'_>,
    sizes: ExpertSizes,
    out: &mut [f32],
) {
    let ExpertSizes { experts, outputs, inputs } = sizes;
    x.check();
    let chosen = ids.len().checked_div(x.count).unwrap_or(0);
    assert!(
        x.length == inputs && ids.len() == x.count * chosen && out.len() == ids.len() * outputs,
        "expected rows of {inputs} numbers and room for {outputs} numbers for each of {} experts, \
         found {} rows of {} and room for {}",
        ids.len(),
        x.count,
        x.length,
        out.len()
    );
    let found = match matrices {
        ExpertMatrices::Floats(numbers) => numbers.len(),
        ExpertMatrices::Quantized(matrix) => matrix.outputs() * matrix.inputs(),
    };
    assert!(
        Some(found) == experts.checked_mul(outputs).and_then(|rows| rows.checked_mul(inputs)),
        "expected {experts} matrices of {outputs} x {inputs}, found {found} numbers"
    );
    if let ExpertMatrices::Quantized(matrix) = matrices {
        matrix.check_parts(outputs);
    }
    if out.is_empty() {
        return;
    }
    if inputs == 0 {
        return out.fill(0.0);
    }
    let order = by_expert(ids, experts);
    let runs = runs(ids, &order, experts);
    let known = runs.last().map_or(0, |run| run.to);
    let mut rows = Vec::with_capacity(known * inputs);
    order[..known].iter().for_each(|slot| {
        rows.extend_from_slice(&x.numbers[slot / chosen * x.stride..][..inputs]);
    });
    let mut sums = vec![0.0; known * outputs];
    multiply(&rows, &runs, matrices, sizes, &mut sums);
    for (slot, sums) in order.iter().zip(sums.chunks_exact(outputs)) {
        out[slot * outputs..][..outputs].copy_from_slice(sums);
    }
    for slot in &order[known..] {
        out[slot * outputs..][..outputs].fill(f32::NAN);
    }
}

/// Slots sorted by expert, in their own order within each; those of no expert are the last.
fn by_expert(ids: &[u32], experts: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|slot| (ids[*slot] as usize).min(experts));
    order
}

/// The runs of sorted slots with an expert.
fn runs(ids: &[u32], order: &[usize], experts: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, slot) in order.iter().enumerate() {
        let expert = ids[*slot] as usize;
        match runs.last_mut() {
            _ if expert >= experts => break,
            Some(run) if run.expert == expert => run.to = at + 1,
            _ => runs.push(Run { expert, from: at, to: at + 1 }),
        }
    }
    runs
}

/// Multiplies each run's rows by its expert's matrix.
fn multiply(
    rows: &[f32],
    runs: &[Run],
    matrices: &ExpertMatrices<'_>,
    ExpertSizes { outputs, inputs, .. }: ExpertSizes,
    sums: &mut [f32],
) {
    let quantized: Vec<QuantizedWeight> = match matrices {
        ExpertMatrices::Floats(_) => Vec::new(),
        ExpertMatrices::Quantized(matrix) => {
            runs.iter().map(|run| matrix.weight(run.expert * outputs)).collect()
        }
    };
    let sums = sums.as_mut_ptr();
    let products: Vec<Product> = runs
        .iter()
        .enumerate()
        .map(|(at, run)| {
            let (weight, b) = match matrices {
                ExpertMatrices::Floats(numbers) => {
                    (std::ptr::null(), numbers[run.expert * outputs * inputs..].as_ptr())
                }
                ExpertMatrices::Quantized(_) => (&raw const quantized[at], std::ptr::null()),
            };
            Product {
                transposed: true,
                m: run.to - run.from,
                n: outputs,
                k: inputs,
                alpha: 1.0,
                a: rows[run.from * inputs..].as_ptr(),
                a_row: inputs,
                a_step: 1,
                packed: std::ptr::null(),
                b,
                ldb: inputs,
                weight,
                beta: 0.0,
                // SAFETY: a run's rows are sums' rows.
                c: unsafe { sums.add(run.from * outputs) },
                ldc: outputs,
            }
        })
        .collect();
    // SAFETY: the sizes were checked in `product`; `kernels` are of this processor; runs do not
    // overlap.
    unsafe { pool::run_several(kernels(), &products) }
}

#[cfg(test)]
mod tests;
