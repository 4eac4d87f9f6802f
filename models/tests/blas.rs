//! On Linux libmlx's matrix products of few rows are ours: a row has the same bits alone and among others (I1).
#![cfg(target_os = "linux")]

use mlx_rs::transforms::eval;
use paceline_models::{Array, DeviceChoice, device};

fn matrix(rows: i32, columns: i32, step: f32) -> Array {
    let values: Vec<f32> = (0..rows * columns).map(|at| (at as f32 * step).sin()).collect();
    Array::from_slice(&values, &[rows, columns])
}

fn bits(array: &Array) -> Vec<u32> {
    eval([array]).expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").iter().map(|value| value.to_bits()).collect()
}

/// One test, as the counters are the process's and MLX belongs to one thread.
#[test]
fn libmlx_calls_ours_and_rows_do_not_depend_on_one_another() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (rows, columns, depth) = (32, 640, 96);
    let x = matrix(rows, depth, 0.37);
    // Stored by rows, as weights are, and by columns, as values are in attention.
    let weights = matrix(columns, depth, 0.11).transpose().expect("a view");
    let values = matrix(depth, columns, 0.23);
    for right in [&weights, &values] {
        let before = paceline_blas::calls();
        let all = bits(&x.matmul(right).expect("a product"));
        let after = paceline_blas::calls();
        assert_eq!((after.own - before.own, after.forwarded), (1, before.forwarded), "libmlx has called somebody else");
        for m in [1, 2, 5, 16, 31] {
            let part = Array::from_slice(&x.try_as_slice::<f32>().expect("floats")[..(m * depth) as usize], &[m, depth]);
            assert_eq!(bits(&part.matmul(right).expect("a product")), all[..(m * columns) as usize], "{m} rows");
        }
    }
    let more = matrix(33, depth, 0.37).matmul(&weights).expect("a product");
    let before = paceline_blas::calls();
    eval([&more]).expect("evaluates");
    let after = paceline_blas::calls();
    assert_eq!((after.own, after.forwarded - before.forwarded), (before.own, 1), "handed on to OpenBLAS");
}
