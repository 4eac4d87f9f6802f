//! A prompt's beginning from copied pages, and from copied states if the model has recurrent layers.
//! The logits after it are those of the sequence that read it.

use std::path::PathBuf;

use mlx_rs::transforms::eval;
use paceline_models::{
    Batch, DeviceChoice, KvRows, KvStore, Segment, SequenceId, Target, Wants, device, kv::PAGE,
    load_target,
};

fn read(target: &dyn Target, kv: &mut KvStore, sequence: u64, start: i32, ids: &[u32]) -> Vec<u32> {
    let sequence = SequenceId(sequence);
    let length = ids.len() as i32;
    let segment = Segment { sequence, start, length, drafted: 0 };
    let wants = Wants { logit_rows: vec![length - 1], ..Wants::default() };
    let forward =
        target.forward(&Batch::text(ids.to_vec(), vec![segment]), kv, &wants).expect("computes");
    let logits = forward.logits.expect("asked for");
    eval([&logits]).expect("evaluates");
    kv.commit(sequence, start + length).expect("commits");
    logits.try_as_slice::<f32>().expect("floats").iter().map(|logit| logit.to_bits()).collect()
}

fn check(model: &str, prompt: i32) {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(model);
    let target = load_target(&dir, &mut |_, _| {}).expect("loads");
    let mut kv =
        KvStore::new(&target.kv_layers(), target.dtype(), target.info().context).expect("made");
    let limit = target.info().vocab as u32 - 8;
    let ids: Vec<u32> = (0..prompt as u32).map(|at| 8 + (at * 31 + at / 7) % limit).collect();
    let pages = (prompt - 1) / PAGE;
    let (head, tail) = ids.split_at((pages * PAGE) as usize);
    kv.open(SequenceId(1)).expect("new");
    read(target.as_ref(), &mut kv, 1, 0, head);
    let kept = kv.copy_out(SequenceId(1), 0, PAGE, pages).expect("copied");
    let states = (kv.state_bytes() > 0)
        .then(|| kv.keep_states(SequenceId(1), head.len() as i32).expect("copied"));
    let expected = read(target.as_ref(), &mut kv, 1, head.len() as i32, tail);
    kv.free(SequenceId(1));
    let kept: Vec<&KvRows> = kept.iter().collect();
    // Alone in its class, beside others in it, and in a larger class than it needs.
    for (sequence, room) in [(2, 0), (3, 0), (4, 2 * prompt)] {
        let room = room.min(target.info().context);
        kv.open(SequenceId(sequence)).expect("new");
        kv.copy_in(SequenceId(sequence), &kept, states.as_ref(), head.len() as i32, room)
            .expect("copied");
        assert_eq!(
            read(target.as_ref(), &mut kv, sequence, head.len() as i32, tail),
            expected,
            "sequence {sequence}"
        );
    }
}

#[test]
fn logits_after_copied_pages_equal_those_of_the_original() {
    check("tests/golden/qwen3-tiny", 200);
    check("../demo/target", 700);
    // With recurrent layers, one and three of them.
    check("tests/golden/mtp-dense", 200);
    check("tests/golden/qwen3_5-tiny", 400);
}

/// These tests once more in MLX's graph, and in that of a GPU (`paceline_models::testing`).
#[cfg(any(debug_assertions, feature = "test-graph"))]
mod graphs {
    use paceline_models::testing::rerun::Rerun;

    #[test]
    #[ignore = "more: seconds"]
    fn in_the_graph_of_mlx() {
        let only = &["logits_after_copied_pages_equal_those_of_the_original"];
        Rerun { graph: "mlx", only, skipped: &[], reruns: &[] }.run();
    }

    #[test]
    #[ignore = "more: seconds"]
    fn in_the_graph_of_a_gpu() {
        let only = &["logits_after_copied_pages_equal_those_of_the_original"];
        Rerun { graph: "gpu", only, skipped: &[], reruns: &[] }.run();
    }
}
