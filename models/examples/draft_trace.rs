//! How far drafts survive at every place of a text, and how sure the target is of each of its
//! tokens: what decisions about speculation are tried on, in virtual time. Greedy, past the end of
//! the answer, as `paceline bench` asks.
//!
//! `cargo run --release -p paceline-models --example draft_trace -- demo/target demo/drafter
//! PROMPTS.jsonl 160 2 > traces.txt`
//!
//! A line in: `{"kind": "json", "prompt": [ids]}`. A line out, five words: the kind; a base-32
//! digit for each token but the last, how many drafted tokens behind it are the target's own; a
//! digit for each token, −ln of its probability in eight bins; the prompt, three hexadecimal digits
//! a token; and how many tokens the answer has with the one that ends it, or `-`.

use std::io::BufRead as _;
use std::path::Path;

use mlx_rs::ops::{concatenate, indexing};
use mlx_rs::transforms::eval;
use paceline_models::{
    Array, Batch, BlockRequest, DeviceChoice, DraftBatch, DraftPart, Drafter, FeatureLayers,
    KvStore, Proposal, Quantize, Segment, SequenceId, Target, Wants, device, load_draft,
    load_target,
};
use serde::Deserialize;

/// Upper ends of the bins of doubt, nats.
const ENDS: [f32; 7] = [0.001, 0.01, 0.05, 0.15, 0.4, 0.9, 1.6];

#[derive(Deserialize)]
struct TraceLine {
    kind: String,
    prompt: Vec<u32>,
}

struct Pair {
    target: Box<dyn Target>,
    drafter: Box<dyn Drafter>,
    target_kv: KvStore,
    draft_kv: KvStore,
}

impl Pair {
    /// Reads `rows` behind what is there: the choice behind the last, the doubt of it, and all
    /// states.
    fn read(&mut self, rows: &[u32]) -> (u32, f32, Array) {
        let (sequence, length) = (SequenceId(0), rows.len() as i32);
        let start = self.target_kv.length(sequence).expect("open");
        let segment = Segment { sequence, start, length, drafted: 0 };
        let features = FeatureLayers {
            layers: self.drafter.info().feature_layers.clone(),
            rows: (0..length).collect(),
        };
        let wants = Wants {
            logit_rows: vec![length - 1],
            hidden_states: Some(features),
            ..Wants::default()
        };
        let forward = self
            .target
            .forward(&Batch::text(rows.to_vec(), vec![segment]), &mut self.target_kv, &wants)
            .expect("runs");
        let (logits, states) = (
            forward.logits.expect("wanted"),
            forward.hidden_states.expect("wanted").side_by_side().expect("lazy"),
        );
        eval([&logits, &states]).expect("evaluates");
        self.target_kv.commit(sequence, start + length).expect("commits");
        let row = logits.contiguous().expect("a copy");
        eval([&row]).expect("evaluates");
        let row = row.try_as_slice::<f32>().expect("floats");
        let (mut best, mut sum) = (0, 0f64);
        row.iter()
            .enumerate()
            .for_each(|(at, value)| best = if *value > row[best] { at } else { best });
        row.iter().for_each(|value| sum += f64::from(value - row[best]).exp());
        (best as u32, sum.ln() as f32, states)
    }

    /// Drafts after `bonus`, once `states` from `position` on are read.
    fn draft(&mut self, position: i32, states: &Array, bonus: u32) -> Vec<u32> {
        let (block, mask) =
            (self.drafter.info().block, self.drafter.info().mask_id.expect("a mask token"));
        let mut ids = vec![mask; block as usize];
        ids[0] = bonus;
        let request = BlockRequest::greedy(block, bonus);
        let (sequence, context) = (SequenceId(0), states.dim(0));
        let part = DraftPart { sequence, position, context, next_id: None, block: request };
        let embeddings = Some(self.target.embed(&ids).expect("embeds"));
        let hidden_states = Some(states.clone());
        let batch =
            DraftBatch { parts: vec![part], hidden_states, embeddings, ..DraftBatch::default() };
        let proposal = self.drafter.propose(&batch, &mut self.draft_kv).expect("runs");
        let Some(Proposal::Hidden(hidden)) = proposal else { panic!("expected hidden rows") };
        let chosen = indexing::argmax_axis(self.target.head(&hidden).expect("a head"), -1, false)
            .expect("argmax");
        let chosen = concatenate(&[chosen], 0).expect("a copy");
        eval([&chosen]).expect("evaluates");
        chosen.try_as_slice::<u32>().expect("ids").to_vec()
    }
}

#[expect(clippy::print_stdout, reason = "its output is the fixture")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, drafter, prompts, tokens, end] = arguments.as_slice() else {
        panic!("usage: draft_trace TARGET_DIR DRAFTER_DIR PROMPTS.jsonl TOKENS END_ID")
    };
    let (tokens, end): (usize, u32) =
        (tokens.parse().expect("a number"), end.parse().expect("an id"));
    device::choose(DeviceChoice::Auto).expect("a device");
    let target = load_target(Path::new(target), &mut |_, _| {}).expect("loads");
    let drafter = load_draft(Path::new(drafter), "auto", None, Quantize::None, &mut |_, _| {})
        .expect("loads");
    let target_kv =
        KvStore::new(&target.kv_layers(), target.dtype(), target.info().context).expect("made");
    let room = drafter.info().context + drafter.info().block;
    let draft_kv = KvStore::new(&drafter.kv_layers(), drafter.dtype(), room).expect("made");
    let mut pair = Pair { target, drafter, target_kv, draft_kv };
    for line in std::io::BufReader::new(std::fs::File::open(prompts).expect("opens")).lines() {
        let line: TraceLine = serde_json::from_str(&line.expect("reads")).expect("a prompt");
        pair.target_kv.open(SequenceId(0)).expect("new");
        pair.draft_kv.open(SequenceId(0)).expect("new");
        let (mut next, mut doubt, mut states) = pair.read(&line.prompt);
        let (mut ids, mut doubts, mut drafts, mut position) = (vec![], String::new(), vec![], 0);
        loop {
            ids.push(next);
            doubts += &ENDS.partition_point(|end| *end < doubt).to_string();
            if ids.len() == tokens {
                break;
            }
            drafts.push(pair.draft(position, &states, next));
            position += states.dim(0);
            (next, doubt, states) = pair.read(&[next]);
        }
        let accepted = drafts.iter().enumerate().map(|(at, draft)| {
            let right =
                draft.iter().zip(&ids[at + 1..]).take_while(|(drafted, id)| drafted == id).count();
            char::from_digit(right as u32, 32).expect("a block is shorter than 32")
        });
        let accepted: String = accepted.collect();
        let prompt: String = line.prompt.iter().map(|id| format!("{id:03x}")).collect();
        let length =
            ids.iter().position(|id| *id == end).map_or("-".into(), |at| (at + 1).to_string());
        println!("{} {accepted} {doubts} {prompt} {length}", line.kind);
        pair.target_kv.free(SequenceId(0));
        pair.draft_kv.free(SequenceId(0));
    }
}
