//! A bare decode loop: what the model alone costs a step, without processes around it; how much of
//! it is building the graph; and what a step costs where the next one's graph is built, with the
//! chosen ids still in it, while this one runs.
//!
//! `cargo run --release -p paceline-models --example decode_speed -- demo/target [sequences]
//! [steps] [prompt] [block] [accepted]`
//!
//! With a block of more than one row a step is what the target does to verify a draft, of which
//! `accepted` tokens are accepted, without a number none. With the number `certain` no row may be
//! rejected, as in a prompt: the difference is what a drafted row costs a model with states.

use std::path::Path;

use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::transforms::async_eval;
use paceline_models::sample::{RowRule, choose};
use paceline_models::{
    Array, Batch, DeviceChoice, KvStore, PendingIds, Segment, SequenceId, Target, Wants, device,
    load_target,
};

/// Rows of a chunk of a prompt.
const CHUNK: usize = 1_024;

// More than 60 lines: a tool's steps in order, with nothing to share.
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .expect("usage: decode_speed MODEL_DIR [sequences] [steps] [prompt] [block] [accepted]");
    let mut number =
        |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (sequences, steps, prompt, block) = (number(1), number(200), number(64), number(1).max(1));
    let accepted = arguments.next();
    let certain = accepted.as_deref() == Some("certain");
    let committed = match accepted {
        Some(_) if certain => block,
        Some(text) => text.parse::<usize>().expect("a number, or certain") + 1,
        None => 1,
    };
    assert!(committed <= block, "at most block - 1 tokens are accepted");
    device::choose(DeviceChoice::Auto).expect("a device");
    let model = load_target(Path::new(&dir), &mut |_, _| {}).expect("loads");
    let mut kv =
        KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("a store");
    let mut ids: Vec<Vec<u32>> = (0..sequences)
        .map(|at| (0..prompt).map(|i| (i * 7 + at) as u32 % 1000 + 4).collect())
        .collect();
    for at in 0..sequences {
        kv.open(SequenceId(at as u64)).expect("new");
    }
    let begun = std::time::Instant::now();
    let read = read_first(model.as_ref(), &mut kv, &ids);
    let (mut took, mut built, mut switches) = (vec![], vec![], vec![]);
    for step in 0..=steps {
        if step == 1 {
            switches = voluntary_switches();
        }
        let started = std::time::Instant::now();
        let segment = |at: usize, ids: &Vec<u32>| {
            let (start, length, drafted) = match step {
                0 => (read, ids.len() - read, 0),
                _ => (ids.len() - 1, block, if certain { 0 } else { block - 1 }),
            };
            Segment {
                sequence: SequenceId(at as u64),
                start: start as i32,
                length: length as i32,
                drafted: drafted as i32,
            }
        };
        let segments: Vec<Segment> =
            ids.iter().enumerate().map(|(at, ids)| segment(at, ids)).collect();
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
            .forward(
                &Batch::text(rows, segments.clone()),
                &mut kv,
                &Wants { logit_rows, ..Wants::default() },
            )
            .expect("a forward");
        let graph_ms = started.elapsed().as_secs_f64() * 1e3;
        let per_sequence = if step == 0 { 1 } else { block };
        let rule =
            |ids: &Vec<u32>| RowRule { position: ids.len() as u32, ..RowRule::greedy(&[], 0) };
        let rules: Vec<RowRule<'_>> =
            ids.iter().flat_map(|ids| (0..per_sequence).map(|_| rule(ids))).collect();
        let chosen =
            choose(forward.logits.as_ref().expect("wanted"), &rules, &[]).expect("choices");
        for ((ids, choice), segment) in
            ids.iter_mut().zip(chosen.chunks(per_sequence)).zip(&segments)
        {
            let length = if step == 0 { segment.length } else { committed as i32 };
            // The block's own ids stand for the accepted tokens.
            ids.extend((0..length.min(committed as i32) - 1).map(|at| at as u32 * 5 + 4));
            ids.push(choice[0].token);
            kv.commit(segment.sequence, segment.start + length).expect("commits");
        }
        if step > 0 {
            took.push(started.elapsed().as_secs_f64() * 1e3);
            built.push(graph_ms);
        } else {
            println!(
                "prefill of {sequences} x {prompt}: {:.1} ms",
                begun.elapsed().as_secs_f64() * 1e3
            );
        }
    }
    let ((median, best), (graph, _)) = (middle(&mut took), middle(&mut built));
    println!(
        "{sequences} sequences of {block} rows: step median {median:.3} ms, best {best:.3} ms; {:.0} tok/s; of it {graph:.3} ms until the graph is there",
        (sequences * committed) as f64 * 1e3 / median
    );
    print_switches(&switches, &voluntary_switches(), steps);
    if block > 1 {
        return;
    }
    // Both begin with the prompts, so that contexts are the same.
    ids.iter_mut().for_each(|ids| ids.truncate(prompt + 1));
    let plain = median;
    for (begin, what) in [(false, "built ahead"), (true, "begun ahead")] {
        for at in 0..sequences {
            // A state cannot go back to the prompt's end.
            kv.free(SequenceId(at as u64));
            kv.open(SequenceId(at as u64)).expect("it was freed");
        }
        read_first(model.as_ref(), &mut kv, &ids);
        let (median, best) = middle(&mut ahead(model.as_ref(), &mut kv, &ids, (steps, begin)));
        println!(
            "{what}: step median {median:.3} ms, best {best:.3} ms; {:.3} of the above",
            median / plain
        );
    }
}

/// How often each thread of this process gave its core up to wait, from Linux's /proc; nothing
/// elsewhere. Threads by number and name.
fn voluntary_switches() -> Vec<(String, u64)> {
    let count = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let name = format!("{} {}", task.file_name().to_string_lossy(), field("Name:")?);
        Some((name, field("voluntary_ctxt_switches:")?.parse().ok()?))
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.filter_map(Result::ok).filter_map(count).collect()
}

/// Waits of each thread a step, those that wait at all.
#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
fn print_switches(before: &[(String, u64)], after: &[(String, u64)], steps: usize) {
    for (thread, count) in after {
        let earlier = before.iter().find(|(of, _)| of == thread).map_or(0, |(_, count)| *count);
        let a_step = (count - earlier) as f64 / steps.max(1) as f64;
        if a_step >= 0.01 {
            println!("voluntary context switches of thread {thread}: {a_step:.2} a step");
        }
    }
}

/// Reads all of the prompts but their last rows, in chunks. Returns how many rows of each were read.
fn read_first(model: &dyn Target, kv: &mut KvStore, ids: &[Vec<u32>]) -> usize {
    let last = ids[0].len() - 1;
    for start in (0..last).step_by(CHUNK) {
        let length = CHUNK.min(last - start);
        for (at, ids) in ids.iter().enumerate() {
            let sequence = SequenceId(at as u64);
            let segment =
                Segment { sequence, start: start as i32, length: length as i32, drafted: 0 };
            let rows = ids[start..start + length].to_vec();
            let wants = Wants { logit_rows: vec![length as i32 - 1], ..Wants::default() };
            let forward = model.forward(&Batch::text(rows, vec![segment]), kv, &wants);
            let logits = forward.expect("a forward").logits.expect("wanted");
            kv.commit(sequence, segment.end()).expect("commits");
            logits.eval().expect("evaluates");
        }
    }
    last
}

fn middle(took: &mut [f64]) -> (f64, f64) {
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[0])
}

/// Goes on greedily with the graph of a step made before the ids of the one before it are read, and
/// begun before or behind that; ms of each step.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn ahead(
    model: &dyn Target,
    kv: &mut KvStore,
    ids: &[Vec<u32>],
    (steps, begin): (usize, bool),
) -> Vec<f64> {
    let last: Vec<u32> = ids.iter().map(|ids| ids[ids.len() - 1]).collect();
    let rows: Vec<i32> = (0..ids.len() as i32).collect();
    let mut chosen = Array::from_slice(&last, &[last.len() as i32]);
    let mut took = vec![];
    let mut clock = std::time::Instant::now();
    for step in 0..=steps {
        let segment = |at: usize| Segment {
            sequence: SequenceId(at as u64),
            start: (ids[at].len() - 1 + step) as i32,
            length: 1,
            drafted: 0,
        };
        let segments: Vec<Segment> = (0..ids.len()).map(segment).collect();
        let batch = Batch {
            pending: Some(PendingIds { rows: rows.clone(), ids: chosen.clone() }),
            ..Batch::text(last.clone(), segments.clone())
        };
        let forward = model
            .forward(&batch, kv, &Wants { logit_rows: rows.clone(), ..Wants::default() })
            .expect("a forward");
        let next = argmax_axis(forward.logits.expect("wanted"), -1, false).expect("ids");
        if begin {
            async_eval([&next]).expect("begins");
        }
        segments
            .iter()
            .for_each(|segment| kv.commit(segment.sequence, segment.start + 1).expect("commits"));
        // The step before this one: its ids are there, or nearly.
        chosen.eval().expect("evaluates");
        std::hint::black_box(chosen.as_slice::<u32>());
        if !begin {
            async_eval([&next]).expect("begins");
        }
        chosen = next;
        took.push(clock.elapsed().as_secs_f64() * 1e3);
        clock = std::time::Instant::now();
    }
    // Nothing may run when the process ends.
    chosen.eval().expect("evaluates");
    took
}
