//! Nodes of layers with gated outputs and recurrent states.

use mlx_rs::Array;
use mlx_sys::{HostOutput as Output, HostRows};
use paceline_checkpoint::RecurrentSizes;
use paceline_cpu::SlotRows;
use paceline_cpu::delta::{self, NewRows, PassOutput, RuleWeights};
use paceline_cpu::rows::{self, Heads};

use super::{computes, float_rows, node, nodes, whole};
use crate::error::Result;
use crate::layers::delta_rule::{Advanced, DeltaRule, StatePass};

/// Advances states as [`DeltaRule::advance`] says. One node for all rows of all slots, in the
/// states' memory if no other node needs it.
///
/// # Errors
/// Memory is out.
pub(crate) fn advance(
    rule: &DeltaRule,
    pass: &StatePass<'_>,
    rows: &Array,
) -> Result<Option<Advanced>> {
    let DeltaRule { sizes, convolution, rates, dt_bias, .. } = rule;
    let StatePass { states, before, slots, tape_rows, .. } = *pass;
    let mut inputs: Vec<&Array> = states.iter().collect();
    inputs.extend([rows, convolution, rates, dt_bias]);
    if !computes(&inputs) {
        return Ok(None);
    }
    inputs.extend(before);
    let out = [rows.dim(0), sizes.values() as i32];
    let tape = [tape_rows as i32, sizes.tape() as i32];
    let mut shapes: Vec<&[i32]> = states.iter().map(Array::shape).collect();
    shapes.extend([&out[..], &tape[..]]);
    let count = states.len();
    let (sizes, slots) = (*sizes, slots.clone());
    let (beta, decay) = (rule.beta as usize, rule.decay as usize);
    let made = nodes(&inputs, &shapes, Output::InPlace(count), move |inputs, outputs| {
        let (states, [out, tape]) = outputs.split_at_mut(count) else {
            unreachable!("there are two outputs beside the states")
        };
        let [rows, convolution, rates, dt_bias, rest @ ..] = inputs else {
            unreachable!("there are at least four inputs beside the states")
        };
        let weights = RuleWeights {
            convolution: &whole(convolution),
            rates: &whole(rates),
            dt_bias: &whole(dt_bias),
        };
        let new = NewRows { rows: float_rows(rows), beta, decay };
        let before = rest.first().map_or_else(Default::default, whole);
        delta::advance(sizes, weights, new, &before, &slots, PassOutput { states, out, tape });
    })?;
    let mut states = made;
    let mut rest = states.drain(count..);
    let (Some(out), tape) = (rest.next(), rest.next()) else {
        unreachable!("there are as many as shapes")
    };
    drop(rest);
    Ok(Some(Advanced { states, out, tape: tape.filter(|_| tape_rows > 0) }))
}

/// Folds accepted rows of the tape as [`super::super::fold_accepted`] says.
///
/// # Errors
/// Memory is out.
pub(crate) fn fold(sizes: RecurrentSizes, pass: &StatePass<'_>) -> Result<Option<Vec<Array>>> {
    let StatePass { states, before: Some(before), slots, .. } = *pass else { return Ok(None) };
    let inputs: Vec<&Array> = states.iter().chain([before]).collect();
    if !computes(&inputs) {
        return Ok(None);
    }
    let (slots, shapes) = (slots.clone(), states.iter().map(Array::shape).collect::<Vec<_>>());
    nodes(&inputs, &shapes, Output::InPlace(states.len()), move |inputs, states| {
        fold_into(sizes, &inputs[0], &slots, states);
    })
    .map(Some)
}

fn fold_into(
    sizes: RecurrentSizes,
    before: &HostRows<'_>,
    slots: &[SlotRows],
    states: &mut [&mut [f32]],
) {
    let weights = RuleWeights { convolution: &[], rates: &[], dt_bias: &[] };
    let output = PassOutput { states, out: &mut [], tape: &mut [] };
    delta::advance(sizes, weights, NewRows::NONE, &whole(before), slots, output);
}

/// x / rms(x) · weight · silu(gate) of each head of the weight's length. `x` `[rows, width]`, the
/// gates from a column of `gates` `[rows, …]` on → `[rows, width]`.
///
/// # Errors
/// Memory is out.
pub(crate) fn norm_gated(
    x: &Array,
    gates: &Array,
    column: i32,
    weight: &Array,
    eps: f32,
) -> Result<Option<Array>> {
    if !computes(&[x, gates, weight]) {
        return Ok(None);
    }
    let (width, column) = (x.dim(1) as usize, column as usize);
    node(&[x, gates, weight], x.shape(), Output::Fresh, move |inputs, out| {
        let gates = |row| &inputs[1].row(row)[column..];
        rows::norm_gated(|row| inputs[0].row(row), gates, &whole(&inputs[2]), eps, width, out);
    })
    .map(Some)
}

/// x · sigmoid(gate) for `x` `[rows, heads · dim]`. The gate of head h is head 2 · h + 1 of `gates`
/// `[rows, at least 2 · heads, dim]` → `[rows, heads · dim]`.
///
/// # Errors
/// Memory is out.
pub(crate) fn gated_by_heads(x: &Array, gates: &Array) -> Result<Option<Array>> {
    if !computes(&[x, gates]) {
        return Ok(None);
    }
    let dim = gates.dim(2) as usize;
    let heads = Heads { count: x.dim(1) as usize / dim, dim };
    node(&[x, gates], x.shape(), Output::Fresh, move |inputs, out| {
        let (x, gates) = (|row| inputs[0].row(row), |row| inputs[1].row(row));
        rows::gated_by_heads(x, gates, |head| 2 * head + 1, heads, out);
    })
    .map(Some)
}
