//! EAGLE-3 drafters.

use paceline_models::{DraftPart, LoadError, Quantize, SequenceId, load_draft};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use tempfile::TempDir;

use crate::chains::{self, Rule, draft, part, prefill, propose};
use crate::pair::{Pair, golden};
use crate::{prompt, with_config};

const NAMES: [&str; 2] = ["eagle3-llama", "eagle3-qwen3"];
const TARGET: &str = "dflash-target";

#[test]
fn a_llama_layer_follows_the_reference() {
    chains::follow_reference("eagle3-llama", TARGET);
}

#[test]
fn a_qwen3_layer_with_all_norms_follows_the_reference() {
    chains::follow_reference("eagle3-qwen3", TARGET);
}

#[test]
fn eagle_sessions_together_are_sessions_alone() {
    NAMES.iter().for_each(|name| chains::sessions_together_are_sessions_alone(name, TARGET));
}

#[test]
fn eagle3_drafts_do_not_depend_on_chunk_borders() {
    NAMES.iter().for_each(|name| chains::how_the_context_was_cut_does_not_matter(name, TARGET));
}

#[test]
fn an_eagles_session_may_begin_in_the_middle() {
    NAMES.iter().for_each(|name| chains::a_session_may_begin_in_the_middle(name, TARGET));
}

#[test]
fn an_eagles_info_names_what_it_reads() {
    let pair = chains::load("eagle3-llama", TARGET);
    let info = pair.drafter.info();
    assert_eq!((info.kind.as_str(), info.feature_layers.as_slice()), ("eagle3", &[0, 1][..]));
    assert_eq!((info.token_ids, info.embeddings, info.hidden), (true, false, 32));
    assert_eq!((info.vocab, info.block), (Some(56), 6));
}

#[test]
fn a_copied_context_drafts_from_its_next_row_on() {
    let mut pair = chains::load("eagle3-llama", TARGET);
    pair.open(0);
    let (bonus, rows) = prefill(&mut pair, 0, &[4, 8, 9, 10, 11, 12, 13, 14], Rule::greedy());
    let block = Rule::greedy().block(5, bonus);
    let drafted = draft(&mut pair, 0, 0, &rows, block);
    pair.draft_kv.fork(SequenceId(0), SequenceId(1), 8).expect("copied");
    pair.draft_kv.fork(SequenceId(0), SequenceId(2), 7).expect("copied");
    // The store has no input of the last row.
    let at_once = propose(&mut pair, &[part(1, 8, 0, bonus, block)], &[]).expect("a forward");
    assert!(at_once[0].ids.is_empty());
    assert_eq!(draft(&mut pair, 2, 7, &rows.cut(7..8), block), drafted);
}

#[test]
fn a_context_row_needs_the_token_after_it() {
    let mut pair = chains::load("eagle3-llama", TARGET);
    pair.open(0);
    let (bonus, rows) = prefill(&mut pair, 0, &[4, 8, 9, 10], Rule::greedy());
    let without = DraftPart { next_id: None, ..part(0, 0, 4, bonus, None) };
    let error = propose(&mut pair, &[without], std::slice::from_ref(&rows)).expect_err("refused");
    assert!(error.to_string().contains("the token after the context"), "{error}");
    let unknown = part(9, 0, 4, bonus, None);
    let error = propose(&mut pair, &[unknown], std::slice::from_ref(&rows)).expect_err("refused");
    assert!(error.to_string().contains("sequence 9 is not in the store"), "{error}");
    assert_eq!(pair.draft_kv.length(SequenceId(0)), Some(0));
    let drafted = draft(&mut pair, 0, 0, &rows, Rule::greedy().block(6, bonus));
    assert_eq!((drafted.len(), pair.draft_kv.length(SequenceId(0))), (5, Some(4)));
}

#[test]
fn drafts_are_ids_of_the_reduced_vocabulary() {
    let mut pair = chains::load("eagle3-qwen3", TARGET);
    for session in 0..6 {
        pair.open(session);
        let (bonus, mut rows) = prefill(&mut pair, session, &[4, 8, 9, 10], Rule::greedy());
        rows.ids[1] = 4_000_000_000;
        let drafted =
            draft(&mut pair, session, 0, &rows, Rule::at(1000.0, session).block(6, bonus));
        let can = |id: &u32| (4..7).contains(id) || ((8..56).contains(id) && id % 11 != 3);
        assert!(drafted.len() == 5 && drafted.iter().all(can), "{drafted:?}");
    }
}

#[test]
fn quantized_eagles_draft_nearly_the_same() {
    for name in NAMES {
        let share = |quantize| chains::quantized_share(&golden(name), TARGET, quantize);
        let found = [share(Quantize::Q8), share(Quantize::Q4)];
        eprintln!("{name}: share of equal drafts, 8 and 4 bits: {found:?}");
        assert!(found[0] >= 0.8 && found[1] >= 0.4, "{found:?}");
    }
}

/// A tensor: (name, type, shape, bytes).
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn tensors(name: &str) -> Vec<Tensor> {
    let file = std::fs::read(golden(name).join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let owned = |(name, view): (&str, TensorView<'_>)| {
        (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    tensors.iter().map(owned).collect()
}

/// The drafter with other tensors.
fn changed(change: impl Fn(&mut Vec<Tensor>)) -> TempDir {
    let dir = with_config("eagle3-llama", |_| {});
    let mut all = tensors("eagle3-llama");
    change(&mut all);
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes"))
    });
    let file = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}

/// Error of loading a drafter with other tensors.
fn refusal(change: impl Fn(&mut Vec<Tensor>)) -> String {
    let dir = changed(change);
    let refused = load_draft(dir.path(), "auto", None, Quantize::None, &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error: LoadError| paceline_vocabulary::chain(&error))
}

#[test]
fn an_eagle_without_an_embedding_reads_its_targets() {
    let of_target = tensors(TARGET).into_iter().find(|one| one.0 == "model.embed_tokens.weight");
    let (.., shape, bytes) = of_target.expect("it is there");
    let own = changed(|all| {
        let one = all.iter_mut().find(|one| one.0 == "embed_tokens.weight").expect("it is there");
        assert_eq!(one.2, shape);
        one.3 = bytes.clone();
    });
    let without = changed(|all| all.retain(|one| one.0 != "embed_tokens.weight"));
    let drafts = |dir: &TempDir| {
        let mut pair = Pair::load(&golden(TARGET), dir.path(), Quantize::None);
        pair.open(0);
        let (bonus, rows) = prefill(&mut pair, 0, &prompt(30, 2), Rule::greedy());
        let drafted = draft(&mut pair, 0, 0, &rows, Rule::greedy().block(6, bonus));
        (drafted, pair.drafter.info().weight_bytes)
    };
    assert_eq!(drafts(&without), drafts(&own));
}

#[test]
fn foreign_and_broken_eagles_are_refused_with_the_reason() {
    assert_eq!(refusal(|_| {}), "loads");
    let without = |gone: &str| refusal(|all| all.retain(|(name, ..)| name != gone));
    let alone = without("embed_tokens.weight");
    assert!(alone.contains("computes with its target's embedding; set target.model"), "{alone}");
    assert!(without("d2t").contains("d2t is missing"));
    assert!(without("layers.0.hidden_norm.weight").contains("layers.0.hidden_norm.weight is miss"));
    assert_eq!(without("t2d"), "loads");
    let more = refusal(|all| {
        let (_, dtype, shape, bytes) = all[0].clone();
        all.push(("layers.1.more.weight".into(), dtype, shape, bytes));
    });
    assert!(more.contains("does not use, the first is layers.1.more.weight"), "{more}");
    let of = |change: &dyn Fn(&mut Dtype, &mut Vec<u8>), which: &str| {
        refusal(|all| {
            let tensor = all.iter_mut().find(|(name, ..)| name == which).expect("it is there");
            change(&mut tensor.1, &mut tensor.3);
        })
    };
    let half = of(
        &|dtype, bytes| {
            *dtype = Dtype::F16;
            bytes.truncate(bytes.len() / 2);
        },
        "fc.weight",
    );
    assert!(half.contains("overflow") && half.contains("bfloat16"), "{half}");
    let far = of(&|_, bytes| bytes[1] = 1, "d2t");
    assert!(far.contains("expected ids below 56, each once; row 0 has offset"), "{far}");
    let twice = of(&|_, bytes| bytes[8..16].copy_from_slice(&3i64.to_le_bytes()), "d2t");
    assert!(twice.contains("row 1 has offset 3"), "{twice}");
    let other =
        with_config("eagle3-llama", |config| config["speculators_model_type"] = "mtp".into());
    let refused = load_draft(other.path(), "eagle3", None, Quantize::None, &mut |_, _| {}).err();
    let reason = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(reason.contains("expected eagle3"), "{reason}");
    let qwen2 = Pair::load(&golden(TARGET), &golden("eagle3-qwen3"), Quantize::None);
    assert_eq!(qwen2.drafter.kv_layers().len(), 1);
}
