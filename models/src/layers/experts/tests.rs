//! Sorted pairs, and products of MLX by them.

use mlx_rs::Dtype;

use super::*;
use crate::device::{DeviceChoice, choose};

fn numbers(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).and_then(|wide| wide.contiguous()).expect("a copy");
    array.eval().expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").to_vec()
}

#[test]
fn pairs_ascend_by_expert_and_return_to_their_rows() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let experts = Array::from_slice(&[5u32, 0, 2, 5, 0, 1], &[3, 2]);
    let pairs = SortedPairs::of(&experts).expect("lazy");
    assert_eq!(numbers(&pairs.experts), [0.0, 0.0, 1.0, 2.0, 5.0, 5.0]);
    assert_eq!(numbers(&pairs.rows), [0.0, 2.0, 2.0, 1.0, 0.0, 1.0]);
    let x = Array::from_slice(&[10.0f32, 11.0, 12.0], &[3, 1]);
    let gathered = pairs.gather(&x).expect("lazy");
    let back = pairs.put_back(&gathered, 3).expect("lazy");
    assert_eq!(back.shape(), &[3, 2, 1]);
    assert_eq!(numbers(&back), [10.0, 10.0, 11.0, 11.0, 12.0, 12.0]);
}

#[test]
fn products_by_floats_have_the_same_bits_sorted_and_unsorted() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let wave = |shape: &[i32], step: f32| {
        let count = shape.iter().product::<i32>();
        let values: Vec<f32> = (0..count).map(|at| (at as f32 * step).sin()).collect();
        Array::from_slice(&values, shape)
    };
    let weight = ExpertForm::new(StoredMatrix::Float(wave(&[6, 24, 40], 0.713))).expect("a view");
    let (rows, chosen) = (40, 2);
    let x = wave(&[rows, 40], 0.193);
    let ids: Vec<u32> = (0..rows as u32).flat_map(|row| [row * 5 % 6, (row * 5 + 3) % 6]).collect();
    let ids = Array::from_slice(&ids, &[rows, chosen]);
    let unsorted =
        weight.by_mlx(&x.reshape(&[rows, 1, 1, 40]).expect("a view"), &ids, false).expect("lazy");
    let pairs = SortedPairs::of(&ids).expect("lazy");
    let gathered = pairs.gather(&x).and_then(|x| Ok(x.reshape(&[rows * chosen, 1, 1, 40])?));
    let sorted = weight.by_mlx(&gathered.expect("lazy"), &pairs.experts, true).expect("lazy");
    let sorted = sorted.reshape(&[rows * chosen, 24]).expect("a view");
    let back = pairs.put_back(&sorted, rows).expect("lazy");
    let bits = |y: &Array| numbers(y).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&unsorted), bits(&back));
}
