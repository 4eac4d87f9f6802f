//! Steps of a model whose layers slide but for one in six, at a long context. Figures, so by
//! `make soak` alone.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use paceline_models::sample::{RowRule, choose};
use paceline_models::{
    Batch, DeviceChoice, KvStore, Segment, SequenceId, Target, Wants, device, load_target,
};

const CHUNK: i32 = 512;
const STEPS: i32 = 20;

/// Adds rows to the sequence, and waits for the token after them.
fn step(model: &dyn Target, kv: &mut KvStore, length: i32) {
    let sequence = SequenceId(0);
    let start = kv.length(sequence).expect("open");
    let segment = Segment { sequence, start, length, drafted: 0 };
    let ids = (start..start + length).map(|at| at as u32 * 7 % 1_000 + 4).collect();
    let wants = Wants { logit_rows: vec![length - 1], ..Wants::default() };
    let forward = model.forward(&Batch::text(ids, vec![segment]), kv, &wants);
    let logits = forward.expect("a forward").logits.expect("wanted");
    let rule = RowRule { position: (start + length) as u32, ..RowRule::greedy(&[], 0) };
    choose(&logits, &[rule], &[]).expect("choices");
    kv.commit(sequence, start + length).expect("commits");
}

/// Milliseconds of a step at about that position: the median.
#[expect(clippy::disallowed_methods, reason = "a figure reads the clock")]
fn ms_at(model: &dyn Target, kv: &mut KvStore, position: i32) -> f64 {
    while let left @ 1.. = position - kv.length(SequenceId(0)).expect("open") {
        step(model, kv, left.min(CHUNK));
    }
    let mut took: Vec<f64> = (0..STEPS)
        .map(|_| {
            let begun = Instant::now();
            step(model, kv, 1);
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

#[test]
#[ignore = "soak: reads 32,768 ids with a model of a hundred million parameters"]
fn a_step_far_behind_the_windows_takes_little_longer() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let dir = tempfile::tempdir().expect("a directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/random-checkpoint.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(dir.path()).args(["--family", "gemma4", "--size", "100m"]);
    assert!(python.status().expect("python3 is there").success());
    let model = load_target(dir.path(), &mut |_, _| {}).expect("loads");
    let model = model.as_ref();
    let kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context);
    let mut kv = kv.expect("a store");
    kv.open(SequenceId(0)).expect("new");
    let (short, long) = (ms_at(model, &mut kv, 2_048), ms_at(model, &mut kv, 32_768));
    eprintln!("a step takes {short:.2} ms at 2,048 positions, {long:.2} ms at 32,768");
    assert!(long <= 1.5 * short, "{long} ms at 32,768 positions, {short} ms at 2,048");
}
