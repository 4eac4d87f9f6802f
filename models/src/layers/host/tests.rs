//! The nodes of our own against the same computed by MLX, on views that lie in any way.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops};

use super::super::{
    ExpertParts, Gate, HeadRows, HiddenKeys, QuantizedParts, QueryRows, RopeTables, RotatedHeads,
    RowKeys, RowPlaces, RowWrite, StoredHeads, VisibleKeys, attention, host,
};
use crate::device::{DeviceChoice, choose};
use crate::load::QuantFormat;

fn wave(shape: &[i32], step: f32) -> Array {
    let values: Vec<f32> =
        (0..shape.iter().product::<i32>()).map(|at| (at as f32 * step).sin() * 3.0).collect();
    Array::from_slice(&values, shape)
}

fn same(found: &Array, expected: &Array, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let off = found
        .subtract(expected)
        .and_then(|off| off.abs())
        .and_then(|off| off.max(None))
        .expect("computes");
    let off = off.try_item_exact::<f32>().expect("a number");
    assert!(off < 2e-5, "{what}: off by {off}");
}

// More than 60 lines: one function after another on the same rows.
#[test]
fn gates_and_norms_equal_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    for (rows, width) in [(1, 1), (1, 768), (3, 17), (16, 100), (200, 96)] {
        let what = format!("{rows} x {width}");
        let both = wave(&[rows, 2 * width], 0.37);
        let across = wave(&[2 * width, rows], 0.37).transpose().expect("a view");
        for both in [both, across] {
            let parts = both.split_equal(2, 1).expect("two");
            let silu = parts[0].multiply(ops::sigmoid(&parts[0]).expect("lazy")).expect("lazy");
            let expected = silu.multiply(&parts[1]).expect("lazy");
            same(
                &host::gated(&both, Gate::Silu).expect("made").expect("on the CPU"),
                &expected,
                &what,
            );

            let weight = wave(&[2 * width], 0.11);
            let expected = fast::rms_norm(&both, Some(&weight), 1e-6).expect("lazy");
            same(
                &host::norm(&both, &weight, 1e-6).expect("made").expect("on the CPU"),
                &expected,
                &what,
            );
        }
        let (weight, bias) = (wave(&[width], 0.11), wave(&[width], 0.19));
        let x = wave(&[rows, width], 0.37);
        let expected = fast::layer_norm(&x, &weight, &bias, 1e-2).expect("lazy");
        same(
            &host::layer_norm(&x, &weight, &bias, 1e-2).expect("made").expect("on the CPU"),
            &expected,
            &what,
        );
        // Another handle holds it too: it must not be overwritten.
        let found = host::gelu(&x).expect("made").expect("on the CPU");
        let cubed = x
            .multiply(x.square().expect("lazy"))
            .and_then(|x| x.multiply(Array::from_f32(0.044_715)))
            .expect("lazy");
        let inner = x
            .add(cubed)
            .and_then(|x| x.multiply(Array::from_f32((2.0 / std::f32::consts::PI).sqrt())))
            .expect("lazy");
        let twice =
            ops::tanh(inner).and_then(|share| share.add(Array::from_f32(1.0))).expect("lazy");
        let expected =
            x.multiply(twice).and_then(|twice| twice.multiply(Array::from_f32(0.5))).expect("lazy");
        same(&found, &expected, &what);
        same(&x, &wave(&[rows, width], 0.37), &what);
    }
}

#[test]
fn rows_attend_as_mlx_would() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    // 2 slots of 7 positions, 2 KV heads, 3 query heads for each, 2 rows, the second sees one more.
    let (slots, kv_heads, heads, capacity, dim) = (2, 2, 6, 7, 12);
    let rows = wave(&[5, 2 + heads, dim], 0.37);
    let stored = [0.11, 0.23].map(|step| wave(&[slots * kv_heads * capacity, dim], step));
    let visible: VisibleKeys = [(1, 4), (1, 5), (0, 6), (0, 7)]
        .map(|(slot, end)| RowKeys { slot, positions: 0..end })
        .into();
    let queries = QueryRows { heads: HeadRows::new(&rows, 2..2 + heads), first: 1 };
    let [keys, values] = [&stored[0], &stored[1]];
    let heads_of = StoredHeads { keys, values, kv_heads, capacity };
    let found = host::attend_rows(&queries, &heads_of, &visible, 0.3).expect("made");
    for (row, RowKeys { slot, positions }) in (1..).zip(visible.iter()) {
        let part = |stored: &Array| {
            let all = stored.reshape(&[slots, kv_heads, capacity, dim]).expect("a view");
            let (slot, end) = (*slot as i32, positions.end as i32);
            all.try_index((slot..slot + 1, .., ..end, ..)).expect("a view")
        };
        let query = rows.try_index((row..row + 1, 2.., ..)).expect("a view");
        let expected =
            attention(&query, &part(keys), &part(values), 0.3, &HiddenKeys::Nothing).expect("lazy");
        let found = found.try_index(row - 1..row).expect("a view");
        same(&found, &expected, &format!("row {row}"));
    }
}

#[test]
fn rows_are_written_at_their_places_and_nowhere_else() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (heads, capacity, dim) = (2, 3, 4);
    let (stored, rows) = (wave(&[2 * heads * capacity, dim], 0.2), wave(&[3, 5, dim], 0.9));
    let places: RowPlaces =
        [(2, 0, 1), (0, 1, 2)].map(|(row, slot, position)| RowWrite { row, slot, position }).into();
    let new = HeadRows::new(&rows, 3..5);
    let found = host::write_rows(&stored, &new, &places, capacity).expect("made");
    let row = |array: &Array, at: i32| array.try_index(at..at + 1).expect("a view");
    for (slot, head, position) in (0..2).flat_map(|slot| {
        (0..heads).flat_map(move |head| (0..capacity).map(move |at| (slot, head, at)))
    }) {
        let at = (slot * heads + head) * capacity + position;
        let written = places
            .iter()
            .find(|place| (place.slot as i32, place.position as i32) == (slot, position));
        let expected = match written {
            Some(place) => {
                rows.try_index((place.row as i32, 3 + head, ..)).and_then(|row| row.expand_dims(0))
            }
            None => Ok(row(&stored, at)),
        };
        same(&row(&found, at), &expected.expect("a view"), &format!("row {at}"));
    }
    // Another handle holds it too: it must not be overwritten.
    same(&stored, &wave(&[2 * heads * capacity, dim], 0.2), "the old rows");
}

#[test]
fn heads_are_turned_as_mlx_would() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let whole = [(1, 1, 1, 2, 2), (3, 6, 4, 12, 12), (70, 9, 6, 72, 72)];
    let partly = [(3, 6, 4, 20, 8), (70, 9, 6, 24, 2)];
    for (rows, all, heads, dim, rotary_dim) in whole.into_iter().chain(partly) {
        let rotation = |row: usize, i: usize| (row as f32 * 0.3 + i as f32).sin_cos();
        let tables =
            RopeTables::new(rows as usize, rotary_dim / 2, Dtype::Float32, rotation).expect("made");
        let x = wave(&[rows, all, dim], 0.23);
        let expected =
            tables.apply(&x.try_index((.., ..heads, ..)).expect("a view")).expect("lazy");
        let found = host::rotate(&x, heads, &tables).expect("made").expect("on the CPU");
        same(&found, &expected, &format!("{rows} rows, {heads} heads of {dim}"));
    }
}

#[test]
fn chosen_heads_are_normed_and_partly_turned_as_mlx_would() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (all, dim, rotary_dim) = (9, 20, 8);
    let heads = RotatedHeads::Places([0, 2, 4, 6].into());
    for rows in [1, 5, 70] {
        let rotation = |row: usize, i: usize| (row as f32 * 0.3 + i as f32).sin_cos();
        let tables =
            RopeTables::new(rows as usize, rotary_dim / 2, Dtype::Float32, rotation).expect("made");
        let (x, weight) = (wave(&[rows, all, dim], 0.23), wave(&[4, dim], 0.11));
        let chosen = heads.of(&x).expect("lazy");
        let normed = fast::rms_norm(chosen, None, 1e-6).and_then(|x| x.multiply(&weight));
        let expected = tables.apply(&normed.expect("lazy")).expect("lazy");
        let found = host::norm_rotate(&x, &heads, &weight, 1e-6, &tables).expect("made");
        same(&found.expect("on the CPU"), &expected, &format!("{rows} rows"));
    }
}

#[test]
fn heads_are_normed_by_a_weight_each_as_mlx_would() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    for (rows, heads, dim) in [(1, 1, 2), (5, 6, 12), (70, 3, 72)] {
        let (x, weight) = (wave(&[rows, heads, dim], 0.23), wave(&[heads, dim], 0.11));
        let normed = fast::rms_norm(&x, None, 1e-5).and_then(|x| x.multiply(&weight));
        let found = host::norm_heads(&x, &weight, 1e-5).expect("made").expect("on the CPU");
        same(&found, &normed.expect("lazy"), &format!("{rows} rows, {heads} heads of {dim}"));
    }
}

#[test]
fn gates_of_heads_equal_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (heads, dim) = (3, 20);
    for rows in [1, 7, 90] {
        let what = format!("{rows} rows");
        let x = wave(&[rows, heads * dim], 0.37);
        let all = wave(&[rows, 2 * heads + 2, dim], 0.19);
        let gates = all.try_index((.., ..2 * heads, ..)).expect("a view");
        let gates = gates.reshape(&[rows, heads, 2, dim]).expect("lazy");
        let gates = gates.try_index((.., .., 1, ..)).expect("a view");
        let gates = gates.reshape(&[rows, heads * dim]).expect("lazy");
        let expected = x.multiply(ops::sigmoid(&gates).expect("lazy")).expect("lazy");
        let found = host::gated_by_heads(&x, &all).expect("made").expect("on the CPU");
        same(&found, &expected, &what);

        let (rest, weight) = (wave(&[rows, 7 + heads * dim], 0.29), wave(&[dim], 0.11));
        let gates = rest.try_index((.., 7..)).expect("a view");
        let silu = gates.multiply(ops::sigmoid(&gates).expect("lazy")).expect("lazy");
        let by_head = x.reshape(&[rows * heads, dim]).expect("lazy");
        let normed = fast::rms_norm(by_head, Some(&weight), 1e-6)
            .and_then(|normed| normed.reshape(&[rows, heads * dim]))
            .expect("lazy");
        let found = host::norm_gated(&x, &rest, 7, &weight, 1e-6).expect("made");
        same(&found.expect("on the CPU"), &normed.multiply(silu).expect("lazy"), &what);
    }
}

#[test]
fn other_numbers_are_left_to_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let half = wave(&[2, 8], 0.3).as_dtype(Dtype::Float16).expect("lazy");
    assert!(host::gated(&half, Gate::Silu).expect("fine").is_none());
    assert!(host::norm(&half, &wave(&[8], 0.1), 1e-6).expect("fine").is_none());
}

#[test]
fn quantized_products_equal_mlx_in_every_format() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (outputs, inputs) = (40, 256);
    let weight = wave(&[outputs, inputs], 0.37);
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let (packed, scales, biases) = ops::quantize(&weight, group, bits).expect("lazy");
            for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
                let what = format!("{bits} bits, group {group}, {dtype:?}");
                let scales = scales.as_dtype(dtype).expect("lazy");
                let biases = biases.as_dtype(dtype).expect("lazy");
                let parts = QuantizedParts {
                    packed: &packed,
                    scales: &scales,
                    biases: &biases,
                    group,
                    bits,
                    tiles: false,
                };
                assert!(host::known(group, bits).is_some(), "{what}");
                assert!(QuantFormat::affine(bits, group).has_kernel(), "{what}");
                let floats = [&scales, &biases].map(|part| part.as_dtype(Dtype::Float32));
                let [scales, biases] = floats.map(|part| part.expect("lazy"));
                let expanded =
                    ops::dequantize(&packed, &scales, &biases, group, bits).expect("lazy");
                let expanded = expanded.transpose().expect("a view");
                for x in [
                    wave(&[1, inputs], 0.11),
                    wave(&[inputs, 9], 0.11).transpose().expect("a view"),
                    wave(&[2, 3, inputs], 0.11),
                    wave(&[7, 2 * inputs], 0.11).split_equal(2, 1).expect("two").remove(1),
                ] {
                    // Sums of 256 products of numbers up to 9.
                    let size = Array::from_f32(1e-2);
                    let found = host::quantized_product(&x, &parts).expect("made");
                    let found = found.expect("on the CPU").multiply(&size).expect("lazy");
                    let expected = x.matmul(&expanded).and_then(|y| y.multiply(&size));
                    same(&found, &expected.expect("lazy"), &what);
                }
            }
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_left_to_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (packed, scales, biases) = ops::quantize(wave(&[8, 64], 0.37), 32, 4).expect("lazy");
    let parts = QuantizedParts {
        packed: &packed,
        scales: &scales,
        biases: &biases,
        group: 32,
        bits: 4,
        tiles: false,
    };
    let x = wave(&[2, 64], 0.1);
    let is_made = |x: &Array, parts: &QuantizedParts<'_>| {
        host::quantized_product(x, parts).expect("no error").is_some()
    };
    assert!(is_made(&x, &parts));
    assert!(!is_made(&wave(&[2, 96], 0.1), &parts), "rows of another length");
    assert!(!is_made(&x.as_dtype(Dtype::Float16).expect("lazy"), &parts), "rows of halves");
    assert!(!is_made(&x, &QuantizedParts { bits: 7, ..parts }), "no kernels for 7 bits");
    assert!(!is_made(&x, &QuantizedParts { group: 16, ..parts }), "no kernels for groups of 16");
    assert!(!is_made(&x, &QuantizedParts { bits: 8, ..parts }), "too few words");
    assert!(!is_made(&x, &QuantizedParts { scales: &packed, ..parts }), "integers as scales");
}

#[test]
fn products_by_experts_equal_mlx() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (experts, outputs, inputs) = (5, 24, 64);
    let floats = wave(&[experts, outputs, inputs], 0.37);
    let (packed, scales, biases) = ops::quantize(&floats, 32, 4).expect("lazy");
    let expanded = ops::dequantize(&packed, &scales, &biases, 32, 4).expect("lazy");
    let parts = QuantizedParts {
        packed: &packed,
        scales: &scales,
        biases: &biases,
        group: 32,
        bits: 4,
        tiles: false,
    };
    for (rows, chosen) in [(1, 1), (1, 3), (7, 2), (60, 2)] {
        let x = wave(&[rows, inputs], 0.11);
        let ids: Vec<u32> = (0..rows * chosen).map(|at| (at * at % experts) as u32).collect();
        let ids = Array::from_slice(&ids, &[rows, chosen]);
        for (weight, floats) in
            [(ExpertParts::Floats(&floats), &floats), (ExpertParts::Quantized(parts), &expanded)]
        {
            let transposed = floats.swap_axes(-1, -2).expect("a view");
            let expected = x
                .reshape(&[rows, 1, 1, inputs])
                .and_then(|x| ops::gather_mm(&x, &transposed, None, &ids, false))
                .and_then(|y| y.reshape(&[rows, chosen, outputs]))
                .and_then(|y| y.multiply(Array::from_f32(1e-2)));
            let found = host::expert_product(&x, &ids, &weight).expect("made");
            let found = found.expect("on the CPU").multiply(Array::from_f32(1e-2));
            let what = format!("{rows} rows, {chosen} each");
            same(&found.expect("lazy"), &expected.expect("lazy"), &what);
        }
    }
    let (x, ids) = (wave(&[2, inputs], 0.1), Array::from_slice(&[0u32, 1], &[2, 1]));
    let is_made = |x: &Array, ids: &Array, weight: &ExpertParts<'_>| {
        host::expert_product(x, ids, weight).expect("no error").is_some()
    };
    let weight = ExpertParts::Quantized(parts);
    assert!(is_made(&x, &ids, &weight));
    assert!(!is_made(&x, &ids.as_dtype(Dtype::Int32).expect("lazy"), &weight), "signed ids");
    assert!(!is_made(&wave(&[3, inputs], 0.1), &ids, &weight), "ids of fewer rows");
    assert!(!is_made(&wave(&[2, 32], 0.1), &ids, &weight), "rows of another length");
    assert!(!is_made(&wave(&[2, 32], 0.1), &ids, &ExpertParts::Floats(&floats)), "the same");
}
