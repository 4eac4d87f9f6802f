//! A bare drafting cycle: what one draft forward costs, without processes around it.
//!
//! `cargo run --release -p paceline-models --example draft_speed -- demo/target demo/drafter
//! [none|q8|q4] [sessions] [cycles]`

use std::path::Path;

use mlx_rs::transforms::eval;
use paceline_models::{
    Array, BlockRequest, DeviceChoice, DraftBatch, DraftPart, KvStore, Proposal, Quantize,
    SequenceId, device, load_draft, load_target,
};

/// Rows committed a cycle: what a middling acceptance gives.
const COMMITTED: i32 = 6;

// More than 60 lines: a tool's steps in order, with nothing to share.
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, drafter, ..] = arguments.as_slice() else {
        panic!("usage: draft_speed TARGET_DIR DRAFTER_DIR [none|q8|q4] [sessions] [cycles]")
    };
    let quantize = match arguments.get(2).map(String::as_str) {
        None | Some("none") => Quantize::None,
        Some("q8") => Quantize::Q8,
        Some("q4") => Quantize::Q4,
        Some(other) => panic!("expected none, q8 or q4, found {other}"),
    };
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let (sessions, cycles) = (number(3, 1), number(4, 100));
    device::choose(DeviceChoice::Auto).expect("a device");
    let target = load_target(Path::new(target), &mut |_, _| {}).expect("loads");
    let drafter =
        load_draft(Path::new(drafter), "auto", None, quantize, &mut |_, _| {}).expect("loads");
    let info = drafter.info();
    let width = info.feature_width();
    let row: Vec<f32> = (0..width).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let states = |rows: i32| {
        Array::from_slice(
            &row.repeat((rows * sessions as i32) as usize),
            &[rows * sessions as i32, width],
        )
    };
    let mut ids = vec![info.mask_id.expect("a mask token"); info.block as usize];
    ids[0] = 1;
    for context in [100, 1000] {
        let mut kv = KvStore::new(&drafter.kv_layers(), drafter.dtype(), info.context + info.block)
            .expect("a store");
        (0..sessions).for_each(|session| kv.open(SequenceId(session)).expect("new"));
        let parts = |position: i32, context: i32, block: i32| {
            (0..sessions)
                .map(|session| DraftPart {
                    sequence: SequenceId(session),
                    position,
                    context,
                    next_id: None,
                    block: BlockRequest::greedy(block, 1),
                })
                .collect::<Vec<_>>()
        };
        let began = std::time::Instant::now();
        let read = DraftBatch {
            ids: vec![],
            parts: parts(0, context, 0),
            hidden_states: Some(states(context)),
            embeddings: None,
            images: vec![],
        };
        drafter.propose(&read, &mut kv).expect("a forward");
        kv.evaluate().expect("evaluates");
        let reading = began.elapsed().as_secs_f64() * 1e3;
        let mut took = vec![];
        let (new, block) =
            (states(COMMITTED), target.embed(&ids.repeat(sessions as usize)).expect("embeds"));
        eval([&new, &block]).expect("evaluates");
        for _ in 0..cycles {
            let began = std::time::Instant::now();
            let batch = DraftBatch {
                ids: vec![],
                parts: parts(context, COMMITTED, info.block),
                hidden_states: Some(new.clone()),
                embeddings: Some(block.clone()),
                images: vec![],
            };
            match drafter.propose(&batch, &mut kv).expect("a forward") {
                Some(Proposal::Hidden(rows)) => eval([&rows]).expect("evaluates"),
                other => panic!("expected hidden rows, found {other:?}"),
            }
            took.push(began.elapsed().as_secs_f64() * 1e3);
            // Always the same context length.
            (0..sessions)
                .for_each(|session| kv.commit(SequenceId(session), context).expect("commits"));
        }
        took.sort_by(f64::total_cmp);
        println!(
            "{sessions} sessions, context {context}: reading it in {reading:.2} ms; block of {} with {COMMITTED} new rows: median {:.3} ms, best {:.3} ms",
            info.block,
            took[took.len() / 2],
            took[0]
        );
    }
}
