//! Weights as a program holds them, against MLX.

use mlx_rs::ops::quantize;
use mlx_rs::{Array, Dtype};

use super::held::{Floats, Quantized, Table};
use super::*;
use crate::device::{DeviceChoice, choose};
use crate::layers::QuantizedParts;
use crate::load::{QuantFormat, QuantizedMatrix};

fn wave(rows: i32, columns: i32) -> Array {
    let values: Vec<f32> = (0..rows * columns).map(|at| (at as f32 * 0.37).sin()).collect();
    Array::from_slice(&values, &[rows, columns])
}

#[test]
fn rows_of_a_quantized_table_have_the_bits_of_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let ids = [5u32, 0, 11, 5];
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, dtype) in [(32, Dtype::Float16), (64, Dtype::Bfloat16), (128, Dtype::Float32)] {
            let (packed, scales, biases) = quantize(wave(12, 256), group, bits).expect("quantized");
            let [scales, biases] =
                [scales, biases].map(|part| part.as_dtype(dtype).expect("a float type"));
            let parts = QuantizedParts {
                packed: &packed,
                scales: &scales,
                biases: &biases,
                group,
                bits,
                tiles: false,
            };
            let table = Table::Quantized(Quantized::new(&parts).expect("held"));
            let mut found = vec![0.0; ids.len() * 256];
            table.rows(&ids, 256, &mut found);
            let matrix = QuantizedMatrix {
                packed: packed.clone(),
                scales: scales.clone(),
                biases: Some(biases.clone()),
                format: QuantFormat::affine(bits, group),
                tiles: false,
            };
            let rows = matrix.rows_of(&Array::from_slice(&ids, &[4]), Dtype::Float32);
            let rows = rows.expect("rows");
            rows.eval().expect("evaluates");
            let expected: &[f32] = rows.try_as_slice().expect("floats");
            assert_eq!(found, expected, "{bits} bits in groups of {group}, {dtype:?}");
        }
    }
}

#[test]
fn an_id_beyond_the_table_gives_nan() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let table = Table::Floats { numbers: Floats::new(&wave(3, 4)).expect("held"), width: 4 };
    let mut found = [0.0; 8];
    table.rows(&[3, 1], 4, &mut found);
    assert!(found[..4].iter().all(|number| number.is_nan()));
    assert_eq!(found[4], (4.0f32 * 0.37).sin());
}

#[test]
fn weights_that_do_not_lie_in_order_are_refused() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let across = wave(4, 6).transpose().expect("a view");
    across.eval().expect("evaluates");
    let error = Floats::new(&across).expect_err("refused").to_string();
    assert!(error.contains("one after another"), "{error}");
    let halves = wave(1, 4).as_dtype(Dtype::Float16).expect("halves");
    assert!(Floats::new(&halves).is_err());
}

#[test]
fn values_that_are_needed_at_the_same_time_have_buffers_of_their_own() {
    // 1 and 2 of 0; 3 of 1 and 2; 4 of 0 and 3; 5 of 4.
    let place = |value| Place { buffer: value, width: 1 };
    let step = |inputs: &[usize], output| Step {
        function: Function::Add,
        inputs: inputs.iter().copied().map(place).collect(),
        output: place(output),
    };
    let mut steps =
        vec![step(&[0], 1), step(&[0], 2), step(&[1, 2], 3), step(&[0, 3], 4), step(&[4], 5)];
    let buffers = record::share_buffers(&mut steps, 6, 5);
    assert_eq!(steps[4].output.buffer, buffers[5]);
    let apart = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (0, 4), (3, 4), (4, 5)];
    for (one, other) in apart {
        assert_ne!(buffers[one], buffers[other], "{one} and {other}: {buffers:?}");
    }
    assert_eq!(buffers.iter().max(), Some(&3), "{buffers:?}");
}
