//! The functions between a model's products, as single nodes of the graph. The crate `cpu`
//! computes them where it is faster than MLX: on the CPU of Linux, in float32. Everywhere else they
//! return `None`, and the caller uses MLX.

mod arranged;
mod hybrid;

use mlx_rs::{Array, Dtype};
use mlx_sys::{HostNumbers, HostOutput as Output, HostRows};
use paceline_cpu::attention::{KeyValues, attention};
use paceline_cpu::experts::{self, ExpertMatrices, ExpertSizes};
use paceline_cpu::quantized::{self, Factors, FloatRows, QuantizedFormat, QuantizedMatrix};
use paceline_cpu::rows;

use super::{
    ExpertParts, Gate, HeadRows, QuantizedParts, QueryRows, RopeTables, RotatedHeads, RowPlaces,
    RowWrite, StoredHeads, VisibleKeys,
};
use crate::error::{ModelError, Result};
use crate::load::scaled_row;

pub(crate) use arranged::{arrange, restored, rows_of};
pub(crate) use hybrid::{advance, fold, gated_by_heads, norm_gated};

/// Whether these arrays' values are computed here.
pub(crate) fn computes(arrays: &[&Array]) -> bool {
    arrays.iter().all(|array| array.dtype() == Dtype::Float32) && crate::device::allows_nodes()
}

/// act(gate) · up of `both` `[rows, 2 · width]`, gate first → `[rows, width]`.
///
/// # Errors
/// Memory is out.
pub(crate) fn gated(both: &Array, gate: Gate) -> Result<Option<Array>> {
    if !computes(&[both]) {
        return Ok(None);
    }
    let (rows, width) = (both.dim(0), both.dim(1) / 2);
    node(&[both], &[rows, width], Output::Fresh, move |inputs, out| {
        rows::gated(|row| inputs[0].row(row), gate.activation(), width as usize, out);
    })
    .map(Some)
}

/// The norm of the last axis of `x` `[rows, size]` by `weight` `[size]` → the same shape.
///
/// # Errors
/// Memory is out.
pub(crate) fn norm(x: &Array, weight: &Array, eps: f32) -> Result<Option<Array>> {
    if x.ndim() != 2 || !computes(&[x, weight]) {
        return Ok(None);
    }
    node(&[x, weight], x.shape(), Output::Fresh, move |inputs, out| {
        rows::norm(|row| inputs[0].row(row), &whole(&inputs[1]), eps, out);
    })
    .map(Some)
}

/// Some heads of `x` `[rows, more heads, dim]`, each normed by `weight` (`[dim]`, or
/// `[heads, dim]`) and rotated by its row's position → `[rows, heads, dim]`. Of each head only as
/// many numbers rotate as the tables have.
///
/// # Errors
/// Memory is out.
pub(crate) fn norm_rotate(
    x: &Array,
    heads: &RotatedHeads,
    weight: &Array,
    eps: f32,
    rotation: &RopeTables,
) -> Result<Option<Array>> {
    let Some((cos, sin)) = rotation.tables() else { return Ok(None) };
    if !computes(&[x, weight, cos, sin]) {
        return Ok(None);
    }
    let (rows, dim, heads) = (x.dim(0), x.dim(2), heads.clone());
    let count = heads.count();
    let sizes = rows::Heads { count: count as usize, dim: dim as usize };
    node(&[x, weight, cos, sin], &[rows, count, dim], Output::Fresh, move |inputs, out| {
        let rotation = |row| rows::Rotation { cos: inputs[2].row(row), sin: inputs[3].row(row) };
        let (x, weight) = (|row| inputs[0].row(row), whole(&inputs[1]));
        rows::norm_rotate(x, |head| heads.place(head), &weight, eps, sizes, rotation, out);
    })
    .map(Some)
}

/// All heads of `x` `[rows, heads, dim]`, each normed by `weight` (`[dim]`, or `[heads, dim]`) → the
/// same shape.
///
/// # Errors
/// Memory is out.
pub(crate) fn norm_heads(x: &Array, weight: &Array, eps: f32) -> Result<Option<Array>> {
    if !computes(&[x, weight]) {
        return Ok(None);
    }
    let sizes = rows::Heads { count: x.dim(1) as usize, dim: x.dim(2) as usize };
    node(&[x, weight], x.shape(), Output::Fresh, move |inputs, out| {
        rows::norm_heads(|row| inputs[0].row(row), &whole(&inputs[1]), eps, sizes, out);
    })
    .map(Some)
}

/// The first `heads` heads of `x` `[rows, at least that many, dim]`, the first numbers of each rotated
/// by its row's position → `[rows, heads, dim]`.
///
/// # Errors
/// Memory is out.
pub(crate) fn rotate(x: &Array, heads: i32, rotation: &RopeTables) -> Result<Option<Array>> {
    let Some((cos, sin)) = rotation.tables() else { return Ok(None) };
    if !computes(&[x, cos, sin]) || cos.dim(2) > x.dim(2) {
        return Ok(None);
    }
    let (rows, dim) = (x.dim(0), x.dim(2));
    let sizes = rows::Heads { count: heads as usize, dim: dim as usize };
    node(&[x, cos, sin], &[rows, heads, dim], Output::Fresh, move |inputs, out| {
        let rotation = |row| rows::Rotation { cos: inputs[1].row(row), sin: inputs[2].row(row) };
        rows::rotate(|row| inputs[0].row(row), sizes, rotation, out);
    })
    .map(Some)
}

/// The layer norm of the last axis of `x` `[rows, size]` → the same shape.
///
/// # Errors
/// Memory is out.
pub(crate) fn layer_norm(
    x: &Array,
    weight: &Array,
    bias: &Array,
    eps: f32,
) -> Result<Option<Array>> {
    if x.ndim() != 2 || !computes(&[x, weight, bias]) {
        return Ok(None);
    }
    node(&[x, weight, bias], x.shape(), Output::Fresh, move |inputs, out| {
        rows::layer_norm(
            |row| inputs[0].row(row),
            rows::Affine { weight: &whole(&inputs[1]), bias: &whole(&inputs[2]) },
            eps,
            out,
        );
    })
    .map(Some)
}

/// The Gaussian error linear unit by tanh of `x` `[rows, size]`, in its memory if no other
/// node needs it.
///
/// # Errors
/// Memory is out.
pub(crate) fn gelu(x: &Array) -> Result<Option<Array>> {
    if x.ndim() != 2 || !computes(&[x]) {
        return Ok(None);
    }
    let size = x.dim(1) as usize;
    node(&[x], x.shape(), Output::InPlace(1), move |_, x| rows::gelu(x, size)).map(Some)
}

/// For each row of `logits` `[rows, vocab]`, among its first `limit` numbers: the place of the
/// largest, and whether the row is sound (1 or 0, see [`rows::largest`]). All places first, then
/// all verdicts → `[2 · rows]`, uint32.
///
/// # Errors
/// Memory is out, or MLX fails.
pub(crate) fn largest(logits: &Array, limit: usize) -> Result<Option<Array>> {
    if !computes(&[logits]) {
        return Ok(None);
    }
    let rows = logits.dim(0) as usize;
    let both = node(&[logits], &[2 * logits.dim(0)], Output::Fresh, move |inputs, out| {
        // Row by row at first, as rows are given out to threads.
        let mut pairs = vec![0.0; 2 * rows];
        rows::largest(|row| inputs[0].row(row), limit, &mut pairs);
        let (places, verdicts) = out.split_at_mut(rows);
        for (row, pair) in pairs.chunks_exact(2).enumerate() {
            (places[row], verdicts[row]) = (pair[0], pair[1]);
        }
    })?;
    // The numbers are the bits of integers.
    Ok(Some(both.view_dtype(Dtype::Uint32)?))
}

/// Attention of rows of queries, each over its own keys → `[rows, heads · value_dim]`. Only where
/// [`computes`] allows it, for queries and keys.
///
/// # Errors
/// Nothing is computed here, or memory is out.
pub(crate) fn attend_rows(
    queries: &QueryRows<'_>,
    stored: &StoredHeads<'_>,
    keys: &VisibleKeys,
    scale: f32,
) -> Result<Array> {
    let QueryRows { heads, first } = queries;
    let (count, value_dim) = (heads.count(), stored.values.dim(1));
    let shape = [keys.len() as i32, count * value_dim];
    let [first, from, count, kv_heads, capacity, key_dim, value_dim] = [
        *first,
        heads.heads.start,
        count,
        stored.kv_heads,
        stored.capacity,
        stored.keys.dim(1),
        value_dim,
    ]
    .map(|size| size as usize);
    let keys = keys.clone();
    node(&[heads.rows, stored.keys, stored.values], &shape, Output::Fresh, move |inputs, out| {
        let stride = inputs[0].stride();
        let queries = FloatRows {
            numbers: &inputs[0].numbers()[first * stride + from * key_dim..],
            count: keys.len(),
            stride,
            length: count * key_dim,
        };
        let stored = KeyValues {
            keys: inputs[1].numbers(),
            values: inputs[2].numbers(),
            kv_heads,
            capacity,
            key_dim,
            value_dim,
        };
        attention(queries, &keys, &stored, scale, out);
    })
}

/// `stored` `[slots · heads · capacity, dim]` with heads of new rows at their places, in its memory
/// if no other node needs it. Only where [`computes`] allows it.
///
/// # Errors
/// Nothing is computed here, or memory is out.
pub(crate) fn write_rows(
    stored: &Array,
    new: &HeadRows<'_>,
    places: &RowPlaces,
    capacity: i32,
) -> Result<Array> {
    let [capacity, count, from, dim] =
        [capacity, new.count(), new.heads.start, stored.dim(1)].map(|size| size as usize);
    let (places, shape) = (places.clone(), stored.shape().to_vec());
    node(&[stored, new.rows], &shape, Output::InPlace(1), move |inputs, stored| {
        for RowWrite { row, slot, position } in places.iter().copied() {
            let heads = &inputs[0].row(row)[from * dim..][..count * dim];
            for (head, numbers) in heads.chunks_exact(dim).enumerate() {
                let place = ((slot * count + head) * capacity + position % capacity) * dim;
                stored[place..][..dim].copy_from_slice(numbers);
            }
        }
    })
}

/// The format, if there are kernels for it.
fn known(group: i32, bits: i32) -> Option<QuantizedFormat> {
    let (group, bits) = (usize::try_from(group).ok()?, usize::try_from(bits).ok()?);
    Some(QuantizedFormat { bits, group }).filter(|format| format.is_known())
}

/// x · Wᵀ for `x` `[…, in]` → `[…, out]`. Each row's numbers have the same bits whatever other rows
/// there are, and are those of the product by the weight expanded to float32 (I1). `None` for a
/// format that is not computed here, and for parts whose shapes do not fit, of which MLX says what
/// is wrong.
///
/// # Errors
/// Memory is out.
pub(crate) fn quantized_product(x: &Array, weight: &QuantizedParts<'_>) -> Result<Option<Array>> {
    let (Some(&inputs), &[outputs, _]) = (x.shape().last(), weight.packed.shape()) else {
        return Ok(None);
    };
    let Some(format) = format_of(weight, &[outputs], inputs).filter(|_| computes(&[x])) else {
        return Ok(None);
    };
    let mut shape = x.shape().to_vec();
    let rows = shape[..shape.len() - 1].iter().product();
    *shape.last_mut().expect("x has an axis") = outputs;
    let x = if x.ndim() == 2 { x.clone() } else { x.reshape(&[rows, inputs])? };
    let (parts, tiles) = ([weight.packed, weight.scales, weight.biases], weight.tiles);
    node_with(&[&x], &parts, &shape, Output::Fresh, move |rows, parts, out| {
        let weight = matrix(parts, format, inputs as usize, tiles);
        quantized::product(float_rows(&rows[0]), &weight, out);
    })
    .map(Some)
}

/// The format of a weight whose parts have an axis `outer` each, and then one of inputs; `None`
/// where they do not fit or there are no kernels.
fn format_of(weight: &QuantizedParts<'_>, outer: &[i32], inputs: i32) -> Option<QuantizedFormat> {
    let QuantizedParts { packed, scales, biases, group, bits, .. } = *weight;
    let format = known(group, bits)?;
    let shape = |last: i32| [outer, &[last]].concat();
    let fits = inputs > 0
        && inputs % group == 0
        && packed.dtype() == Dtype::Uint32
        && packed.shape() == shape(inputs / 32 * bits)
        && (group >= 32 || weight.are_scaled())
        && [scales, biases].iter().all(|part| {
            let dtype = part.dtype();
            let of_runs = scaled_row(inputs, group).filter(|_| weight.are_scaled());
            part.shape() == shape(of_runs.unwrap_or(inputs / group))
                && matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16)
        });
    fits.then_some(format)
}

/// The products of each row of `x` `[rows, in]` by the experts that `ids` `[rows, k]` (uint32)
/// names → `[rows, k, out]`. The weights of an expert are read once for all of its rows. A row's
/// numbers have the same bits whatever the other rows chose (I1). An id that no expert has gives
/// NaN. `None` where it is not computed here.
///
/// # Errors
/// Memory is out.
pub(crate) fn expert_product(
    x: &Array,
    ids: &Array,
    weight: &ExpertParts<'_>,
) -> Result<Option<Array>> {
    let stored = match weight {
        ExpertParts::Floats(matrices) => *matrices,
        ExpertParts::Quantized(parts) => parts.packed,
    };
    let (&[rows, inputs], &[count, chosen], &[experts, outputs, _]) =
        (x.shape(), ids.shape(), stored.shape())
    else {
        return Ok(None);
    };
    if !computes(&[x]) || count != rows || ids.dtype() != Dtype::Uint32 {
        return Ok(None);
    }
    let sizes = [experts, outputs, inputs].map(|size| size as usize);
    let sizes = ExpertSizes { experts: sizes[0], outputs: sizes[1], inputs: sizes[2] };
    let shape = [rows, chosen, outputs];
    let format = match weight {
        ExpertParts::Floats(matrices) => {
            if !computes(&[matrices]) || matrices.dim(2) != inputs {
                return Ok(None);
            }
            return node_with(
                &[x],
                &[ids, matrices],
                &shape,
                Output::Fresh,
                move |x, parts, out| {
                    let HostNumbers::Float32(numbers) = parts[1] else {
                        unreachable!("the matrices are of another type")
                    };
                    let matrices = ExpertMatrices::Floats(numbers);
                    experts::product(float_rows(&x[0]), integers(parts[0]), &matrices, sizes, out);
                },
            )
            .map(Some);
        }
        ExpertParts::Quantized(parts) => format_of(parts, &[experts, outputs], inputs),
    };
    let (ExpertParts::Quantized(parts), Some(format)) = (weight, format) else {
        return Ok(None);
    };
    let (numbers, tiles) = ([ids, parts.packed, parts.scales, parts.biases], parts.tiles);
    node_with(&[x], &numbers, &shape, Output::Fresh, move |x, parts, out| {
        let matrices = matrix(&parts[1..], format, sizes.inputs, tiles);
        let matrices = ExpertMatrices::Quantized(matrices);
        experts::product(float_rows(&x[0]), integers(parts[0]), &matrices, sizes, out);
    })
    .map(Some)
}

/// A node's unsigned integers, whose type was compared before.
fn integers(numbers: HostNumbers<'_>) -> &[u32] {
    let HostNumbers::Uint32(numbers) = numbers else {
        unreachable!("the integers are of another type")
    };
    numbers
}

/// A node's rows as products take them.
fn float_rows<'a>(rows: &HostRows<'a>) -> FloatRows<'a> {
    FloatRows {
        numbers: rows.numbers(),
        count: rows.count(),
        stride: rows.stride(),
        length: rows.length(),
    }
}

/// The matrix of these parts, whose shapes and types were compared before.
fn matrix<'a>(
    parts: &[HostNumbers<'a>],
    format: QuantizedFormat,
    inputs: usize,
    tiles: bool,
) -> QuantizedMatrix<'a> {
    let packed = integers(parts[0]);
    let outputs = packed.len() / (inputs / 32 * format.bits);
    let scaled = scaled_row(inputs as i32, format.group as i32).map(|row| outputs * row as usize);
    let factors = |part| match part {
        HostNumbers::Float32(numbers) => Factors::Float32(numbers),
        HostNumbers::Float16(numbers) if Some(numbers.len()) == scaled => Factors::scaled(numbers),
        HostNumbers::Float16(numbers) => Factors::Float16(numbers),
        HostNumbers::Bfloat16(numbers) => Factors::Bfloat16(numbers),
        HostNumbers::Uint32(_) => unreachable!("scales and biases are of another type"),
    };
    let [scales, biases] = [1, 2].map(|part| factors(parts[part]));
    let matrix = QuantizedMatrix::new(packed, scales, biases, format, inputs)
        .expect("the shapes were compared when the node was made");
    if tiles { matrix.of_tiles() } else { matrix }
}

/// All numbers of an input, however they lie.
fn whole<'a>(input: &HostRows<'a>) -> std::borrow::Cow<'a, [f32]> {
    match input.all() {
        Some(numbers) => numbers.into(),
        None => (0..input.count()).flat_map(|row| input.row(row)).copied().collect(),
    }
}

/// A lazy array that `function` fills.
fn node(
    inputs: &[&Array],
    shape: &[i32],
    output: Output,
    function: impl Fn(&[HostRows<'_>], &mut [f32]) + Send + Sync + 'static,
) -> Result<Array> {
    node_with(inputs, &[], shape, output, move |rows, _, out| function(rows, out))
}

/// A [`node`] with further inputs of any type, whose numbers `function` gets as they are stored.
fn node_with(
    inputs: &[&Array],
    numbers: &[&Array],
    shape: &[i32],
    output: Output,
    function: impl Fn(&[HostRows<'_>], &[HostNumbers<'_>], &mut [f32]) + Send + Sync + 'static,
) -> Result<Array> {
    let handles = |arrays: &[&Array]| -> Vec<mlx_sys::mlx_array> {
        arrays.iter().map(|array| array.as_ptr()).collect()
    };
    let (inputs, numbers) = (handles(inputs), handles(numbers));
    // SAFETY: the handles are of arrays that live; the result has no other owner.
    let made = unsafe {
        mlx_sys::host_array_with(&inputs, &numbers, shape, output, function)
            .map(|handle| Array::from_ptr(handle))
    };
    made.ok_or_else(|| not_made(&[shape]))
}

/// Several lazy arrays that `function` fills together.
///
/// # Errors
/// An input is not float32, or memory is out.
pub(crate) fn nodes(
    inputs: &[&Array],
    shapes: &[&[i32]],
    output: Output,
    function: impl Fn(&[HostRows<'_>], &mut [&mut [f32]]) + Send + Sync + 'static,
) -> Result<Vec<Array>> {
    let inputs: Vec<mlx_sys::mlx_array> = inputs.iter().map(|array| array.as_ptr()).collect();
    let fill = move |rows: &[HostRows<'_>], _: &[HostNumbers<'_>], outputs: &mut [&mut [f32]]| {
        function(rows, outputs)
    };
    // SAFETY: the handles are of arrays that live; the results have no other owner.
    let made = unsafe {
        mlx_sys::host_arrays(&inputs, &[], shapes, output, fill)
            .map(|handles| handles.into_iter().map(|handle| Array::from_ptr(handle)).collect())
    };
    made.ok_or_else(|| not_made(shapes))
}

fn not_made(shapes: &[&[i32]]) -> ModelError {
    ModelError::Batch(format!(
        "cannot make a node of shapes {shapes:?}: expected float32 on the CPU, and memory"
    ))
}

#[cfg(test)]
mod tests;
