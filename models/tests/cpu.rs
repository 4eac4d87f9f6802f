//! On Linux libmlx's matrix products are ours: a row has the same bits alone and among others (I1).
#![cfg(target_os = "linux")]

use std::path::Path;

use mlx_rs::transforms::eval;
use paceline_models::{
    Array, Batch, DeviceChoice, KvStore, Segment, SequenceId, Target, Wants, device, load_target,
};

fn matrix(rows: i32, columns: i32, step: f32) -> Array {
    let values: Vec<f32> = (0..rows * columns).map(|at| (at as f32 * step).sin()).collect();
    Array::from_slice(&values, &[rows, columns])
}

fn bits(array: &Array) -> Vec<u32> {
    eval([array]).expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").iter().map(|value| value.to_bits()).collect()
}

/// The last row's logits after `ids`, read in passes of `widths` rows: the widths in turn, over and
/// over.
fn read(model: &dyn Target, ids: &[u32], widths: &[usize]) -> Vec<u32> {
    let mut kv =
        KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("a store");
    let sequence = SequenceId(1);
    kv.open(sequence).expect("new");
    let (mut start, mut widths) = (0, widths.iter().cycle());
    loop {
        let length = (*widths.next().expect("without end")).min(ids.len() - start);
        let segment = Segment { sequence, start: start as i32, length: length as i32, drafted: 0 };
        let batch = Batch::text(ids[start..start + length].to_vec(), vec![segment]);
        let wants = Wants { logit_rows: vec![length as i32 - 1], ..Wants::default() };
        let forward = model.forward(&batch, &mut kv, &wants).expect("a forward");
        let logits = bits(&forward.logits.expect("wanted"));
        start += length;
        kv.commit(sequence, start as i32).expect("commits");
        if start == ids.len() {
            return logits;
        }
    }
}

/// One test, as the counters are the process's and MLX belongs to one thread.
#[test]
fn libmlx_calls_ours_and_rows_do_not_depend_on_one_another() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (rows, columns, depth) = (300, 640, 96);
    let x = matrix(rows, depth, 0.37);
    // Stored by rows, as weights are, and by columns, as values are in attention.
    let weights = matrix(columns, depth, 0.11).transpose().expect("a view");
    let values = matrix(depth, columns, 0.23);
    for right in [&weights, &values] {
        let before = paceline_cpu::calls();
        let all = bits(&x.matmul(right).expect("a product"));
        let after = paceline_cpu::calls();
        assert_eq!(
            (after.own - before.own, after.forwarded),
            (1, before.forwarded),
            "libmlx has called somebody else"
        );
        for m in [1, 2, 5, 16, 33, 128, 299] {
            let part = Array::from_slice(
                &x.try_as_slice::<f32>().expect("floats")[..(m * depth) as usize],
                &[m, depth],
            );
            assert_eq!(
                bits(&part.matmul(right).expect("a product")),
                all[..(m * columns) as usize],
                "{m} rows"
            );
        }
    }

    // A whole model, over the border of the first class of slots: prompts in chunks of any width,
    // decoding, verified blocks.
    let model =
        load_target(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target"), &mut |_, _| {})
            .expect("loads");
    let ids: Vec<u32> = (0..320).map(|at| at * 7 % 1000 + 4).collect();
    let before = paceline_cpu::calls();
    let whole = read(&*model, &ids, &[ids.len()]);
    for widths in [&[1][..], &[16, 1], &[64], &[200, 33, 2], &[255, 1]] {
        assert_eq!(read(&*model, &ids, widths), whole, "{widths:?}");
    }
    let after = paceline_cpu::calls();
    assert_eq!(after.forwarded, before.forwarded, "the model asks for products that are not ours");
}
