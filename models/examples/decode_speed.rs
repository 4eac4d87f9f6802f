//! A bare decode loop: what the model alone costs a step, without processes around it.
//!
//! `cargo run --release -p paceline-models --example decode_speed -- demo/target [sequences] [steps] [prompt]`

use std::path::Path;

use paceline_models::sample::{RowRule, Sampling, choose, noise::NoiseKey};
use paceline_models::{Batch, DeviceChoice, KvStore, Purpose, Segment, SequenceId, Wants, device, load_target};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("usage: decode_speed MODEL_DIR [sequences] [steps] [prompt]");
    let mut number = |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (sequences, steps, prompt) = (number(1), number(200), number(64));
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
            let length = if step == 0 { ids.len() } else { 1 };
            let (start, purpose) = ((ids.len() - length) as i32, if step == 0 { Purpose::Prefill } else { Purpose::Decode });
            Segment { sequence: SequenceId(at as u64), start, length: length as i32, purpose, image_spans: vec![] }
        };
        let segments: Vec<Segment> = ids.iter().enumerate().map(|(at, ids)| segment(at, ids)).collect();
        let rows: Vec<u32> = ids.iter().zip(&segments).flat_map(|(ids, s)| ids[s.start as usize..].to_vec()).collect();
        let mut row = 0;
        let logit_rows = segments
            .iter()
            .map(|segment| {
                row += segment.length;
                row - 1
            })
            .collect();
        let forward = model
            .forward(&Batch::text(rows, segments.clone()), &mut kv, &Wants { logit_rows, ..Wants::default() })
            .expect("a forward");
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
        let rules: Vec<RowRule<'_>> = ids.iter().map(rule).collect();
        let chosen = choose(forward.logits.as_ref().expect("wanted"), &rules, &[]).expect("choices");
        for ((ids, choice), segment) in ids.iter_mut().zip(&chosen).zip(&segments) {
            ids.push(choice.token);
            kv.commit(segment.sequence, segment.start + segment.length).expect("commits");
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
