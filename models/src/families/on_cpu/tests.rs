//! A pass of the program against the same layers as MLX's graph: the same bits, but for experts,
//! whose router MLX computes otherwise.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use mlx_rs::transforms::eval;

use crate::batch::{FeatureLayers, Override, PendingIds};
use crate::device::{DeviceChoice, choose};
use crate::families::{Target, load_target};
use crate::segment::{Segment, SequenceId};

use super::*;

thread_local! {
    /// Passes of programs on this thread: a model that was not recorded makes none.
    pub(crate) static PASSES: Cell<usize> = const { Cell::new(0) };
}

/// Every target among the golden files. Those with experts come last.
fn targets() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(golden).expect("the golden files");
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    dirs.sort();
    let known = |dir: &PathBuf| {
        let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_target = name.contains("-tiny") && !name.starts_with("dflash");
        is_target && dir.join("config.json").exists()
    };
    dirs.retain(known);
    dirs.into_iter().partition(|dir| !dir.to_string_lossy().contains("moe"))
}

/// The numbers that a forward gives: logits, hidden states, final hidden states.
fn numbers(forward: &Forward) -> Vec<Vec<f32>> {
    let states = forward.hidden_states.iter();
    let states: Vec<Array> =
        states.map(|states| states.side_by_side().expect("of one width")).collect();
    let arrays: Vec<&Array> =
        forward.logits.iter().chain(&states).chain(&forward.final_hidden).collect();
    eval(arrays.iter().copied()).expect("evaluates");
    let numbers = |array: &&Array| array.try_as_slice::<f32>().expect("floats").to_vec();
    arrays.iter().map(numbers).collect()
}

/// One model with two stores, of which only the first takes passes.
struct Both {
    target: Box<dyn Target>,
    stores: [KvStore; 2],
    /// Largest difference that is allowed, as a share of the largest number; 0: the same bits.
    bound: f32,
    name: String,
}

impl Both {
    fn load(dir: &Path, bound: f32) -> Self {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let target = load_target(dir, &mut |_, _| {}).expect("loads");
        let store = || KvStore::new(&target.kv_layers(), target.dtype(), 2_048).expect("a store");
        let mut stores = [store(), store()];
        assert!(stores[0].takes_passes(), "{}", dir.display());
        stores[1].refuse_passes();
        for store in &mut stores {
            (1..4).for_each(|sequence| store.open(SequenceId(sequence)).expect("new"));
        }
        Self { target, stores, bound, name: dir.display().to_string() }
    }

    /// Runs a batch in both ways, compares all results, and commits the lengths of `commits`. Returns
    /// the logits of the last row.
    fn step(&mut self, batch: &Batch, commits: &[(u64, i32)]) -> Vec<f32> {
        let rows = batch.ids.len() as i32;
        let last = self.target.info().n_layers - 1;
        let odd: Vec<i32> = (0..rows).filter(|row| (rows - row) % 2 == 1).collect();
        let kept = odd.len() as i32;
        let wants = Wants {
            logit_rows: vec![0, rows - 1][..rows.min(2) as usize].to_vec(),
            hidden_states: Some(FeatureLayers { layers: vec![last, 0], rows: odd }),
            final_hidden: vec![rows - 1],
        };
        let before = PASSES.get();
        let mut stored_rows = vec![];
        let [passes, graph] = self.stores.each_mut().map(|store| {
            let found = self.target.forward(batch, store, &wants).expect("a forward");
            let states = found.hidden_states.as_ref().expect("they are wanted");
            stored_rows.push(states.arrays()[0].dim(0));
            let found = numbers(&found);
            for (sequence, length) in commits {
                store.commit(SequenceId(*sequence), *length).expect("commits");
            }
            found
        });
        assert_eq!(PASSES.get(), before + 1, "{}: one of both is a pass of a program", self.name);
        assert_eq!(stored_rows, [rows, kept], "{}: a graph takes what is wanted", self.name);
        assert_eq!(passes.len(), 3, "{}", self.name);
        for (at, (passes, graph)) in passes.iter().zip(&graph).enumerate() {
            assert_eq!(passes.len(), graph.len(), "{}: result {at}", self.name);
            let off = passes.iter().zip(graph).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(passes.iter().all(|number| number.is_finite()), "{}", self.name);
            let largest = graph.iter().fold(1.0f32, |most, number| most.max(number.abs()));
            assert!(off <= self.bound * largest, "{}: result {at} differs by {off}", self.name);
        }
        let vocab = self.target.info().vocab as usize;
        passes[0].rchunks(vocab).next().map_or(vec![], <[f32]>::to_vec)
    }

    /// A prompt, steps of one row, blocks with drafted rows, three sequences at once, ids that are
    /// not known yet, and rows of images.
    fn compare(&mut self) {
        let ids =
            |count: i32, first: u32| (0..count as u32).map(|i| (first + i * 7) % 60).collect();
        let part = |sequence: u64, start: i32, length: i32, drafted: i32| Segment {
            sequence: SequenceId(sequence),
            start,
            length,
            drafted,
        };
        let text = |segments: Vec<Segment>, first: u32| {
            let count = segments.iter().map(|segment| segment.length).sum();
            Batch::text(ids(count, first), segments)
        };
        self.step(&text(vec![part(1, 0, 40, 0), part(2, 0, 9, 0)], 1), &[(1, 40), (2, 9)]);
        self.step(&text(vec![part(1, 40, 1, 0)], 5), &[(1, 41)]);
        let block = [part(1, 41, 5, 4), part(2, 9, 1, 0), part(3, 0, 3, 0)];
        self.step(&text(block.to_vec(), 9), &[(1, 43), (2, 10), (3, 3)]);
        // Beyond the smallest class.
        self.step(&text(vec![part(1, 43, 230, 0), part(3, 3, 2, 1)], 3), &[(1, 273), (3, 4)]);
        let mut pending = text(vec![part(1, 273, 2, 1), part(2, 10, 1, 0)], 2);
        let unknown = Array::from_slice(&[11u32, 4], &[2]);
        pending.pending = Some(PendingIds { rows: vec![0, 2], ids: unknown });
        self.step(&pending, &[(1, 274), (2, 11)]);
        let mut image = text(vec![part(2, 11, 4, 0)], 8);
        let hidden = self.target.info().hidden;
        let wave = |step: f32| {
            let values: Vec<f32> = (0..2 * hidden).map(|at| (at as f32 * step).sin()).collect();
            Array::from_slice(&values, &[2, hidden])
        };
        image.overrides = vec![Override {
            rows: vec![1, 2],
            embeddings: wave(0.3),
            after_layer: vec![(0, wave(0.1))],
        }];
        self.step(&image, &[(2, 15)]);
        self.step(&text(vec![part(1, 274, 1, 0), part(2, 15, 1, 0), part(3, 4, 1, 0)], 6), &[]);
    }
}

#[test]
fn a_program_gives_the_bits_of_the_graph() {
    let (dense, _) = targets();
    assert!(dense.len() >= 10, "{dense:?}");
    dense.iter().for_each(|dir| Both::load(dir, 0.0).compare());
}

#[test]
fn a_program_with_experts_gives_the_numbers_of_the_graph() {
    let (_, experts) = targets();
    assert!(experts.len() >= 4, "{experts:?}");
    experts.iter().for_each(|dir| Both::load(dir, 2e-5).compare());
}

#[test]
fn hidden_states_of_a_layer_that_is_missing_are_refused() {
    let (dense, _) = targets();
    let mut both = Both::load(&dense[0], 0.0);
    let segment = Segment { sequence: SequenceId(1), start: 0, length: 1, drafted: 0 };
    let layers = vec![both.target.info().n_layers];
    let wants =
        Wants { hidden_states: Some(FeatureLayers { layers, rows: vec![0] }), ..Wants::default() };
    for store in &mut both.stores {
        let batch = Batch::text(vec![1], vec![segment]);
        let error = both.target.forward(&batch, store, &wants).expect_err("too high").to_string();
        assert!(error.contains("expected feature layers below"), "{error}");
    }
}

#[test]
#[ignore = "by hand: needs the directory of a checkpoint in PACELINE_TEST_MODEL"]
fn fifty_prompts_of_a_real_checkpoint_have_the_bits_of_the_graph() {
    let dir = std::env::var_os("PACELINE_TEST_MODEL").expect("a directory");
    let mut both = Both::load(Path::new(&dir), 0.0);
    let vocab = both.target.info().vocab as u32;
    for prompt in 0..50u32 {
        let length = 5 + prompt % 40;
        let id = |at: u32| (prompt * 7_919 + at * at * 31 + at * 1_009) % vocab;
        let ids: Vec<u32> = (0..length).map(id).collect();
        for store in &mut both.stores {
            store.free(SequenceId(1));
            store.open(SequenceId(1)).expect("freed");
        }
        let segment = |start: u32, length: u32| Segment {
            sequence: SequenceId(1),
            start: start as i32,
            length: length as i32,
            drafted: 0,
        };
        let batch = Batch::text(ids, vec![segment(0, length)]);
        let mut logits = both.step(&batch, &[(1, length as i32)]);
        // Each step reads the id that the one before chose.
        for at in length..length + 24 {
            let best = logits.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
            let next = best.map_or(0, |(id, _)| id as u32);
            let batch = Batch::text(vec![next], vec![segment(at, 1)]);
            logits = both.step(&batch, &[(1, at as i32 + 1)]);
        }
    }
}
