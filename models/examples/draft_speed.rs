//! A bare drafting cycle: what one draft forward costs, without processes around it.
//!
//! `cargo run --release -p paceline-models --example draft_speed -- demo/target demo/drafter
//! [none|q8|q4] [sessions] [cycles] [block] [committed]`
//!
//! `block`: rows of a block, the bonus token's included; `committed`: rows of context a cycle.

use std::path::Path;

use mlx_rs::transforms::eval;
use paceline_models::{
    Array, BlockRequest, DeviceChoice, DraftBatch, DraftOptions, DraftPart, KvStore,
    ProductsChoice, Proposal, Quantize, SequenceId, device, load_draft, load_target, products,
};

// More than 60 lines: a tool's steps in order, with nothing to share.
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, drafter, ..] = arguments.as_slice() else {
        panic!(
            "usage: draft_speed TARGET_DIR DRAFTER_DIR [none|q8|q4] [sessions] [cycles] [block] [committed]"
        )
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
    // As in the drafter's process, in which the target's size decides about nothing.
    products::choose(ProductsChoice::Auto).expect("it fits every place");
    let dir = Path::new(target);
    let options = DraftOptions { quantize, draft_vocabulary: 0 };
    let drafter =
        load_draft(Path::new(drafter), "auto", Some(dir), options, &mut |_, _| {}).expect("loads");
    let target = load_target(dir, &mut |_, _| {}).expect("loads");
    let info = drafter.info();
    let (block, committed) = (number(5, info.block as u64) as i32, number(6, 6) as i32);
    let width = info.feature_width();
    let row: Vec<f32> = (0..width).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let states = |rows: i32| {
        Array::from_slice(
            &row.repeat((rows * sessions as i32) as usize),
            &[rows * sessions as i32, width],
        )
    };
    let mut ids = vec![info.mask_id.unwrap_or(1); info.embedding_rows(block) as usize];
    ids.iter_mut().take(1).for_each(|bonus| *bonus = 1);
    // Ids of context rows, for a drafter that reads them.
    let read_ids = |rows: i32| match info.token_ids {
        true => vec![5; (rows * sessions as i32) as usize],
        false => vec![],
    };
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
                    next_id: Some(1),
                    block: BlockRequest::greedy(block, 1),
                })
                .collect::<Vec<_>>()
        };
        let began = std::time::Instant::now();
        let read = DraftBatch {
            ids: read_ids(context),
            parts: parts(0, context, 0),
            hidden_states: Some(states(context)),
            embeddings: None,
            images: vec![],
        };
        drafter.propose(&read, &mut kv).expect("a forward");
        kv.evaluate().expect("evaluates");
        let reading = began.elapsed().as_secs_f64() * 1e3;
        let mut took = vec![];
        let new = states(committed);
        let embedded = (!ids.is_empty())
            .then(|| target.embed(&ids.repeat(sessions as usize)).expect("embeds"));
        eval(embedded.iter().chain([&new])).expect("evaluates");
        for _ in 0..cycles {
            let began = std::time::Instant::now();
            let batch = DraftBatch {
                ids: read_ids(committed),
                parts: parts(context, committed, block),
                hidden_states: Some(new.clone()),
                embeddings: embedded.clone(),
                images: vec![],
            };
            match drafter.propose(&batch, &mut kv).expect("a forward") {
                Some(Proposal::Hidden(rows)) => eval([&rows]).expect("evaluates"),
                Some(Proposal::Tokens(_)) => {}
                None => panic!("expected a proposal"),
            }
            took.push(began.elapsed().as_secs_f64() * 1e3);
            // Always the same context length.
            (0..sessions)
                .for_each(|session| kv.commit(SequenceId(session), context).expect("commits"));
        }
        took.sort_by(f64::total_cmp);
        println!(
            "{sessions} sessions, context {context}: reading it in {reading:.2} ms; block of {block} with {committed} new rows: median {:.3} ms, best {:.3} ms",
            took[took.len() / 2],
            took[0]
        );
    }
}
