//! Cost of a bare step of a model by its rows, its sequences and its positions, beside the limit of
//! the device's memory. A JSON object a line, each as soon as it is measured, so that a time limit
//! loses only what was not reached.
//!
//! `cargo run --release -p paceline-models --example step_widths -- MODEL_DIR [positions] [rows]
//! [sequences] [steps]`, for example `step_widths demo/target 1024,3000 1,2,4,8,16 4,16 20`
//!
//! Rows after the first are drafted and rejected, as in a verification. Sequences have one row each
//! and lengths that differ, as in a service.

use std::path::Path;
use std::time::Instant;

use mlx_rs::ops::ones_dtype;
use paceline_models::sample::{RowRule, choose};
use paceline_models::{
    Array, Batch, DeviceChoice, KvStore, Segment, SequenceId, Target, Wants, device, load_target,
};

/// Rows of a chunk of a prompt.
const CHUNK: i32 = 512;
/// Steps before those that count: kernels are compiled, and buffers are made.
const WARM: usize = 3;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .expect("usage: step_widths MODEL_DIR [positions] [rows] [sequences] [steps]");
    let mut numbers = |default: &str| -> Vec<i32> {
        let text = arguments.next().unwrap_or_else(|| default.to_owned());
        let each = text.split(',').filter(|part| !part.is_empty());
        each.map(|part| part.parse().expect("a number")).collect()
    };
    let (positions, rows) = (numbers("1024"), numbers("1,2,3,4,8,16"));
    let (sequences, steps) = (numbers(""), numbers("20")[0] as usize);
    let gpu = device::choose(DeviceChoice::Auto).expect("a device");
    print(format!(r#""gpu":{gpu},"copy_gb_s":{:.1}"#, copy_speed(gpu)));
    let begun = now();
    let model = load_target(Path::new(&dir), &mut |_, _| {}).expect("loads");
    print(format!(
        r#""load_s":{:.2},"weight_bytes":{},"dtype":"{:?}""#,
        ms(begun) / 1e3,
        model.info().weight_bytes,
        model.dtype()
    ));
    for positions in positions {
        let mut bench = Bench::new(model.as_ref(), positions);
        for rows in &rows {
            bench.measure(&[0], *rows, steps);
        }
        for sequences in &sequences {
            let all: Vec<u64> = (0..*sequences as u64).collect();
            bench.fork(*sequences);
            bench.measure(&all, 1, steps);
        }
    }
}

/// A model and sequences of about `positions` positions.
struct Bench<'a> {
    model: &'a dyn Target,
    kv: KvStore,
    positions: i32,
    forked: i32,
}

impl<'a> Bench<'a> {
    /// Reads the prompt of the first sequence.
    fn new(model: &'a dyn Target, positions: i32) -> Self {
        let kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context);
        let mut bench = Self { model, kv: kv.expect("a store"), positions, forked: 1 };
        bench.kv.open(SequenceId(0)).expect("new");
        for pass in 0..2 {
            let begun = now();
            for start in (0..positions).step_by(CHUNK as usize) {
                let length = CHUNK.min(positions - start);
                bench.step(&[(0, length, 0)]);
                bench.kv.commit(SequenceId(0), start + length).expect("commits");
            }
            print(format!(
                r#""positions":{positions},"prompt_ms":{:.1},"again":{}"#,
                ms(begun),
                pass == 1
            ));
            if pass == 0 {
                bench.kv.free(SequenceId(0));
                bench.kv.open(SequenceId(0)).expect("it was freed");
            }
        }
        bench
    }

    /// Forks the first sequence into this many, each one position shorter than the one before.
    fn fork(&mut self, sequences: i32) {
        for at in self.forked..sequences {
            let (from, to) = (SequenceId(0), SequenceId(at as u64));
            let length = self.kv.length(from).expect("open");
            self.kv.fork(from, to, length).expect("forks");
            self.kv.commit(to, length - at).expect("commits");
        }
        self.forked = self.forked.max(sequences);
    }

    /// One pass: (sequence, rows, of them drafted) each. The last row's token is waited for.
    fn step(&mut self, parts: &[(u64, i32, i32)]) {
        let mut parts = parts.to_vec();
        parts.sort_by_key(|part| self.kv.order(SequenceId(part.0)));
        let (mut segments, mut ids, mut logit_rows) = (vec![], vec![], vec![]);
        for (sequence, length, drafted) in parts {
            let start = self.kv.length(SequenceId(sequence)).expect("open");
            segments.push(Segment { sequence: SequenceId(sequence), start, length, drafted });
            ids.extend((start..start + length).map(|at| at as u32 * 7 % 1_000 + 4));
            let end = ids.len() as i32;
            logit_rows.extend(end - 1 - drafted..end);
        }
        let rules: Vec<RowRule<'_>> = logit_rows
            .iter()
            .map(|row| RowRule { position: *row as u32, ..RowRule::greedy(&[], 0) })
            .collect();
        let wants = Wants { logit_rows, ..Wants::default() };
        let forward = self.model.forward(&Batch::text(ids, segments), &mut self.kv, &wants);
        let logits = forward.expect("a forward").logits.expect("wanted");
        choose(&logits, &rules, &[]).expect("choices");
    }

    /// Measures steps of `rows` rows of each sequence, of which one row is kept.
    fn measure(&mut self, sequences: &[u64], rows: i32, steps: usize) {
        let parts: Vec<_> = sequences.iter().map(|sequence| (*sequence, rows, rows - 1)).collect();
        let mut took = vec![];
        for _ in 0..steps + WARM {
            let begun = now();
            self.step(&parts);
            for sequence in sequences {
                let sequence = SequenceId(*sequence);
                let length = self.kv.length(sequence).expect("open");
                self.kv.commit(sequence, length + 1).expect("commits");
            }
            took.push(ms(begun));
        }
        let mut took = took.split_off(WARM);
        took.sort_by(f64::total_cmp);
        print(format!(
            r#""positions":{},"sequences":{},"rows":{rows},"ms":{:.3},"best_ms":{:.3}"#,
            self.positions,
            sequences.len(),
            took[took.len() / 2],
            took[0]
        ));
    }
}

/// Bytes read and written a nanosecond by a sum with a constant: of 2 GiB on a GPU, so that no cache
/// holds it.
fn copy_speed(gpu: bool) -> f64 {
    let numbers = if gpu { 1 << 30 } else { 1 << 26 };
    let from = ones_dtype(&[numbers], mlx_rs::Dtype::Bfloat16).expect("made");
    from.eval().expect("evaluates");
    let one = Array::from_f32(1.0).as_dtype(mlx_rs::Dtype::Bfloat16).expect("a number");
    let best = (0..5).map(|_| {
        let begun = now();
        from.add(&one).and_then(|sum| sum.eval()).expect("evaluates");
        ms(begun)
    });
    f64::from(numbers) * 4.0 / best.fold(f64::INFINITY, f64::min) / 1e6
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
fn print(fields: String) {
    println!("{{{fields}}}");
}
