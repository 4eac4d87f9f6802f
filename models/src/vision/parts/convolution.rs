//! Convolutions whose windows do not overlap, as products.

use crate::layers::Linear;
use crate::load::{ConfigJson, LoadError, Weights};

/// Reads a convolution over squares of rows that lie one after another, from the top, left to right:
/// `{name}.weight`, `[out, in, rows, columns]` as transformers stores it, or `[out, rows, columns, in]`
/// as MLX does, and `{name}.bias`. The product is over a square's numbers. The shape tells the order,
/// not the names.
///
/// # Errors
/// A tensor is missing or has another shape, or both orders have this one. `named`: the config of the
/// sizes.
pub(in crate::vision) fn convolution_as_product(
    weights: &mut Weights,
    name: &str,
    [out, inputs, rows, columns]: [i32; 4],
    named: &ConfigJson,
) -> Result<Linear, LoadError> {
    let weight = format!("{name}.weight");
    let (first, last) = ([out, inputs, rows, columns], [out, rows, columns, inputs]);
    if first == last && rows * columns > 1 {
        let what = format!(
            "expected sizes by which the axes of tensor {weight} can be told apart, found {first:?}"
        );
        return Err(named.wrong("hidden_size", what).into());
    }
    let has_last = weights
        .shape(&weight)
        .is_some_and(|shape| shape.iter().map(|size| *size as i64).eq(last.map(i64::from)));
    let matrix = match has_last {
        true => weights.take(&weight, &last)?,
        false => weights.take(&weight, &first)?.transpose_axes(&[0, 2, 3, 1])?,
    };
    let matrix = matrix.reshape(&[out, rows * columns * inputs])?;
    matrix.eval()?;
    Linear::new(&matrix, weights.take(&format!("{name}.bias"), &[out])?)
}
