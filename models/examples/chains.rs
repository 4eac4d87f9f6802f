//! Whether MLX's `compile` pays for the element-wise chains of a layer: each of them as the model
//! has it and compiled, the time of one in a graph of 64 that feed one another, medians. `chains
//! [HIDDEN] [INTERMEDIATE] [HEADS] [DIM]`.
//!
//! On the CPU what is compiled is C++, by a g++ that MLX calls when a chain first runs; without one
//! the chain runs as it is.

#![expect(clippy::print_stdout, reason = "it is what this program is for")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::error::Error;
use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::transforms::{compile::compile, eval};
use mlx_rs::{Array, fast, ops};
use paceline_models::{DeviceChoice, device};

const CHAIN: usize = 64;
const ROUNDS: usize = 41;

/// silu(gate) · up; the third is not looked at.
fn silu_times((gate, up, _): (&Array, &Array, &Array)) -> Result<Array, Exception> {
    gate.multiply(ops::sigmoid(gate)?)?.multiply(up)
}

/// A turn by position: `x` and `x` with its halves exchanged are the same here.
fn turn((x, cos, sin): (&Array, &Array, &Array)) -> Result<Array, Exception> {
    x.multiply(cos)?.add(x.multiply(sin)?)
}

/// The norm of a row, as element-wise operations and one reduction.
fn norm((x, weight, eps): (&Array, &Array, &Array)) -> Result<Array, Exception> {
    let mean = x.multiply(x)?.mean_axis(-1, true)?;
    x.multiply(mean.add(eps)?.rsqrt()?)?.multiply(weight)
}

/// The norm as the model has it: one primitive.
fn fast_norm((x, weight, _): (&Array, &Array, &Array)) -> Result<Array, Exception> {
    fast::rms_norm(x, Some(weight), 1e-6)
}

/// Microseconds of one call.
fn time(
    mut call: impl for<'a> FnMut((&'a Array, &'a Array, &'a Array)) -> Result<Array, Exception>,
    given: &[Array; 3],
) -> Result<f64, Exception> {
    let mut took = vec![];
    for round in 0..ROUNDS + 3 {
        let clock = Instant::now();
        let mut x = given[0].clone();
        for _ in 0..CHAIN {
            x = call((&x, &given[1], &given[2]))?;
        }
        eval([&x])?;
        if round >= 3 {
            took.push(clock.elapsed().as_secs_f64() * 1e6 / CHAIN as f64);
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: i32| args.next().map_or(Ok(default), |word| word.parse());
    let (hidden, intermediate, heads, dim) = (number(256)?, number(768)?, number(6)?, number(64)?);
    device::choose(DeviceChoice::Cpu)?;
    let wave = |shape: &[i32]| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|at: i32| (at as f32 * 0.37).sin()).collect();
        Array::from_slice(&values, shape)
    };
    println!(
        "| rows | silu·up, µs | compiled | turn | compiled | norm, one primitive | as a chain | compiled |\n|---|---|---|---|---|---|---|---|"
    );
    for rows in [1, 4, 16] {
        let (wide, weight) = (wave(&[rows, intermediate]), wave(&[hidden]));
        let up = [wide.clone(), wide.clone(), wide];
        let table = wave(&[rows, 1, dim]);
        let turned = [wave(&[rows, heads, dim]), table.clone(), table];
        let normed = [wave(&[rows, hidden]), weight, Array::from_f32(1e-6)];
        up.iter().chain(&turned).chain(&normed).try_for_each(Array::eval)?;
        let silu = (time(silu_times, &up)?, time(compile(silu_times, None), &up)?);
        let turn = (time(turn, &turned)?, time(compile(turn, None), &turned)?);
        let norm =
            (time(fast_norm, &normed)?, time(norm, &normed)?, time(compile(norm, None), &normed)?);
        println!(
            "| {rows} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            silu.0, silu.1, turn.0, turn.1, norm.0, norm.1, norm.2
        );
    }
    Ok(())
}
