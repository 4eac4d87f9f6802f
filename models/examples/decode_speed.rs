//! A bare decode loop: what the model alone costs a step, without processes around it.
//!
//! `cargo run --release -p paceline-models --example decode_speed -- demo/target [sequences] [steps] [prompt] [block]`
//!
//! With a block of more than one row a step is what the target does to verify a draft of which nothing is accepted.

use std::path::Path;

use paceline_models::sample::{RowRule, Sampling, choose, noise::NoiseKey};
use paceline_models::{Batch, DeviceChoice, KvStore, Purpose, Segment, SequenceId, Wants, device, load_target};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("usage: decode_speed MODEL_DIR [sequences] [steps] [prompt] [block]");
    let mut number = |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (sequences, steps, prompt, block) = (number(1), number(200), number(64), number(1).max(1));
    device::choose(DeviceChoice::Auto).expect("a device");
    let model = load_target(Path::new(&dir), &mut |_, _| {}).expect("loads");
    let mut kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("a store");
    let noise = NoiseKey { seed: 0, sample: 0 };
    let mut ids: Vec<Vec<u32>> = (0..sequences).map(|at| (0..prompt).map(|i| (i * 7 + at) as u32 % 1000 + 4).collect()).collect();
    for at in 0..sequences {
        kv.open(SequenceId(at as u64)).expect("new");
    }
    let mut took = vec![];
    for step in 0..=steps {
        let started = std::time::Instant::now();
        let segment = |at: usize, ids: &Vec<u32>| {
            let (start, length, purpose) = match step {
                0 => (0, ids.len(), Purpose::Prefill),
                _ if block == 1 => (ids.len() - 1, 1, Purpose::Decode),
                _ => (ids.len() - 1, block, Purpose::Verify),
            };
            Segment { sequence: SequenceId(at as u64), start: start as i32, length: length as i32, purpose, image_spans: vec![] }
        };
        let segments: Vec<Segment> = ids.iter().enumerate().map(|(at, ids)| segment(at, ids)).collect();
        let (mut rows, mut logit_rows) = (vec![], vec![]);
        for (ids, segment) in ids.iter().zip(&segments) {
            rows.extend(&ids[segment.start as usize..]);
            if step > 0 {
                rows.extend((1..block).map(|at| at as u32 * 5 + 4));
                logit_rows.extend((rows.len() - block..rows.len()).map(|row| row as i32));
            } else {
                logit_rows.push(rows.len() as i32 - 1);
            }
        }
        let forward = model
            .forward(&Batch::text(rows, segments.clone()), &mut kv, &Wants { logit_rows, ..Wants::default() })
            .expect("a forward");
        let per_sequence = if step == 0 { 1 } else { block };
        let rule = |ids: &Vec<u32>| RowRule {
            history: &[],
            sampling: Sampling::GREEDY,
            noise,
            position: ids.len() as u32,
            id_limit: u32::MAX,
            mask: None,
            wants_margin: false,
            wants_surprise: false,
        };
        let rules: Vec<RowRule<'_>> = ids.iter().flat_map(|ids| (0..per_sequence).map(|_| rule(ids))).collect();
        let chosen = choose(forward.logits.as_ref().expect("wanted"), &rules, &[]).expect("choices");
        for ((ids, choice), segment) in ids.iter_mut().zip(chosen.chunks(per_sequence)).zip(&segments) {
            ids.push(choice[0].token);
            let length = if step == 0 { segment.length } else { 1 };
            kv.commit(segment.sequence, segment.start + length).expect("commits");
        }
        if step > 0 {
            took.push(started.elapsed().as_secs_f64() * 1e3);
        } else {
            println!("prefill of {sequences} x {prompt}: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
        }
    }
    took.sort_by(f64::total_cmp);
    let median = took[took.len() / 2];
    println!(
        "{sequences} sequences: step median {median:.3} ms, best {:.3} ms; {:.0} tok/s",
        took[0],
        sequences as f64 * 1e3 / median
    );
}
