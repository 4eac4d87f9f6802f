//! Hidden states of chosen layers, as a forward returns them and as they cross a process border.

use std::borrow::Cow;
use std::ops::Range;

use half::{bf16, f16};
use mlx_rs::{Array, Dtype};

use crate::error::{ModelError, Result};
use crate::transfer::in_order;

/// Hidden states of some rows, after chosen layers.
///
/// They stay where the model computed them, and are put side by side when they are read. In the
/// graph that would be a node for each layer, and one more copy in every step of a stream that may
/// be drafted for.
#[derive(Clone, Debug)]
pub struct HiddenStates {
    /// `[rows, hidden]`, layer by layer. A pass of the processor leaves all rows of the batch, where
    /// nothing has to be moved; a graph of MLX takes those that were wanted.
    pub(crate) layers: Vec<Array>,
    /// Rows of these arrays that were wanted, ascending.
    pub(crate) rows: Vec<i32>,
}

impl HiddenStates {
    /// Arrays that must be evaluated before rows are read.
    pub fn arrays(&self) -> &[Array] {
        &self.layers
    }

    /// `[rows, layers · hidden]`. Lazy.
    ///
    /// # Errors
    /// MLX's own.
    pub fn side_by_side(&self) -> Result<Array> {
        let all = mlx_rs::ops::concatenate(&self.layers, 1)?;
        Ok(all.take_axis(Array::from_slice(&self.rows, &[self.rows.len() as i32]), 0)?)
    }

    /// The evaluated numbers, for [`HostHiddenStates::append`].
    ///
    /// # Errors
    /// Another type than float32, float16, bfloat16; MLX's own.
    pub fn on_host(&self) -> Result<HostHiddenStates<'_>> {
        HostHiddenStates::new(&self.layers, &self.rows)
    }
}

/// Rows of several evaluated arrays `[all rows, columns]` of one shape and type, to be read side by
/// side.
#[derive(Debug)]
pub struct HostHiddenStates<'a> {
    layers: Layers<'a>,
    columns: usize,
    rows: &'a [i32],
}

#[derive(Debug)]
enum Layers<'a> {
    Float32(Vec<Cow<'a, [f32]>>),
    Float16(Vec<Cow<'a, [f16]>>),
    Bfloat16(Vec<Cow<'a, [bf16]>>),
}

impl<'a> HostHiddenStates<'a> {
    pub(crate) fn new(layers: &'a [Array], rows: &'a [i32]) -> Result<Self> {
        let shape = layers.first().map_or(&[][..], Array::shape);
        let &[all, columns] = shape else {
            return Err(ModelError::Batch(format!(
                "expected layers of shape [rows, columns], found {shape:?}"
            )));
        };
        if let Some(row) = rows.iter().find(|row| !(0..all).contains(*row)) {
            return Err(ModelError::Batch(format!("expected rows below {all}, found {row}")));
        }
        let numbers = |layer: &Array| match layer.shape() == shape {
            true => Ok(()),
            false => Err(ModelError::Batch(format!(
                "expected {shape:?} of each layer, found {:?}",
                layer.shape()
            ))),
        };
        layers.iter().try_for_each(numbers)?;
        let layers = match layers[0].dtype() {
            Dtype::Float32 => Layers::Float32(layers.iter().map(in_order).collect::<Result<_>>()?),
            Dtype::Float16 => Layers::Float16(layers.iter().map(in_order).collect::<Result<_>>()?),
            Dtype::Bfloat16 => {
                Layers::Bfloat16(layers.iter().map(in_order).collect::<Result<_>>()?)
            }
            other => {
                return Err(ModelError::Batch(format!("expected float arrays, found {other:?}")));
            }
        };
        Ok(Self { layers, columns: columns as usize, rows })
    }

    /// Appends the wanted rows with these numbers to `bytes`, the first wanted one being 0: each
    /// row's numbers of the first layer, of the second, and so on.
    ///
    /// # Panics
    /// Fewer rows were wanted.
    pub fn append(&self, rows: Range<usize>, bytes: &mut Vec<u8>) {
        let rows = &self.rows[rows];
        match &self.layers {
            Layers::Float32(layers) => {
                append(layers, rows, self.columns, bytes, |value| value.to_ne_bytes())
            }
            Layers::Float16(layers) => {
                append(layers, rows, self.columns, bytes, |value| value.to_ne_bytes())
            }
            Layers::Bfloat16(layers) => {
                append(layers, rows, self.columns, bytes, |value| value.to_ne_bytes())
            }
        }
    }
}

fn append<T: Copy, const N: usize>(
    layers: &[Cow<'_, [T]>],
    rows: &[i32],
    columns: usize,
    bytes: &mut Vec<u8>,
    to_bytes: impl Fn(T) -> [u8; N],
) {
    bytes.reserve(rows.len() * layers.len() * columns * N);
    for row in rows {
        for layer in layers {
            let part = &layer[*row as usize * columns..][..columns];
            let begin = bytes.len();
            bytes.resize(begin + columns * N, 0);
            bytes[begin..]
                .as_chunks_mut::<N>()
                .0
                .iter_mut()
                .zip(part)
                .for_each(|(place, value)| *place = to_bytes(*value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::to_bytes;

    #[test]
    fn rows_are_appended_layer_by_layer() {
        let layer =
            |at: i32| Array::from_iter((0..12).map(|number| (100 * at + number) as f32), &[4, 3]);
        // The last one is a view whose numbers lie in another order.
        let turned = Array::from_iter(
            (0..12).map(|number| (200 + number / 4 + number % 4 * 3) as f32),
            &[3, 4],
        );
        let layers = [layer(0), layer(1), turned.transpose().expect("two axes")];
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let layers =
                layers.iter().map(|layer| layer.as_dtype(dtype).expect("a float type")).collect();
            let states = HiddenStates { layers, rows: vec![0, 2, 3] };
            let whole = to_bytes(&states.side_by_side().expect("lazy")).expect("floats");
            let host = states.on_host().expect("on the host");
            let mut found = vec![];
            host.append(0..1, &mut found);
            host.append(1..3, &mut found);
            assert_eq!(found, whole);
        }
        let wrong =
            |layers: Vec<Array>, rows: Vec<i32>| HiddenStates { layers, rows }.on_host().is_err();
        assert!(
            wrong(vec![], vec![])
                && wrong(vec![layer(0)], vec![4])
                && wrong(vec![Array::from_int(3)], vec![])
        );
        assert!(wrong(vec![layer(0), Array::from_slice(&[1.0f32], &[1, 1])], vec![0]));
    }
}
