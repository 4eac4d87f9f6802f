//! What MLX is asked to do: primitives of each layer, held to mlx-lm's counts for the same
//! checkpoints, and evaluations of a step. `scripts/graph-cost.py` writes mlx-lm's counts.
//!
//! Norms, rotary turns, attention and gates count as the one primitive that they are on Metal.

#[allow(dead_code, reason = "a part of it")]
#[path = "../draft_parity/pair.rs"]
mod pair;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use paceline_models::exact_lanes::set_exact_lanes;
use paceline_models::sample::{Block, DraftedIds, RowRule, TokenSelection, propose};
use paceline_models::testing::primitives::{as_fused, by_name, evaluations, primitives};
use paceline_models::testing::rerun::Rerun;
use paceline_models::testing::{TestGraph, graph};
use paceline_models::{
    Array, Batch, DeviceChoice, FeatureLayers, Forward, KvStore, LayerKv, PendingIds, Segment,
    SequenceId, Target, Wants, device, load_target,
};
use pair::{Pair, prompt};
use serde::Deserialize;

/// Rows of the prompt before a row or a block.
const PROMPT: usize = 64;
/// Of mlx-lm's primitives for a plain decode layer.
const MOST_OF_MLX_LM: f64 = 1.15;
/// Primitives of a recurrent layer that reads 512 rows.
const MOST_OF_A_CHUNK: usize = 500;

const CHECKPOINTS: [&str; 11] = [
    "llama-tiny",
    "llama-tiny-q4",
    "qwen2-tiny",
    "qwen3-tiny",
    "qwen3-tiny-q4",
    "qwen3-moe-tiny",
    "qwen3-moe-tiny-q4",
    "qwen3_5-tiny",
    "qwen3_5-tiny-q4",
    "qwen3_5_moe-tiny",
    "qwen3_5_moe-tiny-q4",
];

/// Rows of a pass, and of the prompt before it.
#[derive(Clone, Copy)]
struct Pass {
    name: &'static str,
    rows: usize,
    drafted: usize,
    before: usize,
}

const PASSES: [Pass; 3] = [
    Pass { name: "row", rows: 1, drafted: 0, before: PROMPT },
    Pass { name: "block", rows: 4, drafted: 3, before: PROMPT },
    Pass { name: "chunk", rows: 512, drafted: 0, before: 0 },
];

/// For each checkpoint and pass: primitives of a layer of each kind.
#[derive(Deserialize)]
struct OfMlxLm {
    versions: BTreeMap<String, String>,
    layers: BTreeMap<String, BTreeMap<String, BTreeMap<String, usize>>>,
}

fn of_mlx_lm() -> OfMlxLm {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graph_cost/mlx-lm.json");
    let text = std::fs::read(path).expect("in the repository");
    serde_json::from_slice(&text).expect("as scripts/graph-cost.py writes it")
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn load(name: &str) -> Box<dyn Target> {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    load_target(&golden(name), &mut |_, _| {}).expect("loads")
}

/// A store with one sequence that has read `rows` rows.
fn after_prompt(model: &dyn Target, rows: usize) -> KvStore {
    let kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context);
    let mut kv = kv.expect("a store");
    kv.open(SequenceId(0)).expect("new");
    kv.reserve(SequenceId(0), 512).expect("a slot");
    if rows > 0 {
        forward(model, &mut kv, rows, 0, &Wants::default());
        kv.evaluate().expect("evaluates");
        kv.commit(SequenceId(0), rows as i32).expect("commits");
    }
    kv
}

/// The next `rows` rows of the sequence. Lazy.
fn forward(
    model: &dyn Target,
    kv: &mut KvStore,
    rows: usize,
    drafted: usize,
    wants: &Wants,
) -> Forward {
    let (sequence, length, drafted) = (SequenceId(0), rows as i32, drafted as i32);
    let start = kv.length(sequence).expect("open");
    let segment = Segment { sequence, start, length, drafted };
    let ids = (0..rows as u32).map(|at| at % 7 + 5).collect();
    model.forward(&Batch::text(ids, vec![segment]), kv, wants).expect("a forward")
}

/// Primitives of a layer of each kind in a pass: what it adds to the layers below it. The first
/// layer is left out, because the embedding and the mask are made beside it. States that a pass
/// leaves for the next are shared out among the recurrent layers.
fn layers(model: &dyn Target, pass: Pass) -> BTreeMap<String, usize> {
    let mut kv = after_prompt(model, pass.before);
    let n_layers = model.info().n_layers;
    let features = FeatureLayers { layers: (0..n_layers).collect(), rows: vec![0] };
    let wants = Wants { hidden_states: Some(features), ..Wants::default() };
    let forward = as_fused(|| forward(model, &mut kv, pass.rows, pass.drafted, &wants));
    let states = forward.hidden_states.expect("wanted");
    let kinds = model.kv_layers();
    let recurrent = kinds.iter().filter(|kind| matches!(kind, LayerKv::Recurrent(_))).count();
    let all = states.arrays().iter().chain(kv.arrays());
    let through = primitives(states.arrays()).expect("counts").len();
    let left = primitives(all).expect("counts").len() - through;
    let upto = |at: usize| primitives([&states.arrays()[at]]).expect("counts");
    let mut found = BTreeMap::new();
    for (at, kind) in kinds.iter().enumerate().skip(1) {
        let (below, here) = (upto(at - 1), upto(at));
        let gathers = |all: &[_]| {
            let names = by_name(all);
            ["GatherMM", "GatherQMM"]
                .iter()
                .map(|name| names.get(name).unwrap_or(&0))
                .sum::<usize>()
        };
        let experts = if gathers(&here) > gathers(&below) { ", experts" } else { "" };
        let added = here.len() - below.len();
        let (name, added) = match kind {
            LayerKv::Growing(_) => ("attention", added),
            LayerKv::Shared(_) => ("shared attention", added),
            LayerKv::Recurrent(_) => ("recurrent", added + left.div_ceil(recurrent)),
        };
        found.entry(format!("{name}{experts}")).or_insert(added);
    }
    found
}

/// Whether MLX's CPU can read the prompt of this checkpoint: it has no `gather_mm` in bfloat16.
fn is_computed(name: &str) -> bool {
    graph() != TestGraph::Gpu || !matches!(name, "qwen3-moe-tiny" | "qwen3_5_moe-tiny")
}

#[test]
#[ignore = "by hand: prints the counts that scripts/graph-cost.py puts beside mlx-lm's"]
fn the_graph_of_every_family() {
    let graph = match graph() {
        TestGraph::Own => "cpu",
        TestGraph::Mlx => "mlx",
        TestGraph::Gpu => "gpu",
    };
    for name in CHECKPOINTS.into_iter().filter(|name| is_computed(name)) {
        let model = load(name);
        for pass in PASSES {
            let counts = serde_json::to_string(&layers(&*model, pass)).expect("JSON");
            println!("graph-cost {graph} {name} {} {counts}", pass.name);
        }
    }
}

/// Layers of a pass beyond a bound, in words.
fn beyond(name: &str, pass: Pass, bound: impl Fn(&str) -> Option<f64>) -> Vec<String> {
    let found = layers(&*load(name), pass);
    let beyond = found.iter().filter_map(|(kind, count)| {
        let most = bound(kind)?;
        let what = format!("{name}, {kind}: {count} primitives, at most {most:.0}");
        (*count as f64 > most).then_some(what)
    });
    beyond.collect()
}

/// Attention and experts of 4 bits, as users have them.
fn plain_layers_beyond_mlx_lm() -> Vec<String> {
    let theirs = of_mlx_lm();
    assert!(theirs.versions.contains_key("mlx-lm"));
    let beyond_of = |name: &&str| {
        let of = &theirs.layers[*name]["row"];
        beyond(name, PASSES[0], |kind| {
            (!kind.starts_with("recurrent")).then(|| MOST_OF_MLX_LM * of[kind] as f64)
        })
    };
    let quantized = CHECKPOINTS.iter().filter(|name| name.ends_with("-q4"));
    quantized.flat_map(beyond_of).collect()
}

fn in_the_graph_of_a_gpu(test: &str) {
    Rerun { graph: "gpu", only: &[test], skipped: &[], reruns: &[] }.run();
}

#[test]
// 36 primitives of qwen3-tiny-q4 and 44 of qwen3_5-tiny-q4 beside 29 and 36 of mlx-lm.
fn a_plain_layer_costs_at_most_what_mlx_lm_s_costs_and_a_seventh() {
    in_the_graph_of_a_gpu("bounds::plain_layers");
}

#[test]
fn a_recurrent_layer_reads_512_rows_by_at_most_500_primitives() {
    in_the_graph_of_a_gpu("bounds::chunks");
}

#[test]
fn a_plain_step_is_one_evaluation_and_a_drafted_cycle_two() {
    in_the_graph_of_a_gpu("bounds::evaluations_of_a_cycle");
}

#[test]
fn with_exact_lanes_no_quantized_product_of_a_plain_step_has_one_row() {
    in_the_graph_of_a_gpu("bounds::products_of_one_row");
}

/// The bounds of the graph of a GPU. In the CPU's own graph a pass is one node, and none of them
/// says anything.
mod bounds {
    use super::*;

    fn assert_graph_of_a_gpu() {
        assert_eq!(graph(), TestGraph::Gpu, "run by the tests above");
    }

    #[test]
    #[ignore = "needs the environment that the tests above give it"]
    fn plain_layers() {
        assert_graph_of_a_gpu();
        let beyond = plain_layers_beyond_mlx_lm();
        assert!(beyond.is_empty(), "{beyond:#?}");
    }

    #[test]
    #[ignore = "needs the environment that the tests above give it"]
    fn chunks() {
        assert_graph_of_a_gpu();
        let hybrids = ["qwen3_5-tiny", "qwen3_5-tiny-q4", "qwen3_5_moe-tiny-q4"];
        let bound = |kind: &str| kind.starts_with("recurrent").then_some(MOST_OF_A_CHUNK as f64);
        let beyond: Vec<_> =
            hybrids.into_iter().flat_map(|name| beyond(name, PASSES[2], bound)).collect();
        assert!(beyond.is_empty(), "{beyond:#?}");
    }

    /// Quantized products of one row in a plain step of a sequence, and the step's logits.
    fn plain_step(model: &dyn Target) -> (usize, Vec<f32>) {
        let mut kv = after_prompt(model, PROMPT);
        let wants = Wants { logit_rows: vec![0], ..Wants::default() };
        let logits = forward(model, &mut kv, 1, 0, &wants).logits.expect("wanted");
        let all = primitives([&logits]).expect("counts");
        let one_row = all.iter().filter(|primitive| {
            let shape = &primitive.outputs[0].shape;
            let rows: i32 = shape.iter().rev().skip(1).product();
            primitive.name == "QuantizedMatmul" && rows == 1
        });
        let count = one_row.count();
        logits.eval().expect("evaluates");
        (count, logits.try_as_slice::<f32>().expect("floats").to_vec())
    }

    #[test]
    #[ignore = "needs the environment that the tests above give it"]
    fn products_of_one_row() {
        assert_graph_of_a_gpu();
        for name in CHECKPOINTS.iter().filter(|name| name.ends_with("-q4")) {
            let model = load(name);
            let [(fast, logits), (exact, exact_logits)] = [false, true].map(|exact| {
                set_exact_lanes(exact);
                plain_step(&*model)
            });
            assert!(fast > 0, "{name}: a plain step has products of one row");
            assert_eq!(exact, 0, "{name}");
            assert_eq!(logits, exact_logits, "{name}: MLX's CPU adds each row alike");
        }
    }

    /// Evaluations while `work` runs.
    fn evaluations_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
        let before = evaluations();
        let made = work();
        (evaluations() - before, made)
    }

    #[test]
    #[ignore = "needs the environment that the tests above give it"]
    fn evaluations_of_a_cycle() {
        assert_graph_of_a_gpu();
        let mut pair = Pair::golden("dflash-full");
        pair.open(0);
        // A new slot is an evaluation of its own, once for a sequence.
        pair.draft_kv.reserve(SequenceId(0), 100).expect("a slot");
        let (bonus, states) = pair.prefill(0, &prompt(40, 3));
        let sequence = SequenceId(0);
        // A plain step: one row whose token the graph chooses.
        let (plain, next) = evaluations_of(|| {
            let segment = Segment { sequence, start: 40, length: 1, drafted: 0 };
            let wants = Wants { logit_rows: vec![0], ..Wants::default() };
            let batch = Batch::text(vec![bonus], vec![segment]);
            let forward = pair.target.forward(&batch, &mut pair.target_kv, &wants);
            let logits = forward.expect("a forward").logits.expect("wanted");
            let blocks = [Block { rule: RowRule::greedy(&[], 0), drafted: 0 }];
            let selection = TokenSelection::of(&logits, &blocks).expect("a selection");
            let verdicts = selection.verdicts(&blocks, &DraftedIds::OnHost(vec![]), &[]);
            verdicts.expect("choices")[0].choices[0].token
        });
        assert!(next < pair.target.info().vocab as u32);
        assert_eq!(plain, 1, "evaluations of a plain step");
        // The drafter's evaluation, in its own process.
        let (drafting, hidden) = evaluations_of(|| {
            let hidden = pair.draft(0, 0, &states, bonus);
            hidden.eval().expect("evaluates");
            hidden
        });
        // The target's: drafts are chosen and verified in one graph, which the hidden states and the
        // embedding of the next bonus token are part of.
        let (verifying, accepted) = evaluations_of(|| {
            let drafted = hidden.dim(0) as usize;
            let block = [Block { rule: RowRule::greedy(&[], 0), drafted }];
            let drafts = pair.target.head(&hidden).and_then(|logits| propose(&logits, &block));
            let drafts = drafts.expect("drafts");
            let length = drafted as i32 + 1;
            let segment = Segment { sequence, start: 40, length, drafted: drafted as i32 };
            let mut batch = Batch::text(vec![bonus; length as usize], vec![segment]);
            let DraftedIds::InGraph(ids) = &drafts else { panic!("expected ids in the graph") };
            let ids = ids.clone();
            batch.pending = Some(PendingIds { rows: (1..length).collect(), ids });
            let rows: Vec<i32> = (0..length).collect();
            let layers = pair.drafter.info().feature_layers.clone();
            let features = FeatureLayers { layers, rows: rows.clone() };
            let hidden_states = Some(features);
            let wants = Wants { logit_rows: rows, hidden_states, ..Wants::default() };
            let forward = pair.target.forward(&batch, &mut pair.target_kv, &wants);
            let forward = forward.expect("a forward");
            let logits = forward.logits.expect("wanted");
            let selection = TokenSelection::of(&logits, &block).expect("a selection");
            let states = forward.hidden_states.expect("wanted");
            let with: Vec<&Array> = states.arrays().iter().collect();
            let verdicts = selection.verdicts(&block, &drafts, &with).expect("choices");
            states.on_host().expect("evaluated");
            verdicts[0].choices.len() - 1
        });
        println!("{accepted} accepted");
        assert_eq!((drafting, verifying), (1, 1), "evaluations of a drafted cycle");
    }
}
