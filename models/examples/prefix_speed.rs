//! Cost of reading a prompt, of keeping its pages and states, and of finding them again:
//! `prefix_speed [MODEL] [TOKENS] [OTHERS]`. Others are sequences of the same length that lie in
//! the store meanwhile. Medians of nine rounds, milliseconds.

#![expect(clippy::print_stdout, reason = "it is what this program is for")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::path::PathBuf;
use std::time::Instant;

use mlx_rs::transforms::eval;
use paceline_models::{
    Batch, DeviceChoice, KvRows, KvStore, Segment, SequenceId, Target, Wants, device, kv::PAGE,
    load_target,
};

fn read(target: &dyn Target, kv: &mut KvStore, sequence: u64, tokens: i32) {
    let sequence = SequenceId(sequence);
    kv.open(sequence).expect("new");
    for start in (0..tokens).step_by(512) {
        let length = (tokens - start).min(512);
        let ids = (start..start + length).map(|at| 8 + (at * 31 % 1000) as u32).collect();
        let segment = Segment { sequence, start, length, drafted: 0 };
        let wants = Wants { logit_rows: vec![length - 1], ..Wants::default() };
        let forward =
            target.forward(&Batch::text(ids, vec![segment]), kv, &wants).expect("computes");
        eval([&forward.logits.expect("asked for")]).expect("evaluates");
        kv.commit(sequence, start + length).expect("commits");
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(|| PathBuf::from("demo/target"), PathBuf::from);
    let mut number =
        |default: i32| args.next().map_or(default, |word| word.parse().expect("a number"));
    let (tokens, others) = (number(1500), number(0) as u64);
    device::choose(DeviceChoice::Auto).expect("a device");
    let target = load_target(&dir, &mut |_, _| {}).expect("loads");
    let mut kv =
        KvStore::new(&target.kv_layers(), target.dtype(), target.info().context).expect("made");
    (0..others).for_each(|other| read(target.as_ref(), &mut kv, 1000 + other, tokens));
    let pages = (tokens - 1) / PAGE;
    // States are those of the last row.
    let tokens = if kv.state_bytes() > 0 { pages * PAGE } else { tokens };
    let (mut reading, mut keeping, mut finding) = (vec![], vec![], vec![]);
    for round in 0..9 {
        let clock = Instant::now();
        read(target.as_ref(), &mut kv, 2 * round, tokens);
        reading.push(clock.elapsed().as_secs_f64() * 1e3);
        let clock = Instant::now();
        let kept = kv.copy_out(SequenceId(2 * round), 0, PAGE, pages).expect("copied");
        let states = (kv.state_bytes() > 0)
            .then(|| kv.keep_states(SequenceId(2 * round), tokens).expect("copied"));
        keeping.push(clock.elapsed().as_secs_f64() * 1e3);
        kv.free(SequenceId(2 * round));
        let clock = Instant::now();
        kv.open(SequenceId(2 * round + 1)).expect("new");
        kv.copy_in(
            SequenceId(2 * round + 1),
            &kept.iter().collect::<Vec<&KvRows>>(),
            states.as_ref(),
            pages * PAGE,
            tokens,
        )
        .expect("copied");
        finding.push(clock.elapsed().as_secs_f64() * 1e3);
        kv.free(SequenceId(2 * round + 1));
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "{tokens} tokens beside {others} sequences: reading {:.1}, keeping {pages} pages ({:.1} MB) {:.2}, finding them {:.2}",
        median(reading),
        ((pages * PAGE) as u64 * kv.row_bytes() + kv.state_bytes()) as f64 / 1e6,
        median(keeping),
        median(finding),
    );
}
